"""Cohorts of hospitals so small that their labels can be found by hand."""

import csv
from datetime import date

import numpy as np
import pandas as pd
import pytest
from hospital_tables import COLUMNS as TABLE_COLUMNS
from hospital_tables import day, patient, stay, write_hospital
from pydantic import ValidationError

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from domain.clinical.cohort import run
from domain.clinical.settings import CohortSettings
from domain.clinical.sources.mimic import read_codes
from domain.clinical.sources.mimic_tables import read_table
from domain.clinical.sources.rows import without
from domain.sampling import split_of

OF_EVERY_STAY = ["subject_id", "hadm_id", "admitted_at", "discharged_at", "next_stay_at"]
COLUMNS_OF_ADMISSIONS = TABLE_COLUMNS["ADMISSIONS"]
COLUMNS = [*OF_EVERY_STAY, "next_admission_at", "gap_days", "readmitted", "split"]
STAY_COLUMNS = [*OF_EVERY_STAY, "died_at", "died_in_hospital", "length_of_stay_days", "split"]


@pytest.fixture
def cohort_of(tmp_path, context):
    """The cohort of a hospital, by hadm_id."""

    def make(stays, patients=None, version="III", diagnoses=(), **settings):
        folder = write_hospital(tmp_path / "mimic", stays, patients, diagnoses, version)
        run(CohortSettings(mimic=str(folder), **{"max_rejects": 1, **settings}), context)
        return written(context)

    return make


def written(context, name="cohort"):
    table = pd.read_parquet(context.output / f"{name}.parquet")
    return table.set_index("hadm_id", drop=False)


def flow(context):
    with (context.output / "flow.csv").open() as file:
        return {row["step"]: (int(row["admissions"]), int(row["subjects"])) for row in csv.DictReader(file)}


def left_out(context):
    """Reads the counts of stays that a step left out, and of those readmitted, as text; only of steps with any."""
    with (context.output / "flow.csv").open() as file:
        rows = [(row["step"], row["left_out"], row["left_out_readmitted"]) for row in csv.DictReader(file)]
    return {step: (count, returned) for step, count, returned in rows if count not in ("", "0")}


def labels(cohort):
    return dict(cohort["readmitted"])


def test_the_cohort_has_the_columns_and_types_it_promises(cohort_of):
    cohort = cohort_of([stay(1, 11, 0, 4), stay(1, 12, 10, 12)])
    assert list(cohort.columns) == COLUMNS
    row = cohort.loc["11"]
    assert (row["subject_id"], str(row["admitted_at"]), str(row["discharged_at"])) == ("1", day(0), day(4))
    assert (str(row["next_admission_at"]), row["gap_days"], bool(row["readmitted"])) == (day(10), 6.0, True)
    last = cohort.loc["12"]
    assert pd.isna(last["next_admission_at"]) and pd.isna(last["gap_days"]) and not last["readmitted"]


TRANSFER = [stay(1, 11, 0, 4), stay(1, 12, 4 + 5 / 24, 8)]
OVERLAP = [stay(1, 11, 0, 4), stay(1, 12, 2, 6)]
WITHIN = {"11": True, "12": False, "13": False, "21": False}
OBSERVED = [
    stay(1, 11, 0, 4, "EW EMER."),
    stay(1, 12, 10, 11, "EU OBSERVATION"),
    stay(2, 21, 0, 1, "DIRECT OBSERVATION"),
    stay(2, 22, 1, 5, "URGENT"),  # admitted from observation
    stay(2, 23, 10, 12, "OBSERVATION ADMIT"),
]
SURGERY = [stay(1, 11, 0, 4, "EW EMER."), stay(1, 12, 10, 12, "SURGICAL SAME DAY ADMISSION")]
PLANNED = [stay(1, 11, 0, 4), stay(1, 12, 10, 12, "ELECTIVE"), stay(1, 13, 50, 52, "urgent ")]
SOON = [stay(1, 11, 0, 4), stay(1, 12, 10, 12, "ELECTIVE"), stay(1, 13, 20, 22)]
HUANG, IV = {"rules": "huang2019"}, {"version": "IV"}
CASES = [  # each with the settings and who of the cohort came back; test_rules.py has the rules as a whole
    (TRANSFER, {"window_days": 0.2}, {"11": False, "12": False}),
    (TRANSFER, {"transfer_hours": 6}, {"11": False}),
    (OVERLAP, {"overlapping_stays": "separate"}, {"11": False, "12": False}),
    ([*OVERLAP, stay(1, 13, 5, 6), stay(2, 21, 0, 0)], {"overlapping_stays": "separate"}, WITHIN),
    ([stay(1, 11, 0, 4), stay(1, 12, 10, 12, flag="1.0")], {}, {"11": True}),  # a death that only the flag shows
    (OBSERVED, IV, {"11": True, "12": False, "21": True, "23": False}),
    (OBSERVED, IV | {"observation_stays": "excluded"}, {"11": False, "21": True, "23": False}),
    (SURGERY, IV, {"11": False, "12": False}),
    (SURGERY, HUANG | IV, {"11": True, "12": False}),
    (SOON, {}, {"11": True, "12": True, "13": False}),
    (SOON, {"returns": "next"}, {"11": False, "12": True, "13": False}),  # a planned stay ends the window
    (PLANNED, {"planned_types": ["Urgent"]}, {"11": True, "12": False, "13": False}),
]


