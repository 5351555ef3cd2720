"""A linker: the names of a terminology with their vectors, and the scores by which a mention's concepts are ranked.

Its folder holds `linker.json`, `concepts.parquet` (the identifiers of each), `names.parquet` (name, number of its
concept, preferred or not), `vectors.npy` (a unit vector of each name) and `encoder`, a sentence-transformers folder.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from bertrelay.data.vectors import Vectors, open_vectors, write_npy
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from bertrelay.files import write_json
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.files import Description, explain_unreadable, read_model_file
from domain.biomedical.linking.dictionary import Dictionary
from domain.biomedical.linking.names import grams, likeness, words_of

FILE, CONCEPTS, NAMES, VECTORS, ENCODER = "linker.json", "concepts.parquet", "names.parquet", "vectors.npy", "encoder"
NEAREST = 64
"""Names nearest to a mention whose concepts are compared in letters too."""
NAMES_AT_ONCE, QUERIES_AT_ONCE = 65_536, 512
TOP_CONCEPTS = 5
SAME_WORDS = 0.999  # of a score, so that a name of the same words in another order comes behind an equal one


class LinkerDescription(Description):
    """The content of `linker.json`.

    letters: share of the score that is the likeness in letters. threshold: least score of a link.
    ignored_prefixes: of identifiers, without which they are compared.
    """

    names: int
    letters: float
    threshold: float
    ignored_prefixes: list[str]


class Candidate(NamedTuple):
    """A concept for a mention. concept: its position in the dictionary. score: 1 for a name that is equal."""

    concept: int
    score: float


@dataclass(frozen=True)
class Nearest:
    """The dictionary's names nearest to normalized names, best first.

    rows: positions of names of the dictionary, (names, k). cosines: of their vectors, (names, k).
    """

    names: Sequence[str]
    rows: NDArray[np.int64]
    cosines: NDArray[np.float32]


@dataclass(frozen=True)
class Linker:
    """Ranks the concepts of a dictionary for names.

    vectors: a unit vector of each name of the dictionary, (names, dim).
    letters, threshold, ignored_prefixes: see `LinkerDescription`.
    """

    dictionary: Dictionary
    encoder: SentenceEncoder
    vectors: Vectors
    letters: float = 0.2
    threshold: float = 0.0
    ignored_prefixes: Sequence[str] = ()

    @classmethod
    def create(
        cls,
        dictionary: Dictionary,
        encoder: SentenceEncoder,
        *,
        ignored_prefixes: Sequence[str] = (),
        precision: str = "auto",
        batch_tokens: int | None = None,
    ) -> "Linker":
        """Encodes the names of the dictionary. Raises RequestError for a dictionary without a name."""
        if not len(dictionary.names):
            raise RequestError("dictionary: expected concepts with names, found none")
        vectors = encode_names(encoder, dictionary.names, precision, batch_tokens)
        return cls(dictionary, encoder, vectors, ignored_prefixes=ignored_prefixes)

    @cached_property
    def by_words(self) -> dict[str, list[int]]:
        """The positions of the names that have the same words, by these words in alphabetical order."""
        positions = defaultdict[str, list[int]](list)
        for position, name in enumerate(self.dictionary.names):
            positions[words_of(name)].append(position)
        return dict(positions)

    def nearest(self, names: Sequence[str], precision: str = "auto", batch_tokens: int | None = None) -> Nearest:
        """The dictionary's names that are compared with each of the normalized `names`, and their cosines."""
        queries = encode_names(self.encoder, names, precision, batch_tokens)
        return Nearest(names, *nearest_rows(queries, self.vectors, min(NEAREST, len(self.vectors))))

    def rank(self, nearest: Nearest, letters: float | None = None) -> list[list[Candidate]]:
        """The best concepts of each name, best first; of equal scores first one that has it as its preferred name.

        letters: in place of the linker's own.
        """
        letters = self.letters if letters is None else letters
        rows, cosines = nearest.rows.tolist(), nearest.cosines.tolist()
        return [self._ranked(*compared, letters) for compared in zip(nearest.names, rows, cosines, strict=True)]

    def _ranked(self, name: str, rows: list[int], cosines: list[float], letters: float) -> list[Candidate]:
        words, name_grams = words_of(name), grams(name)
        cosine = dict(zip(rows, cosines, strict=True))
        best: dict[int, tuple[float, bool]] = {}
        for row in dict.fromkeys([*self.by_words.get(words, ()), *cosine]):
            other = self.dictionary.names[row]
            if other == name:
                score = 1.0
            else:
                score = letters * likeness(name_grams, grams(other)) + (1 - letters) * max(0.0, cosine.get(row, 0.0))
                score = SAME_WORDS if words_of(other) == words else min(score, SAME_WORDS)
            concept, rank = int(self.dictionary.concepts[row]), (score, bool(self.dictionary.is_preferred[row]))
            best[concept] = max(best.get(concept, rank), rank)
        order = sorted(best, key=lambda concept: best[concept], reverse=True)
        return [Candidate(concept, best[concept][0]) for concept in order[:TOP_CONCEPTS]]

    def save(self, folder: Path) -> None:
        """Writes the files of a linker into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        concepts = pa.table({"identifiers": pa.array(map(list, self.dictionary.identifiers), pa.list_(pa.string()))})
        columns = {"name": self.dictionary.names, "concept": self.dictionary.concepts}
        names = pa.table({**columns, "is_preferred": self.dictionary.is_preferred})
        pq.write_table(concepts, folder / CONCEPTS)
        pq.write_table(names, folder / NAMES)
        write_npy(folder / VECTORS, [self.vectors], *self.vectors.shape)
        self.encoder.save(folder / ENCODER)
        description = LinkerDescription(
            names=len(self.dictionary.names),
            letters=self.letters,
            threshold=self.threshold,
            ignored_prefixes=list(self.ignored_prefixes),
        )
        write_json(folder / FILE, description.model_dump())

    @classmethod
    def load(cls, folder: str | Path) -> "Linker":
        """Opens a linker's folder; vectors stay on disk.

        Raises RequestError for a folder that is missing, damaged, or holds no linker.
        """
        folder = Path(folder)
        description = read_model_file(folder / FILE, LinkerDescription)
        if description is None:
            raise RequestError(f"{folder}: expected a linker's folder, found no {FILE}; domain.linker writes one")
        with explain_unreadable(folder / NAMES, "a linker's names"):
            names, concepts = pq.read_table(folder / NAMES), pq.read_table(folder / CONCEPTS)
        dictionary = Dictionary(
            [tuple(identifiers) for identifiers in concepts["identifiers"].to_pylist()],
            names["name"].to_pylist(),
            names["concept"].to_numpy(),
            names["is_preferred"].to_numpy(zero_copy_only=False),
        )
        vectors = open_vectors(folder / VECTORS)
        if not len(vectors) == len(dictionary.names) == description.names:
            raise RequestError(
                f"{folder}: expected {description.names:,} names and vectors, found {len(dictionary.names):,} and "
                f"{len(vectors):,}; its files are of different linkers. Make it again."
            )
        settings = description.model_dump(exclude={"names"})
        return cls(dictionary, SentenceEncoder.load(folder / ENCODER), vectors, **settings)


def encode_names(
    encoder: SentenceEncoder, names: Sequence[str], precision: str = "auto", batch_tokens: int | None = None
) -> Vectors:
    """The unit vectors of names, (names, dim)."""
    return unit(encoder.encode(list(names), precision=precision, batch_tokens=batch_tokens, show_progress_bar=False))


def nearest_rows(queries: Vectors, vectors: Vectors, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows and cosines of the `k` vectors nearest to each query, best first, (queries, k) both; all are of unit length.

    Memory holds a block of queries, of vectors and of cosines.
    """
    rows = np.empty((len(queries), k), np.int64)
    cosines = np.empty((len(queries), k), np.float32)
    for first in range(0, len(queries), QUERIES_AT_ONCE):
        block = torch.from_numpy(np.ascontiguousarray(queries[first : first + QUERIES_AT_ONCE]))
        best, positions = torch.empty(len(block), 0), torch.empty(len(block), 0, dtype=torch.int64)
        for start in range(0, len(vectors), NAMES_AT_ONCE):
            others = torch.from_numpy(np.array(vectors[start : start + NAMES_AT_ONCE]))
            similar, at = (block @ others.T).topk(min(k, len(others)))
            best, positions = torch.cat([best, similar], 1), torch.cat([positions, at + start], 1)
            best, order = best.topk(min(k, best.shape[1]))
            positions = positions.gather(1, order)
        rows[first : first + len(block)], cosines[first : first + len(block)] = positions.numpy(), best.numpy()
    return rows, cosines
