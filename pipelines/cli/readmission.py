"""`bertrelay readmission score` and `bertrelay outcome score`: notes to the probability of what a model tells."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertrelay.errors import RequestError
from pipelines.cli.echo import echo
from pipelines.cli.models import check_model
from pipelines.cli.options import BatchOption, JsonOption, ModelArgument, OverwriteOption, PrecisionOption

if TYPE_CHECKING:
    from domain.clinical.scoring import ScoredFile

readmission = typer.Typer(no_args_is_help=True)
outcome = typer.Typer(no_args_is_help=True)

OF_READMISSIONS = """
Write to OUT how probable an unplanned return within 30 days is for each admission in NOTES.

For research only; this is no medical device. A row for each admission: P, the calibrated probability, the number
of chunks, and where the chunk stands that counts most. JSONL and Parquet have the shares of all chunks. Notes of
an admission may stand anywhere in the file. Stop it whenever you like: the same command goes on from there.

Places count characters of the admission's notes as they are read, cleaned and joined by empty lines, not of the file.
The alarm is true where P reaches the model's alarm threshold, which had the precision asked for (0.8) with 95 %
confidence on at least 20 alarms of the validation split; it is empty where no threshold had.

For example:

  bertrelay readmission score runs/clinic/readmission/latest/model notes.csv scores.csv

  bertrelay readmission score MODEL notes.jsonl scores.parquet --html page.html --admission @id.txt
"""
OF_ANY = """
Write to OUT how probable what MODEL tells is for each admission in NOTES.

For research only; this is no medical device. MODEL was trained by domain.outcome or domain.readmission, and its folder
says for what. Of deaths and returns a row holds what `bertrelay readmission score` writes; of lengths of stay and of
diagnoses the likeliest label and its P, and P of each label. Places count characters of the notes as they are read,
cleaned and joined by empty lines. Score early notes with a model of early notes. Stop it
whenever you like: the same command goes on from there.

For example:

  bertrelay outcome score runs/clinic-tasks/mortality/latest/model early.csv scores.csv
"""


@readmission.callback()
def of_readmissions(context: typer.Context) -> None:
    """Tell from notes how probable an unplanned return is."""
    context.obj = "readmission"


@outcome.callback()
def of_any(context: typer.Context) -> None:
    """Tell from notes what a model has learnt to: death in hospital, length of stay, diagnoses, return."""
    context.obj = None


@readmission.command(help=OF_READMISSIONS)
@outcome.command(help=OF_ANY)
def score(
    context: typer.Context,
    model: ModelArgument,
    notes: Annotated[
        Path,
        typer.Argument(metavar="NOTES", help="CSV, TSV, JSONL or Parquet with a row for each note; .gz is unpacked."),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write: a .csv, .jsonl or .parquet file.")],
    id_column: Annotated[str, typer.Option("--id", help="The column of the admission.")] = "hadm_id",
    text_column: Annotated[str, typer.Option("--text", help="The column of the note.")] = "text",
    cleaned: Annotated[
        bool, typer.Option("--cleaned", help="The notes are cleaned already, as a recipe's notes.parquet is.")
    ] = False,
    with_text: Annotated[
        bool, typer.Option("--with-text", help="Write the text of each top chunk as well; without, OUT has no text.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with the text of one admission.")
    ] = None,
    admission: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Which one --html shows; @FILE reads its id from a file, so that no list of processes shows it.",
            show_default="the only one",
        ),
    ] = None,
    max_rejects: Annotated[
        float, typer.Option(min=0, max=1, help="The share of rows that may be left out as unusable.")
    ] = 0.01,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    precision: PrecisionOption = "auto",
    batch_tokens: BatchOption = None,
) -> None:
    """Scores for the task that the command before it names, for any where it names none."""
    from bertrelay.files import check_output
    from domain.clinical.score_files import SUFFIXES, NotesTable, check_notes
    from pipelines.trouble import stopping_at_once

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
            precision=precision,
            batch_tokens=batch_tokens,
        )
    echo(json.dumps({"output": str(output), **scored._asdict()}) if as_json else _text(scored, output))


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


def _text(scored: "ScoredFile", output: Path) -> str:
    """How many admissions there are, and what was left out."""
    alarms = "" if scored.alarms is None else f", {scored.alarms:,} alarms"
    first = f"{scored.admissions:,} admissions, {scored.chunks:,} chunks{alarms}, in {output}"
    told = {"admissions without text": scored.without_text, "without a known word": scored.unknown_text}
    told |= {"rows that cannot be used": scored.rejected}
    left_out = ", ".join(f"{count:,} {what}" for what, count in told.items() if count)
    return f"{first}\nwithout a probability: {left_out}" if left_out else first
