"""Verdicts: one plain sentence on whether a model is better than what needs no model, from the metrics of its stage.

The stage's package declares, for a kind of stage, a function from recorded metrics to a `Verdict`; what is shown of a
model (the end of a run, its report, its card) begins with it.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from bertrelay.stage import Metrics

Level = Literal["good", "warn", "fail"]
LEVELS: tuple[Level, ...] = ("good", "warn", "fail")


class Verdict(NamedTuple):
    """The level, and one sentence with the metrics it rests on; no text of a record."""

    level: Level
    text: str


class Gain(NamedTuple):
    """By how much a model is better than something simpler, with the 95 % interval where there is one.

    than: what it is better than. needed: whether a model that is not better has failed, as with chance; else it has
        failed where it is clearly worse, and is in doubt where the interval holds 0.
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
    """The metric `name`, which is higher where it is better, with its interval, over a fixed `baseline`."""
    bounds = (metrics.get(f"{name}{ending}") for ending in ("", "_low", "_high"))
    value, low, high = (None if each is None or baseline is None else each - baseline for each in bounds)
    return Gain(than, value, low, high, needed)


def difference(metrics: Metrics, name: str, than: str) -> Gain:
    """The metric `name` that is a difference already, with its interval."""
    return Gain(than, metrics.get(name), metrics.get(f"{name}_low"), metrics.get(f"{name}_high"))


def judge(facts: str, gains: Sequence[Gain], doubts: Sequence[str] = ()) -> Verdict:
    """The verdict of some comparisons, those without a value left out, and of further `doubts`; `facts` follow it."""
    compared: dict[tuple[Level, str], list[str]] = {}
    for each in gains:
        if each.value is not None:
            compared.setdefault(each.finding, []).append(each.than)
    findings: list[tuple[Level, str]] = [
        *((level, f"{words} {listed(others)}") for (level, words), others in compared.items()),
        *(("warn", doubt) for doubt in doubts),
    ]
    worst: Level = max((level for level, _ in findings), key=LEVELS.index, default="good")
    shown = [(level, words) for level, words in findings if worst == "good" or level != "good"]
    sentence = "; ".join(words for _, words in sorted(shown, key=lambda each: -LEVELS.index(each[0])))
    return Verdict(worst, ". ".join(filter(None, [sentence[:1].upper() + sentence[1:], facts])))


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def measured(metrics: Metrics, name: str, label: str) -> str:
    """`AUROC 0.425 (0.380 – 0.470)`, the interval where there is one; empty for what was not measured."""
    value, low, high = (metrics.get(f"{name}{ending}") for ending in ("", "_low", "_high"))
    if value is None:
        return ""
    return f"{label} {value:.3f}" + ("" if low is None or high is None else f" ({low:.3f} – {high:.3f})")


def counted(metrics: Mapping[str, float | None], name: str) -> int | None:
    """A metric that is a count."""
    value = metrics.get(name)
    return None if value is None else round(value)
