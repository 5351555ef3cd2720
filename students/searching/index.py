"""Queries to the sentences of an index nearest in meaning, in whatever language either is; the stage `students.index`.

Killed anywhere, the same call resumes: from the first block of vectors that is missing, from the last checkpoint of
the graph.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Unpack, get_args

import pyarrow as pa

from bertrelay.cache import Cache
from bertrelay.checks import check_choice, check_count, list_texts
from bertrelay.compute.local import LocalExecutor
from bertrelay.data.arrow import open_arrow
from bertrelay.data.records import Rejects
from bertrelay.data.sentences import as_table
from bertrelay.data.tables import Column, Table
from bertrelay.data.vectors import Vectors, open_vectors
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from bertrelay.inference.encode import EncodingOptions, check_finite
from bertrelay.inputs import unchanged_inputs
from bertrelay.model.encoder import SentenceEncoder, encoder_digest, open_encoder
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, broadcast_from_main
from bertrelay.progress import log
from bertrelay.settings import settings_of
from bertrelay.stage import Metrics, StageContext
from students.searching.equal_vectors import EqualRows, Rows, distinct
from students.searching.faiss import exact_neighbours, load_faiss, nearest, open_faiss
from students.searching.index_folder import (
    COLUMNS,
    FAISS,
    SENTENCES,
    VECTORS,
    IndexManifest,
    IndexOptions,
    build,
    check_files,
    check_is_index,
    check_model,
    damaged,
    is_finished,
    open_equal,
    origin_of,
    read_manifest,
    require_manifest,
)
from students.searching.sentences import check_columns
from students.searching.settings import Hnsw, IndexKind, IndexSettings, index_beside


class Hit(NamedTuple):
    """A sentence found: its cosine with the query, its line in the corpus, and its text.

    record: its number among the records of the corpus, from 1, without a header; in a table the row of the columns
        beside it, where a line is not.
    columns: the values of the columns that the index was asked to show, by name.
    """

    similarity: float
    line: int
    text: str
    record: int
    columns: dict[str, Any]


@dataclass(frozen=True)
class SearchIndex:
    """An index and the model it was built with; vectors, sentences and graph stay on disk, and
    vectors in fewer bits are in memory.

    vectors: unit vectors, float32 (sentences, dim).
    sentences: columns text, line and record.
    columns: of the corpus, as JSON: what hits show beside the text.
    faiss: the graph, or the vectors in fewer bits; None where it is searched exactly.
    equal: the rows of equal vectors, which `faiss` has once; None where all are distinct.
    """

    folder: Path
    manifest: IndexManifest
    encoder: SentenceEncoder
    vectors: Vectors
    sentences: pa.Table
    columns: pa.Table
    faiss: Any | None
    equal: EqualRows | None = None

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

        exact: compare with every sentence even where there is a graph, or vectors in fewer bits.
        ef_search: candidates kept in the graph, or compared again in float32, more of which find more and take longer;
            the index's own if not given.
        place: what an error calls the query of a row, counted from 0.
        options: how queries are encoded, see `EncodingOptions`. Without a prompt they get the model's for queries if
            the index has its prompt for documents, else the default one.
        Raises RequestError for a query that is blank, and for `ef_search` where nothing is kept; WorkError for one
        whose vector is not finite.
        """
        queries = list_texts(queries, "search")
        check_count("k", k)
        blank = next((row for row, query in enumerate(queries) if not query.strip()), None)
        if blank is not None:
            raise RequestError(f"search: expected a text to look for, found an empty one ({place(blank)})")
        self.check_candidates(ef_search, exact)
        query_prompt, prompt = self.encoder.retrieval_prompts
        is_asked = options.get("prompt") is not None or options.get("prompt_name") is not None
        if not is_asked and prompt == self.manifest.origin.reading.get("prompt"):
            options["prompt_name"] = query_prompt
        vectors = self.encoder.encode(queries, **options)  # (queries, dim)
        check_finite(self.encoder, vectors, place)
        neighbours = self.neighbours(unit(vectors), int(k), exact, ef_search and int(ef_search))
        return [
            [
                self._hit(similarity, row)
                for similarity, row in zip(similarities.tolist(), rows.tolist(), strict=True)
                if row >= 0
            ]
            for similarities, rows in zip(*neighbours, strict=True)
        ]

    def _hit(self, similarity: float, row: int) -> Hit:
        line, text, record = (self.sentences[name][row].as_py() for name in ("line", "text", "record"))
        columns = {name: json.loads(self.columns[name][row].as_py()) for name in self.columns.column_names}
        return Hit(min(similarity, 1.0), line, text, record, columns)

    def check_candidates(self, ef_search: int | None, exact: bool = False) -> None:
        """Raises RequestError where `ef_search` asks for candidates that the index does not keep."""
        check_count("ef_search", ef_search)
        if ef_search is not None and (exact or self.faiss is None):
            raise RequestError(
                f"ef_search: expected search of kind hnsw, int8 or binary, found exact search in {self.folder}, which "
                "keeps no candidates; leave it out, or ask for another kind"
            )

    def neighbours(
        self, queries: Vectors, k: int, exact: bool = False, ef_search: int | None = None
    ) -> tuple[Vectors, Rows]:
        """Similarities and rows, (n, k) both, of unit vectors `queries` (n, dim)."""
        if exact or self.faiss is None:
            return exact_neighbours(queries, self.vectors, k)
        candidates = ef_search or self.manifest.hnsw.get("ef_search", Hnsw().ef_search)
        vectors = distinct(self.vectors, self.equal)
        found = nearest(self.manifest.kind, self.faiss, vectors, candidates, queries, k)
        return found if self.equal is None else self.equal.spread(*found, k)


