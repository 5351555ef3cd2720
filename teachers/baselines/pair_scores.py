"""What networks that score pairs of sentences share."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

from bertrelay.cpu_kernels import using
from bertrelay.data.texts import each_pair
from bertrelay.errors import WorkError
from bertrelay.hardware import resolve_precision
from bertrelay.inference import best_batch_tokens, computing, pack_for, sorted_batches

Pairs = Sequence[tuple[str, str]]


LOSS = "cross_entropy"


def cross_entropy(logits: Tensor, scores: Tensor) -> Tensor:
    """Σ −s·log σ(x) − (1 − s)·log(1 − σ(x)) of logits x and gold scores s from 0 to 1, both (pairs,)."""
    return F.binary_cross_entropy_with_logits(logits, scores, reduction="sum")


class PaddedPairs(Protocol):
    """Tokens of pairs.

    sides: rows of a batch that a pair takes.
    lengths: padded tokens that a pair brings to a batch in which it is the longest, (pairs,).
    """

    sides: ClassVar[int]

    @property
    def lengths(self) -> NDArray[np.int64]: ...

    def padded(self, rows: NDArray[np.integer], pad_id: int, width: int | None = None) -> dict[str, Tensor]:
        """What the network is called with for these pairs; as wide as the longest of them when not told."""
        ...


class PairScorer(Protocol):
    """A network from pairs of sentences to logits (pairs,), whose sigmoid is the score."""

    pad_id: int
    training: bool

    @property
    def device(self) -> torch.device: ...

    @property
    def backbone(self) -> nn.Module: ...

    @property
    def max_tokens(self) -> int: ...

    def tokenize(self, pairs: Pairs) -> PaddedPairs: ...

    def train(self, mode: bool = True) -> object: ...

    def __call__(self, **inputs: Tensor) -> Tensor: ...


def score_pairs(model: PairScorer, pairs: Pairs, precision: str, batch_tokens: int | None) -> NDArray[np.float32]:
    """The scores of `pairs` from 0 to 1, float32 (pairs,): longest first, in batches of `batch_tokens`.

    Raises RequestError for what is no list of pairs, WorkError for scores that are no numbers.
    """
    pairs = list(each_pair(pairs, "score"))
    if not pairs:
        return np.zeros(0, np.float32)
    precision, tokens = resolve_precision(precision, model.device), model.tokenize(pairs)
    size = best_batch_tokens(model.device, batch_tokens) // tokens.sides
    lengths, scores = tokens.lengths // tokens.sides, np.empty(len(pairs), np.float32)
    packed = pack_for(int(lengths.sum()), model.backbone, precision, size)
    with computing(model, precision), using(packed):
        for rows, width, height in sorted_batches(lengths, size, model.max_tokens):
            inputs = tokens.padded(np.pad(rows, (0, height - len(rows)), mode="edge"), model.pad_id, width)
            logits = model(**{name: each.to(model.device) for name, each in inputs.items()})  # (height,)
            scores[rows] = torch.sigmoid(logits[: len(rows)]).cpu().numpy()
    _check_finite(scores)
    return scores


def _check_finite(scores: NDArray[np.float32]) -> None:
    spoilt = np.flatnonzero(~np.isfinite(scores))
    if len(spoilt):
        raise WorkError(
            f"expected scores from 0 to 1, found {len(spoilt):,} of {len(scores):,} that are no numbers, the first for "
            f"pair {spoilt[0]:,} counted from 0. Check the model's weights, or ask for precision fp32."
        )
