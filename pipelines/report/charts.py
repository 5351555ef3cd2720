"""Charts of the blocks of reports, as SVG with an alternative in words; and the curves of a training from its log."""

import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertrelay.report import Dots, Lines, Matrix, Measure, Picture, Point
from pipelines.report.tables import alike, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOT_DRAWN = {"step", "epoch", "grad_norm", "tokens_per_second", "padding_share", "memory_mb", "seconds"}
NOT_DRAWN |= {"dev/sentences"}  # a panel of counts, which do not change
MEAN = "/mean"
TITLES = {"loss": "Loss", "lr": "Learning rate", "dev": "Dev scores", "validation": "Validation scores"}
LINES_WITH_NAMES = 10
MOST_POINTS = 400
POINTS_WITH_MARKS = 30
MOST_DESCRIBED = 30
"""Rows of a dot plot that its alternative lists."""
# Dark and light enough to be seen on a white page and on a dark one.
COLOURS = ("#3b7dc4", "#cf6a2c", "#3f9a66", "#a45fbd", "#b0892a", "#c8517b", "#2a9aa8", "#8a8a8a", "#7a6fd0", "#7f9a2f")
# For the colour-blind and for paper.
DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
MARKS = "os^D"
INK = "#010203"  # a colour that nothing else has, and that becomes the page's own
WIDTH, HEIGHT, ROW = 3.5, 2.3, 0.2  # inches: of a chart, and of a row of a dot plot
OWN = "this model"

Points = list[Point]


@dataclass(frozen=True)
class Drawing:
    """A title, and an SVG element with its alternative in words."""

    title: str
    svg: str


def training_curves(log: Path) -> list[Lines]:
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
    return [
        Lines(title=title, lines=drawn[name], across="step", up=title.removeprefix("Dev: ").lower())
        for name, title in titles.items()
    ]


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


def draw(block: Lines | Dots | Matrix | Picture, folder: Path) -> Drawing:
    """Draws a block. folder: of the stage, with its pictures. Text stays text, in the page's font."""
    if isinstance(block, Picture):
        svg = (folder / block.file).read_text(encoding="utf-8")
        return Drawing("", _with_alternative(svg[svg.index("<svg") :], block.alt))
    if isinstance(block, Matrix):
        from bertrelay.plots import as_svg, heatmap

        values = np.array(block.values, np.float64)
        svg = as_svg(heatmap(values, block.rows, block.columns, block.title))
        return Drawing("", _with_alternative(svg, f"{block.title}: {len(block.rows)} × {len(block.columns)} cells."))
    return Drawing(block.title, _with_alternative(_themed_svg(block), alternative(block)))


def alternative(block: Lines | Dots) -> str:
    """The data of a chart in words: the ends of its lines, or the measures of its rows."""
    if isinstance(block, Dots):
        rows = [
            f"{row}: {', '.join(_in_words(measure, several=len(measures) > 1) for measure in measures)}"
            for row, measures in list(block.rows.items())[:MOST_DESCRIBED]
        ]
        return f"{block.title}. {'; '.join(rows)}."
    lines = []
    for name, points in block.lines.items():
        if points:
            (x0, y0), (x1, y1) = ((f"{x:g}", shown(y)) for x, y in (points[0][:2], points[-1][:2]))
            lines.append(f"{name or block.up}: {y0} at {x0}, {y1} at {x1}")
    return f"{block.title}: {block.up} by {block.across}. {'; '.join(lines)}."


def _in_words(measure: Measure, *, several: bool) -> str:
    value, *ends = alike([measure.value, measure.low, measure.high])
    label = f"{measure.label or OWN} " if several else ""
    return f"{label}{value}" + ("" if measure.low is None else f" ({' to '.join(ends)})")


def _with_alternative(svg: str, text: str) -> str:
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(text)}" ', 1)


