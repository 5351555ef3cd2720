"""`bertrelay readmission score`, `outcome score`, `data audit` and `terms`: what is done with clinical models."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertrelay.encoder_settings import EncodeSettings
from bertrelay.errors import RequestError
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics
from domain.clinical.settings import AuditSettings
from domain.terms.settings import TERM, TermsSettings
from pipelines.cli.biomedical import data
from pipelines.cli.options import (
    AS_COLUMN,
    FILE_HELP,
    INPUT,
    OUTPUT,
    FormatOption,
    HeaderOption,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    check_model,
    command,
    option,
    table_of,
    validated,
    write_out,
)

if TYPE_CHECKING:
    from domain.clinical.scoring import ScoredFile

PANEL = "Clinical"

readmission = typer.Typer(no_args_is_help=True)
outcome = typer.Typer(no_args_is_help=True)
vocabularies = typer.Typer()

OF_READMISSIONS = """
Write to OUT the probability of an unplanned readmission within 30 days for each admission in NOTES.

For research only; this is no medical device. A row for each admission: P, the calibrated probability, the number
of chunks, and the place of the chunk that counts most. JSONL and Parquet have the weights of all chunks. Notes of
an admission may stand anywhere in the file. Stop it at any time: the same command resumes.

Places count characters of the admission's notes as they are read, cleaned and joined by empty lines, not of the file.
The alarm is true where P reaches the model's alarm threshold, which had the requested precision (0.8) with 95 %
confidence on at least 20 alarms of the validation split; it is empty where no threshold had.

For example:

  bertrelay readmission score runs/clinic/readmission/latest/model notes.csv scores.csv

  bertrelay readmission score MODEL notes.jsonl scores.parquet --html page.html --admission @id.txt
"""
OF_ANY = """
Write to OUT the probability of the outcome that MODEL predicts for each admission in NOTES.

For research only; this is no medical device. MODEL was trained by domain.outcome or domain.readmission, and its folder
says for which outcome. For deaths and readmissions a row holds what `bertrelay readmission score` writes; for lengths
of stay and diagnoses the likeliest label and its P, and P of each label. Places count characters of the notes as they
are read, cleaned and joined by empty lines. Score early notes with a model of early notes. Stop it at any time: the
same command resumes.

For example:

  bertrelay outcome score runs/clinic-tasks/mortality/latest/model early.csv scores.csv
"""


@readmission.callback()
def of_readmissions(context: typer.Context) -> None:
    """Predict from notes how probable an unplanned readmission is."""
    context.obj = "readmission"


@outcome.callback()
def of_any(context: typer.Context) -> None:
    """Predict from notes what a model was trained for: death in hospital, length of stay, diagnoses, readmission."""
    context.obj = None


@command(readmission, EncodeSettings, "precision", "batch_tokens", help=OF_READMISSIONS)
@command(outcome, EncodeSettings, "precision", "batch_tokens", help=OF_ANY)
def score(
    context: typer.Context,
    model: ModelArgument,
    notes: Annotated[
        Path,
        typer.Argument(metavar="NOTES", help="CSV, TSV, JSONL or Parquet with a row for each note; .gz is unpacked."),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="A .csv, .jsonl or .parquet file.")],
    id_column: Annotated[str, option("--id", help="Column of the admission.", panel=INPUT)] = "hadm_id",
    text_column: Annotated[str, option("--text", help="Column of the note.", panel=INPUT)] = "text",
    cleaned: Annotated[
        bool, option("--cleaned", help="The notes are cleaned already, as a recipe's notes.parquet is.", panel=INPUT)
    ] = False,
    max_rejects: Annotated[float, option(min=0, max=1, help="Share of rows that may be unusable.", panel=INPUT)] = 0.01,
    with_text: Annotated[
        bool, option("--with-text", help="Write the text of each top chunk; without, OUT has no text.", panel=OUTPUT)
    ] = False,
    page: Annotated[
        Path | None,
        option("--html", metavar="FILE", help="Write a page with the text of one admission.", panel=OUTPUT),
    ] = None,
    admission: Annotated[
        str | None,
        option(
            metavar="ID",
            help="Which one --html shows; @FILE reads its id from a file, so that no list of processes shows it.",
            panel=OUTPUT,
            show_default="the only one",
        ),
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Scores for the task of the group that the command is called in, for any where it has none."""
    from bertrelay.files import check_output
    from domain.clinical.score_files import SUFFIXES, NotesTable, check_notes
    from pipelines.error_handling import stopping_at_once

    check_model(model)
    check_output(output, SUFFIXES, notes, overwrite=overwrite)
    if page is not None:
        check_output(page, (".html",), option="--html", overwrite=overwrite)
    elif admission is not None:
        raise RequestError("--admission: without effect without --html; give both, or neither")
    if admission is not None and admission.startswith("@"):
        admission = _id_in(Path(admission[1:]))
    check_notes(NotesTable(notes, id_column, text_column))
    with stopping_at_once():
        from domain.clinical.scoring import score_file

        scored = score_file(
            model,
            notes,
            output,
            task=context.obj,
            id_column=id_column,
            text_column=text_column,
            cleaned=cleaned,
            with_text=with_text,
            page=page,
            admission=admission,
            max_rejects=max_rejects,
            **options,
        )
    write_out(json.dumps({"output": str(output), **scored._asdict()}) if as_json else _scored(scored, output))


