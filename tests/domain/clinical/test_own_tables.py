"""A hospital's own tables: the same cohort and notes as MIMIC's, every label by a second program, bad values."""

import csv
import json
from collections import defaultdict
from datetime import datetime, timedelta

import pandas as pd
import pytest
from pydantic import ValidationError

from bertrelay.errors import RequestError, WorkError
from domain.clinical import CohortSettings, NotesSettings, write_cohort, write_notes
from domain.clinical.sources.settings import StayTable
from domain.clinical.sources.values import times_of
from pipelines.samples.hospital import write_hospital
from pipelines.samples.settings import HospitalSettings

FORMATS = ["%d.%m.%Y %H:%M", "%d.%m.%Y"]
COLUMNS = {
    "subject_id": "patient",
    "hadm_id": "visit",
    "admitted_at": "arrived",
    "discharged_at": "left",
    "admission_type": "kind",
    "discharge_location": "left to",
    "died_at": "died",
    "born": "born",
    "sex": "sex",
}
MAP = {
    "unplanned": ["acute"],
    "planned": ["elective"],
    "newborn": ["birth"],
    "no_admission": ["/^clin/"],
    "home": ["/home|snf|rehab/", ""],
    "acute_care_transfer": ["short term hospital", "disc-tran cancer/chldrn h"],
    "against_medical_advice": ["left against medical advi"],
    "hospice": ["/hospice/"],
    "died": ["dead/expired"],
}
NOTE_COLUMNS = {
    "subject_id": "patient",
    "hadm_id": "visit",
    "charted_at": "written",
    "stored_at": "signed",
    "note_type": "kind",
    "text": "text",
}
NOTE_MAP = {
    "discharge": ["discharge summary"],
    "addendum": ["discharge addendum"],
    "radiology": ["radiology"],
    "error": ["withdrawn"],
    "other": ["/nursing|case management|physician|ecg|echo|respiratory|nutrition|rehab|social|general/"],
}


def cohort_settings(path, **others):
    source = {"path": str(path), "columns": COLUMNS, "map": MAP, "time_formats": FORMATS}
    return CohortSettings(source=source | others.pop("source", {}), **others)


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    """The folder of a hospital in both forms, with the cohort and the discharge and early notes of each."""
    folder = tmp_path_factory.mktemp("hospital")
    write_hospital(folder, HospitalSettings(subjects=400, words=160, forms=["table"]))
    notes = {"path": folder / "table/notes.csv.gz", "columns": NOTE_COLUMNS, "map": NOTE_MAP, "time_formats": FORMATS}
    write_cohort(CohortSettings(mimic=folder / "mimic"), folder / "of-mimic")
    write_cohort(cohort_settings(folder / "table/stays.csv"), folder / "of-table")
    for name, settings in {"discharge": {"radiology": True}, "early": {"input": "early", "stays": "all"}}.items():
        for form, source in {"mimic": {"mimic": folder / "mimic"}, "table": {"source": notes}}.items():
            read = NotesSettings(cohort=folder / f"of-{form}", **source, **settings)
            write_notes(read, folder / f"{name}-of-{form}")
    return folder


def same_ids(table):
    """The table with the ids that MIMIC's tables have, by them; without the split, which depends on the id."""
    ids = {name: table[name].str.lstrip("PV") for name in ("subject_id", "hadm_id", "stay_hadm_id") if name in table}
    return table.assign(**ids).drop(columns="split", errors="ignore").sort_values("hadm_id", ignore_index=True)


@pytest.mark.parametrize("file", ["cohort", "stays", "members"])
def test_cohorts_of_own_tables_and_of_mimic_are_equal(hospital, file):
    ours, theirs = (same_ids(pd.read_parquet(hospital / f"of-{form}/{file}.parquet")) for form in ("table", "mimic"))
    assert len(ours) > 600
    columns = ours.columns.drop("died_at", errors="ignore")  # the own tables have only the day of a death
    pd.testing.assert_frame_equal(ours[columns], theirs[columns])


def test_characteristics_are_equal_where_the_table_has_them(hospital):
    ours, theirs = (
        same_ids(pd.read_parquet(hospital / f"of-{form}/characteristics.parquet")) for form in ("table", "mimic")
    )
    columns = ["hadm_id", "sex", "age", "died_in_hospital", "length_of_stay_days"]
    pd.testing.assert_frame_equal(ours[columns], theirs[columns])
    assert ours[["insurance", "race"]].isna().all(axis=None)


@pytest.mark.parametrize("name", ["discharge", "early"])
def test_texts_of_own_tables_and_of_mimic_are_equal(hospital, name):
    ours, theirs = (
        same_ids(pd.read_parquet(hospital / f"{name}-of-{form}/notes.parquet")) for form in ("table", "mimic")
    )
    assert len(ours) > 400
    pd.testing.assert_frame_equal(ours, theirs)


