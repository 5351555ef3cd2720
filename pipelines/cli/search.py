"""`bertrelay search`, `mine` and `rerank`: nearest sentences, translation pairs, and ranking by a cross-encoder."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bertrelay.data.tables import on_one_line, write_csv, write_jsonl, write_tsv
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_error
from bertrelay.progress import log
from pipelines.cli.options import (
    AS_COLUMN,
    FILE_HELP,
    INPUT,
    MODEL_HELP,
    OUTPUT,
    ColumnOption,
    FormatOption,
    HeaderOption,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    ProcessesOption,
    check_model,
    command,
    distributed,
    option,
    table_of,
    write_out,
)
from students.settings import MINED_SUFFIXES, IndexSettings, MineSettings, index_beside, work_beside
from teachers.settings import RerankSettings

if TYPE_CHECKING:
    from bertrelay.data.tables import Table
    from students.bitext import Mining
    from students.index import Hit, SearchIndex
    from teachers.rerank import RerankedFile

PANEL = "Sentences"
QUERIES_AT_ONCE = 4096
COLUMNS = ("query_line", "query", "rank", "similarity", "line", "text")

searching = typer.Typer()


class Answer(NamedTuple):
    """What was found for a query; `line` is the line of the query in its file, None for one of `--query`."""

    query: str
    line: int | None
    hits: "list[Hit]"


@command(searching, IndexSettings, "kind", "prompt", "precision", "batch_tokens", rich_help_panel=PANEL)
def search(
    model: ModelArgument,
    corpus: Annotated[
        str | None,
        typer.Argument(metavar="CORPUS", help=f"{FILE_HELP} Not needed with --index.", show_default=False),
    ] = None,
    query: Annotated[list[str] | None, option(help="A text to search for. May be repeated.")] = None,
    queries: Annotated[
        str | None, option(metavar="FILE", help="Search for each sentence of a file: lines, or a column `text`.")
    ] = None,
    k: Annotated[int, option("-k", min=1, help="Sentences to find for a query.")] = 10,
    index: Annotated[
        Path | None,
        option(metavar="DIR", help="Folder of the index.", show_default="beside CORPUS: CORPUS.index"),
    ] = None,
    ef_search: Annotated[
        int | None,
        option(
            min=1, help="Candidates kept in the graph: more find more and take longer.", show_default="the index's own"
        ),
    ] = None,
    column: ColumnOption = None,
    file_format: FormatOption = None,
    header: HeaderOption = True,
    query_prompt: Annotated[
        str | None,
        option(metavar="NAME", help="Prompt of the queries; --prompt is for CORPUS.", panel=INPUT),
    ] = None,
    rebuild: Annotated[
        bool, option("--rebuild", help="Build the index again, even if it exists; once stopped, this resumes.")
    ] = False,
    verify: Annotated[
        bool, option("--verify", help="Read every file of the index again instead of trusting size and time.")
    ] = False,
    output: Annotated[
        Path | None, option(metavar="FILE", help="Write the answers to a .jsonl, .csv or .tsv file.", panel=OUTPUT)
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    processes: ProcessesOption = None,
    **options: Any,
) -> None:
    """Find the sentences of CORPUS nearest in meaning to a query, whatever the language of either.

    The first call builds an index beside CORPUS; stop it at any time, the same command resumes.
    Later calls open it, and encode the query alone.

    For example:

      bertrelay search MODEL sentences.txt --query "A dog runs." -k 3

      bertrelay search MODEL --index sentences.txt.index --queries questions.txt --output answers.jsonl
    """
    from pipelines.launch import check_process_group

    process_group = check_process_group(processes)
    _check(corpus, index, rebuild, query or [], queries, output, as_json)
    kind, prompt = options.pop("kind"), options.pop("prompt")
    if kind == "exact" and ef_search is not None:
        raise RequestError("--ef-search is for the graph of an index, and --kind exact walks none; give one of the two")
    if corpus is None:
        of_corpus = {"--column": column, "--format": file_format, "--no-header": not header, "--prompt": prompt}
        _check_idle({**of_corpus, "--processes": processes})
    table = None if corpus is None else table_of(corpus, column, file_format, header)
    query_table = None if queries is None else table_of(queries)
    check_model(model)
    _check_files(table, query_table, output, overwrite)
    folder = index or index_beside(corpus or "")
    with distributed(process_group, None if table is None else processes):
        from students.index import open_index
        from students.index_build import build_index

        if table is None:
            opened = open_index(model, folder, verify=verify)
        else:
            opened = build_index(
                model,
                table,
                folder,
                kind=kind,
                prompt_name=prompt,
                query_prompt_name=query_prompt,
                rebuild=rebuild,
                verify=verify,
                process_group=process_group,
                **options,
            )
        if process_group.is_main:
            opened.check_graph(kind, ef_search)
            opened.log_precision(options["precision"])
            find = partial(
                opened.search, k=k, exact=kind == "exact", ef_search=ef_search, prompt_name=query_prompt, **options
            )
            answers = _answers(find, query or [], query_table)
            _write(answers, opened, output, as_json, has_queries=bool(query or query_table))


def _check(
    corpus: str | None,
    index: Path | None,
    rebuild: bool,
    query: list[str],
    queries: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Raises RequestError for options that do not go together."""
    wrong = None
    if corpus is None and index is None:
        wrong = "expected CORPUS, from which an index is built, or --index DIR, which has one; found neither"
    elif corpus is None and rebuild:
        wrong = "--rebuild: expected CORPUS, from which the index is built again; found --index alone"
    elif any(not text.strip() for text in query):
        wrong = "--query: expected a text to look for, found an empty one"
    elif output and as_json:
        wrong = "--json prints the answers and --output writes them to a file; give one of the two"
    elif output and not (query or queries):
        wrong = "--output: expected --query or --queries, whose answers are written; found neither"
    if wrong:
        raise RequestError(wrong)


