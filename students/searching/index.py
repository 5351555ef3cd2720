"""Search of the sentences nearest in meaning to queries, in whatever language either is; the stage `students.index`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pyarrow as pa

from bertrelay.cache import Cache
from bertrelay.checks import check_choice, check_count, list_texts
from bertrelay.compute.local import LocalExecutor
from bertrelay.data.arrow import Mask
from bertrelay.data.records import Rejects
from bertrelay.data.sentences import as_table
from bertrelay.data.tables import Column, Table
from bertrelay.data.vectors import Vectors
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from bertrelay.inference.encode import check_finite
from bertrelay.inputs import unchanged_inputs
from bertrelay.model.encoder import SentenceEncoder, encoder_digest, open_encoder
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, on_main
from bertrelay.progress import log
from bertrelay.settings import settings_of
from bertrelay.stage import Metrics, StageContext
from students.searching.build import IndexBuilder, finish_replacing
from students.searching.equal_vectors import AnyVectors, Rows, first_rows, stack
from students.searching.faiss import Approximate, exact_neighbours, load_faiss, merge
from students.searching.index_folder import (
    IndexManifest,
    check_files,
    check_is_index,
    check_model,
    check_origin,
    live_rows,
    open_columns,
    open_segment_vectors,
    open_sentences,
    open_structures,
    read_manifest,
    read_origin,
    require_manifest,
)
from students.searching.lexical import CANDIDATES, WordCounts, WordIndex, fuse, matching_words
from students.searching.sentences import check_columns
from students.searching.settings import (
    EXACT_UP_TO,
    Hnsw,
    IndexKind,
    IndexOptions,
    IndexSettings,
    SearchMode,
    index_beside,
)
from students.searching.where import Columns, Condition, Filter


class Hit(NamedTuple):
    """A sentence: its cosine with the query, its line in the corpus, and its text.

    record: its number among the records of the corpus, from 1, without a header; in a table the row of the columns
        beside it, where a line is not.
    columns: the values of the columns that the index was to show, by name.
    score: in search by words that of BM25, in both of the fusion, which decide the order; else None.
    words: those of the text that the query has too, in search by words or both; else None.
    id: of the text, where texts have ids; else None.
    source: the file of the text, where the index has texts of several; else None.
    """

    similarity: float
    line: int
    text: str
    record: int
    columns: dict[str, Any]
    score: float | None = None
    words: list[str] | None = None
    id: str | None = None
    source: str | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The fields that have a value, for JSON."""
        return {name: value for name, value in self._asdict().items() if value is not None}


