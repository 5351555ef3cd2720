"""`bertrelay search`, `mine` and `rerank`: nearest sentences, translation pairs, and ranking by a cross-encoder."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import typer
from pydantic import Field, model_validator

from bertrelay.blocks import blocks_of
from bertrelay.compute.engine import Engine
from bertrelay.data.shards import work_beside
from bertrelay.data.tables import Table
from bertrelay.data.writing import on_one_line, write_csv, write_jsonl, write_tsv
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, check_output
from bertrelay.progress import log
from bertrelay.settings import Positive, options_of
from pipelines.cli.options import (
    FILE_HELP,
    MODEL_HELP,
    ColumnOptions,
    Fields,
    ModelArgument,
    TableOptions,
    WorkOptions,
    argument,
    check_request,
    command,
    distributed,
    in_words,
    print_document,
    print_result,
    write_out,
)
from pipelines.cli.stdin import DASH, input_file
from students.mining.settings import MINED_SUFFIXES, MineSettings, NegativeOptions
from students.searching.settings import IndexSettings, LexicalWeight, SearchMode, index_beside
from teachers.pairs.settings import RerankOptions

if TYPE_CHECKING:
    from students.searching.index import Hit, SearchIndex

PANEL = "Sentences"
QUERIES_AT_ONCE = 4096
CORPUS_HELP = FILE_HELP.removesuffix(" - is standard input.")  # its index is kept beside it
COLUMNS = ("query_line", "query", "rank", "similarity", "line", "text", "record")

searching = typer.Typer()


class SearchOptions(ColumnOptions, WorkOptions):
    """Queries, and the index to search."""

    query: list[str] = Field(default=[])
    """Text to search for. May be repeated."""
    queries: str | None = None
    """Search for each sentence of a file: lines, or a column `text`; - is standard input."""
    top_k: Positive = 10
    """Sentences to find for a query."""
    mode: SearchMode = "dense"
    """Rank by vectors, by words (lexical: BM25), or by both (hybrid)."""
    lexical_weight: LexicalWeight | None = None
    """With --mode hybrid: weight of the ranking by words; 0.5 when absent."""
    where: str | None = None
    """Only texts that fulfil a condition on columns of the index, such as language = "de" and year >= 2020."""
    show: list[str] = Field(default=[])
    """Column of CORPUS to show beside each text found, by name, or by position from 0. May be repeated."""
    index: Path | None = None
    """Folder of the index; CORPUS.index when absent."""
    ef_search: Positive | None = None
    """Candidates considered in the graph, or compared in float32: more find more and take longer; the index's own when
    absent."""
    query_prompt: str | None = None
    """Prompt of the queries; --prompt is for CORPUS."""
    rebuild: bool = False
    """Build the index anew, even if it exists; once stopped, this resumes."""
    verify: bool = False
    """Read every file of the index instead of trusting size and time."""
    output: Path | None = None
    """Write the answers to a .jsonl, .csv or .tsv file."""

    @model_validator(mode="after")
    def _compatible(self) -> Self:
        if not all(text.strip() for text in self.query):
            raise ValueError("--query: expected a text to look for, found an empty one")
        if self.lexical_weight is not None and self.mode != "hybrid":
            raise ValueError(f"--lexical-weight: expected --mode hybrid, which it is of, found {self.mode}")
        if self.output and self.as_json:
            raise ValueError("--json prints the answers and --output writes them to a file; give one of the two")
        if self.output and not (self.query or self.queries):
            raise ValueError("--output: expected --query or --queries, whose answers are written; found neither")
        return self


@command(
    searching,
    names={"top_k": "-k", "queries": "--queries FILE", "index": "--index DIR", "query_prompt": "--query-prompt NAME"}
    | {"show": "--show COLUMN", "where": "--where CONDITION"},
    rich_help_panel=PANEL,
)
def search(
    model: ModelArgument,
    settings: Annotated[Fields, IndexSettings, "kind", "prompt", "precision", "batch_tokens"],
    options: SearchOptions,
    corpus: Annotated[
        str | None, argument("CORPUS", f"{CORPUS_HELP} Not needed with --index.", show_default=False)
    ] = None,
) -> None:
    """Find the sentences of CORPUS nearest in meaning to a query, whatever the language of either.

    The first call builds an index beside CORPUS; stop it at any time, the same command resumes.
    Later calls open it and encode only the query.

    For example:

      bertrelay search MODEL english.txt --query "A dog runs." -k 3

      bertrelay search MODEL english.txt --query "model 4711" --mode hybrid

      bertrelay search MODEL --index english.txt.index --queries questions.txt --output answers.jsonl

      bertrelay search MODEL --index faq.index --query "Where is my parcel?" --where "language = 'de'"
    """
    from bertrelay.data.sentences import check_first
    from students.searching.where import Condition

    check_request(model, options.processes)
    condition = options.where and Condition.parse(options.where)
    kind, prompt = settings.pop("kind"), settings.pop("prompt")
    if kind == "exact" and options.ef_search is not None:
        raise RequestError(
            "--ef-search counts the candidates of an index, --kind exact keeps none; give one of the two"
        )
    if corpus is None:
        _check_without_corpus(options, prompt)
    if corpus == DASH:
        raise RequestError(f"{DASH}: expected a file, beside which its index is kept; write CORPUS to a file first")
    with input_file(options.queries or "", options.output) as name:
        table = None if corpus is None else options.table(corpus, options.column)
        queries = None if options.queries is None else TableOptions().table(name)
        inputs = [source for source in (table, queries) if source]
        for source in inputs:
            check_first(source)
        if options.output:
            files = [source.path for source in inputs]
            check_output(options.output, tuple(WRITERS), *files, option="--output", overwrite=options.overwrite)
        with distributed(options.processes) as process_group:
            from students.searching.index import find_index
            from students.searching.settings import IndexOptions

            prompts = {"prompt_name": prompt, "query_prompt_name": options.query_prompt}
            prompts |= {"show": [int(name) if name.isdecimal() else name for name in options.show]}
            prompts |= {"lexical": options.mode != "dense"}
            building = {"kind": kind, "rebuild": options.rebuild, "verify": options.verify, **prompts, **settings}
            built = options_of(IndexOptions, {**building, "process_group": process_group})
            index = find_index(model, table, options.index or index_beside(corpus or ""), built, options.ef_search)
            if process_group.is_main:
                settings |= {"top_k": options.top_k, "ef_search": options.ef_search, "mode": options.mode}
                settings |= {"where": condition}
                if options.lexical_weight is not None:
                    settings["lexical_weight"] = options.lexical_weight
                find = partial(index.search, prompt_name=options.query_prompt, **settings)
                _write(_answers(find, options.query, queries), index, options)


def _check_without_corpus(options: SearchOptions, prompt: str | None) -> None:
    """Raises RequestError for options of a corpus that is not there."""
    if options.index is None:
        raise RequestError(
            "expected CORPUS, from which an index is built, or --index DIR, which has one; found neither"
        )
    if options.rebuild:
        raise RequestError("--rebuild: expected CORPUS, from which the index is built again; found --index alone")
    options_of_corpus = {"--column": options.column, "--format": options.format, "--no-header": not options.header}
    options_of_corpus["--quoted"] = options.quoted
    idle = [
        name
        for name, value in {**options_of_corpus, "--prompt": prompt, "--processes": options.processes}.items()
        if value
    ]
    if idle:
        hint = "; --query-prompt is for queries" if "--prompt" in idle else ""
        raise RequestError(f"{', '.join(idle)}: expected CORPUS, which this is about, found --index alone{hint}")


class QueryHits(NamedTuple):
    """The hits of a query; `line` is the line of the query in its file, None for one of `--query`."""

    query: str
    line: int | None
    hits: "list[Hit]"

    @property
    def document(self) -> dict[str, Any]:
        """The hits as `--json` and JSONL have them."""
        line = {} if self.line is None else {"line": self.line}
        hits = [{"rank": rank, **hit.document} for rank, hit in enumerate(self.hits, 1)]
        hits = [{name: value for name, value in hit.items() if name != "columns" or value} for hit in hits]
        return {"query": self.query, **line, "hits": hits}

    @property
    def text(self) -> str:
        """The query and a line for each hit: rank, similarity, line in the corpus, text; its columns below."""
        width = max((len(f"{hit.line:,}") for hit in self.hits), default=0)
        rows = [
            f"{rank:4}  {hit.similarity:.4f}  line {hit.line:>{width},}  {on_one_line(hit.text)}"
            + "".join(
                f"\n      {name}: {on_one_line(str(value))}"
                for name, value in {"id": hit.id, "source": hit.source, **hit.columns}.items()
                if name in hit.columns or value is not None
            )
            + (f"\n      words: {', '.join(hit.words)}" if hit.words else "")
            for rank, hit in enumerate(self.hits, 1)
        ]
        return "\n".join([on_one_line(self.query), *rows])


def _answers(find: "Callable[..., list[list[Hit]]]", query: list[str], queries: Table | None) -> Iterator[QueryHits]:
    """The answers to `--query`, then to the sentences of `--queries`, some thousand at a time."""
    of_file: Iterable[tuple[str, int | None]] = () if queries is None else _sentences(queries)
    texts = chain(((text, None) for text in query), of_file)
    for block in blocks_of(texts, QUERIES_AT_ONCE):

        def name_query(row: int, block: list[tuple[str, int | None]] = block) -> str:
            line = block[row][1]
            return f"line {line:,} of {queries.name}" if queries and line is not None else f"--query {row + 1:,}"

        hits = find([text for text, _ in block], name_query=name_query)
        yield from (QueryHits(*text, nearest) for text, nearest in zip(block, hits, strict=True))


def _sentences(queries: Table) -> Iterator[tuple[str, int]]:
    """The sentences of `--queries` with their lines; blank ones are skipped and counted."""
    from bertrelay.data.sentences import sentence_records

    blank = used = 0
    for (text,), _, line in sentence_records(queries):
        if text.strip():
            used += 1
            yield text, line
        else:
            blank += 1
    if not used:
        raise RequestError(f"{queries.name}: expected texts to look for, found {blank:,} blank ones and no other")
    if blank:
        log(f"{queries.name}: {blank:,} blank {'query has' if blank == 1 else 'queries have'} no answer")


def _write(answers: Iterator[QueryHits], index: "SearchIndex", options: SearchOptions) -> None:
    """Writes or prints the answers, or describes the index where there is no query.

    JSONL has an answer in each line, CSV and TSV a hit; the file is complete or not there.
    """
    if options.output:
        with atomic_write(options.output) as writing:
            WRITERS[options.output.suffix](writing, answers, options.show, _origin_columns(index))
        write_out(f"answers in {options.output}")
    elif options.as_json:
        head = {"folder": str(index.folder), **_description(index)}
        print_document("search", {"index": head, "queries": [answer.document for answer in answers]}, options.output)
    elif options.query or options.queries:
        for answer in answers:
            write_out(answer.text)
    else:
        write_out(in_words(index.folder, _description(index)))


def _description(index: "SearchIndex") -> dict[str, Any]:
    manifest = index.manifest
    made_of = {"corpus": manifest.origin.corpus, "model": manifest.origin.model}
    counts = {"sentences": manifest.sentences, "blank": manifest.blank, "dim": manifest.origin.dim}
    form = {"precision": manifest.precision, "kind": manifest.kind, "hnsw": manifest.hnsw or None}
    return {**made_of, **counts, **form, **manifest.recall}


def _origin_columns(index: "SearchIndex") -> list[str]:
    """The columns that say which text a hit is, beyond its line: where texts have ids, or are of several files."""
    manifest = index.manifest
    return [*(["id"] if manifest.id_column is not None else []), *(["source"] if len(manifest.sources) > 1 else [])]


def _rows(answers: Iterable[QueryHits], origin: list[str]) -> Iterator[tuple[Any, ...]]:
    for query, line, hits in answers:
        for rank, hit in enumerate(hits, 1):
            head = line, query, rank, round(hit.similarity, 6), hit.line, hit.text, hit.record
            yield (*head, *(getattr(hit, name) for name in origin), *map(_as_field, hit.columns.values()))


def _as_field(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


WRITERS: dict[str, Callable[[Path, Iterable[QueryHits], list[str], list[str]], None]] = {
    ".jsonl": lambda path, answers, *_: write_jsonl(path, (answer.document for answer in answers)),
    ".csv": lambda path, answers, show, origin: write_csv(path, (*COLUMNS, *origin, *show), _rows(answers, origin)),
    ".tsv": lambda path, answers, show, origin: write_tsv(path, (*COLUMNS, *origin, *show), _rows(answers, origin)),
}


class MineCommand(TableOptions, WorkOptions):
    """Options of reading and keeping files, beside the settings of mining."""

    gold: str | None = None
    """True pairs, one a line: source_line and target_line, from 1, a header included. Gives precision, recall and F1,
    and the threshold of the highest F1 when --threshold is absent."""
    id_column: str | None = None
    """Column of identifiers in SOURCE and TARGET, by which FILE names sentences in place of lines, as in BUCC."""
    source_column: str | None = None
    """Column of SOURCE, by name, or by position from 0; `text`, or the line, when absent."""
    target_column: str | None = None
    """Column of TARGET."""
    keep: bool = False
    """Keep vectors and neighbours in OUT.work, for another threshold for example."""


@command(searching, names={"k": "-k", "gold": "--gold FILE"}, rich_help_panel=PANEL)
def mine(
    model: ModelArgument,
    source: Annotated[str, argument("SOURCE", FILE_HELP)],
    target: Annotated[str, argument("TARGET", "The other language; may be the same table.")],
    output: Annotated[Path, argument("OUT", "A .tsv, .csv, .jsonl or .parquet file.")],
    settings: Annotated[Fields, MineSettings, "threshold", "k", "method", "precision", "batch_tokens"],
    options: MineCommand,
) -> None:
    """Find the sentences of SOURCE and TARGET that translate one another, each in one pair at most, best first.

    A pair's score is its cosine divided by the mean cosine of both sentences to their neighbours (the ratio margin of
    Artetxe & Schwenk, 2019). Stop it at any time: the same command resumes.

    For example:

      bertrelay mine MODEL english.txt german.txt mined.tsv --threshold 1.1

      bertrelay mine MODEL english.txt german.txt mined.tsv --gold pairs.tsv
    """
    from bertrelay.data.sentences import check_first

    check_request(model, options.processes)
    with input_file(source, output) as first, input_file(target, output) as second:
        tables = options.table(first, options.source_column), options.table(second, options.target_column)
        gold = None if options.gold is None else TableOptions().table(options.gold)
        if options.id_column and gold is None:
            raise RequestError("--id-column: expected --gold FILE, which names sentences by it; give both or neither")
        columns = options.table(first, options.id_column).columns
        inputs = [table.path for table in (*tables, gold) if table]
        check_output(output, MINED_SUFFIXES, *inputs, overwrite=options.overwrite)
        for table in tables:
            check_first(table)
        with distributed(options.processes) as process_group:
            from students.mining.bitext import mine_files

            work = work_beside(output) if options.keep else None
            settings |= {
                "gold": gold,
                "id_column": columns and columns[0],
                "work": work,
                "process_group": process_group,
            }
            mining = mine_files(model, *tables, output, overwrite=options.overwrite, **settings)
    print_result("mine", mining, output, options.as_json)


class NegativesCommand(TableOptions, WorkOptions):
    """Options of reading and keeping files, beside those of the negatives."""

    column: list[str] = Field(default=[])
    """Column of PAIRS, by name, or by position from 0; anchor and positive when absent. Give it twice."""
    corpus: str | None = None
    """Further candidates: lines, or a column `text`."""
    keep: bool = False
    """Keep vectors, index and neighbours in OUT.work, for other options for example."""


@command(
    searching,
    names={"corpus": "--corpus FILE", "query_prompt": "--query-prompt NAME"},
    name="mine-negatives",
    rich_help_panel=PANEL,
)
def mine_negatives(
    model: ModelArgument,
    pairs: Annotated[str, argument("PAIRS", "CSV, TSV, JSONL or Parquet with the columns anchor and positive.")],
    output: Annotated[Path, argument("OUT", "A .tsv, .csv, .jsonl or .parquet file.")],
    negative_options: NegativeOptions,
    options: NegativesCommand,
) -> None:
    """Find hard negatives of PAIRS: candidates near to an anchor that are none of its positives.

    Candidates are the positives of all pairs, and the texts of --corpus. OUT has the columns anchor, positive and
    negative, for the contrastive objective of `teachers.train`. Stop it at any time: the same command resumes.

    For example:

      bertrelay mine-negatives MODEL parallel.test.tsv triplets.jsonl --column en --column de

      bertrelay mine-negatives MODEL pairs.csv triplets.jsonl --corpus passages.txt --layout n-tuple --num-negatives 5
    """
    from bertrelay.data.sentences import check_first

    check_request(model, options.processes)
    with input_file(pairs, output) as name:
        table = options.table(name, options.column)
        corpus = None if options.corpus is None else TableOptions().table(options.corpus)
        check_output(
            output, MINED_SUFFIXES, *(source.path for source in (table, corpus) if source), overwrite=options.overwrite
        )
        if corpus is not None:
            check_first(corpus)
        with distributed(options.processes) as process_group:
            from students.mining.negatives import LEFT_OUT, mine_negatives

            work = work_beside(output) if options.keep else None
            mining = mine_negatives(
                model,
                table,
                output,
                corpus=corpus,
                work=work,
                process_group=process_group,
                overwrite=options.overwrite,
                **dict(negative_options),
            )
    if not options.as_json:
        mining = replace(mining, dropped={LEFT_OUT[reason]: count for reason, count in mining.dropped.items()})
    print_result("mine-negatives", mining, output, options.as_json)


class PairOptions(TableOptions, WorkOptions):
    """Options of reading and writing pairs."""

    column: list[str] = Field(default=[])
    """Column of text, by name, or by position from 0; sentence1 and sentence2 when absent. Give it twice, the query's
    first."""


@command(searching, rich_help_panel=PANEL)
def rerank(
    model: Annotated[str, argument("MODEL", f"A cross-encoder or poly-encoder. {MODEL_HELP}")],
    pairs: Annotated[
        str, argument("PAIRS", "CSV, TSV, JSONL or Parquet with two columns of text, or what search --output wrote.")
    ],
    output: Annotated[Path, argument("OUT", "A .csv, .tsv, .jsonl or .parquet file.")],
    rerank_options: RerankOptions,
    options: PairOptions,
    cluster: Engine,
) -> None:
    """Score pairs of sentences from 0 to 1, and rank what a search has found.

    MODEL reads both sentences of a pair at once, as `teachers.cross-encoder` trains it, or is a
    `teachers.poly-encoder`. A file of any size fits in the same memory. Stop it at any time: the same command resumes.

    For example:

      bertrelay rerank CROSS-ENCODER sts.test.tsv ranked.csv

      bertrelay search ENCODER corpus.txt --queries questions.txt -k 100 --output answers.jsonl

      bertrelay rerank CROSS-ENCODER answers.jsonl best.jsonl --top 10
    """
    from teachers.pairs.candidates import PairSource
    from teachers.pairs.rerank import SUFFIXES, rerank_file

    check_request(model, options.processes)
    with input_file(pairs, output) as name:
        table = options.table(name, options.column)
        check_output(output, SUFFIXES, pairs, overwrite=options.overwrite)
        next(PairSource.of(table, rerank_options.top).queries())  # finds most of what can be invalid
        with distributed(options.processes) as process_group:
            reranked = rerank_file(
                model,
                table,
                output,
                process_group=process_group,
                engine=cluster,
                overwrite=options.overwrite,
                **dict(rerank_options),
            )
    print_result("rerank", reranked, output, options.as_json)
