"""A hospital of 6,000 admissions: every label against a slow program written from the rules only."""

import csv
from collections import defaultdict
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hospital_tables import patient, stay, write_hospital

from domain.clinical.cohort import run
from domain.clinical.settings import CohortSettings

ADMISSIONS, SUBJECTS = 6_000, 2_040
TYPES = ("EMERGENCY", "URGENT", "ELECTIVE", "NEWBORN")


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    """Times fall on half days, so that stays touch and gaps of 30.0 days are common."""
    drawing = np.random.default_rng(7)
    subjects = drawing.integers(SUBJECTS, size=ADMISSIONS)
    begins = drawing.integers(1_200, size=ADMISSIONS) / 2
    lengths = drawing.integers(-1, 30, size=ADMISSIONS) / 2
    kinds = drawing.choice(TYPES, size=ADMISSIONS, p=[0.55, 0.1, 0.3, 0.05])
    dies, dead_by_flag_alone = drawing.random(ADMISSIONS) < 0.06, drawing.random(ADMISSIONS) < 0.1
    rows = []
    for index in range(ADMISSIONS):
        end = begins[index] + lengths[index]
        death = end if dies[index] and not dead_by_flag_alone[index] else None
        row = stay(subjects[index], 100_000 + index, begins[index], end, kinds[index], death, flag=int(dies[index]))
        rows.append(row)
    born = drawing.integers(2040, 2150, size=SUBJECTS)
    patients = [patient(subject, born=f"{born[subject]}-07-01") for subject in range(SUBJECTS)]
    folder = write_hospital(tmp_path_factory.mktemp("hospital"), rows, patients)
    return folder, by_subject(read(folder / "ADMISSIONS.csv")), births(read(folder / "PATIENTS.csv"))


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def by_subject(admissions):
    result = defaultdict(list)
    for row in admissions:
        begin, end = (datetime.fromisoformat(row[name]) for name in ("ADMITTIME", "DISCHTIME"))
        death = datetime.fromisoformat(row["DEATHTIME"]) if row["DEATHTIME"] else None
        dead = row["HOSPITAL_EXPIRE_FLAG"] == "1"
        reference = {"id": row["HADM_ID"], "begin": begin, "end": end, "kind": row["ADMISSION_TYPE"]}
        result[row["SUBJECT_ID"]].append({**reference, "death": death, "died": (death or end) if dead else None})
    for rows in result.values():
        rows.sort(key=lambda row: (row["begin"], row["end"], row["id"]))
    return result


def births(patients):
    return {row["SUBJECT_ID"]: datetime.fromisoformat(row["DOB"]) for row in patients}


def slow_default(subjects, born_on):
    """hadm_id → (readmitted, gap in days) by the default rules."""
    labels = {}
    for subject, rows in subjects.items():
        alive = []
        for number, row in enumerate(rows):
            if not any(before["died"] and before["died"] <= row["begin"] for before in rows[:number]):
                alive.append(row)
        stays = []
        for row in alive:
            latest = max(max(part["begin"], part["end"]) for part in stays[-1]) if stays else None
            if latest is not None and row["begin"] <= latest:
                stays[-1].append(row)
            else:
                stays.append([row])
        for number, parts in enumerate(stays):
            begin, end = parts[0]["begin"], max(part["end"] for part in parts)
            returns = [later[0]["begin"] for later in stays[number + 1 :] if later[0]["kind"] != "ELECTIVE"]
            gap = (returns[0] - end) / timedelta(days=1) if returns else None
            born = born_on[subject]
            age = begin.year - born.year - ((begin.month, begin.day) < (born.month, born.day))
            is_dead = any(part["died"] for part in parts)
            if parts[0]["kind"] != "NEWBORN" and not is_dead and end >= begin and age >= 18:
                labels[parts[0]["id"]] = (gap is not None and gap <= 30, gap)
    return labels


def slow_huang(subjects, born_on):  # noqa: ARG001
    """hadm_id → (readmitted, gap in days) as the published code has it."""
    labels = {}
    for rows in subjects.values():
        following = [row["begin"] for row in rows[1:]] + [None]
        for number, later in enumerate(rows[1:]):
            if later["kind"] == "ELECTIVE":
                following[number] = None
        for number in reversed(range(len(rows) - 1)):
            if following[number] is None:
                following[number] = following[number + 1]
        for row, later in zip(rows, following, strict=True):
            gap = None if later is None else (later - row["end"]) / timedelta(days=1)
            if row["kind"] != "NEWBORN" and row["death"] is None:
                labels[row["id"]] = (gap is not None and gap < 30, gap)
    return labels


@pytest.mark.parametrize(("rules", "slow"), [("default", slow_default), ("huang2019", slow_huang)])
def test_every_label_equals_that_of_a_slow_program_written_from_the_rules(hospital, context, rules, slow):
    folder, subjects, born_on = hospital
    expected = slow(subjects, born_on)
    run(CohortSettings(mimic=str(folder), rules=rules), context)
    result = pd.read_parquet(context.output / "cohort.parquet")
    assert len(expected) > 1_800
    assert dict(zip(result["hadm_id"], result["readmitted"], strict=True)) == {
        hadm_id: readmitted for hadm_id, (readmitted, _) in expected.items()
    }
    gaps = {hadm_id: gap for hadm_id, (_, gap) in expected.items() if gap is not None}
    assert result.set_index("hadm_id")["gap_days"].dropna().to_dict() == pytest.approx(gaps)