def _check_idle(given: dict[str, object]) -> None:
    """Raises RequestError for options of a corpus that is not there."""
    idle = [name for name, value in given.items() if value]
    if idle:
        hint = "; --query-prompt is for queries" if "--prompt" in idle else ""
        raise RequestError(f"{', '.join(idle)}: expected CORPUS, which this is about, found --index alone{hint}")


def _check_files(corpus: "Table | None", queries: "Table | None", output: Path | None, overwrite: bool) -> None:
    from bertrelay.data.sentences import check_first
    from bertrelay.files import check_output

    tables = [table for table in (corpus, queries) if table]
    for table in tables:
        check_first(table)
    if output is not None:
        check_output(output, tuple(WRITERS), *(table.path for table in tables), option="--output", overwrite=overwrite)


def _answers(find: "Callable[..., list[list[Hit]]]", query: list[str], queries: "Table | None") -> "Iterator[Answer]":
    """The answers to `--query`, then to the sentences of `--queries`, some thousand at a time."""
    of_file: Iterable[tuple[str, int | None]] = () if queries is None else _sentences(queries)
    texts = chain(((text, None) for text in query), of_file)
    while block := list(islice(texts, QUERIES_AT_ONCE)):
        place = partial(_place, queries, [line for _, line in block])
        found = find([text for text, _ in block], place=place)
        yield from (Answer(*text, hits) for text, hits in zip(block, found, strict=True))


def _place(queries: "Table | None", lines: list[int | None], row: int) -> str:
    """What an error calls a query of a block."""
    line = lines[row]
    return f"line {line:,} of {queries.name}" if queries and line is not None else f"--query {row + 1:,}"


def _sentences(queries: "Table") -> Iterator[tuple[str, int]]:
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
        blanks = "1 blank query has" if blank == 1 else f"{blank:,} blank queries have"
        log(f"{queries.name}: {blanks} no answer")


def _write(
    answers: "Iterator[Answer]", opened: "SearchIndex", output: Path | None, as_json: bool, has_queries: bool
) -> None:

    if output:
        _write_answers(output, answers)
        write_out(f"answers in {output}")
    elif as_json:
        document = {"index": _facts(opened), "queries": [_as_document(answer) for answer in answers]}
        write_out(json.dumps(document, ensure_ascii=False))
    elif has_queries:
        for answer in answers:
            write_out(_as_text(answer))
    else:
        write_out(_described(opened))


