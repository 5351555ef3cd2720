"""The losses of a student, a class each.

To add one: its weight in `Objectives` of `students/distill/settings.py`, with its name at `temperature` and the other
settings that it uses; here a class with the attributes of `StudentLoss`, and its line in `LOSSES`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, normalize

from bertrelay.device import to_device
from bertrelay.training.batches import Items
from students.distill.settings import DistillSettings, Objectives
from students.distill.targets import ItemTargets
from teachers.objectives import contrastive_loss, cosines, matryoshka

Tensors = Mapping[str, Tensor]


class StudentLoss(Protocol):
    """A loss of a student, summed over the items of a batch.

    compares_batch: it compares the items of the whole batch; an English sentence and its translations are then in one.
    needs_retained: it is computed only if there are retained texts.
    """

    compares_batch: bool
    needs_retained: bool

    def __init__(self, targets: ItemTargets, settings: DistillSettings) -> None: ...

    def count(self, items: Items) -> int:
        """The denominator of the sum over `items`."""
        ...

    def inputs(self, items: Items) -> dict[str, Tensor]:
        """Tensors that `sum` reads besides those of `ItemTargets`; called in another thread while the model computes.

        Names that two losses use have one meaning.
        """
        ...

    def sum(self, vectors: Tensor, inputs: Tensors) -> Tensor:
        """The loss, without its weight, of the student's `vectors`, (items, dim).

        inputs: on the device of the vectors.
        """
        ...


class TeacherLoss:
    """The common part of losses to the teacher's vectors that are sums over items."""

    compares_batch = needs_retained = False

    def __init__(self, targets: ItemTargets, settings: DistillSettings) -> None:  # noqa: ARG002
        self.targets = targets

    def count(self, items: Items) -> int:
        return int(self.targets.weights(items).sum())

    def inputs(self, items: Items) -> dict[str, Tensor]:  # noqa: ARG002
        return {}


class MseLoss(TeacherLoss):
    """The squared distance to the teacher's vector, in units of the variance of the targets."""

    def sum(self, vectors: Tensor, inputs: Tensors) -> Tensor:
        return (inputs["weights"] * squared_distances(vectors, inputs["targets"])).sum() / self.targets.teacher.variance


class CosineLoss(TeacherLoss):
    """1 − the cosine with the teacher's vector."""

    def sum(self, vectors: Tensor, inputs: Tensors) -> Tensor:
        return (inputs["weights"] * (1 - torch.cosine_similarity(vectors, inputs["targets"]))).sum()


class RankingLoss(TeacherLoss):
    """The divergence of a sentence's ranking of candidates from the teacher's ranking, see `ranking_divergence`.

    The candidates are drawn once for a training, so that the loss of a sentence depends neither on its batch nor on the
    number of processes.

    candidates: unit vectors of the teacher, (candidates, dim). candidate_rows: their rows among its vectors.
    """

    def __init__(self, targets: ItemTargets, settings: DistillSettings) -> None:
        super().__init__(targets, settings)
        self.temperature = settings.objectives.temperature
        vectors = targets.teacher.vectors
        count = min(settings.objectives.candidates, len(vectors))
        rows = np.sort(np.random.default_rng(settings.seed).choice(len(vectors), count, replace=False))
        self.candidates = normalize(torch.from_numpy(vectors[rows]), dim=-1)
        self.candidate_rows = torch.from_numpy(rows)

    def inputs(self, items: Items) -> dict[str, Tensor]:
        """`target_rows`: the row of the teacher's vector that each item learns, (items,)."""
        return {"target_rows": torch.from_numpy(self.targets.corpus.rows(items))}

    def sum(self, vectors: Tensor, inputs: Tensors) -> Tensor:
        self.candidates, self.candidate_rows = (
            to_device(tensor, vectors.device) for tensor in (self.candidates, self.candidate_rows)
        )
        is_target = inputs["target_rows"][:, None] == self.candidate_rows
        divergences = ranking_divergence(vectors, inputs["targets"], self.candidates, is_target, self.temperature)
        return (inputs["weights"] * divergences).sum()