def slow_labels(file):
    """Visit → readmitted by the rules in words, of a file in the form of the synthetic own tables."""
    subjects = defaultdict(dict)
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["kind"] != "Clinic":
                begin, end = (
                    datetime.strptime(row[name], FORMATS[0]) if row[name] else None for name in ("arrived", "left")
                )
                kind = row["kind"].strip().lower()
                dead, born = row["left to"] == "DEAD/EXPIRED", datetime.strptime(row["born"], FORMATS[1])
                subjects[row["patient"]][row["visit"]] = (begin, end, row["visit"], kind, dead, born)
    labels = {}
    for visits in subjects.values():
        stays, death = [], None
        for visit in sorted(visits.values(), key=lambda visit: (visit[0], visit[1] or datetime.max, visit[2])):
            begin, end, _, _, dead, _ = visit
            if death is None or begin < death:
                latest = max((max(part[0], part[1] or part[0]) for part in stays[-1]), default=None) if stays else None
                if latest is not None and begin <= latest:
                    stays[-1].append(visit)
                else:
                    stays.append([visit])
            if dead and end:
                death = min(filter(None, [death, end]))
        for number, parts in enumerate(stays):
            first, ends = parts[0], [part[1] for part in parts]
            begin, _, visit, kind, _, born = first
            age = begin.year - born.year - ((begin.month, begin.day) < (born.month, born.day))
            if None in ends or kind == "birth" or any(part[4] for part in parts) or age < 18 or max(ends) < begin:
                continue
            returns = [later[0][0] for later in stays[number + 1 :] if later[0][3] != "elective"]
            labels[visit] = bool(returns) and returns[0] - max(ends) <= timedelta(days=30)
    return labels


def test_every_label_equals_that_of_a_slow_program(hospital):
    expected = slow_labels(hospital / "table/stays.csv")
    cohort = pd.read_parquet(hospital / "of-table/cohort.parquet")
    assert dict(zip(cohort["hadm_id"], cohort["readmitted"], strict=True)) == expected
    assert 100 < sum(expected.values()) < len(expected) - 100


def steps(folder):
    flow = pd.read_csv(folder / "flow.csv")
    return dict(zip(flow["step"], flow["admissions"], strict=True)), dict(
        zip(flow["step"], flow["left_out"], strict=True)
    )


def test_the_flow_counts_copies_clinic_visits_and_open_stays(hospital):
    counts, left_out = steps(hospital / "of-table")
    with (hospital / "table/stays.csv").open() as file:
        rows = [tuple(row) for row in csv.reader(file)][1:]
    assert counts["rows of the table of stays that can be read"] == len(rows)
    assert counts["without copies of an earlier row"] == len(set(rows)) < len(rows)
    clinic = {row for row in rows if row[4] == "Clinic"}
    assert counts["admissions by the map"] == len(set(rows)) - len(clinic)
    assert left_out["not open (without a discharge)"] == sum(row[3] == "" for row in rows) == 3
    (reason,) = [step for step in pd.read_csv(hospital / "discharge-of-table/flow.csv")["step"] if "HADM_ID" in step]
    assert reason == "left out: without a HADM_ID"


DEFAULT = "subject_id,hadm_id,admitted_at,discharged_at"


def write(path, lines, header=DEFAULT):
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def cohort_of(folder, **settings):
    write_cohort(CohortSettings(**{"minimum_age": 0, **settings}), folder / "cohort")
    return pd.read_parquet(folder / "cohort/cohort.parquet").set_index("hadm_id")


def test_dates_without_a_time_count_as_calendar_days(tmp_path):
    file = write(
        tmp_path / "stays.csv",
        [
            "1,a,2024-01-01,2024-01-05",
            "1,b,2024-02-04,2024-02-06",
            "2,c,2024-01-01,2024-01-05",
            "2,d,2024-02-05,2024-02-05",
        ],
    )
    cohort = cohort_of(tmp_path, source={"path": file})
    assert cohort["readmitted"].to_dict() == {"a": True, "b": False, "c": False, "d": False}  # after 30 days, after 31
    stays = pd.read_parquet(tmp_path / "cohort/stays.parquet").set_index("hadm_id")
    assert stays["length_of_stay_days"].to_dict() == {"a": 4, "b": 2, "c": 4, "d": 0}


