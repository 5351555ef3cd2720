"""Notes of stays: their selection and order, and the same files after a kill."""

import csv
import json
import signal
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hospital_tables import COLUMNS, write_table
from pydantic import ValidationError

from bertrelay.cache import Cache
from bertrelay.errors import RequestError, WorkError
from bertrelay.settings import InputFile
from bertrelay.stage import StageContext
from domain.clinical import notes
from domain.clinical.settings import NotesSettings
from domain.clinical.sources import mimic_tables as mimic

ADMITTED = datetime(2101, 1, 1, 10)


def note(text, hadm_id=100, day="2101-01-02", time="", category="Nursing", **others):
    written = {"chartdate": day, "charttime": time, "category": category, "description": "Report", "text": text}
    return {"subject_id": 1, "hadm_id": hadm_id, **written, **others}


def report(text, day="2101-01-10", **others):
    return note(text, day=day, category="Discharge summary", **others)


def addendum(text, day="2101-01-10", **others):
    return report(text, day, description="Addendum", **others)


def note_of_iv(text, kind="DS", time="2101-01-10 09:00:00", stored=None):
    times = {"charttime": time, "storetime": time if stored is None else stored}
    return {"subject_id": 1, "hadm_id": 100, "note_type": kind, "text": text, **times}


@pytest.fixture
def hospital(tmp_path):
    """Writes tables and a cohort, by default of one stay, and returns the settings of the notes' stage."""

    def make(rows, stays=None, members=None, admissions=None, table="NOTEEVENTS", **settings):
        folder = tmp_path / "mimic"
        write_table(folder, table, rows)
        if admissions is not None:
            write_table(folder, "ADMISSIONS", [{"hadm_id": hadm_id} for hadm_id in admissions])
        write_cohort(tmp_path / "cohort", stays or [stay()], members)
        return NotesSettings(mimic=str(folder), cohort=str(tmp_path / "cohort"), **{"max_rejects": 0, **settings})

    return make


def stay(hadm_id="100", subject="1", hours=240.0, split="train", admitted=ADMITTED, next_at=None):
    return {
        "subject_id": subject,
        "hadm_id": hadm_id,
        "admitted_at": admitted,
        "discharged_at": admitted + timedelta(hours=hours),
        "next_stay_at": next_at,
        "split": split,
    }


def write_cohort(folder, stays, members=None):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(stays), folder / "cohort.parquet")
    members = members or {one["hadm_id"]: one["hadm_id"] for one in stays}
    columns = {"hadm_id": list(members), "stay_hadm_id": list(members.values())}
    pq.write_table(pa.table(columns), folder / "members.parquet")


def read(context, name="notes.parquet"):
    return pq.read_table(context.output / name).to_pylist()


def texts(context):
    return {row["hadm_id"]: row["text"].split("\n\n") for row in read(context)}


def flow(context):
    with (context.output / "flow.csv").open() as file:
        return {row["step"]: row["notes"] or row["stays"] for row in csv.DictReader(file)}


def left_out(metrics):
    return {name.partition("/")[2]: count for name, count in metrics.items() if name.startswith("left_out/")}


ORDERS = [  # rows, members of the stay, and the text in its order
    ([addendum("Addendum.", "2101-01-12"), report("Report.")], None, ["Report.", "Addendum."]),
    ([addendum("Addendum.", "2101-01-08"), report("Report.")], None, ["Report.", "Addendum."]),
    ([addendum("Later.", "2101-01-12"), addendum("Sooner.")], None, ["Sooner.", "Later."]),
    (
        [
            report("Second.", "2101-01-12"),
            addendum("Of the second, later.", "2101-01-15"),
            addendum("Of the first.", "2101-01-11"),
            report("First."),
            addendum("Of the second.", "2101-01-12"),
        ],
        None,
        ["First.", "Of the first.", "Second.", "Of the second.", "Of the second, later."],
    ),
    (
        [
            addendum("Of the first.", "2101-01-20", hadm_id=100),
            report("First.", "2101-01-10", hadm_id=100),
            report("Second.", "2101-01-15", hadm_id=101),
        ],
        {"100": "100", "101": "100"},
        ["First.", "Of the first.", "Second."],
    ),
]


@pytest.mark.parametrize(("rows", "members", "order"), ORDERS)
def test_reports_are_in_time_order_each_followed_by_its_addenda(hospital, context, rows, members, order):
    notes.run(hospital(rows, members=members, after_discharge_hours=240), context)
    assert texts(context) == {"100": order}
    assert read(context)[0]["n_notes"] == len(order)


