"""Metrics of predicted outcomes, with intervals: AUROC, average precision, recall at a precision, alarms.

Every metric takes weights, (…, admissions), and gives a value for each row of them. A resample of a bootstrap is such
a row, so that a thousand of them cost one sort of the probabilities.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from bertrelay.evaluation.statistics import MetricsOfWeights, none_if_nan, ratio, with_intervals
from bertrelay.stage import Metrics
from domain.clinical.aggregation import aggregate
from domain.clinical.calibration import CALIBRATION_ERRORS, Bins, calibration_fits, calibration_metrics
from domain.clinical.settings import Kind, ModelDescription
from domain.clinical.stage_files import FEWEST

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

PRECISION = 0.8
"""Of RP80: recall where at most one alarm in five is false."""
CONFIDENCE = 0.95
FITTED_RESAMPLES = 200
"""Resamples of a metric that takes a regression for each."""
POINTS = 200
STEPS_OF_READING = 10


class Ranking:
    """Admissions from the highest probability down; those of equal probability are one step.

    thresholds: the probability of each step, falling, (steps,).
    """

    def __init__(self, probabilities: Floats, outcomes: Flags) -> None:
        self._order = np.argsort(-probabilities, kind="stable")
        falling = probabilities[self._order]
        self._positive = outcomes[self._order].astype(np.float64)
        self._ends = np.flatnonzero(np.append(falling[1:] != falling[:-1], True)[: len(falling)])
        self.thresholds: Floats = falling[self._ends]

    def counts(self, weights: Floats) -> tuple[Floats, Floats]:
        """True and false positives when the alarm is raised down to each step, both (…, steps)."""
        ordered = weights[..., self._order]
        raised = np.cumsum(ordered, axis=-1)[..., self._ends]
        hits = np.cumsum(ordered * self._positive, axis=-1)[..., self._ends]
        return hits, raised - hits


def auroc(hits: Floats, misses: Floats) -> Floats:
    """The fraction of pairs whose positive has the higher probability, ties counting half; nan of one class."""
    steps = np.diff(misses, axis=-1, prepend=0.0)
    before = hits - np.diff(hits, axis=-1, prepend=0.0) / 2
    return ratio((steps * before).sum(-1), hits[..., -1:].sum(-1) * misses[..., -1:].sum(-1))


def average_precision(hits: Floats, misses: Floats) -> Floats:
    """The mean of the precisions at which each positive is found, without interpolation; nan without positives."""
    steps = np.diff(hits, axis=-1, prepend=0.0)
    precisions = np.nan_to_num(ratio(hits, hits + misses))
    return ratio((steps * precisions).sum(-1), hits[..., -1:].sum(-1))


def best_recall(hits: Floats, misses: Floats) -> Floats:
    """The highest recall at a precision of `PRECISION` or more, the threshold chosen on the same data.

    So Huang et al. (2019) reported RP80; it is too good, and the more so the less data there is. nan where no threshold
    reaches the precision.
    """
    reaching = np.where(precise_enough(hits, misses), hits, 0.0)
    most = reaching.max(-1, initial=0.0)
    return np.where(most > 0, ratio(most, hits[..., -1:].sum(-1)), np.nan)


def threshold_at_precision(probabilities: Floats, outcomes: Flags) -> float | None:
    """The lowest probability down to which an alarm has a precision of `PRECISION` or more; None where none has."""
    ranking = Ranking(probabilities, outcomes)
    reaching = np.flatnonzero(precise_enough(*ranking.counts(np.ones(len(probabilities)))))
    return float(ranking.thresholds[reaching[-1]]) if len(reaching) else None


def alarm_threshold(
    probabilities: Floats, outcomes: Flags, precision: float, minimum_alarms: int
) -> dict[str, float | int]:
    """The lowest threshold with `minimum_alarms` or more whose precision is `precision` or more with 95 % confidence.

    `threshold` comes with the number of `alarms` that reach it, and of `alarms_right` among them; nothing where no
    threshold reaches the precision. The confidence does not count that the lowest of many thresholds is taken.
    """
    ranking = Ranking(probabilities, outcomes)
    hits, misses = ranking.counts(np.ones(len(probabilities)))
    # The one-sided lower bound by Clopper & Pearson (1934), alarms taken as independent.
    bounds = np.where(hits > 0, betaincinv(np.maximum(hits, 1), misses + 1, 1 - CONFIDENCE), 0.0)
    reaching = np.flatnonzero((hits + misses >= minimum_alarms) & (bounds >= precision))
    if not len(reaching):
        return {}
    last = reaching[-1]
    alarms, right = int(hits[last] + misses[last]), int(hits[last])
    return {"threshold": float(ranking.thresholds[last]), "alarms": alarms, "alarms_right": right}


def precise_enough(hits: Floats, misses: Floats) -> Flags:
    """Marks steps with a precision of `PRECISION` or more, and true positives."""
    return (hits > 0) & (np.nan_to_num(ratio(hits, hits + misses)) >= PRECISION)


def auroc_of(probabilities: Floats, outcomes: Flags) -> float | None:
    """The AUROC of admissions that count once each; None of one class."""
    return none_if_nan(auroc(*Ranking(probabilities, outcomes).counts(np.ones(len(probabilities)))))


def auprc_of(probabilities: Floats, outcomes: Flags) -> float | None:
    """The average precision of admissions that count once each; None without positives."""
    return none_if_nan(average_precision(*Ranking(probabilities, outcomes).counts(np.ones(len(probabilities)))))


def mean_of_known(
    metric: Callable[[Floats, Flags], float | None], probabilities: Floats, labels: Flags
) -> float | None:
    """The mean of a metric over labels, both (admissions, labels), without those that it is not defined for."""
    values = [metric(*columns) for columns in zip(probabilities.T, labels.T, strict=True)]
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None


@dataclass(frozen=True)
class Predicted:
    """Admissions with their probabilities and outcomes, all (admissions,).

    probability: ranks admissions and raises alarms. calibrated: their calibrated probabilities; None without
    calibration metrics. uncalibrated: those before the recalibration; None where there was none.
    """

    subjects: NDArray[Any]
    outcomes: Flags
    probability: Floats
    calibrated: Floats | None = None
    uncalibrated: Floats | None = None

    def of(self, chosen: Flags) -> "Predicted":
        """Those of the admissions that are chosen, (admissions,)."""
        calibrated, uncalibrated = (
            None if column is None else column[chosen] for column in (self.calibrated, self.uncalibrated)
        )
        return Predicted(
            self.subjects[chosen], self.outcomes[chosen], self.probability[chosen], calibrated, uncalibrated
        )

    def calibration(self) -> MetricsOfWeights:
        """Calibration after and before the recalibration, as far as there are such probabilities."""
        if self.calibrated is None:
            return lambda _: {}
        return calibration_metrics(self.outcomes, self.calibrated, self.uncalibrated)

    def calibration_fits(self) -> MetricsOfWeights:
        """Calibration slope and intercept after and before the recalibration, as `calibration`."""
        if self.calibrated is None:
            return lambda _: {}
        return calibration_fits(self.outcomes, self.calibrated, self.uncalibrated)

    def recall_and_precision(self, threshold: float | None, weights: Floats) -> list[Floats]:
        """Recall and precision of the alarms at `threshold`, both (…,); nan without one."""
        if threshold is None:
            return [np.full(weights.shape[:-1], np.nan)] * 2
        raised = self.probability >= threshold
        hits = weights @ (raised & self.outcomes).astype(np.float64)
        return [ratio(hits, weights @ wholes.astype(np.float64)) for wholes in (self.outcomes, raised)]


def binary_metrics(predicted: Predicted, threshold: float | None, seed: int = 0) -> Metrics:
    """The metrics of test admissions.

    threshold: of `rp80`, chosen on validation admissions; None where none reached the precision, and then `rp80` is
    None too. `rp80_precision` is what it comes to here, `rp80_optimistic` what a threshold chosen here would reach.
    """
    ranking, outcomes = Ranking(predicted.probability, predicted.outcomes), predicted.outcomes.astype(np.float64)
    calibration = predicted.calibration()

    def metrics_of(weights: Floats) -> dict[str, Floats]:
        counts = ranking.counts(weights)
        ranked = {"auroc": auroc(*counts), "auprc": average_precision(*counts), "rp80_optimistic": best_recall(*counts)}
        alarms = dict(zip(("rp80", "rp80_precision"), predicted.recall_and_precision(threshold, weights), strict=True))
        return {**ranked, **alarms, **calibration(weights), "prevalence": ratio(weights @ outcomes, weights.sum(-1))}

    metrics = with_intervals(metrics_of, predicted.subjects, distances=CALIBRATION_ERRORS, seed=seed)
    fits = predicted.calibration_fits()
    return metrics | with_intervals(fits, predicted.subjects, seed=seed, resamples=FITTED_RESAMPLES)


def metric_differences(model: Predicted, baseline: Predicted, seed: int = 0) -> Metrics:
    """AUROC and AUPRC of `model` minus those of `baseline` on the same admissions, from the same resamples."""
    rankings = [Ranking(predicted.probability, predicted.outcomes) for predicted in (model, baseline)]

    def metrics_of(weights: Floats) -> dict[str, Floats]:
        first, second = (ranking.counts(weights) for ranking in rankings)
        return {
            "auroc_difference": auroc(*first) - auroc(*second),
            "auprc_difference": average_precision(*first) - average_precision(*second),
        }

    return with_intervals(metrics_of, model.subjects, seed=seed)


def alarm_metrics(predicted: Predicted, threshold: float | None, seed: int = 0) -> Metrics:
    """The number of test admissions that reach the alarm threshold, their precision and recall; None without one."""

    def metrics_of(weights: Floats) -> dict[str, Floats]:
        recall, precision = predicted.recall_and_precision(threshold, weights)
        return {"alarm_recall": recall, "alarm_precision": precision}

    raised = None if threshold is None else int((predicted.probability >= threshold).sum())
    return {"alarms": raised} | with_intervals(metrics_of, predicted.subjects, seed=seed)


def permutation_metrics(auroc: float, permuted: Floats) -> Metrics:
    """A permutation test of an AUROC; permuted: the AUROCs of permuted labels, (permutations,).

    `permutation_p`: the fraction of the permutations and the value itself that reach the value, as scikit-learn's
    `permutation_test_score` has it; `permutation_p_least`: the least that so many permutations can give.
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
    varying = np.flatnonzero(predicted.labels.any(axis=0) & ~predicted.labels.all(axis=0))
    rankings = [Ranking(predicted.probabilities[:, label], predicted.labels[:, label]) for label in varying]
    pooled = Ranking(predicted.probabilities.ravel(), predicted.labels.ravel())
    is_right = predicted.probabilities.argmax(1) == predicted.labels.argmax(1)

    def metrics_of(weights: Floats) -> dict[str, Floats]:
        of_labels = [auroc(*ranking.counts(weights)) for ranking in rankings]  # nan where not defined in a resample
        values = np.stack([*of_labels, np.full(weights.shape[:-1], np.nan)])
        metrics = {"auroc_macro": ratio(np.nansum(values, axis=0), (~np.isnan(values)).sum(axis=0))}
        if predicted.kind == "multi-class":
            return metrics | {"accuracy": ratio(weights @ is_right.astype(np.float64), weights.sum(-1))}
        return metrics | {"auroc_micro": np.apply_along_axis(micro, -1, weights)}

    def micro(weights: Floats) -> Floats:
        """Micro AUROC of one resample, (admissions,): all at once would be labels times as large as the others."""
        return auroc(*pooled.counts(np.repeat(weights, predicted.labels.shape[1])))

    size = predicted.labels.shape[1]
    counts = {"labels": size, "labels_left_out": size - len(varying)}
    return with_intervals(metrics_of, predicted.subjects, seed=seed) | counts


