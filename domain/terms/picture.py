"""Terms on a plane: t-SNE of their vectors, a mark for each group, and a label for each term that covers no other."""

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.drawing import Box, Drawing, Label, Line, Mark, Shape
from bertrelay.fonts import width_of
from bertrelay.heatmap import COLUMN_WIDTH, cut, text_pixels
from domain.terms.placement import Placed, place_labels

Floats = NDArray[np.float64]
Vectors = NDArray[np.float32]

LEAST_TERMS, MOST_TERMS = 5, 300
USUAL_PERPLEXITY = 30.0
MOST_GROUPS = 12
OTHERS, NO_GROUP = "other groups", "no group"

# Okabe & Ito (2008), "Color universal design": told apart by the colour-blind. Each group has a shape besides.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
GREY = "#a0a0a0"
Corners = Sequence[tuple[float, float]]
SHAPES: tuple[Corners, ...] = (  # as corners around (0, 0), equally large to the eye
    tuple((math.cos(turn * math.pi / 12), math.sin(turn * math.pi / 12)) for turn in range(24)),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.25), (1.15, 0.8), (-1.15, 0.8)),
    ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    ((0, 1.25), (1.15, -0.8), (-1.15, -0.8)),
    tuple(
        (corner.real, corner.imag)
        for corner in (arm * 1j**turn for turn in range(4) for arm in (-0.4 - 1.2j, 0.4 - 1.2j, 0.4 - 0.4j))
    ),
)

MARK, TERM_SIZE = 5.0, 11.0  # pixels: half a mark's width; letters of a term
LINE_HEIGHT, AIR = 15.0, 4.0
TOP = 34.0  # of the title
ROOM = 5.0  # so many times as much ground as the labels cover
LEAST_WIDTH, EDGES = 520.0, (110.0, 45.0)  # pixels; between the outermost marks and the frame
LEGEND_GAP = 18.0


class Map(NamedTuple):
    """Where terms stand: rows of the vectors that were placed, their positions (rows, 2), and how they were found."""

    rows: NDArray[np.int64]
    positions: Floats
    perplexity: float
    seed: int
    of: int


class Drawn(NamedTuple):
    """The picture, and how many terms found no place for their label."""

    drawing: Drawing
    unlabelled: int


def perplexity_for(terms: int) -> float:
    """The usual 30, and less for fewer than 91 terms: a third of the others, as of more all would be near."""
    return min(USUAL_PERPLEXITY, (terms - 1) / 3)


def place_terms(vectors: Vectors, seed: int, perplexity: float | None = None) -> Map:
    """t-SNE (van der Maaten & Hinton, 2008) by cosine of `vectors` (n, dim), from positions that the seed draws.

    Of more than MOST_TERMS, as many drawn at random.
    """
    from sklearn.manifold import TSNE

    rows = np.arange(len(vectors))
    if len(vectors) > MOST_TERMS:
        rows = np.sort(np.random.default_rng(seed).choice(len(vectors), MOST_TERMS, replace=False))
    perplexity = perplexity or perplexity_for(len(rows))
    method = TSNE(perplexity=perplexity, metric="cosine", init="random", method="exact", random_state=seed)
    positions: Floats = method.fit_transform(np.asarray(vectors[rows], np.float64)).astype(np.float64)
    return Map(rows, positions, perplexity, seed, len(vectors))


def draw_terms(texts: Sequence[str], groups: Sequence[str], placed: Map) -> Drawn:
    """The terms of the map, marks by group, in a frame that is as wide as its labels need."""
    shown = [texts[row] for row in placed.rows]
    names = _shown_groups([groups[row] for row in placed.rows])
    labels = [cut(text) for text in shown]
    sizes = np.array([(width_of(label, TERM_SIZE) + AIR, LINE_HEIGHT) for label in labels])  # (terms, 2)
    points, width, height = _on_the_page(placed.positions, sizes)
    places = place_labels(points, sizes, width, height, MARK)
    looks = _looks(names)
    shapes: list[Shape] = [Label(0, 14, _title(placed), size=14.0, bold=True), Box(0, TOP, width, height, None)]
    shapes += _lines(points, places)
    shapes += [
        _mark(x, y + TOP, looks[name], text) for (x, y), name, text in zip(points.tolist(), names, shown, strict=True)
    ]
    shapes += _labels(labels, shown, places)
    legend, legend_width = _legend(Counter(names), looks, width + LEGEND_GAP)
    total = width + legend_width
    below = list(_caption(placed, total, TOP + height))
    return Drawn(Drawing(_title(placed), total, below[-1].y + 4, [*shapes, *legend, *below]), places.count(None))


