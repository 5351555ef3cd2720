"""The three objectives of Sentence-BERT (Reimers & Gurevych 2019, section 3), as sums over the items of a batch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (its usual name)


def concatenate(u: Tensor, v: Tensor, parts: Sequence[str]) -> Tensor:
    """The sentence vectors (batch, dim) of a pair as one vector (batch, len(parts) · dim)."""
    known = {"u": u, "v": v, "|u-v|": (u - v).abs(), "u*v": u * v}
    return torch.cat([known[part] for part in parts], dim=-1)


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
