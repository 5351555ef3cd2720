"""`bertrelay evaluate`: any encoder, scored by the protocols of the SBERT paper."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertrelay.errors import RequestError
from bertrelay.settings import ModelSource
from pipelines.cli.echo import echo
from pipelines.cli.models import check_model
from pipelines.cli.options import PrecisionOption

if TYPE_CHECKING:
    from teachers.evaluation.settings import ProtocolSettings

TF_IDF = "tf-idf"


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model folder, a hub id or package:name/path; a text file of word vectors; or tf-idf.",
        ),
    ],
    protocols: Annotated[
        list[str],
        typer.Option("--protocol", help="sts, senteval, facets or sections; may be given several times."),
    ],
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="A folder with the official files, wherever below it.")
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="SET", help="Only this set, such as STSb or MRPC; may be given several times."),
    ] = None,
    pooling: Annotated[
        list[str] | None, typer.Option(help="Pool by cls, mean or max in place of the model's own way.")
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Of the classifications without a test set.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of how the folds are drawn.")] = 0,
    precision: PrecisionOption = "fp32",
    as_json: Annotated[bool, typer.Option("--json", help="Print every figure as one JSON document.")] = False,
) -> None:
    """Score MODEL, as it is, by what Sentence-BERT was scored by: similarity, classification, arguments, sections.

    Prints tables with 95 % intervals and what was published for comparison; --json has every correlation as well.

    For example:

      bertrelay evaluate runs/sbert/stsb/latest/model --protocol sts --data SentEval/data/downstream

      bertrelay evaluate glove.840B.300d.txt.gz --protocol sts --protocol senteval --data SentEval/data/downstream

      bertrelay samples my-samples && bertrelay evaluate tf-idf --protocol sts --data my-samples/sbert-paper
    """
    from bertrelay.data.records import Rejects
    from bertrelay.stage import StageContext
    from pipelines.cli.tables import score_lines
    from teachers.evaluation.protocols import read_protocols, scored

    settings = _settings(
        model,
        protocols=list(dict.fromkeys(protocols)),
        data=str(data),
        sets=sets or [],
        folds=folds,
        seed=seed,
        **({"pooling": pooling} if pooling else {}),
        **({"precision": precision} if precision != "fp32" else {}),
    )
    nowhere = Path()  # nothing is written, and nothing of the hub read but the model
    with Rejects(None) as rejects:
        scores = read_protocols(settings, StageContext(nowhere, nowhere), rejects)
    metrics = scored(settings, scores, cache=None)
    if as_json:
        echo(json.dumps({"model": model, "metrics": metrics}, ensure_ascii=False, indent=2))
    else:
        echo("\n".join(score_lines({model: metrics}, intervals=True)))


def _settings(model: str, **given: Any) -> "ProtocolSettings":
    """What the stage `teachers.protocols` would be given. Raises RequestError, naming the option."""
    from pydantic import ValidationError

    from pipelines.mistakes import told
    from teachers.evaluation.settings import ProtocolSettings

    try:
        return ProtocolSettings.model_validate({**_source(model), **given})
    except ValidationError as error:
        raise RequestError(told(ProtocolSettings, error)) from error


def _source(model: str) -> dict[str, Any]:
    if model == TF_IDF:
        return {"tfidf": True}
    if Path(model).is_file():
        return {"glove": model}
    if (Path(model) / "bilstm.json").is_file():
        return {"bilstm": model}
    check_model(model)
    return {"model": ModelSource.parse(model)}
