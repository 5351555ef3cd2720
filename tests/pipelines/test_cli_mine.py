"""The command `mine`; what is mined and how it is judged, `tests/students/test_bitext.py` holds."""

import json
import re

import pytest

from bertrelay.errors import RequestError

SENTENCES = ["a dog barks", "ein hund", "개가 짖는다", "bellt"]


def test_a_threshold_is_chosen_by_gold_and_work_is_kept_when_asked(call, model, write_lines, tmp_path):
    sides = write_lines("s.txt", SENTENCES[:2]), write_lines("t.txt", [SENTENCES[1], "", *SENTENCES[::2]])
    gold, output = write_lines("gold.tsv", ["1\t3", "2\t1"]), tmp_path / "m.tsv"
    out = call("mine", model, *sides, output, "--gold", gold, "-k", 2, "--keep", "--precision", "fp32")
    head, *rows = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
    assert head == ["score", "source_line", "target_line", "source", "target"]
    assert {tuple(row[1:]) for row in rows} == {("1", "3", *SENTENCES[:1] * 2), ("2", "1", *SENTENCES[1:2] * 2)}
    assert out.startswith(f"{output}: 2 pairs, f1 1.0000, precision 1.0000, recall 1.0000, threshold ")
    assert float(rows[-1][0]) >= float(re.search(r"threshold ([\d.]+)", out)[1])
    assert (tmp_path / "m.tsv.work").is_dir()
    document = json.loads(call("mine", model, *sides, output, "--overwrite", "--json"))
    assert (document["output"], document["pairs"]) == (str(output), 2)
    assert (document["threshold"], document["f1"]) == (None, None)
    assert not (tmp_path / "m.tsv.work").exists()


def test_columns_of_one_table_are_two_sides(call, model, tmp_path, write_lines):
    sides = [write_lines("t.csv", ["1,a dog barks,bellt", "2,bellt,a dog barks"])] * 2
    columns = ["--source-column", "1", "--target-column", "2", "--no-header"]
    call("mine", model, *sides, tmp_path / "m.csv", "--threshold", "1", *columns)
    rows = (tmp_path / "m.csv").read_text(encoding="utf-8").splitlines()
    assert sorted(row.partition(",")[2] for row in rows[1:]) == ["1,2,a dog barks,a dog barks", "2,1,bellt,bellt"]


def test_gold_names_sentences_by_identifiers(call, model, write_lines, tmp_path):
    sides = write_lines("s", ["x1\ta dog barks", "x2\tein hund"]), write_lines("t", ["y7\tein hund", "y8\ta dog barks"])
    gold, output = write_lines("gold", ["x1\ty8", "x2\ty7"]), tmp_path / "m.tsv"
    columns = ["--id-column", "0", "--source-column", "1", "--target-column", "1", "--format", "tsv", "--no-header"]
    document = json.loads(call("mine", model, *sides, output, "--gold", gold, "-k", 2, *columns, "--json"))
    assert (document["pairs"], document["f1"], document["f1_low"]) == (2, 1, 1)
    with pytest.raises(RequestError, match="--id-column: expected --gold FILE"):
        call("mine", model, *sides, output, "--overwrite", *columns)
