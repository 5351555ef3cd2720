"""A small grammar: the rules and lists of `data/*.toml` fill templates with the features of a patient or a paper.

A rule is a text, or a list of texts with conditions, of which the first whose conditions hold is written, and nothing
where none holds. A condition compares what a name stands for: `kind = "care"`, `kind = ["care", "report"]`,
`died = true` (there is something), `died = false` (there is nothing). In braces stands a name: of a rule, of a
feature, of a list, or a range of numbers; `{type_if_{kind}}` is `{type_if_planned}` where the kind is `planned`.
"""

import gzip
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

DATA = Path(__file__).with_name("data")
NAME = re.compile(r"\{((?:[^{}]|\{[^{}]*\})+)\}")
"""In braces; it may have names in braces itself."""

Value = Callable[[Mapping[str, Any]], Any]
"""A compiled template or name: from features to what they make of it."""


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
    """The rules and lists of some tables, of which a later one may replace those before."""

    def __init__(self, *tables: Mapping[str, Any]) -> None:
        self._rules: dict[str, Any] = {}
        self.lists: dict[str, list[str]] = {}
        for table in tables:
            self._rules |= table.get("rules", {})
            self.lists |= table.get("lists", {})
        self._template, self._rule = cache(self._compiled), cache(self._compiled_rule)

    def fill(self, text: str, scope: Mapping[str, Any]) -> Any:
        """`text` with what each name in braces stands for; the value itself where it is one name and nothing else."""
        return self._template(text)(scope)

    def _compiled(self, text: str) -> Value:
        first, *parts = NAME.split(text)
        values = [(self._value(name), after) for name, after in zip(parts[::2], parts[1::2], strict=True)]
        if len(values) == 1 and not first and not values[0][1]:
            return values[0][0]
        return lambda scope: first + "".join([f"{value(scope)}{after}" for value, after in values])

    def _value(self, name: str) -> Value:
        """The value of a name in braces."""
        if name in self._rules:
            return lambda scope: self._rule(name)(scope)
        if "{" in name:
            inner = self._template(name)
            return lambda scope: scope[inner(scope)]
        return lambda scope: scope[name]

    def _compiled_rule(self, name: str) -> Value:
        rule = self._rules[name]
        alternatives = [
            ([self._condition(*item) for item in entry.items() if item[0] != "write"], self._template(entry["write"]))
            for entry in ([{"write": rule}] if isinstance(rule, str) else rule)
        ]

        def first(scope: Mapping[str, Any]) -> Any:
            """The first alternative whose conditions hold."""
            for conditions, write in alternatives:
                if all(condition(scope) for condition in conditions):
                    return write(scope)
            return ""

        return first

    def _condition(self, name: str, expected: bool | str | list[str]) -> Callable[[Mapping[str, Any]], bool]:
        value = self._value(name)
        if isinstance(expected, bool):
            return lambda scope: bool(value(scope)) is expected
        allowed = [expected] if isinstance(expected, str) else expected
        return lambda scope: value(scope) in allowed


@cache
def grammar(*names: str) -> Grammar:
    """The grammar of some data files."""
    return Grammar(*map(load, names))


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

    def fill(self, text: str) -> Any:
        return self._grammar.fill(text, self)

    def __missing__(self, name: str) -> Any:
        low, is_range, high = name.partition("..")
        if is_range and low.isdigit():
            return f"{self._random.randint(int(low), int(high)):0{len(low)}}"
        if is_range:
            return f"{self._random.uniform(float(low), float(high)):.1f}"
        return self._draws[name]() if name in self._draws else self.fill(self._random.choice(self._grammar.lists[name]))
