"""The vectors that a student learns: the teacher's, and the variance in units of which errors are measured."""

import hashlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertrelay.compute.local import LocalExecutor
from bertrelay.compute.work import Executor
from bertrelay.data.vectors import open_vectors, write_npy
from bertrelay.device import ComputePrecision
from bertrelay.encode_files import fill_vectors
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write
from bertrelay.fingerprint import fingerprint
from bertrelay.process_group import wait_for_all
from bertrelay.stage import StageContext
from bertrelay.training.batches import Items
from students.parallel.corpus import NO_TARGET, ParallelCorpus
from students.teacher import OpenedTeacher, VectorTable

BLOCK = 8192  # rows of vectors
UNIT_TOLERANCE = 1e-3  # float32 rounding is far below it, and lengths that nothing normalises far above
NO_VARIANCE = 1e-10  # of the vectors' mean square: what rounding leaves of vectors that are all the same


@dataclass(frozen=True)
class Targets:
    """Vectors to learn.

    vectors: memory-mapped, float32 (sentences, dim).
    variance: mean squared distance of the vectors to their mean, each weighted as in the loss. Errors are divided by
        it, so that 1 is what the mean vector scores and 0 the teacher, whatever its scale.
    is_unit: every vector has length 1.
    """

    vectors: NDArray[np.float32]
    variance: float
    is_unit: bool


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
    """The teacher's vectors of the corpus: from the cache, or computed by `executor`; all processes call it.

    executor: the processes of `context` when None.
    Raises RequestError, with a list of them in the output folder, for sentences of which a table has no vector.
    """
    text, rows = hashlib.sha256(), corpus.encoded
    for block in corpus.blocks(rows):
        text.update("\n".join([*block, ""]).encode())
    prompt = {} if teacher.prompt is None else {"prompt": teacher.prompt}
    key = fingerprint({"teacher": teacher.digest, "text": text.hexdigest(), **prompt})
    folder = context.cache.folder / "targets"
    if isinstance(teacher.model, VectorTable):
        path = folder / key[:32] / "vectors.npy"
        if context.process_group.is_main:
            _look_up(teacher.model, corpus, path, context.output / "without-vector.txt")
        wait_for_all(context.process_group)
    else:
        path = folder / f"{key[:32]}-{precision}" / "vectors.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        fill_vectors(
            teacher.model,
            corpus.texts,
            rows,
            path,
            key,
            prompt=teacher.prompt,
            precision=precision,
            executor=executor or LocalExecutor(context.process_group),
            description="teacher's vectors",
        )
    vectors = open_vectors(path)
    return targets_of(vectors, corpus.weights_of(np.arange(len(vectors))), "teacher")


def _look_up(table: VectorTable, corpus: ParallelCorpus, path: Path, list_path: Path) -> None:
    """Writes the vectors of the corpus to `path` unless it exists; lists the sentences without one in `list_path`."""
    table.require(chain(corpus.blocks(corpus.encoded), [corpus.dev_texts]), list_path)
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as building:
        write_npy(building, map(table.encode, corpus.blocks(corpus.encoded)), corpus.encoded, table.dim)


def targets_of(vectors: NDArray[np.float32], weights: NDArray[np.int32], setting: str) -> Targets:
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
