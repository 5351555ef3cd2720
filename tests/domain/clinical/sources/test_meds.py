"""Events of MEDS: pairing by time and by visit, notes that belong to a stay by their time, and bad input."""

from datetime import datetime

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from bertrelay.errors import RequestError, WorkError
from domain.clinical import CohortSettings, NotesSettings, write_cohort, write_notes

SCHEMA = pa.schema({"subject_id": pa.int64(), "time": pa.timestamp("us"), "code": pa.string()})
WITH_TEXT = SCHEMA.append(pa.field("text_value", pa.large_string()))
SOURCE = {"form": "meds", "admission": ["/^IN/"], "discharge": ["/^OUT/"]}
SOURCE |= {"map": {"unplanned": ["/acute/"], "planned": ["/elective/"], "home": ["/home/"]}}
EVENTS = [
    (1, None, "SEX//F"),
    (1, "1950-05-02 00:00", "MEDS_BIRTH"),
    (1, "2024-01-01 08:00", "IN//acute"),
    (1, "2024-01-03 09:00", "OUT//home"),
    (1, "2024-01-03 09:00", "IN//elective"),  # touches the one before
    (1, "2024-01-08 10:00", "OUT//home"),
    (1, "2024-02-01 10:00", "IN//acute"),  # no discharge before the next admission
    (1, "2024-03-01 10:00", "IN//acute"),
    (1, "2024-03-02 10:00", "OUT//home"),
    (2, "1960-01-01 00:00", "MEDS_BIRTH"),
    (2, "2024-03-01 10:00", "IN//acute"),
    (2, "2024-03-01 10:00", "OUT//home"),
    (2, "2024-03-09 00:00", "MEDS_DEATH//HOSPICE"),
]


def write(folder, events=EVENTS, schema=SCHEMA, shard="data/train/0.parquet"):
    (folder / shard).parent.mkdir(parents=True, exist_ok=True)
    rows = [
        dict(zip(schema.names, (subject, at and datetime.fromisoformat(at), *rest), strict=True))
        for subject, at, *rest in events
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / shard)
    return folder


def cohort_of(path, output, source=(), **settings):
    write_cohort(CohortSettings(source={**SOURCE, "path": str(path), **dict(source)}, **settings), output)
    return pd.read_parquet(output / "stays.parquet").set_index("hadm_id")


def test_an_admission_ends_with_the_next_discharge_before_another_admission(tmp_path):
    stays = cohort_of(write(tmp_path / "meds"), tmp_path / "out", {"sex": ["/^SEX/"]}, minimum_age=0)
    assert stays["discharged_at"].to_dict() == {
        "1-1": pd.Timestamp("2024-01-08 10:00"),
        "1-4": pd.Timestamp("2024-03-02 10:00"),
        "2-1": pd.Timestamp("2024-03-01 10:00"),
    }
    cohort = pd.read_parquet(tmp_path / "out/cohort.parquet").set_index("hadm_id")
    assert cohort["readmitted"].to_dict() == {"1-1": True, "1-4": False, "2-1": False}
    flow = pd.read_csv(tmp_path / "out/flow.csv").set_index("step")
    assert flow["left_out"]["not open (without a discharge)"] == 1
    assert flow["admissions"]["of these, died within 30 days"] == 1
    characteristics = pd.read_parquet(tmp_path / "out/characteristics.parquet").set_index("hadm_id")
    assert characteristics["sex"].fillna("").to_dict() == {"1-1": "F", "1-4": "F", "2-1": ""}
    assert characteristics["age"].to_dict() == {"1-1": 73, "1-4": 73, "2-1": 64}


def test_events_without_births_and_deaths_have_no_ages(tmp_path):
    events = [event for event in EVENTS if not event[2].startswith(("MEDS", "SEX"))]
    stays = cohort_of(write(tmp_path / "meds", events), tmp_path / "out", minimum_age=0)
    assert list(stays.index) == ["1-1", "1-4", "2-1"]
    with pytest.raises(RequestError, match="0 at least 18 years old"):
        cohort_of(tmp_path / "meds", tmp_path / "again")


def test_the_data_of_a_subject_end_with_the_last_event(tmp_path):
    cohort_of(write(tmp_path / "meds"), tmp_path / "out", data_end="per-subject")
    assert pd.read_parquet(tmp_path / "out/cohort.parquet")["hadm_id"].tolist() == ["1-1"]


