"""An index as it is served: queries to hits, by the vectors of a served encoder."""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

from bertrelay.data.vectors import Vectors
from bertrelay.errors import RequestError
from pipelines.serve.embedding import ServedEncoder, in_thread
from pipelines.serve.requests import Refusal, Usage
from students.searching.index import Hit, SearchIndex
from students.searching.settings import SearchMode
from students.searching.where import Condition, Filter

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
        return {**facts, "columns": list(self.index.show)}

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        usage: Usage,
        *,
        mode: SearchMode = "dense",
        where: Sequence[str | Filter] = (),
    ) -> list[list[Hit]]:
        """The sentences nearest to each query, best first, of those that fulfil each condition of `where`.

        Raises Refusal for a blank query, for a condition that cannot be read or is on a column that the index does not
        show, and for a mode whose words it does not have.
        """
        if any(not query.strip() for query in queries):
            raise Refusal("query: expected a text to look for, found an empty one", "empty", param="query")
        if mode != "dense" and not self.index.manifest.lexical:
            raise Refusal(f"mode: expected dense, as the index has no words, found {mode}", param="mode")
        condition = self._condition(where) if where else None
        encoder, prompt = self.encoder.route(self.index.query_prompt)
        vectors = await encoder.embed(queries, usage, prompt=prompt, param="query")
        return await in_thread(FAR, partial(self._hits, queries, vectors, top_k, mode, condition))

    def _condition(self, where: Sequence[str | Filter]) -> Condition:
        """The condition that fulfils all of `where`."""
        try:
            condition = reduce(Condition.both, map(Condition.of, where))
        except RequestError as error:
            raise Refusal(str(error), param="where") from None
        if condition.columns.difference(self.index.show):
            shown = ", ".join(self.index.show) or "none"
            raise Refusal(f"filter, where: expected columns of the index ({shown}), found another", param="filter")
        return condition

    def _hits(
        self, queries: Sequence[str], vectors: Vectors, top_k: int, mode: SearchMode, condition: Condition | None
    ) -> list[list[Hit]]:
        allowed = self.index.allowed(condition)
        if mode == "dense":
            return self.index.hits(vectors, top_k, allowed=allowed)
        return self.index.hits_with_words(queries, vectors, top_k, mode, allowed=allowed)
