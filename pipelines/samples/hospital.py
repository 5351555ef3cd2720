"""A synthetic hospital in the form of MIMIC-III or MIMIC-IV, whose patients return with a known probability.

It is written one patient after the other, so that memory does not grow with it.
"""

import csv
import gzip
import io
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from bertrelay.progress import progress
from bertrelay.stage import Metrics, StageContext
from pipelines.samples.forms import write_own_tables
from pipelines.samples.grammar import Scope, grammar, load
from pipelines.samples.notes import MASK, SUMMARY, late_notes_of, notes_of, wordings
from pipelines.samples.patients import draw_subject
from pipelines.samples.settings import HospitalSettings
from pipelines.samples.standard_forms import write_fhir, write_meds, write_omop

MIMIC = "mimic"
SMALL = 150  # patients of a hospital that is written to be looked at
FORMS: dict[str, Callable[[Path, Path], dict[str, int]]] = {
    "table": write_own_tables,
    "omop": write_omop,
    "meds": write_meds,
    "fhir": write_fhir,
}
"""By form, what writes it into a folder, from the folder of MIMIC's tables; rows by file."""
OLDEST_AGE, HIDDEN_YEARS_III = 89, 300

SAME, GOES_WITH, ONE_GROUP, APART = 4, 3, 2, 0


def run(settings: HospitalSettings, context: StageContext) -> Metrics:
    """The stage `samples.hospital`: writes a hospital; the rows of each table, as `rows/admissions`."""
    if not context.process_group.is_main:
        return {}
    counts = write_hospital(context.output, settings)
    return {f"rows/{name.rpartition('/')[2].partition('.')[0].lower()}": n for name, n in counts.items()}


def write_hospitals(folder: Path, seed: int = 7) -> dict[str, int]:
    """Writes a small hospital in the form of each MIMIC, into `hospital-iii` and `hospital-iv`; rows by file."""
    counts: dict[str, int] = {}
    for version in ("III", "IV"):
        name = f"hospital-{version.lower()}"
        settings = HospitalSettings.model_validate({"seed": seed, "subjects": SMALL, "version": version})
        written = write_hospital(folder / name, settings)
        counts |= {f"{name}/{file}": count for file, count in written.items()}
    return counts


def write_hospital(folder: Path, settings: HospitalSettings) -> dict[str, int]:
    """Writes tables into `folder/mimic`, true risks and terms beside them, from `settings` alone; rows by file."""
    files = {table: (f"{MIMIC}/{table}.csv.gz", header) for table, header in columns(settings.version).items()}
    files["risk"] = ("risk.csv.gz", ["subject_id", "hadm_id", "true_risk"])
    counts, numbered = Counter[str](), Counter[str]()
    with ExitStack() as stack, progress("hospital", settings.subjects, "patients") as bar:
        tables = {table: stack.enter_context(_writer(folder / name, header)) for table, (name, header) in files.items()}
        for number in range(settings.subjects):
            for table, row in _rows(settings, number):
                counts[table] += 1
                if row.get("row_id") is None:
                    numbered[table] += 1
                    row["row_id"] = numbered[table]
                tables[table].writerow([row.fill(f"{{{column.lower()}}}") for column in files[table][1]])
            bar.advance()
    written = {name: counts[table] for table, (name, _) in files.items()} | write_terms(folder)
    for form in settings.forms:
        counted = FORMS[form](folder / form, folder / MIMIC)
        written |= {f"{form}/{file}": rows for file, rows in counted.items()}
    return written


def columns(version: str) -> dict[str, list[str]]:
    """The columns of each table of MIMIC-III or -IV."""
    return {table: header.split(",") for table, header in load(f"mimic-{version.lower()}")["tables"].items()}


