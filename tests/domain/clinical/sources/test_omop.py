"""Tables of OMOP: names of both versions, formats, its conventions, and bad input."""

import json

import duckdb
import pandas as pd
import pytest
from pydantic import ValidationError

from bertrelay.errors import RequestError, WorkError
from domain.clinical import CohortSettings, NotesSettings, write_cohort, write_notes

PERSON = "person_id,gender_concept_id,year_of_birth,month_of_birth,day_of_birth,race_concept_id,ethnicity_concept_id"
DEATH, PERIOD = "person_id,death_date,death_datetime", "observation_period_id,person_id,observation_period_end_date"
VISIT = "visit_occurrence_id,person_id,visit_concept_id,visit_start_date,visit_start_datetime,visit_end_date"
VISIT += ",visit_end_datetime,visit_type_concept_id,discharged_to_concept_id"
NOTE = "note_id,person_id,note_date,note_datetime,note_type_concept_id,note_class_concept_id,note_text"
NOTE += ",visit_occurrence_id,note_source_value"
VISITS = [
    "11,1,262,2024-01-01,2024-01-01 08:00:00,2024-01-03,2024-01-03 09:00:00,32817,0",
    "12,1,9201,2024-01-03,2024-01-03 09:00:00,2024-01-08,2024-01-08 10:00:00,32817,8863",  # touches the one before
    "13,1,9202,2024-01-09,,2024-01-09,,32817,0",
    "14,1,9201,2024-02-01,2024-02-01 00:00:00,2024-02-05,2024-02-05 00:00:00,32817,0",
    "21,2,9201,2024-03-01,2024-03-01 10:00:00,2024-06-30,2024-06-30 00:00:00,32220,0",
    "31,3,9201,2024-03-01,2024-03-01 10:00:00,2024-03-04,2024-03-04 11:00:00,32817,0",
]
MAP = {"unplanned": [9201, 262], "no_admission": [9202], "home": ["", 8863], "died": [4216643]}


def write(folder, **tables):
    """The tables of three persons, as CSV; some replaced."""
    folder.mkdir(exist_ok=True)
    lines = {
        "person": [PERSON, "1,8507,1950,5,2,0,0", "2,8532,1960,,,0,0", "3,8532,1970,1,1,0,0"],
        "death": [DEATH, "3,2024-03-04,2024-03-04 00:00:00"],
        "observation_period": [PERIOD, "1,1,2024-02-07", "2,1,2023-01-01", "3,2,2024-06-30", "4,3,2024-03-04"],
        "visit_occurrence": [VISIT, *VISITS],
        "note": [NOTE, "1,1,2024-01-08,2024-01-08 00:00:00,32817,706391,Left well.,12,Discharge summary"],
    }
    for name, rows in {**lines, **tables}.items():
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def cohort_of(path, output, source=(), **settings):
    source = {"form": "omop", "path": str(path), "map": MAP, **dict(source)}
    write_cohort(CohortSettings(source=source, **settings), output)
    return pd.read_parquet(output / "stays.parquet")


def flow_of(output):
    flow = pd.read_csv(output / "flow.csv")
    return dict(zip(flow["step"], flow["admissions"], strict=True))


def test_visits_become_stays_by_the_conventions_of_omop(tmp_path):
    stays = cohort_of(write(tmp_path / "cdm"), tmp_path / "out").set_index("hadm_id")
    assert list(stays.index) == ["11", "14", "31"]
    assert stays["discharged_at"]["11"] == pd.Timestamp("2024-01-08 10:00")
    assert stays["length_of_stay_days"]["14"] == 4  # midnights are dates
    assert list(stays["died_in_hospital"]) == [False, False, True]
    assert pd.read_parquet(tmp_path / "out/cohort.parquet")["readmitted"].tolist() == [True, False]
    flow = flow_of(tmp_path / "out")
    assert flow["admissions by the map"] == 5
    assert flow["of these, still in hospital by the source, and so open, whatever the end"] == 1
    assert flow["of these, all: the map has no planned admissions, and each counts as unplanned"] == 5
    assert flow["of these, with a birth known by its year alone, so that the age may be a year too high"] == 1


def test_the_end_of_the_data_is_the_last_day_of_observation(tmp_path):
    cohort_of(write(tmp_path / "cdm"), tmp_path / "out", data_end="per-subject")
    assert pd.read_parquet(tmp_path / "out/cohort.parquet")["hadm_id"].tolist() == ["11"]


def as_parquet(csv, folder):
    folder.mkdir()
    for file in csv.glob("*.csv"):
        table = pd.read_csv(file, parse_dates=["visit_start_datetime"] if file.stem == "visit_occurrence" else [])
        (folder / f"{file.stem}.parquet").mkdir()
        table.to_parquet(folder / f"{file.stem}.parquet/part-0.parquet")
    return folder


