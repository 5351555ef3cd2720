"""Every form of one hospital: cohorts, notes and labels equal those of MIMIC's tables in all that the form carries."""

import csv
import gzip

import pandas as pd
import pytest

from domain.clinical import CohortSettings, NotesSettings, write_cohort, write_notes
from pipelines.samples.hospital import write_hospital
from pipelines.samples.settings import HospitalSettings
from pipelines.samples.standard_forms import ZONE

FORMS = ["omop", "meds", "fhir"]
LOCATIONS = {
    "home": ["/home|snf|rehab/", ""],
    "acute_care_transfer": ["short term hospital", "disc-tran cancer/chldrn h"],
    "against_medical_advice": ["left against medical advi"],
    "hospice": ["/hospice/"],
    "died": ["dead/expired"],
}
NOTE_MAP = {
    "discharge": ["discharge summary"],
    "addendum": ["discharge addendum"],
    "radiology": ["radiology"],
    "error": ["withdrawn"],
    "other": ["/./"],
}
STAYS = {
    "omop": {
        "admission_types": ["visit_source_value", "visit_concept_id"],
        "map": {"unplanned": [9201, 262], "planned": ["elective"], "newborn": ["newborn"], "no_admission": [9202]},
    },
    "meds": {
        "visit": "hadm_id",
        "date_only": "end",
        "admission": ["/^HOSPITAL_ADMISSION/"],
        "discharge": ["/^HOSPITAL_DISCHARGE/"],
        "sex": ["/^GENDER/"],
        "map": {"unplanned": ["/emergency|urgent/"], "planned": ["/elective/"], "newborn": ["/newborn/"]},
    },
    "fhir": {
        "zone": ZONE,
        "map": {"unplanned": ["EM"], "planned": ["EL"], "newborn": ["newborn"], "no_admission": ["AMB"]},
    },
}
CODES = {
    "home": ["/discharge.*(home|snf|rehab)/"],
    "acute_care_transfer": ["/short term hospital|disc-tran cancer/"],
    "against_medical_advice": ["/against medical advi/"],
    "died": ["/dead/"],
}
NOTES = {
    "omop": {},
    "meds": {
        "visit": "hadm_id",
        "date_only": "end",
        "map": {
            "discharge": ["NOTE//Discharge summary"],
            "addendum": ["NOTE//Discharge addendum"],
            "radiology": ["NOTE//Radiology"],
            "error": ["NOTE//withdrawn"],
            "other": ["/./"],
        },
    },
    "fhir": {"zone": ZONE},
}


def stays_of(folder, form):
    source = STAYS[form]
    of_places = CODES if form == "meds" else LOCATIONS
    return {**source, "form": form, "path": str(folder / form), "map": {**of_places, **source["map"]}}


def notes_of(folder, form):
    return {"map": NOTE_MAP, **NOTES[form], "form": form, "path": str(folder / form)}


def as_carried(mimic, folder, form):
    """The notes of MIMIC as a form carries them: without store times, and with a midnight for a date."""
    folder.mkdir()
    with gzip.open(mimic / "NOTEEVENTS.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["STORETIME"] = row["STORETIME"] if form == "fhir" else ""
        if form == "omop" and row["CHARTTIME"].endswith("00:00:00"):
            row["CHARTTIME"] = ""
    with (folder / "NOTEEVENTS.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return folder


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    """The folder of a hospital in all forms, with the cohort of MIMIC's tables."""
    folder = tmp_path_factory.mktemp("hospital")
    write_hospital(folder, HospitalSettings(subjects=70, words=160, forms=FORMS))
    write_cohort(CohortSettings(mimic=folder / "mimic"), folder / "of-mimic")
    return folder


READ = {"discharge": {"radiology": True}, "early": {"input": "early", "stays": "all"}}


def table(folder, name):
    """A file of a stage; without what a death by its day does not say."""
    read = pd.read_parquet(folder / f"{name}.parquet").sort_values("hadm_id", ignore_index=True)
    return read.drop(columns=["died_at", "insurance", "race", "admission_type", "diagnoses"], errors="ignore")


@pytest.mark.parametrize("form", FORMS)
def test_cohorts_notes_and_labels_of_every_form_are_those_of_mimic(hospital, form, tmp_path):
    write_cohort(CohortSettings(source=stays_of(hospital, form)), tmp_path / "cohort")
    for name in ("cohort", "stays", "members", "characteristics"):
        ours, theirs = table(tmp_path / "cohort", name), table(hospital / "of-mimic", name)
        pd.testing.assert_frame_equal(ours, theirs, check_dtype=False)
    assert len(table(tmp_path / "cohort", "cohort")) > 100
    flow = pd.read_csv(tmp_path / "cohort/flow.csv").set_index("step")
    read, used = (
        flow["admissions"]["with a subject and a beginning"],
        flow["admissions"]["without copies of an earlier row"],
    )
    with gzip.open(hospital / "mimic/ADMISSIONS.csv.gz", "rt") as file:
        assert read - used == (len(list(csv.reader(file))) - 1) // 17
    assert flow["left_out"]["not open (without a discharge)"] == 3
    mimic, source = as_carried(hospital / "mimic", tmp_path / "carried", form), notes_of(hospital, form)
    for name, settings in READ.items():
        for of, notes in {"ours": {"source": source}, "theirs": {"mimic": mimic}}.items():
            write_notes(NotesSettings(cohort=tmp_path / "cohort", **notes, **settings), tmp_path / f"{name}-{of}")
        ours, theirs = (table(tmp_path / f"{name}-{of}", "notes") for of in ("ours", "theirs"))
        pd.testing.assert_frame_equal(ours, theirs)
        assert len(ours) > 80
