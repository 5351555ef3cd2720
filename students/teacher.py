"""A teacher: an encoder with a prompt, or the vectors that another program made, such as an embedder behind an API."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bertrelay.cache import Cache, cached_folder
from bertrelay.data.arrow import text_digest
from bertrelay.data.sentences import clean
from bertrelay.data.tables import BLOCK_ROWS
from bertrelay.data.vectors import Vectors, not_finite_row, open_vectors, write_array, write_npy
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.fingerprint import Digests
from bertrelay.inputs import note_input
from bertrelay.model.encoder import SentenceEncoder, encoder_digest, open_encoder
from bertrelay.settings import ModelSource
from students.settings import Prompt, PromptText, TeacherVectors, unknown_prompt

DIGEST = np.dtype("S16")
VECTORS, DIGESTS = "vectors.npy", "digests.npy"


class DigestIndex:
    """Finds the positions of texts by their digests, so that no text is in memory.

    Texts are compared as a corpus has them: in Unicode NFC and with single spaces.
    """

    def __init__(self, digests: NDArray[np.bytes_]) -> None:
        self._order = np.argsort(digests, kind="stable")
        self._sorted = digests[self._order]

    def find(self, digests: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """The position of each of `digests`, the first one of a text that is there twice; -1 where it is missing."""
        if not len(self._sorted):
            return np.full(len(digests), -1)
        positions = np.minimum(np.searchsorted(self._sorted, digests), len(self._sorted) - 1)
        return np.where(self._sorted[positions] == digests, self._order[positions], -1)

    def repeated(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs of neighbouring positions of one text, (pairs,) each."""
        rows = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        return self._order[rows], self._order[rows + 1]


@dataclass(frozen=True)
class SelectedVectors:
    """Rows of memory-mapped vectors in another order, read where they are indexed.

    stored: float32 (rows, dim). positions: row of `stored` of each vector, (vectors,).
    """

    stored: Vectors
    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: slice | NDArray[np.integer]) -> Vectors:
        selected: Vectors = np.asarray(self.stored[self.positions[rows]], np.float32)
        return selected

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(dtype or np.float32, copy=False)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.stored.shape[1]


class VectorTable:
    """Vectors that are looked up by the digests of their texts, so that neither texts nor vectors are in memory.

    dim: of a vector. digest: of the file.
    """

    def __init__(self, vectors: Vectors, digests: NDArray[np.bytes_], name: str, digest: str = "") -> None:
        self._vectors, self._name = vectors, name
        self._index = DigestIndex(digests)
        self.dim: int = vectors.shape[1]
        self.digest = digest
        self._refuse_contradictions()

    @classmethod
    def open(cls, source: TeacherVectors, cache: Cache) -> "VectorTable":
        """Opens a Parquet file, whose content is unpacked under `cache` once.

        Raises RequestError for a file without texts and vectors, for vectors that are not finite, and for two different
        vectors of one text.
        """
        name = str(source.vectors)
        note_input(name)
        digest = Digests().of_file(Path(name))
        folder = cached_folder(cache.folder / "teacher-vectors" / digest[:32], lambda building: _unpack(name, building))
        vectors = open_vectors(folder / VECTORS)
        if (row := not_finite_row(vectors)) is not None:
            raise RequestError(f"teacher: expected finite numbers in {name}, found others in row {row + 1:,}")
        return cls(vectors, np.load(folder / DIGESTS), name, digest)

    def encode(self, sentences: Sequence[str]) -> Vectors:
        """Looks up the vectors of `sentences`, float32 (sentences, dim). Raises RequestError where one has none."""
        return self.select(lookup_digests(sentences))[:]

    def select(self, digests: NDArray[np.bytes_]) -> SelectedVectors:
        """The vectors of the texts of these digests. Raises RequestError where one has none."""
        positions = self._index.find(digests)
        if missing := int((positions < 0).sum()):
            raise self._incomplete(missing, len(digests))
        return SelectedVectors(self._vectors, positions)

    def has_all(self, sentences: Sequence[str]) -> bool:
        """Returns true if each of `sentences` has a vector."""
        return bool((self._index.find(lookup_digests(sentences)) >= 0).all())

    def require(self, blocks: Iterable[Sequence[str]], list_path: Path) -> None:
        """Raises RequestError if a sentence of `blocks` has no vector; the file `list_path` then lists all such."""
        missing = total = 0
        with list_path.open("w", encoding="utf-8") as file:
            for sentences in blocks:
                rows = np.flatnonzero(self._index.find(lookup_digests(sentences)) < 0).tolist()
                file.writelines(f"{sentences[row]}\n" for row in rows)
                missing, total = missing + len(rows), total + len(sentences)
        if missing:
            raise self._incomplete(missing, total, f" They are in {list_path}, a line each.")
        list_path.unlink()

    def _incomplete(self, missing: int, total: int, list_note: str = "") -> RequestError:
        return RequestError(
            f"teacher: {missing:,} of {total:,} sentences have no vector in {self._name}. It has to have one "
            f"for every sentence to encode, of training, dev and test data.{list_note} Add them, or leave them out."
        )

    def _refuse_contradictions(self) -> None:
        rows = self._index.repeated()
        differs = np.any(self._vectors[rows[0]] != self._vectors[rows[1]], axis=1)
        if differs.any():
            first, second = sorted(int(part[np.argmax(differs)]) + 1 for part in rows)
            raise RequestError(
                f"teacher: expected one vector for each text in {self._name}, found several for "
                f"{int(differs.sum()):,} of them, the first in rows {first:,} and {second:,}"
            )


