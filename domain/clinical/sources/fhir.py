"""The source FHIR: stays and notes from a bulk export of R4 or R5, a resource a line.

Times have an offset, and become the hospital's clock times. An encounter without an end, or in progress, is still open.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from bertrelay.data.readers import jsonl_rows
from bertrelay.data.tables import ABSENT, Record, Rejected, Row, Table
from bertrelay.errors import RequestError
from bertrelay.settings import InputFile
from domain.clinical.sources.form import FAULT, FILE, ROW, Reject
from domain.clinical.sources.mimic_tables import Tables
from domain.clinical.sources.reading import frames
from domain.clinical.sources.rows import places, without_copies
from domain.clinical.sources.standards import (
    FHIR_NOTES,
    FHIR_STAYS,
    FhirNotes,
    FhirStays,
    resource_files,
)

VOID = {"planned", "cancelled", "discontinued", "entered-in-error"}
STILL_IN = {"arrived", "triaged", "in-progress", "onleave", "on-hold"}
"""States of an encounter that did not take place, and of one that is not over."""
WITHDRAWN = {"entered-in-error", "superseded"}
"""States of a document that does not count."""
SEXES = {"male": "M", "female": "F"}
ELEMENTS = {
    "Encounter": (
        *("resourcetype", "status", "class", "type", "priority", "subject", "period", "hospitalization"),
        "admission",
    ),
    "Patient": ("resourcetype", "gender", "birthdate", "deceasedboolean", "deceaseddatetime", "extension"),
    "DocumentReference": ("resourcetype", "status", "type", "subject", "date", "context", "content", "period"),
}
"""The elements that are read besides `id`, in lower case."""
RACE = "us-core-race"


def files_of(path: Tables, kinds: tuple[str, ...]) -> dict[str, Path]:
    """Finds the files of resources. Raises RequestError where a resource has none."""
    if isinstance(path, dict):
        files = {name: Path(file) for name, file in path.items()}
    else:
        files = resource_files(Path(path), kinds) if Path(path).is_dir() else {Path(path).name: Path(path)}
    for kind in kinds:
        if not any(kind.lower() in name.lower() for name in files):
            raise RequestError(
                f"expected files of the resource {kind}, as {kind}.ndjson or {kind}.000.ndjson.gz, found "
                f"{', '.join(files) or 'none'} in {path if isinstance(path, str) else 'the setting'}"
            )
    return files


def _resources(file: Path, kind: str, names: tuple[str, ...], record: Any, reject: Reject) -> Iterator[pd.DataFrame]:
    """Streams the resources of a file in blocks of `names`; record: makes the values of one, or raises Rejected."""

    def stream() -> Iterator[Row]:
        for row in jsonl_rows(Table(path=InputFile(file), format="jsonl"), ["id"], ELEMENTS[kind]):
            if isinstance(row, Rejected):
                yield row
                continue
            values = (None if value is ABSENT else value for value in row.values)
            elements = dict(zip(("id", *ELEMENTS[kind]), values, strict=True))
            try:
                if elements["resourcetype"] != kind:
                    raise Rejected(f"a resource other than {kind}")
                yield Record(record(elements), row.file, row.line)
            except Rejected as rejected:
                yield rejected.at(row.file, row.line)

    for block in frames(stream(), str(file), names, None, reject):
        yield block.assign(**{FILE: str(file)})


def _object(value: object, *keys: str) -> Any:
    """The value below keys of nested objects; None where one is missing or something else."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def codes_of(value: object) -> list[str]:
    """The codes of a Coding or CodeableConcept, or of a list of them, each before the text.

    `{"coding": [{"code": "EM"}], "text": "Emergency"}` gives `["Emergency", "EM"]`.
    """
    if isinstance(value, list):
        return [code for coding in value for code in codes_of(coding)]
    if not isinstance(value, dict):
        return []
    texts = [value.get("text"), value.get("code")]
    return [text for text in texts if isinstance(text, str)] + codes_of(value.get("coding"))


def _id_of(reference: object) -> str:
    """The id in a reference: `123` of `Patient/123`, or of an address that ends so."""
    text = _object(reference, "reference")
    return text.split("/_history/")[0].rpartition("/")[2] if isinstance(text, str) else ""


