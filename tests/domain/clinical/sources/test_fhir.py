"""Resources of FHIR: R4 and R5, zones, states, and bad input."""

import base64
import json

import pandas as pd
import pytest
from pydantic import ValidationError

from bertrelay.errors import RequestError, WorkError
from domain.clinical import CohortSettings, NotesSettings, write_cohort, write_notes
from domain.clinical.sources.fhir import codes_of

MAP = {"unplanned": ["EM"], "planned": ["EL"], "no_admission": ["AMB"], "home": ["home", "Nursing home"]}
ZONE = "Europe/Berlin"


def encounter(name, start, end, patient="a", status="finished", code="IMP", priority="EM", **others):
    period = {"start": start, **({"end": end} if end else {})}
    about = {"class": {"code": code}, "priority": {"coding": [{"code": priority}]}, "period": period}
    about |= {"hospitalization": {"dischargeDisposition": {"coding": [{"code": "home"}]}}}
    return {
        "resourceType": "Encounter",
        "id": name,
        "status": status,
        "subject": {"reference": f"Patient/{patient}"},
        **about,
        **others,
    }


def document(text, encounter, start, attachment=None, **others):
    plain = {"contentType": "text/plain", "data": base64.b64encode(text.encode()).decode()}
    return {
        "resourceType": "DocumentReference",
        "id": "d",
        "status": "current",
        "type": {"text": "Summary"},
        "subject": {"reference": "Patient/a"},
        "content": [{"attachment": attachment or plain}],
        "context": {"encounter": [{"reference": encounter}], "period": {"start": start}},
        **others,
    }


PATIENTS = [
    {"resourceType": "Patient", "id": "a", "birthDate": "1950", "gender": "male", "deceasedBoolean": True},
    {"resourceType": "Patient", "id": "b", "birthDate": "1950-05-02", "deceasedDateTime": "2024-01-05"},
]
ENCOUNTERS = [
    encounter("1", "2023-12-31T23:30:00Z", "2024-01-05T09:00:00+01:00"),
    encounter("2", "2024-02-04T09:00:00+01:00", "2024-02-06T09:00:00+01:00"),
    encounter("3", "2024-02-08T09:00:00Z", "2024-02-08T10:00:00Z", code="AMB"),
    encounter("4", "2024-03-01T09:00:00Z", None, status="in-progress"),
    encounter("5", "2024-02-10T09:00:00Z", None, status="cancelled"),
    encounter("6", "2024-01-01T09:00:00Z", "2024-01-05T09:00:00Z", patient="b", hospitalization=None),
]


def write(folder, **resources):
    folder.mkdir(exist_ok=True)
    for name, rows in {"Patient": PATIENTS, "Encounter": ENCOUNTERS, **resources}.items():
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"{name}.ndjson").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def cohort_of(path, output, **settings):
    source = {"form": "fhir", "path": str(path), "zone": ZONE, "map": MAP}
    source["max_unmapped"] = 0.5
    write_cohort(CohortSettings(source=source, **settings), output)
    return pd.read_parquet(output / "stays.parquet").set_index("hadm_id")


def test_encounters_become_stays_on_the_clock_of_the_hospital(tmp_path):
    stays = cohort_of(write(tmp_path / "fhir"), tmp_path / "out")
    assert stays["admitted_at"].to_dict() == {
        "1": pd.Timestamp("2024-01-01 00:30"),
        "2": pd.Timestamp("2024-02-04 09:00"),
        "6": pd.Timestamp("2024-01-01 10:00"),
    }
    assert stays["died_in_hospital"].to_dict() == {"1": False, "2": False, "6": True}
    cohort = pd.read_parquet(tmp_path / "out/cohort.parquet").set_index("hadm_id")
    assert cohort["readmitted"].to_dict() == {"1": True, "2": True}  # 30.0 days, and the open stay
    flow = pd.read_csv(tmp_path / "out/flow.csv").set_index("step")["admissions"]
    assert flow["rows of the table of stays that can be read"] == 6
    assert flow["that took place (neither planned for later, cancelled nor entered in error)"] == 5
    assert flow["admissions by the map"] == 4
    assert flow["of these, of subjects who are dead by the source without a date, and count as alive"] == 3


def test_a_file_of_encounters_that_is_there_twice_counts_once(tmp_path):
    folder = write(tmp_path / "fhir", **{"Encounter.001": ENCOUNTERS})
    assert list(cohort_of(folder, tmp_path / "out").index) == ["1", "2", "6"]


