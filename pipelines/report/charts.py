"""`metrics.jsonl` of a training to curves: the loss, the learning rate, and the scores on dev data."""

import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOT_DRAWN = {"step", "epoch", "grad_norm", "tokens_per_second", "padding_share", "memory_mb", "seconds"}
TITLES = {"loss": "Loss", "lr": "Learning rate"}
LINES_WITH_NAMES = 10
MOST_POINTS = 400
POINTS_WITH_MARKS = 30
SIZE_INCHES = (3.5, 2.3)
# Dark and light enough to be seen on a white page and on a dark one.
COLOURS = ("#3b7dc4", "#cf6a2c", "#3f9a66", "#a45fbd", "#b0892a", "#c8517b", "#2a9aa8", "#8a8a8a", "#7a6fd0", "#7f9a2f")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
"""Told from one another by eyes that colours look alike to."""
INK = "#010203"  # a colour that nothing else has, and that becomes the page's own

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """One picture: a title, and an SVG element."""

    title: str
    svg: str


def training_curves(log: Path) -> list[Curve]:
    """The curves of the `metrics.jsonl` at `log`, the loss first; none where there is no log."""
    panels: dict[str, dict[str, Points]] = {}
    for step, figures in _lines(log):
        for name, value in figures.items():
            panel, _, line = name.partition("/")
            panels.setdefault(panel, {}).setdefault(line, []).append((step, value))
    names = [name for name in TITLES if name in panels] + [name for name in panels if name not in TITLES]
    return [Curve(_title(name), _draw(_title(name), panels[name])) for name in names]


def _lines(log: Path) -> Iterator[tuple[float, dict[str, float]]]:
    """(step, figures to be drawn) of each line; a last line that a kill cut short is left out."""
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else []:
        try:
            figures = json.loads(line)
        except ValueError:
            continue
        yield figures["step"], {name: value for name, value in figures.items() if _is_drawn(name, value)}


def _is_drawn(name: str, value: object) -> bool:
    is_figure = isinstance(value, int | float) and math.isfinite(value)
    return is_figure and name not in NOT_DRAWN and not name.endswith(("_low", "_high"))


def _title(panel: str) -> str:
    return TITLES.get(panel, "Dev scores" if panel == "dev" else f"Dev: {panel.replace('_', ' ')}")


def _draw(title: str, lines: Mapping[str, Points]) -> str:
    return picture(lambda axes: _plot(axes, title, lines))


def picture(plot: Callable[["Axes"], None]) -> str:
    """What `plot` draws, as SVG. The text stays text, in the page's font and colour."""
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "bertrelay",  # the same figures give the same file
        "text.parse_math": False,  # a dollar in a name is a dollar
        "font.size": 9,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        plot(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _for_a_page(buffer.getvalue())


def _plot(axes: "Axes", title: str, lines: Mapping[str, Points]) -> None:
    for number, (name, points) in enumerate(lines.items()):
        steps, values = zip(*_thinned(points), strict=True)
        marker = "o" if len(points) <= POINTS_WITH_MARKS else ""
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        looks = {"color": colour, "linestyle": dashes, "marker": marker, "markersize": 3, "linewidth": 1.4}
        axes.plot(steps, values, label=name or None, **looks)
    plain(axes)
    axes.set_xlabel("step")
    axes.set_ylabel(title.removeprefix("Dev: ").lower())
    axes.ticklabel_format(axis="y", scilimits=(-3, 5), useMathText=False)
    if any(lines) and len(lines) <= LINES_WITH_NAMES:
        axes.legend(frameon=False, fontsize=7.5, ncols=2 if len(lines) > 4 else 1)


def plain(axes: "Axes") -> None:
    """Two axes and faint lines across, no box."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_alpha(0.4)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.7)


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most `MOST_POINTS` of them, the last one always among them."""
    stride = math.ceil(len(points) / MOST_POINTS)
    return points[::-1][::stride][::-1]


def _for_a_page(svg: str) -> str:
    """The element alone, in the page's ink, without what would reach beyond it: a style, and names that come again."""
    element = svg[svg.index("<svg") :].replace("<svg ", '<svg stroke-linejoin="round" ', 1)
    element = re.sub(r"<(metadata|style).*?</\1>\s*|<!--.*?-->\s*", "", element, flags=re.DOTALL)
    return re.sub(r'<g id="[^"]*"', "<g", element).replace(INK, "currentColor")
