"""Chunks to the log-odds of their labels, chunks of like length side by side, whosever they are."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from bertrelay.cpu_kernels import Packed, using
from bertrelay.inference import best_batch_tokens, computing, pack_for, sorted_batches
from bertrelay.progress import Bar
from domain.clinical.notes.chunk_tokens import ChunkTokens
from domain.clinical.outcomes.classifier import OutcomeModel

Floats = NDArray[np.float64]


def chunk_log_odds(
    model: OutcomeModel,
    tokens: ChunkTokens,
    chunks: NDArray[np.integer],
    precision: str,
    batch_tokens: int | None = None,
    packed: Packed | None = None,
    bar: Bar | None = None,
) -> Floats:
    """The log-odds of each label of `chunks`, in their order, (chunks, labels).

    precision: bf16 or fp32, settled. packed: weights laid out before (`pack_for`); found here when not given.
    """
    network, bar = model.network, bar or Bar()
    size = best_batch_tokens(network.device, batch_tokens)
    packed = pack_for(len(tokens.ids), network.network.base_model, precision, size) if packed is None else packed
    labels, lengths = len(model.settings.labels), tokens.lengths[chunks]
    found = np.empty((len(chunks), labels))
    with computing(network, precision), using(packed):
        for places, width, height in sorted_batches(lengths, size, model.settings.chunking.max_tokens):
            rows = np.pad(chunks[places], (0, height - len(places)), mode="edge")
            logits = network(*(each.to(network.device) for each in tokens.batch(rows, width, model.pad_id)))
            found[places] = logits[: len(places)].float().cpu().numpy()
            bar.advance(len(places))
    return against_the_rest(found) if model.settings.outcome.kind == "multi-class" else found


def against_the_rest(logits: Floats) -> Floats:
    """The log-odds of each label where exactly one is true, (chunks, labels): their logistic is the softmax."""
    others = [logsumexp(np.delete(logits, label, axis=1), axis=1) for label in range(logits.shape[1])]
    found: Floats = logits - np.stack(others, axis=1)
    return found
