"""Objectives of sentence encoders: the rows that they read, their losses and their metrics.

The first three are those of Sentence-BERT (Reimers & Gurevych 2019, section 3). The others compare the items of a whole
batch with each other. A loss is a sum over the items of a batch; vectors need no unit length.

To add an objective, write an `Objective` and put it into `OBJECTIVES`: the settings, training and evaluation follow it.
Losses and metrics import torch and scipy when they are called, because the settings read this module.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from teachers.data import ANCHORS, LABELLED_PAIRS, SCORED_PAIRS, TRIPLETS, RowFormat

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]
Loss = Callable[..., "Tensor"]
"""A scalar from the vectors of first sentences, of second ones and so on, (items, dim) each."""


@dataclass(frozen=True)
class LossInputs:
    """Values that a loss reads beside the vectors of the items.

    labels: numbers of classes, or gold scores from 0 to 1, (items,); zeros for rows without a label.
    margin, temperature: see `teachers.settings.TrainSettings`.
    sentences: positions of the sentences of each item among all sentences, (items, sentences of an item); None for an
        objective that does not compare the items of a batch.
    guide: unit vectors of all sentences by the guide, (all sentences, dim).
    """

    labels: "Tensor"
    margin: float
    temperature: float
    sentences: NDArray[np.int64] | None = None
    guide: Floats | None = None


@dataclass(frozen=True)
class DevItems:
    """Held-out items to measure.

    vectors: of first sentences, of second ones and so on, (sentences of an item, items, dim).
    labels: class names, scores or None, (items,).
    classify: vectors of two sentences, (items, dim) each, to the names of classes, (items,), for objectives with a
        head.
    """

    vectors: Floats
    labels: Sequence[Any]
    classify: Callable[[Floats, Floats], list[str]]


@dataclass(frozen=True)
class Objective:
    """A way to train an encoder.

    summary: its description in help and docs, after its name.
    rows: the format of its tables.
    settings: the fields of `TrainSettings` that only some objectives use, this one among them. With `dimensions` the
        loss is the mean over cut vectors.
    loss: makes the loss of a batch.
    metric, measure: the name of its metric on dev data, and the function that computes it.
    compares_batch: its loss needs all items of a batch. Vectors of negatives then follow those of all second
        sentences, (candidates, dim).
    has_head: its loss reads the logits of a linear map over pairs, (items, classes).
    needs_even_dimensions: it takes vectors in two halves.
    """

    name: str
    summary: str
    rows: RowFormat
    settings: frozenset[str]
    loss: Callable[[LossInputs], Loss]
    metric: str
    measure: Callable[[DevItems], float | None]
    compares_batch: bool = False
    has_head: bool = False
    needs_even_dimensions: bool = False


def softmax_loss(logits: "Tensor", labels: "Tensor") -> "Tensor":
    """Σ −log softmax(W (u, v, …))[label]: logits (batch, classes), labels (batch,)."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits, labels, reduction="sum")


def accuracy(dev: DevItems) -> float | None:
    from bertrelay.evaluation.statistics import share

    return share(np.array(dev.classify(*dev.vectors)) == np.array(dev.labels))


SOFTMAX = Objective(
    name="softmax",
    summary="classes by a linear map of the pair, measured by accuracy",
    rows=LABELLED_PAIRS,
    settings=frozenset({"concatenation", "head"}),
    loss=lambda inputs: partial(softmax_loss, labels=inputs.labels),
    metric="dev/accuracy",
    measure=accuracy,
    has_head=True,
)


def cosine_loss(u: "Tensor", v: "Tensor", scores: "Tensor") -> "Tensor":
    """Σ (cos(u, v) − score)²: vectors (batch, dim), gold scores from 0 to 1 (batch,)."""
    from torch.nn.functional import cosine_similarity

    errors: Tensor = cosine_similarity(u, v) - scores
    return errors.square().sum()


def spearman_of_cosines(dev: DevItems) -> float | None:
    from bertrelay.evaluation.similarity import pairwise
    from bertrelay.evaluation.statistics import spearman

    return spearman(pairwise(*dev.vectors), np.array(dev.labels))


COSINE = Objective(
    name="cosine",
    summary="regression of the cosine on the gold score, measured by Spearman",
    rows=SCORED_PAIRS,
    settings=frozenset({"score_range", "dimensions"}),
    loss=lambda inputs: partial(cosine_loss, scores=inputs.labels),
    metric="dev/spearman_cosine",
    measure=spearman_of_cosines,
)