@pytest.mark.parametrize(
    ("value", "settings", "expected"),
    [
        ("2024-03-05 14:30", {}, ("2024-03-05 14:30:00", False)),
        ("2024-03-05T14:30:59.999", {}, ("2024-03-05 14:30:59", False)),
        ("2024-03-05", {}, ("2024-03-05", True)),
        ("2024-03-05 00:00", {}, ("2024-03-05", False)),
        ("2024-03-05 00:00", {"date_only": "start"}, ("2024-03-05", True)),
        ("2024-03-05 23:59:59", {"date_only": "end"}, ("2024-03-05", True)),
        ("2024-07-05T10:00:00Z", {"zone": "Europe/Berlin"}, ("2024-07-05 12:00:00", False)),
        ("2024-01-05T10:00:00+05:00", {"zone": "Europe/Berlin"}, ("2024-01-05 06:00:00", False)),
        ("05.03.2024 7:05", {"time_formats": FORMATS}, ("2024-03-05 07:05:00", False)),
        ("05.03.2024", {"time_formats": FORMATS}, ("2024-03-05", True)),
    ],
)
def test_times_are_read_in_their_form(value, settings, expected):
    parsed = times_of(pd.Series([value, None, "NULL"]), StayTable(path="stays.csv", **settings))
    assert (parsed.times[0], parsed.by_day[0]) == (pd.Timestamp(expected[0]), expected[1])
    assert parsed.times[1:].isna().all()
    assert (parsed.faults == "").all()


@pytest.mark.parametrize(
    "value",
    ["2024-03-05T10:00:00Z", "2024-02-30", "05.03.2024", "1.3.24", "2024-3-5", "20240305", "1709600000", "0001-01-01"],
)
def test_other_forms_of_times_are_faults(value):
    parsed = times_of(pd.Series([value]), StayTable(path="stays.csv"))
    assert parsed.times.isna().all()
    assert parsed.faults[0]


def test_values_without_a_meaning_are_counted_by_value_and_rare_ones_are_not_shown(tmp_path):
    kinds = ["acute"] * 70 + ["walk-in"] * 12 + ["Meier, Anna"] * 2
    lines = [f"{n},h{n},2024-01-0{n % 9 + 1} 10:00,2024-01-20 10:00,{json.dumps(kind)}" for n, kind in enumerate(kinds)]
    columns = {"admission_type": "kind"}
    source = {"path": write(tmp_path / "stays.csv", lines, DEFAULT + ",kind"), "columns": columns}
    source |= {"map": {"unplanned": ["acute"]}}
    with pytest.raises(RequestError, match=r"none of 14 of 84 rows.*12 × 'walk-in', 2 × values of fewer") as error:
        cohort_of(tmp_path, source=source)
    assert "meier" not in str(error.value).lower()
    cohort_of(tmp_path, source=source | {"max_unmapped": 0.2})
    counts, _ = steps(tmp_path / "cohort")
    assert counts["of these, admission_type 'walk-in' not in the map, counted as unplanned"] == 12
    assert counts["of these, a rare admission_type not in the map, counted as unplanned"] == 2
    written = "".join(path.read_text("utf-8") for path in (tmp_path / "cohort").rglob("*.[cj]s*"))
    assert "meier" not in written.lower()


def test_what_the_source_does_not_have_is_a_line_of_the_flow(tmp_path):
    source = {"path": write(tmp_path / "stays.csv", ["1,a,2024-01-01,2024-01-05"])}
    cohort_of(tmp_path, source=source)
    lines = [step for step in steps(tmp_path / "cohort")[0] if "this source has no" in step]
    assert len(lines) == 4
    assert "no admission types" in lines[0]
    assert "no sex, race, insurance" in lines[3]


def test_deaths_known_by_their_day(tmp_path):
    lines = [
        "1,within,2024-01-01 08:00,2024-01-09 08:00,x,2024-01-05",
        "2,last,2024-01-01 08:00,2024-01-09 08:00,x,2024-01-09",
        "3,home,2024-01-01 08:00,2024-01-09 08:00,home,2024-01-09",
        "4,later,2024-01-01 08:00,2024-01-09 08:00,home,2024-01-19",
        "5,location,2024-01-01 08:00,2024-01-09 08:00,died,",
    ]
    columns = {"discharge_location": "to", "died_at": "death"}
    source = {"path": write(tmp_path / "stays.csv", lines, DEFAULT + ",to,death"), "columns": columns}
    source |= {"map": {"home": ["home"], "died": ["died"]}, "max_unmapped": 0.5}
    assert list(cohort_of(tmp_path, source=source).index) == ["home", "later"]
    stays = pd.read_parquet(tmp_path / "cohort/stays.parquet").set_index("hadm_id")["died_at"]
    assert stays["within"] == pd.Timestamp("2024-01-05 23:59:59")
    assert stays["last"] == stays["location"] == pd.Timestamp("2024-01-09 08:00")


def test_a_stay_without_full_follow_up_of_its_subject_is_left_out(tmp_path):
    lines = [
        "1,a,2024-01-01,2024-01-05,2024-02-04",
        "2,b,2024-01-01,2024-01-05,2024-02-03",
        "3,c,2024-01-01,2024-01-05,",
    ]
    source = {"path": write(tmp_path / "stays.csv", lines, DEFAULT + ",until"), "columns": {"followed_until": "until"}}
    assert list(cohort_of(tmp_path, source=source, data_end="per-subject").index) == ["a"]
    assert steps(tmp_path / "cohort")[1]["with all 30 days before the end of the data"] == 2