def open_index(
    model: SentenceEncoder | str | Path,
    folder: str | Path,
    *,
    kind: IndexKind = "auto",
    show: Sequence[Column] = (),
    verify: bool = False,
    cache: Cache | None = None,
) -> SearchIndex:
    """The index in `folder`, for queries of the model it was built with, or of one that has
    that model in its `spaces`: a student, a student of a student, or either trimmed.

    model: an encoder, or a name that `SentenceEncoder.load` knows.
    kind: what is searched by; `exact` is always there, `auto` is what was built last.
    show: columns of its corpus that come along in hits.
    verify: read every file again instead of trusting those that were not touched.
    Raises RequestError when there is none, or when it is not finished, damaged, of another model, or without `kind` or
        `show`.
    """
    folder = Path(folder)
    check_choice("kind", kind, get_args(IndexKind))
    manifest = require_manifest(folder)
    encoder = open_encoder(model, cache)
    if manifest.origin.model_digest in encoder.spaces:
        log(f"{folder}: made by another model, in whose space this one's vectors are")
    else:
        check_model(folder, manifest.origin, encoder_digest(encoder), encoder.dim)
    return load_index(encoder, folder, kind, show, verify)


def load_index(
    encoder: SentenceEncoder, folder: Path, kind: IndexKind = "auto", show: Sequence[Column] = (), verify: bool = False
) -> SearchIndex:
    """As `open_index`, where `encoder` is known to be the model of the index."""
    manifest = require_manifest(folder).as_kind(folder, kind)
    if missing := [str(column) for column in show if column not in manifest.columns]:
        kept = ", ".join(map(str, manifest.columns)) or "none"
        raise RequestError(
            f"show: expected {', '.join(missing)} in {folder}, found {kept}; give the corpus too, and they are kept"
        )
    check_files(folder, manifest, verify)
    vectors = open_vectors(folder / VECTORS)
    expected = (manifest.sentences, manifest.origin.dim)
    if vectors.shape != expected:
        raise damaged(folder, f"{VECTORS} has vectors of shape {vectors.shape} and not {expected}")
    faiss = None if manifest.kind == "exact" else open_faiss(folder / FAISS[manifest.kind], manifest.kind)
    columns = pa.table({}) if not show else open_arrow(folder / COLUMNS).select(list(map(str, show)))
    equal = open_equal(folder, manifest)
    return SearchIndex(folder, manifest, encoder, vectors, open_arrow(folder / SENTENCES), columns, faiss, equal)


def run(settings: IndexSettings, context: StageContext) -> Metrics:
    """Builds the index of the stage in `index/`, with all processes."""
    manifest = build_index(
        settings.model,
        settings.corpus,
        context.output / "index",
        kind=settings.kind,
        show=settings.show,
        hnsw=settings.hnsw,
        prompt_name=settings.prompt,
        precision=context.precision(settings.precision),
        batch_tokens=settings.batch_tokens,
        cache=context.cache,
        process_group=context.process_group,
        rejects=Rejects(context.output / "rejects.jsonl", settings.max_rejects),
    ).manifest
    counts = {"sentences": manifest.sentences, "blank": manifest.blank, "dim": manifest.origin.dim}
    return {**counts, **manifest.recall}


