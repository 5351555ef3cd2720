"""The stage `teachers.train`: an English sentence encoder is trained on labelled pairs or triplets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import BertModel

from bertrelay.checks import check_dimensions
from bertrelay.compute.local import LocalExecutor
from bertrelay.data.records import Rejects
from bertrelay.data.tables import Table
from bertrelay.data.tokens import Tokens, prompt_tokenizer, store_tokens
from bertrelay.data.vectors import open_vectors
from bertrelay.device import ComputePrecision, to_device
from bertrelay.encode_files import fill_vectors
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import is_among_nearest, pairwise, unit
from bertrelay.evaluation.statistics import share, spearman
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import in_folder_order
from bertrelay.model.new import bert_config, new_network, train_wordpiece
from bertrelay.model.pooling import Pooling, Projection
from bertrelay.model.settings import NewEncoder
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, map_over_processes
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import train
from bertrelay.training.task import Batch
from teachers.data import MOST_CLASSES, Examples, log_shared_pairs, read_examples
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics
from teachers.model import Teacher, save_head, start_head
from teachers.objectives import (
    angle_similarity,
    contrastive_loss,
    cosent_loss,
    cosine_loss,
    cosines,
    matryoshka,
    softmax_loss,
    triplet_loss,
)
from teachers.settings import IN_BATCH, SCORED, TrainSettings

STS_MEAN = "dev/sts/spearman_cosine"
OWN = {
    "softmax": "dev/accuracy",
    **dict.fromkeys(SCORED, "dev/spearman_cosine"),
    "triplet": "dev/triplet_accuracy",
    "contrastive": "dev/retrieval_accuracy",
}

InBatchLoss = Callable[[Tensor, Tensor], Tensor]
"""The loss of all items of a batch."""


def start_encoder(settings: TrainSettings, sentences: Sequence[str], context: StageContext) -> SentenceEncoder:
    """The encoder before its first step, with the pooling, linear layer and length that the settings name."""
    if isinstance(settings.base, NewEncoder):
        size = settings.base
        tokenizer = train_wordpiece(sentences, size.vocabulary, size.max_tokens, lowercase=not size.cased)
        network = new_network(BertModel, bert_config(size, tokenizer), size, settings.seed)
        encoder = SentenceEncoder(network, tokenizer)
    else:
        encoder = SentenceEncoder.load(settings.base, backend="torch", cache=context.cache, is_base=True)
    pooling = encoder.pooling
    if settings.pooling:
        pooling = Pooling(in_folder_order(settings.pooling), pooling.include_prompt)
    encoder = encoder.with_parts(pooling=pooling, max_tokens=settings.max_tokens or encoder.max_tokens)
    if settings.linear and encoder.projection is None:  # a base that has one keeps it
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            encoder.projection = Projection(encoder.pooled_dim, encoder.pooled_dim)
    return encoder


@dataclass(frozen=True)
class TeacherData:
    """What a teacher learns from, and held-out data that chooses the best weights, either part of which may be absent.

    classes: of the softmax objective, sorted.
    """

    train: Examples
    dev: Examples | None = None
    dev_sts: Mapping[str, StsPairs] = field(default_factory=dict)
    classes: Sequence[str] = ()

    @classmethod
    def read(cls, settings: TrainSettings, context: StageContext) -> Self:
        """Raises RequestError for a single class, and for dev data of other classes than the training data has."""
        listed = context.output / "rejects.jsonl" if context.process_group.is_main else None

        def read_some(tables: list[Table]) -> Examples:
            return read_examples(
                tables, settings.objective, context, rejects, settings.score_range, settings.max_swapped
            )

        with Rejects(listed, settings.max_rejects) as rejects:
            examples = read_some(settings.train)
            dev_sts = {name: read_sts(table, context, rejects) for name, table in settings.dev_sts.items()}
            dev = read_some(settings.dev) if settings.dev else None
        sets = {f"dev_sts {name}": zip(each.first, each.second, strict=True) for name, each in dev_sts.items()}
        log_shared_pairs(examples, dev, sets)
        return cls(examples, dev, dev_sts, _classes(examples, dev) if settings.objective == "softmax" else ())


def _classes(examples: Examples, dev: Examples | None) -> list[str]:
    classes = sorted(set(examples.labels))
    if not 2 <= len(classes) <= MOST_CLASSES:  # a column of text taken for labels has thousands, and is not shown
        raise RequestError(f"train: expected 2 to {MOST_CLASSES} classes, found {len(classes):,}. Check `columns`.")
    unknown = set(dev.labels if dev else []) - set(classes)
    if unknown:
        raise RequestError(
            f"dev: expected the classes of the training data ({', '.join(classes)}), "
            f"found {len(unknown):,} other ones as well. Check `columns`."
        )
    return classes


def run(settings: TrainSettings, context: StageContext) -> Metrics:
    """Trains a teacher and writes `model/`, with the softmax objective's head beside it in `head/`."""
    data = TeacherData.read(settings, context)
    encoder = start_encoder(settings, data.train.sentences, context)
    teacher, metrics = learn(encoder, data, settings, context)
    if context.process_group.is_main:
        encoder.save(context.output / "model")
        if teacher.head is not None:
            save_head(teacher.head, data.classes, settings.concatenation, context.output / "head")
    return metrics