def _id_in(file: Path) -> str:
    """The id of an admission that is all that a file holds."""
    try:
        found = file.read_text(encoding="utf-8-sig").split()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"--admission: expected a file with an id, found none that can be read at {file} ({type(error).__name__})"
        ) from None
    if len(found) != 1:
        raise RequestError(f"--admission: expected one id in {file}, found {len(found):,} words; leave one there")
    return found[0]


def _scored(scored: "ScoredFile", output: Path) -> str:
    """How many admissions there are, and what was left out."""
    alarms = "" if scored.alarms is None else f", {scored.alarms:,} alarms"
    first = f"{scored.admissions:,} admissions, {scored.chunks:,} chunks{alarms}, in {output}"
    reasons = {"admissions without text": scored.without_text, "without a known word": scored.unknown_text}
    reasons |= {"rows that cannot be used": scored.rejected}
    left_out = ", ".join(f"{count:,} {what}" for what, count in reasons.items() if count)
    return f"{first}\nwithout a probability: {left_out}" if left_out else first


@command(data, AuditSettings, "near")
def audit(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="cohort.parquet, notes.parquet, or others with a column split."),
    ],
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Find subjects, admissions and texts that train, validation and test share, in all files together.

    Prints counts and row numbers, never a text or an identifier. Ends with exit code 1 at a leak.

    For example:

      bertrelay data audit runs/clinic/cohort/latest/cohort.parquet runs/clinic/notes/latest/notes.parquet
    """
    from domain.clinical.audit import finding_json, look_for_leaks
    from domain.findings import exit_code
    from pipelines.error_handling import stopping_at_once

    with stopping_at_once():
        findings = look_for_leaks(files, **options)
    if as_json:
        write_out(json.dumps({"findings": [finding_json(finding) for finding in findings]}))
    else:
        for finding in findings:
            write_out(f"{finding.severity}  {finding.summary}", coloured=True)
    raise typer.Exit(exit_code(findings))


@command(
    vocabularies,
    TermsSettings,
    *("layers", "k", "perplexity", "seed", "output", "max_rejects", "precision", "batch_tokens"),
    names={"k": "-k", "output": "--vectors"},
    rich_help_panel=PANEL,
)
def terms(
    model: ModelArgument,
    source: Annotated[str, typer.Argument(metavar="TERMS", help=FILE_HELP)],
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write into.")],
    column: Annotated[
        str | None, option(help=f"Column of the term. {AS_COLUMN}", panel=INPUT, show_default="term, or the line")
    ] = None,
    group: Annotated[
        str | None, option(help=f"Column of its group. {AS_COLUMN}", panel=INPUT, show_default="group, if it exists")
    ] = None,
    ratings: Annotated[
        str | None,
        option(metavar="FILE", help="Human ratings: a table with columns term1, term2 and score.", panel=INPUT),
    ] = None,
    file_format: FormatOption = None,
    header: HeaderOption = True,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Write the vectors of the medical terms in TERMS, their neighbours and a picture into the folder OUT.

    The nearest neighbours of each term are in neighbours.csv, the picture by t-SNE, coloured by group, in tsne.svg and
    tsne.png. With --ratings also the correlation of the cosines with human ratings.

    For example:

      bertrelay terms runs/clinic/pretraining/latest/model terms.csv terms

      bertrelay terms MODEL words.txt terms --ratings rated.tsv --layers last
    """
    from pipelines.error_handling import stopping_at_once

    check_model(model)
    columns = [column or TERM, *([group] if group else [])] if column or group else None
    tables = {
        "terms": table_of(source, columns, file_format, header),
        "ratings": None if ratings is None else table_of(ratings),
    }
    settings = validated(TermsSettings, {"model": ModelSource.parse(model), **tables, **options})
    with stopping_at_once():
        from domain.terms.terms import describe_terms

        metrics = describe_terms(settings, folder, overwrite=overwrite)
    write_out(json.dumps({"output": str(folder), "metrics": metrics}) if as_json else _described(metrics, folder))


def _described(metrics: Metrics, folder: Path) -> str:
    """How many terms there are, and how good their vectors are where that is known."""
    from pipelines.report.tables import cell_of, figures

    first = f"{metrics['terms/count']:,.0f} terms of {metrics['terms/dim']:,.0f} dimensions in {folder}"
    known = {name: figure for name, figure in figures(metrics).items() if figure.interval}
    rows = [f"{cell_of('', name, 'domain.terms').row}: {figure} ({figure.interval})" for name, figure in known.items()]
    return "\n".join([first, *rows])