@pytest.mark.parametrize("rows_of_block", [2048, 3])
def test_an_addendum_belongs_to_the_same_report_wherever_blocks_end(hospital, context, monkeypatch, rows_of_block):
    monkeypatch.setattr(mimic, "BLOCK_ROWS", rows_of_block)
    times = {"A.": "2101-01-08 00:00:00", "B.": "2101-01-10 00:00:00", "Of another.": "2101-01-10 10:00:00"}
    rows = [note_of_iv(text, time=time) | {"hadm_id": 100 + len(text) // 3} for text, time in times.items()]
    rows.append(note_of_iv("Addendum of B.", "AD", "2101-01-10 00:00:00"))
    notes.run(hospital(rows, **OF_IV_TABLE), context)
    assert texts(context) == {"100": ["A.", "B.", "Addendum of B."]}


def test_an_id_that_is_text_in_one_table_and_a_number_in_another_is_the_same(hospital, context):
    settings = hospital([report("Report.", hadm_id=" 100.0 ", subject_id="1.0")])
    cohort = stay() | {"hadm_id": 100, "subject_id": 1.0}
    write_cohort(context.output.parent / "cohort", [cohort], {100.0: 100})  # of a user's own
    notes.run(settings, context)
    assert [(row["hadm_id"], row["subject_id"]) for row in read(context)] == [("100", "1")]


def test_the_text_of_a_stay_is_its_cleaned_notes(hospital, context):
    first = 'He said "no".\n\nAllergies:\nPenicillin on [**2101-1-2**]\n'
    notes.run(hospital([report(first), addendum("PLAN: rest, T 98.6")]), context)
    (row,) = read(context)
    assert row["text"] == 'He said "no".\n\nAllergies:\nPenicillin on [DATE]\n\nPLAN: rest, T 98.6'


def test_radiology_reports_are_before_the_summary_where_they_are_asked_for(hospital, context):
    rows = [report("Report."), note("Second.", day="2101-01-05", category="Radiology"), note("Nurse.")]
    rows += [note("First.", time="2101-01-03 09:00:00", category="Radiology")]
    notes.run(hospital(rows, radiology=True), context)
    assert texts(context) == {"100": ["First.", "Second.", "Report."]}


# A note's text is its expected result; the discharge is at 2101-01-11 10:00, hour 48 at 2101-01-03 10:00

KEPT, NO_TIME = "Kept.", "without time and date"
AFTER, RETURNED = "written too long after the discharge", "written after the next admission began"
LATE, STORED = "charted after the cut-off", "charted before the cut-off and stored after it"
EARLY, OF_IV_TABLE = {"input": "early"}, {"table": "note/discharge"}
RETURNS = {"stays": [stay(next_at=datetime(2101, 1, 12, 8))]}
AROUND_DISCHARGE = [report(KEPT, "2101-01-11"), addendum(KEPT, "2101-01-13"), addendum(AFTER, "2101-01-14")]
AROUND_RETURN = [report(KEPT, "2101-01-11"), addendum(RETURNED, "2101-01-20"), report(NO_TIME, "")]
AROUND_RETURN += [report(RETURNED, "2101-01-12")]  # on that day, but at an hour that nobody knows
SELECTIONS = {  # by claim: notes, settings, and of those that are kept the counts of only a day and of no store time
    "what has no place in a discharge text": (
        [
            note(KEPT, category="discharge Summary "),
            report("marked as an error", iserror="1"),
            report("marked as an error", iserror="1.0"),
            report("without a HADM_ID", hadm_id=""),
            note("no discharge summary"),
            note("no discharge summary", category="Nursing/other"),
            report("of an admission that the table of admissions does not have", hadm_id=999),
            report("of an admission outside the cohort", hadm_id=200),
            report("of another subject than the admission", subject_id=7),
        ],
        {"admissions": [100, 200]},
        (1, 1),
    ),
    "48 hours after the discharge, the day of hour 48 counts whole": (AROUND_DISCHARGE, {}, (2, 2)),
    "0 hours are all of the day of discharge": (
        [report(KEPT, "2101-01-11"), addendum(AFTER, "2101-01-12")],
        {"after_discharge_hours": 0},
        (1, 1),
    ),
    "a time counts to the second": (
        [
            note_of_iv(KEPT, time="2101-01-11 09:00:00", stored="2101-01-11 10:00:00"),
            note_of_iv(AFTER, "AD", time="2101-01-11 09:00:00", stored="2101-01-11 10:00:01"),
            note_of_iv(AFTER, "AD", time="2101-01-11 10:00:01", stored="2101-01-10 10:00:00"),
            note_of_iv(KEPT, "AD", time="2101-01-11 00:00:00", stored=""),
            note_of_iv(AFTER, "AD", time="2101-01-11 00:00:00", stored="2101-01-12 08:00:00"),
        ],
        {"after_discharge_hours": 0, **OF_IV_TABLE},
        (1, 1),
    ),
    "text from the next admission on is never read": (AROUND_RETURN, RETURNS, (1, 1)),
    "nor where any time after the discharge is read": (
        AROUND_RETURN,
        {"after_discharge_hours": 1e9, **RETURNS},
        (1, 1),
    ),
    "the next admission begins at its second": (
        [
            note_of_iv(KEPT, time="2101-01-11 12:00:00", stored="2101-01-12 07:59:59"),
            note_of_iv(RETURNED, "AD", time="2101-01-11 12:00:00", stored="2101-01-12 08:00:00"),
        ],
        {**RETURNS, **OF_IV_TABLE},
        (0, 0),
    ),
    "early is what was charted before hour 48": (
        [
            note(KEPT, time="2101-01-01 08:00:00"),
            note(KEPT, time="2101-01-03 09:59:59"),
            note(LATE, time="2101-01-03 10:00:00"),
            note("a discharge summary", time="2101-01-02 09:00:00", category="Discharge summary"),
            note(NO_TIME, day=""),
        ],
        EARLY,
        (0, 2),
    ),
    "a day alone counts as its end": (
        [
            note(LATE, day="2101-01-03"),
            note(KEPT, day="2101-01-02"),
            note(KEPT, day="2101-01-03", time="2101-01-03 00:00:00"),
        ],
        EARLY,
        (1, 2),
    ),
    "nor is early what was charted in time and stored later": (
        [
            *(note(STORED, time=f"2101-01-02 {hour}:30:00", storetime="2101-01-03 10:00:00") for hour in range(10, 24)),
            note(KEPT, time="2101-01-02 09:00:00", storetime="2101-01-03 09:59:59"),
            note(KEPT, time="2101-01-02 10:00:00"),
            note(LATE, time="2101-01-03 10:00:00", storetime="2101-01-02 10:00:00"),
            note(KEPT, day="2101-01-03", storetime="2101-01-03 09:00:00"),
            note(STORED, day="2101-01-02", storetime="2101-01-03 11:00:00"),
        ],
        EARLY,
        (0, 1),
    ),
}


@pytest.mark.parametrize(("rows", "options", "facts"), SELECTIONS.values(), ids=SELECTIONS)
def test_each_note_is_kept_or_left_out_with_its_reason(hospital, context, rows, options, facts):
    metrics = notes.run(hospital(rows, **options), context)
    expected = Counter(row["text"] for row in rows)
    assert (metrics["rows"], metrics["notes"], metrics["stays"]) == (len(rows), expected.pop(KEPT), 1)
    assert left_out(metrics) == expected
    steps = flow(context)
    assert (steps["rows that were read"], steps["kept"]) == (f"{len(rows)}", f"{metrics['notes']:.0f}")
    assert sum(int(count) for step, count in steps.items() if step.startswith("left out")) == expected.total()
    assert (steps["kept, dated by the day alone"], steps["kept, without a store time"]) == tuple(map(str, facts))


def test_early_notes_are_of_stays_still_open_at_the_cut_off_in_every_split(hospital, context):
    stays, rows = [], []
    for number, (split, hours) in enumerate([(s, h) for s in ("train", "test") for h in (47.9, 48.0, 48.1, 71, 73)]):
        stays.append(stay(str(number), "1", hours, split))
        rows.append(note("Early.", hadm_id=number, time="2101-01-01 12:00:00"))
    metrics = notes.run(hospital(rows, stays, **EARLY), context)
    assert set(texts(context)) == {"2", "3", "4", "7", "8", "9"}
    assert left_out(metrics) == {"of a stay that ended before the cut-off": 4}
    assert flow(context)["of the cohort, open at the cut-off"] == "6"
    assert (metrics["stays/train"], metrics["stays/test"]) == (3, 3)


def test_of_who_dies_there_are_early_notes_only_where_death_came_later(hospital, context, tmp_path):
    hours = {"100": (240, None), "200": (60, 60), "300": (40, 40), "400": (200, 40)}  # of 400 papers came days later
    stays = [
        stay(name, name[0], ends) | {"died_at": death and ADMITTED + timedelta(hours=death)}
        for name, (ends, death) in hours.items()
    ]
    rows = [note(f"Of {name}.", name, time="2101-01-02 11:00:00", subject_id=name[0]) for name in hours]
    rows.append(report("He died.", hadm_id="200", subject_id=2))
    settings = hospital(rows, stays[:1], dict(zip(hours, hours, strict=True)), **EARLY)
    pq.write_table(pa.Table.from_pylist(stays), tmp_path / "cohort/stays.parquet")
    metrics = notes.run(settings.model_copy(update={"stays": "all"}), context)
    assert texts(context) == {"100": ["Of 100."], "200": ["Of 200."]}
    assert left_out(metrics) == {"of a stay that ended before the cut-off": 2, "a discharge summary": 1}
    about = json.loads((context.output / "notes.json").read_text())
    assert (about["input"], about["stays"]) == ("early", "all") and "first 48 hours" in about["cut"]


def test_radiology_of_mimic_iv_is_a_table_of_its_own(hospital, context, tmp_path):
    settings = {**OF_IV_TABLE, "radiology": True}
    with pytest.raises(RequestError, match=r"radiology: there is no table radiology\.csv"):
        notes.run(hospital([note_of_iv("Report.")], **settings), context)
    write_table(tmp_path / "mimic", "note/radiology", [note_of_iv("Chest.", "RR", "2101-01-02 00:00:00")])
    notes.run(hospital([note_of_iv("Report.")], **settings), context)
    assert texts(context) == {"100": ["Chest.", "Report."]}


def test_mimic_iv_has_no_early_notes_and_that_is_reported(hospital, context):
    error_text = r'input: .*MIMIC-IV has discharge summaries.*Set input = "discharge"'
    settings = hospital([note_of_iv("Report.")], **OF_IV_TABLE)
    with pytest.raises(ValidationError, match=error_text):
        NotesSettings(mimic=settings.mimic, cohort="@cohort", **EARLY)
    of_a_stage = InputFile(context.output.parent / "mimic")  # whose tables are not known before it ran
    with pytest.raises(RequestError, match=error_text):
        notes.run(NotesSettings(mimic=of_a_stage, cohort=settings.cohort, **EARLY), context)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (None, r"cohort: expected a folder with cohort\.parquet and members\.parquet"),
        (
            lambda table: pa.concat_tables([table, table]),
            "expected each hadm_id once, found that of row 1 again in row 2",
        ),
        (
            lambda table: table.replace_schema_metadata({"bertrelay.clinical": "0"}),
            "expected format 1 .* found 0; another",
        ),
        (
            lambda table: table.set_column(1, "hadm_id", pa.array([1.5])),
            "expected ids of .*found an id that is neither text nor a whole number",
        ),
        (
            lambda table: table.append_column("readmitted", pa.array(["no"])),
            "cohort: expected readmitted in .*found 1 of 1 otherwise: 1 × 'no'",
        ),
        (lambda table: table.slice(0, 0), r"cohort: expected stays in .*cohort\.parquet, found none"),
        (lambda table: table.drop_columns("next_stay_at"), "found none named next_stay_at"),
    ],
)
def test_a_folder_that_is_no_cohort_is_reported(hospital, context, tmp_path, spoil, message):
    settings, file = hospital([report("A.")]), tmp_path / "cohort/cohort.parquet"
    if spoil is None:
        file.with_name("members.parquet").unlink()
    else:
        pq.write_table(spoil(pq.read_table(file)), file)
    with pytest.raises(RequestError, match=message):
        notes.run(settings, context)


