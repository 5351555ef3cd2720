"""A teacher that computes nothing: vectors of texts that another program made, such as an embedder behind an API."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.data.arrow import text_digest
from bertrelay.data.sentences import clean, iterate_sentences
from bertrelay.data.tables import BLOCK_ROWS, Table
from bertrelay.data.vectors import Vectors, not_finite_row, open_vectors, write_npy
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write
from bertrelay.fingerprint import Digests
from bertrelay.inputs import note_input
from bertrelay.model.encoder import SentenceEncoder, open_encoder
from bertrelay.settings import ModelSource
from students.settings import GivenVectors, Prompt, PromptText, unknown_prompt

DIGEST = np.dtype("S16")


class VectorTable:
    """Vectors by text, found by digests, so that neither texts nor vectors are in memory.

    dim: of a vector. Texts are compared as a corpus has them: in Unicode NFC and with single spaces.
    """

    def __init__(self, vectors: Vectors, digests: NDArray[np.bytes_], name: str) -> None:
        self._vectors, self._name = vectors, name
        self._order = np.argsort(digests, kind="stable")
        self._digests = digests[self._order]
        self.dim: int = vectors.shape[1]
        self._refuse_contradictions()

    @classmethod
    def open(cls, source: GivenVectors, cache: Cache) -> "VectorTable":
        """Raises RequestError for files that do not belong together, and for two vectors of one text."""
        path = Path(source.vectors)
        name = str(path)
        if source.texts is None:
            path = cache.folder / "given-vectors" / f"{Digests().of_file(path)[:32]}.npy"
            digests = _unpacked(name, path)
        else:
            digests = _digests(iterate_sentences(Table(path=source.texts, format="lines")))
            path = _in_float32(path, cache)
        vectors = open_vectors(path)
        if len(vectors) != len(digests):
            raise RequestError(
                f"teacher: expected a vector for each line of {source.texts}, found {len(digests):,} lines and "
                f"{len(vectors):,} vectors in {name}"
            )
        if (row := not_finite_row(vectors)) is not None:
            raise RequestError(f"teacher: expected finite numbers in {name}, found others in row {row + 1:,}")
        return cls(vectors, digests, name)

    def encode(self, sentences: Sequence[str], **_: object) -> Vectors:
        """The vectors of `sentences`, float32 (sentences, dim). Raises RequestError where one has none."""
        places, missing = self._find(sentences)
        if len(missing):
            raise self._incomplete(len(missing), len(sentences))
        return np.asarray(self._vectors[self._order[places]], np.float32)

    def require(self, blocks: Iterable[Sequence[str]], listed: Path) -> None:
        """Raises RequestError if a sentence of `blocks` has no vector; all such are then lines of the file `listed`."""
        missing = total = 0
        with listed.open("w", encoding="utf-8") as file:
            for sentences in blocks:
                rows = self._find(sentences)[1].tolist()
                file.writelines(f"{sentences[row]}\n" for row in rows)
                missing, total = missing + len(rows), total + len(sentences)
        if missing:
            raise self._incomplete(missing, total, f" They are in {listed}, a line each.")
        listed.unlink()

    def _find(self, sentences: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The places of the sentences among the digests, and which of the sentences are not there."""
        wanted = _digests(sentences)
        places = np.minimum(np.searchsorted(self._digests, wanted), len(self._digests) - 1)
        return places, np.flatnonzero(self._digests[places] != wanted)

    def _incomplete(self, missing: int, total: int, where: str = "") -> RequestError:
        return RequestError(
            f"teacher: {missing:,} of {total:,} sentences have no vector in {self._name}. It has to have one "
            f"for every sentence to encode, of training, dev and test data.{where} Add them, or leave them out."
        )

    def _refuse_contradictions(self) -> None:
        again = np.flatnonzero(self._digests[1:] == self._digests[:-1])
        pairs = self._order[again], self._order[again + 1]
        differs = np.any(self._vectors[pairs[0]] != self._vectors[pairs[1]], axis=1)
        if differs.any():
            first = sorted(int(side[np.argmax(differs)]) + 1 for side in pairs)
            raise RequestError(
                f"teacher: expected one vector for each text in {self._name}, found several for "
                f"{int(differs.sum()):,} of them, the first in rows {first[0]:,} and {first[1]:,}"
            )