def _themed_svg(block: Lines | Dots) -> str:
    """A chart as an SVG element in the page's ink."""
    import matplotlib

    coloured = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "bertrelay",  # the same points give the same file
        "text.parse_math": False,  # a dollar in a name is a dollar
        "font.size": 9,
        **dict.fromkeys(coloured, INK),
    }
    with matplotlib.rc_context(style):
        buffer = io.StringIO()
        figure = _line_chart(block) if isinstance(block, Lines) else _dot_plot(block)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    # The element alone, in the page's ink, without what would reach beyond it: a style, and names that are repeated.
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace("<svg ", '<svg stroke-linejoin="round" ', 1)
    svg = re.sub(r"<(metadata|style).*?</\1>\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    return re.sub(r'<g id="[^"]*"', "<g", svg).replace(INK, "currentColor")


def _line_chart(block: Lines) -> "Figure":
    """Lines with names, bars where points have an interval, and a histogram below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    if block.bars:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        middles, counts = zip(*block.bars, strict=True)
        width = 0.9 * (middles[1] - middles[0]) if len(middles) > 1 else 0.1
        below.bar(middles, counts, width, color=INK, alpha=0.35)
        below.set(xlabel=block.across)
        below.set_ylabel("count", fontsize=7)
        below.tick_params(axis="y", labelsize=7)
        _prepare(below, "y")
    else:
        axes = figure.add_subplot()
        axes.set_xlabel(block.across)
    axes.set_ylabel(block.up)
    _prepare(axes, "y")
    axes.ticklabel_format(axis="y", scilimits=(-3, 5), useMathText=False)
    _plot_lines(axes, block)
    return figure


def _prepare(axes: "Axes", grid: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_alpha(0.4)
    axes.grid(axis=grid, color=INK, alpha=0.12, linewidth=0.7)


def _plot_lines(axes: "Axes", block: Lines) -> None:
    if block.reference:
        xs = [point[0] for points in block.lines.values() for point in points]
        end = 1.0 if block.limits else max(xs, default=1.0)
        first, last = block.reference
        axes.plot([0, end], [first, first + (last - first) * end], color=INK, alpha=0.35, linewidth=0.8)
    styles: Sequence[int] = block.styles or range(len(block.lines))
    for number, (name, points) in zip(styles, block.lines.items(), strict=True):
        colour = COLOURS[number % len(COLOURS)]
        stride = math.ceil(len(points) / MOST_POINTS)
        thinned = points[::-1][::stride][::-1] if points else ()  # the last one always among them
        x, y = zip(*(point[:2] for point in thinned), strict=True) if points else ((), ())
        axes.plot(
            x,
            y,
            color=colour,
            linestyle=DASHES[number % len(DASHES)],
            marker="o" if len(points) <= POINTS_WITH_MARKS else "",
            markersize=3,
            linewidth=1.4,
            label=name or None,
        )
        for x_of, _, low, high in (point for point in points if len(point) == 4):
            axes.vlines(x_of, low, high, color=colour, linewidth=1.2)
    if block.limits:
        axes.set(xlim=block.limits, ylim=block.limits)
    if any(block.lines) and len(block.lines) <= LINES_WITH_NAMES:
        axes.legend(frameon=False, fontsize=7, ncols=2 if len(block.lines) > 4 else 1)


def _dot_plot(block: Dots) -> "Figure":
    """A line of dots for each row, the first row on top, in the order and colours of the labels."""
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(measure.label for measures in block.rows.values() for measure in measures))
    figure = Figure(figsize=(WIDTH, max(HEIGHT, 0.8 + ROW * len(block.rows))), layout="constrained")
    axes = figure.add_subplot()
    _prepare(axes, "both")
    axes.set_xlabel(block.across)
    axes.locator_params(axis="x", nbins=4)
    for number, label in enumerate(labels):
        colour, shift = COLOURS[number % len(COLOURS)], 0.22 * (number - (len(labels) - 1) / 2)
        placed = [
            (position + shift, measure)
            for position, measures in enumerate(block.rows.values())
            for measure in measures
            if measure.label == label and measure.value is not None
        ]
        for y, measure in placed:
            if measure.low is not None and measure.high is not None:
                axes.hlines(y, measure.low, measure.high, color=colour, linewidth=1.2)
        mark, values = MARKS[number % len(MARKS)], [measure.value or 0.0 for _, measure in placed]
        axes.plot(values, [y for y, _ in placed], mark, color=colour, markersize=4, label=label or OWN)
    axes.set_yticks(range(len(block.rows)), list(block.rows))
    axes.set_ylim(len(block.rows) - 0.5, -0.5)
    if len(labels) > 1:
        figure.legend(frameon=False, fontsize=7, ncols=2, loc="outside lower center")
    return figure
