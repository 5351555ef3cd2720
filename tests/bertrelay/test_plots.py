"""Heat maps that can be read: every label, even colours with contrast, every script that has a font."""

import colorsys
import re
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest

from bertrelay import plots
from bertrelay.errors import RequestError, WorkError
from bertrelay.plots import (
    COLOURS,
    MARGIN,
    Box,
    Drawing,
    Label,
    as_svg,
    cut,
    heatmap,
    script,
    text_columns,
    width_of,
    write_heatmap,
    write_picture,
)

SVG = "{http://www.w3.org/2000/svg}"
INK = 128
LINEAR_B = "\U00010000\U00010001"  # of which no font here has a letter


def svg_of(matrix, rows, columns, title=""):
    return as_svg(heatmap(matrix, rows, columns, title))


def texts(svg):
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def cell_colours(svg):
    cells = [rect for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    return [cell.get("fill") for cell in cells]


def luminance(hexadecimal):
    channels = [int(hexadecimal[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# Heat maps


def test_values_are_printed_up_to_twelve_rows_and_every_label_always():
    svg = svg_of([[0.25, 1.0], [-0.5, 0.125]], ["a", "b"], ["c", "d"], "Cosines")
    assert {"0.25", "1.00", "−0.50", "0.12", "a", "b", "c", "d", "Cosines"} <= set(texts(svg))
    labels = [f"r{i}" for i in range(13)]
    assert texts(svg_of(np.full((12, 12), 0.5), labels[:12], labels[:12])).count("0.50") == 144 + 2  # and the legend's
    assert texts(svg_of(np.full((13, 13), 0.5), labels, labels)).count("0.50") == 2


@pytest.mark.parametrize("count", [2, 12, 28, 29, 48, 200])
def test_every_row_and_column_has_its_label_and_none_runs_into_the_next(count):
    names = [f"row {i}" for i in range(count)]
    drawing = heatmap(np.eye(count), names, [f"column {i}" for i in range(count)], "")
    labels = {shape.text: shape for shape in drawing.shapes if isinstance(shape, Label)}
    rows, columns = [labels[name] for name in names], [labels[f"column {i}"] for i in range(count)]
    assert rows[1].y - rows[0].y >= 12
    assert (columns[1].x - columns[0].x) * np.sin(np.radians(columns[0].turn)) >= 12
    assert all(0 <= label.x <= drawing.width and 0 <= label.y <= drawing.height for label in labels.values())


def test_colours_are_even_steps_of_lightness_with_readable_ink():
    """CIE L* is another measure of lightness than the one that the scale is made with."""
    lightness = [116 * np.cbrt(luminance(colour)) - 16 for colour in COLOURS]
    steps = -np.diff(lightness[::3])
    assert 0.8 * steps.mean() < steps.min() and steps.max() < 1.2 * steps.mean()
    hues = [colorsys.rgb_to_hsv(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))[0] for colour in COLOURS[8:]]
    assert max(hues) - min(hues) < 0.12  # a channel clipped at the screen's limit would swing the hue
    for share in np.linspace(0, 1, 101):
        svg = svg_of([[0.0, float(share), 1.0]], ["a"], ["b", "c", "d"])
        assert cell_colours(svg)[1] == COLOURS[round(share * 32)]
        ink = re.findall(r'fill="(#\w+)">[\d.]+</text>', svg)[1]
        lighter, darker = sorted([luminance(ink), luminance(cell_colours(svg)[1])], reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_a_missing_value_is_a_dash_and_not_the_lowest_colour():
    svg = svg_of([[None, 0.5], [float("nan"), 1.0]], ["a", "b"], ["c", "d"])
    assert texts(svg).count("–") == 2
    assert len(cell_colours(svg)) == 2
    assert cell_colours(svg_of([[None]], ["a"], ["b"])) == []
    assert len(cell_colours(svg_of([[0.3]], ["a"], ["b"]))) == 1


def test_a_long_label_is_cut_by_its_width_and_whole_in_its_tooltip():
    """A Hangul syllable or an ideograph is two columns wide, an accent none."""
    assert [text_columns(text) for text in ("abc", "고양이", "é", "é", "ก็")] == [3, 6, 1, 1, 1]
    korean = "고양이가 작은 개를 본다 " * 4
    assert text_columns(cut(korean)) <= 34
    assert cut(korean).endswith("…")
    assert cut("a" * 34) == "a" * 34
    titles = [title.text for title in ElementTree.fromstring(svg_of([[1.0]], [korean], ["a"])).iter(f"{SVG}title")]
    assert korean in titles


@pytest.mark.parametrize("label", ["W" * 34, "m" * 34, "あ" * 17, "a long label, as usual as can be, ah"])
@pytest.mark.parametrize("count", [1, 8, 40])
def test_labels_and_legend_lie_inside_the_picture(label, count):
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    drawing = heatmap(np.eye(count), [label] * count, [label] * count, "")
    letters = cut(label) if "あ" not in label else "m" * 20  # of a font that is there
    pixels = TextPath((0, 0), letters, 12, prop=FontProperties("DejaVu Sans")).get_extents().width
    of_cells = [shape for shape in drawing.shapes if getattr(shape, "text", "") == cut(label)]
    row, column = (next(shape for shape in of_cells if shape.anchor == end) for end in ("end", "start"))
    assert row.x - pixels >= 0
    assert column.y - pixels * np.sin(np.radians(column.turn)) >= 14  # below the title
    last = [shape for shape in of_cells if shape.anchor == "start"][-1]
    assert last.x + pixels * np.cos(np.radians(last.turn)) <= drawing.width
    assert max(shape.x + shape.width for shape in drawing.shapes if isinstance(shape, Box)) <= drawing.width + 1


def test_labels_that_do_not_fit_and_pictures_too_large_to_read_are_refused():
    with pytest.raises(RequestError, match=r"\(1, 2\), found \(2, 2\)"):
        heatmap(np.eye(2), ["a"], ["b", "c"], "")
    with pytest.raises(RequestError, match="at least one row"):
        heatmap(np.zeros((0, 0)), [], [], "")
    with pytest.raises(RequestError, match="201 × 1 cells"):
        heatmap(np.zeros((201, 1)), ["a"] * 201, ["b"], "")


# Files


def test_a_picture_is_written_complete_or_not_at_all(tmp_path, monkeypatch):
    write_heatmap(tmp_path / "m.png", [[1.0]], ["a"], ["b"])
    before = (tmp_path / "m.png").read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plots, "_draw", full)
    with pytest.raises(WorkError, match=r"could not write .*m\.png: No space left on device"):
        write_heatmap(tmp_path / "m.png", [[0.0]], ["a"], ["b"])
    assert [path.name for path in tmp_path.iterdir()] == ["m.png"]
    assert (tmp_path / "m.png").read_bytes() == before


def test_markup_control_characters_and_right_to_left_text_stay_text_in_svg():
    svg = svg_of([[1.0]], ['<script>"&\x00\x1b\ud800'], ["b\n"], "<t>")
    assert '<script>"&   ' in texts(svg)
    assert "<script" not in svg
    assert texts(as_svg(Drawing("", 90, 20, [Label(0, 10, "الكلب."), Label(0, 20, "dog.")]))) == [
        "\u2068الكلب.\u2069",  # isolated, so that its full stop stays with it
        "dog.",
    ]


@pytest.fixture
def pixels(tmp_path):
    """The grey values of a drawing as PNG (rows, columns), in the pixels of the drawing, its margin cut off."""
    from PIL import Image

    def of(*shapes, width=100, height=60):
        write_picture(tmp_path / "p.png", Drawing("", width, height, shapes))
        with Image.open(tmp_path / "p.png") as picture:
            picture = picture.convert("L").resize((int(width + 2 * MARGIN), int(height + 2 * MARGIN)))
            margin = int(MARGIN)
            return np.asarray(picture)[margin:-margin, margin:-margin]

    return of


@pytest.mark.parametrize(
    ("anchor", "turn", "inside"),
    [
        ("start", 0, np.s_[28:42, 50:90]),
        ("end", 0, np.s_[28:42, 10:50]),
        ("middle", 0, np.s_[28:42, 30:70]),
        ("start", 90, np.s_[0:40, 38:52]),
    ],
)
def test_labels_stand_where_anchor_and_turn_put_them(pixels, anchor, turn, inside):
    grey = pixels(Label(50, 40, "Hello", anchor, turn=turn))
    assert (grey[inside] < INK).sum() > 20
    assert (grey < INK).sum() == (grey[inside] < INK).sum()


# Fonts


def test_a_script_without_a_font_is_logged_once_and_raises_no_warning(tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("png", "svg"):
            write_heatmap(tmp_path / f"p.{kind}", [[1.0, 0.5]], [LINEAR_B], [LINEAR_B, "a\u200d\ufe0f"])
        assert 0 < width_of(LINEAR_B, 10) == pytest.approx(width_of(2 * LINEAR_B, 10) / 2)
    logged = capsys.readouterr().err
    assert logged.count("no font of this machine has Linear; such letters are boxes") == 1
    assert "p.png: " in logged and "or write .svg" in logged
    assert [script(letter) for letter in "कก👍ｗ"] == ["Devanagari", "Thai", "symbols and emoji", "Fullwidth"]
