"""Where the labels of points stand so that none covers another or a point: beside it, or further off at a line's end.

One label after the other takes the cheapest free place around its point: near, with a line that crosses nothing. More
walks let those that it cost much move once more, now that all others stand.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]

ANGLES = 24
FIRST, LAST, RINGS = 3.5, 240.0, 20  # pixels between a point's mark and its label, and how many of them are tried
LINE_FROM = 9.0  # a label that stands nearer to its mark needs no line
CONSIDERED = 100  # free places, the nearest ones, of which the cheapest is taken
CROSSED_LABEL, CROSSED_MARK, CROSSED_LINE = 400.0, 60.0, 90.0  # what a line costs, in pixels of its length
WALKS, CHEAP = 3, 25.0
AIR = 1.5  # around a label


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
    return [_placed(crowd, label, points[label], mark_radius) for label in range(len(points))]


class Crowd:
    """All points, and the labels that stand: boxes (n, 4) as left, top, right, bottom, and lines (n, 4), point to box.

    costs: of each label's place, (n,), when it was taken; others may have moved since.
    What does not stand yet is nan, which overlaps nothing and is crossed by nothing.
    """

    def __init__(self, points: Floats, width: float, height: float, mark_radius: float) -> None:
        self.points, self.width, self.height, self.mark_radius = points, width, height, mark_radius
        self.boxes = np.full((len(points), 4), np.nan)
        self.lines = np.full((len(points), 4), np.nan)
        self.costs = np.full(len(points), np.inf)
        corner = np.array([mark_radius, mark_radius]) + AIR
        self.marks = np.hstack([points - corner, points + corner])  # (n, 4)

    def place(self, label: int, size: Floats) -> None:
        """Puts the label where it costs least; where nothing is free it stands nowhere."""
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
        """What the lines to `boxes` cross, and what of the lines that stand crosses these boxes, as costs, (boxes,)."""
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
    gaps = FIRST + (LAST - FIRST) * np.linspace(0, 1, RINGS) ** 1.6  # the rings stand closer near the point
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
    begins = np.concatenate([first[..., :2] - AIR < second[..., 2:], second[..., :2] < first[..., 2:] + AIR], axis=-1)
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


def _placed(crowd: Crowd, label: int, point: Floats, mark_radius: float) -> Placed | None:
    box = crowd.boxes[label]
    if np.isnan(box[0]):
        return None
    end = crowd.lines[label, 2:]
    is_far = float(np.hypot(*(end - point))) > mark_radius + LINE_FROM
    left, top, right, bottom = box.tolist()
    line_x, line_y = end.tolist()
    return Placed(left, top, right, bottom, line_x, line_y, is_far)