@dataclass(frozen=True)
class SearchIndex:
    """An open index and the model of its queries. Vectors, sentences and graphs stay on disk, codes are in memory.

    It stays as it was opened, whatever is added to the index or deleted from it meanwhile.

    vectors: unit vectors, float32 (rows, dim), those of all segments; a deleted text keeps its row.
    sentences: columns text, line, record, source and id of the rows.
    columns: those of the corpus, as JSON. show: those that hits have beside the text.
    segments: the graph or codes of each segment; empty where search is exact.
    live: the rows that are not deleted, (rows,); None where none is.
    word_files: of all segments, open, as they may be removed from the folder.
    """

    folder: Path
    manifest: IndexManifest
    encoder: SentenceEncoder
    vectors: AnyVectors
    sentences: pa.Table
    columns: pa.Table
    show: Sequence[str]
    segments: Sequence[Approximate]
    live: Mask | None = None
    word_files: Sequence[pa.NativeFile] = ()

    def search(
        self,
        queries: Sequence[str],
        top_k: int = 10,
        *,
        mode: SearchMode = "dense",
        lexical_weight: float = 0.5,
        where: str | Filter | Condition | None = None,
        exact: bool = False,
        ef_search: int | None = None,
        name_query: Callable[[int], str] = lambda row: f"query {row + 1:,}",
        prompt_name: str | None = None,
        prompt: str | None = None,
        precision: str | None = None,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
    ) -> list[list[Hit]]:
        """Finds the `top_k` sentences nearest to each of `queries`, best first; fewer where the index has fewer.

        mode: `lexical` ranks by BM25 the sentences that share a word with the query, `hybrid` fuses this ranking with
            that by vectors. Both need an index of words.
        lexical_weight: of the ranking by words in `hybrid`, from 0 to 1.
        where: a condition that texts fulfil, such as `language = "de"`, see `students.searching.where`; or columns
            with the values that they may have. Of all columns that the index has, shown or not.
        exact: compare with every sentence even where there is a graph, or codes of fewer bits.
        ef_search: candidates of a graph, or of codes compared in float32; more find more and take longer. The
            index's own when absent.
        name_query: names the query of a row, counted from 0, in errors.
        prompt_name, prompt, precision, batch_tokens, batch_size: of the queries, see `EncodingOptions`. Without a
            prompt queries have the model's for queries if the index has its prompt for documents, else the default.
        Raises RequestError for a query that is blank, and for `ef_search` where search is exact; WorkError for one
        whose vector is not finite.
        """
        queries = list_texts(queries, "search")
        check_count("top_k", top_k)
        check_choice("mode", mode, get_args(SearchMode))
        blank = next((row for row, query in enumerate(queries) if not query.strip()), None)
        if blank is not None:
            raise RequestError(f"search: expected a text to look for, found an empty one ({name_query(blank)})")
        self.check_candidates(ef_search, exact)
        allowed = self.allowed(where)
        if prompt is None and prompt_name is None:
            prompt_name = self.query_prompt
        encoder = self.encoder.query_encoder or self.encoder
        vectors = encoder.encode(
            queries,
            prompt_name=prompt_name,
            prompt=prompt,
            precision=precision,
            batch_tokens=batch_tokens,
            batch_size=batch_size,
        )  # (queries, dim)
        check_finite(encoder, vectors, name_query)
        candidates = ef_search and int(ef_search)
        if mode == "dense":
            return self.hits(vectors, int(top_k), exact, candidates, allowed)
        return self.hits_with_words(queries, vectors, int(top_k), mode, lexical_weight, exact, candidates, allowed)

    def allowed(self, where: str | Filter | Condition | None) -> Mask | None:
        """The rows that are not deleted and fulfil a condition, (rows,); None where all do.

        Raises RequestError for a condition that cannot be read, or of a column that the index does not have.
        """
        if where is None:
            return self.live
        rows = Condition.of(where).select(self._compared)
        return rows if self.live is None else rows & self.live

    @cached_property
    def _compared(self) -> Columns:
        return Columns(self.sentences, self.columns)

    @property
    def query_prompt(self) -> str | None:
        """The name of the model's prompt for queries if the index has its prompt for documents, else None."""
        query_prompt, document_prompt = self.encoder.retrieval_prompts
        is_theirs = document_prompt == self.manifest.origin.reading.get("prompt")
        return query_prompt if is_theirs or self.encoder.query_encoder is not None else None

    def hits(
        self,
        vectors: Vectors,
        top_k: int,
        exact: bool = False,
        ef_search: int | None = None,
        allowed: Mask | None = None,
    ) -> list[list[Hit]]:
        """Finds the `top_k` sentences nearest to each query of `vectors` (n, dim), best first; see `search`.

        allowed: the rows that may be found, as the method of that name gives them; all live ones without it.
        """
        neighbours = self.neighbours(unit(vectors), top_k, exact, ef_search, allowed)
        return [
            [
                self._hit(similarity, row)
                for similarity, row in zip(similarities.tolist(), rows.tolist(), strict=True)
                if row >= 0
            ]
            for similarities, rows in zip(*neighbours, strict=True)
        ]

    def hits_with_words(
        self,
        queries: Sequence[str],
        vectors: Vectors,
        top_k: int,
        mode: SearchMode,
        lexical_weight: float = 0.5,
        exact: bool = False,
        ef_search: int | None = None,
        allowed: Mask | None = None,
    ) -> list[list[Hit]]:
        """Finds the sentences of the best scores for queries and their `vectors` (n, dim), by words or by both."""
        vectors, depth = unit(vectors), max(top_k, CANDIDATES)
        scores, rows = self.words.neighbours(queries, depth if mode == "hybrid" else top_k, allowed)
        if mode == "hybrid":
            nearest = self.neighbours(vectors, depth, exact, ef_search, allowed)[1]
            scores, rows = fuse(nearest, rows, top_k, lexical_weight)
        all_hits = []
        for query, vector, best in zip(queries, vectors, zip(scores, rows, strict=True), strict=True):
            hits = []
            for score, row in zip(*(column.tolist() for column in best), strict=True):
                if row >= 0:
                    hit = self._hit(float((self.vectors[row : row + 1] @ vector)[0]), row)
                    hits.append(hit._replace(score=score, words=matching_words(query, hit.text)))
            all_hits.append(hits)
        return all_hits

    @cached_property
    def words(self) -> WordIndex:
        """The words of the sentences. Raises RequestError where the index has none."""
        if not self.manifest.lexical:
            raise RequestError(
                f"mode: expected dense, found an index without words in {self.folder}; give the corpus too, with "
                "--mode hybrid (in Python and recipes lexical = true), and they are indexed"
            )
        return WordIndex(list(map(WordCounts.open, self.word_files)), self.live)

    def _hit(self, similarity: float, row: int) -> Hit:
        names = ("line", "text", "record", "id", "source")
        line, text, record, identifier, source = (self.sentences[name][row].as_py() for name in names)
        columns = {name: json.loads(self.columns[name][row].as_py()) for name in self.show}
        sources = self.manifest.sources
        file = sources[source] if len(sources) > 1 else None
        return Hit(min(similarity, 1.0), line, text, record, columns, id=identifier, source=file)

    def check_candidates(self, ef_search: int | None, exact: bool = False) -> None:
        """Raises RequestError for `ef_search` where search is exact, which has no candidates."""
        check_count("ef_search", ef_search)
        if ef_search is not None and (exact or not self.segments):
            raise RequestError(
                f"ef_search: expected search of kind hnsw, int8 or binary, found exact search in {self.folder}, which "
                "keeps no candidates; leave it out, or ask for another kind"
            )

    def neighbours(
        self,
        queries: Vectors,
        top_k: int,
        exact: bool = False,
        ef_search: int | None = None,
        allowed: Mask | None = None,
    ) -> tuple[Vectors, Rows]:
        """Finds similarities and rows, (n, top_k) both, of unit vectors `queries` (n, dim); row -1 where none is found.

        All segments are searched, and their neighbours merged. Where no more than EXACT_UP_TO rows are allowed, these
        are compared exactly: a graph leads past most of the few that a condition leaves.
        """
        allowed = self.live if allowed is None else allowed
        if exact or not self.segments or (allowed is not None and allowed.sum() <= EXACT_UP_TO):
            return exact_neighbours(queries, self.vectors, top_k, allowed)
        candidates = ef_search or self.manifest.hnsw.get("ef_search", Hnsw().ef_search)
        firsts = first_rows([segment.vectors for segment in self.segments])
        nearest = (
            segment.neighbours(
                queries, top_k, candidates, None if allowed is None else allowed[first : first + len(segment.vectors)]
            )
            for first, segment in zip(firsts, self.segments, strict=True)
        )
        return merge(zip(firsts, nearest, strict=True), top_k)


