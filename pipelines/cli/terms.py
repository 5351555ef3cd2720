"""`bertrelay terms`: what a model holds medical terms for."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics
from domain.terms.settings import MAX_REJECTS, NEIGHBOURS, TERM, Layers, TermsSettings
from pipelines.cli.echo import echo
from pipelines.cli.models import check_model
from pipelines.cli.options import (
    BatchOption,
    FormatOption,
    HeaderOption,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    PrecisionOption,
    table_of,
)


def terms(
    model: ModelArgument,
    source: Annotated[
        str, typer.Argument(metavar="TERMS", help="Lines of text, CSV, TSV, JSONL or Parquet; .gz is unpacked.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write into; made when it is not there.")],
    column: Annotated[
        str | None,
        typer.Option(
            help="The column of the term: its name, or its position from 0.", show_default="term, or the line"
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="The column of its group, likewise.", show_default="group, where it is there")
    ] = None,
    ratings: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="How alike people find two terms: a table with columns term1, term2 and score."
        ),
    ] = None,
    layers: Annotated[
        Layers, typer.Option(help="last_four: their sum, as in the ClinicalBERT paper; last: the last one alone.")
    ] = "last_four",
    k: Annotated[int, typer.Option("-k", min=1, help="So many neighbours of each term.")] = NEIGHBOURS,
    perplexity: Annotated[
        float | None,
        typer.Option(
            min=1, help="Of the t-SNE: how many others a term counts as near.", show_default="by the number of terms"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the t-SNE and the intervals: another seed, another picture.")] = 7,
    vectors: Annotated[
        Literal["npy", "parquet"],
        typer.Option(help="What file the vectors stand in; Parquet has the terms beside them."),
    ] = "npy",
    max_rejects: Annotated[
        float, typer.Option(min=0, max=1, help="The share of terms and ratings that may be left out as unusable.")
    ] = MAX_REJECTS,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    file_format: FormatOption = None,
    header: HeaderOption = True,
    precision: PrecisionOption = "auto",
    batch_tokens: BatchOption = None,
) -> None:
    """Write what MODEL holds the medical terms in TERMS for into the folder OUT.

    Their vectors, the nearest neighbours of each (neighbours.csv), and a picture by t-SNE, coloured by group
    (tsne.svg, tsne.png). With --ratings also how far the cosines agree with what people say.

    For example:

      bertrelay terms runs/clinic/pretraining/latest/model terms.csv terms

      bertrelay terms MODEL words.txt terms --ratings rated.tsv --layers last
    """
    from pipelines.trouble import stopping_at_once

    check_model(model)
    settings = TermsSettings(
        model=ModelSource.parse(model),
        terms=table_of(source, _columns(column, group), file_format, header),
        ratings=None if ratings is None else table_of(ratings, None, None, True),
        layers=layers,
        k=k,
        perplexity=perplexity,
        seed=seed,
        output=vectors,
        max_rejects=max_rejects,
        precision=precision,
        batch_tokens=batch_tokens,
    )
    with stopping_at_once():
        from domain.terms.terms import describe_terms

        metrics = describe_terms(settings, output, overwrite=overwrite)
    echo(json.dumps({"output": str(output), "metrics": metrics}) if as_json else _text(metrics, output))


def _columns(term: str | None, group: str | None) -> list[str] | None:
    named = [term or TERM, *([group] if group else [])]
    return named if term or group else None


def _text(metrics: Metrics, output: Path) -> str:
    """What there is now, and how good it is where that is known."""
    from pipelines.scores import TERMS, figures

    first = f"{metrics['terms/count']:,.0f} terms of {metrics['terms/dim']:,.0f} dimensions in {output}"
    known = {name: figure for name, figure in figures(metrics).items() if figure.interval}
    told = [f"{TERMS[name.removeprefix('terms/')]}: {figure} ({figure.interval})" for name, figure in known.items()]
    return "\n".join([first, *told])
