"""`bertrelay search`: an index of a corpus, built or opened, and the sentences of it nearest to each query."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertrelay.data.tables import Format
from bertrelay.errors import RequestError
from bertrelay.progress import log
from pipelines.cli.echo import echo
from pipelines.cli.models import check_model
from pipelines.cli.options import (
    BatchOption,
    ColumnOption,
    HeaderOption,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    PrecisionOption,
    PromptOption,
    table_of,
)
from students.settings import IndexKind, index_beside

if TYPE_CHECKING:
    from bertrelay.data.tables import Table
    from pipelines.cli.answers import Answer
    from students.index import Hit, SearchIndex

QUERIES_AT_ONCE = 4096


def search(
    model: ModelArgument,
    corpus: Annotated[
        str | None,
        typer.Argument(
            metavar="CORPUS",
            help="Lines of text, CSV, TSV, JSONL or Parquet. Not needed where --index is whole.",
            show_default=False,
        ),
    ] = None,
    query: Annotated[list[str] | None, typer.Option(help="A text to look for. May be repeated.")] = None,
    queries: Annotated[
        str | None, typer.Option(metavar="FILE", help="Look for each sentence of a file: lines, or a column `text`.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many sentences to give for a query.")] = 10,
    index: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the index.", show_default="beside CORPUS: CORPUS.index"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the answers to a .jsonl, .csv or .tsv file.")
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    kind: Annotated[
        IndexKind,
        typer.Option(
            help="exact compares with every sentence, hnsw walks a graph and is faster; auto takes what the index has, "
            "and builds hnsw for more than 100,000 sentences."
        ),
    ] = "auto",
    ef_search: Annotated[
        int | None,
        typer.Option(
            min=1, help="Candidates kept in the graph: more find more and take longer.", show_default="the index's own"
        ),
    ] = None,
    column: ColumnOption = None,
    file_format: Annotated[
        Format | None, typer.Option("--format", help="What CORPUS is.", show_default="by its suffix, else lines")
    ] = None,
    header: HeaderOption = True,
    prompt: PromptOption = None,
    query_prompt: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The same before each query; --prompt is for CORPUS.", show_default="the model's own"
        ),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build the index anew, whatever is there; once stopped, it goes on.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file of the index again, instead of trusting size and time.")
    ] = False,
    precision: PrecisionOption = "auto",
    batch_tokens: BatchOption = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="Encode CORPUS in N processes: one for each GPU, say."),
    ] = None,
) -> None:
    """Find the sentences of CORPUS nearest in meaning to a query, in whatever language either is.

    The first call builds an index beside CORPUS; stop it whenever you like, the same command goes on from there.
    Later calls open it, and encode the query alone.

    For example:

      bertrelay search MODEL sentences.txt --query "A dog runs." -k 3

      bertrelay search MODEL --index sentences.txt.index --queries questions.txt --output answers.jsonl
    """
    from pipelines.cli.sharing import shared
    from pipelines.launch import check_process_group

    process_group = check_process_group(processes)
    _check(corpus, index, rebuild, query or [], queries, output, as_json)
    if kind == "exact" and ef_search is not None:
        raise RequestError("--ef-search is for the graph of an index, and --kind exact walks none; give one of the two")
    if corpus is None:
        of_corpus = {"--column": column, "--format": file_format, "--no-header": not header, "--prompt": prompt}
        _check_idle({**of_corpus, "--processes": processes})
    table = None if corpus is None else table_of(corpus, column, file_format, header)
    asked = None if queries is None else table_of(queries, None, None, True)
    check_model(model)
    _check_files(table, asked, output, overwrite)
    folder = index or index_beside(corpus or "")
    with shared(process_group, None if table is None else processes):
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
                precision=precision,
                batch_tokens=batch_tokens,
                rebuild=rebuild,
                verify=verify,
                process_group=process_group,
            )
        if process_group.is_main:
            opened.check_graph(kind, ef_search)
            opened.tell_precision(precision)
            find = partial(
                opened.search,
                k=k,
                exact=kind == "exact",
                ef_search=ef_search,
                prompt_name=query_prompt,
                precision=precision,
                batch_tokens=batch_tokens,
            )
            answers = _answers(find, query or [], asked)
            _give(answers, opened, output, as_json, is_asked=bool(query or asked))


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
        wrong = "--rebuild: expected CORPUS, from which the index is built anew; found --index alone"
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
    from pipelines.cli.answers import WRITERS

    tables = [table for table in (corpus, queries) if table]
    for table in tables:
        check_first(table)
    if output is not None:
        check_output(output, tuple(WRITERS), *(table.path for table in tables), option="--output", overwrite=overwrite)


def _answers(find: "Callable[..., list[list[Hit]]]", query: list[str], asked: "Table | None") -> "Iterator[Answer]":
    """The answers to `--query`, then to the sentences of `--queries`, some thousand at a time."""
    from pipelines.cli.answers import Answer

    of_file: Iterable[tuple[str, int | None]] = () if asked is None else _sentences(asked)
    texts = chain(((text, None) for text in query), of_file)
    while block := list(islice(texts, QUERIES_AT_ONCE)):
        place = partial(_place, asked, [line for _, line in block])
        found = find([text for text, _ in block], place=place)
        yield from (Answer(*text, hits) for text, hits in zip(block, found, strict=True))


def _place(asked: "Table | None", lines: list[int | None], row: int) -> str:
    """What an error calls a query of a block."""
    line = lines[row]
    return f"line {line:,} of {asked.name}" if asked and line is not None else f"--query {row + 1:,}"


def _sentences(asked: "Table") -> Iterator[tuple[str, int]]:
    """The sentences of `--queries` with their lines; blank ones are left out and told."""
    from bertrelay.data.sentences import sentence_records

    blank = used = 0
    for (text,), _, line in sentence_records(asked):
        if text.strip():
            used += 1
            yield text, line
        else:
            blank += 1
    if not used:
        raise RequestError(f"{asked.name}: expected texts to look for, found {blank:,} blank ones and no other")
    if blank:
        told = "1 blank query has" if blank == 1 else f"{blank:,} blank queries have"
        log(f"{asked.name}: {told} no answer")


def _give(
    answers: "Iterator[Answer]", opened: "SearchIndex", output: Path | None, as_json: bool, is_asked: bool
) -> None:
    from pipelines.cli.answers import as_document, as_text, write_answers

    if output:
        write_answers(output, answers)
        echo(f"answers in {output}")
    elif as_json:
        document = {"index": _facts(opened), "queries": [as_document(answer) for answer in answers]}
        echo(json.dumps(document, ensure_ascii=False))
    elif is_asked:
        for answer in answers:
            echo(as_text(answer))
    else:
        echo(_described(opened))


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
