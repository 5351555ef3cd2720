"""How far the probabilities of several labels are to be believed: AUROC, accuracy, what is taken for what."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.stage import Metrics
from domain.clinical.outcomes.bootstrap import with_intervals
from domain.clinical.outcomes.measures import Flags, Floats, Ranking, auroc, ratio
from domain.clinical.outcomes.outcome import Kind
from domain.clinical.outcomes.slices import FEWEST


@dataclass(frozen=True)
class JudgedLabels:
    """Admissions with their probabilities and what came of them.

    subjects: (admissions,). labels, probabilities: (admissions, labels).
    """

    subjects: NDArray[Any]
    labels: Flags
    probabilities: Floats
    kind: Kind

    @property
    def is_known(self) -> Flags:
        """Of which labels there is an AUROC: true of some admissions and not of others, (labels,)."""
        counts = self.labels.sum(axis=0)
        known: Flags = (counts > 0) & (counts < len(self.labels))
        return known

    @property
    def likeliest(self) -> NDArray[np.int64]:
        """The label that is told of each admission, (admissions,)."""
        told: NDArray[np.int64] = np.argmax(self.probabilities, axis=1)
        return told


def label_figures(judged: JudgedLabels, seed: int = 0) -> Metrics:
    """Every figure of test admissions, with a 95 % interval that resamples subjects.

    `auroc_macro`, the mean over labels of each against the rest, those left out that are true of none or of all, and in
    a resample those that are so there. Of labels that exclude each other `accuracy`, the likeliest label being told; of
    others `auroc_micro`, of all pairs of admission and label together.
    """
    known = np.flatnonzero(judged.is_known)
    rankings = [Ranking(judged.probabilities[:, label], judged.labels[:, label]) for label in known]
    pooled = Ranking(judged.probabilities.ravel(), judged.labels.ravel())
    is_right = judged.likeliest == judged.labels.argmax(1)

    def of(weights: Floats) -> dict[str, Floats]:
        figures = {"auroc_macro": _mean([auroc(*ranking.counts(weights)) for ranking in rankings], weights)}
        if judged.kind == "multi-class":
            return figures | {"accuracy": ratio(weights @ is_right.astype(np.float64), weights.sum(-1))}
        return figures | {"auroc_micro": np.apply_along_axis(micro, -1, weights)}

    def micro(weights: Floats) -> Floats:
        """Of one resample, (admissions,): all at once would be labels times as large as the others."""
        return auroc(*pooled.counts(np.repeat(weights, judged.labels.shape[1])))

    counts = {"labels": len(judged.is_known), "labels_left_out": int((~judged.is_known).sum())}
    return with_intervals(of, judged.subjects, seed=seed) | counts


def _mean(figures: list[Floats], weights: Floats) -> Floats:
    """The mean of those that are defined, resample by resample."""
    if not figures:
        return np.full(weights.shape[:-1], np.nan)
    stacked = np.stack(figures)
    return ratio(np.nansum(stacked, axis=0), (~np.isnan(stacked)).sum(axis=0))


def confusion(judged: JudgedLabels) -> list[list[int] | None]:
    """How many admissions of each label, a row, were taken for each, a column.

    A row with a count below ten that is not 0 is None; and where it is the only one, the next smallest row is too, for
    else the accuracy would tell.
    """
    size = judged.labels.shape[1]
    table = np.zeros((size, size), np.int64)
    np.add.at(table, (judged.labels.argmax(1), judged.likeliest), 1)
    rows: list[list[int]] = table.tolist()
    hidden = [row for row in rows if any(0 < count < FEWEST for count in row)]
    if len(hidden) == 1 and size > 1:
        hidden.append(min((row for row in rows if row not in hidden), key=sum))
    return [None if row in hidden else row for row in rows]