@pytest.mark.parametrize(("stays", "settings", "expected"), CASES)
def test_who_came_back_by_each_setting(cohort_of, stays, settings, expected):
    assert labels(cohort_of(stays, **settings)) == expected


def test_a_death_after_discharge_is_kept_excluded_or_an_outcome(cohort_of, context):
    stays = [stay(1, 11, 0, 4), stay(2, 21, 0, 4), stay(2, 22, 10, 11), stay(3, 31, 0, 4), stay(4, 41, 0, 4.5)]
    dead = [
        patient(1, dod=day(14)),
        patient(2, dod=day(14)),  # came back before
        patient(3, dod=day(35)),
        patient(4, dod=day(4)),  # midnight of the day of discharge
    ]
    assert set(cohort_of(stays, dead)["hadm_id"]) == {"11", "21", "22", "31", "41"}
    assert set(cohort_of(stays, dead, deaths_in_window="excluded")["hadm_id"]) == {"21", "31"}
    assert flow(context)["of these, died within 30 days"] == (4, 3)
    assert flow(context)["of these, died within 30 days and not readmitted"] == (3, 3)
    expected = {"11": True, "21": True, "22": True, "31": False, "41": True}
    assert labels(cohort_of(stays, dead, deaths_in_window="counted")) == expected
    assert flow(context)["of these, readmitted or dead within the window"] == (4, 3)


ENDS = {
    "acute-care-transfer": "of these, transferred to another acute care facility",
    "against-medical-advice": "of these, discharged against medical advice",
    "hospice": "of these, discharged to hospice",
}
LOCATIONS = {
    "III": {
        "acute-care-transfer": ["SHORT TERM HOSPITAL", "DISC-TRAN CANCER/CHLDRN H"],
        "against-medical-advice": ["LEFT AGAINST MEDICAL ADVI"],
        "hospice": ["HOSPICE-HOME", "HOSPICE-MEDICAL FACILITY"],
        "": ["HOME", "HOME HEALTH CARE", "SNF", "REHAB/DISTINCT PART HOSP", "LONG TERM CARE HOSPITAL", "ICF"],
    },
    "IV": {
        "acute-care-transfer": ["ACUTE HOSPITAL "],
        "against-medical-advice": ["AGAINST ADVICE"],
        "hospice": ["Hospice"],
        "": ["HOME", "SKILLED NURSING FACILITY", "REHAB", "CHRONIC/LONG TERM ACUTE CARE", "PSYCH FACILITY", ""],
    },
}


