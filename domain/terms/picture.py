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

ANGLES = 24
FIRST, LAST, RINGS = 3.5, 240.0, 20  # pixels between a point's mark and its label, and how many of them are tried
LINE_FROM = 9.0  # a label nearer to its mark needs no line
CONSIDERED = 100  # free places, the nearest ones, of which the cheapest is taken
CROSSED_LABEL, CROSSED_MARK, CROSSED_LINE = 400.0, 60.0, 90.0  # what a line costs, in pixels of its length
WALKS, CHEAP = 3, 25.0
LABEL_AIR = 1.5  # around a label


class Placed(NamedTuple):
    """A label's rectangle, and what is nearest in it to the point; a line leads there unless it is beside the mark."""

    left: float
    top: float
    right: float
    bottom: float
    line_x: float
    line_y: float
    has_line: bool


def place_labels(points: Floats, sizes: Floats, width: float, height: float, mark_radius: float) -> list[Placed | None]:
    """A place for the label of each point, inside of (width, height); None where there is none that is free.

    points: (n, 2). sizes: widths and heights of the labels, (n, 2).
    """
    crowd = Crowd(points, width, height, mark_radius)
    near = (np.hypot(*(points[:, None] - points).transpose(2, 0, 1)) < 12 * mark_radius).sum(axis=1)
    order = np.argsort(-near, kind="stable")  # those in the thick of it first
    for _ in range(WALKS):
        for label in order[crowd.costs[order] > CHEAP]:
            crowd.place(int(label), sizes[label])
    return [_label_place(crowd, label, points[label], mark_radius) for label in range(len(points))]


class Crowd:
    """All points, and the labels that are placed: boxes (n, 4), left, top, right, bottom; and lines (n, 4) to them.

    costs: of each label's place, (n,), when it was taken; others may have moved since.
    What is not placed yet is nan, which overlaps nothing and is crossed by nothing.
    """

    def __init__(self, points: Floats, width: float, height: float, mark_radius: float) -> None:
        self.points, self.width, self.height, self.mark_radius = points, width, height, mark_radius
        self.boxes = np.full((len(points), 4), np.nan)
        self.lines = np.full((len(points), 4), np.nan)
        self.costs = np.full(len(points), np.inf)
        corner = np.array([mark_radius, mark_radius]) + LABEL_AIR
        self.marks = np.hstack([points - corner, points + corner])  # (n, 4)

    def place(self, label: int, size: Floats) -> None:
        """Puts the label where it costs least; where nothing is free it has no place."""
        self.boxes[label] = self.lines[label] = np.nan
        boxes, distances = _around(self.points[label], size, self.mark_radius)
        free = self._is_free(boxes)
        boxes, distances = boxes[free][:CONSIDERED], distances[free][:CONSIDERED]
        if len(boxes) == 0:
            return
        lines = np.hstack([np.broadcast_to(self.points[label], (len(boxes), 2)), _nearest(self.points[label], boxes)])
        costs = distances + self._crossings(label, boxes, lines)  # (places,)
        best = int(np.argmin(costs))
        self.boxes[label], self.lines[label], self.costs[label] = boxes[best], lines[best], costs[best]

    def _is_free(self, boxes: Floats) -> Truths:
        inside = np.hstack([boxes[:, :2] >= 0, boxes[:, 2:] <= (self.width, self.height)])
        covered = np.hstack([_overlap(boxes, self.boxes), _overlap(boxes, self.marks)])
        return np.asarray(inside.all(axis=1) & ~covered.any(axis=1))

    def _crossings(self, label: int, boxes: Floats, lines: Floats) -> Floats:
        """What the lines to `boxes` cross, and which of the placed lines cross these boxes, as costs, (boxes,)."""
        others = np.arange(len(self.points)) != label
        labels = _lines_meet_boxes(lines, self.boxes).sum(axis=1) + _lines_meet_boxes(self.lines, boxes).sum(axis=0)
        marks = _lines_meet_boxes(lines, self.marks[others]).sum(axis=1)
        crossed = _lines_cross(lines, self.lines).sum(axis=1)
        costs: Floats = CROSSED_LABEL * labels + CROSSED_MARK * marks + CROSSED_LINE * crossed
        return costs


