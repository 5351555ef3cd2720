"""The stage `teachers.ablation`: the two tables of section 6 of Reimers & Gurevych (2019), a training for each cell."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.hardware import accelerator
from bertrelay.records import Rejects
from bertrelay.settings import InputFile
from bertrelay.stage import Metrics, StageContext
from bertrelay.statistics import spearman, with_interval
from bertrelay.tables import Table
from teachers.baselines.encoders import finite
from teachers.evaluation.facets import cosines_of
from teachers.evaluation.official import OfficialFiles
from teachers.evaluation.settings import AblationSettings
from teachers.evaluation.sts import StsPairs
from teachers.evaluation.sts_sets import read_sets
from teachers.settings import TrainSettings
from teachers.variants import trained, training_keys

SICK = "SICK_train.txt"
SICK_LABELS = ["sentence_A", "sentence_B", "entailment_judgment"]
STSB = {"sts-train.csv": ("tsv", [5, 6, 4]), "stsb-en-train.csv": ("csv", [0, 1, 2])}

Cell = tuple[str, str, str]
"""Table, row and column."""


def run(settings: AblationSettings, context: StageContext) -> Metrics:
    """`ablation/pooling/<pooling>/NLI` and `…/STSb`, `ablation/concatenation/<parts>/NLI`: Spearman on STSb's test."""
    files = OfficialFiles(Path(settings.data))
    pairs, ways = _test_pairs(files, settings, context), list(_ways(files, settings))
    metrics: Metrics = {}
    for cell, way in ways:  # a way that stands in both tables is trained once
        model, _ = trained(_name(way), way, context)
        if context.world.is_main:
            metrics |= _tested("/".join(["ablation", *cell]), model, pairs, settings.precision)
    return metrics


def _test_pairs(files: OfficialFiles, settings: AblationSettings, context: StageContext) -> StsPairs:
    with Rejects(None, settings.max_rejects) as rejects:
        found = read_sets(files, ["STSb"], context, rejects)["STSb"]
    if found is None:
        raise RequestError(f"data: expected the STS benchmark's sts-test.csv, found none below {settings.data}")
    return found.subsets[""]


def _ways(files: OfficialFiles, settings: AblationSettings) -> Iterator[tuple[Cell, TrainSettings]]:
    """Each cell of the tables with the training that it tells of."""
    nli, sts = settings.nli or [_sick(files)], [_stsb(files)]
    shared: dict[str, Any] = {
        "base": settings.base,
        "max_tokens": settings.max_tokens,
        "max_rejects": settings.max_rejects,
    }
    shared |= training_keys(settings)
    for pooling in settings.poolings:
        softmax = TrainSettings(objective="softmax", train=nli, pooling=[pooling], **shared)
        yield ("pooling", pooling, "NLI"), softmax
        yield ("pooling", pooling, "STSb"), TrainSettings(objective="cosine", train=sts, pooling=[pooling], **shared)
    for parts in settings.concatenations:
        softmax = TrainSettings(objective="softmax", train=nli, pooling=["mean"], concatenation=parts, **shared)
        yield ("concatenation", ", ".join(parts), "NLI"), softmax


def _sick(files: OfficialFiles) -> Table:
    return Table(path=_found(files, SICK), format="tsv", columns=list(SICK_LABELS))


def _stsb(files: OfficialFiles) -> Table:
    path = _found(files, *STSB)
    form, columns = STSB[Path(path).name.removesuffix(".gz")]
    return Table.model_validate({"path": path, "format": form, "header": False, "columns": columns})


def _found(files: OfficialFiles, *names: str) -> InputFile:
    path = files.find(*names)
    if path is None:
        raise RequestError(f"data: expected {' or '.join(names)}, found none below {files.data}")
    return InputFile(path.resolve())


def _name(way: TrainSettings) -> str:
    """A folder's name for what makes a way of training another one."""
    words = {"|u-v|": "difference", "u*v": "product"}
    return "-".join([way.objective, *(way.pooling or []), *(words.get(part, part) for part in way.concatenation)])


def _tested(name: str, model: Path, pairs: StsPairs, precision: str) -> Metrics:
    encoder = SentenceEncoder.load(model).to(accelerator().device)
    cosines = cosines_of(pairs, finite(partial(encoder.encode, precision=precision)))
    return with_interval(name, spearman, cosines, pairs.scores)
