import colorsys
import re
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest

from bertrelay.drawing import Box, Label
from bertrelay.errors import RequestError, WorkError
from bertrelay.fonts import FIRST, Fonts, fonts_for
from bertrelay.heatmap import colour, cut, heatmap, heatmap_svg, text_columns, write_heatmap

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def cell_colours(svg):
    cells = [rect for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    return [cell.get("fill") for cell in cells]


def luminance(hexadecimal):
    channels = [int(hexadecimal[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def lightness(hexadecimal):
    """CIE L*, another measure of lightness than the one the scale is made with."""
    y = luminance(hexadecimal)
    return 116 * np.cbrt(y) - 16


def test_every_value_and_label_of_a_small_matrix_is_printed():
    svg = heatmap_svg([[0.25, 1.0], [-0.5, 0.125]], ["a", "b"], ["c", "d"], "Cosines")
    assert {"0.25", "1.00", "−0.50", "0.12", "a", "b", "c", "d", "Cosines"} <= set(texts(svg))


def test_twelve_rows_have_their_values_printed_and_thirteen_have_not():
    def labels(n):
        return [f"r{i}" for i in range(n)]

    assert "0.50" in texts(heatmap_svg(np.full((12, 12), 0.5), labels(12), labels(12), ""))
    assert texts(heatmap_svg(np.full((13, 13), 0.5), labels(13), labels(13), "")).count("0.50") == 2  # the legend's


@pytest.mark.parametrize("count", [2, 12, 28, 29, 48, 200])
def test_every_row_and_column_has_its_label_and_none_runs_into_the_next(count):
    names = [f"row {i}" for i in range(count)]
    drawing = heatmap(np.eye(count), names, [f"column {i}" for i in range(count)], "")
    labels = {shape.text: shape for shape in drawing.shapes if isinstance(shape, Label)}
    rows, columns = [labels[name] for name in names], [labels[f"column {i}"] for i in range(count)]
    apart = columns[1].x - columns[0].x
    assert rows[1].y - rows[0].y >= 12
    assert apart * np.sin(np.radians(columns[0].turn)) >= 12
    assert {columns[0].turn} <= {40.0, 90.0}
    assert all(0 <= label.x <= drawing.width and 0 <= label.y <= drawing.height for label in labels.values())


def test_the_larger_value_is_the_deeper_colour():
    svg = heatmap_svg([[0.1, 0.9, 0.5]], ["a"], ["b", "c", "d"], "")
    pale, deep, between = map(luminance, cell_colours(svg))
    assert deep < between < pale


def test_equal_steps_of_value_are_nearly_equal_steps_of_lightness():
    steps = -np.diff([lightness(colour(share)) for share in np.linspace(0, 1, 11)])
    assert steps.min() > 0.8 * steps.mean()
    assert steps.max() < 1.2 * steps.mean()


def test_ink_on_every_colour_has_readable_contrast():
    for share in np.linspace(0, 1, 101):
        svg = heatmap_svg([[0.0, float(share), 1.0]], ["a"], ["b", "c", "d"], "")
        inks = re.findall(r'fill="(#\w+)">[\d.]+</text>', svg)
        lighter, darker = sorted([luminance(inks[1]), luminance(cell_colours(svg)[1])], reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_the_scale_never_leaves_what_a_screen_can_show():
    hues = [colorsys.rgb_to_hsv(*(int(colour(s)[i : i + 2], 16) / 255 for i in (1, 3, 5)))[0] for s in (0.3, 0.6, 1)]
    assert max(hues) - min(hues) < 0.12  # a clipped channel would swing the hue


def test_a_missing_value_is_a_dash_and_not_the_lowest_colour():
    svg = heatmap_svg([[None, 0.5], [float("nan"), 1.0]], ["a", "b"], ["c", "d"], "")
    assert texts(svg).count("–") == 2
    assert len(cell_colours(svg)) == 2


def test_a_matrix_of_one_value_and_one_of_none_can_be_drawn():
    assert len(cell_colours(heatmap_svg([[0.3]], ["a"], ["b"], ""))) == 1
    assert cell_colours(heatmap_svg([[None]], ["a"], ["b"], "")) == []


def test_hangul_and_ideographs_are_two_columns_wide_and_accents_none():
    assert text_columns("abc") == 3
    assert text_columns("고양이") == 6
    assert text_columns("é") == text_columns("é") == 1
    assert text_columns("ก็") == 1


def test_a_long_label_is_cut_by_its_width_and_given_whole_beside_it():
    korean = "고양이가 작은 개를 본다 " * 4
    assert text_columns(cut(korean)) <= 34
    assert cut(korean).endswith("…")
    assert cut("a" * 34) == "a" * 34
    svg = heatmap_svg([[1.0]], [korean], ["a"], "")
    titles = [title.text for title in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert korean in titles


def test_markup_and_control_characters_in_labels_stay_text():
    svg = heatmap_svg([[1.0]], ['<script>"&\x00\x1b\ud800'], ["b\n"], "<t>")
    assert '<script>"&   ' in texts(svg)
    assert "<script" not in svg


@pytest.mark.parametrize("label", ["W" * 34, "m" * 34, "あ" * 17, "a long label, as usual as can be, ah"])
@pytest.mark.parametrize("count", [1, 8, 40])
def test_labels_lie_inside_the_picture(label, count):
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    drawing = heatmap(np.eye(count), [label] * count, [label] * count, "")
    letters = cut(label) if "あ" not in label else "m" * 20  # of a font that is there
    pixels = TextPath((0, 0), letters, 12, prop=FontProperties("DejaVu Sans")).get_extents().width
    row, column = (
        next(s for s in drawing.shapes if getattr(s, "text", "") == cut(label) and s.anchor == end)
        for end in ("end", "start")
    )
    assert row.x - pixels >= 0
    assert column.y - pixels * np.sin(np.radians(column.turn)) >= 14  # below the heading
    last = [s for s in drawing.shapes if getattr(s, "text", "") == cut(label) and s.anchor == "start"][-1]
    assert last.x + pixels * np.cos(np.radians(last.turn)) <= drawing.width


def test_a_narrow_picture_has_room_for_its_legend():
    drawing = heatmap(np.eye(60)[:, :1], ["a"] * 60, ["b"], "")
    assert max(shape.x + shape.width for shape in drawing.shapes if isinstance(shape, Box)) <= drawing.width + 1


def test_a_picture_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write_heatmap(tmp_path / "m.png", [[1.0]], ["a"], ["b"])
    before = (tmp_path / "m.png").read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bertrelay.drawing.write_drawing", full)
    with pytest.raises(WorkError, match=r"could not write .*m\.png: No space left on device"):
        write_heatmap(tmp_path / "m.png", [[0.0]], ["a"], ["b"])
    assert [path.name for path in tmp_path.iterdir()] == ["m.png"]
    assert (tmp_path / "m.png").read_bytes() == before


def test_scripts_without_a_font_are_told_with_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bertrelay.drawing.write_drawing", lambda *_: ["Devanagari", "Thai"])
    write_heatmap(tmp_path / "m.png", [[1.0]], ["a"], ["b"])
    told = capsys.readouterr().err
    assert "no font of this machine has Devanagari, Thai" in told
    assert "or write .svg" in told


def test_labels_that_do_not_fit_and_pictures_nobody_could_read_are_refused():
    with pytest.raises(RequestError, match=r"\(1, 2\), found \(2, 2\)"):
        heatmap_svg(np.eye(2), ["a"], ["b", "c"], "")
    with pytest.raises(RequestError, match="at least one row"):
        heatmap_svg(np.zeros((0, 0)), [], [], "")
    with pytest.raises(RequestError, match="201 × 1 cells"):
        heatmap_svg(np.zeros((201, 1)), ["a"] * 201, ["b"], "")


SENTENCES = {
    "Korean": "개가 공원에서 짖는다",
    "Chinese": "一只狗在公园里叫",
    "Japanese": "犬が公園で吠えている",
    "Hindi": "कुत्ता पार्क में भौंकता है",
    "Thai": "สุนัขเห่าในสวน",
    "Russian": "Собака лает в парке",
}


@pytest.fixture
def a_missing_glyph_is_an_error(monkeypatch):
    """Where `write_drawing` says what to do about matplotlib's warning."""
    filtered = warnings.filterwarnings
    monkeypatch.setattr(warnings, "filterwarnings", lambda _, message: filtered("error", message))


@pytest.mark.usefixtures("a_missing_glyph_is_an_error")
@pytest.mark.parametrize("language", SENTENCES)
def test_labels_are_drawn_letter_by_letter_in_every_script_that_a_font_here_has(language, tmp_path, capsys):
    label = SENTENCES[language]
    missing = fonts_for(label).missing
    if missing:
        pytest.skip(f"no font of this machine has {', '.join(missing)}")
    write_heatmap(tmp_path / "m.png", [[0.5, 1.0]], [label], [label, "a dog"], label)
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    assert "no font" not in capsys.readouterr().err


@pytest.mark.usefixtures("a_missing_glyph_is_an_error")
def test_a_letter_without_a_font_would_be_noticed_so(tmp_path, monkeypatch):
    monkeypatch.setattr("bertrelay.drawing.fonts_for", lambda _: Fonts([FIRST], []))
    with pytest.raises(UserWarning, match=r"Glyph .* missing from"):
        write_heatmap(tmp_path / "m.png", [[1.0]], [SENTENCES["Korean"]], ["a dog"])
