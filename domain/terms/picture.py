"""Terms on a plane: t-SNE of their vectors, a mark for each group, and a label for each term that covers no other.

One label after the other takes the cheapest free place around its point: near, with a line that crosses nothing. More
passes let those that it cost much move once more, now that all others are placed.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.plots import COLUMN_WIDTH, Box, Drawing, Label, Line, Polygon, Shape, cut, text_pixels, width_of

Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]
Vectors = NDArray[np.float32]

ANGLES = 24
FIRST, LAST, RINGS = 3.5, 240.0, 20  # pixels between a point's mark and its label, and how many of them are tried
LINE_FROM = 9.0  # a label nearer to its mark needs no line
CONSIDERED = 100  # free places, the nearest ones, of which the cheapest is taken
CROSSED_LABEL, CROSSED_MARK, CROSSED_LINE = 400.0, 60.0, 90.0  # what a line costs, in pixels of its length
WALKS, CHEAP = 3, 25.0
LABEL_AIR = 1.5  # around a label

LEAST_TERMS, MOST_TERMS = 5, 300
USUAL_PERPLEXITY = 30.0
MOST_GROUPS = 12
OTHERS, NO_GROUP = "other groups", "no group"

# Okabe & Ito (2008), "Color universal design": distinct to the colour-blind. Each group has a shape besides.
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
SPACE = 5.0  # times as much area as the labels cover
LEAST_WIDTH, EDGES = 520.0, (110.0, 45.0)  # pixels; between the outermost marks and the frame
LEGEND_GAP = 18.0


class Crowd:
    """Points (n, 2), and a label for each that has a place where it is inside of (width, height) and covers nothing.

    boxes: of the labels, left, top, right, bottom, (n, 4); lines: from each point to what is nearest to it in its
        label, (n, 4). Both are nan where there is no place, which overlaps nothing and is crossed by nothing.
    costs: of each label's place, (n,), when it was taken; others may have moved since.
    """

    def __init__(self, points: Floats, sizes: Floats, width: float, height: float) -> None:
        self.points, self.sizes, self.width, self.height = points, sizes, width, height
        self.boxes, self.lines = np.full((2, len(points), 4), np.nan)
        self.costs = np.full(len(points), np.inf)
        self.marks = np.hstack([points - MARK - LABEL_AIR, points + MARK + LABEL_AIR])  # (n, 4)
        near = (np.hypot(*(points[:, None] - points).transpose(2, 0, 1)) < 12 * MARK).sum(axis=1)
        order = np.argsort(-near, kind="stable")  # those in the thick of it first
        for _ in range(WALKS):
            for label in order[self.costs[order] > CHEAP]:
                self._place(int(label))

    def _place(self, label: int) -> None:
        """Puts the label where it costs least; where nothing is free it has no place."""
        self.boxes[label] = self.lines[label] = np.nan
        point = self.points[label]
        boxes, distances = _around(point, self.sizes[label])
        inside = np.hstack([boxes[:, :2] >= 0, boxes[:, 2:] <= (self.width, self.height)]).all(axis=1)
        covered = np.hstack([_overlap(boxes, self.boxes), _overlap(boxes, self.marks)]).any(axis=1)
        free = np.flatnonzero(inside & ~covered)[:CONSIDERED]
        if len(free) == 0:
            return
        boxes = boxes[free]
        lines = np.hstack([np.tile(point, (len(free), 1)), np.clip(point, boxes[:, :2], boxes[:, 2:])])
        costs = distances[free] + self._crossings(label, boxes, lines)  # (places,)
        best = int(np.argmin(costs))
        self.boxes[label], self.lines[label], self.costs[label] = boxes[best], lines[best], costs[best]

    def _crossings(self, label: int, boxes: Floats, lines: Floats) -> Floats:
        """What the lines to `boxes` cross, and which of the placed lines cross these boxes, as costs, (boxes,)."""
        labels = _lines_meet_boxes(lines, self.boxes).sum(axis=1) + _lines_meet_boxes(self.lines, boxes).sum(axis=0)
        marks = _lines_meet_boxes(lines, np.delete(self.marks, label, axis=0)).sum(axis=1)
        crossed = _lines_cross(lines, self.lines).sum(axis=1)
        costs: Floats = CROSSED_LABEL * labels + CROSSED_MARK * marks + CROSSED_LINE * crossed
        return costs


def _around(point: Floats, size: Floats) -> tuple[Floats, Floats]:
    """Boxes around the point, nearest first, (places, 4), and how far they are, (places,); to the right comes first."""
    turns = np.array(sorted(range(ANGLES), key=lambda turn: min(turn, ANGLES - turn)))
    angles = turns * (2 * np.pi / ANGLES)
    gaps = FIRST + (LAST - FIRST) * np.linspace(0, 1, RINGS) ** 1.6  # the rings are closer near the point
    distances = np.repeat(gaps, ANGLES)  # (places,)
    reach = size / 2 + MARK + distances[:, None]  # (places, 2)
    directions = np.tile(np.stack([np.cos(angles), np.sin(angles)], axis=1), (len(gaps), 1))
    to_the_edge = directions / np.abs(directions).max(axis=1, keepdims=True)  # of a square of side 2
    middles = point + to_the_edge * reach
    favour = 0.15 * np.tile(np.arange(ANGLES), len(gaps))  # pixels: of places as near, the one to the right
    return np.hstack([middles - size / 2, middles + size / 2]), distances + favour


def _overlap(boxes: Floats, others: Floats) -> Truths:
    """Which of `boxes` (a, 4) and `others` (b, 4) have ground in common, with some air between them, (a, b)."""
    first, second = boxes[:, None], others[None]
    begins = np.concatenate(
        [first[..., :2] - LABEL_AIR < second[..., 2:], second[..., :2] < first[..., 2:] + LABEL_AIR], axis=-1
    )
    return np.asarray(begins.all(axis=-1))


def _lines_meet_boxes(lines: Floats, boxes: Floats) -> Truths:
    """Which lines (a, 4) go through which boxes (b, 4): some of the way both coordinates are within, (a, b)."""
    start, way = lines[:, None, :2], lines[:, None, 2:] - lines[:, None, :2]
    way = np.where(np.abs(way) < 1e-9, 1e-9, way)
    at_low, at_high = (boxes[None, :, :2] - start) / way, (boxes[None, :, 2:] - start) / way
    enters, leaves = np.minimum(at_low, at_high).max(axis=-1), np.maximum(at_low, at_high).min(axis=-1)
    meets: Truths = (enters < leaves) & (leaves > 0) & (enters < 1)
    return meets


def _lines_cross(lines: Floats, others: Floats) -> Truths:
    """Which of `lines` (a, 4) and `others` (b, 4) cross, (a, b)."""

    def is_left(lines: Floats, points: Floats) -> Truths:
        along, there = lines[..., 2:] - lines[..., :2], points - lines[..., :2]
        left: Truths = along[..., 0] * there[..., 1] > along[..., 1] * there[..., 0]
        return left

    first, second = lines[:, None], others[None]
    parted = is_left(first, second[..., :2]) != is_left(first, second[..., 2:])
    crosses: Truths = parted & (is_left(second, first[..., :2]) != is_left(second, first[..., 2:]))
    return crosses


class Map(NamedTuple):
    """Positions of terms: rows of the vectors that were placed, their positions (rows, 2), and how they were found."""

    rows: NDArray[np.int64]
    positions: Floats
    perplexity: float
    seed: int
    of: int

    @property
    def title(self) -> str:
        shown = f"{len(self.rows):,}" if len(self.rows) == self.of else f"{len(self.rows):,} of {self.of:,}"
        return f"{shown} terms by t-SNE"


def place_terms(vectors: Vectors, seed: int, perplexity: float | None = None) -> Map:
    """t-SNE (van der Maaten & Hinton, 2008) by cosine of `vectors` (n, dim), from positions that the seed draws.

    Of more than MOST_TERMS, as many drawn at random.
    perplexity: the usual 30 when absent, and for fewer than 91 terms a third of the others, as of more all are near.
    """
    from sklearn.manifold import TSNE

    rows = np.arange(len(vectors))
    if len(vectors) > MOST_TERMS:
        rows = np.sort(np.random.default_rng(seed).choice(len(vectors), MOST_TERMS, replace=False))
    perplexity = perplexity or min(USUAL_PERPLEXITY, (len(rows) - 1) / 3)
    method = TSNE(perplexity=perplexity, metric="cosine", init="random", method="exact", random_state=seed)
    positions: Floats = method.fit_transform(np.asarray(vectors[rows], np.float64)).astype(np.float64)
    return Map(rows, positions, perplexity, seed, len(vectors))


class Drawn(NamedTuple):
    """The picture, and how many terms found no place for their label."""

    drawing: Drawing
    unlabelled: int


def draw_terms(texts: Sequence[str], groups: Sequence[str], placed: Map) -> Drawn:
    """The terms of the map, marks by group, in a frame that is as wide as its labels need."""
    shown, names = [texts[row] for row in placed.rows], shown_groups([groups[row] for row in placed.rows])
    labels = [cut(text) for text in shown]
    sizes = np.array([(width_of(label, TERM_SIZE) + AIR, LINE_HEIGHT) for label in labels])  # (terms, 2)
    points, width, height = _on_the_page(placed.positions, sizes)
    crowd, looks = Crowd(points, sizes, width, height), looks_of(names)
    shapes: list[Shape] = [Label(0, 14, placed.title, size=14.0, bold=True), Box(0, TOP, width, height, None)]
    shapes += _lines(crowd)
    shapes += [
        _mark(x, y + TOP, looks[name], text) for (x, y), name, text in zip(points.tolist(), names, shown, strict=True)
    ]
    shapes += _labels(crowd, labels, shown)
    legend, legend_width = _legend(Counter(names), looks, width + LEGEND_GAP)
    total = width + legend_width
    below = list(_caption(placed, total, TOP + height))
    drawing = Drawing(placed.title, total, below[-1].y + 4, [*shapes, *legend, *below])
    return Drawn(drawing, int(np.isnan(crowd.boxes[:, 0]).sum()))


def shown_groups(groups: Sequence[str]) -> list[str]:
    """The group that each term is shown with: the largest ones, as many as are distinct, and the others."""
    sizes = Counter(group for group in groups if group)
    kept = {name for name, _ in sizes.most_common(MOST_GROUPS if len(sizes) <= MOST_GROUPS else MOST_GROUPS - 1)}
    return [(group if group in kept else OTHERS) if group else NO_GROUP for group in groups]


def looks_of(names: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Colour and shape of each group, in the order of their first term."""
    kinds = [name for name in dict.fromkeys(names) if name not in (OTHERS, NO_GROUP)]
    looks = {name: (COLOURS[place % len(COLOURS)], place % len(SHAPES)) for place, name in enumerate(kinds)}
    return {**looks, OTHERS: (GREY, 1), NO_GROUP: (GREY, 0)}