class RetentionLoss:
    """The squared distance of a retained text to the start's vector, in units of the variance of these."""

    compares_batch, needs_retained = False, True

    def __init__(self, targets: ItemTargets, settings: DistillSettings) -> None:  # noqa: ARG002
        assert targets.start is not None  # `needs_retained`
        self.targets, self.variance = targets, targets.start.variance

    def count(self, items: Items) -> int:
        return int(self.targets.retained_weights(items).sum())

    def inputs(self, items: Items) -> dict[str, Tensor]:
        """`retained_weights`: 1 for a retained text and 0 for others, (items,)."""
        return {"retained_weights": torch.from_numpy(self.targets.retained_weights(items))}

    def sum(self, vectors: Tensor, inputs: Tensors) -> Tensor:
        return (inputs["retained_weights"] * squared_distances(vectors, inputs["targets"])).sum() / self.variance


class ContrastiveLoss:
    """InfoNCE of an English sentence and its translation among the others of the batch, see `pair_loss`."""

    compares_batch, needs_retained = True, False

    def __init__(self, targets: ItemTargets, settings: DistillSettings) -> None:
        self.corpus = targets.corpus
        self.temperature, self.dimensions = settings.objectives.temperature, settings.objectives.dimensions

    def count(self, items: Items) -> int:
        return int(self._is_translation(items).sum())

    def inputs(self, items: Items) -> dict[str, Tensor]:
        """`english` and `translations`: positions of both among `items`; and the fields of `BatchPairs`."""
        is_english, is_translation = items < len(self.corpus.english), self._is_translation(items)
        english_ids = self.corpus.targets[items]
        pairs = BatchPairs.find(
            english_ids[is_english],
            self.corpus.english.at(items[is_english]),
            english_ids[is_translation],
            self.corpus.translations.at(items[is_translation] - len(self.corpus.english)),
        )
        # Positions, as the host would wait for a device that selects vectors by a mask.
        english, translations = (torch.from_numpy(np.flatnonzero(mask)) for mask in (is_english, is_translation))
        return {"english": english, "translations": translations, **pairs._asdict()}

    def sum(self, vectors: Tensor, inputs: Tensors) -> Tensor:
        pairs = BatchPairs(*(inputs[name] for name in BatchPairs._fields))
        loss = partial(pair_loss, pairs=pairs, temperature=self.temperature)
        return matryoshka(loss, self.dimensions, vectors[inputs["english"]], vectors[inputs["translations"]])

    def _is_translation(self, items: Items) -> NDArray[np.bool_]:
        return (items >= len(self.corpus.english)) & (items < self.corpus.taught)


LOSSES: dict[str, type[StudentLoss]] = {
    "contrastive": ContrastiveLoss,
    "mse": MseLoss,
    "cosine": CosineLoss,
    "ranking": RankingLoss,
    "retention": RetentionLoss,
}
"""By the name of the weight in `Objectives`, which logs use too. The order decides the last bits of gradients, as these
are added up in it."""


def create_losses(targets: ItemTargets, settings: DistillSettings) -> dict[str, StudentLoss]:
    """The losses that have a weight, by name."""
    weighted = {name: loss for name, loss in LOSSES.items() if getattr(settings.objectives, name)}
    return {
        name: loss(targets, settings)
        for name, loss in weighted.items()
        if targets.start is not None or not loss.needs_retained
    }


def compare_batches(objectives: Objectives) -> bool:
    """Returns true if a loss that has a weight compares the items of a batch."""
    return any(loss.compares_batch for name, loss in LOSSES.items() if getattr(objectives, name))


def squared_distances(vectors: Tensor, targets: Tensor) -> Tensor:
    """The squared Euclidean distance (items,) of each vector to its target, (items, dim) both."""
    distances: Tensor = (vectors - targets).square().sum(dim=-1)
    return distances


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
    scores = cosines(other, english) / temperature  # (pairs, sentences)
    to_english = contrastive_loss(scores, pairs.english_rows, pairs.excluded_english)
    translations = torch.arange(len(other), device=other.device)
    from_english = contrastive_loss(
        scores[:, pairs.english_rows].T, translations, pairs.excluded_translations
    )  # (pairs, pairs)
    return (to_english + from_english) / 2
