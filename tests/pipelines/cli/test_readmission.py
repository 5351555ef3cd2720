"""`bertrelay readmission score` and `outcome score`: every file in and out, text only on request."""

import csv
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from domain.clinical import OutcomeScorer, ReadmissionScorer, score_file
from domain.clinical.note_selection import NoteKinds
from domain.clinical.predict_files import notes_table, sorted_notes
from domain.clinical.settings import ModelDescription, ScoreOptions

NOTES = [
    ("100", "Plan:\nthe wound is dry. qzx slept well."),
    ("200", "the failing heart again. the failing heart again. the wound is dry."),
    ("100", "slept well again."),
    ("300", ""),
    ("200", "Plan:\nqzx failing heart."),
]


@pytest.fixture(scope="module")
def model(readmission_model):
    return readmission_model


@pytest.fixture
def notes(tmp_path):
    pd.DataFrame(NOTES, columns=["hadm_id", "text"]).to_csv(tmp_path / "notes.csv", index=False)
    return tmp_path / "notes.csv"


@pytest.fixture(scope="module")
def expected(model):
    """Scores in Python, by id."""
    frame = pd.DataFrame(NOTES, columns=["hadm_id", "text"])
    return ReadmissionScorer.load(model).score(frame, precision="fp32").set_index("hadm_id")


def rows_of(path: Path) -> list[dict]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return (pd.read_parquet if path.suffix == ".parquet" else pd.read_csv)(path).to_dict("records")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_every_output_has_the_scores_of_python(call, model, notes, expected, tmp_path, suffix):
    output = tmp_path / f"scores{suffix}"
    out = call("readmission", "score", model, notes, output, "--precision", "fp32")
    rows = rows_of(output)
    assert [str(row["hadm_id"]) for row in rows] == ["100", "200", "300"]
    for row in rows[:2]:
        wanted = expected.loc[str(row["hadm_id"])]
        for name in ("probability", "calibrated", "top_share"):
            assert row[name] == pytest.approx(wanted[name], abs=1e-5)
        assert (row["n_chunks"], row["top_start"], row["top_end"]) == tuple(
            wanted[["n_chunks", "top_start", "top_end"]]
        )
        if suffix != ".csv":
            assert sum(chunk["share"] for chunk in row["chunks"]) == pytest.approx(row["probability"], abs=1e-5)
            assert len(row["chunks"]) == row["n_chunks"]
    assert pd.isna(rows[2]["probability"]) and rows[2]["n_chunks"] == 0
    assert "3 admissions, 1 without text, " in out
    assert {path.name for path in tmp_path.iterdir()} == {"notes.csv", output.name}


def test_a_file_given_twice_scores_as_once(notes, tmp_path, capsys):
    found = {}
    for name in ("once", "twice"):
        frame = pd.concat([pd.read_csv(notes)] * (1 + (name == "twice")))
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        table, rejects = notes_table(tmp_path / f"{name}.csv", ScoreOptions()), Rejects(None)
        with sorted_notes(table, tmp_path / name, rejects, 1000, READS_ALL) as read:
            found[name] = read.of_one("100"), read.of_one("200")
    assert found["once"] == found["twice"] == ([NOTES[0][1], NOTES[2][1]], [NOTES[1][1], NOTES[4][1]])
    assert "4 of 10 notes are copies of an earlier one, of one admission" in capsys.readouterr().err


def test_columns_are_named_and_ids_may_be_numbers_or_text(call, model, notes, tmp_path):
    frame = pd.DataFrame(NOTES, columns=["STAY", "NOTE"])
    mixed = [int(stay) if place % 2 else stay for place, stay in enumerate(frame["STAY"])]
    source = tmp_path / "other.jsonl"
    frame.assign(STAY=pd.Series(mixed, dtype=object)).to_json(source, orient="records", lines=True)
    columns = ("--id", "STAY", "--text", "NOTE", "--precision", "fp32")
    call("readmission", "score", model, source, tmp_path / "other_scores.jsonl", *columns)
    call("readmission", "score", model, notes, tmp_path / "scores.jsonl", "--precision", "fp32")
    assert rows_of(tmp_path / "other_scores.jsonl") == rows_of(tmp_path / "scores.jsonl")


