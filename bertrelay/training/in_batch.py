"""Losses that compare the items of a batch with each other, as sums over them; vectors need no unit length."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (its usual name)

from bertrelay.device import to_device

NEVER = -torch.inf


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """The cosine of every row (n, dim) with every other (m, dim): (n, m)."""
    products: Tensor = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).mT
    return products


def contrastive_loss(scores: Tensor, positives: Tensor, excluded: Tensor) -> Tensor:
    """Σ −log softmax(scores)[positive]: InfoNCE (van den Oord et al. 2018), also called MultipleNegativesRanking.

    scores: scaled similarities of queries and candidates, (queries, candidates).
    positives: the candidate that belongs to each query, (queries,).
    excluded: candidates that are no negatives of a query, such as equal texts, (queries, candidates); the positive
        one may be among them.
    """
    excluded = excluded.scatter(1, positives[:, None], value=False)
    return F.cross_entropy(scores.masked_fill(excluded, NEVER), positives, reduction="sum")


def cosent_loss(scores: Tensor, gold: Tensor) -> Tensor:
    """Items · log(1 + Σ exp(s_j − s_i) over all pairs with i above j in the gold score): CoSENT (Su 2022).

    scores: scaled similarities of the pairs of a batch, (n,). gold: what people gave them, (n,). The published
    value is one of a batch; times its items it is a sum over them, as all losses are.
    """
    differences = scores[None, :] - scores[:, None]  # (i, j): s_j − s_i
    # Not differences[mask]: how many there are is known when a GPU has computed them.
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

    sentence-transformers' MatryoshkaLoss is the sum, so that its learning rate depends on how many there are.
    """
    lengths = sorted({*dimensions, vectors[0].shape[-1]})
    return torch.stack([loss(*(each[:, :length] for each in vectors)) for length in lengths]).mean()


# Parallel pairs


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
    def find(
        cls,
        english: NDArray[np.integer],
        english_texts: Sequence[str],
        english_of: NDArray[np.integer],
        texts: Sequence[str],
    ) -> "BatchPairs":
        """How translations belong to English sentences, and which are no negatives of each other.

        english: ids of distinct English sentences in any order, (English,); english_texts: what they are.
        english_of: the id of the English sentence of each translation, (pairs,); texts: the translations.

        Translations of one English sentence are no negatives of each other, nor are those that are one text: what
        translates two English sentences fits both. Texts are compared without case, as an uncased teacher has one
        vector for both.
        """
        order = np.argsort(english)
        rows = order[np.searchsorted(english[order], english_of)]
        english_ids, ids = _text_ids(english_texts), _text_ids(texts)
        fits = np.zeros((ids.max(initial=-1) + 1, english_ids.max(initial=-1) + 1), bool)  # (texts, English texts)
        fits[ids, english_ids[rows]] = True
        not_negative = torch.from_numpy(fits[ids][:, english_ids])
        own = torch.from_numpy(rows)
        return cls(own, not_negative, not_negative[:, own].T)


def _text_ids(texts: Sequence[str]) -> NDArray[np.intp]:
    """An id of each of `texts`, (texts,): the same for those that are equal but for case."""
    folded = np.asarray([text.casefold() for text in texts], dtype=object)
    return np.unique(folded, return_inverse=True)[1]


def pair_loss(english: Tensor, other: Tensor, pairs: BatchPairs, temperature: float) -> Tensor:
    """Half the sum of InfoNCE from translations (pairs, dim) to English (sentences, dim) and of that back."""
    pairs = BatchPairs(*(to_device(part, english.device) for part in pairs))
    scores = cosines(other, english) / temperature  # (pairs, sentences)
    to_english = contrastive_loss(scores, pairs.english_of, pairs.not_negative)
    own = torch.arange(len(other), device=other.device)
    back = contrastive_loss(scores[:, pairs.english_of].T, own, pairs.same)  # (pairs, pairs): English to translations
    return (to_english + back) / 2
