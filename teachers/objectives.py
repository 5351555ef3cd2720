"""Losses of sentence encoders, as sums over the items of a batch; vectors need no unit length.

The first three are those of Sentence-BERT (Reimers & Gurevych 2019, section 3). The others compare the items of a whole
batch with each other.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (its usual name)

NEVER = -torch.inf


def softmax_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ −log softmax(W (u, v, …))[label]: logits (batch, classes), labels (batch,)."""
    return F.cross_entropy(logits, labels, reduction="sum")


def cosine_loss(u: Tensor, v: Tensor, scores: Tensor) -> Tensor:
    """Σ (cos(u, v) − score)²: vectors (batch, dim), gold scores from 0 to 1 (batch,)."""
    errors: Tensor = F.cosine_similarity(u, v) - scores
    return errors.square().sum()


def triplet_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Σ max(‖a − p‖ − ‖a − n‖ + margin, 0) in Euclidean distance: vectors (batch, dim)."""
    to_positive = torch.linalg.vector_norm(anchor - positive, dim=-1)  # (batch,)
    to_negative = torch.linalg.vector_norm(anchor - negative, dim=-1)  # (batch,)
    hinges: Tensor = (to_positive - to_negative + margin).clamp(min=0)
    return hinges.sum()


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """The cosine of every row of (n, dim) with every row of (m, dim): (n, m)."""
    products: Tensor = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).mT
    return products


def contrastive_loss(scores: Tensor, positives: Tensor, excluded: Tensor) -> Tensor:
    """Σ −log softmax(scores)[positive]: InfoNCE (van den Oord et al. 2018), also called MultipleNegativesRanking.

    scores: scaled similarities of queries and candidates, (queries, candidates).
    positives: the candidate that belongs to each query, (queries,).
    excluded: candidates that are no negatives of a query, such as equal texts, (queries, candidates); the positive
        may be among them.
    """
    excluded = excluded.scatter(1, positives[:, None], value=False)
    return F.cross_entropy(scores.masked_fill(excluded, NEVER), positives, reduction="sum")


def cosent_loss(scores: Tensor, gold: Tensor) -> Tensor:
    """Items · log(1 + Σ exp(s_j − s_i) over all pairs with i above j in the gold score): CoSENT (Su 2022).

    scores: scaled similarities of the pairs of a batch, (n,). gold: their gold scores, (n,).
    The published value is a mean over the batch; the factor makes it a sum over items, as all losses here are.
    """
    differences = scores[None, :] - scores[:, None]  # (i, j): s_j − s_i
    # Not differences[mask]: its length would be a value that a GPU computes and the host waits for.
    wrong = differences.masked_fill(~(gold[:, None] > gold[None, :]), NEVER).flatten()
    return len(scores) * torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), dim=0)


def angle_similarity(first: Tensor, second: Tensor) -> Tensor:
    """|cos + sin| of vectors whose halves are parts of complex numbers, (n, dim) to (n,): AnglE (Li & Li 2024)."""
    first, second = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
    real, imaginary = first.chunk(2, dim=-1)
    other_real, other_imaginary = second.chunk(2, dim=-1)
    sines = (imaginary * other_real - real * other_imaginary).sum(dim=-1)
    similarity: Tensor = ((first * second).sum(dim=-1) + sines).abs()
    return similarity


def matryoshka(loss: Callable[..., Tensor], dimensions: Sequence[int], *vectors: Tensor) -> Tensor:
    """The mean of `loss` over `vectors` (n, dim) cut to each of `dimensions`, and whole: Kusupati et al. (2022).

    sentence-transformers' MatryoshkaLoss is the sum, whose size grows with the number of dimensions.
    """
    lengths = sorted({*dimensions, vectors[0].shape[-1]})
    return torch.stack([loss(*(rows[:, :length] for rows in vectors)) for length in lengths]).mean()