def test_a_file_without_a_header_is_read_as_the_error_says(call, model, notes, tmp_path):
    (tmp_path / "bare.csv").write_text(notes.read_text().partition("\n")[2])
    with pytest.raises(RequestError, match=r"header = false, of a command --no-header\) and its columns by position"):
        score_file(model, tmp_path / "bare.csv", tmp_path / "s.jsonl")
    options = ("--no-header", "--id", 0, "--text", 1, "--precision", "fp32")
    call("readmission", "score", model, tmp_path / "bare.csv", tmp_path / "s.jsonl", *options)
    call("readmission", "score", model, notes, tmp_path / "named.jsonl", "--precision", "fp32")
    assert rows_of(tmp_path / "s.jsonl") == rows_of(tmp_path / "named.jsonl")
    with pytest.raises(RequestError, match="header: only CSV and TSV may be without one"):
        score_file(model, tmp_path / "s.jsonl", tmp_path / "o.jsonl", header=False)


READS_ALL = NoteKinds(ModelDescription(), "notes")
MARK = re.compile("qzx|failing", re.IGNORECASE)


def test_text_is_only_where_it_was_asked_for(call, model, notes, tmp_path):
    given, page = ("readmission", "score", model, notes), ("--html", tmp_path / "p.html", "--admission", 200)
    for name, options in (("plain.jsonl", ()), ("texts.csv", ("--with-text",)), ("shown.jsonl", page)):
        call(*given, tmp_path / name, *options)
    files = {path.name: path.read_text() for path in tmp_path.iterdir() if path != notes}
    assert {name for name, text in files.items() if MARK.search(text)} == {"texts.csv", "p.html"}
    assert set(files) == {"plain.jsonl", "texts.csv", "shown.jsonl", "p.html"}
    texts = list(csv.DictReader((tmp_path / "texts.csv").open()))
    assert texts[1]["top_text"] in f"{NOTES[1][1]}\n\n{NOTES[4][1]}"
    assert "slept well" not in files["p.html"]


def test_unknown_text_has_a_reason_and_no_probability(call, model, tmp_path, capsys):
    texts = [(1, "患者 退院 退院"), (2, ""), (3, "the wound is dry."), (4, "the wound 退院 退院")]
    pd.DataFrame(texts, columns=["hadm_id", "text"]).to_csv(tmp_path / "notes.csv", index=False)
    out = call("readmission", "score", model, tmp_path / "notes.csv", tmp_path / "scores.jsonl")
    rows = rows_of(tmp_path / "scores.jsonl")
    assert [row["reason"] for row in rows] == ["no known word", "no text", None, None]
    assert [row["unknown_share"] for row in rows] == [1, None, 0, 0.5]
    assert [row["probability"] is None for row in rows] == [True, True, False, False]
    assert [row["n_chunks"] for row in rows] == [0, 0, 1, 1]
    assert "4 admissions, 1 without text, 1 unknown text, " in out
    stderr = capsys.readouterr().err
    assert "1 of 4 admissions have no probability: no known word" in stderr
    assert "more than 10% of the tokens are unknown to the model in 2 of 4 admissions" in stderr


def test_of_alarms_nothing_is_reported_where_none_is_defined_and_json_is_one_document(
    call, model, lengths, notes, tmp_path, capsys
):
    shutil.copytree(model, tmp_path / "model")
    how = json.loads((model / "outcome.json").read_text())
    (tmp_path / "model/outcome.json").write_text(
        json.dumps(how | {"threshold": None, "chunking": how["chunking"] | {"max_chunks": 1}})
    )
    assert " alarm" in call("readmission", "score", model, notes, tmp_path / "s.csv")
    for folder in (tmp_path / "model", lengths):
        given = ("outcome", "score", folder, notes, tmp_path / "s.csv", "--overwrite")
        assert " alarm" not in call(*given)
        assert json.loads(call(*given, "--json"))["result"]["alarms"] is None
    assert capsys.readouterr().err.count("2 of 3 admissions have 1 chunks, the most that the model reads") == 2
    document = json.loads(call("readmission", "score", model, notes, tmp_path / "s.csv", "--overwrite", "--json"))
    printed = document["result"]
    assert printed.pop("chunks_per_second") > 0 and printed.pop("alarms") in (0, 1, 2) and printed.pop("chunks") > 4
    counts = {"admissions": 3, "without_text": 1, "unknown_text": 0, "rejected": 0, "left_out": 0}
    assert printed == counts and document["output"] == str(tmp_path / "s.csv")