def _title(placed: Map) -> str:
    shown = f"{len(placed.rows):,}" if len(placed.rows) == placed.of else f"{len(placed.rows):,} of {placed.of:,}"
    return f"{shown} terms by t-SNE"


def _caption(placed: Map, width: float, top: float) -> Iterator[Label]:
    """What can be read from the picture, and what cannot."""
    drawn = "" if len(placed.rows) == placed.of else " The terms shown were drawn at random."
    told = (
        f"Terms that stand side by side are alike to the model. The axes of t-SNE have no unit and no meaning, so "
        f"none are drawn; how large groups are and how far apart means nothing either. "
        f"Perplexity {placed.perplexity:.3g}, seed {placed.seed}.{drawn}"
    )
    for number, line in enumerate(textwrap.wrap(told, int(width / COLUMN_WIDTH))):
        yield Label(0, top + 20 + 17 * number, line)


def _shown_groups(groups: Sequence[str]) -> list[str]:
    """The group that each term is shown with: the largest ones, as many as can be told apart, and the others."""
    sizes = Counter(group for group in groups if group)
    kept = {name for name, _ in sizes.most_common(MOST_GROUPS if len(sizes) <= MOST_GROUPS else MOST_GROUPS - 1)}
    return [(group if group in kept else OTHERS) if group else NO_GROUP for group in groups]


def _looks(names: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Colour and shape of each group, in the order in which they first stand."""
    kinds = [name for name in dict.fromkeys(names) if name not in (OTHERS, NO_GROUP)]
    looks = {name: (COLOURS[place % len(COLOURS)], place % len(SHAPES)) for place, name in enumerate(kinds)}
    return {**looks, OTHERS: (GREY, 1), NO_GROUP: (GREY, 0)}


def _on_the_page(positions: Floats, sizes: Floats) -> tuple[Floats, float, float]:
    """Pixels (n, 2) of the positions, one scale for both axes, and width and height of a frame with room for labels."""
    low, high = positions.min(axis=0), positions.max(axis=0)
    extent = np.maximum(high - low, (high - low).max() / 2)  # (2,)
    area = max(ROOM * float(sizes.prod(axis=1).sum()), LEAST_WIDTH**2 / 2)
    scale = math.sqrt(area / float(extent.prod()))
    width, height = (extent * scale + 2 * np.array(EDGES)).tolist()
    middle = (low + high) / 2
    return (positions - middle) * scale + (width / 2, height / 2), width, height


def _lines(points: Floats, places: Sequence[Placed | None]) -> Iterator[Line]:
    for (x, y), place in zip(points.tolist(), places, strict=True):
        if place and place.has_line:
            yield Line(x, y + TOP, place.line_x, place.line_y + TOP)


def _labels(labels: Sequence[str], whole: Sequence[str], places: Sequence[Placed | None]) -> Iterator[Label]:
    for label, text, place in zip(labels, whole, places, strict=True):
        if place:
            x, anchor = _held_at(place)
            yield Label(x, place.bottom - 4 + TOP, label, anchor, TERM_SIZE, hint=text if text != label else "")


def _held_at(place: Placed) -> tuple[float, Literal["start", "middle", "end"]]:
    """Where a label that is narrower than its place stands in it: by the side that is nearer to its mark."""
    share = (place.line_x - place.left) / (place.right - place.left)
    if share < 1 / 3:
        return place.left + AIR / 2, "start"
    return (place.right - AIR / 2, "end") if share > 2 / 3 else ((place.left + place.right) / 2, "middle")


def _mark(x: float, y: float, look: tuple[str, int], hint: str = "") -> Mark:
    colour, shape = look
    return Mark([(x + MARK * across, y + MARK * down) for across, down in SHAPES[shape]], colour, hint)


def _legend(sizes: Counter[str], looks: dict[str, tuple[str, int]], left: float) -> tuple[list[Mark | Label], float]:
    """A line for each group in a column at `left`, and how wide it is; nothing where no term has a group."""
    if set(sizes) == {NO_GROUP}:
        return [], 0.0
    shapes: list[Mark | Label] = []
    told = [f"{cut(name)} ({sizes[name]:,})" for name in looks if name in sizes]
    for place, (name, text) in enumerate(zip((name for name in looks if name in sizes), told, strict=True)):
        y = TOP + 10 + 20 * place
        shapes += [_mark(left + MARK, y, looks[name]), Label(left + 4 * MARK, y + 4, text)]
    return shapes, LEGEND_GAP + 4 * MARK + max(map(text_pixels, told))