def open_index(
    model: SentenceEncoder | str | Path,
    folder: str | Path,
    *,
    kind: IndexKind = "auto",
    show: Sequence[Column] = (),
    verify: bool = False,
    cache: Cache | None = None,
) -> SearchIndex:
    """Opens the index in `folder`, for queries of its model or of one that has its model in `spaces`.

    These are a student, a student of a student, and either trimmed.

    model: an encoder, or a name that `SentenceEncoder.load` knows.
    kind: the kind of search; `exact` always exists, `auto` is the kind that was built last.
    show: columns of its corpus that hits show.
    verify: read every file anew instead of trusting those that were not touched.
    Raises RequestError when there is none, or when it is not finished, damaged, of another model, or without `kind` or
        `show`.
    """
    folder = Path(folder)
    check_choice("kind", kind, get_args(IndexKind))
    manifest = require_manifest(folder)
    encoder = open_encoder(model, cache)
    if manifest.origin.model_digest in encoder.spaces:
        log(f"{folder}: made by another model, whose indexes this one may search")
    else:
        check_model(folder, manifest.origin, encoder_digest(encoder), encoder.dim)
    return _load_index(encoder, folder, manifest, kind, show, verify)


def _load_index(
    encoder: SentenceEncoder,
    folder: Path,
    manifest: IndexManifest,
    kind: IndexKind,
    show: Sequence[Column],
    verify: bool,
) -> SearchIndex:
    """Opens the files of `manifest`, or of one that has replaced it meanwhile; raises as `open_index` does."""
    while True:
        try:
            return _open_files(encoder, folder, manifest, kind, show, verify)
        except (RequestError, OSError):
            latest = require_manifest(folder)
            if latest == manifest or latest.origin != manifest.origin:
                raise
            manifest = latest  # its files were removed by an addition or a compaction that has just ended


def _open_files(
    encoder: SentenceEncoder,
    folder: Path,
    manifest: IndexManifest,
    kind: IndexKind,
    show: Sequence[Column],
    verify: bool,
) -> SearchIndex:
    manifest = manifest.as_kind(folder, kind)
    if missing := [str(column) for column in show if column not in manifest.columns]:
        existing = ", ".join(map(str, manifest.columns)) or "none"
        raise RequestError(
            f"show: expected {', '.join(missing)} in {folder}, found {existing}; give the corpus too, and they are kept"
        )
    check_files(folder, manifest, verify)
    vectors = open_segment_vectors(folder, manifest)
    segments = list[Approximate]()
    if manifest.kind != "exact":
        hnsw = Hnsw(**manifest.hnsw)
        segments = open_structures(folder, manifest.segments, vectors, manifest.kind, hnsw)
    return SearchIndex(
        folder,
        manifest,
        encoder,
        stack(vectors),
        open_sentences(folder, manifest),
        open_columns(folder, manifest),
        list(map(str, show)),
        segments,
        live_rows(folder, manifest),
        [pa.memory_map(str(folder / name)) for name in manifest.words_files],
    )


