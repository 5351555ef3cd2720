"""Terms on a plane: t-SNE of their vectors, a mark for each group, and a label for each term that covers no other."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.plots import cut, font_families, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Vectors = NDArray[np.float32]

LEAST_TERMS, MOST_TERMS = 5, 300
MOST_GROUPS = 12
OTHERS, NO_GROUP = "other groups", "no group"

# Okabe & Ito (2008), "Color universal design": distinct to the colour-blind. Each group has a shape besides.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
SHAPES = ("o", "s", "^", "D", "v", "P")
GREY = "#a0a0a0"

DPI = 100  # pixels of an inch, for all lengths below
MARK, TERM_SIZE, LINE_HEIGHT, AIR = 5.0, 8.0, 15.0, 1.5  # half a mark's width; points of letters; around a label
SPACE = 5.0  # times as much area as the labels cover
LEAST_WIDTH, EDGES = 520.0, (110.0, 45.0)  # pixels; between the outermost marks and the frame
ANGLES, GAPS = 24, np.geomspace(3.5, 240.0, 20)  # places tried around a mark, and their distances from it
LINE_FROM = 9.0  # a label nearer to its mark needs no line


class Map(NamedTuple):
    """Positions of terms: rows of the vectors that were placed, their positions (rows, 2), and how they were found."""

    rows: NDArray[np.int64]
    positions: Floats
    perplexity: float
    seed: int
    of: int


def place_terms(vectors: Vectors, seed: int, perplexity: float | None = None) -> Map:
    """t-SNE (van der Maaten & Hinton, 2008) by cosine of `vectors` (n, dim), from positions that the seed draws.

    Of more than MOST_TERMS, as many drawn at random. perplexity: the usual 30 when None, and less for fewer than 91
    terms: a third of the others, as of more all would be near.
    """
    from sklearn.manifold import TSNE

    rows = np.arange(len(vectors))
    if len(vectors) > MOST_TERMS:
        rows = np.sort(np.random.default_rng(seed).choice(len(vectors), MOST_TERMS, replace=False))
    perplexity = perplexity or min(30.0, (len(rows) - 1) / 3)
    method = TSNE(perplexity=perplexity, metric="cosine", init="random", method="exact", random_state=seed)
    positions: Floats = method.fit_transform(np.asarray(vectors[rows], np.float64)).astype(np.float64)
    return Map(rows, positions, perplexity, seed, len(vectors))


def draw_terms(texts: Sequence[str], groups: Sequence[str], placed: Map) -> "tuple[Figure, int]":
    """The terms of the map, marks by group, in a frame as wide as labels need; how many of these found no place."""
    from matplotlib.figure import Figure

    names = shown_groups([groups[row] for row in placed.rows])
    labels = [cut(texts[row]) for row in placed.rows]
    sizes = np.array([(text_width(label, TERM_SIZE) * DPI / 72, LINE_HEIGHT) for label in labels])  # (terms, 2)
    points, width, height = _in_pixels(placed.positions, sizes)
    boxes = place_labels(points, sizes, (width, height), MARK)

    figure = Figure(figsize=(width / DPI, height / DPI), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height), xticks=[], yticks=[])
    axes.spines[:].set_color("#c0c0c0")
    text: dict[str, Any] = {"family": font_families(labels), "parse_math": False}
    shown = f"{len(labels):,}" if len(labels) == placed.of else f"{len(labels):,} of {placed.of:,}"
    axes.set_title(f"{shown} terms by t-SNE", loc="left", fontsize=11, fontweight="bold", pad=10, **text)
    _draw_marks(axes, points, names)
    for point, box, label in zip(points, boxes, labels, strict=True):
        nearest = np.clip(point, box[:2], box[2:])
        if np.hypot(*(nearest - point)) > MARK + LINE_FROM:
            axes.plot(*zip(point, nearest, strict=True), color="black", alpha=0.5, linewidth=0.6, zorder=1)
        if not np.isnan(box[0]):
            over_lines: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.3}
            axes.text(box[0], box[1] + 4, label, fontsize=TERM_SIZE, bbox=over_lines, zorder=2, **text)
    axes.text(0, -18, _caption(placed, width), fontsize=9, va="top", **text)
    return figure, int(np.isnan(boxes[:, 0]).sum())


def place_labels(points: Floats, sizes: Floats, frame: tuple[float, float], mark_radius: float) -> Floats:
    """The box of each point's label, (n, 4): left, bottom, right, top, in the frame; nan where no place is free.

    Each label takes the nearest place where it covers no mark and no other label; those in the thick of it first.
    points: (n, 2). sizes: widths and heights of the labels, (n, 2).
    """
    boxes = np.full((len(points), 4), np.nan)
    marks = np.hstack([points - mark_radius - AIR, points + mark_radius + AIR])
    near = (np.hypot(*(points[:, None] - points).transpose(2, 0, 1)) < 12 * mark_radius).sum(axis=1)
    angles = 2 * np.pi / ANGLES * np.array(sorted(range(ANGLES), key=lambda turn: min(turn, ANGLES - turn)))
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # the one to the right first
    directions /= np.abs(directions).max(axis=1, keepdims=True)  # to the edge of a square
    for label in np.argsort(-near, kind="stable"):
        reach = sizes[label] / 2 + mark_radius + GAPS[:, None, None]  # (gaps, 1, 2)
        middles = (points[label] + directions * reach).reshape(-1, 2)
        places = np.hstack([middles - sizes[label] / 2, middles + sizes[label] / 2])  # (places, 4)
        is_free = (places[:, :2] >= 0).all(axis=1) & (places[:, 2:] <= frame).all(axis=1)
        is_free &= ~_overlap(places, boxes) & ~_overlap(places, marks)
        if is_free.any():
            boxes[label] = places[is_free.argmax()]
    return boxes


def _overlap(boxes: Floats, others: Floats) -> NDArray[np.bool_]:
    """Which of `boxes` (a, 4) cover some of any of `others` (b, 4), with some air between them; nan covers nothing."""
    low, high = boxes[:, None, :2] - AIR, boxes[:, None, 2:] + AIR
    covers = (low < others[:, 2:]) & (others[:, :2] < high)  # (a, b, 2)
    covered: NDArray[np.bool_] = np.any(np.all(covers, axis=2), axis=1)
    return covered


def _in_pixels(positions: Floats, sizes: Floats) -> tuple[Floats, float, float]:
    """The positions (n, 2), one scale for both axes, and the width and height of a frame for labels too."""
    low, high = positions.min(axis=0), positions.max(axis=0)
    extent = np.maximum(high - low, (high - low).max() / 2)  # (2,)
    area = max(SPACE * float(sizes.prod(axis=1).sum()), LEAST_WIDTH**2 / 2)
    scale = np.sqrt(area / extent.prod())
    width, height = (extent * scale + 2 * np.array(EDGES)).tolist()
    return (positions - (low + high) / 2) * scale + (width / 2, height / 2), width, height


def shown_groups(groups: Sequence[str]) -> list[str]:
    """The group that each term is shown with: the largest ones, as many as are distinct, and the others."""
    sizes = Counter(group for group in groups if group)
    kept = {name for name, _ in sizes.most_common(MOST_GROUPS if len(sizes) <= MOST_GROUPS else MOST_GROUPS - 1)}
    return [(group if group in kept else OTHERS) if group else NO_GROUP for group in groups]


def _draw_marks(axes: "Axes", points: Floats, names: Sequence[str]) -> None:
    """A colour and a shape for each group, in the order of their first term, and the legend."""
    kinds = [name for name in dict.fromkeys(names) if name not in (OTHERS, NO_GROUP)]
    looks = {name: (COLOURS[place % len(COLOURS)], SHAPES[place % len(SHAPES)]) for place, name in enumerate(kinds)}
    looks |= {OTHERS: (GREY, "s"), NO_GROUP: (GREY, "o")}
    labels = []
    for name, (colour, shape) in looks.items():
        of_group = points[[each == name for each in names]]
        if len(of_group):
            style: dict[str, Any] = {"c": colour, "marker": shape, "s": 50, "edgecolors": "black", "linewidths": 0.6}
            labels.append(f"{cut(name)} ({len(of_group):,})")
            axes.scatter(*of_group.T, label="group", **style)  # a name that begins with _ would have no place
    if set(names) != {NO_GROUP}:
        legend = axes.legend(
            loc="upper left", bbox_to_anchor=(1, 1), frameon=False, prop={"family": font_families(labels), "size": 9}
        )
        for text, label in zip(legend.get_texts(), labels, strict=True):
            text.set(text=label, parse_math=False)


def _caption(placed: Map, width: float) -> str:
    """What can be read from the picture, and what cannot."""
    drawn = "" if len(placed.rows) == placed.of else " The terms shown were drawn at random."
    caption = (
        f"Neighbouring terms are alike to the model. The axes of t-SNE have no unit and no meaning, so "
        f"none are drawn; how large groups are and how far apart means nothing either.{drawn}"
    )
    return f"{textwrap.fill(caption, int(width / 7))}\nPerplexity {placed.perplexity:.3g}, seed {placed.seed}."