def test_stays_whose_notes_are_rules_alone_have_no_row(hospital, context):
    rows = [report("------"), report(" \n"), report(" NA"), report("A.", hadm_id=2)]
    metrics = notes.run(hospital(rows, [stay(), stay("2")]), context)
    assert texts(context) == {"2": ["A."]}
    assert left_out(metrics) == {"without text": 3} and metrics["stays_without_text"] == 1
    assert flow(context)["left without text"] == "1"
    with pytest.raises(RequestError, match=r"no note belongs to the cohort\. Of 1 rows.*: 1 × without text"):
        notes.run(hospital([report("------")]), other(context, "alone"))


def test_a_row_with_a_wrong_date_is_listed_by_its_number_and_too_many_stop_the_stage(hospital, context):
    rows = [report("A secret."), report("B secret.", day="01/10/2101")]
    with pytest.raises(WorkError, match=r"1 of 2 records cannot be used.*chartdate is no date YYYY-MM-DD"):
        notes.run(hospital(rows), context)
    settings = hospital(rows, max_rejects=0.5)
    metrics = notes.run(settings, context)
    (line,) = (context.output / "rejects.jsonl").read_text().splitlines()
    assert json.loads(line)["line"] == 3
    assert (metrics["rows"], metrics["notes"]) == (2, 1)
    assert flow(context)["left out: cannot be used (rejects.jsonl)"] == "1"


