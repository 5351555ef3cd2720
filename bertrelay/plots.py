"""Heat maps and other drawings of boxes, marks, lines and labels: as SVG for pages, as PNG, PDF or SVG for files.

In SVG, text has the colour of its surroundings (`currentColor`), so that one drawing serves light and dark pages, and
the reader's own fonts, so that every script can be read. PNG and PDF are drawn on white, with this machine's fonts.
"""

import math
import re
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, check_output
from bertrelay.progress import log

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILES = (".png", ".svg", ".pdf")
CSS_FONTS = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Noto Sans CJK SC', 'Noto Sans CJK KR', "
    "'Noto Sans Arabic', 'Noto Sans Devanagari', 'Hiragino Sans', 'Malgun Gothic', 'Microsoft YaHei', sans-serif"
)
FAMILIES = (  # in the order in which a letter is looked for; the first comes with matplotlib
    "DejaVu Sans",
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR"),
    *("PingFang SC", "Microsoft YaHei", "Hiragino Sans", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS"),
    *("WenQuanYi Zen Hei", "Droid Sans Fallback", "Unifont"),
)
OTHER_FAMILIES = ("Noto Sans", "Lohit", "FreeSans")  # how others begin, after these
FONT_SIZE = 12.0
MARGIN = 12.0
PIXELS_PER_INCH = 100.0
PNG_SCALE = 2.0  # pixels of a PNG for each of the drawing
THIN, FAINT = 0.8, 0.55  # pixels of a line, and its opacity
POINTS = 72.0 / PIXELS_PER_INCH  # in a pixel
ISOLATED = "\u2068{}\u2069"  # left to right or right to left, as its first letter is
RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
CONTROLS = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")  # which neither XML nor matplotlib takes


@dataclass(frozen=True)
class Box:
    """A filled rectangle; an outline where it has no `fill`. `hint` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    fill: str | None
    hint: str = ""


@dataclass(frozen=True)
class Polygon:
    """A filled polygon with an outline, so that it is seen on any page. `hint` is its tooltip."""

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
    """A line of text that begins, is centred or ends at (x, y), its base line, turned up by `turn` degrees."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    size: float = FONT_SIZE
    ink: str | None = None
    turn: float = 0.0
    bold: bool = False
    hint: str = ""


Shape = Box | Polygon | Line | Label


@dataclass(frozen=True)
class Drawing:
    """Sizes in pixels, without the margin around; y grows downwards."""

    title: str
    width: float
    height: float
    shapes: Sequence[Shape]


def check_picture(path: Path, *inputs: str | Path | None, option: str = "picture", overwrite: bool = True) -> None:
    """Raises RequestError for a picture of an unknown kind, in no folder, or that is one of the `inputs`."""
    check_output(path, FILES, *inputs, option=option, overwrite=overwrite)


def write_picture(path: Path, drawing: Drawing) -> None:
    """Writes the drawing as the kind of file that `path` ends in, complete or not at all.

    Warns when no font of this machine has a script of the labels. Raises RequestError or WorkError when the file
    cannot be written.
    """
    from matplotlib.figure import Figure

    with atomic_write(path) as building:
        if path.suffix == ".svg":
            building.write_text(as_svg(drawing), encoding="utf-8")
            return
        inches = ((drawing.width + 2 * MARGIN) / PIXELS_PER_INCH, (drawing.height + 2 * MARGIN) / PIXELS_PER_INCH)
        figure = Figure(figsize=inches, dpi=PIXELS_PER_INCH * PNG_SCALE, facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-MARGIN, drawing.width + MARGIN), ylim=(drawing.height + MARGIN, -MARGIN))
        axes.set_axis_off()
        for shape in drawing.shapes:
            _draw(axes, shape)
        with missing_scripts() as missing:
            figure.savefig(building, format=path.suffix.removeprefix("."))
    if missing:
        log(
            f"{path}: no font of this machine has {', '.join(sorted(missing))}; such letters are boxes in the picture. "
            "Install one (the Noto fonts have every script), or write .svg, which uses the reader's fonts"
        )


def as_svg(drawing: Drawing) -> str:
    """The drawing as an SVG element."""
    width, height = drawing.width + 2 * MARGIN, drawing.height + 2 * MARGIN
    size = f'viewBox="{-MARGIN:.0f} {-MARGIN:.0f} {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_xml(drawing.title)}" {size} '
        f'font-family="{CSS_FONTS}" font-size="{FONT_SIZE:g}" fill="currentColor">\n'
        + "\n".join(map(_svg_shape, drawing.shapes))
        + "\n</svg>\n"
    )


