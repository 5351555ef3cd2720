"""The contrastive objective of parallel pairs: a sentence and its translation among the others of the batch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertrelay.training.in_batch import contrastive_loss, cosines


class BatchPairs(NamedTuple):
    """How the translations of a batch belong to its English sentences, and which of them mean the same.

    english_of: row of the English sentence of each translation, (pairs,).
    not_negative: English sentences that are no negatives of a translation, as it translates them, (pairs, English).
    same: translations that are no negatives of the English of another one, (pairs, pairs).
    """

    english_of: Tensor
    not_negative: Tensor
    same: Tensor

    @classmethod
    def find(cls, english: NDArray[np.integer], english_of: NDArray[np.integer], texts: Sequence[str]) -> "BatchPairs":
        """The pairs of the numbers of distinct English sentences, and of each translation its English and its text.

        Translations of one English sentence are no negatives of each other, nor are those that are one text: what
        translates two English sentences fits both.
        """
        order = np.argsort(english)
        rows = order[np.searchsorted(english[order], english_of)]
        numbers = np.unique(np.asarray(texts, dtype=object), return_inverse=True)[1]
        fits = np.zeros((numbers.max(initial=-1) + 1, len(english)), bool)  # (distinct texts, English)
        fits[numbers, rows] = True
        not_negative = torch.from_numpy(fits[numbers])
        own = torch.from_numpy(rows)
        return cls(own, not_negative, not_negative[:, own].T)


def pair_loss(english: Tensor, other: Tensor, pairs: BatchPairs, temperature: float) -> Tensor:
    """Half the sum of InfoNCE from translations (pairs, dim) to English (sentences, dim) and of that back."""
    pairs = BatchPairs(*(part.to(english.device) for part in pairs))
    scores = cosines(other, english) / temperature  # (pairs, sentences)
    to_english = contrastive_loss(scores, pairs.english_of, pairs.not_negative)
    own = torch.arange(len(other), device=other.device)
    back = contrastive_loss(scores[:, pairs.english_of].T, own, pairs.same)  # (pairs, pairs): English to translations
    return (to_english + back) / 2
