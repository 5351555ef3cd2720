"""`bertrelay ner tag`, `qa answer` and `qa bioasq`: entities and answers."""

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from bertrelay.compute.engine import Engine
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from domain.biomedical.documents.document import TEXT_ONLY
from domain.biomedical.documents.formats import TITLE_LINE, FormatName, read_documents
from domain.biomedical.ner.settings import TagOptions, TagSettings
from domain.biomedical.qa.settings import AnswerOptions, AnswerSettings, BioasqOptions
from pipelines.cli.options import (
    DATASET_HELP,
    Fields,
    ModelArgument,
    PlainGroup,
    WorkOptions,
    argument,
    check_idle,
    check_request,
    command,
    distributed,
    print_result,
)
from pipelines.cli.stdin import DASH, NAME, first_bytes, input_file

DATASETS = "input and output are Parquet datasets"
NO_DATASETS = "input and output are not both Parquet datasets"

ner = typer.Typer(help="Find the entities of biomedical texts.", no_args_is_help=True, cls=PlainGroup)
qa = typer.Typer(help="Answer questions from the texts beside them.", no_args_is_help=True, cls=PlainGroup)


@ner.callback()
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


@command(ner, names={"format": "--input-format", "output_format": "--format", "types": "--type"})
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
    reading: Annotated[Fields, TagSettings, "format", "repeated_ids"],
    tag_options: TagOptions,
    options: TagOutput,
    cluster: Engine,
) -> None:
    """Find the entities of every document in INPUT and write them to OUTPUT, each with its confidence.

    With --link they have the identifiers of a terminology, with --relate the documents have their relations.

    Documents may be of any length and number; offsets count characters of the text as given. Stop it at any time: the
    same command resumes. What could not be read, or not be written in the format, is counted and listed beside OUTPUT.

    For example:

      bertrelay ner tag runs/biomedical/ner/latest/model entities.test.pubtator tagged.pubtator

      bertrelay ner tag MODEL article.txt article.html

      bertrelay ner tag MODEL corpus.pubtator tagged.json --processes 2

      bertrelay ner tag MODEL abstracts.jsonl triples.csv --link LINKER --relate RELATIONS

      bertrelay ner tag MODEL abstracts.jsonl entities.jsonl --keep pmid --keep year

      bertrelay ner tag MODEL corpus.jsonl tagged.jsonl --engine ray --workers 8

      bertrelay ner tag MODEL s3://bucket/abstracts s3://bucket/tagged --keep pmid --engine ray
    """
    from bertrelay.data.parquet import writes_dataset

    check_request(model, options.processes)
    if output == DASH:
        raise RequestError(f"output: expected a file or a folder, found {DASH}; nothing is written to standard output")
    if writes_dataset(source, output):
        idle = {
            "--input-format": reading["format"],
            "--repeated-ids": reading["repeated_ids"] != "error",
            "--format": options.output_format,
            "--with-text": tag_options.with_text,
            "--link": tag_options.link,
            "--relate": tag_options.relate,
        }
        check_idle({**idle, "--max-rejects": tag_options.max_rejects != TagOptions().max_rejects}, DATASETS)
        from domain.biomedical.ner.predict_files import tag_dataset

        keywords = tag_options.model_dump(include={"types", "min_confidence", "precision", "batch_tokens"})
        keywords |= options.model_dump(include={"column", "keep", "overwrite"})
        with distributed(options.processes) as process_group:
            tagged: Any = tag_dataset(model, source, output, process_group=process_group, engine=cluster, **keywords)
    else:
        check_idle({"--column": options.column != "text"}, NO_DATASETS)
        settings = {"source_format": reading["format"], "repeated_ids": reading["repeated_ids"], **dict(tag_options)}
        settings |= {"engine": cluster, "keep": options.keep, "overwrite": options.overwrite}
        tagged = _tag_file(model, source, Path(output), settings, options)
    print_result("ner tag", tagged, output, options.as_json)


def _tag_file(model: str, source: str, output: Path, settings: dict[str, Any], options: TagOutput) -> Any:
    from domain.biomedical.ner.predict_files import checked_format, tag_file

    writing = {"with_text": settings["with_text"], "overwrite": options.overwrite}
    settings["output_format"] = checked_format(output, options.output_format, Path(source), **writing)
    with input_file(source, output) as name:
        if source == DASH:
            settings["source_format"] = settings["source_format"] or _lines(name)
        rejects = Rejects(None, limit=1)
        text_only = TEXT_ONLY._replace(repeated_ids=settings["repeated_ids"])
        next(read_documents(name, settings["source_format"], rejects, reading=text_only), None)  # shows most faults
        with distributed(options.processes) as process_group:
            return tag_file(model, name, output, process_group=process_group, **settings)


