"""The stage `teachers.train`: an English sentence encoder learns from labelled pairs or triplets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertrelay.data.records import Rejects
from bertrelay.data.tokens import Tokens, tokenizer_of, tokens_of
from bertrelay.errors import RequestError
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import Batch, train
from teachers.build import start_encoder
from teachers.dev import DevData, criterion, dev_figures, read_dev
from teachers.examples import Examples, read_examples
from teachers.model import Teacher, save_head, start_head
from teachers.objectives import cosine_loss, softmax_loss, triplet_loss
from teachers.settings import TrainSettings

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
        return dev_figures(self.model, self.dev, self.classes, self.settings)


def _as_tensor(labels: list[Any], classes: list[str], objective: str) -> Tensor:
    """Class numbers, scores, or zeros that no triplet looks at, (items,)."""
    if objective == "softmax":
        number = {name: index for index, name in enumerate(classes)}
        return torch.tensor([number[label] for label in labels])
    return torch.zeros(len(labels)) if objective == "triplet" else torch.tensor(labels, dtype=torch.float32)