def _facts(opened: "SearchIndex") -> dict[str, Any]:
    facts = opened.facts
    head = {"folder": str(opened.folder), "corpus": facts.origin.corpus, "model": facts.origin.model}
    counts = {"sentences": facts.sentences, "blank": facts.blank, "dim": facts.origin.dim}
    how = {"precision": facts.precision, "kind": facts.kind, "hnsw": facts.hnsw or None}
    return {**head, **counts, **how, **facts.recall}


def _described(opened: "SearchIndex") -> str:
    facts = opened.facts
    recall = facts.recall.get("recall_at_10")
    return (
        f"{opened.folder}: {facts.sentences:,} sentences, {facts.origin.dim} dimensions, {facts.kind}"
        + (f", recall@10 {recall:.4f}" if recall is not None else "")
        + (f"; blank and left out: {facts.blank:,}" if facts.blank else "")
    )


def _as_text(answer: Answer) -> str:
    """The query and a line for each hit: rank, similarity, line in the corpus, text."""
    width = max((len(f"{hit.line:,}") for hit in answer.hits), default=0)
    rows = [
        f"{rank:4}  {hit.similarity:.4f}  line {hit.line:>{width},}  {on_one_line(hit.text)}"
        for rank, hit in enumerate(answer.hits, 1)
    ]
    return "\n".join([on_one_line(answer.query), *rows])


def _as_document(answer: Answer) -> dict[str, Any]:
    """An answer as JSON holds it."""
    line = {} if answer.line is None else {"line": answer.line}
    hits = [{"rank": rank, **hit._asdict()} for rank, hit in enumerate(answer.hits, 1)]
    return {"query": answer.query, **line, "hits": hits}


def _write_answers(path: Path, answers: Iterable[Answer]) -> None:
    """Writes JSONL with an answer in each line, or CSV or TSV with a hit in each; the file is whole or not there."""
    try:
        with atomic_write(path) as writing:
            WRITERS[path.suffix](writing, answers)
    except OSError as error:
        raise write_error(path, error) from error


def _rows(answers: Iterable[Answer]) -> Iterator[tuple[Any, ...]]:
    for answer in answers:
        for rank, hit in enumerate(answer.hits, 1):
            yield answer.line, answer.query, rank, round(hit.similarity, 6), hit.line, hit.text


WRITERS: dict[str, Callable[[Path, Iterable[Answer]], None]] = {
    ".jsonl": lambda path, answers: write_jsonl(path, map(_as_document, answers)),
    ".csv": lambda path, answers: write_csv(path, COLUMNS, _rows(answers)),
    ".tsv": lambda path, answers: write_tsv(path, COLUMNS, _rows(answers)),
}


@command(
    searching,
    MineSettings,
    "threshold",
    "k",
    "method",
    "precision",
    "batch_tokens",
    names={"k": "-k"},
    rich_help_panel=PANEL,
)
def mine(
    model: ModelArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=FILE_HELP)],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The other language; may be the same table.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="A .tsv, .csv, .jsonl or .parquet file.")],
    gold: Annotated[
        str | None,
        option(
            metavar="FILE",
            help="The true pairs, one a line: source_line and target_line, from 1, a header included. Gives precision, "
            "recall and F1, and the threshold of the highest F1 where none is given.",
        ),
    ] = None,
    source_column: Annotated[
        str | None,
        option(help=f"Column of SOURCE. {AS_COLUMN}", panel=INPUT, show_default="text, or the line"),
    ] = None,
    target_column: Annotated[
        str | None, option(help=f"Column of TARGET. {AS_COLUMN}", panel=INPUT, show_default="text, or the line")
    ] = None,
    file_format: FormatOption = None,
    header: HeaderOption = True,
    keep: Annotated[
        bool,
        option("--keep", help="Keep vectors and neighbours in OUT.work, for another threshold say.", panel=OUTPUT),
    ] = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    processes: ProcessesOption = None,
    **options: Any,
) -> None:
    """Find the sentences of SOURCE and TARGET that translate one another, each in one pair at most, best first.

    A pair's score is its cosine, divided by how near both are to their neighbours anyway (the ratio margin of
    Artetxe & Schwenk, 2019). Stop it at any time: the same command resumes.

    For example:

      bertrelay mine MODEL en.txt de.txt mined.tsv --threshold 1.1

      bertrelay mine MODEL en.txt de.txt mined.tsv --gold pairs.tsv
    """
    from bertrelay.data.sentences import check_first
    from bertrelay.files import check_output
    from pipelines.launch import check_process_group

    process_group = check_process_group(processes)
    tables = table_of(source, source_column, file_format, header), table_of(target, target_column, file_format, header)
    true_pairs = None if gold is None else table_of(gold)
    check_model(model)
    inputs = [table.path for table in (*tables, true_pairs) if table]
    check_output(output, MINED_SUFFIXES, *inputs, overwrite=overwrite)
    for table in tables:
        check_first(table)
    with distributed(process_group, processes):
        from students.bitext import mine_files

        work = work_beside(output) if keep else None
        mining = mine_files(model, *tables, output, gold=true_pairs, work=work, process_group=process_group, **options)
    if process_group.is_main:
        write_out(json.dumps({"output": str(output), **asdict(mining)}) if as_json else _mined(mining, output))


