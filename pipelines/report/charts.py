"""Line charts as SVG for a page, and the curves of a training from its `metrics.jsonl`."""

import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOT_DRAWN = {"step", "epoch", "grad_norm", "tokens_per_second", "padding_share", "memory_mb", "seconds"}
NOT_DRAWN |= {"dev/sentences"}  # a panel of counts, which do not change
MEAN = "/mean"
TITLES = {"loss": "Loss", "lr": "Learning rate", "dev": "Dev scores", "validation": "Validation scores"}
LINES_WITH_NAMES = 10
MOST_POINTS = 400
POINTS_WITH_MARKS = 30
MOST_UPRIGHT = 6  # names that do not run into one another below a chart
# Dark and light enough to be seen on a white page and on a dark one.
COLOURS = ("#3b7dc4", "#cf6a2c", "#3f9a66", "#a45fbd", "#b0892a", "#c8517b", "#2a9aa8", "#8a8a8a", "#7a6fd0", "#7f9a2f")
# For the colour-blind and for paper.
DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
MARKS = "os^D"
INK = "#010203"  # a colour that nothing else has, and that becomes the page's own

Lines = Mapping[str, Sequence[Sequence[float]]]
"""Name to points: (x, y), or (x, y, low, high) with the interval of y."""
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """One chart: a title, and an SVG element."""

    title: str
    svg: str


def training_curves(log: Path) -> list[Curve]:
    """The curves of the `metrics.jsonl` at `log`, the loss first; none where there is no log."""
    panels: dict[str, dict[str, Points]] = {}
    for text in log.read_text(encoding="utf-8").splitlines() if log.is_file() else []:
        try:
            metrics = json.loads(text)
        except ValueError:  # a last line that a kill cut short
            continue
        for name, value in metrics.items():
            is_finite = isinstance(value, int | float) and math.isfinite(value)
            if is_finite and name not in NOT_DRAWN and not name.endswith(("_low", "_high")):
                panel, line = _panel_and_line(name)
                panels.setdefault(panel, {}).setdefault(line, []).append((metrics["step"], value))
    drawn = {panel: _means_for_rows(lines) for panel, lines in panels.items() if panel not in NOT_DRAWN}
    first = [name for name in ("loss", "lr") if name in drawn]
    titles = {
        name: TITLES.get(name, f"Dev: {name.removeprefix('dev/').replace('_', ' ')}") for name in [*first, *drawn]
    }
    return [draw(title, drawn[name], "step", title.removeprefix("Dev: ").lower()) for name, title in titles.items()]


def _panel_and_line(name: str) -> tuple[str, str]:
    """`loss/mlm` is the line `mlm` of `loss`; `dev/mse/de` is `de` of `dev/mse`, and `dev/score` one of `dev`."""
    panel, _, line = name.partition("/")
    if panel == "dev" and "/" in line:
        measure, _, line = line.partition("/")
        panel = f"{panel}/{measure}"
    return panel, line


def _means_for_rows(lines: Mapping[str, Points]) -> dict[str, Points]:
    """The lines without those whose mean is a line of its own: `cosine/mean` stands for `cosine/de` and `cosine/ko`."""
    averaged = {name.removesuffix(MEAN) for name in lines if name.endswith(MEAN)}
    return {
        name: points for name, points in lines.items() if name.endswith(MEAN) or name.rpartition("/")[0] not in averaged
    }


def draw(
    title: str,
    lines: Lines,
    across: str,
    up: str,
    *,
    looks: Sequence[int] | None = None,
    reference: tuple[float, float] | None = None,
    limits: tuple[float, float] | None = None,
    ticks: Sequence[str] = (),
) -> Curve:
    """A chart of lines with names, and bars where points have an interval. Its text stays text, in the page's font.

    looks: the number of each line's colour, dashes and mark. reference: what chance, or perfect calibration, gives at
    0 and at 1. limits: of both axes. ticks: names of the points at 0, 1, 2, …, which no line joins.
    """
    import matplotlib
    from matplotlib.figure import Figure

    coloured = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "bertrelay",  # the same points give the same file
        "text.parse_math": False,  # a dollar in a name is a dollar
        "font.size": 9,
        **dict.fromkeys(coloured, INK),
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(3.5, 2.3), layout="constrained")
        axes = figure.add_subplot()
        axes.set(xlabel=across, ylabel=up)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_alpha(0.4)
        axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.7)
        axes.ticklabel_format(axis="y", scilimits=(-3, 5), useMathText=False)
        _plot(axes, lines, looks, reference, limits, ticks)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    # The element alone, in the page's ink, without what would reach beyond it: a style, and names that come again.
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace("<svg ", '<svg stroke-linejoin="round" ', 1)
    svg = re.sub(r"<(metadata|style).*?</\1>\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    return Curve(title, re.sub(r'<g id="[^"]*"', "<g", svg).replace(INK, "currentColor"))


def _plot(
    axes: "Axes",
    lines: Lines,
    looks: Sequence[int] | None,
    reference: tuple[float, float] | None,
    limits: tuple[float, float] | None,
    ticks: Sequence[str],
) -> None:
    if reference:
        end = 1.0 if limits else max((each for points in lines.values() for p in points for each in p[:2]), default=1.0)
        first, last = reference
        axes.plot([0, end], [first, first + (last - first) * end], color=INK, alpha=0.35, linewidth=0.8)
    for number, (name, points) in zip(looks or range(len(lines)), lines.items(), strict=True):
        colour = COLOURS[number % len(COLOURS)]
        stride = math.ceil(len(points) / MOST_POINTS)
        thinned = points[::-1][::stride][::-1] if points else ()  # the last one always among them
        xs, ys = zip(*(point[:2] for point in thinned), strict=True) if points else ((), ())
        axes.plot(
            xs,
            ys,
            color=colour,
            linestyle="none" if ticks else DASHES[number % len(DASHES)],
            marker=(MARKS[number % len(MARKS)] if ticks else "o") if len(points) <= POINTS_WITH_MARKS else "",
            markersize=3,
            linewidth=1.4,
            label=name or None,
        )
        for x, _, low, high in (point for point in points if len(point) == 4):
            axes.vlines(x, low, high, color=colour, linewidth=1.2)
    if ticks:
        slant: dict[str, Any] = {"rotation": 30, "ha": "right"} if len(ticks) > MOST_UPRIGHT else {}
        axes.set_xticks(range(len(ticks)), ticks, **slant)
    if limits:
        axes.set_ylim(*limits)
        if not ticks:
            axes.set_xlim(*limits)
    if any(lines) and len(lines) <= LINES_WITH_NAMES:
        axes.legend(frameon=False, fontsize=7, ncols=2 if len(lines) > 4 else 1)
