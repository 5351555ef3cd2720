"""The grammar of sentences: rules that look into clauses and phrases, tables of words, and Korean particles.

`data/en.toml` explains how its files read.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.samples.grammar import Grammar, Value, capitalised

DATA = Path(__file__).with_name("data")
SPECIAL = ("columns", "rules", "lists")
"""Tables of a data file that have no words."""
FIRST_SYLLABLE, FINALS, FINAL_RIEUL = 0xAC00, 28, 8
"""Unicode orders Korean syllables by their final consonant: 28 of them, the first being none, the ninth ㄹ."""
PARTICLES = re.compile(r"(\w)(은/는|이/가|을/를|으로/로)")


@cache
def load(name: str) -> dict[str, Any]:
    """The content of `data/NAME.toml`."""
    return tomllib.loads((DATA / f"{name}.toml").read_text("utf-8"))


class SentenceGrammar(Grammar):
    """A grammar that also has tables of words, and looks into the features of a clause or phrase by `ROLE.NAME`."""

    def __init__(self, *names: str) -> None:
        files = [load(name) for name in names]
        super().__init__(*files)
        self._rules = {
            name: [dict(_flat(entry)) for entry in rule] if isinstance(rule, list) else rule
            for name, rule in self._rules.items()
        }
        data = {key: value for file in files for key, value in file.items()}
        columns = data.get("columns", {})
        tables = {key: rows for key, rows in data.items() if isinstance(rows, dict) and key not in SPECIAL}
        self._tables = tables.keys()
        self._words = {word: text for key, rows in tables.items() for word, text in _words(key, rows, columns.get(key))}
        self._replaced = [(re.compile(pattern), by) for pattern, by in data.get("replace", ())]

    def sentence(self, features: Mapping[str, Any]) -> str:
        """What the rule `sentence` writes, with a capital at its start and a full stop at its end."""
        text = " ".join(self.fill("{sentence}", features).split()).replace(" ,", ",")
        for pattern, by in self._replaced:
            text = pattern.sub(by, text)
        if "/" in text:
            text = PARTICLES.sub(_particle, text)
        return f"{capitalised(text)}."

    def _value(self, name: str) -> Value:
        """A word of a table, or a rule or feature, perhaps inside of a clause or phrase."""
        outer, _, rest = name.partition(".")
        if name in self._rules:
            return super()._value(name)
        if outer in self._tables:
            word = self._template(name)
            return lambda scope: self._words.get(word(scope), "")
        if "{" in name or not rest:
            return super()._value(name)
        inner, is_rule = self._value(rest), rest in self._rules

        def inside(scope: Mapping[str, Any]) -> Any:
            """The value inside of `scope[outer]`; a rule sees the features around it, too."""
            if not scope[outer]:
                return ""
            return inner({**scope, **scope[outer], "role": outer} if is_rule else scope[outer])

        return inside


@cache
def grammar(*names: str) -> SentenceGrammar:
    """The grammar of some data files, of which a later one may replace the rules and tables of those before."""
    return SentenceGrammar(*names)


def _flat(entry: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The conditions of an alternative, those on the features of a clause or phrase by `ROLE.NAME`."""
    for key, value in entry.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _words(path: str, rows: Any, columns: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    """The words below `path`, each with the path that leads to it."""
    if isinstance(rows, str):
        yield path, rows
    elif isinstance(rows, list | dict):
        for name, inner in zip(columns or (), rows, strict=False) if isinstance(rows, list) else rows.items():
            yield from _words(f"{path}.{name}", inner, columns)


def _particle(match: re.Match[str]) -> str:
    """The one of two Korean particles for the last consonant: 은 after one and 는 after none; 로 after ㄹ too."""
    before, (after_consonant, after_vowel) = match[1], match[2].split("/")
    final = (ord(before) - FIRST_SYLLABLE) % FINALS
    return before + (after_vowel if final == 0 or (after_vowel == "로" and final == FINAL_RIEUL) else after_consonant)
