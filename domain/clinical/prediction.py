"""Chunks to log-odds, the probabilities of an admission's chunks to one, P(readmission), and its recalibration.

For an admission with n chunks, Huang, Altosaar & Ranganath (2019, equation 4) put

    P = (P_max + P_mean · n/c) / (1 + n/c)

so that the largest of many chunks counts for less, as chance alone makes it large. Chunks of an admission need not be
neighbours: `admissions` has the admission of each, by numbers from 0.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, logsumexp

from bertrelay.data.vectors import check_finite_rows
from bertrelay.device import ComputePrecision
from bertrelay.inference.batches import best_batch_tokens, fill_batch, inference_mode, pack_for, sorted_batches
from bertrelay.inference.kernels import Packed, use_packed
from bertrelay.progress import Bar
from domain.clinical.chunks import ChunkTokens
from domain.clinical.classifier import OutcomeModel
from domain.clinical.outcomes import PAPERS_C, AggregationName, OutcomeModelSettings

Floats = NDArray[np.float64]
Integers = NDArray[np.integer]

TINY = 1e-9


def chunk_log_odds(
    model: OutcomeModel,
    tokens: ChunkTokens,
    chunks: NDArray[np.integer],
    precision: ComputePrecision,
    batch_tokens: int | None = None,
    packed: Packed | None = None,
    bar: Bar | None = None,
) -> Floats:
    """The log-odds of each label of `chunks`, in their order, (chunks, labels).

    packed: weights laid out before (`pack_for`); found here when not given.
    Raises WorkError where they are not finite: no comparison holds of such ones, and so there would be no alarm.
    """
    network, bar = model.network, bar or Bar()
    size = best_batch_tokens(network.device, batch_tokens)
    packed = pack_for(len(tokens.ids), network.network.base_model, precision, size) if packed is None else packed
    labels, lengths = len(model.settings.labels), tokens.lengths[chunks]
    log_odds = np.empty((len(chunks), labels))
    with inference_mode(network, precision), use_packed(packed):
        for places, width, height in sorted_batches(lengths, size, model.settings.chunking.max_tokens):
            rows = chunks[fill_batch(places, height)]
            logits = network(*(each.to(network.device) for each in tokens.batch(rows, width, model.pad_id)))
            log_odds[places] = logits[: len(places)].float().cpu().numpy()
            bar.advance(len(places))
    check_finite_rows(
        log_odds, network.network.name_or_path, lambda row: f"chunk {row + 1:,} of {len(chunks):,}", "a row of log-odds"
    )
    return one_vs_rest_log_odds(log_odds) if model.settings.outcome.kind == "multi-class" else log_odds


def one_vs_rest_log_odds(logits: Floats) -> Floats:
    """The log-odds of each label where exactly one is true, (chunks, labels): their logistic is the softmax."""
    others = [logsumexp(np.delete(logits, label, axis=1), axis=1) for label in range(logits.shape[1])]
    log_odds: Floats = logits - np.stack(others, axis=1)
    return log_odds


CHOICES_OF_C = (PAPERS_C, 1.0, 4.0, 0.5, 8.0, 0.25, 16.0, 32.0)
"""The paper's first: it stays where no other is better."""


def aggregate(
    probabilities: NDArray[np.floating],
    admissions: Integers,
    count: int,
    aggregation: AggregationName = "max_and_mean",
    c: float = PAPERS_C,
) -> Floats:
    """P of each of `count` admissions, (count,), from those of chunks, (chunks,); nan where there is no chunk."""
    contributed = contributions(probabilities, admissions, count, aggregation, c)
    sums = np.bincount(admissions, contributed, count)
    return np.where(np.bincount(admissions, minlength=count) > 0, sums, np.nan)


def aggregate_labels(
    probabilities: NDArray[np.floating], admissions: Integers, count: int, how: OutcomeModelSettings
) -> Floats:
    """P of each label, (count, labels), from those of chunks, (chunks, labels): the formula, label by label.

    Where exactly one label is true, those of an admission are divided by their sum.
    """
    of_labels = [aggregate(of_label, admissions, count, how.aggregation, how.c) for of_label in probabilities.T]
    found = np.stack(of_labels, axis=1)
    return found / found.sum(axis=1, keepdims=True) if how.outcome.kind == "multi-class" else found


def contributions(
    probabilities: NDArray[np.floating],
    admissions: Integers,
    count: int,
    aggregation: AggregationName = "max_and_mean",
    c: float = PAPERS_C,
) -> Floats:
    """What each chunk contributes to its admission's P, (chunks,): its weight times its probability.

    Those of an admission add up to its P. Of equally large chunks the first one counts as the largest.
    """
    n = np.bincount(admissions, minlength=count)[admissions]  # chunks of the same admission, (chunks,)
    nothing, one = np.zeros(len(n)), np.ones(len(n))
    weights, of_largest = {
        "max": (nothing, one),
        "mean": (1 / n, nothing),
        # (P_max + P_mean·n/c) / (1 + n/c): each chunk has 1/n of P_mean, so (n/c)/n = 1/c of it
        "max_and_mean": ((1 / c) / (1 + n / c), 1 / (1 + n / c)),
    }[aggregation]
    order = np.lexsort((-probabilities, admissions))
    largest = order[np.flatnonzero(np.diff(admissions[order], prepend=-1))]
    weights[largest] += of_largest[largest]
    return weights * probabilities


def choose_c(score: Callable[[float], float | None]) -> float:
    """Of `CHOICES_OF_C` the one that scores highest; the first of equals, and where nothing can be scored."""
    known = [-np.inf if (value := score(c)) is None else value for c in CHOICES_OF_C]
    return CHOICES_OF_C[int(np.argmax(known))]


def calibrated(probability: Floats, slope: float, intercept: float) -> Floats:
    """Recalibrated probabilities, see `domain.clinical.recalibration`; their order stays."""
    return np.asarray(expit(intercept + slope * log_odds_of(probability)))


def log_odds_of(probability: Floats) -> Floats:
    """Finite ones, also of 0 and 1."""
    return np.asarray(logit(np.clip(probability, TINY, 1 - TINY)))
