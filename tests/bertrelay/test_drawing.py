import warnings
from xml.etree import ElementTree

import numpy as np
import pytest

from bertrelay.drawing import MARGIN, Box, Drawing, Label, as_svg, check_picture, write_drawing
from bertrelay.errors import RequestError
from bertrelay.fonts import Fonts

SVG = "{http://www.w3.org/2000/svg}"
INK = 128


@pytest.fixture
def pixels(tmp_path):
    """The grey values of a drawing as PNG (rows, columns), in the pixels of the drawing, its margin cut off."""
    from PIL import Image

    def of(*shapes, width=100, height=60):
        assert write_drawing(Drawing("", width, height, shapes), tmp_path / "p.png", ".png") == []
        with Image.open(tmp_path / "p.png") as picture:
            picture = picture.convert("L").resize((int(width + 2 * MARGIN), int(height + 2 * MARGIN)))
            cut = int(MARGIN)
            return np.asarray(picture)[cut:-cut, cut:-cut]

    return of


def test_boxes_stand_at_their_places_and_a_missing_one_is_an_outline(pixels):
    grey = pixels(Box(10, 20, 30, 10, "#000000"), Box(60, 20, 30, 10, None))
    assert (grey[21:29, 11:39] == 0).all()
    assert (grey[23:27, 63:87] == 255).all()
    assert (grey[20:30, 59:62] < 255).any(axis=1).all()
    assert (grey[:19] == 255).all()


@pytest.mark.parametrize(
    ("anchor", "turn", "inside"),
    [
        ("start", 0, np.s_[28:42, 50:90]),
        ("end", 0, np.s_[28:42, 10:50]),
        ("middle", 0, np.s_[28:42, 30:70]),
        ("start", 90, np.s_[0:40, 38:52]),
    ],
)
def test_labels_stand_where_their_anchor_and_turn_say(pixels, anchor, turn, inside):
    grey = pixels(Label(50, 40, "Hello", anchor, turn=turn))
    assert (grey[inside] < INK).sum() > 20
    assert (grey < INK).sum() == (grey[inside] < INK).sum()


def test_a_label_is_text_and_no_formula(pixels):
    assert (pixels(Label(5, 40, "$x_1$ \\alpha")) < INK).sum() > (pixels(Label(5, 40, "x")) < INK).sum() * 3


def test_arabic_letters_are_joined_and_go_from_right_to_left(pixels):
    joined, apart = (pixels(Label(50, 40, text, "middle", size=24)) < INK for text in ("ببب", "ب\u200cب\u200cب"))
    assert joined.any(axis=0).sum() < apart.any(axis=0).sum()  # joined letters need less room
    first = (pixels(Label(50, 40, "ا...", "middle", size=24)) < INK).any(axis=1).argmax()
    columns = (pixels(Label(50, 40, "ا...", "middle", size=24)) < INK)[first].nonzero()[0]
    assert columns.mean() > 50  # the tall letter, which comes first, stands to the right of the dots


def test_a_script_without_a_font_is_named_and_raises_no_warning(tmp_path, monkeypatch):
    monkeypatch.setattr("bertrelay.drawing.fonts_for", lambda _: Fonts(["DejaVu Sans"], ["Linear"]))
    picture = Drawing("", 90, 20, [Label(0, 10, "\U00010000\U00010001"), Label(0, 20, "a")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert write_drawing(picture, tmp_path / "p.png", ".png") == ["Linear"]
        assert write_drawing(picture, tmp_path / "p.svg", ".svg") == []


@pytest.mark.parametrize(("kind", "begins"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<svg")])
def test_each_kind_of_file_is_what_its_name_says(tmp_path, kind, begins):
    write_drawing(Drawing("", 90, 20, [Label(0, 10, "a")]), tmp_path / "picture", kind)
    assert (tmp_path / "picture").read_bytes().startswith(begins)


def test_right_to_left_labels_are_set_apart_in_svg_so_that_their_punctuation_stays_with_them():
    svg = as_svg(Drawing("", 90, 20, [Label(0, 10, "الكلب."), Label(0, 20, "dog.")]))
    found = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert found == ["\u2068الكلب.\u2069", "dog."]


def test_a_picture_of_another_kind_or_in_no_folder_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"ends in \.png or \.svg or \.pdf, found .*p\.gif"):
        check_picture(tmp_path / "p.gif")
    with pytest.raises(RequestError, match=r"there is no folder .*none"):
        check_picture(tmp_path / "none" / "p.png")
    check_picture(tmp_path / "p.png")