def _lines(name: str) -> FormatName:
    """The format of standard input: lines. Raises RequestError where it begins as another format does."""
    beginning = first_bytes(name)
    if beginning.startswith(b"{") or TITLE_LINE.match(beginning):
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
    answer_options: AnswerOptions,
    options: AnswersOutput,
    cluster: Engine,
) -> None:
    """Answer every question in INPUT from the context beside it, and write the answers to OUTPUT.

    A row for each question: the answer, its first and last character in the context, the probability that it is
    right, the sentence around it, and in JSONL other candidates. A model trained on unanswerable questions may find
    no answer. Contexts may be of any length. Stop it at any time: the same command resumes.

    For example:

      bertrelay qa answer runs/biomedical/qa/latest/model questions.test.json answered.csv

      bertrelay qa answer MODEL squad.json answers.csv --html page.html

      bertrelay qa answer MODEL s3://bucket/questions s3://bucket/answers --keep id --engine ray
    """
    from bertrelay.data.parquet import writes_dataset

    check_request(model, options.processes)
    if writes_dataset(questions, output):
        idle = {"--input-format": reading["format"], "--id": reading["id"], "--html": options.page}
        idle |= {
            "--with-text": answer_options.with_text,
            "--max-rejects": answer_options.max_rejects != AnswerOptions().max_rejects,
        }
        check_idle(idle, DATASETS)
        from domain.biomedical.qa.predict_files import answer_dataset

        keywords = {f"{name}_column": reading[name] for name in ("question", "context")}
        keywords |= answer_options.model_dump(exclude={"max_rejects", "with_text"})
        keywords |= {"keep": options.keep, "overwrite": options.overwrite, "engine": cluster}
        with distributed(options.processes) as process_group:
            answered: Any = answer_dataset(model, questions, output, process_group=process_group, **keywords)
    else:
        answered = _answer_file(
            model, questions, Path(output), reading, {"engine": cluster, **dict(answer_options)}, options
        )
    print_result("qa answer", answered, output, options.as_json)


def _answer_file(
    model: str, questions: str, output: Path, reading: Fields, settings: dict[str, Any], options: AnswersOutput
) -> Any:
    from domain.biomedical.qa.predict_files import QuestionFile, answer_file, check_outputs

    writing = {"with_text": settings["with_text"], "overwrite": options.overwrite}
    check_outputs(questions, output, options.page, option="--html", **writing)
    input_format = reading.pop("format")
    columns = {f"{name}_column": column for name, column in reading.items()}
    with input_file(questions, output) as name:
        if questions == DASH and input_format is None and first_bytes(name)[:1] not in (b"{", b"["):
            raise RequestError(f"{NAME}: expected JSON, found something else; say what it is with --input-format")
        rows = QuestionFile(Path(name), input_format, *columns.values()).questions()
        next(rows, None)  # one question shows most faults
        settings |= {"source_format": input_format, **columns, "page": options.page, "keep": options.keep}
        settings["overwrite"] = options.overwrite
        with distributed(options.processes) as process_group:
            return answer_file(model, name, output, process_group=process_group, **settings)


@command(qa, names={"whole_words": "--whole-words/--parts-of-words"})
def bioasq(
    model: ModelArgument,
    questions: Annotated[Path, argument("QUESTIONS", "BioASQ's JSON of phase B; .gz is unpacked.")],
    output: Annotated[Path, argument("OUTPUT", "A .json file, as BioASQ takes it.")],
    bioasq_options: BioasqOptions,
    options: WorkOptions,
    cluster: Engine,
) -> None:
    """Answer the questions of a BioASQ file from their snippets, and write a file that its evaluator takes.

    Factoid questions have up to 5 entries, lists up to 100 of at most 100 characters, yes/no questions one of both, and
    summaries no exact answer. Every question is written. Stop it at any time: the same command resumes.

    For example:

      bertrelay qa bioasq runs/biomedical/qa/latest/model BioASQ-task7bPhaseB-testset1.json answers.json
    """
    from domain.biomedical.qa.predict_bioasq import answer_bioasq, check_bioasq

    check_request(model, options.processes)
    check_bioasq(questions, output, overwrite=options.overwrite)
    keywords = {"engine": cluster, "overwrite": options.overwrite, **dict(bioasq_options)}
    with distributed(options.processes) as process_group:
        answered = answer_bioasq(model, questions, output, process_group=process_group, **keywords)
    print_result("qa bioasq", answered, output, options.as_json)
