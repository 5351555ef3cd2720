"""Tables of MIMIC in a user's folder, and the files of it that a recipe's fingerprint counts."""

from pathlib import Path

import pytest
from hospital_tables import stay, write_hospital
from pydantic import ValidationError

from bertrelay.errors import RequestError
from bertrelay.fingerprint import Digests, leaves, stage_parts, with_stage_paths
from domain.clinical.settings import CohortSettings
from domain.clinical.sources.mimic_tables import HOSPITAL, NOTES, find_tables, note_version, tables_of
from pipelines.recipe.steps import read_recipe
from pipelines.registry import REGISTRY
from pipelines.run.plan import RunOptions, make_plan

COHORT = next(stage for stage in REGISTRY if stage.kind == "domain.cohort")


def lay(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n")
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ("ADMISSIONS.csv", "PATIENTS.csv", "DIAGNOSES_ICD.csv"),
        ("admissions.csv.gz", "Patients.CSV.GZ", "Diagnoses_ICD.csv"),
        ("mimiciv/3.1/hosp/admissions.csv.gz", "mimiciv/3.1/hosp/patients.csv.gz", "x/diagnoses_icd.csv"),
    ],
)
def test_tables_are_found_in_any_case_packed_or_not_and_in_subfolders(tmp_path, names):
    files = find_tables(lay(tmp_path, *names), HOSPITAL)
    assert files == dict(zip(("admissions", "patients", "diagnoses_icd"), (tmp_path / n for n in names), strict=True))


def test_what_only_looks_like_a_table_is_none(tmp_path):
    folder = lay(
        tmp_path, "noteevents.csv", "radiology_detail.csv", "x.radiology.csv", "radiology.txt", ".git/radiology.csv"
    )
    files = find_tables(folder, NOTES)
    assert files == {"noteevents": folder / "noteevents.csv"}
    assert note_version(files) == "III"


@pytest.mark.parametrize(
    ("names", "tables", "message"),
    [
        (["ADMISSIONS.csv"], HOSPITAL, r"expected the table patients\.csv.* none in .*it has: admissions\. Give"),
        (
            ["a/ADMISSIONS.csv", "ADMISSIONS.csv.gz", "PATIENTS.csv"],
            HOSPITAL,
            r"found 2: ADMISSIONS\.csv\.gz and a/ADMISSIONS\.csv.* name the files",
        ),
        (["noteevents.csv", "discharge.csv"], NOTES, "tables of one MIMIC, found noteevents and discharge"),
    ],
)
def test_a_table_that_is_missing_or_there_twice_is_reported_with_what_is_there(tmp_path, names, tables, message):
    with pytest.raises(RequestError, match=message):
        find_tables(lay(tmp_path, *names), tables)


def parts(settings):
    return stage_parts(
        COHORT.kind, COHORT.version, settings, Digests(), upstream=lambda name: f"fingerprint of {name}", revision=str
    )


def test_a_fingerprint_counts_the_tables_that_are_read_and_nothing_else(tmp_path):
    folder = write_hospital(tmp_path, [stay(1, 11, 0, 4)])
    before = parts(CohortSettings(mimic=str(folder)))
    (folder / "CHARTEVENTS.csv").write_text("33 GB\n")
    (folder / "NOTEEVENTS.csv").write_text("notes\n")
    assert parts(CohortSettings(mimic=str(folder))) == before
    write_hospital(tmp_path, [stay(1, 11, 0, 4), stay(1, 12, 8, 9)])
    after = parts(CohortSettings(mimic=str(folder)))
    assert [key for key in after if after[key] != before[key]] == ["mimic.admissions"]


def test_tables_may_be_named_one_by_one(tmp_path):
    folder = write_hospital(tmp_path, [stay(1, 11, 0, 4)])
    named = {"admissions": str(folder / "ADMISSIONS.csv"), "patients": str(folder / "PATIENTS.csv")}
    settings = CohortSettings(mimic=named)
    assert parts(settings) == parts(CohortSettings(mimic=str(folder)))
    assert tables_of(settings.mimic, HOSPITAL) == {name: Path(path) for name, path in named.items()}
    for wrong, message in (({"admissions": "a.csv"}, "expected the table patients"), ({**named, "x": "c"}, "found x")):
        with pytest.raises(ValidationError, match=message):
            CohortSettings(mimic=wrong)


def test_the_output_of_another_stage_is_found_when_it_is_there(tmp_path):
    settings = CohortSettings(mimic="@samples/mimic3")
    assert [leaf.value.stage_reference for leaf in leaves(settings) if leaf.key == "mimic"] == [("samples", "mimic3")]
    assert parts(settings)["mimic"] == "output:fingerprint of samples/mimic3"
    folder = write_hospital(tmp_path / "out" / "mimic3", [stay(1, 11, 0, 4)])
    located = with_stage_paths(settings, lambda _, inner: tmp_path / "out" / inner)
    assert tables_of(located.mimic, HOSPITAL) == find_tables(folder, HOSPITAL)


def test_a_cohort_alone_needs_no_notes_and_a_plan_of_all_says_which_table_is_missing(tmp_path):
    write_hospital(tmp_path / "mimic", [stay(1, 11, 0, 4)])
    recipe = tmp_path / "own.toml"
    recipe.write_text(
        '[cohort]\nuses = "domain.cohort"\nmimic = "mimic"\n'
        '[notes]\nuses = "domain.notes"\nmimic = "mimic"\ncohort = "@cohort"\n'
    )
    read = read_recipe(str(recipe), REGISTRY)
    planned = make_plan(read, RunOptions(runs=tmp_path / "runs", only=["cohort"]))
    assert [planned_step.step.name for planned_step in planned.steps] == ["cohort"]
    with pytest.raises(RequestError, match=r"1 problem\n  \[notes\] mimic: expected the table noteevents\.csv"):
        make_plan(read, RunOptions(runs=tmp_path / "runs"))
