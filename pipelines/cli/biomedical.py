"""`bertrelay ner tag`, `qa answer` and `data check`: entities, answers, and checks of annotated data."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field

from bertrelay.compute.engine import Engine
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.privacy import show_identifiers
from domain.biomedical.documents.conll import Columns
from domain.biomedical.documents.document import TEXT_ONLY
from domain.biomedical.documents.formats import TITLE_LINE, FormatName, read_documents
from domain.biomedical.ner.settings import TagOptions, TagSettings
from domain.biomedical.qa.settings import AnswerOptions, AnswerSettings, QuestionFormat
from domain.checks import Finding, exit_code, findings_json, report, splits_of
from pipelines.cli.options import (
    DATASET_HELP,
    Fields,
    JsonOption,
    ModelArgument,
    PlainGroup,
    WorkOptions,
    argument,
    check_idle,
    check_request,
    command,
    distributed,
    print_result,
    write_out,
)
from pipelines.cli.stdin import DASH, NAME, first_bytes, input_file

DATASETS = "input and output are Parquet datasets"
NO_DATASETS = "input and output are not both Parquet datasets"

ner = typer.Typer(help="Find the entities of biomedical texts.", no_args_is_help=True, cls=PlainGroup)
qa = typer.Typer(help="Answer questions from the texts beside them.", no_args_is_help=True, cls=PlainGroup)
data = typer.Typer(help="Check data before training on it.", no_args_is_help=True, cls=PlainGroup)


@ner.callback()
@qa.callback()
def _() -> None:
    """Keeps a group with one command a group."""


class TagOutput(WorkOptions):
    """Options of writing entities."""

    output_format: FormatName | None = None
    """Format of OUTPUT; by its suffix when absent."""
    column: str = "text"
    """Column of the text of a dataset."""
    keep: list[str] = Field(default=[])
    """Columns or fields of a dataset or JSONL that the output has too."""


@command(ner, names={"format": "--input-format", "output_format": "--format"})
def tag(
    model: ModelArgument,
    source: Annotated[
        str,
        argument(
            "INPUT",
            "Raw text, JSONL, PubTator, BioC, CoNLL, or a folder of text or brat; .gz is unpacked. "
            "- is standard input, a document in each line unless --input-format says otherwise. "
            "Or a dataset: Parquet files, in a folder or at an address such as s3://BUCKET/FOLDER.",
        ),
    ],
    output: Annotated[
        str,
        argument("OUTPUT", f"The suffix chooses the format, no suffix is brat; {DATASET_HELP}"),
    ],
    reading: Annotated[Fields, TagSettings, "format"],
    how: TagOptions,
    options: TagOutput,
    cluster: Engine,
) -> None:
    """Find the entities of every document in INPUT and write them to OUTPUT, each with its confidence.

    Documents may be of any length and number; offsets count characters of the text as given. Stop it at any time: the
    same command resumes. What could not be read, or not be written in the format, is counted and listed beside OUTPUT.

    For example:

      bertrelay ner tag runs/biomedical/ner/latest/model abstracts.jsonl entities.jsonl

      bertrelay ner tag MODEL article.txt article.html

      bertrelay ner tag MODEL corpus.pubtator tagged.json --processes 2

      bertrelay ner tag MODEL abstracts.jsonl entities.jsonl --keep pmid --keep year

      bertrelay ner tag MODEL corpus.jsonl tagged.jsonl --engine ray --workers 8

      bertrelay ner tag MODEL s3://bucket/abstracts s3://bucket/tagged --keep pmid --engine ray
    """
    from bertrelay.data.parquet import writes_dataset

    check_request(model, options.processes)
    if output == DASH:
        raise RequestError(f"output: expected a file or a folder, found {DASH}; nothing is written to standard output")
    if writes_dataset(source, output):
        idle = {"--input-format": reading["format"], "--format": options.output_format, "--with-text": how.with_text}
        check_idle({**idle, "--max-rejects": how.max_rejects != TagOptions().max_rejects}, DATASETS)
        from domain.biomedical.ner.predict_files import tag_dataset

        given = how.model_dump(include={"precision", "batch_tokens"})
        given |= options.model_dump(include={"column", "keep", "overwrite"})
        with distributed(options.processes) as process_group:
            tagged: Any = tag_dataset(model, source, output, process_group=process_group, engine=cluster, **given)
    else:
        check_idle({"--column": options.column != "text"}, NO_DATASETS)
        settings = {"source_format": reading["format"], "engine": cluster, "keep": options.keep, **dict(how)}
        settings["overwrite"] = options.overwrite
        tagged = _tag_file(model, source, Path(output), settings, options)
    print_result(tagged, output, options.as_json)


def _tag_file(model: str, source: str, output: Path, settings: dict[str, Any], options: TagOutput) -> Any:
    from domain.biomedical.ner.predict_files import checked_format, tag_file

    given = {"with_text": settings["with_text"], "overwrite": options.overwrite}
    settings["output_format"] = checked_format(output, options.output_format, Path(source), **given)
    with input_file(source, output) as name:
        if source == DASH:
            settings["source_format"] = settings["source_format"] or _lines(name)
        rejects = Rejects(None, limit=1)
        next(read_documents(name, settings["source_format"], rejects, reading=TEXT_ONLY), None)  # shows most faults
        with distributed(options.processes) as process_group:
            return tag_file(model, name, output, process_group=process_group, **settings)


def _lines(name: str) -> FormatName:
    """Of standard input: a document in each line. Raises RequestError where it begins as another format does."""
    found = first_bytes(name)
    if found.startswith(b"{") or TITLE_LINE.match(found):
        raise RequestError(
            "standard input: expected a document in each line, found what begins as JSON or PubTator. Say what it is: "
            "--input-format jsonl, bioc, pubtator, or lines if each line is a text"
        )
    return "lines"


class AnswersOutput(WorkOptions):
    """Options of writing answers."""

    page: Path | None = None
    """Write a page of the contexts with marked answers."""
    keep: list[str] = Field(default=[])
    """Columns or fields of a dataset or JSONL that the output has too."""


@command(qa, names={"format": "--input-format", "whole_words": "--whole-words/--parts-of-words"})
def answer(
    model: ModelArgument,
    questions: Annotated[
        str,
        argument(
            "INPUT",
            "CSV, TSV, JSONL or Parquet with a row for each question, or SQuAD's or BioASQ's JSON; "
            ".gz is unpacked. - is standard input, JSON unless --input-format says otherwise. "
            "Or a dataset: Parquet files, in a folder or at an address such as s3://BUCKET/FOLDER.",
        ),
    ],
    output: Annotated[
        str,
        argument("OUTPUT", f"A .jsonl, .csv or .parquet file; {DATASET_HELP}"),
    ],
    reading: Annotated[Fields, AnswerSettings, "id", "question", "context", "format"],
    how: AnswerOptions,
    options: AnswersOutput,
    cluster: Engine,
) -> None:
    """Answer every question in INPUT from the context beside it, and write the answers to OUTPUT.

    A row for each question: the answer, its first and last character in the context, the probability that it is
    right, the sentence around it, and in JSONL other candidates. A model trained on unanswerable questions may find
    no answer. Contexts may be of any length. Stop it at any time: the same command resumes.

    For example:

      bertrelay qa answer runs/biomedical/qa/latest/model questions.csv answers.jsonl

      bertrelay qa answer MODEL squad.json answers.csv --html page.html

      bertrelay qa answer MODEL s3://bucket/questions s3://bucket/answers --keep id --engine ray
    """
    from bertrelay.data.parquet import writes_dataset

    check_request(model, options.processes)
    if writes_dataset(questions, output):
        idle = {"--input-format": reading["format"], "--id": reading["id"], "--html": options.page}
        idle |= {"--with-text": how.with_text, "--max-rejects": how.max_rejects != AnswerOptions().max_rejects}
        check_idle(idle, DATASETS)
        from domain.biomedical.qa.predict_files import answer_dataset

        given = {f"{name}_column": reading[name] for name in ("question", "context")}
        given |= how.model_dump(exclude={"max_rejects", "with_text"})
        given |= {"keep": options.keep, "overwrite": options.overwrite, "engine": cluster}
        with distributed(options.processes) as process_group:
            answered: Any = answer_dataset(model, questions, output, process_group=process_group, **given)
    else:
        answered = _answer_file(model, questions, Path(output), reading, {"engine": cluster, **dict(how)}, options)
    print_result(answered, output, options.as_json)


def _answer_file(
    model: str, questions: str, output: Path, reading: Fields, settings: dict[str, Any], options: AnswersOutput
) -> Any:
    from domain.biomedical.qa.predict_files import QuestionFile, answer_file, check_outputs

    given = {"with_text": settings["with_text"], "overwrite": options.overwrite}
    check_outputs(questions, output, options.page, option="--html", **given)
    input_format = reading.pop("format")
    columns = {f"{name}_column": column for name, column in reading.items()}
    with input_file(questions, output) as name:
        if questions == DASH and input_format is None and first_bytes(name)[:1] not in (b"{", b"["):
            raise RequestError(f"{NAME}: expected JSON, found something else; say what it is with --input-format")
        asked = QuestionFile(Path(name), input_format, *columns.values()).questions()
        next(asked, None)  # one question shows most faults
        settings |= {"source_format": input_format, **columns, "page": options.page, "keep": options.keep}
        settings["overwrite"] = options.overwrite
        with distributed(options.processes) as process_group:
            return answer_file(model, name, output, process_group=process_group, **settings)


class CheckOptions(JsonOption):
    """Files to check, and how to read them."""

    train: Path | None = None
    """File of train, whatever its name."""
    dev: Path | None = None
    """File of dev, whatever its name."""
    test: Path | None = None
    """File of test, whatever its name."""
    format: Literal[FormatName, QuestionFormat] | None = None
    """Format of all files; by suffix and first keys when absent."""
    columns: tuple[int, int] = (0, -1)
    """Columns of token and tag in lines of CoNLL, from 0; negative from the end."""
    model: str | None = None
    """Measure lengths in the tokens of this model too: a folder, a hub id, or package:name/path."""
    with_text: bool = False
    """Show text and ids of sensitive data too."""


@command(data, names={"columns": "--columns TOKEN TAG", "model": "--model MODEL"})
def check(
    options: CheckOptions,
    files: Annotated[
        list[Path] | None,
        argument(
            "FILE…",
            "Annotated files or folders, or files of questions: train, dev and test, recognised by their names or by "
            "this order.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check annotated entities or questions before training: misaligned spans, leaks, duplicates, lengths.

    Of entities also illegal tags and rare types; of questions wrong offsets, repeated ids, and questions without an
    answer. Each check is good, warn or fail; the command ends with 1 when something fails.

    For example:

      bertrelay data check train.tsv devel.tsv test.tsv

      bertrelay data check --train corpus.pubtator --test other.jsonl --model MODEL

      bertrelay data check train-v2.0.json dev-v2.0.json
    """
    named: dict[Any, Path | None] = {"train": options.train, "dev": options.dev, "test": options.test}
    splits = {split: path for split, path in named.items() if path is not None}
    if files and splits:
        raise RequestError("give either files in order, or --train, --dev and --test, not both")
    splits = splits or splits_of(files or [])
    if options.model is not None:
        check_request(options.model)
    with show_identifiers() if options.with_text else nullcontext():
        findings = _findings(splits, options)
    if options.as_json:
        paths = {split: str(path) for split, path in splits.items()}
        write_out(json.dumps({"files": paths, **findings_json(findings)}, ensure_ascii=False))
    else:
        for split, path in splits.items():
            write_out(f"{split:5}  {path}")
        for line in report(findings):
            write_out(line, coloured=True)
    raise typer.Exit(exit_code(findings))


def _findings(splits: dict[Any, Path], options: CheckOptions) -> list[Finding]:
    """The findings in files of entities, or of questions: by the format, else by what the files contain."""
    from domain.biomedical.ner.check import check as check_entities
    from domain.biomedical.qa.check import are_questions, check_questions
    from domain.biomedical.qa.question_files import SHAPES

    found: Any = options.format
    if found in ("squad", "bioasq") or (found in (None, "jsonl") and are_questions(splits)):
        return check_questions(splits, found, options.model)
    try:
        return check_entities(splits, found, options.model, Columns(*options.columns))
    except RequestError as error:
        if found is None and any(path.suffix.lower() == ".json" for path in splits.values()):
            raise RequestError(f"{error} Files of questions: {SHAPES}") from None
        raise
