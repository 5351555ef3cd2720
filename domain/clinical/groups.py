"""Metrics of groups of patients, or of labels, and the suppression of small groups.

A group's name, size and metrics are published only where ten or more admissions have the outcome and ten or more do
not: fewer may be identifiable, and a name from a table may be anything. Where the groups left out are smaller than that
together, the next smallest are left out too; otherwise a subtraction from the whole would reveal them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bertrelay.evaluation.statistics import none_if_nan, ratio, with_intervals
from bertrelay.stage import Metrics
from domain.clinical.calibration import CALIBRATION_ERRORS
from domain.clinical.metrics import Floats, Predicted, PredictedLabels, Ranking, auroc, average_precision
from domain.clinical.stage_files import FEWEST

AGES = (0, 45, 65, 75, 85, 200)
AGE_BANDS = ("under 45", "45 to 64", "65 to 74", "75 to 84", "85 and over")
LENGTHS = ("shortest quarter", "second quarter", "third quarter", "longest quarter")
GROUPED_BY = {"sex": "sex", "insurance": "insurance", "race": "ethnicity", "admission_type": "admission type"}
UNKNOWN = "unknown"

Slice = dict[str, Any]
"""A group and its metrics; `suppressed` counts small groups of a characteristic in place of them."""


def confusion(predicted: PredictedLabels) -> list[list[int] | None]:
    """The confusion matrix: counts of admissions by label, a row, and by likeliest label, a column.

    A row with a count below ten that is not 0 is None; and where it is the only one, the next smallest row is too:
    otherwise the accuracy would reveal it.
    """
    size = predicted.labels.shape[1]
    table = np.zeros((size, size), np.int64)
    np.add.at(table, (predicted.labels.argmax(1), predicted.probabilities.argmax(1)), 1)
    rows: list[list[int]] = table.tolist()
    hidden = [row for row in rows if any(0 < count < FEWEST for count in row)]
    if len(hidden) == 1 and size > 1:
        hidden.append(min((row for row in rows if row not in hidden), key=sum))
    return [None if row in hidden else row for row in rows]


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
    """The groups that are large enough, with their `sizes` in admissions, and the number of those that are not."""
    counts = {name: np.array([group.outcomes.sum(), (~group.outcomes).sum()]) for name, group in members.items()}
    small, hidden = list[str](), np.zeros(2, np.int64)
    for name in sorted(counts, key=lambda name: int(counts[name].min())):
        if counts[name].min() >= FEWEST and (not small or hidden.min() >= FEWEST):
            break
        small.append(name)
        hidden = hidden + counts[name]
    listed: list[Slice] = [
        {"group": name, "admissions": sizes[name], "metrics": _slice_metrics(members[name], seed), "suppressed": 0}
        for name in counts
        if name not in small
    ]
    if small:
        listed.append({"group": None, "admissions": None, "metrics": None, "suppressed": len(small)})
    return [{"characteristic": characteristic, **group} for group in listed]


def _slice_metrics(predicted: Predicted, seed: int) -> Metrics:
    ranking, calibration = Ranking(predicted.probability, predicted.outcomes), predicted.calibration()
    calibrated = predicted.calibrated
    mean = {"mean_probability": predicted.probability} if calibrated is None else {"mean_calibrated": calibrated}
    columns = {"prevalence": predicted.outcomes.astype(np.float64), **mean}

    def metrics_of(weights: Floats) -> dict[str, Floats]:
        counts = ranking.counts(weights)
        means = {name: ratio(weights @ values, weights.sum(-1)) for name, values in columns.items()}
        return {"auroc": auroc(*counts), "auprc": average_precision(*counts), **means, **calibration(weights)}

    # Once, without resamples, which would take minutes for all groups.
    fits = predicted.calibration_fits()(np.ones(len(predicted.outcomes)))
    without_intervals = {name: none_if_nan(value) for name, value in fits.items()}
    return with_intervals(metrics_of, predicted.subjects, distances=CALIBRATION_ERRORS, seed=seed) | without_intervals


def groups_of(characteristics: pd.DataFrame, lengths: Sequence[int]) -> pd.DataFrame:
    """The characteristics that a cohort's stage wrote, as groups, and that of the length of the notes."""
    columns = {name: characteristics[column].fillna("").astype(str) for column, name in GROUPED_BY.items()}
    groups = pd.DataFrame(columns).replace("", UNKNOWN)
    ages = pd.cut(characteristics["age"].astype(float), AGES, right=False, labels=AGE_BANDS)
    groups.insert(1, "age", ages.cat.add_categories(UNKNOWN).fillna(UNKNOWN))
    ranks = pd.Series(lengths, index=groups.index).rank(method="average", pct=True)
    groups["note length"] = pd.cut(ranks, [0, 0.25, 0.5, 0.75, 1], labels=LENGTHS)
    return groups
