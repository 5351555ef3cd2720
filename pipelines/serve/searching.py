"""An index as it is served: queries to hits, by the vectors of a served encoder."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bertrelay.data.vectors import Vectors
from pipelines.serve.embedding import ServedEncoder, in_thread
from pipelines.serve.requests import Refusal, Usage
from students.searching.index import Hit, SearchIndex
from students.searching.settings import SearchMode

Filter = Mapping[str, str | int | float | bool | list[str | int | float | bool]]
WIDER = 8
"""Factor by which more hits are taken where too few pass a filter."""
FAR = 1 << 30  # characters: searching always runs in another thread


class ServedIndex:
    """An index of a server. Its queries are encoded by `encoder`, whose vectors it has."""

    kind = "index"

    def __init__(self, name: str, index: SearchIndex, encoder: ServedEncoder) -> None:
        self.name, self.index, self.encoder = name, index, encoder

    @property
    def description(self) -> dict[str, Any]:
        """Facts about the index, for lists and the page."""
        manifest = self.index.manifest
        facts = {"sentences": manifest.sentences, "search": manifest.kind, "encoder": self.encoder.name}
        return {**facts, "columns": [str(column) for column in self.index.columns.column_names]}

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        usage: Usage,
        *,
        mode: SearchMode = "dense",
        filter_by: Filter | None = None,
    ) -> list[list[Hit]]:
        """The sentences nearest to each query, best first, that have a value of `filter_by` in each of its columns.

        Raises Refusal for a blank query, for a column that the index does not show, and for a mode whose words it
        does not have.
        """
        if any(not query.strip() for query in queries):
            raise Refusal("query: expected a text to look for, found an empty one", "empty", param="query")
        unknown = [name for name in filter_by or () if name not in self.index.columns.column_names]
        if unknown:
            shown = ", ".join(self.index.columns.column_names) or "none"
            raise Refusal(f"filter: expected columns of the index ({shown}), found another", param="filter")
        if mode != "dense" and not self.index.manifest.lexical:
            raise Refusal(f"mode: expected dense, as the index has no words, found {mode}", param="mode")
        prompt = self.encoder.prompt(self.index.query_prompt)
        vectors = await self.encoder.embed(queries, usage, prompt=prompt, param="query")
        return await in_thread(FAR, partial(self._hits, queries, vectors, top_k, mode, filter_by or {}))

    def _hits(
        self, queries: Sequence[str], vectors: Vectors, top_k: int, mode: SearchMode, filter_by: Filter
    ) -> list[list[Hit]]:
        """The hits of query vectors; with a filter, more candidates are taken until enough pass."""
        if not filter_by:
            return self._find(queries, vectors, top_k, mode)
        return [
            self._passing([query], vectors[row : row + 1], top_k, mode, filter_by) for row, query in enumerate(queries)
        ]

    def _find(self, queries: Sequence[str], vectors: Vectors, top_k: int, mode: SearchMode) -> list[list[Hit]]:
        if mode == "dense":
            return self.index.hits(vectors, top_k)
        return self.index.hits_with_words(queries, vectors, top_k, mode)

    def _passing(
        self, query: Sequence[str], vector: Vectors, top_k: int, mode: SearchMode, filter_by: Filter
    ) -> list[Hit]:
        candidates = top_k
        while True:
            candidates = min(candidates * WIDER, self.index.manifest.sentences)
            (hits,) = self._find(query, vector, candidates, mode)
            passing = [hit for hit in hits if _passes(hit, filter_by)]
            if len(passing) >= top_k or candidates == self.index.manifest.sentences:
                return passing[:top_k]


def _passes(hit: Hit, filter_by: Filter) -> bool:
    return all(
        hit.columns[name] in (values if isinstance(values, list) else [values]) for name, values in filter_by.items()
    )
