"""`bertrelay data check` and `data audit`, checks of data before a training; `data convert` and `data score`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field

from bertrelay.errors import RequestError
from bertrelay.privacy import show_identifiers
from bertrelay.settings import MaxRejects
from domain.biomedical.documents.conll import Columns
from domain.biomedical.documents.document import RepeatedIds
from domain.biomedical.documents.formats import FormatName
from domain.biomedical.qa.settings import QuestionFormat
from domain.checks import Finding, splits_of
from domain.clinical.settings import AuditSettings
from pipelines.cli.options import (
    Fields,
    JsonOption,
    OutputOptions,
    PlainGroup,
    argument,
    check_idle,
    check_request,
    command,
    in_words,
    print_document,
    print_findings,
    write_out,
)
from pipelines.run.errors import stopping_at_once

data = typer.Typer(help="Check data before training on it, and convert it.", no_args_is_help=True, cls=PlainGroup)


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
    repeated_ids: RepeatedIds = "error"
    """Meaning of a record of PubTator with the id of the one before it: an `error`, or the next of its document's
    `passages`, as full texts are written."""
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

      bertrelay data check entities.train.tsv entities.dev.tsv entities.test.tsv

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
    print_findings("data check", findings, options.as_json, splits)


def _findings(splits: dict[Any, Path], options: CheckOptions) -> list[Finding]:
    """The findings in files of entities, or of questions: by the format, else by what the files contain."""
    from domain.biomedical.ner.check import check as check_entities
    from domain.biomedical.qa.check import are_questions, check_questions
    from domain.biomedical.qa.question_files import SHAPES

    file_format: Any = options.format
    if file_format in ("squad", "bioasq") or (file_format in (None, "jsonl") and are_questions(splits)):
        check_idle({"--repeated-ids": options.repeated_ids != "error"}, "files of questions have no passages")
        return check_questions(splits, file_format, options.model)
    try:
        return check_entities(splits, file_format, options.model, Columns(*options.columns), options.repeated_ids)
    except RequestError as error:
        if file_format is None and any(path.suffix.lower() == ".json" for path in splits.values()):
            raise RequestError(f"{error} Files of questions: {SHAPES}") from None
        raise


@command(data)
def audit(
    files: Annotated[list[Path], argument("FILE…", "cohort.parquet, notes.parquet, or others with a column split.")],
    settings: Annotated[Fields, AuditSettings, "near"],
    shown: JsonOption,
) -> None:
    """Find subjects, admissions and texts that train, validation and test share, in all files together.

    Prints counts and row numbers, never a text or an identifier. Ends with exit code 1 at a leak.

    For example:

      bertrelay data audit runs/clinic/notes/latest/notes.parquet
    """
    from domain.clinical.leakage import find_split_leakage

    with stopping_at_once():
        findings = find_split_leakage(files, **settings)
    print_findings("data audit", findings, shown.as_json)


class ConvertOptions(OutputOptions):
    """Formats of a conversion, and what is left out on the way."""

    input_format: FormatName | None = None
    """Format of INPUT; by its suffix when absent."""
    format: FormatName | None = None
    """Format of OUTPUT; by its suffix when absent."""
    repeated_ids: RepeatedIds = "error"
    """Meaning of a record of PubTator with the id of the one before it: an `error`, or the next of its document's
    `passages`, as full texts are written."""
    drop_misplaced: bool = False
    """Leave out, and count, an entity at wrong offsets, in place of its document."""
    max_rejects: MaxRejects = 0.01
    """Fraction of documents that may be unusable, and that the format of OUTPUT may be unable to hold."""
    with_text: bool = False
    """Allow a page of sensitive documents, as it shows their text."""


@command(data)
def convert(
    source: Annotated[Path, argument("INPUT", "An annotated file, or a folder of brat; .gz is unpacked.")],
    output: Annotated[Path, argument("OUTPUT", "The suffix chooses the format, no suffix is brat.")],
    options: ConvertOptions,
) -> None:
    """Convert annotated documents: PubTator, BioC JSON and XML, brat, JSONL, CoNLL, spaCy's DocBin, an HTML page.

    Entities, identifiers, relations and passages stay as far as the format of OUTPUT holds them. What it cannot hold
    is counted by kind. Documents that cannot be read, or not be written at all, are listed beside OUTPUT.

    For example:

      bertrelay data convert entities.test.pubtator entities.test.xml

      bertrelay data convert CDR_TestSet.BioC.xml folder_of_brat

      bertrelay data convert train.iob1 train.iobes

      bertrelay data convert fulltext.pubtator fulltext.xml --repeated-ids passages
    """
    from domain.biomedical.documents.convert import convert_file

    converted = convert_file(
        source,
        output,
        source_format=options.input_format,
        output_format=options.format,
        **options.model_dump(exclude={"input_format", "format", "as_json"}),
    )._asdict()
    if options.as_json:
        print_document("data convert", converted, output)
        return
    left_out = converted.pop("left_out")
    write_out(in_words(output, converted))
    if left_out:
        write_out("left out: " + ", ".join(f"{count:,} × {kind}" for kind, count in left_out.items()))


class ScoreOptions(JsonOption):
    """Formats of two files, and the annotations that count."""

    gold_format: FormatName | None = None
    """Format of GOLD; by its suffix when absent."""
    format: FormatName | None = None
    """Format of PREDICTED; by its suffix when absent."""
    types: list[str] = Field(default=[])
    """Types of mentions and concepts that count; all when absent."""
    directed: bool = False
    """Count a relation only if the roles of its arguments are right, too."""


@command(data, names={"types": "--type"})
def score(
    gold: Annotated[Path, argument("GOLD", "Annotated documents, in any format.")],
    predicted: Annotated[Path, argument("PREDICTED", "The same documents with predicted annotations.")],
    options: ScoreOptions,
) -> None:
    """Score annotated documents against gold ones: mentions, concepts and relations, each once in a document.

    Counts of right, spurious and missed ones, precision, recall and F1. Relations count as pairs of concepts or
    mentions, with their type, and where the gold data has it with their novelty. BioASQ's files are scored as its
    evaluator does.

    For example:

      bertrelay data score entities.test.pubtator entities.test.jsonl

      bertrelay data score CDR_sample.gold.PubTator.txt CDR_sample.test.DNER.PubTator.txt --type Disease

      bertrelay data score gold.xml predicted.jsonl --directed --json

      bertrelay data score 7B1_golden.json answers.json
    """
    from domain.biomedical.documents.score import score_files
    from domain.biomedical.qa.question_files import question_format_of

    idle = {"--gold-format": options.gold_format, "--format": options.format, "--type": options.types}
    if not any(idle.values()) and gold.is_file() and ".json" in gold.suffixes and question_format_of(gold) == "bioasq":
        check_idle({"--directed": options.directed}, "these are questions")
        from domain.biomedical.qa.bioasq import score_bioasq

        metrics = score_bioasq(gold, predicted)
    else:
        metrics = score_files(
            gold,
            predicted,
            gold_format=options.gold_format,
            predicted_format=options.format,
            types=options.types,
            directed=options.directed,
        )
    if options.as_json:
        print_document("data score", metrics)
        return
    for name, value in metrics.items():
        write_out(f"{name}: {value:.4f}" if isinstance(value, float) else f"{name}: {value:,}")