def curves(models: Mapping[str, Predicted]) -> dict[str, Any]:
    """ROC, precision-recall and calibration curves of each model, by name.

    A calibration curve has (mean probability, fraction of positives, admissions, low and high of that fraction) of each
    bin that is not empty: a 95 % interval, None where there is none. The borders of the bins stay; who is in them is
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
        for ending, probability in (("", model.uncalibrated), (", calibrated", model.calibrated)):
            if probability is not None:
                bins = Bins(probability, model.outcomes)
                fractions = with_intervals(bins.fractions, model.subjects)
                bounds = [(fractions.get(f"{number}_low"), fractions.get(f"{number}_high")) for number in bins.numbers]
                points = [(*point, *interval) for point, interval in zip(bins.points, bounds, strict=True)]
                drawn["calibration"][name + ending] = points
    return drawn


def while_reading(
    probabilities: Floats, admissions: NDArray[np.int64], outcomes: Flags, settings: ModelDescription
) -> dict[str, Any]:
    """The score as more of the note is read, of admissions with several chunks.

    `while_reading`: at each step the AUROC, and the mean probability of those with the label, by its name, and of
    others. `read_in_parts`: the number of those with several chunks. Both None where those with the label, or the
    others, are too few to be published.
    probabilities, admissions: of chunks, those of an admission in order; of `share` of them as many are read as make
    up at least that.
    """
    counts = np.bincount(admissions, minlength=len(outcomes))
    is_long = counts > 1  # (admissions,)
    if min((is_long & outcomes).sum(), (is_long & ~outcomes).sum()) < FEWEST:
        return {"while_reading": None, "read_in_parts": None}
    order = np.argsort(admissions, kind="stable")
    positions = np.empty(len(admissions), np.int64)  # of chunks in their admission
    positions[order] = np.concatenate([np.arange(count) for count in counts])
    groups = {settings.labels[0]: is_long & outcomes, "others": is_long & ~outcomes}
    steps: list[dict[str, float | None]] = []
    for step in range(1, STEPS_OF_READING + 1):
        is_read = positions * STEPS_OF_READING < step * counts[admissions]
        read = probabilities[is_read], admissions[is_read]
        so_far = aggregate(*read, len(outcomes), settings.aggregation, settings.c)
        means = {name: float(so_far[group].mean()) for name, group in groups.items()}
        auroc_so_far = auroc_of(so_far[is_long], outcomes[is_long])
        steps.append({"share": step / STEPS_OF_READING, "auroc": auroc_so_far, **means})
    return {"while_reading": steps, "read_in_parts": int(is_long.sum())}
