"""`bertrelay readmission score`, `outcome score` and `terms`: what is done with clinical models."""

from pathlib import Path
from typing import Annotated

import typer

from bertrelay.compute.engine import Engine
from bertrelay.errors import RequestError
from bertrelay.files import check_output
from bertrelay.settings import ModelSource
from domain.clinical.settings import OutcomeName, ScoreOptions
from domain.terms import TERM, TermsSettings, describe_terms
from pipelines.cli.options import (
    DATASET_HELP,
    FILE_HELP,
    Fields,
    ModelArgument,
    OutputOptions,
    PlainGroup,
    TableOptions,
    argument,
    check_idle,
    check_request,
    command,
    print_document,
    print_result,
    validated,
    write_out,
)
from pipelines.cli.stdin import input_file
from pipelines.run.errors import stopping_at_once

readmission = typer.Typer(
    help="Predict from notes how probable an unplanned readmission is.", no_args_is_help=True, cls=PlainGroup
)
outcome = typer.Typer(
    help="Predict from notes what a model was trained for: death in hospital, length of stay, diagnoses, readmission.",
    no_args_is_help=True,
    cls=PlainGroup,
)
term_commands = typer.Typer()

OF_READMISSIONS = """
Write to OUT the probability of an unplanned readmission for each admission in NOTES, within the days (30) that MODEL
was trained for.

For research only; this is no medical device. A row for each admission: P, the calibrated probability, the number
of chunks, and the position of the chunk that counts most. JSONL and Parquet have the weights of all chunks. The notes
of an admission need not follow one another. Stop it at any time: the same command resumes.

Positions count characters of the admission's notes, cleaned and joined by empty lines, and not those of the file.
The alarm is true where P reaches the model's alarm threshold, which had the requested precision (0.8) with 95 %
confidence on at least 20 alarms of the validation split. It is empty for a model without a threshold.

For example:

  bertrelay readmission score runs/clinic/readmission/latest/model runs/clinic/notes/latest/notes.parquet risk.csv

  bertrelay readmission score MODEL notes.jsonl scores.parquet --html page.html --admission @id.txt

  bertrelay readmission score MODEL s3://bucket/notes s3://bucket/scores --engine ray --workers 8
"""
OF_ANY = """
Write to OUT the probability of the outcome that MODEL predicts for each admission in NOTES.

For research only; this is no medical device. MODEL was trained by domain.outcome or domain.readmission, and its folder
names the outcome. For deaths and readmissions a row has the columns of `bertrelay readmission score`; for lengths of
stay and diagnoses the likeliest label and its P, and P of each label. Positions count characters of the notes, cleaned
and joined by empty lines. Score early notes with a model that was trained on early notes. Stop it at any time: the
same command resumes.

For example:

  bertrelay outcome score runs/clinic/readmission/latest/model runs/clinic/notes/latest/notes.parquet outcomes.csv
"""


@readmission.callback()
@outcome.callback()
def _() -> None:
    """Keeps a group with one command a group."""


class ScoreCommand(ScoreOptions, OutputOptions):
    """Options of scoring notes and of writing a page beside OUT."""

    page: Path | None = None
    """Write a page with the text of one admission."""
    admission: str | None = None
    """Admission that --html shows, the only one when absent; @FILE reads its id from a file, so that no list of
    processes shows it."""


NAMES = {"id_column": "--id", "text_column": "--text", "admission": "--admission ID"}


