"""The figures of groups of patients, or of labels, side by side, small ones left unsaid.

What a group is called, how many are in it and of how many of them the outcome is true is told only where of ten or more
it is, and of ten or more it is not: fewer may be found again, and a name of a table's own may be anything. Where those
left out are fewer together, the next smallest are left out too, for else a subtraction from the whole would tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from domain.clinical.outcomes.bootstrap import with_intervals
from domain.clinical.outcomes.measures import Flags, Floats, Ranking, auroc, average_precision, ratio
from domain.clinical.outcomes.recalibration import CALIBRATION_ERRORS, calibration_figures

if TYPE_CHECKING:
    import pandas as pd

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
    calibration = None if calibrated is None else calibration_figures(outcomes, probability, calibrated)

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
