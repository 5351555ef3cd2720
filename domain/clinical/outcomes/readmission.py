"""The stage `domain.readmission`: a BERT learns from notes who comes back, and is judged admission by admission.

Writes `model/`, `scores.parquet` (validation and test), `curves.json`, `slices.json` and `flow.csv`.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from bertrelay.errors import RequestError
from bertrelay.fingerprint import Digests, fingerprint
from bertrelay.hardware import accelerator
from bertrelay.stage import Metrics, StageContext
from bertrelay.training import train
from domain.clinical.ids import canonical_id
from domain.clinical.notes.chunk_tokens import stored_chunk_tokens
from domain.clinical.notes.chunks import Chunker
from domain.clinical.outcomes.classifier import start_model
from domain.clinical.outcomes.judgement import Judgement
from domain.clinical.outcomes.labelled_notes import LabelledNotes, read_labelled_notes
from domain.clinical.outcomes.measures import Floats
from domain.clinical.outcomes.readmission_settings import ReadmissionModelSettings, ReadmissionSettings
from domain.clinical.outcomes.readmission_task import ReadmissionTask
from domain.pretraining.vocabulary import plain_rules

PAPERS_C = 2.0
"""Until the validation admissions choose another."""


def run(settings: ReadmissionSettings, context: StageContext) -> Metrics:
    """Trains a model, settles c, temperature and threshold on the validation admissions, and judges it on the others.

    Raises RequestError for notes and cohorts that cannot be learnt from, and for a base that cannot learn it.
    """
    notes = read_labelled_notes(Path(settings.notes), Path(settings.cohort))
    if settings.control == "shuffled_labels":
        notes = notes.with_shuffled_labels(settings.seed)
    risks = None if settings.risk is None else _true_risks(notes, Path(settings.risk))
    task = _task(settings, notes, context)
    metrics = train(task, settings, context.output, context.work)
    if not context.world.is_main:
        return {}
    return metrics | Judgement(task, settings, context.output, risks).of_all()


def _task(settings: ReadmissionSettings, notes: LabelledNotes, context: StageContext) -> ReadmissionTask:
    c = PAPERS_C if settings.c == "chosen" else settings.c
    how = ReadmissionModelSettings(chunking=settings.chunking, aggregation=settings.aggregation, c=c)
    model = start_model(
        settings.base, how, dropout=settings.dropout, seed=settings.seed, cache_dir=context.cache / "hub"
    )
    model.network.to(accelerator().device)
    rules = plain_rules(model.tokenizer).to_str()
    parts = {"notes": Digests().of_file(notes.file), "rules": rules, "chunking": settings.chunking.model_dump()}
    folder = context.cache / "chunks" / fingerprint(parts)[:32]
    tokens = stored_chunk_tokens(notes.texts(), len(notes), Chunker(model.tokenizer, settings.chunking), folder)
    return ReadmissionTask(model, settings, notes, tokens)


def _true_risks(notes: LabelledNotes, file: Path) -> Floats:
    """The true risk of each stay, (stays,). Raises RequestError where the table lacks that of a test stay."""
    try:
        table = pd.read_csv(file, dtype={"hadm_id": str, "true_risk": float}, usecols=["hadm_id", "true_risk"])
    except (OSError, ValueError) as error:
        raise RequestError(
            f"risk: expected a CSV file with the columns hadm_id and true_risk, found something else in {file} "
            f"({type(error).__name__})"
        ) from error
    by_id = dict(zip(table["hadm_id"].map(canonical_id), table["true_risk"], strict=True))
    risks = np.array(notes.table["hadm_id"].map(by_id), np.float64)
    missing = int(np.isnan(risks[notes.is_in("test")]).sum())
    if missing:
        raise RequestError(
            f"risk: expected the true risk of every test admission, found none of {missing:,} in {file}. "
            "Give the one of the same hospital."
        )
    return risks