# Who is left without text. Summaries are dated by their day alone; the discharge is at 2101-01-11 10:00

BACK = {  # by stay: when its summary is dated, and when the subject is back
    "1": ("2101-01-11", datetime(2101, 1, 11, 23)),
    "2": ("2101-01-12", datetime(2101, 1, 12, 8)),
    "3": ("2101-01-12", datetime(2101, 1, 30)),
    "4": ("2101-01-11", None),
    "5": ("2101-01-12", None),
    "6": ("2101-01-11", datetime(2101, 1, 30)),
    "7": ("2101-01-14", None),
}


@pytest.mark.promise("Notes can be cut so that who has a text does not depend on the outcome", about="counted")
@pytest.mark.parametrize("cut", ["hours-or-return", "discharge"])
def test_who_has_a_text_depends_on_the_return_but_for_the_cut_at_the_discharge(hospital, context, capsys, cut):
    stays = [stay(n, n, next_at=at, split="test") | {"readmitted": at is not None} for n, (_, at) in BACK.items()]
    rows = [report(f"Of {n}.", day, hadm_id=n, subject_id=n) for n, (day, _) in BACK.items()]
    metrics = notes.run(hospital(rows, stays, cut=cut), context)
    with (context.output / "flow.csv").open() as file:
        steps = {row["step"]: row for row in csv.DictReader(file)}
    without = steps["left without text"]
    if cut == "discharge":
        assert set(texts(context)) == {"1", "4", "6"}  # by the date of the summary alone
        assert left_out(metrics) == {"written too long after the discharge": 4}
        assert (without["stays"], without["stays_readmitted"]) == ("4", "2")
        assert steps["left out: written too long after the discharge"]["notes_readmitted"] == "2"
        assert steps["kept, dated by the day alone, on which the next admission began"]["notes"] == "1"
        assert "the same cut for all stays" in (logged := capsys.readouterr().err)
        assert "4 of 7 stays are left without text, 2 of them readmitted (50.0%, of all stays 57.1%)" in logged
        about = json.loads((context.output / "notes.json").read_text())
        assert about["cost"] == "<10 of <10 stays are left without text"  # as reports show it
    else:
        assert set(texts(context)) == {"3", "4", "5", "6"}
        assert (without["stays"], without["stays_readmitted"]) == ("3", "2")
        assert steps["left out: written after the next admission began"]["notes_readmitted"] == "2"
        assert steps["left without text, test"]["stays_readmitted"] == "2"
        assert "3 of 7 stays are left without text, 2 of them readmitted (66.7%, of all stays 57.1%)" in (
            capsys.readouterr().err
        )


