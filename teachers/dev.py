"""The dev score of a teacher: by the measure of its own objective, by STS, or by both."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.data.records import Rejects
from bertrelay.evaluation.similarity import pairwise
from bertrelay.evaluation.statistics import share, spearman
from bertrelay.stage import Metrics, StageContext
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics
from teachers.examples import Examples, read_examples
from teachers.model import Teacher
from teachers.settings import TrainSettings

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
    """The figure that chooses: the mean over the STS sets if there are any, else the objective's own measure."""
    if settings.dev_sts:
        return STS_MEAN
    return OWN[settings.objective] if settings.dev else None


def dev_figures(model: Teacher, dev: DevData, classes: list[str], settings: TrainSettings) -> Metrics:
    """Every dev figure of `model` as it stands."""
    figures: Metrics = {}
    if dev.examples is not None:
        figures[OWN[settings.objective]] = _own_measure(model, dev.examples, classes, settings)
    if dev.sts:
        by_set = sts_metrics(dev.sts, lambda texts: _encode(model, texts, settings), intervals=False)
        known = [value for value in by_set.values() if value is not None]
        figures |= {f"dev/{name}": value for name, value in by_set.items()}
        figures[STS_MEAN] = float(np.mean(known)) if known else None
    return figures


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
    return model.encoder.encode(sentences, precision=settings.precision)
