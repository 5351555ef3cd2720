"""A matrix as a picture: a heat map in SVG, for pages and for files.

The text takes the colour of what surrounds it (`currentColor`), so that one picture serves light and dark pages, and
the fonts of whoever looks at it, so that every script can be read without fonts inside the file.
"""

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertrelay.errors import RequestError

FONTS = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Noto Sans CJK SC', 'Noto Sans CJK KR', "
    "'Noto Sans Arabic', 'Noto Sans Devanagari', 'Hiragino Sans', 'Malgun Gothic', 'Microsoft YaHei', sans-serif"
)
FONT_SIZE = 12.0
COLUMN_WIDTH = 7.3  # of one half-width character at FONT_SIZE, in the widest of the usual fonts
LABEL_COLUMNS = 34
CELL = 46.0
WIDEST = 620.0  # of all cells together, so that a page need not shrink the labels
CELLS_WITH_VALUES = 12
CELLS_WITH_LABELS = 48
MOST_CELLS = 200
SLANT = math.radians(40)
GAP = 8.0
LEGEND_STEPS = 32

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
    """Where things stand, in pixels: the cells' size, and their left and upper corner in the picture."""

    cell: float
    left: float
    top: float
    width: float
    height: float
    labelled: bool

    @classmethod
    def of(cls, row_widths: Sequence[float], column_widths: Sequence[float]) -> "Layout":
        rows, columns = len(row_widths), len(column_widths)
        most = max(rows, columns)
        cell = CELL if most <= CELLS_WITH_VALUES else max(4.0, min(CELL, WIDEST / most))
        labelled = most <= CELLS_WITH_LABELS
        left = max(row_widths) + GAP if labelled else 0.0
        top = 28.0 + (max(column_widths) * math.sin(SLANT) + FONT_SIZE + GAP if labelled else GAP)
        overhang = (
            max(
                (width * math.cos(SLANT) + FONT_SIZE - (columns - index - 0.5) * cell)
                for index, width in enumerate(column_widths)
            )
            if labelled
            else 0.0
        )
        width = max(left + columns * cell + max(overhang, 0.0), 320.0)
        return cls(cell, left, top, width, top + rows * cell + 56.0, labelled)


def heatmap_svg(matrix: ArrayLike, row_labels: Sequence[str], column_labels: Sequence[str], title: str) -> str:
    """`matrix` (rows, columns) as an SVG element; a missing value (None or nan) is an empty cell marked "–".

    Values stand in the cells when there are at most 12 × 12, labels beside them up to 48 × 48.
    Raises RequestError when the labels do not fit the matrix, or there is nothing, or too much, to be seen.
    """
    values = np.array(matrix, dtype=np.float64)
    _check(values, row_labels, column_labels)
    rows, columns = [cut(label) for label in row_labels], [cut(label) for label in column_labels]
    layout = Layout.of([_pixels(label) for label in rows], [_pixels(label) for label in columns])
    scale = Scale.of(values)
    parts = [_heading(title), _cells(values, scale, layout)]
    if layout.labelled:
        parts += [_row_labels(rows, row_labels, layout), _column_labels(columns, column_labels, layout)]
    parts.append(_legend(scale, layout))
    size = (
        f'viewBox="0 0 {layout.width:.0f} {layout.height:.0f}" width="{layout.width:.0f}" height="{layout.height:.0f}"'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_text(title)}" {size} '
        f'font-family="{FONTS}" font-size="{FONT_SIZE:g}" fill="currentColor">\n' + "\n".join(parts) + "\n</svg>\n"
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


def _pixels(text: str) -> float:
    return text_columns(text) * COLUMN_WIDTH


