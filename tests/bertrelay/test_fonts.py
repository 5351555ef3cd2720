import shutil
import warnings

import pytest

from bertrelay import fonts
from bertrelay.fonts import FIRST, Face, Fonts, fonts_for, script, width_of

LATIN = "abcdefghijklmnopqrstuvwxyz:. "


@pytest.fixture
def machine(monkeypatch):
    """A machine with the fonts it is given, by their letters."""

    def have(**letters):
        named = {name.replace("_", " "): frozenset(those) for name, those in letters.items()}
        monkeypatch.setattr(fonts, "_faces", lambda: {name: Face(name, f"{name}.ttf", 0) for name in named})
        monkeypatch.setattr(fonts, "_letters", lambda face: named[face.family])
        monkeypatch.setattr(fonts, "_new_fonts", lambda: False)

    return have


def test_each_script_has_the_font_that_is_made_for_it(machine):
    machine(
        DejaVu_Sans=LATIN,
        Aaa_Serif="कखก犬が개中",
        Noto_Sans_Devanagari="कखग",
        Noto_Sans_CJK_JP="犬が개中",
        Zzz_Sans="कखगक犬",
    )
    assert fonts_for("abc") == (["DejaVu Sans"], [])
    assert fonts_for("hi: कख") == (["DejaVu Sans", "Noto Sans Devanagari"], [])
    assert fonts_for("कa犬が") == (["DejaVu Sans", "Noto Sans CJK JP", "Noto Sans Devanagari"], [])


def test_an_ideograph_takes_the_font_of_the_language_around_it(machine):
    cjk = "一犬が개"
    machine(DejaVu_Sans=LATIN, Noto_Sans_CJK_JP=cjk, Noto_Sans_CJK_KR=cjk, Noto_Sans_CJK_SC=cjk)
    for text, family in [("一", "Noto Sans CJK SC"), ("一が", "Noto Sans CJK JP"), ("一개", "Noto Sans CJK KR")]:
        assert fonts_for(text).families == ["DejaVu Sans", family]


def test_scripts_without_a_font_are_named_and_what_nobody_sees_is_not_missed(machine):
    machine(DejaVu_Sans=LATIN, Other_Sans="ก")
    assert fonts_for("a क\u200dख ก 👍\u0007\ufe0f") == (
        ["DejaVu Sans", "Other Sans"],
        ["Devanagari", "symbols and emoji"],
    )
    assert script("ｗ") == "Fullwidth"


def test_a_plain_upright_font_goes_before_others(machine):
    machine(DejaVu_Sans=LATIN, A_Serif="ก", B_Sans_Mono="ก", C_Sans="ก")
    assert fonts_for("ก").families == ["DejaVu Sans", "C Sans"]


def test_the_font_that_comes_with_matplotlib_draws_latin_cyrillic_greek_arabic_and_hebrew():
    assert fonts_for("Ærø, Ёж, λόγος, العربية, עברית 0–9 …") == (["DejaVu Sans"], [])
    assert "STIXGeneral" not in fonts._faces()


def test_a_font_that_came_after_matplotlibs_list_was_written_is_found(tmp_path, monkeypatch):
    from matplotlib import font_manager

    new = tmp_path / "new.ttf"
    shutil.copy(font_manager.findfont("DejaVu Serif"), new)
    (tmp_path / "none.ttf").write_bytes(b"no font")
    known = list(font_manager.fontManager.ttflist)
    monkeypatch.setattr(font_manager.fontManager, "ttflist", known)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(new), str(tmp_path / "none.ttf"), known[0].fname])
    fonts._new_fonts.cache_clear()
    fonts._faces.cache_clear()
    try:
        assert fonts._faces().get("DejaVu Serif") != Face("DejaVu Serif", str(new), 0)
        fonts_for("\U0010fffd")  # which no font has
        assert fonts._faces()["DejaVu Serif"] == Face("DejaVu Serif", str(new), 0)
    finally:
        fonts._new_fonts.cache_clear()
        fonts._faces.cache_clear()


def test_a_letter_that_no_font_here_has_is_as_wide_as_its_box_and_nothing_is_warned_of(monkeypatch):
    cuneiform = "\U00012000"
    monkeypatch.setattr(fonts, "fonts_for", lambda _: Fonts([FIRST], ["Cuneiform"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        width = width_of(cuneiform, 10)
    assert width > 0
    assert width_of(2 * cuneiform, 10) == pytest.approx(2 * width)
