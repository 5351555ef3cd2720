"""The stage `teachers.protocols`: any encoder, as it is, scored by what Sentence-BERT was scored by."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext
from teachers.evaluation import transfer
from teachers.evaluation.facets import facet_metrics, read_topics
from teachers.evaluation.names import SETS
from teachers.evaluation.official import OfficialFiles
from teachers.evaluation.sections import read_sections, section_metrics
from teachers.evaluation.settings import ProtocolSettings
from teachers.evaluation.sts import Fit, at_once
from teachers.evaluation.sts_sets import read_sets, set_metrics, without_year

Read = TypeVar("Read")
Score = Callable[[Fit], Metrics]
"""What a protocol whose files are read makes of an encoder."""


def run(settings: ProtocolSettings, context: StageContext) -> Metrics:
    """The figures of every protocol asked for; the main process does it, as others have nothing to add."""
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        scores = read_protocols(settings, context, rejects)
    return scored(settings, scores, context.cache)


def read_protocols(settings: ProtocolSettings, context: StageContext, rejects: Rejects) -> list[Score]:
    """Each protocol with its files read and checked, so that what is wrong is told before a model is loaded.

    Raises RequestError for a set that is asked for by name and not there, or a protocol of which none is there.
    """
    files = OfficialFiles(Path(settings.data))
    return [_read(protocol, files, settings, context, rejects) for protocol in settings.protocols]


def scored(settings: ProtocolSettings, scores: list[Score], cache: Path | None) -> Metrics:
    """The figures of the encoder that `settings` name; `cache` is where a model of the hub is kept."""
    from teachers.baselines.encoders import fit_of  # torch, which reading and checking files does without

    fit = fit_of(settings, cache)
    return {name: value for score in scores for name, value in score(fit).items()}


def _read(
    protocol: str, files: OfficialFiles, settings: ProtocolSettings, context: StageContext, rejects: Rejects
) -> Score:
    names = [name for name in SETS[protocol] if name in settings.sets] or list(SETS[protocol])
    match protocol:
        case "sts":
            sets = read_sets(files, names, context, rejects)
            pairs = _there(protocol, sets, settings, _hint(files, [name for name in names if sets[name] is None]))
            return lambda fit: set_metrics(pairs, at_once(fit))
        case "senteval":
            labelled = _there(protocol, transfer.read_sets(files, names, settings.folds), settings)
            return lambda fit: transfer.transfer_metrics(labelled, at_once(fit), settings.folds, settings.seed)
        case "facets":
            topics = _there(protocol, {"AFS": read_topics(files)}, settings)["AFS"]
            return lambda fit: facet_metrics(topics, at_once(fit))
        case _:
            triplets = _there(protocol, {"sections": read_sections(files, context, rejects)}, settings)["sections"]
            return lambda fit: section_metrics(triplets, fit)


def _hint(files: OfficialFiles, missing: list[str]) -> str:
    """What to do where a year is missing because the folder of its files does not say that they are its."""
    path = without_year(files, missing)
    told = "is a file of an STS year, but no folder below DIR names one year: name its folder so, as STS13-en-test"
    return f". {path} {told}" if path else ""


def _there(
    protocol: str, found: Mapping[str, Read | None], settings: ProtocolSettings, hint: str = ""
) -> dict[str, Read]:
    """What was found; raises RequestError where that is nothing, or not what was asked for by name."""
    there = {name: read for name, read in found.items() if read is not None}
    missing = [name for name in found if name not in there]
    if missing and (not there or any(name in settings.sets for name in missing)):
        raise RequestError(
            f"{protocol}: expected the official files of {', '.join(missing)}, found none below {settings.data}{hint}. "
            "`bertrelay samples DIR` writes made-up ones in DIR/sbert-paper"
        )
    if missing:
        left_out = f"{protocol}: not below {settings.data} and left out: {', '.join(missing)}"
        log(f"{left_out}; there is no mean over all sets{hint}")
    return there