class FhirStayReader:
    """Encounters, with what Patient says of their subjects."""

    def __init__(self, source: FhirStays) -> None:
        self._source, self._files = source, files_of(source.path, FHIR_STAYS)
        self.file = next(path for name, path in self._files.items() if "encounter" in name.lower())

    def blocks(self, reject: Reject) -> Iterator[pd.DataFrame]:
        """Streams the encounters, admissions or not."""
        patients = self._patients(reject)
        names = ("subject_id", "hadm_id", "admitted_at", "discharged_at", "admission_type", "discharge_location")
        for name, file in self._files.items():
            if "encounter" in name.lower():
                for block in _resources(file, "Encounter", (*names, "status"), self._encounter, reject):
                    table = block.drop(columns="status").merge(patients, on="subject_id", how="left")
                    yield table.assign(
                        is_void=block["status"].isin(VOID).to_numpy(),
                        is_still_in=block["status"].isin(STILL_IN).to_numpy(),
                        is_listed=table["is_listed"].notna(),
                        is_dead_undated=table["is_dead_undated"].eq(True),
                        is_born_by_year=table["is_born_by_year"].eq(True),
                    )

    def _encounter(self, encounter: Mapping[str, Any]) -> tuple[Any, ...]:
        about = encounter["hospitalization"] or encounter["admission"]
        elements = {**encounter, "admit_source": _object(about, "admitSource")}
        types = [code for name in self._source.admission_types for code in codes_of(elements[name])]
        period, end = encounter["period"], _object(about, "dischargeDisposition")
        times = (_object(period, "start"), _object(period, "end"))
        ids = (_id_of(encounter["subject"]), encounter["id"])
        return *ids, *times, tuple(types), tuple(codes_of(end)), encounter["status"]

    def _patients(self, reject: Reject) -> pd.DataFrame:
        """Reads a row for each patient; rejects other rows of one, and counts copies once."""
        names = ("subject_id", "sex", "race", "born", "is_born_by_year", "died_at", "is_dead_undated")
        files = [file for name, file in self._files.items() if "patient" in name.lower()]
        blocks = [block for file in files for block in _resources(file, "Patient", names, _patient, reject)]
        if not blocks:
            raise RequestError(f"{files[0]} has no patients. Check that it is the right one and complete.")
        patients = without_copies(pd.concat(blocks, ignore_index=True), files[0])
        is_again = patients.duplicated("subject_id")
        for path, row in places(patients[is_again], files[0]):
            reject(path, row, "a Patient with an id that an earlier one has")
        return patients[~is_again].drop(columns=[ROW, FAULT, FILE]).assign(is_listed=True)


def _patient(patient: Mapping[str, Any]) -> tuple[Any, ...]:
    died, born = patient["deceaseddatetime"], patient["birthdate"]
    is_by_year = isinstance(born, str) and len(born) == len("1950")
    if isinstance(born, str):
        born += "-01-01"[len(born) - len("1950") :]  # a year or a month becomes its first day
    sex = SEXES.get(str(patient["gender"]), patient["gender"])
    is_dead_undated = died is None and patient["deceasedboolean"] is True
    return patient["id"], sex, _race(patient["extension"]), born, is_by_year, died, is_dead_undated


def _race(extensions: object) -> str | None:
    """The text or display of US Core's extension of race."""
    for extension in extensions if isinstance(extensions, list) else []:
        if str(_object(extension, "url")).endswith(RACE):
            parts = _object(extension, "extension")
            for part in parts if isinstance(parts, list) else []:
                text = _object(part, "valueString") or _object(part, "valueCoding", "display")
                if isinstance(text, str):
                    return text
    return None


class FhirNoteReader:
    """The documents with plain text."""

    def __init__(self, source: FhirNotes) -> None:
        self.files: Mapping[str, Path] = files_of(source.path, FHIR_NOTES)

    def blocks(self, table: str, reject: Reject) -> Iterator[pd.DataFrame]:
        """Streams the documents of a file."""
        names = ("subject_id", "hadm_id", "charted_at", "stored_at", "note_type", "text", "status")
        for block in _resources(self.files[table], "DocumentReference", names, _document, reject):
            yield block.assign(is_withdrawn=block["status"].isin(WITHDRAWN))


def _document(document: Mapping[str, Any]) -> tuple[Any, ...]:
    context = document["context"]  # of R5 a list of encounters, beside the period
    encounters = context if isinstance(context, list) else _object(context, "encounter")
    encounter = encounters[0] if isinstance(encounters, list) and encounters else None
    period = document["period"] or _object(context, "period")
    stored = document["date"]
    charted = _object(period, "start") or stored
    text = "" if document["status"] in WITHDRAWN else _text(document["content"])
    ids = (_id_of(document["subject"]), _id_of(encounter))
    return *ids, charted, stored, tuple(codes_of(document["type"])), text, document["status"]


def _text(content: object) -> str:
    """The plain text of a document's attachments. Raises Rejected where there is none in the resource itself."""
    attachments = [_object(part, "attachment") for part in content] if isinstance(content, list) else []
    plain = [one for one in attachments if str(_object(one, "contentType")).partition(";")[0].strip() == "text/plain"]
    if not plain:
        raise Rejected("no attachment of text/plain")
    data = _object(plain[0], "data")
    if not isinstance(data, str):
        raise Rejected("an attachment that is elsewhere (url)" if _object(plain[0], "url") else "an empty attachment")
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Rejected("an attachment that is no text of UTF-8 in base64") from None
