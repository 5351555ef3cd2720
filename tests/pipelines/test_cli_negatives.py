"""The command `mine-negatives`; which negatives are taken, `tests/students/test_negatives.py` holds."""

import json

ROWS = ["a dog barks\tein hund bellt", "a dog\tein hund", "barks\tbellt", "개가 짖는다\ta dog barks ."]


def test_columns_are_named_and_the_counts_are_printed(call, model, write_lines, tmp_path):
    pairs, corpus = write_lines("p.tsv", ["one\ttwo", *ROWS]), write_lines("more.txt", ["개가", "", "짖는다"])
    columns, output = ["--column", "one", "--column", "two"], tmp_path / "n.tsv"
    given = ["--corpus", corpus, "--num-negatives", 2, "--precision", "fp32", "--scores", "--keep"]
    out = call("mine-negatives", model, pairs, output, *columns, *given)
    head, *rows = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
    assert head == ["anchor", "positive", "negative", "positive_score", "negative_score"]
    assert [row[:2] for row in rows] == [row.split("\t") for row in ROWS for _ in range(2)]
    assert out.startswith(f"{output}: 4 pairs, 4 anchors, 6 candidates, 8 rows, 1 blank_candidate, ")
    assert (tmp_path / "n.tsv.work").is_dir()
    document = json.loads(
        call("mine-negatives", model, pairs, output, *columns, "--max-score", "-1", "--overwrite", "--json")
    )
    assert (document["rows"], document["dropped"]["too_few_negatives"], document["negative_score"]) == (0, 4, None)


def test_two_processes_write_the_bytes_of_one(call, model, write_lines, tmp_path, start):
    rows = [f"a dog {'barks ' * (place % 7)}\tein hund {'bellt ' * (place % 9)}." for place in range(40)]
    pairs = write_lines("p.tsv", ["anchor\tpositive", *rows])
    call("mine-negatives", model, pairs, tmp_path / "one.jsonl", "--precision", "fp32")
    process = start("mine-negatives", model, pairs, "two.jsonl", "--precision", "fp32", "--processes", 2)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert out.count("two.jsonl: ") == 1
