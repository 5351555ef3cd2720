"""How far the probabilities of what is true or not are to be believed: figures with intervals, and curves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.stage import Metrics
from domain.clinical.outcomes.aggregation import aggregate
from domain.clinical.outcomes.bootstrap import with_intervals
from domain.clinical.outcomes.measures import (
    Bins,
    Flags,
    Floats,
    Ranking,
    auroc,
    auroc_of,
    average_precision,
    best_recall,
    calibration_curve,
    ratio,
)
from domain.clinical.outcomes.outcome_settings import OutcomeModelSettings
from domain.clinical.outcomes.recalibration import CALIBRATION_ERRORS, calibration_figures
from domain.clinical.outcomes.slices import FEWEST

POINTS = 200
STEPS_OF_READING = 10

Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Judged:
    """Admissions with their probabilities and what came of them, all (admissions,).

    calibrated: the recalibrated probabilities.
    """

    subjects: NDArray[Any]
    outcomes: Flags
    probability: Floats
    calibrated: Floats


def figures(judged: Judged, threshold: float | None, seed: int = 0) -> Metrics:
    """Every figure of test admissions, with a 95 % interval that resamples subjects.

    threshold: of `rp80`, chosen on validation admissions; None where none reached the precision, and then `rp80` is
    None too. `rp80_precision` is what it comes to here, `rp80_optimistic` what a threshold chosen here would reach.
    """
    ranking, outcomes = Ranking(judged.probability, judged.outcomes), judged.outcomes
    calibrations = calibration_figures(judged.outcomes, judged.probability, judged.calibrated)

    def of(weights: Floats) -> dict[str, Floats]:
        counts = ranking.counts(weights)
        ranked = {"auroc": auroc(*counts), "auprc": average_precision(*counts), "rp80_optimistic": best_recall(*counts)}
        at_threshold = [] if threshold is None else _recall_and_precision(judged, threshold, weights)
        alarms = dict(zip(("rp80", "rp80_precision"), at_threshold, strict=False))
        prevalence = {"prevalence": ratio(weights @ outcomes.astype(np.float64), weights.sum(-1))}
        return {**ranked, **alarms, **calibrations(weights), **prevalence}

    missing: Metrics = {"rp80": None, "rp80_precision": None} if threshold is None else {}
    return with_intervals(of, judged.subjects, distances=CALIBRATION_ERRORS, seed=seed) | missing


def _recall_and_precision(judged: Judged, threshold: float, weights: Floats) -> list[Floats]:
    raised, positive = judged.probability >= threshold, judged.outcomes
    hits = weights @ (raised & positive).astype(np.float64)
    return [ratio(hits, weights @ of.astype(np.float64)) for of in (positive, raised)]


def differences(ours: Judged, other: Judged, seed: int = 0) -> Metrics:
    """AUROC and AUPRC of `ours` minus those of `other` on the same admissions: a paired bootstrap over subjects."""
    rankings = [Ranking(each.probability, each.outcomes) for each in (ours, other)]

    def of(weights: Floats) -> dict[str, Floats]:
        first, second = (ranking.counts(weights) for ranking in rankings)
        return {
            "auroc_difference": auroc(*first) - auroc(*second),
            "auprc_difference": average_precision(*first) - average_precision(*second),
        }

    return with_intervals(of, ours.subjects, seed=seed)


def alarm_figures(judged: Judged, threshold: float | None, seed: int = 0) -> Metrics:
    """How many test admissions reach the alarm threshold, their precision, and the recall; None without a threshold."""
    names = "alarm_recall", "alarm_precision"
    if threshold is None:
        return {"alarms": None, **dict.fromkeys(names)}

    def of(weights: Floats) -> dict[str, Floats]:
        return dict(zip(names, _recall_and_precision(judged, threshold, weights), strict=True))

    raised = int((judged.probability >= threshold).sum())
    return {"alarms": raised} | with_intervals(of, judged.subjects, seed=seed)


def permutation_figures(auroc: float, permuted: Floats) -> Metrics:
    """Where an AUROC stands among those of permuted labels, (permutations,).

    `permutation_p`: of the permutations and the figure itself, the share that reaches it.
    """
    return {
        "permutations": len(permuted),
        "auroc_permuted": float(permuted.mean()),
        "auroc_permuted_sd": float(permuted.std(ddof=1)),
        "auroc_permuted_highest": float(permuted.max()),
        "permutation_p": (1 + int((permuted >= auroc).sum())) / (1 + len(permuted)),
    }


def best_figures(judged: Judged, true_risk: Floats, seed: int = 0) -> Metrics:
    """The AUROC of the true risks of the same admissions, which no model can be expected to pass."""
    ranking = Ranking(true_risk, judged.outcomes)
    return with_intervals(lambda weights: {"best_auroc": auroc(*ranking.counts(weights))}, judged.subjects, seed=seed)


# Curves


def curves(judged: Mapping[str, Judged]) -> dict[str, Any]:
    """ROC, precision-recall and calibration curves of each model, by name; the last with 95 % intervals of subjects."""
    drawn: dict[str, Any] = {"roc": {}, "precision_recall": {}, "calibration": {}}
    for name, each in judged.items():
        hits, misses = Ranking(each.probability, each.outcomes).counts(np.ones(len(each.outcomes)))
        recall, false_alarms = hits / hits[-1], misses / misses[-1]
        drawn["roc"][name] = [(0.0, 0.0), *_thinned(false_alarms, recall)]
        drawn["precision_recall"][name] = _thinned(recall, hits / (hits + misses))
        drawn["calibration"][name] = _calibration(each, each.probability)
        drawn["calibration"][f"{name}, calibrated"] = _calibration(each, each.calibrated)
    return drawn


def _calibration(judged: Judged, probability: Floats) -> list[tuple[float | None, ...]]:
    """The points of `calibration_curve`, each with low and high of its share; None where there is no interval.

    The borders of the bins stay; who is in them is drawn anew.
    """
    bins = Bins.by_size(probability, judged.outcomes)
    there = np.unique(bins.of).tolist()

    def of(weights: Floats) -> dict[str, Floats]:
        shares = bins.shares(judged.outcomes, weights)
        return {f"{number}": shares[..., number] for number in there}

    found = with_intervals(of, judged.subjects)
    points = calibration_curve(probability, judged.outcomes)
    return [
        (*point, found.get(f"{number}_low"), found.get(f"{number}_high"))
        for point, number in zip(points, there, strict=True)
    ]


def _thinned(across: Floats, up: Floats) -> Curve:
    """At most `POINTS` of a curve, evenly spread, the last among them."""
    chosen = np.unique(np.linspace(0, len(across) - 1, POINTS).round().astype(np.int64))
    return list(zip(across[chosen].tolist(), up[chosen].tolist(), strict=True))


def while_reading(
    probabilities: Floats, admissions: NDArray[np.int64], outcomes: Flags, settings: OutcomeModelSettings
) -> dict[str, Any]:
    """The score as more of the note is read, of admissions with several chunks, as of others all is read at once.

    `while_reading`: at each step the AUROC, and the mean P of those with the label, by its name, and of others.
    `read_in_parts`: how many have several chunks. Both None where those with the label, or the others, are too few to
    be told of.
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
    found: list[dict[str, float | None]] = []
    for step in range(1, STEPS_OF_READING + 1):
        is_read = places * STEPS_OF_READING < step * counts[admissions]
        read = probabilities[is_read], admissions[is_read]
        so_far = aggregate(*read, len(outcomes), settings.aggregation, settings.c)
        groups = {settings.labels[0]: is_long & outcomes, "others": is_long & ~outcomes}
        means = {name: float(so_far[group].mean()) for name, group in groups.items()}
        auroc_so_far = auroc_of(so_far[is_long], outcomes[is_long])
        found.append({"share": step / STEPS_OF_READING, "auroc": auroc_so_far, **means})
    return {"while_reading": found, "read_in_parts": int(is_long.sum())}