def _svg_shape(shape: Shape) -> str:
    match shape:
        case Box():
            place = f'x="{shape.x:.2f}" y="{shape.y:.2f}" width="{shape.width:.2f}" height="{shape.height:.2f}"'
            outline = 'fill="none" stroke="currentColor" stroke-opacity="0.25"'
            return _element("rect", place, f'fill="{shape.fill}"' if shape.fill else outline, shape.hint)
        case Polygon():
            points = " ".join(f"{x:.2f},{y:.2f}" for x, y in shape.corners)
            looks = f'fill="{shape.fill}" stroke="currentColor" stroke-width="{THIN}"'
            return _element("polygon", f'points="{points}"', looks, shape.hint)
        case Line():
            ends = f'x1="{shape.x:.2f}" y1="{shape.y:.2f}" x2="{shape.to_x:.2f}" y2="{shape.to_y:.2f}"'
            return _element("line", ends, f'stroke="currentColor" stroke-opacity="{FAINT}" stroke-width="{THIN}"')
        case Label():
            return _svg_label(shape)


def _element(name: str, place: str, looks: str, hint: str = "", text: str = "") -> str:
    inner = _xml(text) + (f"<title>{_xml(hint)}</title>" if hint else "")
    return f"<{name} {place} {looks}".rstrip() + (f">{inner}</{name}>" if inner else "/>")


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
    text = ISOLATED.format(label.text) if RIGHT_TO_LEFT.search(label.text) else label.text
    attributes = " ".join(f'{name}="{value}"' for name, value in looks.items() if value)
    return _element("text", place, attributes, label.hint, text)


def _xml(text: str) -> str:
    return escape(CONTROLS.sub(" ", text))


def _draw(axes: "Axes", shape: Shape) -> None:
    """Draws with matplotlib: boxes, lines over them, then polygons, then labels."""
    from matplotlib import lines, patches

    match shape:
        case Box():
            looks: dict[str, Any] = {
                "facecolor": shape.fill or "none",
                "edgecolor": "none" if shape.fill else "#c0c0c0",
            }
            axes.add_patch(patches.Rectangle((shape.x, shape.y), shape.width, shape.height, linewidth=0.6, **looks))
        case Polygon():
            looks = {"facecolor": shape.fill, "edgecolor": "black"}
            axes.add_patch(patches.Polygon(shape.corners, linewidth=THIN * POINTS, zorder=2.5, **looks))
        case Line():
            ends = [shape.x, shape.to_x], [shape.y, shape.to_y]
            axes.add_line(lines.Line2D(*ends, color="black", alpha=FAINT, linewidth=THIN * POINTS))
        case Label():
            axes.text(
                shape.x,
                shape.y,
                CONTROLS.sub(" ", shape.text),
                family=font_families(),
                fontsize=shape.size * POINTS,
                fontweight="bold" if shape.bold else "normal",
                color=shape.ink or "black",
                horizontalalignment={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                rotation=shape.turn,
                rotation_mode="anchor",
                parse_math=False,
            )


@cache
def font_families() -> list[str]:
    """The fonts of this machine for all scripts; matplotlib takes each letter from the first that has it."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    for file in set(findSystemFonts()) - {entry.fname for entry in fontManager.ttflist}:
        with suppress(Exception):  # installed after matplotlib wrote its list, and perhaps no font at all
            fontManager.addfont(file)
    installed = sorted(name for name in fontManager.get_font_names() if "Color" not in name)
    others = [name for name in installed if name.startswith(OTHER_FAMILIES) and name not in FAMILIES]
    return [*(name for name in FAMILIES if name in installed), *others]


@contextmanager
def missing_scripts() -> Iterator[set[str]]:
    """The scripts, by name, of the letters for which matplotlib finds no font within; other warnings are passed on."""
    scripts: set[str] = set()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield scripts
    for warning in found:
        glyph = re.match(r"Glyph (\d+) .*missing from", str(warning.message))
        if glyph is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif unicodedata.category(chr(int(glyph[1])))[0] not in "CZ":  # not invisible
            scripts.add(script(chr(int(glyph[1]))))


def script(letter: str) -> str:
    """The script of a letter, by the first word of its name in Unicode: `Devanagari`, `Thai`."""
    if unicodedata.category(letter)[0] not in "LMN" or "VARIATION" in unicodedata.name(letter, ""):
        return "symbols and emoji"
    return unicodedata.name(letter, "unnamed letters").split()[0].capitalize()


def width_of(text: str, size: float) -> float:
    """The width of `text` in the fonts that draw it here, in the unit of `size`."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=font_families(), size=size)
    with missing_scripts():
        width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width)