def _mined(mining: "Mining", output: Path) -> str:
    """How many pairs of how many sentences, and how good they are where there is gold."""
    first = f"{mining.pairs:,} pairs of {mining.sources:,} and {mining.targets:,} sentences in {output}"
    scores = {name: value for name, value in asdict(mining).items() if isinstance(value, float)}
    second = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
    return "\n".join(filter(None, [first, second]))


@command(
    searching,
    RerankSettings,
    *("top", "precision", "batch_tokens"),
    rich_help_panel=PANEL,
)
def rerank(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"A cross-encoder or poly-encoder. {MODEL_HELP}")],
    pairs: Annotated[
        str,
        typer.Argument(
            metavar="PAIRS",
            help="CSV, TSV, JSONL or Parquet with two columns of text, or the answers of bertrelay search --output.",
        ),
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="A .csv, .jsonl or .parquet file; .txt has scores alone.")
    ],
    column: Annotated[
        list[str] | None,
        option(
            help=f"Column of text. {AS_COLUMN} Give it twice, the query's first.",
            panel=INPUT,
            show_default="sentence1 and sentence2",
        ),
    ] = None,
    file_format: FormatOption = None,
    header: HeaderOption = True,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    processes: ProcessesOption = None,
    **options: Any,
) -> None:
    """Score pairs of sentences from 0 to 1, and rank what a search has found.

    MODEL reads both sentences of a pair at once, as `teachers.cross-encoder` trains it, or is a
    `teachers.poly-encoder`. A file of any size fits in the same memory. Stop it at any time: the same command resumes.

    For example:

      bertrelay rerank MODEL pairs.csv scores.csv --column question --column answer

      bertrelay search ENCODER corpus.txt --queries questions.txt -k 100 --output answers.jsonl

      bertrelay rerank MODEL answers.jsonl best.jsonl --top 10
    """
    from bertrelay.files import check_output
    from pipelines.launch import check_process_group
    from teachers.rerank_files import SUFFIXES, PairSource, check_ranking

    process_group = check_process_group(processes)
    table = table_of(pairs, column, file_format, header)
    check_model(model)
    check_output(output, SUFFIXES, pairs, overwrite=overwrite)
    source = PairSource.of(table, options["top"])
    check_ranking(source, output)
    next(source.questions())  # finds most of what can be invalid
    with distributed(process_group, processes):
        from teachers.rerank import rerank_file

        reranked = rerank_file(model, table, output, process_group=process_group, **options)
    if process_group.is_main:
        document = {"output": str(output), **reranked._asdict()}
        write_out(json.dumps(document) if as_json else _reranked(reranked, output))


def _reranked(reranked: "RerankedFile", output: Path) -> str:
    if reranked.queries is None:
        return f"{reranked.pairs:,} pairs scored, in {output}"
    queries = "1 query" if reranked.queries == 1 else f"{reranked.queries:,} queries"
    return f"{reranked.pairs:,} candidates of {queries} ranked, in {output}"
