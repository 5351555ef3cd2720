"""Boxes, marks, lines and labels at their places, as SVG for pages and viewers, and as PNG or PDF for files.

In SVG the text takes the colour of what surrounds it (`currentColor`), so that one picture serves light and dark
pages, and the fonts of whoever looks at it, so that every script can be read without fonts inside the file. PNG and
PDF are drawn with the fonts of this machine, on white.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertrelay.files import atomic_write, check_output, write_error
from bertrelay.fonts import boxes_for_missing_letters, fonts_for
from bertrelay.progress import log

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILES = (".png", ".svg", ".pdf")
FONTS = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Noto Sans CJK SC', 'Noto Sans CJK KR', "
    "'Noto Sans Arabic', 'Noto Sans Devanagari', 'Hiragino Sans', 'Malgun Gothic', 'Microsoft YaHei', sans-serif"
)
FONT_SIZE = 12.0
MARGIN = 12.0
PIXELS_PER_INCH = 100.0
SHARPNESS = 2.0  # pixels of a PNG for each of the drawing
THIN, FAINT = 0.8, 0.55  # pixels of a line, and its opacity
POINTS = 72.0 / PIXELS_PER_INCH  # in a pixel
ISOLATED = "\u2068{}\u2069"  # from left to right or from right to left, as its own first letter says
RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")


@dataclass(frozen=True)
class Box:
    """A filled rectangle; an outline where it has no `fill`. `hint` is told of it where a pointer can ask."""

    x: float
    y: float
    width: float
    height: float
    fill: str | None
    hint: str = ""


@dataclass(frozen=True)
class Mark:
    """A filled polygon with an outline in the ink, so that it is seen on any page. `hint` as of a box."""

    corners: Sequence[tuple[float, float]]
    fill: str
    hint: str = ""


@dataclass(frozen=True)
class Line:
    """A thin, faint line from (x, y) to (to_x, to_y)."""

    x: float
    y: float
    to_x: float
    to_y: float


@dataclass(frozen=True)
class Label:
    """A line of text that begins, has its middle or ends at (x, y), its base line; turned up by so many degrees."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    size: float = FONT_SIZE
    ink: str | None = None
    turn: float = 0.0
    bold: bool = False
    hint: str = ""


Shape = Box | Mark | Line | Label


@dataclass(frozen=True)
class Drawing:
    """Sizes in pixels, without the margin around; y grows downwards."""

    title: str
    width: float
    height: float
    shapes: Sequence[Shape]


def check_picture(path: Path, *inputs: str | Path | None, option: str = "picture", overwrite: bool = True) -> None:
    """Raises RequestError for a picture of no known kind, in no folder, or that is one of the `inputs`."""
    check_output(path, FILES, *inputs, option=option, overwrite=overwrite)


def as_svg(drawing: Drawing) -> str:
    """The drawing as an SVG element."""
    width, height = drawing.width + 2 * MARGIN, drawing.height + 2 * MARGIN
    size = f'viewBox="{-MARGIN:.0f} {-MARGIN:.0f} {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_text(drawing.title)}" {size} '
        f'font-family="{FONTS}" font-size="{FONT_SIZE:g}" fill="currentColor">\n'
        + "\n".join(map(_svg_shape, drawing.shapes))
        + "\n</svg>\n"
    )


def _svg_shape(shape: Shape) -> str:
    match shape:
        case Box():
            return _svg_box(shape)
        case Mark():
            return _svg_mark(shape)
        case Line():
            ends = f'x1="{shape.x:.2f}" y1="{shape.y:.2f}" x2="{shape.to_x:.2f}" y2="{shape.to_y:.2f}"'
            return f'<line {ends} stroke="currentColor" stroke-opacity="{FAINT}" stroke-width="{THIN}"/>'
        case Label():
            return _svg_label(shape)


def _svg_mark(mark: Mark) -> str:
    points = " ".join(f"{x:.2f},{y:.2f}" for x, y in mark.corners)
    looks = f'fill="{mark.fill}" stroke="currentColor" stroke-width="{THIN}"'
    return (
        f'<polygon points="{points}" {looks}>'
        + (f"<title>{_text(mark.hint)}</title>" if mark.hint else "")
        + "</polygon>"
    )


def _svg_box(box: Box) -> str:
    place = f'x="{box.x:.2f}" y="{box.y:.2f}" width="{box.width:.2f}" height="{box.height:.2f}"'
    if box.fill is None:
        return f'<rect {place} fill="none" stroke="currentColor" stroke-opacity="0.25"/>'
    return f'<rect {place} fill="{box.fill}"' + (f"><title>{_text(box.hint)}</title></rect>" if box.hint else "/>")


