"""The stages `domain.readmission` and `domain.outcome`: a BERT learns from notes to predict an outcome.

They write `model/`, `scores.parquet` (validation and test), `slices.json`, `flow.csv`, and of a binary task
`curves.json`, of one with classes `confusion.json`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from bertrelay.cache import cached_folder
from bertrelay.compute.engine import LOCAL_ENGINE, Engine
from bertrelay.compute.work import Compute, Work
from bertrelay.data.records import canonical_id
from bertrelay.data.shards import ShardFiles, SpanReader, cut_spans
from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import none_if_nan
from bertrelay.files import read_json, write_json
from bertrelay.fingerprint import Digests, fingerprint
from bertrelay.inference.run_model import connect, fill_shards
from bertrelay.model.tokenizer import plain_rules
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, main_first, map_over_processes
from bertrelay.progress import Bar, progress
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import train
from bertrelay.training.task import Batch
from domain.clinical.chunks import (
    Chunker,
    ChunkTokens,
    chunk_tokens,
    subwords_per_word,
    unknown_shares,
    warn_of_unknown,
)
from domain.clinical.evaluate import ScoredSplit, evaluate_model
from domain.clinical.metrics import Floats, auprc_of, auroc_of, mean_of_known
from domain.clinical.model import OutcomeModel, chunk_log_odds, start_model
from domain.clinical.outcomes import LabelledNotes, read_labelled_notes
from domain.clinical.settings import (
    OUTCOMES,
    PAPERS_C,
    Kind,
    LearningSettings,
    OutcomeModelSettings,
    OutcomeSettings,
    ReadmissionSettings,
)

SHARD_CHARACTERS = 400_000  # of notes, whose chunks a kill costs at most
CRITERION = "validation/auroc"
IDS, CHUNKS, DONE, FORMAT = "ids.bin", "chunks.bin", "done.json", 4


class OutcomeTask:
    """Labels of chunks, as the training loop asks for them; an item is a chunk of a train admission."""

    criterion = CRITERION

    def __init__(
        self,
        model: OutcomeModel,
        settings: LearningSettings,
        notes: LabelledNotes,
        tokens: ChunkTokens,
        precision: ComputePrecision,
    ) -> None:
        self.model, self.outcome_model = model.network, model
        self.notes, self.tokens = notes, tokens
        self.precision = precision
        self.chunks = np.flatnonzero(notes.is_in("train")[tokens.admissions])
        self.weights = chunk_weights(tokens.admissions[self.chunks], settings.share_weight)
        self.lengths = self.padded_lengths = tokens.lengths[self.chunks]

    def collate(self, items: Items, epoch: int) -> Batch:  # noqa: ARG002 (nothing is random here)
        """The chunks `items`, their labels and weights."""
        chunks = self.chunks[items]
        width = int(self.tokens.lengths[chunks].max())
        ids, mask = self.tokens.batch(chunks, width, self.outcome_model.pad_id)
        labels = torch.from_numpy(self.notes.labels[self.tokens.admissions[chunks]]).float()  # (chunks, labels)
        weights = torch.from_numpy(self.weights[items]).float()
        inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels, "weights": weights}
        return Batch(inputs, {self.notes.outcome.name: len(items)})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The negative log-likelihood of the labels, in nats, summed over chunks by their weights."""
        inputs = batch.inputs
        logits = model(inputs["input_ids"], inputs["attention_mask"])  # (chunks, labels)
        of_chunks = negative_log_likelihood(logits, inputs["labels"], self.notes.outcome.kind)  # (chunks,)
        return {self.notes.outcome.name: (inputs["weights"] * of_chunks).sum()}

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        """AUROC and average precision of the validation admissions, of several labels their means."""
        validation = self.scored("validation", process_group=process_group)
        found = validation.probabilities(self.outcome_model.settings)
        metrics = {CRITERION: auroc_of, "validation/auprc": auprc_of}
        return {name: mean_of_known(metric, found, validation.labels) for name, metric in metrics.items()}

    def scored(self, split: str, bar: Bar | None = None, process_group: ProcessGroup = SINGLE_PROCESS) -> ScoredSplit:
        """The admissions of a split, with the probabilities of their chunks."""
        is_in = self.notes.is_in(split)
        chunks = np.flatnonzero(is_in[self.tokens.admissions])
        numbers = (np.cumsum(is_in) - 1)[self.tokens.admissions[chunks]]
        compute = partial(chunk_log_odds, self.outcome_model, self.tokens, precision=self.precision, bar=bar)
        log_odds = map_over_processes(compute, chunks, process_group)
        return ScoredSplit(split, self.notes.table[is_in], self.notes.labels[is_in], numbers, expit(log_odds))


