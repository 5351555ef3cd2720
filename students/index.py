"""An index opened, and queries to the sentences of it nearest in meaning, in whatever language either is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import pyarrow as pa

from bertrelay.data.sentences import texts_of
from bertrelay.data.vectors import open_vectors
from bertrelay.encode_files import encoder_digest
from bertrelay.encoder import SentenceEncoder, as_encoder
from bertrelay.encoding import EncodingOptions, check_finite
from bertrelay.errors import RequestError, check_count
from bertrelay.evaluation.similarity import Vectors, unit
from bertrelay.progress import log
from students.corpus import mapped
from students.index_files import (
    BUILDING,
    GRAPH,
    SENTENCES,
    VECTORS,
    IndexManifest,
    check_files,
    check_model,
    damaged,
    read_manifest,
)
from students.neighbours import Rows, approximate_neighbours, exact_neighbours, open_hnsw
from students.search_settings import IndexKind


class Hit(NamedTuple):
    """A sentence found: its cosine with the query, its line in the corpus, and its text."""

    similarity: float
    line: int
    text: str


@dataclass(frozen=True)
class SearchIndex:
    """An index and the model it was built with; vectors, sentences and graph stay on disk.

    vectors: unit vectors, float32 (sentences, dim).
    sentences: columns text and line.
    graph: None for an exact index.
    """

    folder: Path
    facts: IndexManifest
    encoder: SentenceEncoder
    vectors: Vectors
    sentences: pa.Table
    graph: Any | None

    def search(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        exact: bool = False,
        ef_search: int | None = None,
        place: Callable[[int], str] = lambda row: f"query {row + 1:,}",
        **options: Unpack[EncodingOptions],
    ) -> list[list[Hit]]:
        """For each of `queries` its `k` nearest sentences, best first; fewer where the index has fewer.

        exact: compare with every sentence even where there is a graph.
        ef_search: candidates kept in the graph, more of which find more and take longer; the index's own if not given.
        place: what an error calls the query of a row, counted from 0.
        options: how queries are encoded, see `EncodingOptions`.
        Raises RequestError for a query that is blank, and for `ef_search` where no graph is walked; WorkError for one
        whose vector is not finite.
        """
        queries = texts_of(queries, "search")
        check_count("k", k)
        blank = next((row for row, query in enumerate(queries) if not query.strip()), None)
        if blank is not None:
            raise RequestError(f"search: expected a text to look for, found an empty one ({place(blank)})")
        self.check_graph("exact" if exact else "auto", ef_search)
        vectors = self.encoder.encode(queries, **options)  # (queries, dim)
        check_finite(self.encoder, vectors, place)
        similarities, rows = self.neighbours(unit(vectors), k, exact, ef_search)
        return [self._hits(*found) for found in zip(similarities, rows, strict=True)]

    def check_graph(self, kind: IndexKind, ef_search: int | None) -> None:
        """Raises RequestError where `kind` or `ef_search` asks for a graph and none is walked."""
        check_count("ef_search", ef_search)
        if kind == "hnsw" and self.graph is None:
            raise RequestError(
                f"kind: expected a graph (hnsw) in {self.folder}, found none; give the corpus too, and one is built"
            )
        if ef_search is not None and (kind == "exact" or self.graph is None):
            raise RequestError(
                f"ef_search: expected search through a graph (hnsw), found exact search in {self.folder}, which keeps "
                "no candidates; leave it out, or ask for kind hnsw"
            )

    def log_precision(self, precision: str) -> None:
        """Logs where `precision` is neither `auto` nor what the sentences were encoded in."""
        if precision not in ("auto", self.facts.precision):
            log(
                f"{self.folder}: its sentences were encoded in {self.facts.precision} and stay so; {precision} is for "
                "the queries alone. Build it anew with --rebuild to have both alike"
            )

    def neighbours(
        self, queries: Vectors, k: int, exact: bool = False, ef_search: int | None = None
    ) -> tuple[Vectors, Rows]:
        """Similarities and rows, (n, k) both, of unit vectors `queries` (n, dim); see `neighbours`."""
        if exact or self.graph is None:
            return exact_neighbours(queries, self.vectors, k)
        return approximate_neighbours(self.graph, queries, k, ef_search or self.facts.hnsw["ef_search"])

    def _hits(self, similarities: Vectors, rows: Rows) -> list[Hit]:
        found = [(value, row) for value, row in zip(similarities.tolist(), rows.tolist(), strict=True) if row >= 0]
        return [Hit(min(value, 1.0), **self.sentences.slice(row, 1).to_pylist()[0]) for value, row in found]


def open_index(
    model: SentenceEncoder | str | Path, folder: str | Path, *, verify: bool = False, cache: Path | None = None
) -> SearchIndex:
    """The index in `folder`, for queries of the model it was built with.

    model: an encoder, or a name that `SentenceEncoder.load` knows.
    verify: read every file again instead of trusting those that were not touched.
    Raises RequestError when there is none, or when it is not finished, damaged, or of another model.
    """
    folder = Path(folder)
    facts = _manifest(folder)
    encoder = as_encoder(model, cache)
    check_model(folder, facts.origin, encoder_digest(encoder), encoder.dim)
    return load_index(encoder, folder, verify)


def load_index(encoder: SentenceEncoder, folder: Path, verify: bool = False) -> SearchIndex:
    """As `open_index`, where `encoder` is known to be the model of the index."""
    facts = _manifest(folder)
    check_files(folder, facts, verify)
    vectors = open_vectors(folder / VECTORS)
    expected = (facts.sentences, facts.origin.dim)
    if vectors.shape != expected:
        raise damaged(folder, f"{VECTORS} has vectors of shape {vectors.shape} and not {expected}")
    graph = open_hnsw(folder / GRAPH) if facts.kind == "hnsw" else None
    return SearchIndex(folder, facts, encoder, vectors, mapped(folder / SENTENCES), graph)


def _manifest(folder: Path) -> IndexManifest:
    facts = read_manifest(folder)
    if facts is None and (folder / BUILDING).is_file():
        raise RequestError(
            f"{folder}: this index is not finished. Resume it: bertrelay search MODEL CORPUS --index {folder}"
        )
    if facts is None:
        raise RequestError(f"{folder}: expected an index, found none. Build one: bertrelay search MODEL CORPUS")
    return facts