def test_rows_that_cannot_be_used_are_listed_by_their_line_without_their_text(tmp_path, capsys):
    lines = [f"{n},h{n},2024-01-01 10:00,2024-01-05 10:00" for n in range(40)]
    lines[3] = "QZX3,h3,QZXnoon,2024-01-05 10:00"
    lines[5] = "QZX5,h5,2024-01-01 10:00,QZXnight"
    lines[7] = ",QZX7,2024-01-01 10:00,2024-01-05 10:00"
    source = {"path": write(tmp_path / "stays.csv", lines)}
    with pytest.raises(WorkError, match="3 of 40 records cannot be used") as error:
        cohort_of(tmp_path, source=source)
    assert "QZX" not in str(error.value)
    cohort_of(tmp_path, source=source, max_rejects=0.1)
    rejects = [json.loads(line) for line in (tmp_path / "cohort/rejects.jsonl").read_text().splitlines()]
    assert {(row["line"], row["reason"]) for row in rejects} == {
        (5, "without admitted_at"),
        (7, "discharged_at is no time or date in the form of the source"),
        (9, "without subject_id"),
    }
    assert "QZX" not in json.dumps(rejects) + "".join(capsys.readouterr())


def test_notes_of_types_without_a_meaning_are_counted_or_refused(tmp_path):
    stays = {"path": write(tmp_path / "stays.csv", [f"{n},h{n},2024-01-01,2024-01-05" for n in range(40)])}
    cohort_of(tmp_path, source=stays)
    lines = [f"{n},h{n},2024-01-04 10:00,Slept well.,{'letter' if n < 25 else 'memo'}" for n in range(40)]
    file = write(tmp_path / "notes.csv", lines, "subject_id,hadm_id,charted_at,text,kind")
    source = {"path": file, "columns": {"note_type": "kind"}, "map": {"discharge": ["Letter"]}}
    settings = {"cohort": tmp_path / "cohort", "source": source}
    with pytest.raises(RequestError, match=r"none of 15 of 40 rows.*15 × 'memo'"):
        write_notes(NotesSettings(**settings), tmp_path / "notes")
    settings["source"] = source | {"max_unmapped": 0.5}
    write_notes(NotesSettings(**settings), tmp_path / "notes")
    flow = pd.read_csv(tmp_path / "notes/flow.csv").set_index("step")["notes"]
    assert flow["left out: of a type that the map of the source does not have: 'memo'"] == 15
    assert len(pd.read_parquet(tmp_path / "notes/notes.parquet")) == 25


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"minimum_age": 0}, "either `mimic`, a folder, or `source`.*neither"),
        ({"source": {"path": "stays.csv"}}, "minimum_age: the source has no ages"),
        ({"source": {"path": "stays.txt"}, "minimum_age": 0}, r"path: expected a \.csv"),
        ({"source": {"path": "stays.csv"}, "minimum_age": 0, "data_end": "per-subject"}, "followed_until"),
        ({"source": {"path": "stays.csv"}, "rules": "huang2019"}, "rules: expected"),
        (
            {"source": {"path": "stays.csv", "map": {"planned": ["e"]}}, "minimum_age": 0},
            r"map\.planned: without effect",
        ),
        (
            {"source": {"path": "stays.csv", "columns": {"admission_type": "k"}}, "minimum_age": 0},
            "map: expected values",
        ),
        ({"source": {"path": "stays.csv", "zone": "Mars/Base"}, "minimum_age": 0}, "time zone"),
        ({"source": {"path": "stays.csv", "map": {"planned": ["/(/"]}}, "minimum_age": 0}, "regular expression"),
        (
            {
                "source": {
                    "path": "stays.csv",
                    "columns": {"admission_type": "k"},
                    "map": {"planned": ["A"], "unplanned": [" a"]},
                },
                "minimum_age": 0,
            },
            "one meaning of a value, found 'a' in unplanned and in planned",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, match):
    with pytest.raises(ValidationError, match=match):
        CohortSettings(**settings)


def test_a_value_that_two_regular_expressions_match_is_refused(tmp_path):
    source = {
        "path": write(tmp_path / "stays.csv", ["1,a,2024-01-01,2024-01-05,elective emergency"], DEFAULT + ",kind")
    }
    source |= {"columns": {"admission_type": "kind"}, "map": {"planned": ["/elective/"], "unplanned": ["/emergency/"]}}
    with pytest.raises(RequestError, match="planned and unplanned match"):
        cohort_of(tmp_path, source=source)