def negative_log_likelihood(logits: Tensor, labels: Tensor, kind: Kind) -> Tensor:
    """The negative log-likelihood of the labels of each chunk, in nats; both (chunks, labels) to (chunks,)."""
    if kind == "multi-class":
        return cross_entropy(logits, labels, reduction="none")
    return binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(1)


def chunk_weights(admissions: NDArray[np.int64], shared: bool) -> Floats:
    """What each chunk weighs in training, 1 on average: all alike, or the chunks of each admission 1 together."""
    if not shared:
        return np.ones(len(admissions))
    _, numbers, counts = np.unique(admissions, return_inverse=True, return_counts=True)
    return (len(admissions) / len(counts)) / counts[numbers]


def run(settings: ReadmissionSettings, context: StageContext) -> Metrics:
    """30-day readmission: trains a model, fits c, recalibration and threshold on validation, and evaluates it on test.

    Raises RequestError for notes and cohorts that cannot be trained on, and for a base that cannot classify.
    """
    notes = read_labelled_notes(Path(settings.notes), Path(settings.cohort))
    risks = None if settings.risk is None else _true_risks(notes, Path(settings.risk))
    return _trained(notes, settings, context, risks)


def run_outcome(settings: OutcomeSettings, context: StageContext) -> Metrics:
    """The other tasks, from early notes. Raises RequestError as `run` does, and for notes that leak the outcome."""
    outcome = OUTCOMES[settings.task]
    notes = read_labelled_notes(Path(settings.notes), Path(settings.cohort), outcome, settings.groups)
    return _trained(notes, settings, context)


def _trained(
    notes: LabelledNotes, settings: LearningSettings, context: StageContext, risks: Floats | None = None
) -> Metrics:
    if settings.control == "shuffled_labels":
        notes = notes.with_shuffled_labels(settings.seed)
    how = OutcomeModelSettings(
        task=notes.outcome.name,
        labels=list(notes.names),
        **notes.about,
        c=PAPERS_C if settings.c == "chosen" else settings.c,
        **{name: getattr(settings, name) for name in ("pooling", "chunking", "aggregation")},
    )
    model = start_model(settings.base, how, dropout=settings.dropout, seed=settings.seed, cache=context.cache)
    model.network.to(default_device())
    chunker = Chunker(model.tokenizer, settings.chunking)
    rules = plain_rules(model.tokenizer).to_str()
    parts = {"notes": Digests().of_file(notes.file), "rules": rules, "chunking": settings.chunking.model_dump()}
    folder = context.cache.folder / "chunks" / fingerprint(parts | {"format": FORMAT})[:32]
    engine = context.engine_before_training
    with main_first(context.process_group):
        tokens = stored_chunk_tokens(notes.texts, notes.table["characters"].tolist(), chunker, folder, engine)
    unknown, is_unreadable = unknown_shares(tokens, len(notes), chunker)
    if len(unread := np.flatnonzero(is_unreadable)):
        raise RequestError(
            "notes: expected a text that the base can read for every stay, found white space, what its tokenizer drops "
            f"or no word of its vocabulary for {len(unread):,} of {len(notes):,} in {notes.file}, the first in row "
            f"{unread[0] + 1:,}. Leave these notes out, or take a base that knows their language."
        )
    subwords = subwords_per_word(tokens, len(notes), chunker)
    warn_of_unknown(unknown, subwords)
    usual = none_if_nan(float(np.median(subwords[notes.is_in("train")])))
    model = replace(model, settings=how.model_copy(update={"subwords_per_word": usual}))
    notes = replace(notes, table=notes.table.assign(unknown_share=unknown, subwords_per_word=subwords))
    precision = context.precision(settings.precision)
    task = OutcomeTask(model, settings, notes, tokens, precision)
    metrics = train(task, settings, context.output, context.work, precision)
    if not context.process_group.is_main:
        return {}
    with progress("reading chunks", len(tokens) - len(task.chunks), "chunks") as bar:
        validation, test = task.scored("validation", bar), task.scored("test", bar)
    tested = evaluate_model(model, notes, tokens, validation, test, settings, context.output, risks)
    return tested | metrics  # those of test come first


