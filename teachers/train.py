"""The stage `teachers.train`: an English sentence encoder is trained on labelled pairs or triplets."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import BertModel

from bertrelay.data.records import Rejects
from bertrelay.data.tokens import Tokens, tokenizer_of, tokens_of
from bertrelay.distributed import wait_for_all
from bertrelay.encoder import SentenceEncoder
from bertrelay.encoder_settings import NewEncoder
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.evaluation.statistics import share, spearman
from bertrelay.files import read_json, write_json
from bertrelay.new_encoder import bert_config, start_positions, train_wordpiece
from bertrelay.pooling import Projection
from bertrelay.settings import AnySettings
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import Batch, train
from bertrelay.training.settings import TrainingSettings
from teachers.data import Examples, read_examples
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics
from teachers.objectives import Teacher, cosine_loss, save_head, softmax_loss, start_head, triplet_loss
from teachers.settings import TrainSettings


def start_encoder(settings: TrainSettings, sentences: Sequence[str], context: StageContext) -> SentenceEncoder:
    """The encoder before its first step."""
    if isinstance(settings.base, NewEncoder):
        encoder = new_bert(settings.base, sentences, settings.seed)
    else:
        encoder = SentenceEncoder.load(settings.base, cache_dir=context.cache / "hub")
    return _as_set(encoder, settings)


def new_bert(size: NewEncoder, sentences: Sequence[str], seed: int) -> SentenceEncoder:
    """A BERT with random weights and a WordPiece vocabulary trained on `sentences`."""
    tokenizer = train_wordpiece(sentences, size.vocabulary, size.max_tokens, lowercase=not size.cased)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = BertModel(bert_config(size, tokenizer))
    start_positions(network, size)
    return SentenceEncoder(network, tokenizer)


def _as_set(encoder: SentenceEncoder, settings: TrainSettings) -> SentenceEncoder:
    """The encoder with the pooling, linear layer and length of the settings, where they say anything."""
    pooling = encoder.pooling if settings.pooling is None else settings.pooling
    changed = SentenceEncoder(
        encoder.backbone,
        encoder.tokenizer,
        pooling=pooling,
        projection=encoder.projection,
        normalize=encoder.normalize,
        max_tokens=settings.max_tokens or encoder.max_tokens,
        prompts=encoder.prompts,
        similarity_fn_name=encoder.similarity_fn_name,
    )
    if settings.linear and changed.projection is None:  # a base that has one keeps it
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            changed.projection = Projection(changed.pooled_dim, changed.pooled_dim)
    return changed


STS_MEAN = "dev/sts/spearman_cosine"
OWN = {"softmax": "dev/accuracy", "cosine": "dev/spearman_cosine", "triplet": "dev/triplet_accuracy"}


@dataclass(frozen=True)
class DevData:
    """Held-out data that chooses the best weights; either part may be absent."""

    examples: Examples | None
    sts: dict[str, StsPairs]


def read_dev(settings: TrainSettings, context: StageContext, rejects: Rejects) -> DevData:
    sts = {name: read_sts(table, context, rejects) for name, table in settings.dev_sts.items()}
    return DevData(read_examples(settings.dev, settings, context, rejects) if settings.dev else None, sts)


def criterion(settings: TrainSettings) -> str | None:
    """The metric that chooses weights: the mean over the STS sets if there are any, else the objective's own."""
    if settings.dev_sts:
        return STS_MEAN
    return OWN[settings.objective] if settings.dev else None


def dev_metrics(model: Teacher, dev: DevData, classes: list[str], settings: TrainSettings) -> Metrics:
    """Every dev metric of `model`."""
    metrics: Metrics = {}
    if dev.examples is not None:
        metrics[OWN[settings.objective]] = _own_measure(model, dev.examples, classes, settings)
    if dev.sts:
        by_set = sts_metrics(dev.sts, lambda texts: _encode(model, texts, settings), intervals=False)
        known = [value for value in by_set.values() if value is not None]
        metrics |= {f"dev/{name}": value for name, value in by_set.items()}
        metrics[STS_MEAN] = float(np.mean(known)) if known else None
    return metrics


def _own_measure(model: Teacher, examples: Examples, classes: list[str], settings: TrainSettings) -> float | None:
    sides = np.moveaxis(_encode(model, examples.sentences, settings)[examples.indices], 1, 0)  # (2 or 3, items, dim)
    if settings.objective == "cosine":
        return spearman(pairwise(sides[0], sides[1]), np.array(examples.labels))
    if settings.objective == "triplet":
        to_positive, to_negative = (np.linalg.norm(sides[0] - side, axis=1) for side in sides[1:])
        return share(to_positive < to_negative)
    u, v = (torch.from_numpy(side).to(model.encoder.device) for side in sides)
    guesses = model.logits(u, v).argmax(dim=-1).tolist()
    return share(np.array([classes[guess] == label for guess, label in zip(guesses, examples.labels, strict=True)]))


def _encode(model: Teacher, sentences: Sequence[str], settings: TrainSettings) -> NDArray[np.float32]:
    vectors: NDArray[np.float32] = model.encoder.encode(sentences, precision=settings.precision)
    return vectors


MOST_CLASSES = 100


