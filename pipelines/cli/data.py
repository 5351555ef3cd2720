"""`bertrelay data check` and `data audit`: checks of data before a training."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bertrelay.errors import RequestError
from bertrelay.privacy import show_identifiers
from domain.biomedical.documents.conll import Columns
from domain.biomedical.documents.formats import FormatName
from domain.biomedical.qa.settings import QuestionFormat
from domain.checks import Finding, splits_of
from domain.clinical.settings import AuditSettings
from pipelines.cli.options import (
    Fields,
    JsonOption,
    PlainGroup,
    argument,
    check_request,
    command,
    print_findings,
)
from pipelines.run.errors import stopping_at_once

data = typer.Typer(help="Check data before training on it.", no_args_is_help=True, cls=PlainGroup)


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
        return check_questions(splits, file_format, options.model)
    try:
        return check_entities(splits, file_format, options.model, Columns(*options.columns))
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
