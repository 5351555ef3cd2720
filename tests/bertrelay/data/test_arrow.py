"""Arrow files: what is written is read from the disk, and digests stand for texts."""

import pickle
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from bertrelay.data.arrow import (
    SENTENCE_SCHEMA,
    Sentences,
    number_distinct,
    open_arrow,
    select_rows,
    text_digests,
    write_arrow,
)


def test_sentences_written_in_blocks_are_read_across_them_and_in_another_process(tmp_path):
    path = tmp_path / "sentences.arrow"
    write_arrow(path, SENTENCE_SCHEMA, [{"sentence": ["a", "b"]}, {"sentence": []}, {"sentence": ["c"]}])
    sentences = pickle.loads(pickle.dumps(Sentences(path)))
    assert len(sentences) == 3
    assert sentences.read(1, 3) == ["b", "c"]
    assert sentences.read(2, 1) == []
    assert sentences.at(np.array([2, 0, 2])) == ["c", "a", "c"]


def test_a_file_is_mapped_and_not_copied_into_memory(tmp_path):
    write_arrow(tmp_path / "numbers.arrow", pa.schema({"n": pa.int64()}), [{"n": list(range(100_000))}])
    before = pa.total_allocated_bytes()
    table = open_arrow(tmp_path / "numbers.arrow")
    assert table["n"][99_999].as_py() == 99_999
    assert pa.total_allocated_bytes() - before < 1000


def test_sentences_are_read_by_row_from_more_text_than_one_array_can_hold(tmp_path, monkeypatch):
    chunk = pa.array(["x" * 2**26])  # 33 of them are more than 2 GiB, and one in memory
    column = pa.chunked_array([pa.array(["a", "b"]), *[chunk] * 33, pa.array(["y"])])
    monkeypatch.setattr("bertrelay.data.arrow.open_arrow", lambda _: pa.table({"sentence": column}))
    assert Sentences(tmp_path).at(np.array([35, 1])) == ["y", "b"]


def test_rows_are_selected_across_blocks_under_new_names():
    table = pa.concat_tables([pa.table({"a": [1, 2], "b": ["x", "y"]}), pa.table({"a": [3], "b": ["z"]})])
    blocks = select_rows(table, np.array([False, True, True]), {"text": "b"})
    assert [block["text"].to_pylist() for block in blocks] == [["y"], ["z"]]


def test_digests_are_blake2b_and_equal_ones_share_a_number():
    digests = text_digests(["b", "a", "b", "é"])
    assert digests.to_pylist() == [blake2b(text.encode(), digest_size=16).digest() for text in ("b", "a", "b", "é")]
    numbers, first = number_distinct(digests)
    assert numbers.tolist() == [0, 1, 0, 2]
    assert first.tolist() == [0, 1, 3]