COLUMN_WIDTH = 7.3  # pixels of one half-width character at FONT_SIZE, in the widest of the usual fonts
WIDE_LETTERS = {**dict.fromkeys("mwMW@%—", 12.0), **dict.fromkeys("ABCDEFGHKLNOPQRSTUVXYZ&", 9.0)}  # pixels
LABEL_COLUMNS = 34
CELL = 46.0
SMALLEST_CELL = 14.0  # as high as a line of text, so that every row has its label
WIDEST = 620.0  # of all cells together, where they need not be smaller than that
CELLS_WITH_VALUES = 12
MOST_CELLS = 200
SLANT, UPRIGHT = 40.0, 90.0  # degrees of the columns' labels
CELL_FOR_SLANT = 22.0  # slanted labels of smaller cells would run into one another
GAP = 8.0
LEGEND_STEP = 6.0
# From pale to deep in even steps of Oklab (Ottosson, 2020), where equal steps look equal. Only the lightness falls far,
# so the scale survives grey printing and colour blindness.
PALETTE = (
    "ecf7ff e4f0fb ddeaf6 d5e3f2 ceddee c6d7e9 bfd0e5 b8cae1 b1c4dc a9bdd8 a2b7d3 9bb1cf 94abcb 8da4c6 869ec2 7f98be "
    "7892b9 718cb5 6b86b1 6480ac 5d7aa8 5774a3 506e9f 4a689b 436296 3d5d92 37578d 305189 2a4b85 244580 1e3f7c 173a77 "
    "113473"
)
COLOURS = tuple(f"#{code}" for code in PALETTE.split())
WHITE_INK_FROM = 21  # on deeper colours white is easier to read than black; both reach 4.5 : 1


@dataclass(frozen=True)
class Scale:
    """The values of the palest and the deepest colour."""

    low: float
    high: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "Scale":
        finite = values[np.isfinite(values)]
        return cls(float(finite.min()), float(finite.max())) if finite.size else cls(0.0, 1.0)

    def step(self, value: float) -> int:
        """The place of the value's colour in `COLOURS`."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(share * (len(COLOURS) - 1))

    def text(self, value: float) -> str:
        """`value` with two decimals where the scale ends within ±10, fewer elsewhere, and a true minus sign."""
        decimals = max(0, 2 - int(math.log10(max(abs(self.low), abs(self.high), 1.0))))
        text = f"{value:.{decimals}f}"
        return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


@dataclass(frozen=True)
class Grid:
    """The size of a heat map and its cells, their left and upper corner, in pixels; and how columns' labels turn."""

    cell: float
    left: float
    top: float
    width: float
    height: float
    turn: float

    @classmethod
    def of(cls, row_widths: Sequence[float], column_widths: Sequence[float]) -> "Grid":
        rows, columns = len(row_widths), len(column_widths)
        cell = min(CELL, max(SMALLEST_CELL, WIDEST / max(rows, columns, CELLS_WITH_VALUES)))
        turn = SLANT if cell >= CELL_FOR_SLANT else UPRIGHT
        left = max(row_widths) + GAP
        top = 28.0 + max(column_widths) * math.sin(math.radians(turn)) + FONT_SIZE + GAP
        ends = (  # of the columns' labels, to the right of the cells' left side
            (place + 0.5) * cell + width * math.cos(math.radians(turn)) + FONT_SIZE
            for place, width in enumerate(column_widths)
        )
        width = left + max(columns * cell, len(COLOURS) * LEGEND_STEP, *ends)
        return cls(cell, left, top, width, top + rows * cell + 56.0, turn)


def write_heatmap(
    path: Path, matrix: ArrayLike, row_labels: Sequence[str], column_labels: Sequence[str], title: str = ""
) -> None:
    """Writes `matrix` (rows, columns) as a picture: `.png`, `.pdf`, or `.svg`, which uses the reader's own fonts.

    Warns when no font of this machine has a script of the labels. Raises RequestError as `heatmap` does, and for a
    file of another kind or in no folder.
    """
    check_picture(path)
    write_picture(path, heatmap(matrix, row_labels, column_labels, title))


