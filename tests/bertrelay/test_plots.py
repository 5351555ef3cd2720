"""Heat maps that can be read: every label, even colours with contrast, every script that has a font."""

import warnings
from xml.etree import ElementTree

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager

from bertrelay import plots
from bertrelay.errors import RequestError
from bertrelay.plots import as_svg, cut, heatmap, write_heatmap

SVG = "{http://www.w3.org/2000/svg}"
LINEAR_B = "\U00010000\U00010001"  # letters that no font here has


def texts(figure):
    return ["".join(text.itertext()) for text in ElementTree.fromstring(as_svg(figure)).iter(f"{SVG}text")]


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_values_are_printed_up_to_twelve_rows_and_every_label_always():
    drawn = texts(heatmap([[0.25, 1.0], [-0.5, None]], ["a", "b"], ["c", "d"], "Cosines"))
    assert {"0.25", "1.00", "−0.50", "–", "a", "b", "c", "d", "Cosines"} <= set(drawn)
    labels = [f"r{i}" for i in range(13)]
    assert len(heatmap(np.full((12, 12), 0.37), labels[:12], labels[:12], "").axes[0].texts) == 144
    large = heatmap(np.full((13, 13), 0.37), labels, labels, "")
    assert len(large.axes[0].texts) == 0 and all(texts(large).count(label) == 2 for label in labels)


def test_values_have_ink_of_contrast():
    for fraction in np.linspace(0, 1, 11):
        axes = heatmap([[0.0, float(fraction), 1.0]], ["a"], ["b", "c", "d"], "").axes[0]
        mesh = axes.collections[0]
        colours = mesh.cmap(mesh.norm([0.0, fraction, 1.0]))
        for colour, value in zip(colours, axes.texts, strict=True):
            ink = {"white": 1.0, "black": 0.0}[value.get_color()]
            lighter, darker = sorted([ink, luminance(colour)], reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_a_long_label_is_cut_by_its_width():
    """A Hangul syllable or an ideograph is two columns wide, an accent none."""
    assert cut("a" * 34) == cut("a" * 34 + "") == "a" * 34
    assert cut("a" * 35) == "a" * 33 + "…"
    assert cut("é" * 34) == "é" * 34
    assert cut("고" * 18) == "고" * 16 + "…"


def test_labels_that_do_not_fit_and_pictures_too_large_to_read_are_refused():
    with pytest.raises(RequestError, match=r"\(1, 2\), found \(2, 2\)"):
        heatmap(np.eye(2), ["a"], ["b", "c"], "")
    with pytest.raises(RequestError, match="at least one row"):
        heatmap(np.zeros((0, 0)), [], [], "")
    with pytest.raises(RequestError, match="201 × 1 cells"):
        heatmap(np.zeros((201, 1)), ["a"] * 201, ["b"], "")


def test_markup_formulas_and_control_characters_stay_text_in_svg():
    figure = heatmap([[1.0]], ['<script>"&\x00\x1b\ud800'], ["$x_1$ \\alpha\n"], "<t>")
    assert {'<script>"&', "$x_1$ \\alpha", "<t>"} <= {text.strip() for text in texts(figure)}
    assert "<script" not in as_svg(figure)
    assert as_svg(figure) == as_svg(heatmap([[1.0]], ['<script>"&\x00\x1b\ud800'], ["$x_1$ \\alpha\n"], "<t>"))


@pytest.mark.parametrize(("kind", "begins"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<svg")])
def test_each_kind_of_file_is_what_its_name_says(tmp_path, kind, begins):
    write_heatmap(tmp_path / f"m{kind}", [[1.0]], ["a"], ["b"])
    assert (tmp_path / f"m{kind}").read_bytes().startswith(begins)


@pytest.fixture
def own_font(tmp_path):
    """A font of a name that no list has, installed while a test runs, whose letters are squares."""
    pen = TTGlyphPen(None)
    for corner, point in enumerate([(0, 0), (0, 700), (500, 700), (500, 0)]):
        (pen.lineTo if corner else pen.moveTo)(point)
    pen.closePath()
    font = FontBuilder(1000)
    font.setupGlyphOrder([".notdef", "square"])
    font.setupCharacterMap({ord(letter): "square" for letter in LINEAR_B})
    font.setupGlyf(dict.fromkeys([".notdef", "square"], pen.glyph()))
    font.setupHorizontalMetrics(dict.fromkeys([".notdef", "square"], (600, 0)))
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "Quadrat Gothic", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(tmp_path / "quadrat.ttf")
    fonts = list(font_manager.fontManager.ttflist)
    font_manager.fontManager.addfont(tmp_path / "quadrat.ttf")
    plots._installed_families.cache_clear()
    yield "Quadrat Gothic"
    font_manager.fontManager.ttflist = fonts
    plots._installed_families.cache_clear()


def test_any_font_of_this_machine_that_has_the_letters_is_used(own_font, tmp_path, capsys):
    write_heatmap(tmp_path / "p.png", [[1.0]], [LINEAR_B], ["a"])
    assert "no font" not in capsys.readouterr().err
    assert own_font in plots.font_families([LINEAR_B]) and own_font not in plots.font_families(["a"])


def test_a_script_without_a_font_is_logged_once_and_raises_no_warning(tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("png", "svg"):
            write_heatmap(tmp_path / f"p.{kind}", [[1.0, 0.5]], [LINEAR_B], [LINEAR_B, "a\u200d\ufe0f"])
    logged = capsys.readouterr().err
    assert logged.count("no font of this machine has Linear; such letters are boxes") == 1
    assert "p.png: " in logged and "or write .svg" in logged
    assert [plots.script(letter) for letter in "कก👍ｗ"] == ["Devanagari", "Thai", "symbols and emoji", "Fullwidth"]
