"""Heat maps and other figures of matplotlib, as SVG for pages and as PNG, PDF or SVG files.

In SVG text stays text, so that the reader's own fonts show every script; PNG and PDF have this machine's fonts.
"""

import io
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from rich.cells import cell_len, set_cell_size

from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, check_output
from bertrelay.progress import log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILES = (".png", ".svg", ".pdf")
FAMILIES = (  # in the order in which letters are looked up; the first comes with matplotlib
    "DejaVu Sans",
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR"),
    *("PingFang SC", "Microsoft YaHei", "Hiragino Sans", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS"),
    *("WenQuanYi Zen Hei", "Droid Sans Fallback", "Unifont"),
)
OTHER_FAMILIES = ("Noto Sans", "Lohit", "FreeSans")  # first words of families to try before the rest
NO_LETTERS = ("Last Resort", "cm")  # first words of fonts of boxes and of TeX's codes
CONTROLS = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")  # neither XML nor matplotlib accepts them
LABEL_COLUMNS = 34
CELLS_WITH_VALUES = 12
MOST_CELLS = 200
CELL, SMALLEST_CELL, WIDEST = 0.46, 0.15, 6.2  # inches: of a cell, and of all cells together
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
DARK = 0.179  # luminance below which white text has more contrast than black


def check_picture(path: Path, *inputs: str | Path | None, option: str = "picture", overwrite: bool = False) -> None:
    """Raises RequestError for a picture of an unknown kind, in no folder, or that is one of the `inputs`."""
    check_output(path, FILES, *inputs, option=option, overwrite=overwrite)


def write_figure(path: Path, figure: "Figure") -> None:
    """Writes the figure as the kind of file that `path` ends in, complete or not at all.

    Warns when no font of this machine has a script of the labels. Raises RequestError or WorkError when the file
    cannot be written.
    """
    missing = set[str]()
    with atomic_write(path) as building:
        if path.suffix == ".svg":
            building.write_text(as_svg(figure), encoding="utf-8")
        else:
            with collect_missing_scripts() as missing:
                figure.savefig(building, format=path.suffix[1:], bbox_inches="tight", dpi=200)
    if missing:
        log(
            f"{path}: no font of this machine has {', '.join(sorted(missing))}; such letters are boxes in the "
            "picture. Install one (the Noto fonts have every script), or write .svg, which uses the reader's fonts"
        )


def as_svg(figure: "Figure") -> str:
    """The figure as an SVG element, the same for the same figure."""
    import matplotlib as mpl

    written = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bertrelay"}), collect_missing_scripts():
        figure.savefig(written, format="svg", bbox_inches="tight", metadata=NO_METADATA)
    text = written.getvalue()
    return text[text.index("<svg") :]


def font_families(texts: Iterable[str]) -> list[str]:
    """The fonts of this machine for `texts`: FAMILIES, and of all others those with a letter that is still missing.

    matplotlib takes a letter from the first font that has it.
    """
    families, others = map(list, _installed_families())
    letters = {ord(letter) for text in texts for letter in str(text) if not letter.isspace()}
    missing = letters.difference(*map(_letters_of, families))
    for name in others:
        if not missing:
            break
        if letters := missing & _letters_of(name):
            families.append(name)
            missing -= letters
    return families


@cache
def _installed_families() -> tuple[list[str], list[str]]:
    """The installed ones of FAMILIES, and all other families in the order in which to try them."""
    from matplotlib.font_manager import fontManager

    names = sorted(name for name in fontManager.get_font_names() if "Color" not in name)
    others = [name for name in names if name not in FAMILIES and not name.startswith(NO_LETTERS)]
    others.sort(key=lambda name: not name.startswith(OTHER_FAMILIES))
    return [name for name in FAMILIES if name in names], others


@cache
def _letters_of(family: str) -> frozenset[int]:
    """The code points of a font's letters; none if it cannot be read."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    with suppress(OSError, RuntimeError, ValueError):
        return frozenset(get_font(findfont(FontProperties(family=[family]))).get_charmap())
    return frozenset()


@contextmanager
def collect_missing_scripts() -> Iterator[set[str]]:
    """Yields a set that has, at the end, the scripts for which matplotlib found no font; passes on other warnings."""
    scripts: set[str] = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield scripts
    for warning in caught:
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


def cut(label: str, columns: int = LABEL_COLUMNS) -> str:
    """Cuts `label` to `columns` half-width characters, with an ellipsis, and removes control characters.

    An ideograph is two columns wide, an accent none.
    """
    label = CONTROLS.sub(" ", str(label))
    return label if cell_len(label) <= columns else set_cell_size(label, columns - 1).rstrip() + "…"


def write_heatmap(
    path: str | Path,
    matrix: ArrayLike,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    title: str = "",
    overwrite: bool = False,
) -> None:
    """Writes `matrix` (rows, columns) as a picture: `.png`, `.pdf`, or `.svg`, which uses the reader's own fonts.

    overwrite: replace an existing file, which is an error otherwise.

    Raises RequestError as `heatmap` does, and for a file of another kind or in no folder.
    """
    check_picture(Path(path), overwrite=overwrite)
    write_figure(Path(path), heatmap(matrix, row_labels, column_labels, title))


def heatmap(matrix: ArrayLike, row_labels: Sequence[str], column_labels: Sequence[str], title: str) -> "Figure":
    """Draws `matrix` (rows, columns); a missing value (None or nan) is an empty cell marked "–".

    Values are printed in the cells when there are at most 12 × 12.
    Raises RequestError when the labels do not fit the matrix, or it is empty or too large to read.
    """
    from matplotlib.figure import Figure

    values = np.ma.masked_invalid(np.array(matrix, dtype=np.float64))
    rows, columns = expected = len(row_labels), len(column_labels)
    if values.shape != expected:
        raise RequestError(f"expected a matrix of (row labels, column labels) = {expected}, found {values.shape}")
    check_size(rows, columns)
    cell = min(CELL, max(SMALLEST_CELL, WIDEST / max(rows, columns)))
    figure = Figure(figsize=(cell * columns, cell * rows), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    text: dict[str, Any] = {"family": font_families([title, *row_labels, *column_labels]), "parse_math": False}
    axes.set_title(CONTROLS.sub(" ", title), loc="left", fontsize=11, fontweight="bold", pad=12, **text)
    mesh = axes.pcolormesh(values, cmap="Blues", edgecolors="white", linewidth=0.7)
    axes.invert_yaxis()
    axes.tick_params(length=0, labelsize=9, labeltop=True, labelbottom=False)
    turned: dict[str, Any] = {
        "rotation": 40 if cell > 0.22 else 90,
        "rotation_mode": "anchor",
        "ha": "left",
        "va": "center",
    }
    axes.set_xticks(np.arange(columns) + 0.5, [cut(label) for label in column_labels], **turned, **text)
    axes.set_yticks(np.arange(rows) + 0.5, [cut(label) for label in row_labels], **text)
    axes.spines[:].set_color("#c0c0c0")
    bar = figure.colorbar(
        mesh, cax=axes.inset_axes((0, -0.3 / rows / cell, 1, 0.1 / rows / cell)), orientation="horizontal"
    )
    bar.ax.tick_params(labelsize=8)
    if bar.solids is not None:
        bar.solids.set(rasterized=False)
    if max(rows, columns) <= CELLS_WITH_VALUES:
        _print_values(axes, values, mesh.to_rgba(values))
    return figure


def _print_values(
    axes: "Axes", values: "np.ma.MaskedArray[tuple[int, int], np.dtype[np.float64]]", colours: np.ndarray
) -> None:
    decimals = max(0, 2 - int(np.log10(max(1.0, np.abs(values.filled(0.0)).max()))))
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)  # (rows, columns, 4)
    dark = linear[..., :3] @ (0.2126, 0.7152, 0.0722) < DARK
    for (row, column), value in np.ndenumerate(values.filled(np.nan)):
        shown = "–" if np.isnan(value) else f"{value:.{decimals}f}".replace("-", "−")
        ink = "white" if dark[row, column] and shown != "–" else "black"
        axes.text(column + 0.5, row + 0.5, shown, color=ink, fontsize=8, ha="center", va="center")


def check_size(rows: int, columns: int) -> None:
    """Raises RequestError for a matrix that no picture can show."""
    if 0 in (rows, columns):
        raise RequestError("expected at least one row and one column for a picture, found none")
    if max(rows, columns) > MOST_CELLS:
        raise RequestError(
            f"a picture of {rows:,} × {columns:,} cells cannot be read; give at most {MOST_CELLS} × {MOST_CELLS}, "
            "or write the similarities as JSON or CSV"
        )
