"""`bertrelay data`: a look at data before something is learnt from it."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bertrelay.errors import RequestError
from bertrelay.privacy import identifiers_shown
from domain.biomedical.documents import FormatName
from domain.biomedical.qa.question_files import QuestionFormat
from pipelines.cli.audit import audit
from pipelines.cli.echo import echo
from pipelines.cli.models import MODEL_HELP, check_model
from pipelines.cli.options import JsonOption, WithTextOption

if TYPE_CHECKING:
    from domain.findings import Finding

data = typer.Typer(help="Look at data before learning from it.", no_args_is_help=True)

CheckedFormat = Literal[FormatName, QuestionFormat]

SplitOption = Annotated[Path | None, typer.Option(metavar="FILE", help="The file of this split, whatever its name.")]


@data.command()
def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE…",
            help="Annotated files or folders, or files of questions: train, dev and test, told apart by their names "
            "or by this order.",
            show_default=False,
        ),
    ] = None,
    train: SplitOption = None,
    dev: SplitOption = None,
    test: SplitOption = None,
    file_format: Annotated[
        CheckedFormat | None,
        typer.Option("--format", help="What all files are.", show_default="by suffix and first keys"),
    ] = None,
    columns: Annotated[
        tuple[int, int],
        typer.Option(metavar="TOKEN TAG", help="Where CoNLL lines have the two, from 0; negative from the end."),
    ] = (0, -1),
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help=f"Measure lengths in its word pieces too. {MODEL_HELP}")
    ] = None,
    with_text: WithTextOption = False,
    as_json: JsonOption = False,
) -> None:
    """Look at annotated entities or questions before training: misaligned spans, leaks, duplicates, lengths.

    Of entities also illegal tags and rare types; of questions wrong offsets, ids given twice, and what has no answer.
    Each is good, warn or fail; the command ends with 1 when something fails.

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
        echo(json.dumps(_document(splits, findings), ensure_ascii=False))
    else:
        _print(splits, findings)
    raise typer.Exit(exit_code(findings))


def _findings(
    splits: dict[Any, Path], file_format: Any, model: str | None, columns: tuple[int, int]
) -> "list[Finding]":
    """What is found in files of entities, or of questions: told by the format, else by what the files hold."""
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
        echo(f"{split:5}  {path}")
    for line in report(findings):
        echo(line, coloured=True)


data.command()(audit)
