"""Metrics of predicted outcomes on the test admissions, with intervals that resample subjects; curves, and slices.

Slices are the metrics of groups of patients, or of labels. What a group is called, how many are in it and of how many
of them the outcome is true is published only where of ten or more it is, and of ten or more it is not: fewer may be
identifiable, and a name of a table's own may be anything. Where those left out are fewer together, the next smallest
are left out too, for else a subtraction from the whole would reveal them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrelay.evaluation.statistics import MetricsOfWeights, ratio, with_intervals
from bertrelay.stage import Metrics
from domain.clinical.metrics import (
    CALIBRATION_ERRORS,
    Bins,
    Flags,
    Floats,
    Ranking,
    auroc,
    auroc_of,
    average_precision,
    best_recall,
    calibration_metrics,
)
from domain.clinical.outcomes import Kind, OutcomeModelSettings
from domain.clinical.prediction import aggregate

POINTS = 200
STEPS_OF_READING = 10
FEWEST = 10
AGES = (0, 45, 65, 75, 85, 200)
AGE_BANDS = ("under 45", "45 to 64", "65 to 74", "75 to 84", "85 and over")
LENGTHS = ("shortest quarter", "second quarter", "third quarter", "longest quarter")
GROUPED_BY = {"sex": "sex", "insurance": "insurance", "race": "ethnicity", "admission_type": "admission type"}
UNKNOWN = "unknown"

Slice = dict[str, Any]
"""A group and its metrics; `suppressed` counts small groups of a characteristic in place of them."""


@dataclass(frozen=True)
class Predicted:
    """Admissions with their probabilities and outcomes, all (admissions,).

    calibrated: the recalibrated probabilities; None where there is no recalibration.
    """

    subjects: NDArray[Any]
    outcomes: Flags
    probability: Floats
    calibrated: Floats | None = None

    def of(self, chosen: Flags) -> "Predicted":
        """Those of the admissions that are chosen, (admissions,)."""
        calibrated = None if self.calibrated is None else self.calibrated[chosen]
        return Predicted(self.subjects[chosen], self.outcomes[chosen], self.probability[chosen], calibrated)

    def calibration(self) -> MetricsOfWeights:
        """Calibration after and before the recalibration; nothing where there is none."""
        if self.calibrated is None:
            return lambda _: {}
        return calibration_metrics(self.outcomes, self.probability, self.calibrated)

    def recall_and_precision(self, threshold: float | None, weights: Floats) -> list[Floats]:
        """Of the alarms at a threshold; nan without one."""
        if threshold is None:
            return [np.full(weights.shape[:-1], np.nan)] * 2
        raised = self.probability >= threshold
        hits = weights @ (raised & self.outcomes).astype(np.float64)
        return [ratio(hits, weights @ of.astype(np.float64)) for of in (self.outcomes, raised)]


# Of a binary task


def binary_metrics(predicted: Predicted, threshold: float | None, seed: int = 0) -> Metrics:
    """The metrics of test admissions.

    threshold: of `rp80`, chosen on validation admissions; None where none reached the precision, and then `rp80` is
    None too. `rp80_precision` is what it comes to here, `rp80_optimistic` what a threshold chosen here would reach.
    """
    ranking, outcomes = Ranking(predicted.probability, predicted.outcomes), predicted.outcomes.astype(np.float64)
    calibration = predicted.calibration()

    def of(weights: Floats) -> dict[str, Floats]:
        counts = ranking.counts(weights)
        ranked = {"auroc": auroc(*counts), "auprc": average_precision(*counts), "rp80_optimistic": best_recall(*counts)}
        alarms = dict(zip(("rp80", "rp80_precision"), predicted.recall_and_precision(threshold, weights), strict=True))
        return {**ranked, **alarms, **calibration(weights), "prevalence": ratio(weights @ outcomes, weights.sum(-1))}

    return with_intervals(of, predicted.subjects, distances=CALIBRATION_ERRORS, seed=seed)


def metric_differences(model: Predicted, baseline: Predicted, seed: int = 0) -> Metrics:
    """AUROC and AUPRC of `model` minus those of `baseline` on the same admissions, from the same resamples."""
    rankings = [Ranking(predicted.probability, predicted.outcomes) for predicted in (model, baseline)]

    def of(weights: Floats) -> dict[str, Floats]:
        first, second = (ranking.counts(weights) for ranking in rankings)
        return {
            "auroc_difference": auroc(*first) - auroc(*second),
            "auprc_difference": average_precision(*first) - average_precision(*second),
        }

    return with_intervals(of, model.subjects, seed=seed)


def alarm_metrics(predicted: Predicted, threshold: float | None, seed: int = 0) -> Metrics:
    """How many test admissions reach the alarm threshold, their precision, and the recall; None without a threshold."""

    def of(weights: Floats) -> dict[str, Floats]:
        found = predicted.recall_and_precision(threshold, weights)
        return dict(zip(("alarm_recall", "alarm_precision"), found, strict=True))

    raised = None if threshold is None else int((predicted.probability >= threshold).sum())
    return {"alarms": raised} | with_intervals(of, predicted.subjects, seed=seed)


def permutation_metrics(auroc: float, permuted: Floats) -> Metrics:
    """How an AUROC compares with those of permuted labels, (permutations,).

    `permutation_p`: of the permutations and the value itself, the share that reaches it, and `permutation_p_least`, the
    least that so many permutations can give.
    """
    return {
        "permutations": len(permuted),
        "auroc_permuted": float(permuted.mean()),
        "auroc_permuted_sd": float(permuted.std(ddof=1)),
        "auroc_permuted_highest": float(permuted.max()),
        "permutation_p_least": 1 / (1 + len(permuted)),
        "permutation_p": (1 + int((permuted >= auroc).sum())) / (1 + len(permuted)),
    }


def best_metrics(subjects: NDArray[Any], outcomes: Flags, true_risk: Floats, seed: int = 0) -> Metrics:
    """The AUROC of the true risks of the same admissions, which no model can be expected to pass."""
    ranking = Ranking(true_risk, outcomes)
    return with_intervals(lambda weights: {"best_auroc": auroc(*ranking.counts(weights))}, subjects, seed=seed)


def curves(models: Mapping[str, Predicted]) -> dict[str, Any]:
    """ROC, precision-recall and calibration curves of each model, by name.

    A calibration curve has (mean probability, share of positives, admissions, low and high of that share) of each bin
    that is not empty: a 95 % interval, None where there is none. The borders of the bins stay; who is in them is
    resampled.
    """
    drawn: dict[str, Any] = {"roc": {}, "precision_recall": {}, "calibration": {}}

    def thinned(across: Floats, up: Floats) -> list[tuple[float, float]]:
        chosen = np.unique(np.linspace(0, len(across) - 1, POINTS).round().astype(np.int64))  # the last among them
        return list(zip(across[chosen].tolist(), up[chosen].tolist(), strict=True))

    for name, model in models.items():
        hits, misses = Ranking(model.probability, model.outcomes).counts(np.ones(len(model.outcomes)))
        recall, false_alarms = hits / hits[-1], misses / misses[-1]
        drawn["roc"][name] = [(0.0, 0.0), *thinned(false_alarms, recall)]
        drawn["precision_recall"][name] = thinned(recall, hits / (hits + misses))
        for ending, probability in (("", model.probability), (", calibrated", model.calibrated)):
            if probability is not None:
                bins = Bins(probability, model.outcomes)
                found = with_intervals(bins.shares, model.subjects)
                bounds = [(found.get(f"{number}_low"), found.get(f"{number}_high")) for number in bins.numbers]
                points = [(*point, *interval) for point, interval in zip(bins.points, bounds, strict=True)]
                drawn["calibration"][name + ending] = points
    return drawn


def while_reading(
    probabilities: Floats, admissions: NDArray[np.int64], outcomes: Flags, settings: OutcomeModelSettings
) -> dict[str, Any]:
    """The score as more of the note is read, of admissions with several chunks.

    `while_reading`: at each step the AUROC, and the mean P of those with the label, by its name, and of others.
    `read_in_parts`: how many have several chunks. Both None where those with the label, or the others, are too few to
    be published.
    probabilities, admissions: of chunks, those of an admission in order; of `share` of them as many are read as make
    up at least that.
    """
    counts = np.bincount(admissions, minlength=len(outcomes))
    is_long = counts > 1  # (admissions,)
    if min((is_long & outcomes).sum(), (is_long & ~outcomes).sum()) < FEWEST:
        return {"while_reading": None, "read_in_parts": None}
    order = np.argsort(admissions, kind="stable")
    places = np.empty(len(admissions), np.int64)
    places[order] = np.concatenate([np.arange(count) for count in counts])
    groups = {settings.labels[0]: is_long & outcomes, "others": is_long & ~outcomes}
    steps: list[dict[str, float | None]] = []
    for step in range(1, STEPS_OF_READING + 1):
        is_read = places * STEPS_OF_READING < step * counts[admissions]
        read = probabilities[is_read], admissions[is_read]
        so_far = aggregate(*read, len(outcomes), settings.aggregation, settings.c)
        means = {name: float(so_far[group].mean()) for name, group in groups.items()}
        auroc_so_far = auroc_of(so_far[is_long], outcomes[is_long])
        steps.append({"share": step / STEPS_OF_READING, "auroc": auroc_so_far, **means})
    return {"while_reading": steps, "read_in_parts": int(is_long.sum())}


# Of several labels


@dataclass(frozen=True)
class PredictedLabels:
    """Admissions with the probabilities of several labels.

    subjects: (admissions,). labels, probabilities: (admissions, labels).
    """

    subjects: NDArray[Any]
    labels: Flags
    probabilities: Floats
    kind: Kind


def label_metrics(predicted: PredictedLabels, seed: int = 0) -> Metrics:
    """The metrics of test admissions.

    `auroc_macro`, the mean over labels of each against the rest, those left out that are true of none or of all, and in
    a resample those that are so there. Of labels that exclude each other `accuracy` of the likeliest; of others
    `auroc_micro`, of all pairs of admission and label together.
    """
    known = np.flatnonzero(predicted.labels.any(axis=0) & ~predicted.labels.all(axis=0))
    rankings = [Ranking(predicted.probabilities[:, label], predicted.labels[:, label]) for label in known]
    pooled = Ranking(predicted.probabilities.ravel(), predicted.labels.ravel())
    is_right = predicted.probabilities.argmax(1) == predicted.labels.argmax(1)

    def of(weights: Floats) -> dict[str, Floats]:
        of_labels = [auroc(*ranking.counts(weights)) for ranking in rankings]  # nan where not defined in a resample
        values = np.stack([*of_labels, np.full(weights.shape[:-1], np.nan)])
        metrics = {"auroc_macro": ratio(np.nansum(values, axis=0), (~np.isnan(values)).sum(axis=0))}
        if predicted.kind == "multi-class":
            return metrics | {"accuracy": ratio(weights @ is_right.astype(np.float64), weights.sum(-1))}
        return metrics | {"auroc_micro": np.apply_along_axis(micro, -1, weights)}

    def micro(weights: Floats) -> Floats:
        """Of one resample, (admissions,): all at once would be labels times as large as the others."""
        return auroc(*pooled.counts(np.repeat(weights, predicted.labels.shape[1])))

    size = predicted.labels.shape[1]
    counts = {"labels": size, "labels_left_out": size - len(known)}
    return with_intervals(of, predicted.subjects, seed=seed) | counts


def confusion(predicted: PredictedLabels) -> list[list[int] | None]:
    """How many admissions of each label, a row, were taken for each, a column.

    A row with a count below ten that is not 0 is None; and where it is the only one, the next smallest row is too, for
    else the accuracy would reveal it.
    """
    size = predicted.labels.shape[1]
    table = np.zeros((size, size), np.int64)
    np.add.at(table, (predicted.labels.argmax(1), predicted.probabilities.argmax(1)), 1)
    rows: list[list[int]] = table.tolist()
    hidden = [row for row in rows if any(0 < count < FEWEST for count in row)]
    if len(hidden) == 1 and size > 1:
        hidden.append(min((row for row in rows if row not in hidden), key=sum))
    return [None if row in hidden else row for row in rows]


# Slices


def slices(groups: pd.DataFrame, predicted: Predicted, seed: int = 0) -> list[Slice]:
    """The metrics of each group of each characteristic, a column of `groups`, (admissions, characteristics)."""
    listed: list[Slice] = []
    for characteristic, column in groups.items():
        names = column.astype("category").cat.remove_unused_categories().cat.categories  # bands keep their order
        members = {str(name): predicted.of((column == name).to_numpy()) for name in names}
        sizes = {name: len(group.outcomes) for name, group in members.items()}
        listed += _slices(str(characteristic), members, sizes, seed)
    return listed


def label_slices(task: str, names: Sequence[str], predicted: PredictedLabels, seed: int = 0) -> list[Slice]:
    """The metrics of each of several labels, whose groups are the admissions that have it."""
    columns = zip(names, predicted.labels.T, predicted.probabilities.T, strict=True)
    members = {name: Predicted(predicted.subjects, outcomes, of_label) for name, outcomes, of_label in columns}
    return _slices(task, members, {name: int(group.outcomes.sum()) for name, group in members.items()}, seed)


def _slices(characteristic: str, members: Mapping[str, Predicted], sizes: Mapping[str, int], seed: int) -> list[Slice]:
    """The groups that are large enough, of so many `admissions`, and how many groups are not."""
    counts = {name: np.array([each.outcomes.sum(), (~each.outcomes).sum()]) for name, each in members.items()}
    small, hidden = list[str](), np.zeros(2, np.int64)
    for name in sorted(counts, key=lambda name: int(counts[name].min())):
        if counts[name].min() >= FEWEST and (not small or hidden.min() >= FEWEST):
            break
        small.append(name)
        hidden = hidden + counts[name]
    listed: list[Slice] = [
        {"group": name, "admissions": sizes[name], "figures": _slice_metrics(members[name], seed), "suppressed": 0}
        for name in counts
        if name not in small
    ]
    if small:
        listed.append({"group": None, "admissions": None, "figures": None, "suppressed": len(small)})
    return [{"characteristic": characteristic, **each} for each in listed]


def _slice_metrics(predicted: Predicted, seed: int) -> Metrics:
    ranking, calibration = Ranking(predicted.probability, predicted.outcomes), predicted.calibration()
    calibrated = predicted.calibrated
    mean = {"mean_probability": predicted.probability} if calibrated is None else {"mean_calibrated": calibrated}
    columns = {"prevalence": predicted.outcomes.astype(np.float64), **mean}

    def of(weights: Floats) -> dict[str, Floats]:
        counts = ranking.counts(weights)
        means = {name: ratio(weights @ values, weights.sum(-1)) for name, values in columns.items()}
        return {"auroc": auroc(*counts), "auprc": average_precision(*counts), **means, **calibration(weights)}

    return with_intervals(of, predicted.subjects, distances=CALIBRATION_ERRORS, seed=seed)


def groups_of(characteristics: pd.DataFrame, lengths: Sequence[int]) -> pd.DataFrame:
    """The characteristics that a cohort's stage wrote, as groups, and that of the length of the notes."""
    known = {name: characteristics[column].fillna("").astype(str) for column, name in GROUPED_BY.items()}
    groups = pd.DataFrame(known).replace("", UNKNOWN)
    ages = pd.cut(characteristics["age"].astype(float), AGES, right=False, labels=AGE_BANDS)
    groups.insert(1, "age", ages.cat.add_categories(UNKNOWN).fillna(UNKNOWN))
    ranks = pd.Series(lengths, index=groups.index).rank(method="average", pct=True)
    groups["note length"] = pd.cut(ranks, [0, 0.25, 0.5, 0.75, 1], labels=LENGTHS)
    return groups
