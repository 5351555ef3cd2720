"""A store of the teacher's vectors in the cache: a sentence is encoded once for all runs and corpora.

    targets/KEY/vectors.bin      vectors, float32, end to end
    targets/KEY/digests.bin      the digest of the sentence of each, 16 bytes; a vector counts once its digest is there
    targets/KEY/new.partial/     shards of an unfinished call, which the next one appends

A call cuts the rows of its corpus into spans, and encodes the sentences of each that are not in the store. Killed and
called again, it has the same spans with the same sentences, except those that are finished: so the vectors are the
same bit for bit. Sentences that another corpus brings are in other batches, and may differ in their last bits.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertrelay.compute.work import Compute, Executor, Work
from bertrelay.data.arrow import Mask, mask_of
from bertrelay.data.shards import ShardFiles, Span, even_spans
from bertrelay.data.vectors import FLOAT32, check_space, write_block
from bertrelay.encode_files import BlockEncoder, rows_per_shard
from bertrelay.errors import plural
from bertrelay.fingerprint import fingerprint
from bertrelay.inference.run_model import fill
from bertrelay.locks import locked_output
from bertrelay.privacy import close_if_sensitive
from bertrelay.process_group import check_shared, on_main, wait_for_all
from bertrelay.progress import Bar, log
from students.teacher import DIGEST, DigestIndex, SelectedVectors, lookup_digests

VECTORS, DIGESTS, NEW = "vectors.bin", "digests.bin", "new"
DESCRIPTION = "teacher's vectors"

ReadRows = Callable[[NDArray[np.int64]], Sequence[str]]
"""Rising rows of a corpus → their sentences."""


def name_sentence(_: int) -> str:
    """Names a sentence in errors: its row among those that are new says nothing to a user."""
    return "a sentence of the corpus"


class VectorStore:
    """The vectors of one encoder, prompt and precision in `folder`. dim: of a vector."""

    def __init__(self, folder: Path, dim: int) -> None:
        self.folder, self.dim = folder, dim

    @classmethod
    def of(cls, encoding: BlockEncoder, teacher_digest: str, parent: Path) -> "VectorStore":
        """The store of all that decides the vectors of `encoding`, in a folder of `parent`."""
        encoder = encoding.encoder
        key = fingerprint(
            {
                "teacher": teacher_digest,
                "prompt": encoding.prompt,
                "precision": encoding.computed_in,
                "dim": encoder.dim,
                "max_tokens": encoder.max_tokens,
            }
        )
        return cls(parent / key[:32], encoder.dim)

    def fill(
        self, encoding: BlockEncoder, digests: NDArray[np.bytes_], read: ReadRows, executor: Executor
    ) -> float | None:
        """Encodes and adds the vectors of the sentences of a corpus that are not in the store.

        digests: of all rows, (rows,). read: gives the sentences of rows; called in this process, for rising rows.
        Every process of `executor` calls it. Returns the sentences encoded in a second, waiting for other calls left
        out; None where none were. Raises RequestError when processes do not share the folder, and WorkError for a
        vector that is not finite.
        """
        group = executor.process_group
        if on_main(lambda: len(self.missing(digests)), group):  # else nothing is written, and the lock not needed
            if group.is_main:
                self.folder.mkdir(parents=True, exist_ok=True)
                close_if_sensitive(self.folder)
            with locked_output(self.folder / VECTORS, group, wait=True):
                return self._encode_unknown(encoding, digests, read, executor)
        return None

    def select(self, digests: NDArray[np.bytes_]) -> SelectedVectors:
        """The vectors of sentences that are all in the store."""
        stored = self._digests()
        positions = DigestIndex(stored).find(digests)
        assert (positions >= 0).all()
        return SelectedVectors(np.memmap(self.folder / VECTORS, FLOAT32, "r", shape=(len(stored), self.dim)), positions)

    def _encode_unknown(
        self, encoding: BlockEncoder, digests: NDArray[np.bytes_], read: ReadRows, executor: Executor
    ) -> float | None:
        group = executor.process_group
        if group.is_main:
            self._append_shards()
        check_shared(self.folder, group)
        unknown = on_main(lambda: self.missing(digests), group)
        if not len(unknown):
            return None
        spans = spans_of(mask_of(unknown, len(digests)))
        shards = ShardFiles(self.folder / NEW, spans, group, ".npy", write_block)
        shards.begin({"sentences": hashlib.sha256(digests[unknown].tobytes()).hexdigest()})
        if group.is_main:
            check_space(self.folder, len(unknown) * self._row_bytes)
            if len(unknown) < len(digests):
                stored = len(digests) - len(unknown)
                log(f"{DESCRIPTION}: {stored:,} of {len(digests):,} {plural(stored, 'is', 'are')} in the store")

        def read_span(span: Span) -> Sequence[str]:
            first, end = np.searchsorted(unknown, [span.first, span.end])
            return read(unknown[first:end])

        result = fill(shards, Work(read_span, partial(_start, encoding), DESCRIPTION, "sentences"), executor)
        if group.is_main:
            self._append_shards()
        wait_for_all(group)
        return result.rate

    def missing(self, digests: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """The rows of sentences that are not in the store, of equal ones the first."""
        rows = np.flatnonzero(DigestIndex(self._digests()).find(digests) < 0)
        return rows[np.sort(np.unique(digests[rows], return_index=True)[1])]

    @property
    def _row_bytes(self) -> int:
        return DIGEST.itemsize + self.dim * FLOAT32.itemsize

    def _digests(self) -> NDArray[np.bytes_]:
        path = self.folder / DIGESTS
        return np.fromfile(path, DIGEST) if path.is_file() else np.empty(0, DIGEST)  # without an incomplete last one

    def _append_shards(self) -> None:
        """Appends the finished shards of this or an earlier call, and removes their folder.

        A row that a killed process left incomplete is cut off before; the digests of a shard follow its vectors.
        """
        shards = ShardFiles(self.folder / NEW, [])
        rows = len(self._digests())
        for name, width in ((VECTORS, self.dim * FLOAT32.itemsize), (DIGESTS, DIGEST.itemsize)):
            with (self.folder / name).open("ab") as file:
                file.truncate(rows * width)
        for path in sorted(shards.folder.glob("[0-9]*.npy")):
            block = np.load(path)  # (sentences, bytes)
            digests, vectors = block[:, : DIGEST.itemsize], block[:, DIGEST.itemsize :]
            _append(self.folder / VECTORS, vectors)
            _append(self.folder / DIGESTS, digests)
            path.unlink()  # killed before it, the next call appends the same vectors once more
        shards.remove()


def _append(path: Path, values: NDArray[np.uint8]) -> None:
    """Returns when the bytes of `values` are on the disk."""
    with path.open("ab") as file:
        file.write(np.ascontiguousarray(values).data)
        file.flush()
        os.fsync(file.fileno())


def spans_of(unknown: Mask) -> list[Span]:
    """Cuts the rows of a corpus into spans, without those that have no unknown row; a span's size is its unknown rows.

    `1 0 0 0 1 1` in spans of two rows gives [Span(0, 2, 1), Span(4, 6, 2)].
    """
    spans = even_spans(len(unknown), rows_per_shard(len(unknown)))
    sized = (span._replace(size=int(unknown[span.first : span.end].sum())) for span in spans)
    return [span for span in sized if span.size]


def _start(encoding: BlockEncoder) -> Compute[Sequence[str], NDArray[np.uint8]]:
    """Computes rows of bytes for each block of sentences: the digest of each, and its vector."""
    encoding = encoding.start()

    def compute(blocks: Iterable[Sequence[str]], bar: Bar) -> Iterator[NDArray[np.uint8]]:
        with_digests = ((lookup_digests(sentences), 0, sentences) for sentences in blocks)
        for digests, vectors in encoding.vectors(with_digests, bar):
            parts = (part.view(np.uint8).reshape(len(digests), -1) for part in (digests, vectors.astype(FLOAT32)))
            yield np.concatenate([*parts], axis=1)

    return compute
