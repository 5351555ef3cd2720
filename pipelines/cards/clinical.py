"""The card of a model of clinical outcomes: intended use, cohort, calibration, limits; never a text of a patient.

Its sections follow the items of Collins et al. (2024), "TRIPOD+AI statement", as far as stages record them.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertrelay.files import read_json
from domain.clinical.groups import AGE_BANDS, LENGTHS, UNKNOWN
from domain.clinical.model import load_model
from domain.clinical.settings import FLOW, SLICES, ModelDescription, in_words
from domain.clinical.stage_files import SPLITS, read_flow, shown_count
from pipelines.cards.content import Section, Subject, literal
from pipelines.cards.results import Result, score_listings, with_interval
from pipelines.cards.settings import CardSettings
from pipelines.report.metrics import read_declarations
from pipelines.report.tables import Listing, MetricValue, shown

EXAMPLE = """\
import pandas as pd

from bertrelay.privacy import sensitive_data
from domain.clinical import OutcomeScorer

notes = pd.DataFrame({{"hadm_id": ["1"], "text": ["The wound is dry. Discharged home."]}})
with sensitive_data():
    print(OutcomeScorer.load("{model}").score(notes))"""
NOT_A_DEVICE = (
    "**For research only; this is no medical device.** It must not guide the care of a patient, nor decide who gets "
    "care or who pays for it."
)
GROUP_NAMES = {*AGE_BANDS, *LENGTHS, UNKNOWN, "F", "M"}
"""Groups that a card may name. Others are named by words of the hospital's tables, which may be anything."""
CALIBRATION = ("brier", "calibration", "observed_expected")
FEW_EVENTS = 100
"""Collins, Ogundimu & Altman (2016): fewer in a test set make its metrics rough."""


def describe(settings: CardSettings, results: Sequence[Result], folder: Path) -> Subject:  # noqa: ARG001
    """The statements on the outcome model in `folder`."""
    model = load_model(folder, backend="torch")
    description, chunking = model.description, model.description.chunking
    names = read_declarations("domain:outcomes")[0].labels["measure"]
    calibration = frozenset(label for name, label in names.items() if name.startswith(CALIBRATION))
    notes = _notes(description)
    return Subject(
        library="transformers",
        task="text-classification",
        tags=["clinical", "medical", "not-a-medical-device"],
        opening=[f"From {notes} it gives the probability {description.meaning}."],
        facts={
            "outcome": literal(", ".join(map(in_words, description.labels))),
            "parameters": f"{sum(weights.numel() for weights in model.network.parameters()):,}",
            "chunks": f"{chunking.max_tokens} tokens, which overlap by {chunking.overlap}"
            + ("" if chunking.max_chunks is None else f", {chunking.max_chunks} at most"),
            "probability of an admission": f"{in_words(description.aggregation)} of its chunks' probabilities"
            + (f", c = {description.c:g}" if description.aggregation == "max_and_mean" else ""),
        },
        examples={"With BertRelay:": EXAMPLE},
        limits=list(_limits(description, results)),
        before_use=[Section("Intended use", list(_intended_use(description, notes)))],
        sections=[*_cohort(description, results), *_calibration(description, results, calibration)],
        set_apart=calibration,
    )


def _notes(description: ModelDescription) -> str:
    """The notes that the model reads, in words."""
    if description.input == "early":
        return "the notes of the first hours of a hospital stay"
    if description.input is None:
        return "the notes of a hospital stay"
    return (
        f"the discharge summaries of a hospital stay{', with its radiology reports' if description.radiology else ''}"
    )


def _intended_use(description: ModelDescription, notes: str) -> Iterator[str]:
    yield NOT_A_DEVICE
    yield (
        f"It is meant for research on hospital stays, with {notes} as it was trained on: "
        f"{literal(description.cut or 'the end of their text is not recorded')}. Other notes, and notes in another "
        "language, are not its subject."
    )
    yield (
        "At another hospital, or in other years, evaluate it first on labelled notes of that hospital: the stage "
        "`domain.outcome-evaluate` measures discrimination and calibration there, and calibrates it anew."
    )