def test_elements_of_r5_are_read(tmp_path):
    rows = [
        {key: value for key, value in row.items() if key != "hospitalization"}
        | {"class": [{"coding": [row["class"]]}], "admission": row["hospitalization"]}
        for row in ENCOUNTERS
    ]
    expected = cohort_of(write(tmp_path / "fhir"), tmp_path / "r4")
    pd.testing.assert_frame_equal(cohort_of(write(tmp_path / "five", Encounter=rows), tmp_path / "r5"), expected)


def test_texts_of_documents(tmp_path):
    documents = [
        document("Grüße.", "Encounter/1", "2024-01-04T10:00:00+01:00"),
        document("Later.", "https://hospital/Encounter/1/_history/2", "2024-01-04", date="2024-01-20T10:00:00Z"),
        document("Wrong.", "Encounter/1", "2024-01-04T10:00:00+01:00", status="entered-in-error"),
    ]
    folder = write(tmp_path / "fhir", DocumentReference=documents)
    cohort_of(folder, tmp_path / "out")
    source = {"form": "fhir", "path": str(folder), "zone": ZONE, "map": {"discharge": ["summary"]}}
    write_notes(NotesSettings(source=source, cohort=tmp_path / "out"), tmp_path / "notes")
    assert pd.read_parquet(tmp_path / "notes/notes.parquet")["text"].tolist() == ["Grüße."]
    flow = pd.read_csv(tmp_path / "notes/flow.csv").set_index("step")["notes"]
    assert flow["left out: marked as an error"] == 1
    assert flow["left out: written too long after the discharge"] == 1


def test_resources_that_cannot_be_used_are_listed_with_file_and_row_and_no_identifier(tmp_path, capsys):
    documents = [
        document("Seen.", "Encounter/1", "2024-01-04T10:00:00+01:00"),
        document("", "Encounter/QZX", "2024-01-04", {"contentType": "text/html", "data": "UVpY"}),
        document("", "Encounter/QZX", "2024-01-04", {"contentType": "text/plain", "url": "Binary/QZX"}),
        document("", "Encounter/QZX", "2024-01-04", {"contentType": "text/plain", "data": "QZX!"}),
        document("x", "Encounter/QZX", "QZXnoon"),
        '{"resourceType": "Patient", "id": "QZX"}',
        '{"resourceType": "QZX',
    ]
    folder = write(tmp_path / "fhir", DocumentReference=documents)
    cohort_of(folder, tmp_path / "out")
    source = {"form": "fhir", "path": str(folder), "zone": ZONE, "map": {"discharge": ["summary"]}}
    with pytest.raises(WorkError, match="6 of 7 records cannot be used") as error:
        write_notes(NotesSettings(source=source, cohort=tmp_path / "out"), tmp_path / "notes")
    rejects = [json.loads(line) for line in (tmp_path / "notes/rejects.jsonl").read_text().splitlines()]
    assert sorted((row["line"], row["reason"]) for row in rejects) == [
        (2, "no attachment of text/plain"),
        (3, "an attachment that is elsewhere (url)"),
        (4, "an attachment that is no text of UTF-8 in base64"),
        (5, "charted_at is no time or date in the form of the source"),
        (6, "a resource other than DocumentReference"),
        (7, "not JSON"),
    ]
    assert "QZX" not in str(error.value) + json.dumps(rejects) + "".join(capsys.readouterr())


def test_a_folder_without_a_resource_is_refused(tmp_path):
    folder = write(tmp_path / "fhir")
    (folder / "Patient.ndjson").unlink()
    with pytest.raises(RequestError, match="files of the resource Patient"):
        cohort_of(folder, tmp_path / "out")


def test_a_source_without_a_zone_is_refused():
    with pytest.raises(ValidationError, match="zone"):
        CohortSettings(source={"form": "fhir", "path": "fhir", "map": MAP})


def test_codes_of_concepts():
    concept = {"coding": [{"code": "EM"}, {"code": "2"}], "text": "Emergency"}
    assert codes_of(concept) == ["Emergency", "EM", "2"]
    assert codes_of([{"code": "IMP"}, concept]) == ["IMP", "Emergency", "EM", "2"]
    assert codes_of(None) == codes_of("IMP") == []