def run(settings: IndexSettings, context: StageContext) -> Metrics:
    """Builds the index of the stage in `index/`, with all processes."""
    manifest = build_index(
        settings.model,
        settings.corpus,
        context.output / "index",
        kind=settings.kind,
        show=settings.show,
        id_column=settings.id_column,
        hnsw=settings.hnsw,
        lexical=settings.lexical,
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
    id_column: Column | None = None,
    hnsw: Hnsw | None = None,
    lexical: bool = False,
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
    without a lock and without writing, and its corpus read only where it was touched. It is built beside `folder`; a
    build that was killed resumes at its segment, and among the vectors of a segment at their first missing block.

    model: an encoder, or a name that `SentenceEncoder.load` knows.
    corpus: plain lines, a table with a column `text`, or a `Table` that names its column.
    Others as in `students.searching.settings.IndexOptions`; when absent, `prompt_name` is the model's prompt for
    documents if it has one for queries too, and no default; "" is none.
    Raises RequestError when `folder` has something else in it, an index of another model or corpus, or a damaged one.
    """
    options = settings_of(IndexOptions, locals())
    return _build_index(model, corpus, Path(folder), options)


@unchanged_inputs()
def _build_index(
    model: SentenceEncoder | str | Path, corpus: Table | str | Path, folder: Path, options: IndexOptions
) -> SearchIndex:
    load_faiss()  # where it is missing, say so before hours of encoding
    table, process_group = as_table(corpus), options.process_group
    check_is_index(folder)
    on_main(lambda: finish_replacing(folder), process_group)
    manifest = None if options.rebuild else on_main(lambda: read_manifest(folder), process_group)
    encoder = open_encoder(model, options.cache)
    precision = LocalExecutor(process_group).precision(options.precision, encoder.device)
    prompt_name = prompt_or_default(options.prompt_name, encoder.retrieval_prompts[1])
    for name in (prompt_name, options.query_prompt_name):
        encoder.prompts.text(name)  # where there is none of that name, say so
    if options.show:
        check_columns(table, options.show, options.cache)
    earlier = manifest.origin if manifest and not options.verify else None
    id_column = options.id_column if options.id_column is not None or manifest is None else manifest.id_column
    model_name = "" if encoder is model else str(model)
    origin = read_origin(model_name, encoder, table, prompt_name, earlier, id_column)
    if manifest is not None:
        check_origin(folder, manifest, origin)
    if manifest is None or manifest.lacks(options):
        manifest = IndexBuilder(encoder, table, origin, prompt_name, precision, options).build(folder)
    return _load_index(encoder, folder, manifest, options.kind, options.show, options.verify)


def prompt_or_default(name: str | None, default: str | None) -> str | None:
    """Returns the name of the prompt to use: the default where `name` is absent, none where it is empty."""
    return default if name is None else name or None


def find_index(
    model: SentenceEncoder | str | Path,
    corpus: Table | None,
    folder: Path,
    options: IndexOptions,
    ef_search: int | None = None,
) -> SearchIndex:
    """Opens the index in `folder`; with a corpus, builds or resumes it first.

    Raises RequestError where the index lacks the `kind` of the options, or search of it has no candidates.
    """
    if corpus is None:
        index = open_index(
            model, folder, kind=options.kind, show=options.show, verify=options.verify, cache=options.cache
        )
    else:
        index = _build_index(model, corpus, folder, options)
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
    top_k: int = 10,
    *,
    mode: SearchMode = "dense",
    lexical_weight: float = 0.5,
    index: str | Path | None = None,
    ef_search: int | None = None,
    kind: IndexKind = "auto",
    show: Sequence[Column] = (),
    id_column: Column | None = None,
    hnsw: Hnsw | None = None,
    lexical: bool = False,
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
    """Finds the `top_k` sentences of `corpus` nearest to each of `queries`, best first.

    The first call builds an index and leaves it there. For many calls keep what `build_index` or `open_index` returns,
    which describe the errors too.

    mode, lexical_weight: see `SearchIndex.search`.
    corpus: None opens `index` as it is.
    index: its folder; next to the corpus by default.
    Others as in `students.searching.settings.IndexOptions`. With `kind` exact all sentences are compared whatever
        the index has; without a corpus other kinds expect an index of that kind.
    """
    lexical = lexical or mode != "dense"
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
        top_k,
        mode=mode,
        lexical_weight=lexical_weight,
        ef_search=ef_search,
        prompt_name=options.query_prompt_name,
        precision=options.precision,
        batch_tokens=options.batch_tokens,
    )