def heatmap(matrix: ArrayLike, row_labels: Sequence[str], column_labels: Sequence[str], title: str) -> Drawing:
    """`matrix` (rows, columns) as a drawing; a missing value (None or nan) is an empty cell marked "–".

    Values are printed in the cells when there are at most 12 × 12.
    Raises RequestError when the labels do not fit the matrix, or it is empty or too large to read.
    """
    values = np.array(matrix, dtype=np.float64)
    expected = (len(row_labels), len(column_labels))
    if values.shape != expected:
        raise RequestError(f"expected a matrix of (row labels, column labels) = {expected}, found {values.shape}")
    check_size(*expected)
    rows, columns = [cut(label) for label in row_labels], [cut(label) for label in column_labels]
    grid = Grid.of([text_pixels(label) for label in rows], [text_pixels(label) for label in columns])
    scale = Scale.of(values)
    shapes: list[Shape] = [Label(0, FONT_SIZE + 2, title, size=14.0, bold=True), *_cells(values, scale, grid)]
    for row, (label, full) in enumerate(zip(rows, row_labels, strict=True)):
        y = grid.top + (row + 0.5) * grid.cell + 4
        shapes.append(Label(grid.left - GAP, y, label, "end", hint=full if full != label else ""))
    aside = 4.0 if grid.turn == UPRIGHT else 0.0  # half a letter's height, so that it stands over the middle
    for column, (label, full) in enumerate(zip(columns, column_labels, strict=True)):
        x = grid.left + (column + 0.5) * grid.cell + aside
        shapes.append(Label(x, grid.top - GAP, label, turn=grid.turn, hint=full if full != label else ""))
    return Drawing(title, grid.width, grid.height, [*shapes, *_legend(scale, grid)])


def check_size(rows: int, columns: int) -> None:
    """Raises RequestError for a matrix that no picture can show."""
    if 0 in (rows, columns):
        raise RequestError("expected at least one row and one column for a picture, found none")
    if max(rows, columns) > MOST_CELLS:
        raise RequestError(
            f"a picture of {rows:,} × {columns:,} cells cannot be read; give at most {MOST_CELLS} × {MOST_CELLS}, "
            "or write the similarities as JSON or CSV"
        )


def cut(label: str, columns: int = LABEL_COLUMNS) -> str:
    """`label`, with an ellipsis where it is wider than `columns` half-width characters."""
    if text_columns(label) <= columns:
        return label
    used, kept = 0, ""
    for character in label:
        used += text_columns(character)
        if used > columns - 1:
            break
        kept += character
    return kept.rstrip() + "…"


def text_columns(text: str) -> int:
    """The width of `text` in half-width characters: two for an ideograph or a Hangul syllable, none for an accent."""
    characters = unicodedata.normalize("NFC", text)
    visible = [each for each in characters if unicodedata.category(each) not in ("Mn", "Me", "Cf")]
    return sum(2 if unicodedata.east_asian_width(each) in ("W", "F") else 1 for each in visible)


def text_pixels(text: str) -> float:
    """The width of `text` at FONT_SIZE in the widest of the usual fonts, about."""
    return sum(WIDE_LETTERS.get(character, text_columns(character) * COLUMN_WIDTH) for character in text)


def _cells(values: NDArray[np.float64], scale: Scale, grid: Grid) -> Iterator[Box | Label]:
    with_values = max(values.shape) <= CELLS_WITH_VALUES
    side = grid.cell - 1  # a hairline between the cells
    for (row, column), value in np.ndenumerate(values):
        x, y = grid.left + column * grid.cell, grid.top + row * grid.cell
        middle, base = x + grid.cell / 2, y + grid.cell / 2 + 4
        if math.isnan(value):
            yield Box(x, y, side, side, None)
            yield Label(middle, base, "–", "middle")
            continue
        step, text = scale.step(value), scale.text(value)
        yield Box(x, y, side, side, COLOURS[step], text)
        if with_values:
            yield Label(middle, base, text, "middle", 11.5, "#ffffff" if step >= WHITE_INK_FROM else "#000000")


def _legend(scale: Scale, grid: Grid) -> Iterator[Box | Label]:
    y, left = grid.height - 34.0, grid.left
    for index, colour in enumerate(COLOURS):
        yield Box(left + index * LEGEND_STEP, y, LEGEND_STEP + 0.3, 10, colour)
    yield Label(left, y + 25, scale.text(scale.low))
    yield Label(left + len(COLOURS) * LEGEND_STEP, y + 25, scale.text(scale.high), "end")
