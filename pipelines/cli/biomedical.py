"""`bertrelay ner tag`, `qa answer` and `data check`: entities, answers, and checks of annotated data."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bertrelay.errors import RequestError
from bertrelay.privacy import identifiers_shown
from domain.biomedical.documents import TITLE_LINE, FormatName
from domain.biomedical.ner.settings import TagSettings
from domain.biomedical.qa.question_files import QuestionFormat
from domain.biomedical.qa.settings import AnswerSettings
from pipelines.cli.options import (
    INPUT,
    MODEL_HELP,
    OUTPUT,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    ProcessesOption,
    check_model,
    command,
    distributed,
    option,
    write_out,
)
from pipelines.cli.stdin import DASH, NAME, first_bytes, input_file

if TYPE_CHECKING:
    from domain.biomedical.ner.tagging import TaggedFile
    from domain.biomedical.qa.answering import AnsweredFile
    from domain.findings import Finding

CheckedFormat = Literal[FormatName, QuestionFormat]
SplitOption = Annotated[Path | None, option(metavar="FILE", help="File of this split, whatever its name.")]

ner = typer.Typer(help="Find the entities of biomedical texts.", no_args_is_help=True)
qa = typer.Typer(help="Answer questions from the texts beside them.", no_args_is_help=True)
data = typer.Typer(help="Check data before training on it.", no_args_is_help=True)


@ner.callback()
@qa.callback()
def _() -> None:
    """Keeps a group with one command a group."""


@command(
    ner,
    TagSettings,
    *("format", "max_rejects", "with_text", "precision", "batch_tokens"),
    names={"format": "--input-format"},
)
def tag(
    model: ModelArgument,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="Raw text, JSONL, PubTator, BioC, CoNLL, or a folder of text or brat; .gz is unpacked. "
            "- is standard input, a document in each line unless --input-format says otherwise.",
        ),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The suffix chooses the format, no suffix is brat.")],
    output_format: Annotated[
        FormatName | None, option("--format", help="Format of OUTPUT.", panel=OUTPUT, show_default="by its suffix")
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    processes: ProcessesOption = None,
    **options: Any,
) -> None:
    """Find the entities of every document in INPUT and write them to OUTPUT, each with its confidence.

    Documents may be of any length and number; offsets count characters of the text as given. Stop it at any time: the
    same command resumes. What could not be read, or not be written in the format, is counted and listed beside OUTPUT.

    For example:

      bertrelay ner tag runs/laboratory/ner/latest/model abstracts.jsonl entities.jsonl

      bertrelay ner tag MODEL article.txt article.html

      bertrelay ner tag MODEL corpus.pubtator tagged.json --processes 2
    """
    from bertrelay.privacy import check_page
    from domain.biomedical.ner.tagging import DocumentSource, check_output, check_source
    from pipelines.launch import check_process_group

    process_group = check_process_group(processes)
    check_model(model)
    if str(output) == DASH:
        raise RequestError(f"output: expected a file or a folder, found {DASH}; nothing is written to standard output")
    output_format = check_output(output, output_format, source, overwrite)
    if output_format == "html":
        check_page(options["with_text"])
    input_format = options.pop("format")
    with input_file(str(source), output) as name:
        if str(source) == DASH:
            input_format = input_format or _lines(name)
        check_source(DocumentSource(Path(name), input_format))
        with distributed(process_group, processes):
            from domain.biomedical.ner.tagging import tag_file

            tagged = tag_file(
                model,
                name,
                output,
                source_format=input_format,
                output_format=output_format,
                process_group=process_group,
                **options,
            )
    if process_group.is_main:
        write_out(json.dumps({"output": str(output), **tagged._asdict()}) if as_json else _tagged(tagged, output))


def _lines(name: str) -> FormatName:
    """Of standard input: a document in each line. Raises RequestError where it begins as another format does."""
    found = first_bytes(name)
    if found.startswith(b"{") or TITLE_LINE.match(found):
        raise RequestError(
            "standard input: expected a document in each line, found what begins as JSON or PubTator. Say what it is: "
            "--input-format jsonl, bioc, pubtator, or lines if each line is a text"
        )
    return "lines"


def _tagged(tagged: "TaggedFile", output: Path) -> str:
    """How many entities of which type in how many documents, and what was left out."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in tagged.entities.items()) or "no entities"
    reasons = {"unreadable": tagged.rejected, "that the format cannot hold": tagged.refused}
    left_out = ", ".join(f"{count:,} {why}" for why, count in reasons.items() if count)
    first = f"{kinds} in {tagged.documents:,} documents, in {output}"
    return f"{first}\nleft out: {left_out}, listed beside it" if left_out else first


