import colorsys
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from bertrelay.errors import RequestError
from bertrelay.heatmap import colour, cut, heatmap_svg, text_columns

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


def test_no_cell_of_thirteen_has_a_value_and_no_row_of_forty_nine_a_label():
    def labels(n):
        return [f"r{i}" for i in range(n)]

    assert "0.50" in texts(heatmap_svg(np.full((12, 12), 0.5), labels(12), labels(12), ""))
    assert texts(heatmap_svg(np.full((13, 13), 0.5), labels(13), labels(13), "")).count("0.50") == 2  # the legend's
    assert texts(heatmap_svg(np.eye(48), labels(48), labels(48), "")).count("r47") == 2
    assert "r48" not in texts(heatmap_svg(np.eye(49), labels(49), labels(49), ""))


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


def test_wide_labels_lie_inside_the_picture():
    long = "W" * 34
    root = ElementTree.fromstring(heatmap_svg([[1.0, 0.5]], [long], [long, long], ""))
    width = float(root.get("width"))
    last = [text for text in root.iter(f"{SVG}text") if text.get("transform")][-1]
    start = float(re.search(r"translate\(([\d.]+)", last.get("transform")).group(1))
    assert start + 34 * 7.3 * np.cos(np.radians(40)) <= width


def test_labels_that_do_not_fit_and_pictures_nobody_could_read_are_refused():
    with pytest.raises(RequestError, match=r"\(1, 2\), found \(2, 2\)"):
        heatmap_svg(np.eye(2), ["a"], ["b", "c"], "")
    with pytest.raises(RequestError, match="at least one row"):
        heatmap_svg(np.zeros((0, 0)), [], [], "")
    with pytest.raises(RequestError, match="201 × 1 cells"):
        heatmap_svg(np.zeros((201, 1)), ["a"] * 201, ["b"], "")