def test_notes_without_a_visit_belong_to_the_stay_in_which_they_lie(tmp_path):
    folder = write(tmp_path / "meds")
    cohort_of(folder, tmp_path / "out")
    notes = [
        (1, "2024-01-02 10:00", "NOTE//summary", "In the stay."),
        (1, "2024-01-08 10:01", "NOTE//summary", "After it."),
        (2, "2024-03-01 10:00", "NOTE//summary", "As it ends."),
        (2, "2024-03-01 09:59", "NOTE//summary", "Before it."),
    ]
    write(folder, notes, WITH_TEXT, "data/train/notes.parquet")
    source = {"form": "meds", "path": str(folder), "map": {"discharge": ["/^NOTE/"]}}
    settings = NotesSettings(source=source, cohort=tmp_path / "out", notes_without_stay="by-time")
    write_notes(settings, tmp_path / "notes")
    texts = pd.read_parquet(tmp_path / "notes/notes.parquet").set_index("hadm_id")["text"]
    assert texts.to_dict() == {"1-1": "In the stay.", "2-1": "As it ends."}
    flow = pd.read_csv(tmp_path / "notes/flow.csv").set_index("step")["notes"]
    assert flow["left out: without a HADM_ID"] == 2
    assert flow["kept, of a stay by their time alone"] == 2
    with pytest.raises(ValidationError, match="notes_without_stay"):
        NotesSettings(source=source, cohort=tmp_path / "out")


def test_codes_without_text_are_refused_as_notes(tmp_path):
    folder = write(tmp_path / "meds")
    cohort_of(folder, tmp_path / "out")
    source = {"form": "meds", "path": str(folder), "visit": "code", "map": {"discharge": ["x"]}}
    with pytest.raises(RequestError, match=r"text_value.*none in 1 shards: these events are codes without text"):
        write_notes(NotesSettings(source=source, cohort=tmp_path / "out"), tmp_path / "notes")


def test_shards_that_are_there_twice_count_once(tmp_path):
    folder = write(write(tmp_path / "meds"), shard="data/train/0-copy.parquet")
    assert list(cohort_of(folder, tmp_path / "out").index) == ["1-1", "1-4", "2-1"]
    flow = pd.read_csv(tmp_path / "out/flow.csv").set_index("step")["admissions"]
    assert flow["with a subject and a beginning"] == 2 * flow["without copies of an earlier row"] == 10


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (pa.schema({"subject_id": pa.int64(), "time": pa.string(), "code": pa.string()}), "time as MEDS .*type string"),
        (pa.schema({"patient": pa.int64(), "time": pa.string(), "code": pa.string()}), "a column 'subject_id'"),
    ],
)
def test_shards_of_another_form_are_refused(schema, match, tmp_path):
    (tmp_path / "meds/data").mkdir(parents=True)
    pq.write_table(pa.table([[1], ["QZX"], ["QZX"]], schema=schema), tmp_path / "meds/data/0.parquet")
    with pytest.raises(RequestError, match=match) as error:
        cohort_of(tmp_path / "meds", tmp_path / "out")
    assert "QZX" not in str(error.value)


def test_no_shards_and_no_admissions_are_refused(tmp_path):
    with pytest.raises(RequestError, match=r"no data/\*\*/\*\.parquet"):
        cohort_of(tmp_path, tmp_path / "out")
    with pytest.raises(RequestError, match="expected events of admissions"):
        cohort_of(write(tmp_path / "meds"), tmp_path / "out", {"admission": ["ADMIT"]})


def test_events_that_cannot_be_used_are_listed_with_file_and_row(tmp_path):
    events = [*EVENTS, (3, None, "IN//acute"), (3, "2024-01-01 00:00", "OUT//home")]
    folder = write(tmp_path / "meds", events)
    with pytest.raises(WorkError, match="2 of 7 records cannot be used"):
        cohort_of(folder, tmp_path / "out")
    cohort_of(folder, tmp_path / "out", max_rejects=0.5)
    rejects = pd.read_json(tmp_path / "out/rejects.jsonl", lines=True)
    assert dict(zip(rejects["line"], rejects["reason"], strict=True)) == {
        14: "an admission, discharge, birth or death without a time",
        15: "a discharge of no admission",
    }
