"""Verdicts: one plain sentence that compares a model with simple baselines, from the metrics of its stage.

The package of a stage declares a function from recorded metrics to a `Verdict`. The end of a run, a report and a card
begin with it.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from bertrelay.stage import Metrics

Level = Literal["good", "warn", "fail"]
LEVELS: tuple[Level, ...] = ("good", "warn", "fail")


class Verdict(NamedTuple):
    """The level, and one sentence with its metrics; no text of a record. comparison: the sentence without them."""

    level: Level
    text: str
    comparison: str = ""


class Gain(NamedTuple):
    """The gain of a model over a baseline, with its 95 % interval if any.

    than: the baseline. needed: a model that is not better fails, as one that does not beat chance; else it fails only
        if it is clearly worse, and is in doubt if the interval contains 0.
    """

    than: str
    value: float | None
    low: float | None = None
    high: float | None = None
    needed: bool = False

    @property
    def finding(self) -> tuple[Level, str]:
        """The level of this comparison, and the words before `than`."""
        if self.value is None:
            return "good", ""
        if (self.value if self.low is None else self.low) > 0:
            return "good", "better than"
        if self.high is not None and self.high < 0:
            return "fail", "worse than"
        if self.value <= 0 or self.needed:
            return "fail", "no better than"
        return "warn", "not shown to be better than"


def gain(metrics: Metrics, name: str, than: str, baseline: float | None, *, needed: bool = False) -> Gain:
    """The gain of metric `name`, better when higher, with its interval, over a fixed `baseline`."""
    bounds = (metrics.get(f"{name}{ending}") for ending in ("", "_low", "_high"))
    value, low, high = (None if bound is None or baseline is None else bound - baseline for bound in bounds)
    return Gain(than, value, low, high, needed)


def difference(metrics: Metrics, name: str, than: str) -> Gain:
    """The gain in a metric `name` that is itself a difference, with its interval."""
    return Gain(than, metrics.get(name), metrics.get(f"{name}_low"), metrics.get(f"{name}_high"))


def judge(
    facts: str, gains: Sequence[Gain], doubts: Sequence[str] = (), failures: Sequence[tuple[Level, str]] = ()
) -> Verdict:
    """The verdict of comparisons, without those that have no value, and of further `doubts`, before `facts`.

    failures: other findings, each with its level.
    """
    compared: dict[tuple[Level, str], list[str]] = {}
    for comparison in gains:
        if comparison.value is not None:
            compared.setdefault(comparison.finding, []).append(comparison.than)
    findings: list[tuple[Level, str]] = [
        *((level, f"{words} {listed(others)}") for (level, words), others in compared.items()),
        *(("warn", doubt) for doubt in doubts),
        *failures,
    ]
    worst: Level = max((level for level, _ in findings), key=LEVELS.index, default="good")
    shown = [(level, words) for level, words in findings if worst == "good" or level != "good"]
    sentence = "; ".join(words for _, words in sorted(shown, key=lambda finding: -LEVELS.index(finding[0])))
    sentence = sentence[:1].upper() + sentence[1:]
    return Verdict(worst, ". ".join(filter(None, [sentence, facts])), sentence)


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def measured(metrics: Metrics, name: str, label: str) -> str:
    """`AUROC 0.425 (0.380 – 0.470)`, without an interval if there is none; empty if it was not measured."""
    value, low, high = (metrics.get(f"{name}{ending}") for ending in ("", "_low", "_high"))
    if value is None:
        return ""
    return f"{label} {value:.3f}" + ("" if low is None or high is None else f" ({low:.3f} – {high:.3f})")


def counted(metrics: Mapping[str, float | None], name: str) -> int | None:
    """A metric as a count; None if it was not measured."""
    value = metrics.get(name)
    return None if value is None else round(value)