def _around(point: Floats, size: Floats, mark_radius: float) -> tuple[Floats, Floats]:
    """Boxes around the point, nearest first, (places, 4), and how far they are, (places,); to the right comes first."""
    turns = np.array(sorted(range(ANGLES), key=lambda turn: min(turn, ANGLES - turn)))
    angles = turns * (2 * np.pi / ANGLES)
    gaps = FIRST + (LAST - FIRST) * np.linspace(0, 1, RINGS) ** 1.6  # the rings are closer near the point
    distances = np.repeat(gaps, ANGLES)  # (places,)
    reach = size / 2 + mark_radius + distances[:, None]  # (places, 2)
    directions = np.tile(np.stack([np.cos(angles), np.sin(angles)], axis=1), (len(gaps), 1))
    middles = point + _to_the_edge(directions) * reach
    favour = 0.15 * np.tile(np.arange(ANGLES), len(gaps))  # pixels: of places as near, the one to the right
    return np.hstack([middles - size / 2, middles + size / 2]), distances + favour


def _to_the_edge(directions: Floats) -> Floats:
    """Directions (n, 2) from the middle of a square of side 2, to its edge."""
    edges: Floats = directions / np.abs(directions).max(axis=1, keepdims=True)
    return edges


def _nearest(point: Floats, boxes: Floats) -> Floats:
    """The point of each box that is nearest to `point`, (boxes, 2)."""
    return np.clip(point, boxes[:, :2], boxes[:, 2:])


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
    first, second = lines[:, None], others[None]
    parted = _side(first, second[..., :2]) != _side(first, second[..., 2:])
    crosses: Truths = parted & (_side(second, first[..., :2]) != _side(second, first[..., 2:]))
    return crosses


def _side(lines: Floats, points: Floats) -> Truths:
    """On which side of a line its point is."""
    along, there = lines[..., 2:] - lines[..., :2], points - lines[..., :2]
    left: Truths = along[..., 0] * there[..., 1] > along[..., 1] * there[..., 0]
    return left


def _label_place(crowd: Crowd, label: int, point: Floats, mark_radius: float) -> Placed | None:
    box = crowd.boxes[label]
    if np.isnan(box[0]):
        return None
    end = crowd.lines[label, 2:]
    is_far = float(np.hypot(*(end - point))) > mark_radius + LINE_FROM
    left, top, right, bottom = box.tolist()
    line_x, line_y = end.tolist()
    return Placed(left, top, right, bottom, line_x, line_y, is_far)


Vectors = NDArray[np.float32]

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


class Map(NamedTuple):
    """Positions of terms: rows of the vectors that were placed, their positions (rows, 2), and how they were found."""

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
    caption = (
        f"Neighbouring terms are alike to the model. The axes of t-SNE have no unit and no meaning, so "
        f"none are drawn; how large groups are and how far apart means nothing either. "
        f"Perplexity {placed.perplexity:.3g}, seed {placed.seed}.{drawn}"
    )
    for number, line in enumerate(textwrap.wrap(caption, int(width / COLUMN_WIDTH))):
        yield Label(0, top + 20 + 17 * number, line)


def _shown_groups(groups: Sequence[str]) -> list[str]:
    """The group that each term is shown with: the largest ones, as many as are distinct, and the others."""
    sizes = Counter(group for group in groups if group)
    kept = {name for name, _ in sizes.most_common(MOST_GROUPS if len(sizes) <= MOST_GROUPS else MOST_GROUPS - 1)}
    return [(group if group in kept else OTHERS) if group else NO_GROUP for group in groups]


def _looks(names: Sequence[str]) -> dict[str, tuple[str, int]]:
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
    """The anchor of a label that is narrower than its place: the end that is nearer to its mark."""
    share = (place.line_x - place.left) / (place.right - place.left)
    if share < 1 / 3:
        return place.left + AIR / 2, "start"
    return (place.right - AIR / 2, "end") if share > 2 / 3 else ((place.left + place.right) / 2, "middle")


def _mark(x: float, y: float, look: tuple[str, int], hint: str = "") -> Polygon:
    colour, shape = look
    return Polygon([(x + MARK * across, y + MARK * down) for across, down in SHAPES[shape]], colour, hint)


def _legend(sizes: Counter[str], looks: dict[str, tuple[str, int]], left: float) -> tuple[list[Polygon | Label], float]:
    """A line for each group in a column at `left`, and how wide it is; nothing where no term has a group."""
    if set(sizes) == {NO_GROUP}:
        return [], 0.0
    shapes: list[Polygon | Label] = []
    texts = [f"{cut(name)} ({sizes[name]:,})" for name in looks if name in sizes]
    for place, (name, text) in enumerate(zip((name for name in looks if name in sizes), texts, strict=True)):
        y = TOP + 10 + 20 * place
        shapes += [_mark(left + MARK, y, looks[name]), Label(left + 4 * MARK, y + 4, text)]
    return shapes, LEGEND_GAP + 4 * MARK + max(map(text_pixels, texts))