def triplet_loss(anchor: "Tensor", positive: "Tensor", negative: "Tensor", margin: float) -> "Tensor":
    """Σ max(‖a − p‖ − ‖a − n‖ + margin, 0) in Euclidean distance: vectors (batch, dim)."""
    from torch.linalg import vector_norm

    to_positive = vector_norm(anchor - positive, dim=-1)  # (batch,)
    to_negative = vector_norm(anchor - negative, dim=-1)  # (batch,)
    hinges: Tensor = (to_positive - to_negative + margin).clamp(min=0)
    return hinges.sum()


def triplet_accuracy(dev: DevItems) -> float | None:
    """The fraction of anchors that are nearer to their positive than to their negative."""
    from bertrelay.evaluation.statistics import share

    to_positive, to_negative = (np.linalg.norm(dev.vectors[0] - other, axis=1) for other in dev.vectors[1:])
    return share(to_positive < to_negative)


TRIPLET = Objective(
    name="triplet",
    summary="the positive nearer to its anchor than the negative, by a margin; measured by how often it is nearer",
    rows=TRIPLETS,
    settings=frozenset({"margin"}),
    loss=lambda inputs: partial(triplet_loss, margin=inputs.margin),
    metric="dev/triplet_accuracy",
    measure=triplet_accuracy,
)


def cosines(first: "Tensor", second: "Tensor") -> "Tensor":
    """The cosine of every row of (n, dim) with every row of (m, dim): (n, m)."""
    from torch.nn.functional import normalize

    products: Tensor = normalize(first, dim=-1) @ normalize(second, dim=-1).mT
    return products


def contrastive_loss(scores: "Tensor", positives: "Tensor", excluded: "Tensor") -> "Tensor":
    """Σ −log softmax(scores)[positive]: InfoNCE (van den Oord et al. 2018), also called MultipleNegativesRanking.

    scores: scaled similarities of queries and candidates, (queries, candidates).
    positives: the candidate that belongs to each query, (queries,).
    excluded: candidates that are no negatives of a query, such as equal texts, (queries, candidates); the positive
        may be among them.
    """
    from torch.nn.functional import cross_entropy

    excluded = excluded.scatter(1, positives[:, None], value=False)
    return cross_entropy(scores.masked_fill(excluded, -inf), positives, reduction="sum")


def excluded_candidates(sentences: NDArray[np.int64], guide: Floats | None = None) -> NDArray[np.bool_]:
    """Marks the candidates that are no negatives of an anchor, (items, candidates).

    They are its own text, the positives of the same text in other items, and the candidates that the guide finds
    nearer to it than its positive (GISTEmbed, Solatorio 2024).

    sentences: numbers of the anchor, the positive and the negatives of each item, (items, sentences of an item).
    """
    anchors, candidates = sentences[:, 0], sentences[:, 1:].T.reshape(-1)
    same_anchor = (anchors[:, None] == anchors).astype(np.float32)  # (items, items)
    is_positive = (sentences[:, 1, None] == candidates).astype(np.float32)  # (items, candidates)
    excluded: NDArray[np.bool_] = (same_anchor @ is_positive > 0) | (anchors[:, None] == candidates)
    if guide is not None:
        nearness = guide[anchors] @ guide[candidates].T  # (items, candidates)
        excluded |= nearness > np.diagonal(nearness)[:, None]
    return excluded


def _contrastive(inputs: LossInputs) -> Loss:
    import torch

    from bertrelay.device import to_device

    assert inputs.sentences is not None
    excluded = torch.from_numpy(excluded_candidates(inputs.sentences, inputs.guide))
    positives = torch.arange(len(inputs.sentences))

    def loss(anchors: "Tensor", candidates: "Tensor") -> "Tensor":
        scores = cosines(anchors, candidates) / inputs.temperature  # (items, candidates)
        return contrastive_loss(scores, to_device(positives, scores.device), to_device(excluded, scores.device))

    return loss


def retrieval_accuracy(dev: DevItems) -> float | None:
    """The fraction of anchors whose positive is the nearest of all positives."""
    from bertrelay.evaluation.similarity import is_among_nearest
    from bertrelay.evaluation.statistics import share

    return share(is_among_nearest(dev.vectors[0], dev.vectors[1]).astype(np.float64))


