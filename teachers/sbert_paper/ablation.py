"""The stage `teachers.ablation`: both tables of section 6 of Reimers & Gurevych (2019), a training for each cell.

The paper's scores are means over ten seeds; set `seeds` in a recipe for them.
"""

from collections.abc import Iterator
from pathlib import Path

from bertrelay.data.records import Rejects
from bertrelay.data.tables import Table
from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import spearman, with_interval
from bertrelay.settings import InputFile, common_values
from bertrelay.stage import Metrics, StageContext
from teachers import train
from teachers.evaluation.encoders import encoder_at
from teachers.evaluation.sts import read_sts
from teachers.sbert_paper.official import OfficialFiles
from teachers.sbert_paper.settings import AblationSettings
from teachers.sbert_paper.sts_sets import SCALES, stsb_files
from teachers.sbert_paper.training import train_once
from teachers.settings import StsTable, TrainSettings

WORDS = {"|u-v|": "difference", "u*v": "product"}  # in names of folders


def run(settings: AblationSettings, context: StageContext) -> Metrics:
    """Trains each cell and scores it on STSb by Spearman.

    The metrics are `ablation/pooling/<pooling>/NLI` and `…/STSb`, and `ablation/concatenation/<parts>/NLI`.
    """
    files = OfficialFiles(Path(settings.data))
    trainings = list(_trainings(files, settings))
    table = _stsb(files, settings.part)
    with Rejects(None, settings.max_rejects) as rejects:
        pairs = read_sts(table, context, rejects)
    lowest, highest = SCALES["STSb"]
    if pairs.scores.min() < lowest or pairs.scores.max() > highest:
        raise RequestError(
            f"{table.name}: expected gold scores from {lowest:g} to {highest:g}, found one outside. Is it another file?"
        )
    precision, metrics = context.precision(settings.precision), Metrics()
    for cell, training in trainings:  # a training of both tables runs once
        parts = [WORDS.get(part, part) for part in training.concatenation]
        name = "-".join([training.objective, *(training.pooling or []), *parts])
        model = train_once(name, train.run, training, context)
        if context.process_group.is_main:
            cosines = pairs.similarities(encoder_at(model, precision))["cosine"]
            metrics |= with_interval(f"ablation/{cell}", spearman, cosines, pairs.scores)
    return metrics


def _trainings(files: OfficialFiles, settings: AblationSettings) -> Iterator[tuple[str, TrainSettings]]:
    """Yields each cell of the tables, named table/row/column, with its training."""
    nli = settings.nli
    if not nli:
        path = _find(files, "SICK_train.txt").resolve()
        nli = [Table(path=InputFile(path), format="tsv", columns=["sentence_A", "sentence_B", "entailment_judgment"])]
    sts: list[Table] = [_stsb(files, "train")]
    shared = common_values(settings, TrainSettings)
    for pooling in settings.poolings:
        softmax = TrainSettings(objective="softmax", train=nli, pooling=[pooling], **shared)
        yield f"pooling/{pooling}/NLI", softmax
        yield f"pooling/{pooling}/STSb", TrainSettings(objective="cosine", train=sts, pooling=[pooling], **shared)
    for parts in settings.concatenations:
        softmax = TrainSettings(objective="softmax", train=nli, pooling=["mean"], concatenation=parts, **shared)
        yield f"concatenation/{', '.join(parts)}/NLI", softmax


def _stsb(files: OfficialFiles, part: str) -> StsTable:
    """Finds a part of the STS benchmark, in the official file or that of stsb-multi-mt."""
    formats = stsb_files(part)
    path = _find(files, *formats)
    return StsTable(path=InputFile(path.resolve()), **formats[path.name.removesuffix(".gz")])


def _find(files: OfficialFiles, *names: str) -> Path:
    path = files.find(*names)
    if path is None:
        raise RequestError(f"data: expected {' or '.join(names)}, found none below {files.data}")
    return path
