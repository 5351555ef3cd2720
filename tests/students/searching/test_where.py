"""Conditions against DuckDB's answers to the same."""

import json

import duckdb
import pyarrow as pa
import pytest

from bertrelay.errors import RequestError
from students.searching.where import Columns, Condition

ROWS = [
    {"language": "de", "year": 2020, "score": 0.5, "checked": True, "title": "It's on"},
    {"language": "en", "year": 1999, "score": -1.0, "checked": False, "title": "ON it"},
    {"language": None, "year": None, "score": None, "checked": None, "title": None},
    {"language": "Deutsch", "year": 2021, "score": 2e3, "checked": True, "title": "100 % a_b"},
]
SHARED = [
    "language = 'de'",
    "language != 'de' OR year < 2000",
    "language <> 'de'",
    "year >= 2020 and score < 1",
    "year between 1999 and 2020",
    "year not between 1999 and 2020",
    "language in ('de', 'fr')",
    "language not in ('de', 'fr')",
    "title like '%''s%'",
    "title ilike 'on%'",
    "title not like '%it'",
    "title like '100 _ a_b'",
    "language is null or not (year = 1999)",
    "language is not null",
    "checked = true and (year > 2020 or score = 0.5)",
    "score >= -1.0 and score <= 2e3",
    "language < 'e'",
]


@pytest.fixture(scope="module")
def columns():
    table = pa.table({name: [json.dumps(row[name]) for row in ROWS] for name in ROWS[0]})
    ids = pa.array([f"t{row}" for row in range(4)])
    lines = pa.array(range(1, 5))
    return Columns(pa.table({"text": ids, "line": lines, "record": lines, "source": lines, "id": ids}), table)


@pytest.mark.parametrize("text", SHARED)
def test_conditions_select_what_duckdb_selects(text, columns):
    texts = pa.table({name: [row[name] for row in ROWS] for name in ROWS[0]})  # noqa: F841 (DuckDB reads it)
    expected = duckdb.sql(f"select coalesce({text}, false) from texts").fetchall()
    if "not (" not in text:  # where DuckDB neither takes nor leaves a missing value
        assert Condition.parse(text).select(columns).tolist() == [row[0] for row in expected]
    else:
        assert Condition.parse(text).select(columns).tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ('language = "de"', [0]),
        ('"language" = "de" or `line` = 2', [0, 1]),
        ("id in ('t3', \"t1\")", [1, 3]),
        ("line > 2 and record <= 3", [2]),
        ("text like 't%'", [0, 1, 2, 3]),
        ("year = '2020'", []),
        ("checked = 1", []),
        ({"language": "de"}, [0]),
        ({"year": [1999, 2021], "checked": True}, [3]),
        ({}, [0, 1, 2, 3]),
    ],
)
def test_quotes_own_columns_and_values_by_column(where, rows, columns):
    assert Condition.of(where).select(columns).nonzero()[0].tolist() == rows


def test_text_that_is_a_number_compares_as_one():
    table = pa.table({"year": [json.dumps(value) for value in ("2020", "1999", "later", 2021)]})
    columns = Columns(pa.table({"text": ["a", "b", "c", "d"]}), table)
    assert Condition.parse("year >= 2000").select(columns).tolist() == [True, False, False, True]
    assert Condition.parse("year = 2020").select(columns).tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a column, found its end"),
        ("language", "expected =, !=, .* after a column, found its end"),
        ("language = de", "expected a number, or a text in quotes, found something else at character 12"),
        ("language = 'de' 3", "expected and, or, or the end, found something else at character 17"),
        ("language = 'de", "found something else at character 12"),
        ("(year = 3", r"expected \), found its end"),
        ("year in (3, )", "expected a number, or a text in quotes"),
        ("year < true", "expected a number or a text to order by"),
        ("year = 3; drop table texts", "expected a column, a sign or a value, found something else at character 9"),
        ("read_csv('/etc/passwd') = 1", "after a column, found something else at character 9"),
        ("title like 3", "expected a text with %"),
        ("not " * 60 + "year = 3", "at most 50 conditions within each other"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text, message):
    with pytest.raises(RequestError, match=f"where: .*{message}"):
        Condition.parse(text)


def test_a_column_that_is_not_kept_is_named_with_those_that_are(columns):
    with pytest.raises(RequestError, match=r"expected columns of the index \(language, year, .* found lang, langs;"):
        Condition.parse("lang = 'de' or langs = 'de'").select(columns)
