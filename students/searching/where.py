"""Conditions on the texts of an index: `language = "de" and year >= 2020`, the part of SQL that only compares.

    condition := condition or condition | condition and condition | not condition | ( condition )
               | column = value, also !=, <, <=, >, >=         | column [not] between value and value
               | column [not] in (value, …)                    | column [not] like 'a%'     (ilike: in any case)
               | column is [not] null

Left of a sign stands a column, right of it a value, so both kinds of quotes may be around either. A missing value
fulfils `is null` and nothing else; `not` before a condition takes all the rest. Between numbers, text that is a number
counts as one, as CSV has no others.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertrelay.data.arrow import Mask
from bertrelay.errors import RequestError

Value = str | int | float | bool
Filter = Mapping[str, Value | list[Value]]
"""Columns, each with the values that it may have."""
Values = Sequence[Any]
Test = Callable[[Values], Mask]
"""Values to which of them fulfil a condition, (values,)."""

TOKEN = re.compile(
    r"""\s*(?: (?P<number>-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<quoted>'(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*`)
      | (?P<sign><= | >= | <> | != | == | [=<>(),])
      | (?P<name>[^\W\d][\w.-]*) )""",
    re.VERBOSE,
)
ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
DEEPEST = 50
"""Conditions within conditions."""


class Columns:
    """The columns of the texts of an index, by name: text, line, record and id, and those that are kept, as JSON."""

    def __init__(self, sentences: pa.Table, columns: pa.Table) -> None:
        self._sentences, self._columns = sentences, columns
        self._distinct: dict[str, tuple[Values, NDArray[np.integer]]] = {}
        further = (name for name in sentences.column_names if name != "source")
        self.names = list(dict.fromkeys([*columns.column_names, *further]))

    def __len__(self) -> int:
        return len(self._sentences)

    def distinct(self, name: str) -> tuple[Values, NDArray[np.integer]]:
        """The distinct values of a column, and the number of each text's value, (texts,)."""
        if name not in self._distinct:
            is_column = name in self._columns.column_names
            column = (self._columns if is_column else self._sentences)[name]
            if pa.types.is_string(column.type):
                column = column.cast(pa.large_string())  # of more than 2 GB too
            encoded = column.combine_chunks().dictionary_encode("encode")
            values = encoded.dictionary.to_pylist()
            values = [json.loads(value) for value in values] if is_column else values
            self._distinct[name] = values, encoded.indices.to_numpy()
        return self._distinct[name]


@dataclass(frozen=True)
class Condition:
    """A condition on texts. columns: the names that it compares. rows: the rows that fulfil it, (texts,)."""

    columns: frozenset[str]
    rows: Callable[[Columns], Mask]

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Reads a condition as the module describes it. Raises RequestError, with the place, for any other text."""
        return _Parser(text).whole()

    @classmethod
    def of(cls, where: "str | Filter | Condition") -> "Condition":
        """Reads a condition, or takes columns with the values that they may have."""
        if isinstance(where, Condition):
            return where
        if isinstance(where, str):
            return cls.parse(where)
        tests = (
            cls.of_column(name, partial(_is_in, values if isinstance(values, list) else [values]))
            for name, values in where.items()
        )
        return reduce(
            cls.both, tests, cls(frozenset(), lambda columns: np.ones(len(columns.distinct("text")[1]), bool))
        )

    @classmethod
    def of_column(cls, name: str, test: Test) -> "Condition":
        def rows(columns: Columns) -> Mask:
            values, numbers = columns.distinct(name)
            return test(values)[numbers] if len(values) else np.zeros(len(numbers), bool)

        return cls(frozenset([name]), rows)

    def both(self, other: "Condition") -> "Condition":
        return Condition(self.columns | other.columns, lambda columns: self.rows(columns) & other.rows(columns))

    def either(self, other: "Condition") -> "Condition":
        return Condition(self.columns | other.columns, lambda columns: self.rows(columns) | other.rows(columns))

    def inverted(self) -> "Condition":
        return Condition(self.columns, lambda columns: ~self.rows(columns))

    def select(self, columns: Columns) -> Mask:
        """Selects the rows that fulfil the condition, (texts,). Raises RequestError for a column that is not there."""
        if unknown := sorted(self.columns.difference(columns.names)):
            raise RequestError(
                f"where: expected columns of the index ({', '.join(columns.names)}), found {', '.join(unknown)}; an "
                "index has those that were named with --show when it was built"
            )
        return self.rows(columns)


def _is_in(expected: Sequence[Value], values: Values) -> Mask:
    return _mask(any(_is_equal(value, one) for one in expected) for value in values)


def _is_equal(value: Any, expected: Value) -> bool:
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        return _number(value) == expected
    return type(value) is type(expected) and bool(value == expected)


def _is_ordered(order: Callable[[Any, Any], bool], bound: Value, values: Values) -> Mask:
    if isinstance(bound, str):
        return _mask(isinstance(value, str) and order(value, bound) for value in values)
    return _mask((number := _number(value)) is not None and order(number, bound) for value in values)


def _is_like(pattern: str, ignore_case: bool, values: Values) -> Mask:
    texts = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
    like: Mask = pc.match_like(texts, pattern, ignore_case=ignore_case).fill_null(False).to_numpy(zero_copy_only=False)
    return like


def _is_missing(values: Values) -> Mask:
    return _mask(value is None for value in values)


def _is_other(test: Test, values: Values) -> Mask:
    """Values that are there and do not fulfil `test`."""
    return ~test(values) & ~_is_missing(values)


def _mask(truths: Any) -> Mask:
    return np.fromiter(truths, bool)


def _number(value: Any) -> float | None:
    """A number, or the number that a text is; None for others."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return None


class _Token(NamedTuple):
    kind: str
    text: str
    start: int

    @property
    def word(self) -> str:
        """The token as a sign or a word of the language, in lower case; empty for a quoted text and a number."""
        return self.text.lower() if self.kind in ("sign", "name") else ""

    @property
    def unquoted(self) -> str:
        if self.kind != "quoted":
            return self.text
        quote = self.text[0]
        return self.text[1:-1].replace(2 * quote, quote)


class _Parser:
    """Reads a condition by recursive descent."""

    def __init__(self, text: str) -> None:
        self._tokens, self._next, self._depth = list[_Token](), 0, 0
        position, end = 0, len(text.rstrip())
        self._end = _Token("", "", end)
        while position < end:
            if not (match := TOKEN.match(text, position)):
                start = end - len(text[position:end].lstrip())
                raise self._refused("a column, a sign or a value", start)
            kind = match.lastgroup or ""
            self._tokens.append(_Token(kind, match[kind], match.start(kind)))
            position = match.end()

    def whole(self) -> Condition:
        condition = self._either()
        if self._token.kind:
            raise self._refused("and, or, or the end")
        return condition

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next] if self._next < len(self._tokens) else self._end

    def _take(self, *words: str) -> str:
        """Takes the next token if it is one of `words`, else nothing."""
        if self._token.word not in words:
            return ""
        self._next += 1
        return self._tokens[self._next - 1].word

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._refused(word)

    def _refused(self, expected: str, start: int | None = None) -> RequestError:
        """The error for the next token, or for what stands at `start` and is none."""
        is_end = start is None and self._token is self._end
        position = (
            "its end"
            if is_end
            else f"something else at character {(self._token.start if start is None else start) + 1}"
        )
        return RequestError(
            f"where: expected {expected}, found {position}. A condition is for example language = 'de' and year >= 2020"
        )

    def _either(self) -> Condition:
        condition = self._both()
        while self._take("or"):
            condition = condition.either(self._both())
        return condition

    def _both(self) -> Condition:
        condition = self._one()
        while self._take("and"):
            condition = condition.both(self._one())
        return condition

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._refused(f"at most {DEEPEST} conditions within each other")
        if self._take("not"):
            condition = self._one().inverted()
        elif self._take("("):
            condition = self._either()
            self._expect(")")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> Condition:
        column = self._token
        if column.kind not in ("name", "quoted"):
            raise self._refused("a column")
        self._next += 1
        return Condition.of_column(column.unquoted, self._test())

    def _test(self) -> Test:
        if self._take("is"):
            is_other = self._take("not")
            self._expect("null")
            return (lambda values: ~_is_missing(values)) if is_other else _is_missing
        if sign := self._take("=", "==", "!=", "<>"):
            equal = partial(_is_in, [self._value()])
            return equal if sign.startswith("=") else partial(_is_other, equal)
        if sign := self._take(*ORDERS):
            return partial(_is_ordered, ORDERS[sign], self._ordered())
        test = self._others if self._take("not") else (lambda test: test)
        if self._take("in"):
            return test(partial(_is_in, self._list()))
        if self._take("between"):
            low = partial(_is_ordered, operator.ge, self._ordered())
            self._expect("and")
            high = partial(_is_ordered, operator.le, self._ordered())
            return test(lambda values: low(values) & high(values))
        if kind := self._take("like", "ilike"):
            pattern = self._value()
            if not isinstance(pattern, str):
                raise self._refused("a text with % for any characters")
            return test(partial(_is_like, pattern, kind == "ilike"))
        raise self._refused("=, !=, <, <=, >, >=, in, between, like or is null after a column")

    @staticmethod
    def _others(test: Test) -> Test:
        return partial(_is_other, test)

    def _list(self) -> list[Value]:
        self._expect("(")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._expect(")")
        return values

    def _ordered(self) -> Value:
        value = self._value()
        if isinstance(value, bool):
            raise self._refused("a number or a text to order by")
        return value

    def _value(self) -> Value:
        token = self._token
        if truth := self._take("true", "false"):
            return truth == "true"
        if token.kind not in ("number", "quoted"):
            raise self._refused("a number, or a text in quotes")
        self._next += 1
        if token.kind == "quoted":
            return token.unquoted
        return int(token.text) if token.text.lstrip("-").isdigit() else float(token.text)
