"""The stage `teachers.train`: trains an English sentence encoder on labelled pairs, triplets or anchors."""

from collections.abc import Mapping, Sequence
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
from bertrelay.device import ComputePrecision
from bertrelay.encode_files import fill_vectors
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import in_folder_order
from bertrelay.model.new import bert_config, new_network, train_wordpiece
from bertrelay.model.pooling import Pooling, Projection
from bertrelay.model.settings import NewEncoder
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, map_over_processes
from bertrelay.report import model_name, write_report
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import train
from bertrelay.training.task import Batch
from teachers.data import MOST_CLASSES, Examples, log_shared_pairs, read_examples
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics
from teachers.model import Teacher, TrainableEncoder, save_head, start_head
from teachers.objectives import OBJECTIVES, DevItems, LossInputs, matryoshka
from teachers.report import training_report
from teachers.settings import ObjectiveSettings, TrainSettings

STS_MEAN = "dev/sts/spearman_cosine"


def start_encoder(settings: TrainSettings, sentences: Sequence[str], context: StageContext) -> SentenceEncoder:
    """Makes the encoder before its first step, with the pooling, linear layer and length of the settings."""
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
    """Training examples, and held-out data that selects the best weights, either part of which may be absent.

    classes: sorted names where the rows of the objective have a class.
    """

    train: Examples
    dev: Examples | None = None
    dev_sts: Mapping[str, StsPairs] = field(default_factory=dict)
    classes: Sequence[str] = ()

    @classmethod
    def read(cls, settings: ObjectiveSettings, context: StageContext) -> Self:
        """Reads all tables of the settings; lists unusable rows in `rejects.jsonl`.

        Raises RequestError for a single class, and for dev data of other classes than the training data has.
        """
        listed = context.output / "rejects.jsonl" if context.process_group.is_main else None
        rows = OBJECTIVES[settings.objective].rows

        def read_part(tables: list[Table]) -> Examples:
            return read_examples(tables, rows, context, rejects, settings.score_range, settings.max_swapped)

        with Rejects(listed, settings.max_rejects) as rejects:
            train = read_part(settings.train)
            dev_sts = {name: read_sts(table, context, rejects) for name, table in settings.dev_sts.items()}
            dev = read_part(settings.dev) if settings.dev else None
        log_shared_pairs(train, dev, {f"dev_sts {name}": pairs.sentence_pairs() for name, pairs in dev_sts.items()})
        return cls(train, dev, dev_sts, _classes(train, dev) if rows.label == "class" else ())


def _classes(train: Examples, dev: Examples | None) -> list[str]:
    classes = sorted(set(train.labels))
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
        encoder.matryoshka_dimensions = tuple(settings.dimensions)
        encoder.save(context.output / "model")
        if teacher.head is not None:
            save_head(teacher.head, data.classes, settings.concatenation, context.output / "head")
        base, items = model_name(settings.base), len(data.train.indices)
        report = training_report(metrics, base=base, items=items, objective=settings.objective)
        write_report(report, context)
    return metrics


def learn(
    encoder: TrainableEncoder, data: TeacherData, settings: ObjectiveSettings, context: StageContext
) -> tuple[Teacher, Metrics]:
    """Trains `encoder` by the objective of the settings; returns it with its head, and the metrics."""
    precision, objective = context.precision(settings.precision), OBJECTIVES[settings.objective]
    check_dimensions(settings.dimensions, encoder.dim)
    sentences = data.train.sentences
    head = start_head(settings, encoder, data.classes) if objective.has_head else None
    tokenize = prompt_tokenizer(encoder)
    tokens = store_tokens(lambda a, b: sentences[a:b], len(sentences), tokenize, context.work / "tokens")
    teacher = Teacher(encoder, head, settings.dropout, settings.concatenation)
    task_type = InBatchTeacherTask if objective.compares_batch else TeacherTask
    guide = None if settings.guide is None else guide_vectors(settings.guide, sentences, precision, context)
    task = task_type(teacher, settings, data, tokens, precision, guide)
    metrics = train(task, settings, context.output, context.work, precision)
    return teacher, {**metrics, "train_items": len(data.train.indices)}


