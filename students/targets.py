"""What a student learns: the teacher's vector of every distinct English sentence, computed once and kept on disk."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.vectors import open_vectors
from bertrelay.distributed import from_main
from bertrelay.encode_files import fill_vectors
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.files import read_json, write_json
from bertrelay.fingerprint import fingerprint
from bertrelay.hardware import resolve_precision
from bertrelay.settings import ModelSource
from bertrelay.stage import StageContext
from students.corpus import ParallelCorpus

BLOCK = 8192
VARIANCE = "distillation.json"
UNIT_TOLERANCE = 1e-3  # float32 rounding is far below it, and lengths that nothing normalises far above
NO_VARIANCE = 1e-10  # of the vectors' mean square: what rounding leaves of vectors that are all the same


@dataclass(frozen=True)
class Targets:
    """The teacher's space, as far as a student sees it.

    vectors: memory-mapped, row i for English sentence i, float32 (sentences, dim).
    variance: mean squared distance of the targets to their mean, each weighted by its translations. Errors are
        divided by it, so that 1 is what the mean vector scores and 0 the teacher, whatever its scale.
    is_unit: every vector has length 1.
    """

    vectors: NDArray[np.float32]
    variance: float
    is_unit: bool


def fill_targets(
    teacher: SentenceEncoder, corpus: ParallelCorpus, context: StageContext, teacher_digest: str, precision: str
) -> Targets:
    """The targets of the corpus, from the cache or computed by all processes together, each a share of the blocks.

    teacher_digest: identifies the teacher's weights; with the text and the precision it names the vectors.
    """
    text = hashlib.sha256()
    for start in range(0, len(corpus.english), BLOCK):
        text.update("\n".join([*corpus.english.read(start, min(start + BLOCK, len(corpus.english))), ""]).encode())
    key = fingerprint({"teacher": teacher_digest, "text": text.hexdigest()})
    precision = from_main(resolve_precision(precision, teacher.device), context.process_group)
    folder = context.cache / "targets" / f"{key[:32]}-{precision}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "vectors.npy"
    fill_vectors(
        teacher,
        corpus.english.read,
        len(corpus.english),
        path,
        key,
        precision=precision,
        process_group=context.process_group,
        description="teacher's vectors",
    )
    vectors = open_vectors(path)
    variance, is_unit = _spread(vectors, corpus.weights[: len(vectors)])
    return Targets(vectors, variance, is_unit)


def save_variance(variance: float, model_folder: Path) -> None:
    """Keeps the unit of the relative distances with the model that was trained in it."""
    write_json(model_folder / VARIANCE, {"target_variance": variance})


def read_variance(model: ModelSource) -> float | None:
    """The unit of the relative distances of a model trained here; None for any other."""
    kept = read_json(model.folder / VARIANCE) if model.folder else None
    return float(kept["target_variance"]) if kept else None


def _spread(vectors: NDArray[np.float32], weights: NDArray[np.int32]) -> tuple[float, bool]:
    """Variance and whether all lengths are 1, in float64 and block by block."""
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
            "teacher: expected vectors that differ, found the same one for all "
            f"{len(vectors):,} English sentences. Check the teacher, and that the corpus has more than one sentence."
        )
    return variance, farthest < UNIT_TOLERANCE