@pytest.mark.parametrize("version", ["III", "IV"])
def test_discharges_in_the_terms_of_cms_are_left_out_where_asked_for(cohort_of, context, version):
    positions = [(end, position) for end, table in LOCATIONS[version].items() for position in table]
    stays = [stay(n, n, 0, 4, to=position) for n, (_, position) in enumerate(positions)]
    for excluded in (["acute-care-transfer", "against-medical-advice"], ["hospice"]):
        remaining = {str(n) for n, (end, _) in enumerate(positions) if end not in excluded}
        assert set(cohort_of(stays, version=version, excluded_discharges=excluded)["hadm_id"]) == remaining
        for end, step in ENDS.items():
            assert flow(context)[step][0] == len(LOCATIONS[version][end])
        assert flow(context)[ENDS[excluded[-1]].replace("of these,", "not")][0] == len(remaining)


def test_a_joined_stay_ends_where_its_last_discharge_leads(cohort_of, context):
    stays = [stay(1, 11, 0, 4, to="SHORT TERM HOSPITAL"), stay(1, 12, 4, 6, to="HOME")]
    stays += [stay(2, 21, 0, 20, to="HOSPICE-HOME"), stay(2, 22, 2, 3, to="SHORT TERM HOSPITAL")]
    cohort_of(stays)
    assert [flow(context)[step][0] for step in ENDS.values()] == [0, 0, 1]


def test_the_next_stay_is_the_next_one_planned_or_not_and_seen_or_not(cohort_of):
    stays = [
        stay(1, 11, 0, 4, "EW EMER."),
        stay(1, 12, 5, 6, "EU OBSERVATION"),
        stay(1, 13, 10, 12, "ELECTIVE"),
        stay(1, 14, 12, 14, "URGENT"),  # continues it
        stay(1, 15, 20, 22, "URGENT"),
    ]
    for observed in ("kept", "excluded"):
        cohort = cohort_of(stays, version="IV", observation_stays=observed)
        assert str(cohort.loc["11", "next_stay_at"]) == day(5)
        assert str(cohort.loc["13", "next_stay_at"]) == day(20)
        assert pd.isna(cohort.loc["15", "next_stay_at"])
    assert str(cohort.loc["11", "next_admission_at"]) == day(20)
    cohort = cohort_of(stays, version="IV", rules="huang2019")
    assert str(cohort.loc["13", "next_stay_at"]) == day(12)


def test_members_are_the_admissions_of_each_stay(cohort_of, context):
    cohort = cohort_of([stay(1, 11, 0, 4), stay(1, 12, 4, 6), stay(1, 13, 40, 41)])
    assert cohort.loc["11", "gap_days"] == 34 and str(cohort.loc["11", "discharged_at"]) == day(6)
    assert dict(written(context, "members")["stay_hadm_id"]) == {"11": "11", "12": "11", "13": "13"}
    assert flow(context)["joined with those they overlap or touch"] == (2, 1)
    cohort = cohort_of(OVERLAP, rules="huang2019")
    assert cohort.loc["11", "gap_days"] == -2 and labels(cohort) == {"11": True, "12": False}
    assert dict(written(context, "members")["stay_hadm_id"]) == {"11": "11", "12": "12"}


OVER_89 = [patient(1, born="1850-01-01"), patient(2, born="2060-01-02"), patient(3, born="2059-06-01")]
AGES = [  # version, patients and ages at admission; those over 89 are born 300 years back in III
    ("III", OVER_89, {"11": 91, "12": 91, "21": 89, "31": 91}),
    ("IV", [patient(1, age=40), patient(2, age=88), patient(3, age=89)], {"11": 40, "12": 41, "21": 89, "31": 91}),
]


@pytest.mark.parametrize(("version", "patients", "ages"), AGES)
def test_ages_are_those_at_admission_and_whoever_is_over_89_is_91(cohort_of, context, version, patients, ages):
    begin = 0 if version == "III" else 400  # 90 on the next day
    stays = [stay(1, 11, 0, 4), stay(1, 12, 400, 401), stay(2, 21, begin, begin + 1), stay(3, 31, begin, begin + 1)]
    cohort_of(stays, patients, version=version)
    assert dict(written(context, "characteristics")["age"]) == ages