def build_index(
    model: SentenceEncoder | str | Path,
    corpus: Table | str | Path,
    folder: str | Path,
    *,
    kind: IndexKind = "auto",
    show: Sequence[Column] = (),
    hnsw: Hnsw | None = None,
    prompt_name: str | None = None,
    query_prompt_name: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
    rebuild: bool = False,
    verify: bool = False,
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    rejects: Rejects | None = None,
) -> SearchIndex:
    """Opens the index of the sentences of `corpus` in `folder` where it is complete, else builds or resumes it.

    Blank sentences are left out and counted; the others keep the number of their line. A complete index is opened
    without a lock and without writing, and its corpus read only where it was touched.

    model: an encoder, or a name that `SentenceEncoder.load` knows.
    corpus: plain lines, a table with a column `text`, or a `Table` that names its column.
    Others as in `students.searching.index_folder.IndexOptions`; when absent, `prompt_name` is the model's prompt for
    documents if it has one for queries too, and no default; "" is none.
    Raises RequestError when `folder` has something else in it, an index of another model or corpus, or a damaged one.
    """
    return _built_index(model, corpus, Path(folder), settings_of(IndexOptions, locals()))


@unchanged_inputs()
def _built_index(
    model: SentenceEncoder | str | Path, corpus: Table | str | Path, folder: Path, options: IndexOptions
) -> SearchIndex:
    load_faiss()  # where it is missing, say so before hours of encoding
    table = as_table(corpus)
    check_is_index(folder)
    manifest = None if options.rebuild else read_manifest(folder)
    encoder = open_encoder(model, options.cache)
    precision = LocalExecutor(options.process_group).precision(options.precision, encoder.device)
    prompt_name = encoder.retrieval_prompts[1] if options.prompt_name is None else options.prompt_name or None
    options = options.model_copy(update={"precision": precision, "prompt_name": prompt_name})
    for prompt in (options.prompt_name, options.query_prompt_name):
        encoder.prompts.text(prompt)  # where there is none of that name, say so
    if options.show:
        check_columns(table, options.show, options.cache)
    known = manifest.origin if manifest and not options.verify else None
    origin = origin_of("" if encoder is model else str(model), encoder, table, options.prompt_name, known)
    is_complete = manifest is not None and is_finished(folder, manifest, origin, options)
    if not broadcast_from_main(is_complete, options.process_group):
        build(encoder, table, origin, folder, options)
    return load_index(encoder, folder, options.kind, options.show, options.verify)


def find_index(
    model: SentenceEncoder | str | Path,
    corpus: Table | None,
    folder: Path,
    options: IndexOptions,
    ef_search: int | None = None,
) -> SearchIndex:
    """Opens the index in `folder`; where there is a corpus, builds or resumes it first.

    Raises RequestError where the index lacks the `kind` or the graph that `ef_search` is for.
    """
    if corpus is None:
        index = open_index(model, folder, kind=options.kind, show=options.show, verify=options.verify)
    else:
        index = _built_index(model, corpus, folder, options)
    index.check_candidates(ef_search)
    if options.precision not in ("auto", index.manifest.precision):
        log(
            f"{folder}: its sentences were encoded in {index.manifest.precision} and stay so; {options.precision} is "
            "for the queries only. Build it anew with --rebuild to have both alike"
        )
    return index


def search(
    model: SentenceEncoder | str | Path,
    corpus: Table | str | Path | None,
    queries: Sequence[str],
    k: int = 10,
    *,
    index: str | Path | None = None,
    ef_search: int | None = None,
    kind: IndexKind = "auto",
    show: Sequence[Column] = (),
    hnsw: Hnsw | None = None,
    prompt_name: str | None = None,
    query_prompt_name: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
    rebuild: bool = False,
    verify: bool = False,
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    rejects: Rejects | None = None,
) -> list[list[Hit]]:
    """Finds the `k` sentences of `corpus` nearest to each of `queries`, best first.

    The first call builds an index and leaves it there. For many calls keep what `build_index` or `open_index` returns,
    which describe the errors too.

    corpus: None opens `index` as it is.
    index: its folder; next to the corpus by default.
    Others as in `students.searching.index_folder.IndexOptions`. With `kind` exact all sentences are compared whatever
        the index has; without a corpus other kinds expect an index of that kind.
    """
    options = settings_of(IndexOptions, locals())
    check_count("ef_search", ef_search)
    if corpus is None and rebuild:
        raise RequestError("rebuild: expected a corpus, from which the index is built anew; found none")
    table = None if corpus is None else as_table(corpus)
    corpus_file = table and table.path
    if index is None and corpus_file is None:
        raise RequestError("search: expected the folder of an index, as there is no corpus file for it to be beside")
    opened = find_index(model, table, Path(index or index_beside(corpus_file or "")), options, ef_search)
    return opened.search(
        queries,
        k,
        ef_search=ef_search,
        prompt_name=options.query_prompt_name,
        precision=options.precision,
        batch_tokens=options.batch_tokens,
    )