def _cohort(description: ModelDescription, results: Sequence[Result]) -> Iterator[Section]:
    """Yields the admissions of each stage, the steps of their selection, and large groups of patients."""
    if description.prevalence is not None:
        yield Section("Cohort", [f"With the outcome are {description.prevalence:.1%} of the validation admissions."])
    else:
        yield Section("Cohort")
    for result in results:
        counts = {split: result.done.metrics.get(f"admissions/{split}") for split in SPLITS}
        sizes = [f"{shown_count(count)} {split}" for split, count in counts.items() if count]
        admissions = [f"Admissions: {', '.join(sizes)}."] if sizes else []
        if (result.folder / FLOW).is_file():
            yield Section(literal(result.label), admissions, _flow(result.folder / FLOW), level=3)
        if rows := list(_groups(read_json(result.folder / SLICES) or {})):
            columns = ["", "Group", "Admissions", "AUROC", "Observed/expected"]
            title = f"Groups of patients, {literal(result.label)}"
            about = (
                "Groups of the test admissions; small ones and those that are named by a hospital's words are left out."
            )
            yield Section(title, [about], Listing("", columns, rows, texts=2), level=3)


def _flow(file: Path) -> Listing:
    """The steps of a selection with their counts (CONSORT)."""
    columns, rows = read_flow(file)
    return Listing("", list(map(literal, columns)), [[literal(row[0]), *row[1:]] for row in rows])


def _groups(listed: dict[str, Any]) -> Iterator[list[str]]:
    for group in listed.get("slices", []):
        if group["group"] in GROUP_NAMES:
            values = (MetricValue.of(group["metrics"], name) for name in ("auroc", "observed_expected"))
            yield [group["characteristic"], group["group"], f"{group['admissions']:,}", *map(with_interval, values)]


def _calibration(description: ModelDescription, results: Sequence[Result], rows: frozenset[str]) -> Iterator[Section]:
    """Yields the recalibration, the alarm threshold, and the metrics of calibration before and after."""
    if not description.is_binary:
        yield Section("Calibration", ["The probabilities of this outcome are not recalibrated."])
        return
    recalibrated = (
        f"The log-odds of the calibrated probability are {description.slope:.3f} times those of the probability, plus "
        f"{description.intercept:.3f}; both were fitted to the validation admissions."
    )
    required = f"a precision of {description.alarm_precision:g} with 95 % confidence"
    if description.threshold is None:
        alarms = f"There are no alarms: no threshold had {required} on the validation admissions."
    else:
        alarms = f"Alarms are raised from a probability of {shown(description.threshold)} on, which had {required}"
        if description.alarms is not None:
            right, raised = map(shown_count, (description.alarms_right or 0, description.alarms))
            alarms += f": {right} of {raised} validation alarms were right"
        alarms += "."
    about = "Ideal are an observed/expected and a slope of 1, an intercept and an error of 0."
    tables = [table for _, table in score_listings(results, rows.__contains__)]
    yield Section("Calibration", [recalibrated, alarms, *([about] if tables else [])], tables[0] if tables else None)


def _limits(description: ModelDescription, results: Sequence[Result]) -> Iterator[str]:
    metrics = [result.done.metrics for result in results if result.is_of_model]
    if not any("auroc" in measured or "auroc_macro" in measured for measured in metrics):
        yield "No metrics of this model on test admissions are named here."
    if not any(result.kind == "domain.outcome-evaluate" and result.is_of_model for result in results):
        yield "It was evaluated at the hospital of its training only: no external validation is named here."
    for measured in metrics:
        admissions, prevalence = measured.get("admissions/test"), measured.get("prevalence")
        if admissions and prevalence is not None:
            fewest = round(admissions * min(prevalence, 1 - prevalence))
            if fewest < FEW_EVENTS:
                yield f"Few outcomes: {shown_count(fewest)} of the rarer kind among {admissions:,.0f} test admissions."
    if description.chunking.max_chunks is not None:
        yield f"Of longer notes only {description.chunking.max_chunks} chunks are read."
    yield "Probabilities are of a population like that of the cohort; of one patient they say little."
    yield "A chunk that counts much shows what the network responds to, and no cause of the outcome."
    yield "Groups of patients that are not listed above were too small to measure, or are not recorded."
    yield (
        "Biases of the notes, of who wrote them and of who was admitted stay. Weights of a network may reveal parts of "
        "the texts that it was trained on: share the folder under the same rules as the notes."
    )