def _on_the_page(positions: Floats, sizes: Floats) -> tuple[Floats, float, float]:
    """Pixels (n, 2) of the positions, one scale for both axes, and the width and height of a frame for labels too."""
    low, high = positions.min(axis=0), positions.max(axis=0)
    extent = np.maximum(high - low, (high - low).max() / 2)  # (2,)
    area = max(SPACE * float(sizes.prod(axis=1).sum()), LEAST_WIDTH**2 / 2)
    scale = math.sqrt(area / float(extent.prod()))
    width, height = (extent * scale + 2 * np.array(EDGES)).tolist()
    middle = (low + high) / 2
    return (positions - middle) * scale + (width / 2, height / 2), width, height


def _lines(crowd: Crowd) -> Iterator[Line]:
    for x, y, to_x, to_y in crowd.lines.tolist():
        if math.hypot(to_x - x, to_y - y) > MARK + LINE_FROM:
            yield Line(x, y + TOP, to_x, to_y + TOP)


def _labels(crowd: Crowd, labels: Sequence[str], whole: Sequence[str]) -> Iterator[Label]:
    """Labels, narrower than their places, at the end that is nearer to the mark."""
    for box, line, label, text in zip(crowd.boxes.tolist(), crowd.lines.tolist(), labels, whole, strict=True):
        left, _, right, bottom = box
        share = (line[2] - left) / (right - left)
        at: tuple[float, Literal["start", "middle", "end"]] = (left + right) / 2, "middle"
        if share < 1 / 3:
            at = left + AIR / 2, "start"
        elif share > 2 / 3:
            at = right - AIR / 2, "end"
        if not math.isnan(left):
            yield Label(at[0], bottom - 4 + TOP, label, at[1], TERM_SIZE, hint=text if text != label else "")


