"""The stages `domain.readmission` and `domain.outcome`: a BERT learns from notes what becomes of a patient, and is
judged admission by admission.

They write `model/`, `scores.parquet` (validation and test), `slices.json`, `flow.csv`, and of a task that is true or
not `curves.json`, of one with classes `confusion.json`.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from bertrelay.errors import RequestError
from bertrelay.fingerprint import Digests, fingerprint
from bertrelay.hardware import default_device
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.loop import train
from domain.clinical.ids import canonical_id
from domain.clinical.notes.chunk_tokens import stored_chunk_tokens, unknown_shares, unreadable, warn_of_unknown
from domain.clinical.notes.chunks import Chunker
from domain.clinical.outcomes.classifier import start_model
from domain.clinical.outcomes.judgement import judge
from domain.clinical.outcomes.labelled_notes import LabelledNotes, read_labelled_notes
from domain.clinical.outcomes.measures import Floats
from domain.clinical.outcomes.outcome import OUTCOMES
from domain.clinical.outcomes.outcome_settings import (
    PAPERS_C,
    LearningSettings,
    OutcomeModelSettings,
    OutcomeSettings,
    ReadmissionSettings,
)
from domain.clinical.outcomes.outcome_task import OutcomeTask
from domain.pretraining.vocabulary import plain_rules


def run(settings: ReadmissionSettings, context: StageContext) -> Metrics:
    """Who comes back: trains a model, settles c, recalibration and threshold on validation, and judges it.

    Raises RequestError for notes and cohorts that cannot be learnt from, and for a base that cannot learn it.
    """
    notes = read_labelled_notes(Path(settings.notes), Path(settings.cohort))
    risks = None if settings.risk is None else _true_risks(notes, Path(settings.risk))
    return _learnt(notes, settings, context, risks)


def run_outcome(settings: OutcomeSettings, context: StageContext) -> Metrics:
    """The other tasks, from early notes: the same training, and the figures of their kind.

    Raises RequestError as `run` does, and for notes that give the outcome away.
    """
    outcome = OUTCOMES[settings.task]
    notes = read_labelled_notes(Path(settings.notes), Path(settings.cohort), outcome, settings.groups)
    return _learnt(notes, settings, context)


def _learnt(
    notes: LabelledNotes, settings: LearningSettings, context: StageContext, risks: Floats | None = None
) -> Metrics:
    if settings.control == "shuffled_labels":
        notes = notes.with_shuffled_labels(settings.seed)
    task = _task(settings, notes, context)
    metrics = train(task, settings, context.output, context.work)
    if not context.process_group.is_main:
        return {}
    return metrics | judge(task, settings, context.output, risks)


def _task(settings: LearningSettings, notes: LabelledNotes, context: StageContext) -> OutcomeTask:
    how = OutcomeModelSettings(
        task=notes.outcome.name,
        labels=list(notes.names),
        input=notes.input,
        pooling=settings.pooling,
        chunking=settings.chunking,
        aggregation=settings.aggregation,
        c=PAPERS_C if settings.c == "chosen" else settings.c,
    )
    model = start_model(
        settings.base, how, dropout=settings.dropout, seed=settings.seed, cache_dir=context.cache / "hub"
    )
    model.network.to(default_device())
    rules = plain_rules(model.tokenizer).to_str()
    parts = {"notes": Digests().of_file(notes.file), "rules": rules, "chunking": settings.chunking.model_dump()}
    folder = context.cache / "chunks" / fingerprint(parts)[:32]
    chunker = Chunker(model.tokenizer, settings.chunking)
    tokens = stored_chunk_tokens(notes.texts(), len(notes), chunker, folder)
    unknown = unknown_shares(tokens, len(notes), chunker)
    unread = np.flatnonzero(unreadable(tokens, len(notes), chunker))
    if len(unread):
        raise RequestError(
            "notes: expected a text that the base can read for every stay, found white space, what its tokenizer drops "
            f"or no word of its vocabulary for {len(unread):,} of {len(notes):,} in {notes.file}, the first in row "
            f"{unread[0] + 1:,}. Leave these notes out, or take a base that knows their language."
        )
    warn_of_unknown(unknown)
    notes = replace(notes, table=notes.table.assign(unknown_share=unknown))
    return OutcomeTask(model, settings, notes, tokens)


def _true_risks(notes: LabelledNotes, file: Path) -> Floats:
    """The true risk of each stay, (stays,). Raises RequestError where the table lacks that of a test stay."""
    try:
        table = pd.read_csv(file, dtype={"hadm_id": str, "true_risk": float}, usecols=["hadm_id", "true_risk"])
    except (OSError, ValueError) as error:
        raise RequestError(
            f"risk: expected a CSV file with the columns hadm_id and true_risk, found something else in {file} "
            f"({type(error).__name__})"
        ) from None  # whose words tell the value of a cell
    by_id = dict(zip(table["hadm_id"].map(canonical_id), table["true_risk"], strict=True))
    risks = np.array(notes.table["hadm_id"].map(by_id), np.float64)
    missing = int(np.isnan(risks[notes.is_in("test")]).sum())
    if missing:
        raise RequestError(
            f"risk: expected the true risk of every test admission, found none of {missing:,} in {file}. "
            "Give the one of the same hospital."
        )
    return risks