def run(settings: TrainSettings, context: StageContext) -> Metrics:
    """Trains a teacher and writes `model/`, with the softmax objective's head beside it in `head/`."""
    with Rejects(
        context.output / "rejects.jsonl" if context.process_group.is_main else None, settings.max_rejects
    ) as rejects:
        examples = read_examples(settings.train, settings, context, rejects)
        dev = read_dev(settings, context, rejects)
    classes = classes_of(examples, dev) if settings.objective == "softmax" else []
    encoder = start_encoder(settings, examples.sentences, context)
    head = start_head(settings, encoder, classes)
    sentences = examples.sentences
    tokens = tokens_of(lambda a, b: sentences[a:b], len(sentences), tokenizer_of(encoder), context.work / "tokens")
    model = Teacher(encoder, head, settings.dropout, settings.concatenation)
    metrics = train(
        TeacherTask(model, settings, examples, classes, tokens, dev), settings, context.output, context.work
    )
    if context.process_group.is_main:
        encoder.save(context.output / "model")
        if head is not None:
            save_head(head, classes, settings, context.output / "head")
    return {**metrics, "train_items": len(examples.indices)}


def classes_of(examples: Examples, dev: DevData) -> list[str]:
    """The classes of the training data; raises RequestError for a single one, and for dev data of other classes."""
    classes = sorted(set(examples.labels))
    if not 2 <= len(classes) <= MOST_CLASSES:  # a column of text taken for labels has thousands, and is not shown
        raise RequestError(f"train: expected 2 to {MOST_CLASSES} classes, found {len(classes):,}. Check `columns`.")
    unknown = set(dev.examples.labels if dev.examples else []) - set(classes)
    if unknown:
        raise RequestError(
            f"dev: expected the classes of the training data ({', '.join(classes)}), "
            f"found {len(unknown):,} other ones as well. Check `columns`."
        )
    return classes


class TeacherTask:
    """One of the three objectives, as the training loop asks for it."""

    def __init__(
        self,
        model: Teacher,
        settings: TrainSettings,
        examples: Examples,
        classes: list[str],
        tokens: Tokens,
        dev: DevData,
    ) -> None:
        self.model, self.settings, self.tokens = model, settings, tokens
        self.classes, self.dev = classes, dev
        self.indices = examples.indices
        self.labels = _as_tensor(examples.labels, classes, settings.objective)
        lengths = tokens.lengths[examples.indices]  # (items, 2 or 3)
        self.lengths: NDArray[np.integer] = lengths.sum(axis=1)
        self.padded_lengths: NDArray[np.integer] = lengths.shape[1] * lengths.max(axis=1)  # padded together
        self.criterion = criterion(settings)

    def collate(self, items: Items, epoch: int) -> Batch:  # noqa: ARG002 (nothing is random here)
        """All first sentences of the items, then all second ones, then the triplets' negatives, padded together."""
        ids, mask = self.tokens.padded(self.indices[items].T.reshape(-1), self.model.encoder.pad_id)
        inputs = {"input_ids": ids, "attention_mask": mask, "labels": self.labels[torch.from_numpy(items)]}
        return Batch(inputs, {self.settings.objective: len(items)})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        outputs = model(batch.inputs["input_ids"], batch.inputs["attention_mask"])
        return {self.settings.objective: self._objective(outputs, batch.inputs["labels"])}

    def _objective(self, outputs: Tensor, labels: Tensor) -> Tensor:
        match self.settings.objective:
            case "softmax":
                return softmax_loss(outputs, labels)
            case "cosine":
                u, v = outputs.chunk(2)
                return cosine_loss(u, v, labels)
            case "triplet":
                anchor, positive, negative = outputs.chunk(3)
                return triplet_loss(anchor, positive, negative, self.settings.margin)

    def evaluate(self) -> Metrics:
        return dev_metrics(self.model, self.dev, self.classes, self.settings)


def _as_tensor(labels: list[Any], classes: list[str], objective: str) -> Tensor:
    """Class numbers, scores, or zeros for triplets, (items,)."""
    if objective == "softmax":
        number = {name: index for index, name in enumerate(classes)}
        return torch.tensor([number[label] for label in labels])
    return torch.zeros(len(labels)) if objective == "triplet" else torch.tensor(labels, dtype=torch.float32)


DONE = "trained.json"


def trained(
    name: str, run: Callable[[AnySettings, StageContext], Metrics], settings: AnySettings, context: StageContext
) -> tuple[Path, Metrics]:
    """The model folder of the training `run` with `settings`, and its metrics; what was done before is not repeated.

    name: of the folder, below the stage's `work`.
    """
    inner = StageContext(context.work / name, context.cache, context.process_group)
    done = read_json(inner.output / DONE)
    if done is None:
        inner.output.mkdir(parents=True, exist_ok=True)
        done = run(settings, inner)
        if context.process_group.is_main:
            write_json(inner.output / DONE, done)
            shutil.rmtree(inner.work, ignore_errors=True)  # its checkpoints
    wait_for_all(context.process_group)
    return inner.output / "model", done


def training_keys(settings: TrainingSettings) -> dict[str, Any]:
    """What `settings` say of the training itself, to be handed on to a training inside the stage."""
    return {key: getattr(settings, key) for key in TrainingSettings.model_fields}
