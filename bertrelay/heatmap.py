"""A matrix as a picture: a heat map of coloured cells with labels beside them."""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertrelay.drawing import FONT_SIZE, Box, Drawing, Label, as_svg, check_picture, write_picture
from bertrelay.errors import RequestError

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
LEGEND_STEPS, LEGEND_STEP = 32, 6.0

# Two colours in Oklab (lightness, green-red, blue-yellow). Equal steps in Oklab look equal, so a straight line between
# two colours in it is an even scale; only the lightness falls far, so it survives grey printing and colour blindness.
PALE = (0.970, -0.008, -0.014)
DEEP = (0.340, -0.018, -0.115)
WHITE_INK_FROM = 0.642  # where white text begins to be easier to read than black, 4.5 : 1 for both


@dataclass(frozen=True)
class Scale:
    """The values that the palest and the deepest colour stand for."""

    low: float
    high: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "Scale":
        finite = values[np.isfinite(values)]
        return cls(float(finite.min()), float(finite.max())) if finite.size else cls(0.0, 1.0)

    def share(self, value: float) -> float:
        """Where `value` lies between the ends, 0 to 1."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5


@dataclass(frozen=True)
class Layout:
    """Where things stand, in pixels: the cells' size, their left and upper corner, and how columns' labels turn."""

    cell: float
    left: float
    top: float
    width: float
    height: float
    turn: float

    @classmethod
    def of(cls, row_widths: Sequence[float], column_widths: Sequence[float]) -> "Layout":
        rows, columns = len(row_widths), len(column_widths)
        cell = min(CELL, max(SMALLEST_CELL, WIDEST / max(rows, columns, CELLS_WITH_VALUES)))
        turn = SLANT if cell >= CELL_FOR_SLANT else UPRIGHT
        left = max(row_widths) + GAP
        top = 28.0 + max(column_widths) * math.sin(math.radians(turn)) + FONT_SIZE + GAP
        ends = (  # of the columns' labels, to the right of the cells' left side
            (place + 0.5) * cell + width * math.cos(math.radians(turn)) + FONT_SIZE
            for place, width in enumerate(column_widths)
        )
        width = left + max(columns * cell, LEGEND_STEPS * LEGEND_STEP, *ends)
        return cls(cell, left, top, width, top + rows * cell + 56.0, turn)


def write_heatmap(
    path: Path, matrix: ArrayLike, row_labels: Sequence[str], column_labels: Sequence[str], title: str = ""
) -> None:
    """Writes `matrix` (rows, columns) as a picture: `.png`, `.pdf`, or `.svg`, which takes the reader's own fonts.

    Says so where no font of this machine has a script of the labels. Raises RequestError as `heatmap` does, and for a
    file of another kind or in no folder.
    """
    check_picture(path)
    write_picture(path, heatmap(matrix, row_labels, column_labels, title))


def heatmap_svg(matrix: ArrayLike, row_labels: Sequence[str], column_labels: Sequence[str], title: str) -> str:
    """`heatmap` as an SVG element, to stand in a page."""
    return as_svg(heatmap(matrix, row_labels, column_labels, title))


def heatmap(matrix: ArrayLike, row_labels: Sequence[str], column_labels: Sequence[str], title: str) -> Drawing:
    """`matrix` (rows, columns) as a drawing; a missing value (None or nan) is an empty cell marked "–".

    Values stand in the cells when there are at most 12 × 12.
    Raises RequestError when the labels do not fit the matrix, or there is nothing, or too much, to be seen.
    """
    values = np.array(matrix, dtype=np.float64)
    expected = (len(row_labels), len(column_labels))
    if values.shape != expected:
        raise RequestError(f"expected a matrix of (row labels, column labels) = {expected}, found {values.shape}")
    check_size(*expected)
    rows, columns = [cut(label) for label in row_labels], [cut(label) for label in column_labels]
    layout = Layout.of([text_pixels(label) for label in rows], [text_pixels(label) for label in columns])
    scale = Scale.of(values)
    shapes: list[Box | Label] = [Label(0, FONT_SIZE + 2, title, size=14.0, bold=True)]
    shapes += _cells(values, scale, layout)
    shapes += _row_labels(rows, row_labels, layout)
    shapes += _column_labels(columns, column_labels, layout)
    shapes += _legend(scale, layout)
    return Drawing(title, layout.width, layout.height, shapes)


def check_size(rows: int, columns: int) -> None:
    """Raises RequestError for a matrix that no picture can show."""
    if 0 in (rows, columns):
        raise RequestError("expected at least one row and one column for a picture, found none")
    if max(rows, columns) > MOST_CELLS:
        raise RequestError(
            f"a picture of {rows:,} × {columns:,} cells cannot be read; give at most {MOST_CELLS} × {MOST_CELLS}, "
            "or write the figures as JSON or CSV"
        )


def cut(label: str, columns: int = LABEL_COLUMNS) -> str:
    """`label`, ended by an ellipsis where it is wider than `columns` half-width characters."""
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
    return sum(_columns(character) for character in unicodedata.normalize("NFC", text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def text_pixels(text: str) -> float:
    """The width of `text` at FONT_SIZE in the widest of the usual fonts, about."""
    return sum(WIDE_LETTERS.get(character, text_columns(character) * COLUMN_WIDTH) for character in text)


def _cells(values: NDArray[np.float64], scale: Scale, layout: Layout) -> Iterator[Box | Label]:
    with_values = max(values.shape) <= CELLS_WITH_VALUES
    side = layout.cell - 1  # a hairline between the cells
    for (row, column), value in np.ndenumerate(values):
        x, y = layout.left + column * layout.cell, layout.top + row * layout.cell
        fill, told = (None, "") if math.isnan(value) else (colour(scale.share(value)), figure(value, scale))
        yield Box(x, y, side, side, fill, told)
        if with_values or fill is None:
            yield _value(x + layout.cell / 2, y + layout.cell / 2 + 4, float(value), scale)


def _value(x: float, y: float, value: float, scale: Scale) -> Label:
    if math.isnan(value):
        return Label(x, y, "–", "middle")
    ink = "#ffffff" if scale.share(value) > WHITE_INK_FROM else "#000000"
    return Label(x, y, figure(value, scale), "middle", 11.5, ink)


def _row_labels(shown: Sequence[str], whole: Sequence[str], layout: Layout) -> Iterator[Label]:
    for row, (label, full) in enumerate(zip(shown, whole, strict=True)):
        y = layout.top + (row + 0.5) * layout.cell + 4
        yield Label(layout.left - GAP, y, label, "end", hint=full if full != label else "")


def _column_labels(shown: Sequence[str], whole: Sequence[str], layout: Layout) -> Iterator[Label]:
    aside = 4.0 if layout.turn == UPRIGHT else 0.0  # half a letter's height, so that it stands over the middle
    for column, (label, full) in enumerate(zip(shown, whole, strict=True)):
        x = layout.left + (column + 0.5) * layout.cell + aside
        yield Label(x, layout.top - GAP, label, turn=layout.turn, hint=full if full != label else "")


def _legend(scale: Scale, layout: Layout) -> Iterator[Box | Label]:
    y, left = layout.height - 34.0, layout.left
    for index in range(LEGEND_STEPS):
        yield Box(left + index * LEGEND_STEP, y, LEGEND_STEP + 0.3, 10, colour(index / (LEGEND_STEPS - 1)))
    yield Label(left, y + 25, figure(scale.low, scale))
    yield Label(left + LEGEND_STEPS * LEGEND_STEP, y + 25, figure(scale.high, scale), "end")


def figure(value: float, scale: Scale) -> str:
    """`value` with two decimals where the scale ends within ±10, fewer where it does not, and a true minus sign."""
    decimals = max(0, 2 - int(math.log10(max(abs(scale.low), abs(scale.high), 1.0))))
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


def colour(share: float) -> str:
    """The colour `share` (0 to 1) of the way from pale to deep, as `#rrggbb`.

    Oklab to sRGB: Björn Ottosson, "A perceptual color space for image processing" (2020).
    """
    lightness, green_red, blue_yellow = (pale + share * (deep - pale) for pale, deep in zip(PALE, DEEP, strict=True))
    long = (lightness + 0.3963377774 * green_red + 0.2158037573 * blue_yellow) ** 3
    medium = (lightness - 0.1055613458 * green_red - 0.0638541728 * blue_yellow) ** 3
    short = (lightness - 0.0894841775 * green_red - 1.2914855480 * blue_yellow) ** 3
    return "#" + "".join(
        f"{_eight_bits(channel):02x}"
        for channel in (
            4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
        )
    )


def _eight_bits(linear: float) -> int:
    linear = min(max(linear, 0.0), 1.0)
    encoded = 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055
    return round(255 * encoded)