def test_diagnoses_come_in_order_with_their_version_and_leading_zeros(cohort_of, context):
    stays = [stay(1, 11, 0, 4), stay(1, 12, 4, 6), stay(2, 21, 0, 1)]
    rows = [(12, 1, "I10", 10), (11, 10, "E119", 10), (11, 2, "0010", 9), (11, 1, "4019", 9), (12, 2, "E119", 10)]
    diagnoses = [dict(zip(("hadm_id", "seq_num", "icd_code", "icd_version"), row, strict=True)) for row in rows]
    cohort_of(stays, version="IV", diagnoses=diagnoses)
    listed = written(context, "characteristics")
    codes = [(code["code"], code["version"]) for code in listed.loc["11", "diagnoses"]]
    assert codes == [("4019", 9), ("0010", 9), ("E119", 10), ("I10", 10)]
    assert len(listed.loc["21", "diagnoses"]) == 0
    assert listed.loc["11", "length_of_stay_days"] == 6


def test_all_stays_are_those_that_end_in_death_too_under_the_same_splits(cohort_of, context):
    stays = [
        *[stay(subject, 10 * subject, 0, 4 + subject / 10) for subject in range(1, 40)],
        *[stay(subject, 10 * subject + 1, 9, 12, death=11.5) for subject in range(1, 40)],
        stay(50, 500, 0, 4, "NEWBORN"),
        stay(51, 510, 4, 1),
    ]
    cohort = cohort_of(stays, test_share=0.3, validation_share=0.3, balance_train=True)
    table = written(context, "stays")
    assert list(table.columns) == STAY_COLUMNS
    assert len(table) == 78 and set(cohort["hadm_id"]) < set(table["hadm_id"])
    assert dict(cohort["split"]) == dict(table.loc[cohort["hadm_id"], "split"]) and table["split"].nunique() == 3
    assert set(table.loc[table["died_in_hospital"], "hadm_id"]) == {str(10 * subject + 1) for subject in range(1, 40)}
    dead = table.loc["11"]
    assert (str(dead["died_at"]), dead["length_of_stay_days"]) == (day(11.5), 3.0)
    assert pd.isna(table.loc["10", "died_at"])
    assert list(written(context, "characteristics")["hadm_id"]) == list(table["hadm_id"])
    assert list(written(context, "characteristics")["died_in_hospital"]) == list(table["died_in_hospital"])
    assert set(written(context, "members")["hadm_id"]) == set(table["hadm_id"])


def test_a_second_row_with_one_hadm_id_is_counted_and_left_out(cohort_of, context, capsys):
    cohort = cohort_of([stay(1, 11, 0, 4), stay(2, 11, 50, 51), stay(1, 12, 10, 12)])
    assert labels(cohort) == {"11": True, "12": False}
    assert '"line": 3, "reason": "a hadm_id that an earlier row has"' in (context.output / "rejects.jsonl").read_text()
    assert "1 × a hadm_id that an earlier row has" in capsys.readouterr().err


def test_rows_that_may_be_unusable_are_a_share_of_all_rows_and_each_counts_once(tmp_path):
    rows = [f"1,{100 + n},{n},{'' if n < 2 else 4280}" for n in range(400)]
    file = tmp_path / "DIAGNOSES_ICD.csv"
    file.write_text("\n".join(["SUBJECT_ID,HADM_ID,SEQ_NUM,ICD9_CODE", *rows]))
    rejects = Rejects(None, 0.01)
    numbers = pd.Series(range(400), index=[str(100 + n) for n in range(400)])
    assert read_codes(file, numbers, rejects)["admission"].tolist() == [*range(2, 400)]
    assert (rejects.records, rejects.counts.total()) == (400, 2)
    rejects.check()  # 0.5 %
    table = read_table(file, ("subject_id", "hadm_id"), rejects := Rejects(None))
    without(table, table["hadm_id"] == "100", "twice", file, rejects)
    assert (rejects.records, rejects.counts.total()) == (400, 1)


UNUSABLE = [  # what is wrong with every stay, the error, and what it reports
    ({"dischtime": "4.1.2150"}, WorkError, "5 of 10 records .*5 × dischtime is no time YYYY-MM-DD HH:MM:SS"),
    ({"hospital_expire_flag": "TRUE"}, WorkError, "5 of 10 records .*5 × hospital_expire_flag is no flag"),
    ({"deathtime": day(4)}, RequestError, "is empty.* 5 not newborn; .*; 0 discharged alive; .*Look at .*minimum_age"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), UNUSABLE)
