"""Names of files of parallel text: their format, the language in them, and which files have the same rows."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath

from bertrelay.languages import CODE, closest_code, is_registered
from students.parallel.settings import ENGLISH

TEST_SET_ROLE = re.compile(r"(?<=-)(src|ref)(?=\.)")
"""Distinguishes source and reference of one test set, in names such as those of NTREX."""


def name_and_suffix(name: str) -> tuple[str, str]:
    """The name of a file without folder and `.gz`, and its suffix: `a/de.po.gz` gives `de.po` and `.po`."""
    path = PurePosixPath(name)
    path = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return path.name, path.suffix.lower()


def code_in_name(name: str) -> str:
    """The language code of `de.po`, `messages.de.xlf` and `plugin-de_DE.po`, or nothing."""
    stem = PurePosixPath(name_and_suffix(name)[0]).stem
    codes = (stem, stem.rpartition(".")[2], stem.rpartition("-")[2])
    return next((code for code in codes if CODE.fullmatch(code) and is_registered(code)), "")


def aligned_files(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Files of the same rows: English file to the files in other languages, by code.

    `train.en train.de train.fr` gives `{"train.en": {"de": "train.de", "fr": "train.fr"}}`. Where a suffix is no code
    of such a set, another part of the name is: `deu_Latn.devtest` belongs to `eng_Latn.devtest`, and
    `newstest2019-ref.deu.txt` to `newstest2019-src.eng.txt`.
    """
    names = list(names)
    by_suffix = _sets_with_english(names, lambda parts: range(max(len(parts) - 1, 1), len(parts)))
    matched = {name for english, others in by_suffix.items() for name in (english, *others.values())}
    rest = [name for name in names if name not in matched]
    return by_suffix | _sets_with_english(rest, lambda parts: range(len(parts) - 1))


def _sets_with_english(
    names: Iterable[str], positions: Callable[[Sequence[str]], Iterable[int]]
) -> dict[str, dict[str, str]]:
    """Files whose names differ in a language code only, at one of the `positions` of their dotted parts."""
    sets: dict[str, dict[str, str]] = {}
    for name in names:
        parts = name_and_suffix(name)[0].split(".")
        for position in positions(parts):
            code = parts[position]
            if CODE.fullmatch(code) and is_registered(code):
                rest = TEST_SET_ROLE.sub("", ".".join([*parts[:position], "*", *parts[position + 1 :]]))
                sets.setdefault(str(PurePosixPath(name).with_name(rest)), {})[code] = name
    with_english = {}
    for by_code in sets.values():
        english = closest_code(by_code, ENGLISH)
        if english is not None and len(by_code) > 1:
            with_english[by_code.pop(english)] = by_code
    return with_english
