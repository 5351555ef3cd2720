"""The command `mine`."""

import json
import re

import pytest

SENTENCES = ["a dog barks", "ein hund", "개가 짖는다", "bellt"]


@pytest.fixture
def sides(write_lines):
    """The same sentences in two files, of which line 1 is line 3 and line 2 is line 1."""
    return write_lines("source.txt", SENTENCES[:2]), write_lines("target.txt", [SENTENCES[1], "", *SENTENCES[::2]])


def test_a_threshold_is_chosen_by_gold_and_the_metrics_are_printed(call, model, sides, write_lines, tmp_path):
    gold, output = write_lines("gold.tsv", ["1\t3", "2\t1"]), tmp_path / "m.tsv"
    out = call("mine", model, *sides, output, "--gold", gold, "-k", 2, "--precision", "fp32")
    head, *rows = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
    assert head == ["score", "source_line", "target_line", "source", "target"]
    assert {tuple(row[1:]) for row in rows} == {("1", "3", *SENTENCES[:1] * 2), ("2", "1", *SENTENCES[1:2] * 2)}
    assert out.startswith(f"{output}: 2 pairs, f1 1.0000, precision 1.0000, recall 1.0000, threshold ")
    assert float(rows[-1][0]) >= float(re.search(r"threshold ([\d.]+)", out)[1])


def test_columns_of_one_table_are_two_sides(call, model, tmp_path, write_lines):
    sides = [write_lines("t.csv", ["1,a dog barks,bellt", "2,bellt,a dog barks"])] * 2
    columns = ["--source-column", "1", "--target-column", "2", "--no-header"]
    call("mine", model, *sides, tmp_path / "m.csv", "--threshold", "1", *columns)
    rows = (tmp_path / "m.csv").read_text(encoding="utf-8").splitlines()
    assert sorted(row.partition(",")[2] for row in rows[1:]) == ["1,2,a dog barks,a dog barks", "2,1,bellt,bellt"]


def test_kept_vectors_and_neighbours_stand_beside_the_output(call, model, sides, tmp_path):
    call("mine", model, *sides, tmp_path / "m.tsv", "--keep", "--method", "exact")
    kept = {path.name for path in (tmp_path / "m.tsv.work").iterdir()}
    assert {"source.npy", "target.npy", "forward.partial"} <= kept
    document = json.loads(call("mine", model, *sides, tmp_path / "m.tsv", "--overwrite", "--json"))
    assert (document["output"], document["pairs"]) == (str(tmp_path / "m.tsv"), 2)
    assert (document["threshold"], document["f1"]) == (None, None)
    assert not (tmp_path / "m.tsv.work").exists()