def test_a_cohort_that_would_be_empty_is_an_error_with_the_counts_or_their_cause(cohort_of, wrong, error, message):
    with pytest.raises(error, match=message):
        cohort_of([stay(number, number, 0, 4) | wrong for number in range(5)], max_rejects=0.01)


def test_the_flow_table_counts_admissions_and_subjects_at_every_step(cohort_of, context):
    stays = [
        stay(1, 11, 0, 4),
        stay(1, 12, 3, 6),
        stay(2, 21, 0, 4, "NEWBORN"),
        stay(3, 31, 0, 4, death=4),
        stay(4, 41, 0, 4),
        stay(4, 42, 10, 12),
        stay(4, 42, 20, 22),
    ]
    cohort_of(stays, test_share=0, validation_share=0)
    assert list(flow(context).values()) == [
        *[(7, 4), (7, 4), (0, 0), (1, 1), (0, 0), (0, 0)],  # 31 died, and went home
        *[(7, 4), (6, 4), (5, 4), (5, 4), (4, 3), (4, 3), (4, 3), (3, 2)],
        *[(0, 0), (0, 0), (0, 0), (0, 0), (0, 0)],  # how these ended
        *[(3, 2), (2, 1), (0, 0), (0, 0), (0, 0), (0, 0)],  # 42 came back, whatever the id of the row says
    ]
    assert list(flow(context))[-6:] == [
        *["train", "train, readmitted", "validation", "validation, readmitted", "test", "test, readmitted"]
    ]


FAULTY = "with a hadm_id of their own, and nothing wrong"
FAULTS = [  # of the row of a return, and how often its fault is listed in rejects.jsonl
    ({"dischtime": ""}, "not open (without a discharge)", 0),
    ({"dischtime": "2150-13-01 00:00:00"}, FAULTY, 1),
    ({"hospital_expire_flag": "yes"}, FAULTY, 1),
    ({"hadm_id": ""}, FAULTY, 1),
    ({"hadm_id": 21}, FAULTY, 1),
    ({"dischtime": day(5)}, "not discharged before the admission", 0),
]


@pytest.mark.parametrize(("fault", "step", "listed"), FAULTS)
def test_an_admission_that_begins_is_a_return_and_a_limit_to_text_whatever_else_is_wrong(
    cohort_of, context, fault, step, listed
):
    stays = [stay(2, 21, 0, 4), stay(1, 11, 59, 63.375), stay(1, 12, 64 + 1 / 3, 66) | fault]
    cohort = cohort_of(stays, rules="huang2019" if step == FAULTY else "default")
    assert bool(cohort.loc["11", "readmitted"]) and str(cohort.loc["11", "next_stay_at"]) == day(64 + 1 / 3)
    assert set(cohort["hadm_id"]) == {"11", "21"} and left_out(context)[step][0] == "1"
    assert not set(written(context, "members")["hadm_id"]) & {"12", ""}
    assert len((context.output / "rejects.jsonl").read_text().splitlines()) == listed


@pytest.mark.parametrize(
    ("damage", "reason"), [(b"Medicare\xe9", "not valid UTF-8"), (b"Medi,care", "too many fields")]
)
def test_an_admission_in_a_damaged_row_is_a_return_where_subject_and_beginning_can_be_read(
    tmp_path, context, damage, reason
):
    stays = [stay(2, 21, 0, 4), stay(1, 11, 59, 63), stay(1, 12, 70, 72) | {"insurance": "DAMAGED"}]
    file = write_hospital(tmp_path / "mimic", stays) / "ADMISSIONS.csv"
    file.write_bytes(file.read_bytes().replace(b"DAMAGED", damage))
    run(CohortSettings(mimic=str(file.parent), max_rejects=1), context)
    assert labels(written(context)) == {"11": True, "21": False}
    assert str(written(context).loc["11", "next_stay_at"]) == day(70)
    assert f'"line": 4, "reason": "{reason}"' in (context.output / "rejects.jsonl").read_text()