def _mark(x: float, y: float, look: tuple[str, int], hint: str = "") -> Polygon:
    colour, shape = look
    return Polygon([(x + MARK * across, y + MARK * down) for across, down in SHAPES[shape]], colour, hint)


def _legend(sizes: Counter[str], looks: dict[str, tuple[str, int]], left: float) -> tuple[list[Polygon | Label], float]:
    """A line for each group in a column at `left`, and how wide it is; nothing where no term has a group."""
    if set(sizes) == {NO_GROUP}:
        return [], 0.0
    shapes: list[Polygon | Label] = []
    texts = {name: f"{cut(name)} ({sizes[name]:,})" for name in looks if name in sizes}
    for place, (name, text) in enumerate(texts.items()):
        y = TOP + 10 + 20 * place
        shapes += [_mark(left + MARK, y, looks[name]), Label(left + 4 * MARK, y + 4, text)]
    return shapes, LEGEND_GAP + 4 * MARK + max(map(text_pixels, texts.values()))


def _caption(placed: Map, width: float, top: float) -> Iterator[Label]:
    """What can be read from the picture, and what cannot."""
    drawn = "" if len(placed.rows) == placed.of else " The terms shown were drawn at random."
    caption = (
        f"Neighbouring terms are alike to the model. The axes of t-SNE have no unit and no meaning, so "
        f"none are drawn; how large groups are and how far apart means nothing either. "
        f"Perplexity {placed.perplexity:.3g}, seed {placed.seed}.{drawn}"
    )
    for number, line in enumerate(textwrap.wrap(caption, int(width / COLUMN_WIDTH))):
        yield Label(0, top + 20 + 17 * number, line)
