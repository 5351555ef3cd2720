"""What networks that score pairs of sentences share."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertrelay.hardware import resolve_precision
from bertrelay.inference import computing

Pairs = Sequence[tuple[str, str]]


class PaddedPairs(Protocol):
    """Tokens of pairs. lengths: padded tokens that a pair brings to a batch in which it is the longest, (pairs,)."""

    @property
    def lengths(self) -> NDArray[np.int64]: ...

    def padded(self, rows: NDArray[np.integer], pad_id: int) -> dict[str, Tensor]:
        """What the network is called with for these pairs."""
        ...


class PairScorer(Protocol):
    """A network from pairs of sentences to logits (pairs,)."""

    pad_id: int
    training: bool

    @property
    def device(self) -> torch.device: ...

    def tokenize(self, pairs: Pairs) -> PaddedPairs: ...

    def train(self, mode: bool = True) -> object: ...

    def __call__(self, **inputs: Tensor) -> Tensor: ...


def score_pairs(model: PairScorer, pairs: Pairs, precision: str, batch_tokens: int) -> NDArray[np.float32]:
    """The scores of `pairs` from 0 to 1, float32 (pairs,): longest first, in batches of `batch_tokens`."""
    if not pairs:
        return np.zeros(0, np.float32)
    tokens, scores = model.tokenize(pairs), np.empty(len(pairs), np.float32)
    order, start = np.argsort(-tokens.lengths, kind="stable"), 0
    with computing(model, resolve_precision(precision)):
        while start < len(order):
            rows = order[start : start + max(1, batch_tokens // int(tokens.lengths[order[start]]))]
            inputs = {name: each.to(model.device) for name, each in tokens.padded(rows, model.pad_id).items()}
            scores[rows] = torch.sigmoid(model(**inputs)).cpu().numpy()
            start += len(rows)
    return scores
