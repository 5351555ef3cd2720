"""Text from data: word lists, rules and templates in `data/*.toml`, and the engine that fills them in.

`data/en.toml` explains how rules read.
"""

import gzip
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

DATA = Path(__file__).with_name("data")
NAME = re.compile(r"\{((?:[^{}]|\{[^{}]*\})+)\}")
"""In braces; it may have names in braces itself."""
FIRST_SYLLABLE, FINALS, FINAL_RIEUL = 0xAC00, 28, 8
"""Unicode orders Korean syllables by their final consonant: 28 of them, the first being none, the ninth ㄹ."""
PARTICLES = re.compile(r"(\w)(은/는|이/가|을/를|으로/로)")

Template = tuple[str, tuple["str | Template", ...]]
"""A text with `%s` for each name, and the names; one with names of its own is a template."""
Conditions = list[tuple[str, bool | frozenset[str]]]
Alternatives = list[tuple[Conditions, Template]]
Option = str | Sequence[str] | Callable[[], str]


@cache
def load(name: str) -> dict[str, Any]:
    """The content of `data/NAME.toml`."""
    return tomllib.loads((DATA / f"{name}.toml").read_text("utf-8"))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a file, compressed where its name ends with `.gz`; the same lines give the same bytes."""
    content = "".join(f"{line}\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


@cache
def parsed(text: str) -> Template:
    parts = NAME.split(text)
    names = (parsed(name) if "{" in name else name for name in parts[1::2])
    return "%s".join(part.replace("%", "%%") for part in parts[::2]), tuple(names)


def fill(template: Template, scope: Mapping[str, Any]) -> str:
    """The text with the value of each name in `scope`, from left to right."""
    text, names = template
    return text % tuple([scope[name if isinstance(name, str) else fill(name, scope)] for name in names])


def capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


class Draws(dict[str, Any]):
    """Values by name. Other names are drawn anew each time: a range of numbers such as {2..9} or {0.6..2.4}, a text or
    one of a list of `options`, filled in turn, or what a function of theirs draws.
    """

    def __init__(self, random: Random, options: Mapping[str, Option], **values: object) -> None:
        super().__init__(values)
        self._random = random
        self._options = options

    def fill(self, text: str) -> str:
        return fill(parsed(text), self)

    def __missing__(self, name: str) -> str:
        low, is_range, high = name.partition("..")
        if is_range and low.isdigit():
            return str(self._random.randint(int(low), int(high)))
        if is_range:
            return f"{self._random.uniform(float(low), float(high)):.1f}"
        option = self._options[name]
        if callable(option):
            return option()
        return self.fill(option if isinstance(option, str) else self._random.choice(option))


class Rules:
    """The rules and tables of one file."""

    def __init__(self, name: str) -> None:
        data = load(name)
        columns = data.get("columns", {})
        tables = {key: rows for key, rows in data.items() if isinstance(rows, dict) and key not in ("columns", "rules")}
        self.tables = tables.keys()
        self.words = {word: text for key, rows in tables.items() for word, text in _words(key, rows, columns.get(key))}
        self.rules = {key: list(_alternatives(rule)) for key, rule in data["rules"].items()}
        self._replaced = [(re.compile(pattern), by) for pattern, by in data.get("replace", ())]

    def sentence(self, features: Mapping[str, Any]) -> str:
        """What the rule `sentence` writes, with a capital at its start and a full stop at its end."""
        text = " ".join(Scope(self, features)["sentence"].split()).replace(" ,", ",")
        for pattern, by in self._replaced:
            text = pattern.sub(by, text)
        return f"{capitalised(PARTICLES.sub(_particle, text))}."


class Scope(dict[str, Any]):
    """Features by name: text, empty where there is nothing, or features of their own, such as those of a clause.

    Another name is that of a rule, of a word of a table, or a path into features; what it leads to is kept.
    """

    __slots__ = ("_rules",)

    def __init__(self, rules: Rules, features: Mapping[str, Any]) -> None:
        super().__init__(features)
        self._rules = rules

    def __missing__(self, path: str) -> Any:
        if path in self._rules.rules:
            value = self._written(self._rules.rules[path])
        elif path in self._rules.words:
            value = self._rules.words[path]
        else:
            value = self._inner(path)
        self[path] = value
        return value

    def _written(self, alternatives: Alternatives) -> str:
        """The template of the first alternative whose conditions hold; nothing where none do."""
        for conditions, template in alternatives:
            for path, wanted in conditions:
                found = self[path]
                if bool(found) is not wanted if isinstance(wanted, bool) else found not in wanted:
                    break
            else:
                return fill(template, self)
        return ""

    def _inner(self, path: str) -> Any:
        name, _, rest = path.partition(".")
        if inner := self.get(name):
            if not isinstance(inner, Scope):
                self[name] = inner = Scope(self._rules, inner)
            return inner[rest]
        if name in self or name in self._rules.tables:
            return ""
        raise KeyError(f"expected a feature, a rule or a word, found {path!r}")


def _words(path: str, rows: Any, columns: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """The words below `path`, each with the path that leads to it."""
    if isinstance(rows, str):
        yield path, rows
        return
    for name, inner in zip(columns or (), rows, strict=False) if isinstance(rows, list) else rows.items():
        yield from _words(f"{path}.{name}", inner, columns)


def _alternatives(rule: str | list[dict[str, Any]]) -> Iterator[tuple[Conditions, Template]]:
    for each in [{"write": rule}] if isinstance(rule, str) else rule:
        yield (
            list(_conditions("", {key: wanted for key, wanted in each.items() if key != "write"})),
            parsed(each["write"]),
        )


def _conditions(prefix: str, wanted: dict[str, Any]) -> Iterator[tuple[str, bool | frozenset[str]]]:
    for key, value in wanted.items():
        if isinstance(value, dict):
            yield from _conditions(f"{prefix}{key}.", value)
        else:
            texts = [value] if isinstance(value, str) else value
            yield prefix + key, value if isinstance(value, bool) else frozenset(texts)


def _particle(found: re.Match[str]) -> str:
    """Of two Korean particles the one for the last consonant: 은 after one and 는 after none; 로 after ㄹ too."""
    before, (after_consonant, after_vowel) = found[1], found[2].split("/")
    final = (ord(before) - FIRST_SYLLABLE) % FINALS
    return before + (after_vowel if final == 0 or (after_vowel == "로" and final == FINAL_RIEUL) else after_consonant)
