"""Relations of documents with entities."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.blocks import blocks_of
from bertrelay.cache import Cache
from bertrelay.device import as_device, resolve_precision
from bertrelay.inference.batches import compute_blocks, sorted_batches
from domain.biomedical.documents.document import Argument, Document, Relation
from domain.biomedical.relations.data import NONE, Gold, MarkedDocuments, Pairs
from domain.biomedical.relations.model import RelationModel, load_model

DOCUMENTS_AT_ONCE = 256
Scores = NDArray[np.float64]


def scored_pairs(
    model: RelationModel, pairs: Sequence[Pairs], *, precision: str = "auto", batch_tokens: int | None = None
) -> list[Scores]:
    """The scores of each document's pairs, (pairs, types + 2), see `RelationNetwork.forward`."""
    resolved = resolve_precision(precision, model.network.device)
    marked = map(model.marker, blocks_of(iter(pairs), DOCUMENTS_AT_ONCE))
    compute = partial(_scores, model)
    blocks = compute_blocks(model.network, marked, lambda block: len(block.ids), compute, resolved, batch_tokens)
    return [scores for block in blocks for scores in block]


def _scores(model: RelationModel, documents: MarkedDocuments, batch_tokens: int) -> list[Scores]:
    width = len(model.scheme.types) + 2
    scores: list[Scores] = [np.zeros((0, width)) for _ in documents.pairs]
    with_pairs = np.flatnonzero([bool(one.pairs) for one in documents.pairs])
    lengths = documents.lengths[with_pairs]
    for rows, _, _ in sorted_batches(lengths, batch_tokens, int(lengths.max(initial=1))):
        chosen = with_pairs[rows]
        inputs = model.marker.batch(documents, chosen)
        outputs = model.network(**{name: values.to(model.network.device) for name, values in inputs.items()})
        sizes = [len(documents.pairs[number].pairs) for number in chosen]
        for number, part in zip(chosen, outputs.float().cpu().split(sizes), strict=True):
            scores[number] = part.double().numpy()
    return scores


def probabilities(scores: Scores, temperature: float) -> Scores:
    """The probability of no relation and of each type, (pairs, 1 + types)."""
    return torch.from_numpy(scores[:, :-1] / temperature).softmax(1).numpy()


def is_novel(scores: Scores) -> list[bool]:
    """True for pairs whose relation is a new finding."""
    novel: list[bool] = (scores[:, -1] > 0).tolist()
    return novel


def predicted(model: RelationModel, scores: Scores, threshold: float | None = None) -> list[tuple[Gold, float]]:
    """The relation of each pair and its probability; none where a relation is less probable than `threshold`.

    threshold: the model's own when None.
    """
    if not len(scores):
        return []
    least = model.threshold if threshold is None else threshold
    shares, best = probabilities(scores, model.temperature), scores[:, 1:-1].argmax(1)
    related, novel = (1 - shares[:, 0]).tolist(), is_novel(scores)
    return [
        (Gold(model.scheme.types[kind], novel[row] if model.novelty else None), related[row])
        if related[row] >= least
        else (Gold(NONE), 1 - related[row])
        for row, kind in enumerate(best.tolist())
    ]


class RelationExtractor:
    """Finds the relations of documents whose entities are known."""

    def __init__(self, model: RelationModel) -> None:
        self.model = model

    @classmethod
    def load(cls, source: str | Path, device: str | torch.device | None = None, *, cache: Cache | None = None) -> Self:
        """The extractor of a model folder or hub id; device: as in `SentenceEncoder.load`.

        Raises RequestError for a model that is missing, damaged, or finds no relations.
        """
        model = load_model(source, cache)
        model.network.to(as_device(device))
        return cls(model)

    def relate_documents(
        self, documents: Iterable[Document], *, precision: str = "auto", batch_tokens: int | None = None
    ) -> Iterator[Document]:
        """Streams `documents` with the relations that the model finds in place of their own, and their probabilities.

        Relations between concepts need entities with identifiers.
        precision, batch_tokens: as in `EntityTagger.pipe`.
        """
        for block in blocks_of(iter(documents), DOCUMENTS_AT_ONCE):
            pairs = [self.model.scheme.pairs_of(document) for document in block]
            scores = scored_pairs(self.model, pairs, precision=precision, batch_tokens=batch_tokens)
            yield from map(self.related, pairs, scores)

    def related(self, pairs: Pairs, scores: Scores) -> Document:
        """The document of `pairs` with the relations that `scores`, (pairs, types + 2), stand for."""
        relations = [
            Relation(
                relation.type, tuple(Argument(pairs.nodes[end].target) for end in pair), relation.novel, probability
            )
            for pair, (relation, probability) in zip(pairs.pairs, predicted(self.model, scores), strict=True)
            if relation.type != NONE
        ]
        return replace(pairs.document, relations=tuple(relations))