def _svg_label(label: Label) -> str:
    place = f'x="{label.x:.2f}" y="{label.y:.2f}"'
    if label.turn:
        place = f'transform="translate({label.x:.2f} {label.y:.2f}) rotate({-label.turn:g})"'
    looks = {
        "text-anchor": "" if label.anchor == "start" else label.anchor,
        "font-size": "" if label.size == FONT_SIZE else f"{label.size:g}",
        "font-weight": "600" if label.bold else "",
        "fill": label.ink or "",
    }
    attributes = "".join(f' {name}="{value}"' for name, value in looks.items() if value)
    text = ISOLATED.format(label.text) if RIGHT_TO_LEFT.search(label.text) else label.text
    hint = f"<title>{_text(label.hint)}</title>" if label.hint else ""
    return f"<text {place}{attributes}>{_text(text)}{hint}</text>"


def _text(text: str) -> str:
    """`text` for XML, which knows no control characters and no halves of surrogate pairs."""
    return escape(re.sub("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]", " ", text))


def write_picture(path: Path, drawing: Drawing) -> None:
    """Writes the drawing as the kind of file that `path` ends in, whole or not at all.

    Says so where no font of this machine has a script of the labels. Raises RequestError or WorkError when the file
    cannot be written.
    """
    try:
        with atomic_write(path) as building:
            missing = write_drawing(drawing, building, path.suffix)
    except OSError as error:
        raise write_error(path, error) from error
    if missing:
        log(
            f"{path}: no font of this machine has {', '.join(missing)}; such letters are boxes in the picture. "
            "Install one (the Noto fonts have every script), or write .svg, which takes the fonts of who opens it"
        )


def write_drawing(drawing: Drawing, path: Path, kind: str) -> list[str]:
    """Writes the drawing to `path` as `.png`, `.svg` or `.pdf`.

    Returns the scripts of labels that no font of this machine can draw, by name; an SVG needs none.
    """
    if kind == ".svg":
        path.write_text(as_svg(drawing), encoding="utf-8")
        return []
    from matplotlib.figure import Figure

    inches = ((drawing.width + 2 * MARGIN) / PIXELS_PER_INCH, (drawing.height + 2 * MARGIN) / PIXELS_PER_INCH)
    figure = Figure(figsize=inches, dpi=PIXELS_PER_INCH * SHARPNESS, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-MARGIN, drawing.width + MARGIN), ylim=(drawing.height + MARGIN, -MARGIN))
    axes.set_axis_off()
    _draw_boxes(axes, [shape for shape in drawing.shapes if isinstance(shape, Box)])
    _draw_lines(axes, [shape for shape in drawing.shapes if isinstance(shape, Line)])
    _draw_marks(axes, [shape for shape in drawing.shapes if isinstance(shape, Mark)])
    missing = _draw_labels(axes, [shape for shape in drawing.shapes if isinstance(shape, Label)])
    with boxes_for_missing_letters():
        figure.savefig(path, format=kind.removeprefix("."))
    return missing


def _draw_boxes(axes: "Axes", boxes: Sequence[Box]) -> None:
    from matplotlib.collections import PolyCollection

    corners = [
        [
            (box.x, box.y),
            (box.x + box.width, box.y),
            (box.x + box.width, box.y + box.height),
            (box.x, box.y + box.height),
        ]
        for box in boxes
    ]
    fills = [box.fill or "none" for box in boxes]
    edges = ["none" if box.fill else "#c0c0c0" for box in boxes]
    axes.add_collection(PolyCollection(corners, facecolors=fills, edgecolors=edges, linewidths=0.6), autolim=False)


def _draw_lines(axes: "Axes", lines: Sequence[Line]) -> None:
    from matplotlib.collections import LineCollection

    ends = [[(line.x, line.y), (line.to_x, line.to_y)] for line in lines]
    axes.add_collection(LineCollection(ends, colors="black", alpha=FAINT, linewidths=THIN * POINTS), autolim=False)


def _draw_marks(axes: "Axes", marks: Sequence[Mark]) -> None:
    from matplotlib.collections import PolyCollection

    corners, fills = [list(mark.corners) for mark in marks], [mark.fill for mark in marks]
    axes.add_collection(
        PolyCollection(corners, facecolors=fills, edgecolors="black", linewidths=THIN * POINTS, zorder=2.5),
        autolim=False,
    )


def _draw_labels(axes: "Axes", labels: Sequence[Label]) -> list[str]:
    sides = {"start": "left", "middle": "center", "end": "right"}
    missing: dict[str, None] = {}
    for label in labels:
        text = re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", " ", label.text)
        fonts = fonts_for(text)
        missing |= dict.fromkeys(fonts.missing)
        axes.text(
            label.x,
            label.y,
            text,
            family=fonts.families,
            fontsize=label.size * POINTS,
            fontweight="bold" if label.bold else "normal",
            color=label.ink or "black",
            horizontalalignment=sides[label.anchor],
            verticalalignment="baseline",
            rotation=label.turn,
            rotation_mode="anchor",
            parse_math=False,
        )
    return list(missing)
