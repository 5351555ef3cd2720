"""Losses of students that compare sentences with each other: ranks by similarity, and translations of a batch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, normalize

from bertrelay.device import to_device
from students.distill.settings import DistillSettings
from students.distill.targets import Targets
from teachers.objectives import contrastive_loss, cosines


class Candidates(NamedTuple):
    """English sentences that every sentence ranks: the teacher's unit vectors (candidates, dim), and their rows.

    Drawn once for a training, so that a sentence's loss depends neither on its batch nor on the number of processes.

    english: rows of the teacher's vectors of English sentences, (candidates,).
    """

    vectors: Tensor
    english: Tensor

    @classmethod
    def draw(cls, targets: Targets, settings: DistillSettings) -> "Candidates":
        count = min(settings.objectives.candidates, len(targets.vectors))
        rows = np.sort(np.random.default_rng(settings.seed).choice(len(targets.vectors), count, replace=False))
        return cls(normalize(torch.from_numpy(targets.vectors[rows]), dim=-1), torch.from_numpy(rows))

    def to(self, device: torch.device) -> "Candidates":
        return Candidates(*(to_device(part, device) for part in self))


def ranking_divergence(
    vectors: Tensor, targets: Tensor, candidates: Tensor, is_target: Tensor, temperature: float
) -> Tensor:
    """The KL divergence (items,) of two softmaxes of cosines: those of `vectors` from those of `targets`, (items, dim).

    Each softmax is over the cosines with the item's target and with the candidates (candidates, dim), except
    candidates that are that target: is_target, (items, candidates).
    """
    with torch.autocast(vectors.device.type, enabled=False):  # bf16 is too coarse for cosines over the temperature

        def log_probabilities(queries: Tensor) -> Tensor:
            to_target = torch.cosine_similarity(queries, targets)[:, None]
            to_others = cosines(queries, candidates.to(queries.dtype)) / temperature
            to_others = to_others.masked_fill(is_target, torch.finfo(to_others.dtype).min)
            return log_softmax(torch.cat([to_target / temperature, to_others], dim=1), dim=1)  # (items, 1 + candidates)

        divergences = kl_div(log_probabilities(vectors), log_probabilities(targets), reduction="none", log_target=True)
        return divergences.sum(dim=1)


class BatchPairs(NamedTuple):
    """The pairs of English sentences and translations in a batch, and which of the others are no negatives.

    english_rows: row of the English sentence of each translation, (pairs,).
    excluded_english: English sentences that are no negatives of a translation, (pairs, English).
    excluded_translations: translations that are no negatives of the English sentence of a pair, (pairs, pairs).
    """

    english_rows: Tensor
    excluded_english: Tensor
    excluded_translations: Tensor

    @classmethod
    def find(
        cls,
        english: NDArray[np.integer],
        english_texts: Sequence[str],
        english_of: NDArray[np.integer],
        texts: Sequence[str],
    ) -> "BatchPairs":
        """The pairs of a batch by the ids of their English sentences.

        english, english_texts: ids of distinct English sentences in any order, (English,), and their texts.
        english_of, texts: the id of the English sentence of each translation, (pairs,), and the translations.

        Translations of one English sentence are no negatives of each other. Neither are equal texts: one that
        translates two English sentences fits both. Case is ignored, as an uncased teacher has one vector for both.

        Example: ids 4 "Open" and 9 "Shut", translated as "Offen" (4), "Auf" (4) and "Zu" (9), give english_rows
        [0, 0, 1]. "Shut" is a negative of "Offen" and "Auf", "Open" of "Zu"; "Zu" is one of "Open", but "Auf" is not:

            excluded_english       Open  Shut      excluded_translations     Offen  Auf  Zu
            Offen                   x                of Open (of Offen)        x     x
            Auf                     x                of Open (of Auf)          x     x
            Zu                            x          of Shut (of Zu)                      x
        """
        order = np.argsort(english)
        rows = order[np.searchsorted(english[order], english_of)]
        english_ids, ids = _text_ids(english_texts), _text_ids(texts)
        fits = np.zeros((ids.max(initial=-1) + 1, english_ids.max(initial=-1) + 1), bool)  # (texts, English texts)
        fits[ids, english_ids[rows]] = True
        excluded = torch.from_numpy(fits[ids][:, english_ids])
        english_rows = torch.from_numpy(rows)
        return cls(english_rows, excluded, excluded[:, english_rows].T)


def _text_ids(texts: Sequence[str]) -> NDArray[np.intp]:
    """The id of each text, (texts,); texts that differ only in case have one."""
    folded = np.asarray([text.casefold() for text in texts], dtype=object)
    return np.unique(folded, return_inverse=True)[1]


def pair_loss(english: Tensor, other: Tensor, pairs: BatchPairs, temperature: float) -> Tensor:
    """Half the sum of InfoNCE from translations (pairs, dim) to English (sentences, dim) and from English to them."""
    pairs = BatchPairs(*(to_device(part, english.device) for part in pairs))
    scores = cosines(other, english) / temperature  # (pairs, sentences)
    to_english = contrastive_loss(scores, pairs.english_rows, pairs.excluded_english)
    translations = torch.arange(len(other), device=other.device)
    from_english = contrastive_loss(
        scores[:, pairs.english_rows].T, translations, pairs.excluded_translations
    )  # (pairs, pairs)
    return (to_english + from_english) / 2