def guide_vectors(
    source: ModelSource, sentences: Sequence[str], precision: ComputePrecision, context: StageContext
) -> NDArray[np.float32]:
    """Computes the unit vectors (sentences, dim) of the model that excludes negatives."""
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
    """The training of a teacher by an objective whose loss is a sum over items.

    guide: unit vectors of the guide, (sentences, dim).
    """

    def __init__(
        self,
        model: Teacher,
        settings: ObjectiveSettings,
        data: TeacherData,
        tokens: Tokens,
        precision: ComputePrecision,
        guide: NDArray[np.float32] | None = None,
    ) -> None:
        self.precision = precision
        self.model, self.settings, self.data, self.tokens, self.guide = model, settings, data, tokens, guide
        self.objective = OBJECTIVES[settings.objective]
        self.labels = self._label_tensor()  # (items,)
        self.indices = data.train.indices
        lengths = tokens.lengths[self.indices]  # (items, sentences of an item)
        self.lengths: NDArray[np.integer] = lengths.sum(axis=1)
        self.padded_lengths: NDArray[np.integer] = lengths.shape[1] * lengths.max(axis=1)  # padded together
        # The mean over the STS sets if there are any, else the metric of the objective.
        self.criterion = STS_MEAN if data.dev_sts else self.objective.metric if data.dev else None

    def _label_tensor(self) -> Tensor:
        labels = self.data.train.labels
        match self.objective.rows.label:
            case "class":
                return torch.tensor([self.data.classes.index(label) for label in labels])
            case "score":
                return torch.tensor(labels)
            case None:
                return torch.zeros(len(labels))

    def collate(self, items: Items, epoch: int) -> Batch:  # noqa: ARG002 (nothing is random here)
        """Pads all first sentences of the items, then all second ones, then the negatives, to one width."""
        ids, mask = self.tokens.padded(self.indices[items].T.reshape(-1), self.model.encoder.pad_id)
        inputs = {"input_ids": ids, "attention_mask": mask, "labels": self.labels[torch.from_numpy(items)]}
        return Batch(inputs, {self.objective.name: len(items)})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        outputs: Tensor = model(batch.inputs["input_ids"], batch.inputs["attention_mask"])
        columns = (outputs,) if self.objective.has_head else outputs.chunk(self.indices.shape[1])
        return self._loss(batch.inputs["labels"], columns)

    def _loss(
        self, labels: Tensor, columns: Sequence[Tensor], sentences: NDArray[np.int64] | None = None
    ) -> Mapping[str, Tensor]:
        settings = self.settings
        inputs = LossInputs(labels, settings.margin, settings.temperature, sentences, self.guide)
        return {self.objective.name: matryoshka(self.objective.loss(inputs), settings.dimensions, *columns)}

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        encode = partial(self.model.encoder.encode, precision=self.precision)
        metrics: Metrics = {}
        if (dev := self.data.dev) is not None:
            vectors = map_over_processes(encode, dev.sentences, process_group)
            by_column = np.moveaxis(vectors[dev.indices], 1, 0)  # (sentences of an item, items, dim)
            metrics[self.objective.metric] = self.objective.measure(DevItems(by_column, dev.labels, self._classify))
        if self.data.dev_sts:
            encode_shared = partial(map_over_processes, encode, process_group=process_group)
            by_set = sts_metrics(self.data.dev_sts, encode_shared, intervals=False)
            values = [value for value in by_set.values() if value is not None]
            metrics |= {f"dev/{name}": value for name, value in by_set.items()}
            metrics[STS_MEAN] = float(np.mean(values)) if values else None
        return metrics

    def _classify(self, first: NDArray[np.float32], second: NDArray[np.float32]) -> list[str]:
        """Returns the most probable class of each pair of vectors, (items, dim) each."""
        device = next(self.model.parameters()).device
        u, v = (torch.from_numpy(vectors).to(device) for vectors in (first, second))
        return [self.data.classes[number] for number in self.model.logits(u, v).argmax(dim=-1).tolist()]


class InBatchTeacherTask(TeacherTask):
    """The training of a teacher by an objective that compares the items of a batch."""

    def vectors(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs: Tensor = model(batch.inputs["input_ids"], batch.inputs["attention_mask"])
        columns = outputs.chunk(self.indices.shape[1])
        return torch.stack(columns, dim=1)  # (items, sentences of an item, dim)

    def batch_losses(self, vectors: Tensor, items: Items, epoch: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        columns = vectors[:, 0], vectors[:, 1:].transpose(0, 1).flatten(0, 1)  # all positives, then all negatives
        return self._loss(self.labels[torch.from_numpy(items)], columns, self.indices[items])
