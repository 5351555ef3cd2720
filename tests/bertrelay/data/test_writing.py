"""Tables written and read again."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertrelay.data.records import read
from bertrelay.data.tables import Table
from bertrelay.data.writing import on_one_line, write_table

COLUMNS = {"id": "int64", "text": "string", "score": "float64"}
TEXTS = st.lists(
    st.sampled_from(["a", " ", '"', ",", "\t", "\n", "\r", "\r\n", "\\", "\x1c", "\u2028", "\ufeff", "é"])
    | st.characters(codec="utf-8", exclude_characters="\0"),  # which no text file should have
    min_size=1,
    max_size=12,
).map("".join)
ROWS = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), TEXTS, st.floats(allow_nan=False)), min_size=1, max_size=5)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_a_table_that_was_written_is_read_with_the_same_values(suffix, tmp_path, rows):
    path = tmp_path / f"table.{suffix}"
    write_table(path, COLUMNS, rows)
    records = [record.values for record in read(Table.model_validate({"path": str(path)}), list(COLUMNS))]
    if suffix == "tsv":  # has no quotes, so a text is on one line
        rows = [(number, on_one_line(text), score) for number, text, score in rows]
    assert [(int(number), text, float(score)) for number, text, score in records] == rows