def test_the_cut_at_the_discharge_reads_nothing_of_a_stay_that_overlaps(hospital, context):
    stays = [stay(next_at=ADMITTED + timedelta(days=5))]  # as where overlapping stays are separate
    notes.run(
        hospital([report("Before.", "2101-01-05"), report("After.", "2101-01-08")], stays, cut="discharge"), context
    )
    assert texts(context) == {"100": ["Before."]}


def test_the_cut_at_the_discharge_has_no_hours(hospital):
    with pytest.raises(ValidationError, match="after_discharge_hours: without effect"):
        hospital([report("A.")], cut="discharge", after_discharge_hours=24)


@pytest.mark.parametrize("rows_of_block", [2048, 3])
def test_equal_notes_of_one_admission_kind_and_time_count_once(hospital, context, capsys, monkeypatch, rows_of_block):
    monkeypatch.setattr(mimic, "BLOCK_ROWS", rows_of_block)
    rows = [report("Report."), addendum("Report."), report("Report.", "2101-01-09"), report("Other.")]
    once = notes.run(hospital(rows), context)
    expected = read(context)
    assert "copies" not in capsys.readouterr().err
    header = {name.lower(): name for name in COLUMNS["NOTEEVENTS"]}
    spaced = [row | {"text": f" {row['text']} \n"} for row in rows]
    twice = notes.run(hospital([*rows, header, *spaced], max_rejects=0.2), other(context, "twice"))
    assert read(other(context, "twice")) == expected
    assert twice["notes"] == once["notes"] == 4 and left_out(twice) == {"a copy of another note": 4}
    logged = capsys.readouterr().err
    assert (
        "4 of 8 notes are copies of an earlier one, of one admission, kind and time, and count once; so many" in logged
    )
    assert "1 × the header again" in logged


