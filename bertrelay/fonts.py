"""Which of this machine's fonts draw a text, letter by letter, and the scripts that none of them has."""

import re
import unicodedata
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

FIRST = "DejaVu Sans"
"""Comes with matplotlib, and has Latin, Greek, Cyrillic, Arabic, Hebrew and more."""

# An ideograph looks different in Japanese, Korean and Chinese; which of them it is shows in the letters around it.
FAVOURITES = (
    ("[\u3040-\u30ff]", ("Noto Sans CJK JP", "Noto Sans JP", "Hiragino Sans", "Yu Gothic", "MS Gothic")),
    ("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]", ("Noto Sans CJK KR", "Noto Sans KR", "Malgun Gothic")),
    ("[\u3400-\u9fff]", ("Noto Sans CJK SC", "Noto Sans SC", "PingFang SC", "Microsoft YaHei", "SimHei")),
)
INVISIBLE = {"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"}
VARIATIONS = {chr(code) for code in range(0xFE00, 0xFE10)}


class Fonts(NamedTuple):
    """Font families in the order in which each letter is looked for, and the scripts that none of them has, by name."""

    families: list[str]
    missing: list[str]


class Face(NamedTuple):
    """One face of a font file; a collection has several."""

    family: str
    file: str
    number: int


def fonts_for(text: str) -> Fonts:
    """The fonts that draw `text`: one for Latin and much else, and what the other letters need."""
    wanted = {letter for letter in set(text) - VARIATIONS if unicodedata.category(letter) not in INVISIBLE}
    families, missing = _found(text, wanted)
    if missing and _new_fonts():
        families, missing = _found(text, wanted)
    return Fonts(families, sorted({script(letter) for letter in missing}))


def _found(text: str, wanted: Collection[str]) -> tuple[list[str], set[str]]:
    """The families that draw the letters `wanted` of `text`, and the letters that none of them has."""
    families, missing = [FIRST], set(wanted) - _letters(_faces()[FIRST])
    for face in _by_likeliness(text, missing) if missing else ():
        letters = _letters(face)
        if missing & letters:
            families.append(face.family)
            missing -= letters
        if not missing:
            break
    return families, missing


def width_of(text: str, size: float) -> float:
    """How wide `text` is in the fonts that draw it here, in the unit of `size`; few others are wider than the first."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=fonts_for(text).families, size=size)
    with boxes_for_missing_letters():
        width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width)


@contextmanager
def boxes_for_missing_letters() -> Iterator[None]:
    """Within, matplotlib warns of no letter that it has no font for; `fonts_for` names their scripts, each once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def script(letter: str) -> str:
    """What kind of letter it is, by the first word of its name in Unicode: `Devanagari`, `Thai`."""
    if unicodedata.category(letter)[0] not in "LMN":
        return "symbols and emoji"
    return unicodedata.name(letter, "unnamed letters").split()[0].capitalize()


def _by_likeliness(text: str, missing: Collection[str]) -> list[Face]:
    """All faces, first those that are made for the scripts of `text`, and of the others upright ones without serifs."""
    favourites = [name for letters, names in FAVOURITES if re.search(letters, text) for name in names]
    scripts = {script(letter) for letter in missing}

    def place(face: Face) -> tuple[int, bool, bool, str]:
        rank = favourites.index(face.family) if face.family in favourites else len(favourites)
        is_plain = "Sans" in face.family and "Mono" not in face.family
        return rank, not any(name in face.family for name in scripts), not is_plain, face.family

    return sorted(_faces().values(), key=place)


@cache
def _faces() -> dict[str, Face]:
    """The regular face of each family that can be drawn. matplotlib's own fonts for formulas are left out."""
    import matplotlib
    from matplotlib.font_manager import fontManager

    own = Path(matplotlib.get_data_path())
    return {
        entry.name: Face(entry.name, entry.fname, getattr(entry, "index", 0))
        for entry in fontManager.ttflist
        if (entry.style, entry.weight, entry.stretch) == ("normal", 400, "normal")
        and "Color" not in entry.name
        and (entry.name == FIRST or not Path(entry.fname).is_relative_to(own))
    }


@cache
def _new_fonts() -> bool:
    """Whether there are fonts that came after matplotlib had written its list of them, which are put on it."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {entry.fname for entry in fontManager.ttflist}
    new = [file for file in findSystemFonts() if file not in known]
    for file in new:
        with suppress(Exception):  # a file that is no font fails in one of many ways
            fontManager.addfont(file)
    _faces.cache_clear()
    return bool(new)


@cache
def _letters(face: Face) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(face.file, face_index=face.number).get_charmap()))
    except (OSError, RuntimeError):  # a file that is gone, or no font after all
        return frozenset()
