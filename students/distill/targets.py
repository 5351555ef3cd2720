"""The targets of a student: the teacher's vectors, and the variance in units of which errors are measured."""

import hashlib
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.vectors import open_vectors, write_npy
from bertrelay.device import ComputePrecision
from bertrelay.encode_files import fill_vectors
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write
from bertrelay.fingerprint import fingerprint
from bertrelay.inference.run_model import connect
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.process_group import wait_for_all
from bertrelay.stage import StageContext
from students.parallel.corpus import ParallelCorpus
from students.teacher import VectorTable

BLOCK = 8192  # rows of vectors
UNIT_TOLERANCE = 1e-3  # float32 rounding is far below it, and lengths that nothing normalises far above
NO_VARIANCE = 1e-10  # of the vectors' mean square: what rounding leaves of vectors that are all the same


@dataclass(frozen=True)
class Targets:
    """The teacher's space, as far as a student sees it.

    vectors: memory-mapped, row i for the ith sentence that the teacher encodes, float32 (sentences, dim).
    variance: mean squared distance of the targets to their mean, each weighted as in the loss. Errors are
        divided by it, so that 1 is what the mean vector scores and 0 the teacher, whatever its scale.
    is_unit: every vector has length 1.
    """

    vectors: NDArray[np.float32]
    variance: float
    is_unit: bool


def fill_targets(
    teacher: SentenceEncoder | VectorTable,
    corpus: ParallelCorpus,
    context: StageContext,
    teacher_digest: str,
    precision: ComputePrecision,
    prompt: str | None = None,
) -> Targets:
    """The targets of the corpus: from the cache, or computed by all processes, or by the cluster of `context.engine`,
    which is for one process.

    teacher_digest: identifies the teacher's weights; with text, prompt and precision it names the vectors.
    prompt: what precedes each sentence; the teacher's default prompt when None.
    """
    text = hashlib.sha256()
    rows = corpus.encoded
    for block in corpus.blocks(rows):
        text.update("\n".join([*block, ""]).encode())
    before = {} if prompt is None else {"prompt": prompt}
    key = fingerprint({"teacher": teacher_digest, "text": text.hexdigest(), **before})
    if isinstance(teacher, VectorTable):
        path = context.cache.folder / "targets" / key[:32] / "vectors.npy"
        if context.process_group.is_main:
            teacher.require(chain(corpus.blocks(rows), [corpus.dev_texts]), context.output / "without-vector.txt")
        if context.process_group.is_main and not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as building:
                write_npy(building, map(teacher.encode, corpus.blocks(rows)), rows, teacher.dim)
        wait_for_all(context.process_group)
    else:
        engine = context.engine_before_training
        with connect(engine, context.process_group) as executor:
            path = context.cache.folder / "targets" / f"{key[:32]}-{precision}" / "vectors.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            fill_vectors(
                teacher,
                corpus.texts,
                rows,
                path,
                key,
                prompt=prompt,
                precision=precision,
                executor=executor,
                description="teacher's vectors",
            )
    vectors = open_vectors(path)
    return targets_of(vectors, corpus.weights_of(np.arange(len(vectors))), "teacher")


def targets_of(vectors: NDArray[np.float32], weights: NDArray[np.int32], setting: str) -> Targets:
    """These vectors with their variance, and whether all lengths are 1, in float64 and block by block.

    Raises RequestError, about `setting`, when they are all the same.
    """
    total = float(weights.sum(dtype=np.int64))
    mean, squares, farthest = np.zeros(vectors.shape[1]), 0.0, 0.0
    for start in range(0, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK].astype(np.float64)  # (block, dim)
        lengths = np.linalg.norm(block, axis=1)
        share = weights[start : start + BLOCK] / total  # (block,)
        mean += share @ block
        squares += float(share @ lengths**2)
        farthest = max(farthest, float(np.abs(lengths - 1).max()))
    variance = squares - float(mean @ mean)
    if variance <= NO_VARIANCE * squares:
        raise RequestError(
            f"{setting}: expected vectors that differ, found the same one for all {len(vectors):,} sentences. "
            "Check the model, and that there is more than one sentence."
        )
    return Targets(vectors, variance, farthest < UNIT_TOLERANCE)