def learn(
    encoder: SentenceEncoder, data: TeacherData, settings: TrainSettings, context: StageContext
) -> tuple[Teacher, Metrics]:
    """Trains `encoder` by the objective of the settings."""
    precision = context.precision(settings.precision)
    check_dimensions(settings.dimensions, encoder.dim)
    sentences = data.train.sentences
    head = start_head(settings, encoder, data.classes) if settings.objective == "softmax" else None
    tokenize = prompt_tokenizer(encoder)
    tokens = store_tokens(lambda a, b: sentences[a:b], len(sentences), tokenize, context.work / "tokens")
    teacher = Teacher(encoder, head, settings.dropout, settings.concatenation)
    kind = InBatchTeacherTask if settings.objective in IN_BATCH else TeacherTask
    guide = None if settings.guide is None else guide_vectors(settings.guide, sentences, precision, context)
    task = kind(teacher, settings, data, tokens, precision, guide)
    metrics = train(task, settings, context.output, context.work, precision)
    return teacher, {**metrics, "train_items": len(data.train.indices)}


def guide_vectors(
    source: ModelSource, sentences: Sequence[str], precision: ComputePrecision, context: StageContext
) -> NDArray[np.float32]:
    """The unit vectors (sentences, dim) of the model that says which negatives are none."""
    path = context.work / "guide.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    fill_vectors(
        SentenceEncoder.load(source, backend="torch", cache=context.cache),
        lambda first, end: list(sentences[first:end]),
        len(sentences),
        path,
        str(source),
        precision=precision,
        executor=LocalExecutor(context.process_group),
        description="guide's vectors",
    )
    return unit(open_vectors(path))


class TeacherTask:
    """An objective whose loss is a sum over items, as the training loop wants it.

    guide: the unit vectors of the guide, (sentences, dim).
    """

    def __init__(
        self,
        model: Teacher,
        settings: TrainSettings,
        data: TeacherData,
        tokens: Tokens,
        precision: ComputePrecision,
        guide: NDArray[np.float32] | None = None,
    ) -> None:
        self.precision = precision
        self.model, self.settings, self.data, self.tokens, self.guide = model, settings, data, tokens, guide
        labels = data.train.labels
        if settings.objective == "softmax":
            labels = [data.classes.index(label) for label in labels]
        has_labels = settings.objective == "softmax" or settings.objective in SCORED
        self.labels = torch.tensor(labels) if has_labels else torch.zeros(len(labels))  # (items,)
        self.indices = data.train.indices
        lengths = tokens.lengths[self.indices]  # (items, sentences of an item)
        self.lengths: NDArray[np.integer] = lengths.sum(axis=1)
        self.padded_lengths: NDArray[np.integer] = lengths.shape[1] * lengths.max(axis=1)  # padded together
        # The mean over the STS sets if there are any, else the objective's own metric.
        self.criterion = STS_MEAN if data.dev_sts else OWN[settings.objective] if data.dev else None

    def collate(self, items: Items, epoch: int) -> Batch:  # noqa: ARG002 (nothing is random here)
        """All first sentences of the items, then all second ones, then the negatives, padded together."""
        ids, mask = self.tokens.padded(self.indices[items].T.reshape(-1), self.model.encoder.pad_id)
        inputs = {"input_ids": ids, "attention_mask": mask, "labels": self.labels[torch.from_numpy(items)]}
        return Batch(inputs, {self.settings.objective: len(items)})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        outputs, labels = model(batch.inputs["input_ids"], batch.inputs["attention_mask"]), batch.inputs["labels"]
        match self.settings.objective:
            case "softmax":
                loss = softmax_loss(outputs, labels)
            case "cosine":
                u, v = outputs.chunk(2)
                loss = matryoshka(lambda u, v: cosine_loss(u, v, labels), self.settings.dimensions, u, v)
            case "triplet":
                anchor, positive, negative = outputs.chunk(3)
                loss = triplet_loss(anchor, positive, negative, self.settings.margin)
        return {self.settings.objective: loss}

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        encode = partial(self.model.encoder.encode, precision=self.precision)
        metrics: Metrics = {}
        if self.data.dev is not None:
            vectors = map_over_processes(encode, self.data.dev.sentences, process_group)
            metrics[OWN[self.settings.objective]] = self._own_metric(self.data.dev, vectors)
        if self.data.dev_sts:
            shared = partial(map_over_processes, encode, process_group=process_group)
            by_set = sts_metrics(self.data.dev_sts, shared, intervals=False)
            known = [value for value in by_set.values() if value is not None]
            metrics |= {f"dev/{name}": value for name, value in by_set.items()}
            metrics[STS_MEAN] = float(np.mean(known)) if known else None
        return metrics

    def _own_metric(self, dev: Examples, vectors: NDArray[np.float32]) -> float | None:
        columns = np.moveaxis(vectors[dev.indices], 1, 0)  # (sentences of an item, items, dim)
        match self.settings.objective:
            case "cosine" | "cosent" | "angle":
                return spearman(pairwise(*columns), np.array(dev.labels))
            case "contrastive":
                return share(is_among_nearest(columns[0], columns[1]).astype(np.float64))
            case "triplet":
                to_positive, to_negative = (np.linalg.norm(columns[0] - other, axis=1) for other in columns[1:])
                return share(to_positive < to_negative)
            case "softmax":
                u, v = (torch.from_numpy(vectors).to(self.model.encoder.device) for vectors in columns)
                guesses = self.model.logits(u, v).argmax(dim=-1).tolist()
                return share(np.array([self.data.classes[guess] for guess in guesses]) == np.array(dev.labels))