def _true_risks(notes: LabelledNotes, file: Path) -> Floats:
    """The true risk of each stay, (stays,). Raises RequestError where the table lacks that of a test stay."""
    try:
        table = pd.read_csv(file, dtype={"hadm_id": str, "true_risk": float}, usecols=["hadm_id", "true_risk"])
    except (OSError, ValueError) as error:
        raise RequestError(
            f"risk: expected a CSV file with the columns hadm_id and true_risk, found something else in {file} "
            f"({type(error).__name__})"
        ) from None  # pandas quotes the value of a cell
    try:
        by_id = dict(zip(table["hadm_id"].map(canonical_id), table["true_risk"], strict=True))
    except ValueError as error:
        raise RequestError(f"risk: expected ids of admissions in {file}, found {error}") from None
    risks = np.array(notes.table["hadm_id"].map(by_id), np.float64)
    missing = int(np.isnan(risks[notes.is_in("test")]).sum())
    if missing:
        raise RequestError(
            f"risk: expected the true risk of every test admission, found none of {missing:,} in {file}. "
            "Give the one of the same hospital."
        )
    return risks


def stored_chunk_tokens(
    texts: Callable[[], Iterator[str]],
    characters: Sequence[int],
    chunker: Chunker,
    folder: Path,
    engine: Engine = LOCAL_ENGINE,
) -> ChunkTokens:
    """The chunks of some texts, read from `folder` or written there first, by whichever process comes first.

    texts: begins to read them; they have so many `characters` each.
    folder: named by the caller after everything the chunks depend on.
    engine: where they are cut; this process sends the texts.
    Killed, it resumes at the shards that are missing. Raises WorkError for texts that changed.
    """
    spans = cut_spans(((size, size) for size in characters), SHARD_CHARACTERS)

    def cut(building: Path) -> None:
        reader = SpanReader(texts, "notes: the input", len)
        work = Work(reader.read, partial(_start, chunker), "cutting notes into chunks", "characters")
        with connect(engine) as executor:
            shards = fill_shards(
                building / "shards",
                spans,
                {"block": SHARD_CHARACTERS},
                work,
                suffix=".npz",
                write=_write_shard,
                executor=executor,
            )
        _assemble(shards, building)
        shards.remove()

    cached_folder(folder, cut, resume=True)
    admissions, starts, ends, lengths = np.fromfile(folder / CHUNKS, np.int64).reshape(-1, 4).T.copy()
    ids: Any = np.memmap(folder / IDS, np.int32, "r") if len(lengths) else np.zeros(0, np.int32)
    lost, places = read_json(folder / DONE) or {}, np.stack([starts, ends], axis=1)
    return ChunkTokens(ids, np.cumsum(lengths) - lengths, lengths, admissions, places, **lost)


def _start(chunker: Chunker) -> Compute[list[str], ChunkTokens]:
    """Cuts the texts of spans into chunks, whose admissions count from the first one of their span."""

    def tokens(spans: Iterable[list[str]], bar: Bar) -> Iterator[ChunkTokens]:
        for texts in spans:
            yield chunk_tokens(texts, chunker)
            bar.advance(sum(map(len, texts)))

    return tokens


def _write_shard(path: Path, tokens: ChunkTokens) -> None:
    chunks = np.column_stack([tokens.admissions, tokens.spans, tokens.lengths])  # (chunks, 4)
    with path.open("wb") as file:
        np.savez(file, ids=tokens.ids, chunks=chunks, lost=tokens.lost_chunks)


def _assemble(shards: ShardFiles, folder: Path) -> None:
    """Writes what all shards hold to `folder`."""
    lost = 0
    with (folder / IDS).open("wb") as ids, (folder / CHUNKS).open("wb") as chunks:
        for path, span in zip(shards.complete(), shards.spans, strict=True):
            with np.load(path) as shard:
                ids.write(shard["ids"].tobytes())
                chunks.write((shard["chunks"] + [span.first, 0, 0, 0]).tobytes())
                lost += int(shard["lost"])
    write_json(folder / DONE, {"lost_chunks": lost})