@dataclass(frozen=True)
class OpenedTeacher:
    """A teacher that is ready to encode.

    prompt: the text before each sentence; the encoder's default when None.
    """

    model: SentenceEncoder | VectorTable
    prompt: str | None = None

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def text_before(self) -> str | None:
        """The text before each sentence; None where another program encoded them."""
        return self.model.text_before(prompt=self.prompt) if isinstance(self.model, SentenceEncoder) else None

    @cached_property
    def digest(self) -> str:
        """Identifies the vectors of all texts, but for prompt and precision."""
        return self.model.digest if isinstance(self.model, VectorTable) else encoder_digest(self.model)

    @property
    def spaces(self) -> tuple[str, ...]:
        """The digests of encoders whose indexes a student can search: the teacher and its teachers, if they encode."""
        return () if isinstance(self.model, VectorTable) else (self.digest, *self.model.spaces)

    def can_encode(self, sentences: Sequence[str]) -> bool:
        """Returns true unless a sentence is missing in a file of vectors."""
        return not isinstance(self.model, VectorTable) or self.model.has_all(sentences)

    def encode(self, sentences: Sequence[str], precision: ComputePrecision, show_progress_bar: bool = False) -> Vectors:
        """The vectors of `sentences`, float32 (sentences, dim)."""
        if isinstance(self.model, VectorTable):
            return self.model.encode(sentences)
        vectors: Vectors = self.model.encode(
            sentences, prompt=self.prompt, precision=precision, show_progress_bar=show_progress_bar
        )
        return vectors


def open_teacher(source: ModelSource | TeacherVectors, prompt: Prompt | None, cache: Cache) -> OpenedTeacher:
    """The teacher of a recipe; models of the hub and unpacked vectors stay under `cache`.

    Raises RequestError where the model has no prompt of the name `prompt`.
    """
    if isinstance(source, TeacherVectors):
        return OpenedTeacher(VectorTable.open(source, cache))
    encoder = open_encoder(source, cache)
    return OpenedTeacher(encoder, resolve_prompt(prompt, encoder, "teacher_prompt"))


def resolve_prompt(prompt: Prompt | None, encoder: SentenceEncoder, key: str) -> str | None:
    """The text of `prompt`; None for the encoder's default.

    Raises RequestError, about the setting `key`, where the encoder has no prompt of that name.
    """
    if prompt is None:
        return None
    if isinstance(prompt, PromptText):
        return prompt.text
    if prompt not in encoder.prompts.texts:
        raise RequestError(f"{key}: {unknown_prompt(prompt, list(encoder.prompts.texts))}")
    return encoder.prompts.texts[prompt]


def lookup_digests(texts: Iterable[str]) -> NDArray[np.bytes_]:
    """The digests of `texts` for `DigestIndex`, (texts,)."""
    return np.array([text_digest(clean(text)) for text in texts], DIGEST)


def _unpack(name: str, folder: Path) -> None:
    """Writes the vectors of a Parquet file and the digests of their texts to `folder`."""
    file = _open_parquet(name)
    digests: list[NDArray[np.bytes_]] = []
    blocks = _blocks(name, file, digests)
    first = next(blocks, None)
    if first is None:
        raise RequestError(f"teacher: expected texts and vectors in {name}, found no rows")
    write_npy(folder / VECTORS, chain([first], blocks), file.metadata.num_rows, first.shape[1])
    write_array(folder / DIGESTS, np.concatenate(digests))


def _open_parquet(name: str) -> pq.ParquetFile:
    """Opens a Parquet file with a column of texts and one of lists of numbers; raises RequestError for any other."""
    try:
        file = pq.ParquetFile(name)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(name, error) from None
    missing = {"text", "vector"} - set(file.schema_arrow.names)
    if missing:
        raise RequestError(f"teacher: {name} has no column {' and '.join(sorted(missing))}")
    text, vector = (file.schema_arrow.field(column).type for column in ("text", "vector"))
    if not (pa.types.is_string(text) or pa.types.is_large_string(text)) or not hasattr(vector, "value_type"):
        raise RequestError(f"teacher: expected text and lists of numbers in {name}, found {text} and {vector}")
    return file


def _blocks(name: str, file: pq.ParquetFile, digests: list[NDArray[np.bytes_]]) -> Iterator[Vectors]:
    """Yields blocks of the file's vectors, (rows, dim) each, and appends the digests of their texts to `digests`."""
    dim = 0
    try:
        for batch in file.iter_batches(BLOCK_ROWS, columns=["text", "vector"]):
            texts, vectors = batch["text"], batch["vector"]
            lengths = set(pc.list_value_length(vectors).to_pylist())
            dim = dim or max(lengths - {None}, default=0)
            if texts.null_count or lengths != {dim} or not dim:
                raise RequestError(f"teacher: expected a text and a vector of {dim} numbers in every row of {name}")
            digests.append(lookup_digests(texts.to_pylist()))
            yield vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, dim)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: Exception) -> RequestError:
    return RequestError(f"teacher: {name} cannot be read as Parquet ({type(error).__name__})")