def _check(values: NDArray[np.float64], row_labels: Sequence[str], column_labels: Sequence[str]) -> None:
    expected = (len(row_labels), len(column_labels))
    if values.shape != expected:
        raise RequestError(f"expected a matrix of (row labels, column labels) = {expected}, found {values.shape}")
    if 0 in expected:
        raise RequestError("expected at least one row and one column for a picture, found none")
    if max(expected) > MOST_CELLS:
        raise RequestError(
            f"a picture of {expected[0]:,} × {expected[1]:,} cells cannot be read; give at most {MOST_CELLS} × "
            f"{MOST_CELLS}, or write the figures as JSON or CSV"
        )


def _heading(title: str) -> str:
    return f'<text x="0" y="{FONT_SIZE + 2:g}" font-size="14" font-weight="600">{_text(title)}</text>'


def _cells(values: NDArray[np.float64], scale: Scale, layout: Layout) -> str:
    with_values = max(values.shape) <= CELLS_WITH_VALUES
    lines = []
    for (row, column), value in np.ndenumerate(values):
        x, y = layout.left + column * layout.cell, layout.top + row * layout.cell
        lines.append(_cell(x, y, layout.cell, float(value), scale))
        if with_values or math.isnan(value):
            lines.append(_value(x + layout.cell / 2, y + layout.cell / 2 + 4, float(value), scale))
    return "\n".join(lines)


def _cell(x: float, y: float, side: float, value: float, scale: Scale) -> str:
    inner = side - (1 if side >= 12 else 0)  # a hairline between cells that are large enough
    box = f'x="{x:.2f}" y="{y:.2f}" width="{inner:.2f}" height="{inner:.2f}"'
    if math.isnan(value):
        return f'<rect {box} fill="none" stroke="currentColor" stroke-opacity="0.25"/>'
    return f'<rect {box} fill="{colour(scale.share(value))}"><title>{figure(value, scale)}</title></rect>'


def _value(x: float, y: float, value: float, scale: Scale) -> str:
    if math.isnan(value):
        return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="middle">–</text>'
    ink = "#ffffff" if scale.share(value) > WHITE_INK_FROM else "#000000"
    text = figure(value, scale)
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="middle" font-size="11.5" fill="{ink}">{text}</text>'


def _row_labels(shown: Sequence[str], whole: Sequence[str], layout: Layout) -> str:
    x = layout.left - GAP
    lines = []
    for row, (label, full) in enumerate(zip(shown, whole, strict=True)):
        y = layout.top + (row + 0.5) * layout.cell + 4
        lines.append(f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="end">{_label(label, full)}</text>')
    return "\n".join(lines)


def _column_labels(shown: Sequence[str], whole: Sequence[str], layout: Layout) -> str:
    lines = []
    for column, (label, full) in enumerate(zip(shown, whole, strict=True)):
        x, y = layout.left + (column + 0.5) * layout.cell, layout.top - GAP
        turn = f'transform="translate({x:.2f} {y:.2f}) rotate({-math.degrees(SLANT):g})"'
        lines.append(f"<text {turn}>{_label(label, full)}</text>")
    return "\n".join(lines)


def _label(shown: str, whole: str) -> str:
    return _text(shown) + (f"<title>{_text(whole)}</title>" if shown != whole else "")


def _legend(scale: Scale, layout: Layout) -> str:
    y, step = layout.height - 34.0, 6.0
    left = layout.left
    bars = [
        f'<rect x="{left + index * step:.2f}" y="{y:.2f}" width="{step + 0.3:.2f}" height="10" '
        f'fill="{colour(index / (LEGEND_STEPS - 1))}"/>'
        for index in range(LEGEND_STEPS)
    ]
    right = left + LEGEND_STEPS * step
    ends = [
        f'<text x="{left:.2f}" y="{y + 25:.2f}">{figure(scale.low, scale)}</text>',
        f'<text x="{right:.2f}" y="{y + 25:.2f}" text-anchor="end">{figure(scale.high, scale)}</text>',
    ]
    return "\n".join(bars + ends)


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


def _text(text: str) -> str:
    """`text` for XML, which knows no control characters and no halves of surrogate pairs."""
    return escape(re.sub("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]", " ", text))