@pytest.mark.parametrize("rules", ["default", "huang2019"])
def test_an_admission_listed_twice_with_another_discharge_is_no_return_to_itself(cohort_of, context, rules):
    stays = [stay(1, 11, 0, 4), stay(1, 11, 0, 3), stay(2, 21, 0, 4), stay(2, 21, 0, 6)]
    assert labels(cohort_of(stays, rules=rules)) == {"11": False, "21": False}
    assert written(context)["next_stay_at"].isna().all() and set(written(context, "members")["hadm_id"]) == {"11", "21"}
    assert flow(context)["without copies of an earlier row"] == (2, 2)
    listed = (context.output / "rejects.jsonl").read_text()
    assert listed.count("an earlier row's admission, otherwise described") == 2


def test_a_copy_that_lost_its_hadm_id_costs_no_index_stay(cohort_of):
    stays = [stay(1, "", 0, 4), stay(1, 11, 0, 4), stay(1, 12, 10, 12)]
    assert labels(cohort_of(stays)) == {"11": True, "12": False}


def test_a_patient_with_a_wrong_date_of_death_keeps_the_age(cohort_of, context):
    cohort = cohort_of([stay(1, 11, 0, 4), stay(2, 21, 0, 4)], [patient(1, dod="soon"), patient(2)])
    assert set(cohort["hadm_id"]) == {"11", "21"}
    assert "dod is no date YYYY-MM-DD" in (context.output / "rejects.jsonl").read_text()


def test_open_stays_stop_no_run_and_a_death_without_a_discharge_is_not_open(cohort_of, context):
    stays = [stay(n, n, 0, 4) | {"dischtime": ""} for n in range(8)] + [stay(9, 9, 0, 4), stay(9, 10, 10, 12)]
    stays[7] |= {"deathtime": day(3), "hospital_expire_flag": 1}
    stays += [stay(9, 11, 12, 13) | {"dischtime": ""}]  # continues the stay before it, whose end is unknown
    assert labels(cohort_of(stays, max_rejects=0)) == {"9": True}
    assert left_out(context) == {"not open (without a discharge)": ("8", ""), "discharged alive": ("1", "0")}
    assert str(written(context, "stays").loc["7", "discharged_at"]) == day(3)


@pytest.mark.parametrize(("version", "position"), [("III", "DEAD/EXPIRED"), ("IV", "DIED")])
def test_a_death_that_the_discharge_location_alone_shows_is_a_death(cohort_of, context, version, position):
    cohort = cohort_of([stay(1, 11, 0, 4, to=position), stay(1, 12, 4.01, 5), stay(2, 21, 0, 4)], version=version)
    assert set(cohort["hadm_id"]) == {"21"}
    assert left_out(context)["discharged alive"] == ("1", "0")
    assert left_out(context)["not after the subject's death (organ donors)"] == ("1", "")
    assert str(written(context, "stays").loc["11", "died_at"]) == day(4)


def test_signs_of_death_that_contradict_each_other_are_counted(cohort_of, context, capsys):
    gone = "DEAD/EXPIRED"
    stays = [
        stay(1, 11, 0, 4, death=4, to=gone),  # all is as it should be
        stay(2, 21, 0, 4, flag=1, to=gone),  # nor is a missing time a contradiction
        stay(3, 31, 0, 4, to=gone),  # by the location alone, and the flag says otherwise
        stay(4, 41, 0, 4, death=4, to="HOME"),
        stay(5, 51, 0, 4, death=4, flag=0, to=gone),
        stay(6, 61, 0, 4, death=9, to=gone),  # after the stay
        stay(7, 71, 0, 4),  # lived on after the date of death
        stay(8, 81, 0, 4, death=4, to=gone),  # died on another day
        stay(9, 91, 9, 12),  # and was admitted after it
        stay(10, 101, 0, 4),
    ]
    dead = [patient(7, dod=day(2)), patient(8, dod=day(40)), patient(9, dod=day(8)), patient(1, dod=day(4))]
    dead += [patient(10, dod=day(14))]
    cohort_of(stays, dead)
    counted = {step: count for step, (count, _) in flow(context).items() if step.startswith("of these")}
    assert list(counted.values())[:4] == [1, 4, 3, 1]
    assert "contradict the date of death: 3 of 10" in capsys.readouterr().err