def as_older(csv, folder):
    """The names of the CDM 5.3, in upper case."""
    visits = (csv / "visit_occurrence.csv").read_text().replace("discharged_to_", "discharge_to_").split("\n", 1)
    write(folder)
    (folder / "visit_occurrence.csv").write_text(visits[0].upper() + "\n" + visits[1])
    return folder


def as_database(csv, folder):
    with duckdb.connect(str(folder)) as database:
        database.execute("create schema cdm")
        for file in csv.glob("*.csv"):
            database.execute(f"create table cdm.{file.stem.upper()} as from read_csv('{file}')")
    return folder


@pytest.mark.parametrize("rewrite", [as_parquet, as_older, as_database])
def test_formats_and_versions_give_the_same_stays_and_notes(rewrite, tmp_path):
    folder = write(tmp_path / "csv")
    expected = cohort_of(folder, tmp_path / "of-csv")
    other = rewrite(folder, tmp_path / "other")
    pd.testing.assert_frame_equal(cohort_of(other, tmp_path / "of-other"), expected)
    source = {"form": "omop", "path": str(other), "map": {"discharge": ["discharge summary"]}}
    write_notes(NotesSettings(source=source, cohort=tmp_path / "of-csv"), tmp_path / "notes")
    assert pd.read_parquet(tmp_path / "notes/notes.parquet")["text"].tolist() == ["Left well."]
    flow = pd.read_csv(tmp_path / "notes/flow.csv")
    assert flow["step"].str.contains("this source has no times of saving or signing").sum() == 1


def test_a_table_without_a_required_column_is_refused(tmp_path):
    folder = write(tmp_path / "cdm", death=["person_id,died", "QZX3,2024-03-04"])
    with pytest.raises(RequestError, match=r"death\.csv: expected the columns .* none named death_date") as error:
        cohort_of(folder, tmp_path / "out")
    assert "QZX" not in str(error.value)


def test_a_second_copy_of_a_table_and_a_missing_one_are_refused(tmp_path):
    folder = write(tmp_path / "cdm")
    (folder / "note.parquet").touch()
    source = {"form": "omop", "path": str(folder), "map": {"discharge": ["x"]}}
    cohort_of(folder, tmp_path / "out")
    with pytest.raises(RequestError, match=r"one table note .*found 2: note\.csv and note\.parquet"):
        write_notes(NotesSettings(source=source, cohort=tmp_path / "out"), tmp_path / "notes")
    (folder / "death.csv").unlink()
    with pytest.raises(RequestError, match="expected the table death"):
        cohort_of(folder, tmp_path / "out")


def test_rows_that_cannot_be_used_are_listed_with_file_and_row_and_no_identifier(tmp_path, capsys):
    visits = [VISIT, *VISITS]
    visits[1] = "QZX1,1,262,QZXnoon,QZXnoon,2024-01-03,,32817,0"
    death = [DEATH, "3,2024-03-04,", "3,2024-05-05,"]
    folder = write(tmp_path / "cdm", visit_occurrence=visits, death=death)
    with pytest.raises(WorkError, match="2 of 7 records cannot be used") as error:
        cohort_of(folder, tmp_path / "out")
    cohort_of(folder, tmp_path / "out", max_rejects=0.5)
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    assert {(row["file"].rpartition("/")[2], row["line"], row["reason"]) for row in rejects} == {
        ("death.csv", 3, "a person_id that an earlier row has"),
        ("visit_occurrence.csv", 2, "without admitted_at"),
    }
    assert "QZX" not in str(error.value) + json.dumps(rejects) + "".join(capsys.readouterr())


def test_unknown_concepts_are_refused_with_their_counts(tmp_path):
    persons = [PERSON, *(f"{n},8507,1950,5,2,0,0" for n in range(20))]
    visits = [VISIT, *(f"{n},{n},{9201 if n < 8 else 8870},2024-01-01,,2024-01-03,,32817,0" for n in range(20))]
    folder = write(tmp_path / "cdm", person=persons, visit_occurrence=visits)
    with pytest.raises(RequestError, match=r"each admission_type, found none of 12 of 20 rows.*12 × '8870'"):
        cohort_of(folder, tmp_path / "out")


def test_settings_of_another_form_are_refused():
    with pytest.raises(ValidationError, match="form is table"):
        CohortSettings(source={"form": "opom", "path": "cdm"})
    with pytest.raises(ValidationError, match="columns"):
        CohortSettings(source={"form": "omop", "path": "cdm", "map": MAP, "columns": {"hadm_id": "v"}})
