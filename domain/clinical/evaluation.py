"""How far the probabilities of what is true or not are to be believed: figures with intervals, and curves."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.evaluation.calibration import CALIBRATION_ERRORS, Bins, calibration_metrics
from bertrelay.evaluation.statistics import ratio, with_intervals
from bertrelay.stage import Metrics
from domain.clinical.metrics import Flags, Floats, Ranking, auroc, auroc_of, average_precision, best_recall
from domain.clinical.outcomes import Kind, OutcomeModelSettings
from domain.clinical.prediction import aggregate

if TYPE_CHECKING:
    import pandas as pd

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
    calibrations = calibration_metrics(judged.outcomes, judged.probability, judged.calibrated)

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
    """(mean probability, share of positives, admissions, low and high of that share) of each bin that is not empty.

    None where there is no interval. The borders of the bins stay; who is in them is drawn anew.
    """
    bins = Bins(probability, judged.outcomes)

    def of(weights: Floats) -> dict[str, Floats]:
        shares = bins.shares(weights)
        return {f"{number}": shares[..., number] for number in bins.numbers}

    found = with_intervals(of, judged.subjects)
    bounds = [(found.get(f"{number}_low"), found.get(f"{number}_high")) for number in bins.numbers]
    return [(*point, *interval) for point, interval in zip(bins.points, bounds, strict=True)]


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


FEWEST = 10
AGES = (0, 45, 65, 75, 85, 200)
AGE_BANDS = ("under 45", "45 to 64", "65 to 74", "75 to 84", "85 and over")
LENGTHS = ("shortest quarter", "second quarter", "third quarter", "longest quarter")
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Slice:
    """A group and its figures; `suppressed` counts small groups of a characteristic in place of them.

    Of a label the group is who has it, and the figures are those of all.
    """

    characteristic: str
    group: str | None = None
    admissions: int | None = None
    figures: Mapping[str, float | None] | None = None
    suppressed: int = 0


def slices(
    groups: "pd.DataFrame",
    probability: Floats,
    calibrated: Floats,
    outcomes: Flags,
    subjects: NDArray[Any],
    seed: int = 0,
) -> list[dict[str, Any]]:
    """The figures of each group of each characteristic, a column of `groups`, (admissions, characteristics)."""
    found: list[Slice] = []
    for characteristic in groups:
        members = {str(name): (groups[characteristic] == name).to_numpy() for name in _names(groups[characteristic])}
        shown = _large_enough({name: _of_each_kind(outcomes[is_in]) for name, is_in in members.items()})
        for name in shown:
            chosen = members[name]
            figures = _figures(probability[chosen], outcomes[chosen], subjects[chosen], seed, calibrated[chosen])
            found.append(Slice(str(characteristic), name, int(chosen.sum()), figures))
        found += _suppressed(str(characteristic), len(members) - len(shown))
    return [asdict(each) for each in found]


def label_slices(
    task: str, names: Sequence[str], probabilities: Floats, labels: Flags, subjects: NDArray[Any], seed: int = 0
) -> list[dict[str, Any]]:
    """The figures of each of several labels; probabilities, labels: (admissions, labels)."""
    columns = dict(zip(names, zip(probabilities.T, labels.T, strict=True), strict=True))
    shown = _large_enough({name: _of_each_kind(outcomes) for name, (_, outcomes) in columns.items()})
    found = [
        Slice(task, name, int(outcomes.sum()), _figures(of_label, outcomes, subjects, seed))
        for name, (of_label, outcomes) in columns.items()
        if name in shown
    ]
    return [asdict(each) for each in (*found, *_suppressed(task, len(names) - len(shown)))]


def _suppressed(characteristic: str, count: int) -> list[Slice]:
    return [Slice(characteristic, suppressed=count)] if count else []


def _of_each_kind(outcomes: Flags) -> NDArray[np.int64]:
    """How many there are with the outcome, and how many without, (2,)."""
    return np.array([outcomes.sum(), (~outcomes).sum()], np.int64)


def _names(column: "pd.Series[Any]") -> list[Any]:
    """The groups of a column, bands in their order and others by name."""
    there = column.unique()
    return [name for name in column.cat.categories if name in there] if column.dtype == "category" else sorted(there)


def _large_enough(counts: Mapping[str, NDArray[np.int64]]) -> list[str]:
    """The groups that may be told, of all by how many of each kind they have, (2,)."""
    small, hidden = list[str](), np.zeros(2, np.int64)
    for name in sorted(counts, key=lambda name: int(counts[name].min())):
        if counts[name].min() >= FEWEST and (not small or hidden.min() >= FEWEST):
            break
        small.append(name)
        hidden = hidden + counts[name]
    return [name for name in counts if name not in small]


def _figures(
    probability: Floats, outcomes: Flags, subjects: NDArray[Any], seed: int, calibrated: Floats | None = None
) -> dict[str, float | None]:
    """Of a group with its calibration, before the recalibration and after it; of a label, which has none, without."""
    ranking = Ranking(probability, outcomes)
    mean = {"mean_probability": probability} if calibrated is None else {"mean_calibrated": calibrated}
    calibration = None if calibrated is None else calibration_metrics(outcomes, probability, calibrated)

    def of(weights: Floats) -> dict[str, Floats]:
        counts = ranking.counts(weights)
        shares = {"prevalence": outcomes.astype(np.float64), **mean}
        means = {name: ratio(weights @ values, weights.sum(-1)) for name, values in shares.items()}
        of_calibration = {} if calibration is None else calibration(weights)
        return {"auroc": auroc(*counts), "auprc": average_precision(*counts), **means, **of_calibration}

    return with_intervals(of, subjects, distances=CALIBRATION_ERRORS, seed=seed)


def groups_of(characteristics: "pd.DataFrame", lengths: Sequence[int]) -> "pd.DataFrame":
    """The characteristics that a cohort's stage wrote, as groups, and that of the length of the notes."""
    import pandas as pd

    names = {"sex": "sex", "insurance": "insurance", "race": "ethnicity", "admission_type": "admission type"}
    found = pd.DataFrame({told: characteristics[name].fillna(UNKNOWN).astype(str) for name, told in names.items()})
    ages = pd.cut(characteristics["age"].astype(float), AGES, right=False, labels=AGE_BANDS)
    found.insert(1, "age", ages.cat.add_categories(UNKNOWN).fillna(UNKNOWN))
    ranks = pd.Series(lengths, index=found.index).rank(method="average", pct=True)
    found["note length"] = pd.cut(ranks, [0, 0.25, 0.5, 0.75, 1], labels=LENGTHS)
    return found
