"""The stage `teachers.protocols`: encoders scored on the sets of the SBERT paper, or on tasks of mteb.

For comparison with the papers also Wikipedia sections (Ein Dor et al. 2018): of three sentences of an article, the two
of one section are nearer.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects, read
from bertrelay.data.tables import Record, Table
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.progress import log
from bertrelay.settings import InputFile, Metric
from bertrelay.stage import Metrics, StageContext
from teachers.data import BLANK, usable
from teachers.evaluation.settings import MtebSettings
from teachers.sbert_paper import senteval
from teachers.sbert_paper.encoders import Fit, at_once, fit_of
from teachers.sbert_paper.facets import facet_metrics, read_topics
from teachers.sbert_paper.official import OfficialFiles
from teachers.sbert_paper.settings import SETS, TRIPLET, ProtocolSettings, common_values
from teachers.sbert_paper.sts_sets import read_sets, set_metrics, without_year

Triplets = Sequence[tuple[str, str, str]]
"""Anchor, positive, negative."""
Found = TypeVar("Found")
Score = Callable[[Fit], Metrics]
"""What a protocol whose files are read makes of an encoder."""

BLOCK = 1_024  # triplets: the official files' two hundred thousand would take gigabytes of vectors
MEASURES: dict[str, Metric] = {"accuracy": "euclidean", "accuracy_cosine": "cosine"}


def run(settings: ProtocolSettings, context: StageContext) -> Metrics:
    """The metrics of the protocols; only the main process computes them."""
    settings = settings.model_copy(update={"precision": context.precision(settings.precision)})
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        scores = read_protocols(settings, context, rejects, context.output)
    return scored(settings, scores, context.cache)


def evaluate(settings: ProtocolSettings, results: Path | None = None) -> Metrics:
    """The metrics of the protocols outside of a recipe, for `bertrelay evaluate`.

    results: the folder in which mteb keeps its own; without one, it is mteb's.
    """
    nowhere = Path()  # nothing but mteb's results is written, and nothing of the hub read but the model and its data
    with Rejects(None) as rejects:
        scores = read_protocols(settings, StageContext(nowhere, Cache(nowhere)), rejects, results)
    return scored(settings, scores, None)


def read_protocols(
    settings: ProtocolSettings, context: StageContext, rejects: Rejects, results: Path | None = None
) -> list[Score]:
    """Each protocol with its files read and checked, so that errors come before a model is loaded.

    results: the folder in which mteb keeps its own; without one, it is mteb's.
    Raises RequestError for a set that is named and missing, or a protocol of which none is there.
    """
    scores = []
    for protocol in settings.protocols:
        if protocol == "mteb":
            scores.append(_read_mteb(settings, context, rejects, results))
        else:
            files = OfficialFiles(Path(settings.data or ""))
            scores.append(_read(protocol, files, settings, context, rejects))
    return scores


def _read_mteb(settings: ProtocolSettings, context: StageContext, rejects: Rejects, results: Path | None) -> Score:
    from teachers.evaluation.mteb import read_tasks, task_metrics  # of an optional package

    # A precision that is resolved is no setting any more, so the values are not validated again.
    choice = MtebSettings.model_construct(**common_values(settings, MtebSettings))
    tasks = read_tasks(choice, context, rejects)
    return lambda _: task_metrics(choice, tasks, context.cache, results)


def scored(settings: ProtocolSettings, scores: list[Score], cache: Cache | None) -> Metrics:
    """The metrics of the encoder that `settings` name; `cache` is where a model of the hub is kept."""
    fit = fit_of(settings, cache)
    return {name: value for score in scores for name, value in score(fit).items()}


def _read(
    protocol: str, files: OfficialFiles, settings: ProtocolSettings, context: StageContext, rejects: Rejects
) -> Score:
    names = [name for name in SETS[protocol] if name in settings.sets] or list(SETS[protocol])
    match protocol:
        case "sts":
            sets = read_sets(files, names, context, rejects)
            path = without_year(files, [name for name in names if sets[name] is None])
            hint = "is a file of an STS year, but no folder below DIR names one year: name its folder so, as "
            pairs = _there(protocol, sets, settings, f". {path} {hint}STS13-en-test" if path else "")
            return lambda fit: set_metrics(pairs, at_once(fit))
        case "senteval":
            labelled = _there(protocol, senteval.read_sets(files, names, settings.folds), settings)
            return lambda fit: senteval.transfer_metrics(labelled, at_once(fit), settings.folds, settings.seed)
        case "facets":
            topics = _there(protocol, {"AFS": read_topics(files)}, settings)["AFS"]
            return lambda fit: facet_metrics(topics, at_once(fit))
        case _:
            triplets = _there(protocol, {"sections": read_sections(files, context, rejects)}, settings)["sections"]
            return lambda fit: section_metrics(triplets, fit)


def _there(
    protocol: str, found: Mapping[str, Found | None], settings: ProtocolSettings, hint: str = ""
) -> dict[str, Found]:
    """What was found; raises RequestError where that is nothing, or a named set is missing."""
    there = {name: each for name, each in found.items() if each is not None}
    missing = [name for name in found if name not in there]
    if missing and (not there or not set(missing).isdisjoint(settings.sets)):
        raise RequestError(
            f"{protocol}: expected the official files of {', '.join(missing)}, found none below {settings.data}{hint}. "
            "`bertrelay samples DIR` writes made-up ones in DIR/sbert-paper"
        )
    if missing:
        left_out = f"{protocol}: not below {settings.data} and left out: {', '.join(missing)}"
        log(f"{left_out}; there is no mean over all sets{hint}")
    return there


def read_sections(files: OfficialFiles, context: StageContext, rejects: Rejects) -> Triplets | None:
    """The triplets of `test.csv`, in a folder that is named after them; None when it is not there."""
    path = files.find("test.csv", within=r"wiki|sections")
    if path is None:
        return None

    def triplet(record: Record) -> tuple[str, str, str]:
        anchor, positive, negative = record.values
        if not all(sentence.strip() for sentence in record.values):
            raise ValueError(BLANK)
        return anchor, positive, negative

    records = read(Table(path=InputFile(path.resolve())), TRIPLET, context.cache, rejects)
    return list(usable(records, triplet, rejects))


def section_metrics(triplets: Triplets, fit: Fit) -> Metrics:
    """`sections/accuracy`: how often the positive is nearer than the negative, by Euclidean distance and by cosine."""
    encode = fit([sentence for triplet in triplets for sentence in triplet])
    blocks = []  # whether the positive is nearer, by each of `MEASURES`, (measures, triplets)
    for start in range(0, len(triplets), BLOCK):
        columns = zip(*triplets[start : start + BLOCK], strict=True)
        a, p, n = np.split(encode([sentence for column in columns for sentence in column]), 3)  # (triplets, dim) each
        blocks.append([pairwise(a, p, measure) > pairwise(a, n, measure) for measure in MEASURES.values()])
    metrics: Metrics = {}
    for name, nearer in zip(MEASURES, np.concatenate(blocks, axis=1), strict=True):
        metrics |= with_interval(f"sections/{name}", share, nearer)
    return metrics