def test_admissions_given_twice_count_once_and_many_copies_are_warned_of(cohort_of, context, capsys):
    stays = [*(stay(n, n, 0, 4) for n in range(2, 200)), stay(1, 1011, 0, 4), stay(1, 1012, 10, 12)]
    once = labels(cohort_of(stays, max_rejects=0))
    assert "copies" not in capsys.readouterr().err
    assert labels(cohort_of([*stays, stays[0]], max_rejects=0)) == once
    logged = capsys.readouterr().err
    assert "1 of 201 rows of ADMISSIONS.csv are copies of an earlier one" in logged and "appended" not in logged
    assert labels(cohort_of([*stays, *stays], max_rejects=0)) == once
    assert flow(context)["without copies of an earlier row"] == (200, 199)
    assert "200 of 400 rows of ADMISSIONS.csv are copies" in (logged := capsys.readouterr().err)
    assert "was a table appended to itself?" in logged


def test_a_header_inside_a_table_is_no_admission(cohort_of, context):
    header = {name.lower(): name for name in COLUMNS_OF_ADMISSIONS}
    stays = [*(stay(n, n, 0, 4) for n in range(2, 200)), header, stay(1, 1011, 0, 4), stay(1, 1012, 10, 12)]
    assert len(cohort_of(stays, [patient(n) for n in range(200)], max_rejects=0.01)) == 200
    assert '"line": 200, "reason": "the header again' in (context.output / "rejects.jsonl").read_text()


END = [stay(1, 11, 0, 4), stay(2, 21, 0, 10), stay(2, 22, 11, 20), stay(3, 31, 0, 16), stay(3, 32, 40.375, 46)]


def test_index_stays_without_a_full_follow_up_are_left_out_where_the_end_of_the_data_is_given(cohort_of, context):
    remaining = {"latest": {"11", "21", "31"}, "2150-02-15": {"11", "21", "31"}, "2150-02-14": {"11", "21"}, None: 5}
    assert len(cohort_of(END)) == remaining.pop(None)
    for data_end, expected in remaining.items():
        assert set(cohort_of(END, data_end=data_end)["hadm_id"]) == expected, data_end
    # 22 and 32 ended in the last days, and 31 came back before them: its follow-up is not whole on February 14
    assert left_out(context)["with all 30 days before the end of the data"] == ("3", "1")
    assert set(cohort_of(END, data_end="latest", rules="huang2019")["hadm_id"]) == {"11", "21", "31"}


def test_the_last_discharge_of_all_is_no_stay_without_a_return(cohort_of, context):
    stays = [stay(1, 11, 0, 4), stay(2, 21, 300, 310.375)]
    assert labels(cohort_of(stays)) == {"11": False, "21": False}
    assert labels(cohort_of(stays, data_end="latest")) == {"11": False}
    assert left_out(context) == {"with all 30 days before the end of the data": ("1", "0")}


def test_dates_that_nobody_shifted_are_asked_for_the_end_of_the_data(cohort_of, capsys):
    begun = {"admittime": "2019-11-01 10:00:00", "dischtime": "2019-11-05 09:00:00"}
    cohort_of([stay(1, 11, 0, 4) | begun], minimum_age=0)
    assert "1 of 1 index stays end less than 30 days before the latest time in the table" in capsys.readouterr().err
    cohort_of([stay(1, 11, 0, 4)])
    assert "data_end" not in capsys.readouterr().err
    cohort_of(END, data_end="latest")
    assert "data_end: the dates of these tables go to 2150; where each subject's are shifted" in capsys.readouterr().err


def test_the_end_of_the_data_may_be_a_day_of_toml():
    assert CohortSettings(mimic="mimic", data_end=date(2019, 12, 31)).data_end == "2019-12-31"


@pytest.mark.parametrize("data_end", ["yesterday", "31.12.2019", "2019-02-30"])
def test_an_end_of_the_data_that_is_no_day_is_refused(data_end):
    with pytest.raises(ValidationError, match='expected "latest", "per-subject" or a day as in "2019-12-31", found'):
        CohortSettings(mimic="mimic", data_end=data_end)


