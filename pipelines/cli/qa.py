"""`bertrelay qa answer`: questions to the places of their answers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertrelay.errors import RequestError
from domain.biomedical.qa.settings import CANDIDATES, InputFormat
from pipelines.cli.echo import echo
from pipelines.cli.models import check_model
from pipelines.cli.options import (
    BatchOption,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    PrecisionOption,
    ProcessesOption,
    WithTextOption,
)
from pipelines.cli.stdin import DASH, NAME, first_bytes, input_file

if TYPE_CHECKING:
    from domain.biomedical.qa.answering import AnsweredFile

qa = typer.Typer(help="Answer questions from the texts beside them.", no_args_is_help=True)


@qa.callback()
def commands() -> None:
    """Keeps `answer` a command of its own while it is the only one."""


@qa.command()
def answer(
    model: ModelArgument,
    questions: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="CSV, TSV, JSONL or Parquet with a row for each question, or SQuAD's or BioASQ's JSON; "
            ".gz is unpacked. - is standard input, JSON unless --input-format says otherwise.",
        ),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Where to write: a .jsonl, .csv or .parquet file.")],
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page of the contexts, answers marked.")
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, max=CANDIDATES, help="Most candidates of a question that JSONL and the page have.")
    ] = 5,
    question_column: Annotated[str, typer.Option("--question", help="The column of the question.")] = "question",
    context_column: Annotated[str, typer.Option("--context", help="The column of the text.")] = "context",
    id_column: Annotated[
        str | None, typer.Option("--id", help="The column of the id.", show_default="id if there is one, or the line")
    ] = None,
    input_format: Annotated[
        InputFormat | None, typer.Option(help="What INPUT is.", show_default="by its name and first keys")
    ] = None,
    whole_words: Annotated[
        bool | None,
        typer.Option(
            "--whole-words/--parts-of-words",
            help="Whether an answer may neither begin nor end inside a word.",
            show_default="as the model was trained, else whole words",
        ),
    ] = None,
    max_rejects: Annotated[
        float, typer.Option(min=0, max=1, help="The share of questions that may be left out as unusable.")
    ] = 0.01,
    with_text: WithTextOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    precision: PrecisionOption = "auto",
    batch_tokens: BatchOption = None,
    processes: ProcessesOption = None,
) -> None:
    """Answer every question in INPUT from the context beside it, and write the answers to OUTPUT.

    A row for each question: the answer, its first and last character in the context, how probable it is that it is
    right, the sentence around it, and in JSONL other candidates. A model that has learnt it may say that the context
    does not answer. Contexts may be of any length. Stop it whenever you like: the same command goes on from there.

    For example:

      bertrelay qa answer runs/laboratory/qa/latest/model questions.csv answers.jsonl

      bertrelay qa answer MODEL squad.json answers.csv --html page.html
    """
    from bertrelay.files import check_output
    from bertrelay.privacy import check_page
    from domain.biomedical.qa.answering import SUFFIXES, Source, check_source
    from pipelines.cli.sharing import shared
    from pipelines.launch import check_process_group

    process_group = check_process_group(processes)
    check_model(model)
    check_output(output, SUFFIXES, questions, overwrite=overwrite)
    if page is not None:
        check_output(page, (".html",), option="--html", overwrite=overwrite)
        check_page(with_text)
    with input_file(str(questions), output) as name:
        if str(questions) == DASH and input_format is None and first_bytes(name)[:1] not in (b"{", b"["):
            raise RequestError(f"{NAME}: expected JSON, found something else; say what it is with --input-format")
        check_source(Source(Path(name), input_format, id_column, question_column, context_column))
        with shared(process_group, processes):
            from domain.biomedical.qa.answering import answer_file

            answered = answer_file(
                model,
                name,
                output,
                source_format=input_format,
                id_column=id_column,
                question_column=question_column,
                context_column=context_column,
                page=page,
                top=top,
                whole_words=whole_words,
                max_rejects=max_rejects,
                precision=precision,
                batch_tokens=batch_tokens,
                with_text=with_text,
                process_group=process_group,
            )
    if process_group.is_main:
        echo(json.dumps({"output": str(output), **answered._asdict()}) if as_json else _text(answered, output))


def _text(answered: "AnsweredFile", output: Path) -> str:
    """How many questions there are, and what was left out."""
    without = f", {answered.without_answer:,} of them without an answer" if answered.without_answer else ""
    first = f"{answered.questions:,} questions answered{without}, in {output}"
    told = {"too long to be asked": answered.too_long, "unusable, listed beside it": answered.rejected}
    left_out = ", ".join(f"{count:,} {why}" for why, count in told.items() if count)
    return f"{first}\nleft out: {left_out}" if left_out else first
