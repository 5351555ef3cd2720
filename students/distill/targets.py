"""The vectors that a student learns: the teacher's, and the variance in units of which errors are measured."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertrelay.compute.local import LocalExecutor
from bertrelay.compute.work import Executor
from bertrelay.data.arrow import Mask, mask_of
from bertrelay.data.vectors import Vectors
from bertrelay.device import ComputePrecision
from bertrelay.encode_files import BlockEncoder
from bertrelay.errors import RequestError
from bertrelay.inference.encode import EncodingOptions
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.process_group import on_main, wait_for_all
from bertrelay.stage import StageContext
from bertrelay.training.batches import Items
from students.distill.vector_store import VectorStore, name_sentence
from students.parallel.corpus import NO_TARGET, ParallelCorpus
from students.teacher import OpenedTeacher, SelectedVectors, VectorTable, lookup_digests

BLOCK = 8192  # rows of vectors
UNIT_TOLERANCE = 1e-3  # float32 rounding is far below it, and lengths that nothing normalises far above
NO_VARIANCE = 1e-10  # of the vectors' mean square: what rounding leaves of vectors that are all the same


@dataclass(frozen=True)
class Targets:
    """Vectors to learn.

    vectors: memory-mapped, float32 (sentences, dim). Indexed by rows or a slice, they give an array.
    variance: mean squared distance of the vectors to their mean, each weighted as in the loss. Errors are divided by
        it, so that 1 is what the mean vector scores and 0 the teacher, whatever its scale.
    is_unit: every vector has length 1.
    sentences_per_second: rate of the teacher at the vectors that were computed for it; None where none were.
    """

    vectors: Vectors | SelectedVectors
    variance: float
    is_unit: bool
    sentences_per_second: float | None = None


@dataclass(frozen=True)
class ItemTargets:
    """The vector that each item of a corpus learns: one of the teacher's or, of a retained text, the start's.

    teacher: row i for the ith sentence that the teacher encodes.
    start: row i for the ith retained text; None without such texts.
    """

    corpus: ParallelCorpus
    teacher: Targets
    start: Targets | None = None

    def tensors(self, items: Items) -> dict[str, Tensor]:
        """`targets`, the vectors to learn (items, dim), and `weights` of the teacher's among them, (items,)."""
        rows = self.corpus.rows(items)
        targets = np.array(self.teacher.vectors[rows])
        if self.start:
            is_retained = rows == NO_TARGET
            targets[is_retained] = self.start.vectors[items[is_retained] - self.corpus.taught]
        return {"targets": torch.from_numpy(targets), "weights": torch.from_numpy(self.weights(items))}

    def weights(self, items: Items) -> NDArray[np.int32]:
        """Weights in a loss to the teacher's vectors, (items,): 0 of a retained text."""
        weights: NDArray[np.int32] = self.corpus.weights_of(items) * (self.corpus.rows(items) != NO_TARGET)
        return weights

    def retained_weights(self, items: Items) -> NDArray[np.int32]:
        """Weights in a loss to the start's vectors, (items,): 1 of a retained text, 0 of others."""
        weights: NDArray[np.int32] = self.corpus.weights_of(items) * (self.corpus.rows(items) == NO_TARGET)
        return weights


def fill_targets(
    teacher: OpenedTeacher,
    corpus: ParallelCorpus,
    context: StageContext,
    precision: ComputePrecision,
    executor: Executor | None = None,
) -> Targets:
    """The teacher's vectors of the corpus: those that are not in its store are computed by `executor`.

    All processes call it.

    executor: the processes of `context` when None.
    Raises RequestError, with a list of them in the output folder, for sentences of which a table has no vector.
    """
    digests = _digests(corpus)
    rate: float | None = None
    if isinstance(teacher.model, VectorTable):
        if context.process_group.is_main:
            blocks = chain(corpus.blocks(corpus.encoded), [corpus.dev_texts])
            teacher.model.require(blocks, context.output / "without-vector.txt")
        wait_for_all(context.process_group)
        vectors = teacher.model.select(digests)
    else:
        executor = executor or LocalExecutor(context.process_group)
        store, encoding = _store(teacher, teacher.model, context, precision, executor)
        rate = store.fill(encoding, digests, partial(_read, corpus), executor)
        vectors = store.select(digests)
    targets = targets_of(vectors, corpus.weights_of(np.arange(len(vectors))), "teacher")
    return replace(targets, sentences_per_second=rate)


def missing_vectors(
    teacher: OpenedTeacher,
    corpus: ParallelCorpus,
    context: StageContext,
    precision: ComputePrecision,
    executor: Executor,
) -> Mask:
    """Marks the items whose vectors `fill_targets` has to compute, (items that the teacher encodes,)."""
    digests = _digests(corpus)
    if isinstance(teacher.model, VectorTable):
        return np.zeros(len(digests), bool)
    store, _ = _store(teacher, teacher.model, context, precision, executor)
    return on_main(lambda: mask_of(store.missing(digests), len(digests)), context.process_group)


def _digests(corpus: ParallelCorpus) -> NDArray[np.bytes_]:
    """The digests of the sentences that the teacher encodes, (sentences,)."""
    return np.concatenate([lookup_digests(block) for block in corpus.blocks(corpus.encoded)])


def _store(
    teacher: OpenedTeacher,
    encoder: SentenceEncoder,
    context: StageContext,
    precision: ComputePrecision,
    executor: Executor,
) -> tuple[VectorStore, BlockEncoder]:
    """The store of the vectors of a teacher that is an encoder, and what encodes new sentences."""
    options: EncodingOptions = {"prompt": teacher.prompt, "precision": precision}
    encoding = BlockEncoder.of(encoder, executor, options, name_row=name_sentence)
    return VectorStore.of(encoding, teacher.digest, context.cache.folder / "targets"), encoding


def _read(corpus: ParallelCorpus, rows: NDArray[np.int64]) -> list[str]:
    """The sentences of rising rows, read as one block."""
    first = int(rows[0])
    block = corpus.texts(first, int(rows[-1]) + 1)
    return [block[row - first] for row in rows.tolist()]


def targets_of(vectors: Vectors | SelectedVectors, weights: NDArray[np.int32], setting: str) -> Targets:
    """Measures variance and lengths of `vectors` (sentences, dim), in float64 and block by block.

    Raises RequestError, about `setting`, when they are all the same.
    """
    total = float(weights.sum(dtype=np.int64))
    mean, squares, farthest = np.zeros(vectors.shape[1]), 0.0, 0.0
    for start in range(0, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK].astype(np.float64)  # (block, dim)
        lengths = np.linalg.norm(block, axis=1)
        fractions = weights[start : start + BLOCK] / total  # (block,)
        mean += fractions @ block
        squares += float(fractions @ lengths**2)
        farthest = max(farthest, float(np.abs(lengths - 1).max()))
    variance = squares - float(mean @ mean)
    if variance <= NO_VARIANCE * squares:
        raise RequestError(
            f"{setting}: expected vectors that differ, found the same one for all {len(vectors):,} sentences. "
            "Check the model, and that there is more than one sentence."
        )
    return Targets(vectors, variance, farthest < UNIT_TOLERANCE)