@contextmanager
def _writer(path: Path, header: list[str]) -> Iterator[Any]:
    """A writer of rows to a compressed table; without name and time in it, the same rows give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(io.BufferedWriter(packed, 1 << 18), encoding="utf-8", newline="") as text,
    ):
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        yield writer


def _rows(settings: HospitalSettings, number: int) -> Iterator[tuple[str, Scope]]:
    """All rows of one patient, each with its table and the features that its columns ask for."""
    subject, random = draw_subject(settings.seed, number)
    is_iii = settings.version == "III"
    notes = notes_of(random, subject, settings.words, early=is_iii)
    notes += late_notes_of(Random(f"{settings.seed} {number} late"), subject)
    form = f"mimic-{settings.version.lower()}"
    tables = {table.rpartition("/")[2].lower(): table for table in columns(settings.version)}
    fixed = {name: random.choice(values) for name, values in load(form)["of_patient"].items()}
    fixed |= {"subject_id": subject.subject_id, "died_at": subject.died}

    def row(features: dict[str, Any]) -> Scope:
        shown = {
            name: value.isoformat(" ", "seconds") if isinstance(value, datetime) else value
            for name, value in (fixed | features).items()
        }
        return Scope(grammar("hospital", form), random, shown)

    first, born = subject.stays[0].admitted, subject.born.date()
    if subject.age > OLDEST_AGE:
        born = first.date().replace(year=first.year - HIDDEN_YEARS_III, day=min(first.day, 28))
    patient = {"sex": subject.sex, "born": born, "died_on": subject.died and subject.died.date(), "age": subject.age}
    patient |= {"is_over_89": subject.age > OLDEST_AGE, "anchor_year": first.year}
    yield tables["patients"], row(patient | {"died_in_hospital": any(stay.died for stay in subject.stays)})
    for stay in subject.stays:
        arrived = stay.admitted - timedelta(hours=random.randint(2, 12)) if stay.kind == "unplanned" else None
        yield tables["admissions"], row(vars(stay) | {"arrived": arrived, "problem": stay.problem["name"].upper()})
        icd_version = 9 if is_iii else random.choice((9, 10))
        for place, each in enumerate((stay.problem, *stay.besides), start=1):
            codes = {"icd_version": icd_version, "icd_code": each[f"icd{icd_version}"], "icd9_code": each["icd9"]}
            yield tables["diagnoses_icd"], row({"hadm_id": stay.hadm_id, "seq_num": place, **codes})
    for place, note in enumerate(notes, start=1):
        soon = note.charted + timedelta(minutes=random.randrange(90)) if is_iii and note.has_time else None
        stored = {"stored_soon": soon, "stored_late": note.charted + timedelta(hours=20)}
        features = vars(note) | stored | {"charted_on": note.charted.date(), "note_seq": place}
        if not is_iii:
            features["text"] = MASK.sub("___", note.text)  # which does not show what it hides
        table = "noteevents" if is_iii else "discharge" if note.category == SUMMARY else "radiology"
        yield tables[table], row(features)
    for stay in subject.stays:
        if stay.prognosis:
            yield "risk", row({"hadm_id": stay.hadm_id, "true_risk": f"{stay.prognosis.risk:.6f}"})


def term_groups() -> dict[str, list[str]]:
    """Terms of the notes, by group."""
    problems = load("hospital")["problems"]
    return {
        "raises the risk": [wording for condition in wordings("conditions") for wording in condition],
        "harmless": list(wordings("harmless")),
        "problem": [problem["name"] for problem in problems],
        "complaint": [problem["complaint"].lower() for problem in problems],
        "medicine": [line.split()[0].lower() for line in wordings("medications")],
        "history": [line.partition(",")[0].lower() for line in wordings("past")],
    }


def term_ratings() -> Iterator[tuple[str, str, int]]:
    """Pairs of terms with their similarity by rule: each term with the next of its group, and one of the next group.

    Two wordings of one condition score 4, a problem and the complaint that comes with it 3, other terms of one group 2,
    and terms of different groups 0. A person would rate them differently; of a sample the rule has to be known.
    """
    yield from ((first, second, SAME) for first, second in wordings("conditions"))
    yield from ((each["name"], each["complaint"].lower(), GOES_WITH) for each in load("hospital")["problems"])
    listed = list(term_groups().values())
    for terms, after in zip(listed, [*listed[1:], listed[0]], strict=True):
        for place, term in enumerate(terms):
            follower = terms[(place + 1) % len(terms)]
            if [term, follower] not in wordings("conditions"):
                yield term, follower, ONE_GROUP
            yield term, after[-1 - place % len(after)], APART


def write_terms(folder: Path) -> dict[str, int]:
    """Writes `terms.csv` and `ratings.csv`; rows by file."""
    terms = [(term, group) for group, listed in term_groups().items() for term in listed]
    tables: dict[str, list[tuple[object, ...]]] = {
        "terms.csv": [("term", "group"), *terms],
        "ratings.csv": [("term1", "term2", "score"), *term_ratings()],
    }
    for name, rows in tables.items():
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    return {name: len(rows) - 1 for name, rows in tables.items()}