def test_notes_dated_far_from_their_stay_are_counted(hospital, context, capsys):
    days = ["2100-12-01", "2100-12-02", "2101-01-10", "2101-02-09", "2101-02-11"]
    notes.run(hospital([report(f"Of {day}.", day) for day in days]), context)
    steps = flow(context)
    assert steps["dated over 30 days before the admission or after the discharge"] == "2"
    assert steps["dated over 30 days before the admission or after the discharge, kept"] == "1"
    assert "2 notes are dated over 30 days before the admission or after the discharge, 1 of them kept" in (
        capsys.readouterr().err
    )


@pytest.fixture
def many(hospital, monkeypatch):
    """Sixty stays whose notes are all over a table of many blocks."""
    monkeypatch.setattr(mimic, "BLOCK_ROWS", 20)
    monkeypatch.setattr(notes, "SHARD_CHARACTERS", 4096)
    stays = [stay(str(n), str(n % 40), split=("train", "validation", "test")[n % 3]) for n in range(60)]
    rows = [report(f"Report {n} of many words." * 9, hadm_id=n % 60, subject_id=n % 60 % 40) for n in range(240)]
    rows += [report("Rejected.", day="no day", hadm_id=3), report("Outside.", hadm_id=77)] * 3
    return hospital(rows[::-1], stays, max_rejects=0.1)


def other(context, name):
    """A context with the folders of another run."""
    folder = context.output.parent / name
    for inner in ("output", "cache"):
        (folder / inner).mkdir(parents=True, exist_ok=True)
    return StageContext(folder / "output", Cache(folder / "cache"))


KILLED = """
import os, signal, sys
from pathlib import Path
from domain.clinical import NotesSettings, notes, write_notes
from domain.clinical.sources import mimic_tables as mimic
from domain.clinical.note_store import NoteStore

mimic.BLOCK_ROWS, notes.SHARD_CHARACTERS = 20, 4096
owner, calls = {"sort": NoteStore, "_write_shard": notes}[sys.argv[2]], []
work = getattr(owner, sys.argv[2])

def dying(*arguments):
    calls.append(1)
    if len(calls) == {"sort": 1, "_write_shard": 4}[sys.argv[2]]:
        os.kill(os.getpid(), signal.SIGKILL)
    return work(*arguments)

setattr(owner, sys.argv[2], dying)
write_notes(NotesSettings.model_validate_json(sys.argv[1]), Path(sys.argv[3]))
"""


@pytest.mark.parametrize(("killed", "shards"), [("sort", 0), ("_write_shard", 3)])
def test_a_killed_run_resumes_to_the_same_files(many, context, monkeypatch, killed, shards):
    command = [sys.executable, "-c", KILLED, many.model_dump_json(), killed, context.output]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len(list(context.work.glob("notes.parquet.partial/[0-9]*.parquet"))) == shards
    computed, whole, text_of = [], other(context, "whole"), notes.text_of
    with monkeypatch.context() as patch:
        patch.setattr(notes, "text_of", lambda stay_notes: computed.append(1) or text_of(stay_notes))
        resumed = notes.write_notes(many, context.output)
    assert not context.work.exists()
    assert (len(computed) < 60) == (shards > 0)
    assert resumed == notes.run(many, whole)
    assert read(context) == read(whole) and [row["hadm_id"] for row in read(context)] == [str(n) for n in range(60)]
    for name in ("notes.json", "flow.csv", "tokens.txt", "rejects.jsonl"):
        assert (context.output / name).read_bytes() == (whole.output / name).read_bytes()


def test_texts_of_a_killed_run_with_other_settings_are_not_taken(hospital, context, monkeypatch):
    rows = [report("In time."), report("Late.", day="2101-01-12")]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(notes, "atomic_write", lambda *_: signal.raise_signal(signal.SIGINT))
        notes.write_notes(hospital(rows), context.output)
    assert list(context.work.glob("notes.parquet.partial/*.parquet"))
    notes.write_notes(hospital(rows, after_discharge_hours=0), context.output)
    assert texts(context) == {"100": ["In time."]}