@pytest.mark.promise(
    "Every exclusion of a cohort says how many of those it leaves out have the outcome", about="counted"
)
def test_every_exclusion_says_how_many_of_those_it_leaves_out_came_back(cohort_of, context, capsys):
    stays = [
        stay(1, 11, 0, 4, "EU OBSERVATION"),
        stay(1, 12, 10, 12),  # after an observation
        stay(2, 21, 0, 4, "NEWBORN"),
        stay(2, 22, 10, 12, "NEWBORN"),
        stay(3, 31, 5, 4),
        stay(3, 32, 10, 12),
        stay(4, 41, 0, 4, to="HOSPICE"),
        stay(4, 42, 10, 12),
        stay(5, 51, 0, 4),
        stay(6, 61, 0, 4),
        stay(6, 62, 10, 12),
    ]
    patients = [*(patient(n) for n in (1, 2, 3, 4)), patient(5, dod=day(9)), patient(6, age=5)]
    settings = {"observation_stays": "excluded", "excluded_discharges": ["hospice"], "deaths_in_window": "excluded"}
    cohort_of(stays, patients, "IV", **settings)
    assert left_out(context) == {
        "not under observation alone": ("1", "1"),
        "not newborn": ("2", "1"),
        "not discharged before the admission": ("1", "1"),
        "at least 18 years old": ("2", "1"),
        "not discharged to hospice": ("1", "1"),
        "alive or back within 30 days": ("1", "0"),
    }
    assert 'left out by each step: "not under observation alone" 1 (1 readmitted); "not newborn" 2 (1' in (
        capsys.readouterr().err
    )


def test_the_minimum_age_is_a_setting_and_unknown_ages_are_too_young(cohort_of):
    stays = [stay(1, 11, 0, 4), stay(2, 21, 0, 4), stay(3, 31, 0, 4)]
    patients = [patient(1, born="2133-01-01"), patient(2, born="2131-12-31")]  # 17 and 18; of 3 nothing is known
    for minimum_age, expected in ((18, {"21"}), (17, {"11", "21"}), (0, {"11", "21", "31"})):
        assert set(cohort_of(stays, patients, minimum_age=minimum_age)["hadm_id"]) == expected


def split_cohort(cohort_of, subjects, **settings):
    """Every subject has two stays, and every third one returns in time."""
    stays = []
    for subject in subjects:
        later = 10 if subject % 3 == 0 else 90
        stays += [stay(subject, 10_000 + subject, 0, 4), stay(subject, 20_000 + subject, later, later + 2)]
    return cohort_of(stays, **settings).reset_index(drop=True)


def test_subjects_that_are_added_move_nobody(cohort_of):
    cohort = split_cohort(cohort_of, range(300))
    assert (cohort.groupby("subject_id")["split"].nunique() == 1).all()
    before = cohort.set_index("hadm_id")["split"]
    after = split_cohort(cohort_of, range(-500, 900)).set_index("hadm_id")["split"]
    assert set(before) == {"train", "validation", "test"}
    assert before.equals(after[before.index])


def test_shares_are_those_asked_for_and_another_key_gives_another_split():
    shares = {"test": 0.3, "validation": 0.2}
    splits, others = ([split_of(str(subject), key, shares) for subject in range(20_000)] for key in ("key", "other"))
    assert np.mean(np.array(splits) == np.array(others)) < 0.4  # 0.38 by chance
    for split, share in (("train", 0.5), ("validation", 0.2), ("test", 0.3)):
        deviation = np.sqrt(share * (1 - share) / 20_000)
        assert abs(splits.count(split) / 20_000 - share) < 4 * deviation


def test_balancing_touches_train_alone(cohort_of):
    natural = split_cohort(cohort_of, range(300))
    evened = split_cohort(cohort_of, range(300), balance_train=True)
    for split in ("validation", "test"):
        assert natural[natural["split"] == split].equals(
            evened[evened["split"] == split].set_axis(natural.index[natural["split"] == split])
        )
    train = evened[evened["split"] == "train"]
    positives = int(natural.loc[natural["split"] == "train", "readmitted"].sum())
    assert train["readmitted"].value_counts().to_dict() == {True: positives, False: positives}
    assert set(train["hadm_id"]) <= set(natural["hadm_id"])
