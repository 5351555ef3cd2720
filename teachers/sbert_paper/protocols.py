"""The stage `teachers.protocols`: encoders scored on the sets of the SBERT paper, or on tasks of mteb."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.progress import log
from bertrelay.settings import common_values
from bertrelay.stage import Metrics, StageContext
from teachers.evaluation.settings import MtebSettings
from teachers.sbert_paper import senteval
from teachers.sbert_paper.encoders import Fit, at_once, fit_of
from teachers.sbert_paper.facets import facet_metrics, read_topics
from teachers.sbert_paper.official import OfficialFiles
from teachers.sbert_paper.sections import read_sections, section_metrics
from teachers.sbert_paper.settings import SETS, ProtocolSettings
from teachers.sbert_paper.sts_sets import read_sets, set_metrics, without_year

Items = TypeVar("Items")
Score = Callable[[Fit], Metrics]
"""The metrics of an encoder by a protocol whose files are read."""


def run(settings: ProtocolSettings, context: StageContext) -> Metrics:
    """Computes the metrics of the protocols; only the main process does."""
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        scores = read_protocols(settings, context, rejects, precision, context.output)
    return _score(fit_of(settings, precision, context.cache), scores)


def evaluate(settings: ProtocolSettings, results: Path | None = None) -> Metrics:
    """Computes the metrics of the protocols outside of a recipe, for `bertrelay evaluate`.

    results: the folder of mteb's results; its default when None.
    """
    nowhere = Path()  # only mteb writes anything, and only the model and mteb's data are read from the hub
    with Rejects(None) as rejects:
        scores = read_protocols(settings, StageContext(nowhere, Cache(nowhere)), rejects, settings.precision, results)
    return _score(fit_of(settings, settings.precision), scores)


def _score(fit: Fit, scores: list[Score]) -> Metrics:
    return {name: value for score in scores for name, value in score(fit).items()}


def read_protocols(
    settings: ProtocolSettings,
    context: StageContext,
    rejects: Rejects,
    precision: str = "fp32",
    results: Path | None = None,
) -> list[Score]:
    """Reads and checks the files of each protocol, so that errors precede the loading of a model.

    precision: of tasks of mteb. results: the folder of mteb's results; its default when None.
    Raises RequestError for a set that is named and missing, or a protocol without any of its sets.
    """
    scores = []
    for protocol in settings.protocols:
        if protocol == "mteb":
            scores.append(_read_mteb(settings, context, rejects, precision, results))
        else:
            files = OfficialFiles(Path(settings.data or ""))
            scores.append(_read(protocol, files, settings, context, rejects))
    return scores


def _read_mteb(
    settings: ProtocolSettings, context: StageContext, rejects: Rejects, precision: str, results: Path | None
) -> Score:
    from teachers.evaluation.mteb import read_tasks, task_metrics  # of an optional package

    choice = MtebSettings(**common_values(settings, MtebSettings))
    tasks = read_tasks(choice, context, rejects)
    return lambda _: task_metrics(choice, tasks, precision, context.cache, results)


def _read(
    protocol: str, files: OfficialFiles, settings: ProtocolSettings, context: StageContext, rejects: Rejects
) -> Score:
    names = [name for name in SETS[protocol] if name in settings.sets] or list(SETS[protocol])
    match protocol:
        case "sts":
            sets = read_sets(files, names, context, rejects)
            path = without_year(files, [name for name in names if sets[name] is None])
            hint = "is a file of an STS year, but no folder below DIR names one year: name its folder so, as "
            pairs = _present(protocol, sets, settings, f". {path} {hint}STS13-en-test" if path else "")
            return lambda fit: set_metrics(pairs, at_once(fit))
        case "senteval":
            labelled = _present(protocol, senteval.read_sets(files, names, settings.folds), settings)
            return lambda fit: senteval.transfer_metrics(labelled, at_once(fit), settings.folds, settings.seed)
        case "facets":
            topics = _present(protocol, {"AFS": read_topics(files)}, settings)["AFS"]
            return lambda fit: facet_metrics(topics, at_once(fit))
        case _:
            triplets = _present(protocol, {"sections": read_sections(files, context, rejects)}, settings)["sections"]
            return lambda fit: section_metrics(triplets, fit)


def _present(
    protocol: str, sets: Mapping[str, Items | None], settings: ProtocolSettings, hint: str = ""
) -> dict[str, Items]:
    """Returns the sets that exist; raises RequestError where none does, or a named one does not."""
    present = {name: items for name, items in sets.items() if items is not None}
    missing = [name for name in sets if name not in present]
    if missing and (not present or not set(missing).isdisjoint(settings.sets)):
        raise RequestError(
            f"{protocol}: expected the official files of {', '.join(missing)}, found none below {settings.data}{hint}. "
            "`bertrelay samples DIR` writes synthetic ones in DIR/sbert-paper"
        )
    if missing:
        left_out = f"{protocol}: not below {settings.data} and left out: {', '.join(missing)}"
        log(f"{left_out}; there is no mean over all sets{hint}")
    return present
