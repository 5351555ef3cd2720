"""`bertrelay similarity`: pairs and matrices, as text, JSON, CSV and pictures."""

import csv
import json
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from bertrelay.inference import compare

ENGLISH = ["a dog barks", "a dog .", "dog dog"]
OTHERS = ["ein hund bellt .", "개가 짖는다"]
FP32 = ["--precision", "fp32"]

PEERS = {
    "cosine": lambda a, b: 1 - cdist(a, b, "cosine"),
    "dot": lambda a, b: a @ b.T,
    "manhattan": lambda a, b: -cdist(a, b, "cityblock"),
}


@pytest.fixture
def english(write_lines):
    return write_lines("english.txt", ENGLISH)


@pytest.fixture
def others(write_lines):
    return write_lines("others.txt", OTHERS)


@pytest.fixture
def expected(vectors):
    def of(first, second, metric="cosine"):
        return PEERS[metric](vectors(first).astype(float), vectors(second).astype(float))

    return of


def read_csv(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_one_of_two_files_may_be_standard_input(call, model, write_lines, others):
    two = write_lines("two.txt", ENGLISH[:2])
    expected = call("similarity", model, two, others, "--files", *FP32)
    assert call("similarity", model, "-", others, "--files", *FP32, stdin=two.read_bytes()) == expected
    assert call("similarity", model, two, "-", "--files", *FP32, stdin=others.read_bytes()) == expected


def test_pairs_of_many_blocks_are_all_written_in_order(call, model, write_lines, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "BLOCK_SENTENCES", 8)
    first, second = [ENGLISH[i % 3] for i in range(30)], [OTHERS[i % 2] for i in range(30)]
    files = [write_lines("a.txt", first), write_lines("b.txt", second)]
    out = call("similarity", model, *files, "--files", "--csv", tmp_path / "p.csv", *FP32)
    assert out == f"written to {tmp_path / 'p.csv'}\n"
    head, *rows = read_csv(tmp_path / "p.csv")
    assert head == ["a", "b", "similarity"]
    assert [row[:2] for row in rows] == [list(pair) for pair in zip(first, second, strict=True)]
    np.testing.assert_allclose([float(row[2]) for row in rows], np.diag(expected(first, second)), atol=1e-5)
    text = call("similarity", model, *files, "--files", *FP32).splitlines()
    assert [line.split("\t")[1:] for line in text] == [row[:2] for row in rows]


def test_columns_of_tables_are_compared(call, model, write_lines, expected):
    table = write_lines("t.csv", ["id,en,de", f'1,{ENGLISH[0]},"{OTHERS[0]}"', f"2,{ENGLISH[1]},{OTHERS[1]}"])
    out = call("similarity", model, table, table, "--files", "--column", "en", "--column", "2", *FP32)
    figures = [float(line.split("\t")[0]) for line in out.splitlines()]
    np.testing.assert_allclose(figures, np.diag(expected(ENGLISH[:2], OTHERS)), atol=6e-5)
    alone = call("similarity", model, table, "--matrix", "--column", "en", "--json", *FP32)
    assert json.loads(alone)["result"]["rows"] == ENGLISH[:2]


@pytest.mark.parametrize(("metric", "kind"), [("cosine", "svg"), ("manhattan", "pdf")])
def test_a_matrix_has_every_line_with_every_line(
    call, model, english, others, expected, tmp_path, monkeypatch, metric, kind
):
    monkeypatch.setattr(compare, "CELLS_AT_ONCE", 4)  # two rows at a time
    table, picture = tmp_path / "m.csv", tmp_path / f"m.{kind}"
    flags = ["--matrix", "--metric", metric, *FP32, "--csv", table, "--picture", picture, "--json"]
    document = json.loads(call("similarity", model, english, others, *flags))["result"]
    assert (document["rows"], document["columns"], document["metric"]) == (ENGLISH, OTHERS, metric)
    np.testing.assert_allclose(document["matrix"], expected(ENGLISH, OTHERS, metric), atol=1e-5)
    head, *rows = read_csv(table)
    assert head == ["", *OTHERS]
    assert [row[0] for row in rows] == ENGLISH
    np.testing.assert_allclose([[float(value) for value in row[1:]] for row in rows], document["matrix"])
    assert picture.stat().st_size > 1000
    if kind == "svg":
        assert set(OTHERS) <= {
            text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
        }


def test_a_prompt_stands_before_the_sentences(call, model, expected):
    given = ["--prompt", "query", "--metric", "dot", "--json", *FP32]
    (pair,) = json.loads(call("similarity", model, "barks", "a", *given))["result"]["pairs"]
    assert (pair["a"], pair["b"]) == ("barks", "a")
    assert pair["similarity"] == pytest.approx(expected(["dog barks"], ["dog a"], "dot").item(), abs=1e-5)


def test_blank_lines_keep_their_place_and_are_counted(call, model, write_lines, others, capsys):
    files = write_lines("gaps.txt", ["a dog", ""]), others
    pairs = json.loads(call("similarity", model, *files, "--files", "--json"))["result"]["pairs"]
    assert [pair["a"] for pair in pairs] == ["a dog", ""]
    assert all(np.isfinite(pair["similarity"]) for pair in pairs)
    assert "1 of 2 sentences is blank, and compared as it is" in capsys.readouterr().err
    call("similarity", model, *files)  # the files' names, taken for sentences
    assert "add --files or --matrix" in capsys.readouterr().err