def test_where_no_row_can_be_used_the_error_says_why(model, tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"hadm_id": 1.5, "text": "qzx"}\n{"hadm_id": 1e17, "text": "qzx"}\n')
    with pytest.raises(WorkError, match=r"2 of 2 records .*neither text nor a whole number.*more digits than its type"):
        score_file(model, tmp_path / "notes.jsonl", tmp_path / "o.csv")


def test_two_admissions_whose_ids_a_spreadsheet_rounded_are_not_scored_as_one(model, tmp_path):
    text = "hadm_id,text\n1.23457E+11,Severe memory loss.\n1.23457E+11,Patient is well.\n"
    (tmp_path / "notes.csv").write_text(text)
    with pytest.raises(WorkError, match=r"2 of 2 records .*2 × an id that is a rounded number, as 1\.23E\+11 is"):
        score_file(model, tmp_path / "notes.csv", tmp_path / "o.csv")
    assert not (tmp_path / "o.csv").exists()


def test_a_page_needs_an_admission_that_is_there_and_shows_no_id(model, notes, tmp_path):
    with pytest.raises(RequestError, match="page: expected the admission to show, as the file has 3"):
        score_file(model, notes, tmp_path / "o.csv", page=tmp_path / "p.html")
    with pytest.raises(RequestError, match="no note of that admission") as error:
        score_file(model, notes, tmp_path / "o.csv", page=tmp_path / "p.html", admission="qzx9")
    assert "qzx9" not in str(error.value)
    with pytest.raises(RequestError, match="admission: without effect without page"):
        score_file(model, notes, tmp_path / "o.csv", admission="qzx9")
    assert {path.name for path in tmp_path.iterdir()} == {"notes.csv"}


@pytest.fixture
def lengths(model, tmp_path):
    """The folder of a model of lengths of stay."""
    from domain.clinical.model import save_model, start_model
    from domain.clinical.settings import LENGTH_OF_STAY, ModelDescription

    given = {"task": "length-of-stay", "labels": list(LENGTH_OF_STAY.labels), "chunking": {"max_tokens": 8}}
    save_model(start_model(model, ModelDescription.model_validate(given)), tmp_path / "lengths")
    return tmp_path / "lengths"


def test_outcome_score_shows_each_label(call, lengths, notes, tmp_path):
    output = tmp_path / "scores.parquet"
    assert "3 admissions" in call("outcome", "score", lengths, notes, output, "--precision", "fp32")
    frame = pd.DataFrame(NOTES, columns=["hadm_id", "text"])
    expected = OutcomeScorer.load(lengths).score(frame, precision="fp32")
    rows = rows_of(output)
    for row, (_, wanted) in zip(rows[:2], expected.iterrows(), strict=False):
        assert row["label"] == wanted["label"] and "alarm" not in row and "calibrated" not in row
        of_labels = [row[name] for name in expected.columns if name.startswith("probability/")]
        assert sum(of_labels) == pytest.approx(1, abs=1e-5) and max(of_labels) == row["probability"]
        assert row["probability"] == pytest.approx(wanted["probability"], abs=1e-5)
    assert rows[2]["n_chunks"] == 0 and pd.isna(rows[2]["label"]) and pd.isna(rows[2]["probability/over_7_days"])


def test_outcome_score_takes_any_model_and_readmission_score_its_own(call, model, lengths, notes, tmp_path):
    call("outcome", "score", model, notes, tmp_path / "a.csv")
    call("readmission", "score", model, notes, tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    with pytest.raises(
        RequestError, match=r"expected one that predicts readmission, found one that predicts length-of-stay"
    ):
        score_file(lengths, notes, tmp_path / "c.csv", task="readmission")
    assert not (tmp_path / "c.csv").exists()


def test_admissions_without_text_make_shards_too(tmp_path):
    pd.DataFrame({"hadm_id": range(25), "text": [""] * 25}).to_csv(tmp_path / "in.csv", index=False)
    with (
        Rejects(tmp_path / "rejects.jsonl", 0) as rejects,
        sorted_notes(
            notes_table(tmp_path / "in.csv", ScoreOptions()),
            tmp_path / "out.csv",
            rejects,
            2_000,
            READS_ALL,
        ) as found,
    ):
        assert [span[:2] for span in found.spans] == [(0, 10), (10, 20), (20, 25)]
