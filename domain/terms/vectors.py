"""Terms to vectors, as Huang, Altosaar & Ranganath (2019) make them: the last layers' sum, its mean over the pieces."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertrelay.cache import Cache
from bertrelay.checks import check_choice, list_texts
from bertrelay.device import ComputePrecision, resolve_precision
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.inference.batches import best_batch_tokens, fill_batch, inference_mode, pack_for, sorted_batches
from bertrelay.inference.encode import check_finite
from bertrelay.inference.kernels import use_packed
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Pooling
from bertrelay.progress import log
from bertrelay.stage import Metrics
from domain.terms.settings import Layers

LAYERS: dict[Layers, int] = {"last_four": 4, "last": 1}
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class TermTokens:
    """The tokens of terms. is_piece: special tokens are no pieces of a term.

    pieces, known: how many pieces a term has, and how many of them the vocabulary has, (terms,).
    """

    ids: list[list[int]]
    is_piece: list[list[int]]
    pieces: NDArray[np.int64]
    known: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array(list(map(len, self.ids)), np.int64)

    def take(self, terms: list[int]) -> "TermTokens":
        """The tokens of these terms alone."""
        ids, is_piece = ([column[term] for term in terms] for column in (self.ids, self.is_piece))
        return TermTokens(ids, is_piece, self.pieces[terms], self.known[terms])

    def fault(self, term: int, max_tokens: int) -> str | None:
        """Why the term has no vector, if it has none."""
        if len(self.ids[term]) > max_tokens:
            return f"a term of more than the {max_tokens} tokens that the model reads"
        return None if self.pieces[term] else "a term without a piece in the model's vocabulary"

    def batch(self, rows: NDArray[np.integer], width: int, pad_id: int) -> Tensor:
        """Ids, mask and which tokens are pieces, of the terms `rows`, (3, rows, width)."""
        filled = np.tile(np.array([pad_id, 0, 0])[:, None, None], (len(rows), width))
        for place, row in enumerate(rows.tolist()):
            filled[:, place, : len(self.ids[row])] = self.ids[row], [1] * len(self.ids[row]), self.is_piece[row]
        return torch.from_numpy(filled)


def term_vectors(
    model: SentenceEncoder | str | Path,
    terms: Sequence[str],
    *,
    layers: Layers = "last_four",
    precision: str = "auto",
    batch_tokens: int | None = None,
    cache: Cache | None = None,
) -> Vectors:
    """Vectors of `terms`, float32 (terms, dim), row i for term i: the mean of a layer's token vectors over its pieces.

    model: any BERT: a plain folder, a sentence encoder's, a classifier's, or a hub id. Its own pooling, projection and
        prompts do not count here, nor do [CLS] and [SEP].
    layers: `last_four` is the sum of the last four layers, and of all where there are fewer, which is logged; `last` is
        the last one alone.
    Raises RequestError for other layers, a term without pieces, and one that is longer than the model reads; WorkError
    for a vector that is not finite.
    """
    check_choice("layers", layers, [*LAYERS])
    encoder = model
    if not isinstance(encoder, SentenceEncoder):
        encoder = SentenceEncoder.load(encoder, backend="torch", cache=cache, is_base=True)
    tokens = term_tokens(encoder, list_texts(terms, "terms"))
    for place in range(len(terms)):
        if fault := tokens.fault(place, encoder.max_tokens):
            raise RequestError(f"terms: expected terms that the model can read, found {fault} at position {place:,}")
    return vectors_of_tokens(encoder, tokens, layers, resolve_precision(precision, encoder.device), batch_tokens)


def layers_summed(encoder: SentenceEncoder, layers: Layers) -> int:
    """How many layers a vector is the sum of: as many as `layers` names, or all where there are fewer."""
    return min(LAYERS[layers], int(encoder.backbone.config.num_hidden_layers))


def term_tokens(encoder: SentenceEncoder, terms: Sequence[str]) -> TermTokens:
    """The tokens of each term, special ones included; nothing is cut."""
    if not terms:
        raise RequestError("terms: expected one term or more, found none")
    rules: Any = encoder.tokenizer
    cut = rules(list(terms), return_special_tokens_mask=True, return_attention_mask=False, verbose=False)
    is_piece = [[1 - special for special in mask] for mask in cut["special_tokens_mask"]]
    known = [
        sum(piece and token != rules.unk_token_id for token, piece in zip(*term, strict=True))
        for term in zip(cut["input_ids"], is_piece, strict=True)
    ]
    return TermTokens(cut["input_ids"], is_piece, np.array(list(map(sum, is_piece))), np.array(known))


def vectors_of_tokens(
    encoder: SentenceEncoder,
    tokens: TermTokens,
    layers: Layers,
    precision: ComputePrecision,
    batch_tokens: int | None = None,
) -> Vectors:
    """`term_vectors` of terms that are tokens already: terms of like length share a batch."""
    summed = layers_summed(encoder, layers)
    if summed < LAYERS[layers]:
        log(f"the model has {summed} layers: a term's vector is their sum, where the paper's is that of the last four")
    size = best_batch_tokens(encoder.device, batch_tokens)
    vectors = np.empty((len(tokens.lengths), encoder.backbone.config.hidden_size), np.float32)
    packed = pack_for(int(tokens.lengths.sum()), encoder.backbone, precision, size)
    mean = Pooling(["mean"])
    with inference_mode(encoder, precision), use_packed(packed):
        for rows, width, height in sorted_batches(tokens.lengths, size, encoder.max_tokens):
            batch = tokens.batch(fill_batch(rows, height), width, encoder.pad_id)
            ids, mask, pieces = batch.to(encoder.device)  # (terms, tokens)
            states = encoder.backbone(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
            last = torch.stack([state.float() for state in states[-summed:]])  # (layers, terms, tokens, dim)
            with torch.autocast(ids.device.type, enabled=False):
                pooled = mean(last.sum(dim=0), pieces)  # (terms, dim)
            vectors[rows] = pooled[: len(rows)].cpu().numpy()
    check_finite(encoder, vectors, lambda row: f"term {row + 1:,}")
    return vectors


BLOCK_CELLS = 4_000_000  # cosines in memory at once


class NearestTerms(NamedTuple):
    """Of each vector the rows of its neighbours, nearest first, and their cosines; both (n, k)."""

    rows: NDArray[np.int64]
    cosines: NDArray[np.float32]


def nearest_terms(vectors: Vectors, k: int = 5) -> NearestTerms:
    """The `k` rows of `vectors` (n, dim) with the largest cosine to each, itself left out; of a tie the lowest first.

    All others where they are fewer. Exact, with some rows of the cosines in memory at a time.
    Raises RequestError for fewer than two vectors.
    """
    if len(vectors) < 2 or k < 1:
        raise RequestError(f"neighbours: expected two vectors and k = 1 at least, found {len(vectors)} and k = {k}")
    directions, k = unit(vectors), min(k, len(vectors) - 1)
    rows, cosines = np.empty((len(vectors), k), np.int64), np.empty((len(vectors), k), np.float32)
    block = max(1, BLOCK_CELLS // len(vectors))
    for start in range(0, len(vectors), block):
        found = directions[start : start + block] @ directions.T  # (block, n)
        found[np.arange(len(found)), start + np.arange(len(found))] = -np.inf
        rows[start : start + block] = np.argsort(-found, axis=1, kind="stable")[:, :k]
        cosines[start : start + block] = np.take_along_axis(found, rows[start : start + block], axis=1)
    return NearestTerms(rows, cosines)


def group_metrics(groups: Sequence[str], found: NearestTerms, seed: int) -> Metrics:
    """Which share of the neighbours of a term with a group is of that group, and which one chance would give.

    The interval resamples terms. Nothing where there are fewer than two groups.
    """
    names, numbers, sizes = np.unique(np.array(groups), return_inverse=True, return_counts=True)
    grouped = np.flatnonzero(np.array(groups) != "")
    if np.count_nonzero(names != "") < 2:
        return {}
    same = (numbers[found.rows[grouped]] == numbers[grouped, None]).mean(axis=1)  # (terms with a group,)
    chance = (sizes[numbers[grouped]] - 1) / (len(groups) - 1)
    found_share = with_interval("terms/same_group", share, same, seed=seed)
    return {**found_share, "terms/same_group_by_chance": float(chance.mean())}