@command(readmission, names=NAMES, text=OF_READMISSIONS)
@command(outcome, names=NAMES, text=OF_ANY)
def score(
    context: typer.Context,
    model: ModelArgument,
    notes: Annotated[
        str,
        argument(
            "NOTES",
            "CSV, TSV, JSONL or Parquet with a row for each note, .gz is unpacked; - is CSV on standard input. Or a "
            "dataset: a folder of Parquet files, or an address such as s3://BUCKET/FOLDER.",
        ),
    ],
    output: Annotated[
        str,
        argument("OUT", f"A .csv, .jsonl or .parquet file; {DATASET_HELP}"),
    ],
    options: ScoreCommand,
    cluster: Engine,
) -> None:
    """Scores notes for the task of the command's group; `outcome` takes a model of any task."""
    check_request(model)
    settings, admission = options.model_dump(exclude={"as_json"}), options.admission
    if admission is not None and options.page is None:
        raise RequestError("--admission: without effect without --html; give both, or neither")
    if options.page is not None:
        check_output(options.page, (".html",), option="--html", overwrite=options.overwrite)
    if admission is not None and admission.startswith("@"):
        file = Path(admission[1:])
        try:
            ids = file.read_text(encoding="utf-8-sig").split()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(
                f"--admission: expected a file with an id, found none that can be read at {file} "
                f"({type(error).__name__})"
            ) from None
        if len(ids) != 1:
            raise RequestError(f"--admission: expected one id in {file}, found {len(ids):,} words; leave one there")
        settings["admission"] = ids[0]
    group = context.parent.info_name if context.parent else None
    task: OutcomeName | None = "readmission" if group == "readmission" else None
    with stopping_at_once(), input_file(notes, output, ".csv") as name:
        from bertrelay.data.parquet import is_dataset
        from domain.clinical.predict_files import score_dataset, score_file

        if is_dataset(output):
            check_idle({"--html": settings.pop("page"), "--admission": settings.pop("admission")}, "OUT is a dataset")
            scored = score_dataset(model, name, output, task=task, engine=cluster, **settings)
        else:
            scored = score_file(model, name, output, task=task, engine=cluster, **settings)
    print_result(f"{task or 'outcome'} score", scored, output, options.as_json)


class TermsOptions(TableOptions, OutputOptions):
    """Options of reading terms and ratings."""

    column: str | None = None
    """Column of the term, by name, or by position from 0; `term`, or the line, when absent."""
    group: str | None = None
    """Column of its group; `group`, if it exists, when absent."""
    ratings: str | None = None
    """Human ratings: a table with columns term1, term2 and score."""


@command(
    term_commands, names={"k": "-k", "output": "--vectors", "ratings": "--ratings FILE"}, rich_help_panel="Clinical"
)
def terms(
    model: ModelArgument,
    source: Annotated[str, argument("TERMS", FILE_HELP)],
    folder: Annotated[Path, argument("OUT", "Folder to write into.")],
    settings: Annotated[
        Fields, TermsSettings, "layers", "k", "perplexity", "seed", "output", "max_rejects", "precision", "batch_tokens"
    ],
    options: TermsOptions,
) -> None:
    """Write the vectors of the medical terms in TERMS, their neighbours and a picture into the folder OUT.

    The nearest neighbours of each term are in neighbours.csv, the picture by t-SNE, coloured by group, in tsne.svg and
    tsne.png. With --ratings also the correlation of the cosines with human ratings.

    For example:

      bertrelay terms runs/clinic/pretraining/latest/model runs/clinic/hospital/latest/terms.csv terms

      bertrelay terms MODEL words.txt terms --ratings rated.tsv --layers last
    """
    check_request(model)
    columns = [options.column or TERM, *filter(None, [options.group])] if options.column or options.group else None
    ratings = None if options.ratings is None else TableOptions().table(options.ratings)
    with stopping_at_once(), input_file(source, folder) as name:
        sources = {"model": ModelSource.parse(model), "terms": options.table(name, columns), "ratings": ratings}
        checked = validated(TermsSettings, {**sources, **settings})
        metrics = describe_terms(checked, folder, overwrite=options.overwrite)
    if options.as_json:
        print_document("terms", {"metrics": metrics}, folder)
        return
    from pipelines.report.tables import cell_of, metric_values

    first = f"{metrics['terms/count']:,.0f} terms of {metrics['terms/dim']:,.0f} dimensions in {folder}"
    measured = {name: value for name, value in metric_values(metrics).items() if value.interval}
    rows = [f"{cell_of('', name, 'domain.terms').row}: {value} ({value.interval})" for name, value in measured.items()]
    write_out("\n".join([first, *rows]))