CONTRASTIVE = Objective(
    name="contrastive",
    summary="the positive among all positives and negatives of the batch (MultipleNegativesRanking), where a table may "
    "have any number of columns of hard negatives; measured by how often the positive is the nearest of all positives",
    rows=ANCHORS,
    settings=frozenset({"temperature", "guide", "dimensions"}),
    loss=_contrastive,
    metric="dev/retrieval_accuracy",
    measure=retrieval_accuracy,
    compares_batch=True,
)


def cosent_loss(scores: "Tensor", gold: "Tensor") -> "Tensor":
    """Items · log(1 + Σ exp(s_j − s_i) over all pairs with i above j in the gold score): CoSENT (Su 2022).

    scores: scaled similarities of the pairs of a batch, (n,). gold: their gold scores, (n,).
    The published value is a mean over the batch; the factor makes it a sum over items, as all losses here are.
    """
    import torch

    differences = scores[None, :] - scores[:, None]  # (i, j): s_j − s_i
    # Not differences[mask]: its length would be a value that a GPU computes and the host waits for.
    wrong = differences.masked_fill(~(gold[:, None] > gold[None, :]), -inf).flatten()
    return len(scores) * torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), dim=0)


def angle_similarity(first: "Tensor", second: "Tensor") -> "Tensor":
    """|cos + sin| of vectors whose halves are parts of complex numbers, (n, dim) to (n,): AnglE (Li & Li 2024)."""
    from torch.nn.functional import normalize

    first, second = normalize(first, dim=-1), normalize(second, dim=-1)
    real, imaginary = first.chunk(2, dim=-1)
    other_real, other_imaginary = second.chunk(2, dim=-1)
    sines = (imaginary * other_real - real * other_imaginary).sum(dim=-1)
    similarity: Tensor = ((first * second).sum(dim=-1) + sines).abs()
    return similarity


def _ranked(inputs: LossInputs, similarity: Loss) -> Loss:
    """CoSENT over `similarity` of the first and second sentences."""
    from bertrelay.device import to_device

    return lambda first, second: cosent_loss(
        similarity(first, second) / inputs.temperature, to_device(inputs.labels, first.device)
    )


def _cosent(inputs: LossInputs) -> Loss:
    from torch import cosine_similarity

    return _ranked(inputs, cosine_similarity)


COSENT = Objective(
    name="cosent",
    summary="the order of the cosines of a batch by gold score, measured by Spearman",
    rows=SCORED_PAIRS,
    settings=frozenset({"score_range", "temperature", "dimensions"}),
    loss=_cosent,
    metric="dev/spearman_cosine",
    measure=spearman_of_cosines,
    compares_batch=True,
)

ANGLE = Objective(
    name="angle",
    summary="the order of the angles in complex space of a batch by gold score, measured by Spearman of the cosine",
    rows=SCORED_PAIRS,
    settings=frozenset({"score_range", "temperature", "dimensions"}),
    loss=lambda inputs: _ranked(inputs, angle_similarity),
    metric="dev/spearman_cosine",
    measure=spearman_of_cosines,
    compares_batch=True,
    needs_even_dimensions=True,
)

OBJECTIVES = {
    objective.name: objective for objective in (SOFTMAX, COSINE, TRIPLET, CONTRASTIVE, COSENT, ANGLE)
}  # in the order of help and docs

if TYPE_CHECKING:
    ObjectiveName = str
else:
    ObjectiveName = Literal[tuple(OBJECTIVES)]


def objectives_with(setting: str) -> tuple[str, ...]:
    """Returns the names of the objectives that use a field of `TrainSettings`."""
    return tuple(name for name, objective in OBJECTIVES.items() if setting in objective.settings)


def matryoshka(loss: Loss, dimensions: Sequence[int], *vectors: "Tensor") -> "Tensor":
    """The mean of `loss` over `vectors` (n, dim) cut to each of `dimensions`, and whole: Kusupati et al. (2022).

    sentence-transformers' MatryoshkaLoss is the sum, whose size grows with the number of dimensions.
    """
    import torch

    lengths = sorted({*dimensions, vectors[0].shape[-1]})
    return torch.stack([loss(*(rows[:, :length] for rows in vectors)) for length in lengths]).mean()
