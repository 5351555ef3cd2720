"""`bertrelay search` as one call: an index built or opened, and the sentences of it nearest to each query."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from bertrelay.data.sentences import as_table
from bertrelay.data.tables import Table
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError, check_choice, check_count
from students.searching.index import build_index
from students.searching.opened import Hit, open_index
from students.searching.settings import IndexKind, index_beside


def search(
    model: SentenceEncoder | str | Path,
    corpus: Table | str | Path | None,
    queries: Sequence[str],
    k: int = 10,
    *,
    index: str | Path | None = None,
    kind: IndexKind = "auto",
    ef_search: int | None = None,
    rebuild: bool = False,
    prompt_name: str | None = None,
    query_prompt_name: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
) -> list[list[Hit]]:
    """For each of `queries` the `k` nearest sentences of `corpus`, best first.

    The first call builds an index and leaves it there; who asks often keeps what `build_index` or `open_index` gives.

    corpus: as for `build_index`; None opens `index` as it is.
    index: its folder, or where it comes to stand; beside the corpus when not given.
    kind: as for `build_index`; `exact` compares with every sentence even where there is a graph, and without a corpus
        `hnsw` expects one.
    ef_search: as for `SearchIndex.search`.
    rebuild: as for `build_index`, so there must be a corpus.
    prompt_name, query_prompt_name: which of the model's prompts stands before each sentence, and before each query.
    Raises RequestError as `build_index`, `open_index` and `SearchIndex.search` do.
    """
    check_choice("kind", kind, get_args(IndexKind))
    check_count("ef_search", ef_search)
    if corpus is None and rebuild:
        raise RequestError("rebuild: expected a corpus, from which the index is built anew; found none")
    table = None if corpus is None else as_table(corpus)
    folder = _folder(corpus, index)
    opened = (
        open_index(model, folder)
        if table is None
        else build_index(
            model,
            table,
            folder,
            kind=kind,
            prompt_name=prompt_name,
            query_prompt_name=query_prompt_name,
            precision=precision,
            batch_tokens=batch_tokens,
            rebuild=rebuild,
        )
    )
    opened.check_graph(kind, ef_search)
    opened.tell_precision(precision)
    return opened.search(
        queries,
        k,
        exact=kind == "exact",
        ef_search=ef_search,
        prompt_name=query_prompt_name,
        precision=precision,
        batch_tokens=batch_tokens,
    )


def _folder(corpus: Table | str | Path | None, index: str | Path | None) -> Path:
    if index is not None:
        return Path(index)
    path = corpus.path if isinstance(corpus, Table) else corpus
    if path is None:
        raise RequestError("search: expected the folder of an index, as there is no corpus file for it to be beside")
    return index_beside(path)
