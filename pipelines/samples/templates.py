"""Text from data: word lists and templates in `data/*.toml`, and the engine that fills them in.

`data/en.toml` explains how rules read.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

DATA = Path(__file__).with_name("data")


class Placeholder(str):
    """The name of a feature, a rule or a word, without braces of its own."""


Template = tuple["str | Placeholder | Template", ...]
"""Text, and the names in braces; a name that has braces itself is a template."""
Conditions = tuple[tuple[str, bool | frozenset[str]], ...]
Scope = Mapping[str, Any]
"""Features by name: text, empty where there is nothing, or a scope of its own, such as a clause of a sentence."""

FIRST_SYLLABLE, FINALS, FINAL_RIEUL = 0xAC00, 28, 8
"""Unicode orders Korean syllables by their final consonant: 28 of them, the first being none, the ninth ㄹ."""
BRACES = re.compile(r"\{([^{}]+)\}")
PARTICLES = re.compile(r"(\w)(은/는|이/가|을/를|으로/로)")


@cache
def load(name: str) -> dict[str, Any]:
    """The content of `data/NAME.toml`."""
    return tomllib.loads((DATA / f"{name}.toml").read_text("utf-8"))


class Rules:
    """The rules and tables of one file; a feature comes before a rule, and a rule before a word of a table."""

    def __init__(self, name: str) -> None:
        data = load(name)
        columns = data.get("columns", {})
        tables = {key: rows for key, rows in data.items() if isinstance(rows, dict) and key not in ("columns", "rules")}
        self._tables = tables.keys()
        self._words = {word: text for key, rows in tables.items() for word, text in _words(key, rows, columns.get(key))}
        self._rules = {key: list(_alternatives(rule)) for key, rule in data["rules"].items()}
        self._replaced = [(re.compile(pattern), by) for pattern, by in data.get("replace", ())]

    def sentence(self, scope: Scope) -> str:
        """What the rule `sentence` writes, with a capital at its start and a full stop at its end."""
        text = " ".join(self.value("sentence", scope).split()).replace(" ,", ",")
        for pattern, by in self._replaced:
            text = pattern.sub(by, text)
        text = PARTICLES.sub(_particle, text)
        return f"{capitalised(text)}."

    def value(self, path: str, scope: Scope) -> Any:
        """What stands for `path`: a feature, the text of a rule, or a word."""
        if path in scope:
            return scope[path]
        if path in self._rules:
            for conditions, template in self._rules[path]:
                if self._hold(conditions, scope):
                    return self._text(template, scope)
            return ""
        if path in self._words:
            return self._words[path]
        name, _, rest = path.partition(".")
        if name in scope:
            return self.value(rest, scope[name]) if scope[name] else ""
        if name in self._tables:
            return ""
        raise KeyError(f"expected a feature, a rule or a word, found {path!r}")

    def _hold(self, conditions: Conditions, scope: Scope) -> bool:
        for path, wanted in conditions:
            found = scope[path] if path in scope else self.value(path, scope)
            if bool(found) is not wanted if isinstance(wanted, bool) else found not in wanted:
                return False
        return True

    def _text(self, template: Template, scope: Scope) -> str:
        text = ""
        for part in template:
            if isinstance(part, tuple):
                text += self.value(self._text(part, scope), scope)
            else:
                text += self.value(part, scope) if isinstance(part, Placeholder) else part
        return text


def _words(path: str, rows: Any, columns: list[str] | None) -> Iterator[tuple[str, str]]:
    """The words below `path`, each with the path that leads to it."""
    if isinstance(rows, str):
        yield path, rows
        return
    named = zip(columns or (), rows, strict=False) if isinstance(rows, list) else rows.items()
    for name, inner in named:
        yield from _words(f"{path}.{name}", inner, columns)


def _alternatives(rule: str | list[dict[str, Any]]) -> Iterator[tuple[Conditions, Template]]:
    for each in [{"write": rule}] if isinstance(rule, str) else rule:
        conditions = {key: wanted for key, wanted in each.items() if key != "write"}
        yield tuple(_conditions("", conditions)), _parsed(each["write"])


def _conditions(prefix: str, wanted: dict[str, Any]) -> Iterator[tuple[str, bool | frozenset[str]]]:
    for key, value in wanted.items():
        if isinstance(value, dict):
            yield from _conditions(f"{prefix}{key}.", value)
        elif isinstance(value, bool):
            yield prefix + key, value
        else:
            yield prefix + key, frozenset([value] if isinstance(value, str) else value)


def _parsed(text: str) -> Template:
    open_names: list[list[str | Placeholder | Template]] = [[]]
    for token in re.split(r"([{}])", text):
        if token == "{":
            open_names.append([])
        elif token == "}":
            match open_names.pop():
                case [str(name)]:
                    open_names[-1].append(Placeholder(name))
                case parts:
                    open_names[-1].append(tuple(parts))
        elif token:
            open_names[-1].append(token)
    (parts,) = open_names
    return tuple(parts)


def _particle(found: re.Match[str]) -> str:
    """Of two Korean particles the one for the last consonant: 은 after one and 는 after none; 로 after ㄹ too."""
    before, (after_consonant, after_vowel) = found[1], found[2].split("/")
    final = (ord(before) - FIRST_SYLLABLE) % FINALS
    vowel = final == 0 or (after_vowel == "로" and final == FINAL_RIEUL)
    return before + (after_vowel if vowel else after_consonant)


def fill(template: str, random: Random, given: Mapping[str, object], data: Mapping[str, Any] | None = None) -> str:
    """`template` with the names in braces replaced, from left to right.

    A name is that of a value of `given` (or of a function that draws one), a range of numbers such as {2..9} or
    {0.6..2.4}, or a text or list of texts of `data`, of which one is drawn and filled in turn.
    """

    def drawn(found: re.Match[str]) -> str:
        name = found[1]
        if name in given:
            value = given[name]
            return str(value() if callable(value) else value)
        low, is_range, high = name.partition("..")
        if is_range:
            if low.isdigit():
                return str(random.randint(int(low), int(high)))
            return f"{random.uniform(float(low), float(high)):.1f}"
        options = (data or {})[name]
        return fill(options if isinstance(options, str) else random.choice(options), random, given, data)

    return BRACES.sub(drawn, template)


def capitalised(text: str) -> str:
    return text[0].upper() + text[1:]