def open_teacher(source: ModelSource | GivenVectors, cache: Cache) -> SentenceEncoder | VectorTable:
    """The teacher of a recipe; models of the hub and unpacked vectors are kept under `cache`."""
    if isinstance(source, GivenVectors):
        return VectorTable.open(source, cache)
    return open_encoder(source, cache)


def prompt_of(prompt: Prompt | None, model: SentenceEncoder | VectorTable, key: str = "teacher_prompt") -> str | None:
    """The text of `prompt`; None for the model's default. Raises RequestError where the model has none of that name."""
    if prompt is None or isinstance(model, VectorTable):
        return None
    if isinstance(prompt, PromptText):
        return prompt.text
    if prompt not in model.prompts.texts:
        raise RequestError(f"{key}: {unknown_prompt(prompt, list(model.prompts.texts))}")
    return model.prompts.texts[prompt]


def _digests(texts: Iterable[str]) -> NDArray[np.bytes_]:
    return np.array([text_digest(clean(text)) for text in texts], DIGEST)


def _in_float32(path: Path, cache: Cache) -> Path:
    """`path`, or a copy under `cache` of a `.npy` file of float64 or float16."""
    for kind in (np.float64, np.float16):
        try:
            vectors = open_vectors(path, np.dtype(kind))
        except RequestError:
            continue
        copy = cache.folder / "given-vectors" / f"{Digests().of_file(path)[:32]}.npy"
        if not copy.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            starts = range(0, len(vectors), BLOCK_ROWS)
            blocks = (vectors[start : start + BLOCK_ROWS].astype(np.float32) for start in starts)
            with atomic_write(copy) as building:
                write_npy(building, blocks, *vectors.shape)
        return copy
    return path


def _unpacked(name: str, path: Path) -> NDArray[np.bytes_]:
    """The digests of the texts of a Parquet file, whose vectors are written to `path` unless they are there."""
    kept = path.with_suffix(".digests.npy")
    if not kept.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        digests: list[NDArray[np.bytes_]] = []
        try:
            note_input(name)
            file = pq.ParquetFile(name)
            blocks = _blocks(name, file, digests)
            first = next(blocks, None)
            if first is None:
                raise RequestError(f"teacher: expected texts and vectors in {name}, found no rows")
            with atomic_write(path) as building:
                write_npy(building, chain([first], blocks), file.metadata.num_rows, first.shape[1])
        except (pa.ArrowException, OSError) as error:
            raise RequestError(f"teacher: {name} cannot be read as Parquet ({type(error).__name__})") from None
        with atomic_write(kept) as building, building.open("wb") as sink:
            np.save(sink, np.concatenate(digests))
    known: NDArray[np.bytes_] = np.load(kept)
    return known


def _blocks(name: str, file: pq.ParquetFile, digests: list[NDArray[np.bytes_]]) -> Iterator[Vectors]:
    """The vectors of the file, (rows, dim) each; the digests of their texts go to `digests`."""
    missing = {"text", "vector"} - set(file.schema_arrow.names)
    if missing:
        raise RequestError(f"teacher: {name} has no column {' and '.join(sorted(missing))}")
    kinds = [file.schema_arrow.field(column).type for column in ("text", "vector")]
    if not (pa.types.is_string(kinds[0]) or pa.types.is_large_string(kinds[0])) or not hasattr(kinds[1], "value_type"):
        raise RequestError(f"teacher: expected text and lists of numbers in {name}, found {kinds[0]} and {kinds[1]}")
    dim = 0
    for batch in file.iter_batches(BLOCK_ROWS, columns=["text", "vector"]):
        texts, vectors = batch["text"], batch["vector"]
        lengths = set(pc.list_value_length(vectors).to_pylist())
        dim = dim or max(lengths - {None}, default=0)
        if texts.null_count or lengths != {dim} or not dim:
            raise RequestError(f"teacher: expected a text and a vector of {dim} numbers in every row of {name}")
        digests.append(_digests(texts.to_pylist()))
        yield vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, dim)
