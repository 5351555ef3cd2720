"""A small grammar engine: the word lists, tables, rules and templates of `data/*.toml`, compiled to Python functions.

`data/en.toml` explains how they read.
"""

import gzip
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

DATA = Path(__file__).with_name("data")
SPECIAL = ("columns", "rules", "lists")
"""Tables of a data file that have no words."""
NAME = re.compile(r"\{((?:[^{}]|\{[^{}]*\})+)\}")
"""In braces; it may have names in braces itself."""
FIRST_SYLLABLE, FINALS, FINAL_RIEUL = 0xAC00, 28, 8
"""Unicode orders Korean syllables by their final consonant: 28 of them, the first being none, the ninth ㄹ."""
PARTICLES = re.compile(r"(\w)(은/는|이/가|을/를|으로/로)")

Template = Callable[[Mapping[str, Any]], str]


@cache
def load(name: str) -> dict[str, Any]:
    """The content of `data/NAME.toml`."""
    return tomllib.loads((DATA / f"{name}.toml").read_text("utf-8"))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a file, compressed where its name ends with `.gz`; the same lines give the same bytes."""
    content = "".join(f"{line}\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


class Grammar:
    """The rules, words and lists of data files. A rule becomes a Python expression: the samples have 100,000
    sentences, for which some five million rules are looked at.
    """

    def __init__(self, *names: str) -> None:
        data = {key: value for name in names for key, value in load(name).items()}
        for key in ("rules", "lists"):
            data[key] = {inner: value for name in names for inner, value in load(name).get(key, {}).items()}
        tables = {key: rows for key, rows in data.items() if isinstance(rows, dict) and key not in SPECIAL}
        columns = data.get("columns", {})
        self.lists: dict[str, list[str]] = data["lists"]
        self._tables, self._rules = tables.keys(), data["rules"]
        words = {word: text for key, rows in tables.items() for word, text in _words(key, rows, columns.get(key))}
        self._known: dict[str, Any] = {"words": words, "inside": inside}
        self._known |= {f"rule_{key}": self._compiled(self._rule(rule)) for key, rule in self._rules.items()}
        self._templates: dict[str, Template] = {}
        self._replaced = [(re.compile(pattern), by) for pattern, by in data.get("replace", ())]

    def fill(self, text: str, scope: Mapping[str, Any]) -> str:
        """`text` with what each name in braces stands for."""
        if text not in self._templates:
            self._templates[text] = self._compiled(self._text(text))
        return self._templates[text](scope)

    def sentence(self, features: Mapping[str, Any]) -> str:
        """What the rule `sentence` writes, with a capital at its start and a full stop at its end."""
        text = " ".join(self.fill("{sentence}", features).split()).replace(" ,", ",")
        for pattern, by in self._replaced:
            text = pattern.sub(by, text)
        if "/" in text:
            text = PARTICLES.sub(_particle, text)
        return f"{capitalised(text)}."

    def _compiled(self, source: str) -> Template:
        template: Template = eval(f"lambda scope: {source}", self._known)
        return template

    def _rule(self, rule: str | list[dict[str, Any]]) -> str:
        """Python for the first alternative whose conditions hold."""
        alternatives = [{"write": rule}] if isinstance(rule, str) else rule
        tests = [" and ".join(self._conditions(each)) or "True" for each in alternatives]
        texts = [self._text(each["write"]) for each in alternatives]
        return " else ".join([*(f"{text} if {test}" for text, test in zip(texts, tests, strict=True)), "''"])

    def _conditions(self, wanted: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for key, value in wanted.items():
            if isinstance(value, dict):
                yield from self._conditions(value, f"{prefix}{key}.")
            elif isinstance(value, bool):
                yield f"{'' if value else 'not '}{self._value(prefix + key)}"
            elif key != "write":
                yield f"{self._value(prefix + key)} in {(value,) if isinstance(value, str) else tuple(value)}"

    def _text(self, text: str) -> str:
        """Python for a template."""
        parts = NAME.split(text)
        values = [self._value(name) for name in parts[1::2]]
        if len(values) == 1 and parts[::2] == ["", ""]:
            return values[0]
        literal = "%s".join(part.replace("%", "%%") for part in parts[::2])
        return f"{literal!r} % ({', '.join(values)}{',' * bool(values)})"

    def _value(self, path: str, scope: str = "scope") -> str:
        """Python for a name in a template: a rule, a word of a table, or a feature, perhaps inside of another."""
        name, _, rest = path.partition(".")
        if path in self._rules:
            return f"rule_{path}({scope})"
        if name in self._tables:
            return f"words.get({self._text(path)}, '')"
        if "{" in path:
            return f"{scope}[{self._text(path)}]"
        if rest and ".." not in path:
            inner = f"inside({scope}, {name!r})" if rest in self._rules else f"{scope}[{name!r}]"
            return f"({self._value(rest, inner)} if {scope}[{name!r}] else '')"
        return f"{scope}[{path!r}]"


@cache
def grammar(*names: str) -> Grammar:
    """Of some data files, of which a later one may replace the rules and tables of those before."""
    return Grammar(*names)


class Scope(dict[str, Any]):
    """Features by name for the templates of a grammar.

    Another name is drawn anew each time: a number of a range, such as {2..9}, {00..99} or {0.6..2.4}, one of the
    grammar's list of this name, filled in turn, or what the function in `draws` gives.
    """

    def __init__(
        self,
        grammar: Grammar,
        random: Random,
        features: Mapping[str, Any],
        draws: Mapping[str, Callable[[], str]] = MappingProxyType({}),
    ) -> None:
        super().__init__(features)
        self._grammar, self._random, self._draws = grammar, random, draws

    def fill(self, text: str) -> str:
        return self._grammar.fill(text, self)

    def __missing__(self, name: str) -> str:
        low, is_range, high = name.partition("..")
        if is_range and low.isdigit():
            return f"{self._random.randint(int(low), int(high)):0{len(low)}}"
        if is_range:
            return f"{self._random.uniform(float(low), float(high)):.1f}"
        return self._draws[name]() if name in self._draws else self.fill(self._random.choice(self._grammar.lists[name]))


def inside(scope: Mapping[str, Any], role: str) -> dict[str, Any]:
    """The features of `scope[role]`, beside those around them."""
    return {**scope, **scope[role], "role": role}


def _words(path: str, rows: Any, columns: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    """The words below `path`, each with the path that leads to it."""
    if isinstance(rows, str):
        yield path, rows
    elif isinstance(rows, list | dict):
        for name, inner in zip(columns or (), rows, strict=False) if isinstance(rows, list) else rows.items():
            yield from _words(f"{path}.{name}", inner, columns)


def _particle(found: re.Match[str]) -> str:
    """Of two Korean particles the one for the last consonant: 은 after one and 는 after none; 로 after ㄹ too."""
    before, (after_consonant, after_vowel) = found[1], found[2].split("/")
    final = (ord(before) - FIRST_SYLLABLE) % FINALS
    return before + (after_vowel if final == 0 or (after_vowel == "로" and final == FINAL_RIEUL) else after_consonant)