class InBatchTeacherTask(TeacherTask):
    """An objective that compares the items of a batch."""

    def vectors(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs: Tensor = model(batch.inputs["input_ids"], batch.inputs["attention_mask"])
        columns = outputs.chunk(self.indices.shape[1])
        return torch.stack(columns, dim=1)  # (items, sentences of an item, dim)

    def batch_losses(self, vectors: Tensor, items: Items, epoch: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        loss = self._contrasted(items) if self.settings.objective == "contrastive" else self._ranked(items)
        columns = vectors[:, 0], vectors[:, 1:].transpose(0, 1).flatten(0, 1)  # all positives, then all negatives
        return {self.settings.objective: matryoshka(loss, self.settings.dimensions, *columns)}

    def _contrasted(self, items: Items) -> InBatchLoss:
        """Of anchors (items, dim) and candidates (candidates, dim)."""
        excluded, positives = torch.from_numpy(self.no_negatives(items)), torch.arange(len(items))

        def loss(anchors: Tensor, candidates: Tensor) -> Tensor:
            scores = cosines(anchors, candidates) / self.settings.temperature  # (items, candidates)
            return contrastive_loss(scores, to_device(positives, scores.device), to_device(excluded, scores.device))

        return loss

    def _ranked(self, items: Items) -> InBatchLoss:
        """Of the first and second sentences of pairs, (items, dim) each."""
        alike = angle_similarity if self.settings.objective == "angle" else torch.cosine_similarity
        gold = self.labels[torch.from_numpy(items)]

        def loss(first: Tensor, second: Tensor) -> Tensor:
            return cosent_loss(alike(first, second) / self.settings.temperature, to_device(gold, first.device))

        return loss

    def no_negatives(self, items: Items) -> NDArray[np.bool_]:
        """The candidates that are no negatives of an anchor, (items, candidates).

        They are its own text, the positives of the same text in other items, and what the guide finds nearer to it
        than its positive.
        """
        texts = self.indices[items]
        anchors, candidates = texts[:, 0], texts[:, 1:].T.reshape(-1)
        same_anchor = (anchors[:, None] == anchors).astype(np.float32)  # (items, items)
        is_positive = (texts[:, 1, None] == candidates).astype(np.float32)  # (items, candidates)
        excluded: NDArray[np.bool_] = (same_anchor @ is_positive > 0) | (anchors[:, None] == candidates)
        if self.guide is not None:
            nearness = self.guide[anchors] @ self.guide[candidates].T  # (items, candidates)
            excluded |= nearness > np.diagonal(nearness)[:, None]
        return excluded