@command(
    qa,
    AnswerSettings,
    *("id", "question", "context", "format", "top", "whole_words", "max_rejects", "with_text"),
    *("precision", "batch_tokens"),
    names={"format": "--input-format", "whole_words": "--whole-words/--parts-of-words"},
)
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
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="A .jsonl, .csv or .parquet file.")],
    page: Annotated[
        Path | None,
        option("--html", metavar="FILE", help="Write a page of the contexts with marked answers.", panel=OUTPUT),
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    processes: ProcessesOption = None,
    **options: Any,
) -> None:
    """Answer every question in INPUT from the context beside it, and write the answers to OUTPUT.

    A row for each question: the answer, its first and last character in the context, the probability that it is
    right, the sentence around it, and in JSONL other candidates. A model trained on unanswerable questions may find
    no answer. Contexts may be of any length. Stop it at any time: the same command resumes.

    For example:

      bertrelay qa answer runs/laboratory/qa/latest/model questions.csv answers.jsonl

      bertrelay qa answer MODEL squad.json answers.csv --html page.html
    """
    from bertrelay.files import check_output
    from bertrelay.privacy import check_page
    from domain.biomedical.qa.answering import SUFFIXES, QuestionFile, check_source
    from pipelines.launch import check_process_group

    process_group = check_process_group(processes)
    check_model(model)
    check_output(output, SUFFIXES, questions, overwrite=overwrite)
    if page is not None:
        check_output(page, (".html",), option="--html", overwrite=overwrite)
        check_page(options["with_text"])
    input_format, *columns = (options.pop(name) for name in ("format", "id", "question", "context"))
    with input_file(str(questions), output) as name:
        if str(questions) == DASH and input_format is None and first_bytes(name)[:1] not in (b"{", b"["):
            raise RequestError(f"{NAME}: expected JSON, found something else; say what it is with --input-format")
        check_source(QuestionFile(Path(name), input_format, *columns))
        with distributed(process_group, processes):
            from domain.biomedical.qa.answering import answer_file

            answered = answer_file(
                model,
                name,
                output,
                source_format=input_format,
                **dict(zip(("id_column", "question_column", "context_column"), columns, strict=True)),
                page=page,
                process_group=process_group,
                **options,
            )
    if process_group.is_main:
        write_out(json.dumps({"output": str(output), **answered._asdict()}) if as_json else _answered(answered, output))


def _answered(answered: "AnsweredFile", output: Path) -> str:
    """How many questions there are, and what was left out."""
    without = f", {answered.without_answer:,} of them without an answer" if answered.without_answer else ""
    first = f"{answered.questions:,} questions answered{without}, in {output}"
    reasons = {"too long": answered.too_long, "unusable, listed beside it": answered.rejected}
    left_out = ", ".join(f"{count:,} {why}" for why, count in reasons.items() if count)
    return f"{first}\nleft out: {left_out}" if left_out else first


@data.command()
def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE…",
            help="Annotated files or folders, or files of questions: train, dev and test, recognised by their names "
            "or by this order.",
            show_default=False,
        ),
    ] = None,
    train: SplitOption = None,
    dev: SplitOption = None,
    test: SplitOption = None,
    file_format: Annotated[
        CheckedFormat | None,
        option("--format", help="Format of all files.", panel=INPUT, show_default="by suffix and first keys"),
    ] = None,
    columns: Annotated[
        tuple[int, int],
        option(
            metavar="TOKEN TAG", help="Columns of CoNLL lines for both, from 0; negative from the end.", panel=INPUT
        ),
    ] = (0, -1),
    model: Annotated[
        str | None, option(metavar="MODEL", help=f"Measure lengths in its tokens too. {MODEL_HELP}")
    ] = None,
    with_text: Annotated[
        bool, option("--with-text", help="Show text and ids of sensitive data too.", panel=OUTPUT)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check annotated entities or questions before training: misaligned spans, leaks, duplicates, lengths.

    Of entities also illegal tags and rare types; of questions wrong offsets, repeated ids, and questions without an
    answer. Each check is good, warn or fail; the command ends with 1 when something fails.

    For example:

      bertrelay data check train.tsv devel.tsv test.tsv

      bertrelay data check --train corpus.pubtator --test other.jsonl --model MODEL

      bertrelay data check train-v2.0.json dev-v2.0.json
    """
    from domain.findings import exit_code

    named = {"train": train, "dev": dev, "test": test}
    splits = _splits(files or [], {split: path for split, path in named.items() if path is not None})
    if model is not None:
        check_model(model)
    with identifiers_shown() if with_text else nullcontext():
        findings = _findings(splits, file_format, model, columns)
    if as_json:
        write_out(json.dumps(_document(splits, findings), ensure_ascii=False))
    else:
        _print(splits, findings)
    raise typer.Exit(exit_code(findings))


def _findings(
    splits: dict[Any, Path], file_format: Any, model: str | None, columns: tuple[int, int]
) -> "list[Finding]":
    """The findings in files of entities, or of questions: by the format, else by what the files hold."""
    from domain.biomedical.documents import Columns
    from domain.biomedical.documents.checking import check as check_entities
    from domain.biomedical.qa.checking import are_questions, check_questions
    from domain.biomedical.qa.question_files import SHAPES

    named = file_format in ("squad", "bioasq")
    if named or (file_format in (None, "jsonl") and are_questions(splits)):
        return check_questions(splits, file_format, model)
    try:
        return check_entities(splits, file_format, model, Columns(*columns))
    except RequestError as error:
        if file_format is None and any(path.suffix == ".json" for path in splits.values()):
            raise RequestError(f"{error} Files of questions: {SHAPES}") from None
        raise


def _splits(files: Sequence[Path], named: dict[Any, Path]) -> dict[Any, Path]:
    """The file of each split. Raises RequestError for files that are given both ways, or not at all."""
    from domain.findings import splits_of

    if files and named:
        raise RequestError("give either files in order, or --train, --dev and --test, not both")
    return named or splits_of(files)


def _document(splits: dict[Any, Path], findings: "Sequence[Finding]") -> dict[str, Any]:
    from domain.findings import overall

    checks = [
        {"check": each.check, "verdict": each.severity, "told": each.summary, "figures": each.counts}
        for each in findings
    ]
    files = {split: str(path) for split, path in splits.items()}
    return {"files": files, "verdict": overall(findings), "checks": checks}


def _print(splits: dict[Any, Path], findings: "Sequence[Finding]") -> None:
    from domain.findings import report

    for split, path in splits.items():
        write_out(f"{split:5}  {path}")
    for line in report(findings):
        write_out(line, coloured=True)
