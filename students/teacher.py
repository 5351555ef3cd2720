"""A teacher as vectors of texts that another program computed, such as an embedder behind an API."""

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
from bertrelay.data.sentences import clean
from bertrelay.data.tables import BLOCK_ROWS
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
    """Vectors by text, looked up by digests, so that neither texts nor vectors are in memory.

    dim: length of a vector. Texts are compared as a corpus has them: in Unicode NFC and with single spaces.
    """

    def __init__(self, vectors: Vectors, digests: NDArray[np.bytes_], name: str) -> None:
        self._vectors, self._name = vectors, name
        self._order = np.argsort(digests, kind="stable")
        self._digests = digests[self._order]
        self.dim: int = vectors.shape[1]
        self._refuse_contradictions()

    @classmethod
    def open(cls, source: GivenVectors, cache: Cache) -> "VectorTable":
        """Opens the vectors of a Parquet file, which are unpacked under `cache`.

        Raises RequestError for a file without texts or vectors, numbers that are not finite, and two vectors of a text.
        """
        path = cache.folder / "given-vectors" / f"{Digests().of_file(Path(source.vectors))[:32]}.npy"
        digests = _unpack(source.vectors, path)
        vectors = open_vectors(path)
        if (row := not_finite_row(vectors)) is not None:
            raise RequestError(f"teacher: expected finite numbers in {source.vectors}, found others in row {row + 1:,}")
        return cls(vectors, digests, source.vectors)

    def encode(self, sentences: Sequence[str], **_: object) -> Vectors:
        """Looks up the vectors of `sentences`, float32 (sentences, dim). Raises RequestError where one has none."""
        positions, missing = self._find(sentences)
        if len(missing):
            raise self._incomplete(len(missing), len(sentences))
        return np.asarray(self._vectors[self._order[positions]], np.float32)

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
        """Positions of the sentences among the sorted digests, and which of the sentences have none."""
        digests = _digests(sentences)
        positions = np.minimum(np.searchsorted(self._digests, digests), len(self._digests) - 1)
        return positions, np.flatnonzero(self._digests[positions] != digests)

    def _incomplete(self, missing: int, total: int, listed: str = "") -> RequestError:
        return RequestError(
            f"teacher: {missing:,} of {total:,} sentences have no vector in {self._name}. It has to have one "
            f"for every sentence to encode, of training, dev and test data.{listed} Add them, or leave them out."
        )

    def _refuse_contradictions(self) -> None:
        repeated = np.flatnonzero(self._digests[1:] == self._digests[:-1])
        pairs = self._order[repeated], self._order[repeated + 1]
        differs = np.any(self._vectors[pairs[0]] != self._vectors[pairs[1]], axis=1)
        if differs.any():
            first = sorted(int(side[np.argmax(differs)]) + 1 for side in pairs)
            raise RequestError(
                f"teacher: expected one vector for each text in {self._name}, found several for "
                f"{int(differs.sum()):,} of them, the first in rows {first[0]:,} and {first[1]:,}"
            )


def open_teacher(source: ModelSource | GivenVectors, cache: Cache) -> SentenceEncoder | VectorTable:
    """Opens the teacher of a recipe; models of the hub and unpacked vectors are stored under `cache`."""
    if isinstance(source, GivenVectors):
        return VectorTable.open(source, cache)
    return open_encoder(source, cache)


def prompt_of(prompt: Prompt | None, model: SentenceEncoder | VectorTable, key: str = "teacher_prompt") -> str | None:
    """Returns the text of `prompt`; None for the model's default. Raises RequestError for a name the model lacks."""
    if prompt is None or isinstance(model, VectorTable):
        return None
    if isinstance(prompt, PromptText):
        return prompt.text
    if prompt not in model.prompts.texts:
        raise RequestError(f"{key}: {unknown_prompt(prompt, list(model.prompts.texts))}")
    return model.prompts.texts[prompt]


def _digests(texts: Iterable[str]) -> NDArray[np.bytes_]:
    return np.array([text_digest(clean(text)) for text in texts], DIGEST)


def _unpack(name: str, path: Path) -> NDArray[np.bytes_]:
    """Writes the vectors of a Parquet file to `path`, unless they are there, and returns the digests of its texts."""
    digest_file = path.with_suffix(".digests.npy")
    if not digest_file.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        blocks: list[NDArray[np.bytes_]] = []
        try:
            note_input(name)
            file = pq.ParquetFile(name)
            vectors = _blocks(name, file, blocks)
            first = next(vectors, None)
            if first is None:
                raise RequestError(f"teacher: expected texts and vectors in {name}, found no rows")
            with atomic_write(path) as building:
                write_npy(building, chain([first], vectors), file.metadata.num_rows, first.shape[1])
        except (pa.ArrowException, OSError) as error:
            raise RequestError(f"teacher: {name} cannot be read as Parquet ({type(error).__name__})") from None
        with atomic_write(digest_file) as building, building.open("wb") as sink:
            np.save(sink, np.concatenate(blocks))
    digests: NDArray[np.bytes_] = np.load(digest_file)
    return digests


def _blocks(name: str, file: pq.ParquetFile, digests: list[NDArray[np.bytes_]]) -> Iterator[Vectors]:
    """Streams the vectors of a file, (rows, dim) a block, and appends the digests of their texts to `digests`."""
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
