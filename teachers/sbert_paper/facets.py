"""Argument Facet Similarity (Misra et al. 2016): how far two arguments about a topic make the same point.

Scored without training by a protocol; in folds of training and test by the stage `teachers.facets`.
"""

import csv
from io import StringIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.tables import Table
from bertrelay.data.writing import json_line
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.evaluation.encode import Encode
from bertrelay.evaluation.statistics import Floats
from bertrelay.files import write_text
from bertrelay.progress import log
from bertrelay.settings import InputFile, common_values
from bertrelay.stage import Metrics, StageContext
from teachers import train
from teachers.data import SCORED_PAIRS, number
from teachers.evaluation.encoders import encoder_at
from teachers.evaluation.sts import ScoredPart, StsPairs
from teachers.pairs import train as pair_training
from teachers.pairs.model import CrossEncoder
from teachers.pairs.settings import CrossEncoderSettings
from teachers.sbert_paper.official import OfficialFiles, gold_score, read_lines
from teachers.sbert_paper.settings import FacetSettings
from teachers.sbert_paper.sts_sets import correlations, part_correlations, without_gold
from teachers.sbert_paper.training import train_once
from teachers.settings import TrainSettings

TOPICS = {"gun-control": "ArgPairs_GC.csv", "gay-marriage": "ArgPairs_GM.csv", "death-penalty": "ArgPairs_DP.csv"}
ARGUMENT_COLUMNS = {"regression_label": 0, "sentence_1": 9, "sentence_2": 10}
"""Columns of the files, by name and position: the mean of the annotators' scores, 0 to 5, and two arguments."""

LEAST_IN_FOLD = 2


def read_topics(files: OfficialFiles) -> StsPairs | None:
    """Reads the pairs of each topic; None without any of the files. Pairs without a score are left out and counted.

    Raises RequestError when a topic is missing, and for a file that is not in its official form.
    """
    paths = files.all_or_none("facets", *TOPICS.values())
    if paths is None:
        return None
    return StsPairs.of({topic: _pairs(path) for topic, path in zip(TOPICS, paths, strict=True)})


def _pairs(path: Path) -> ScoredPart:
    reader = csv.reader(StringIO("\n".join(read_lines(path)), newline=""))
    columns = _columns(path, next(reader))
    pairs, unscored = [], 0
    for fields in reader:
        line = reader.line_num
        if len(fields) <= max(columns):
            raise RequestError(
                f"{path}, line {line:,}: expected a score and two arguments in columns "
                f"{', '.join(map(str, columns))}, counted from 0, found {len(fields)} columns"
            )
        score, first, second = (fields[column] for column in columns)
        if not first.strip() or not second.strip():
            raise RequestError(
                f"{path}, line {line:,}: expected two arguments, found an empty one. Copy the file again."
            )
        if score.strip():
            pairs.append((first, second, gold_score(score, path, line)))
        else:
            unscored += 1
    if not pairs:
        raise RequestError(f"{path}: expected pairs with a score, found none")
    if unscored:
        log(f"{path}: left out {unscored:,} of {unscored + len(pairs):,} pairs, which nobody has scored")
    return pairs, unscored


def _columns(path: Path, header: list[str]) -> list[int]:
    """Returns the positions of score and arguments: by their names, or, without any of these, the official ones."""
    unknown = [name for name in ARGUMENT_COLUMNS if name not in header]
    if not unknown:
        return [header.index(name) for name in ARGUMENT_COLUMNS]
    columns = list(ARGUMENT_COLUMNS.values())
    is_header = len(header) > max(columns) and header[columns[0]].strip() and number(header[columns[0]]) is None
    if not is_header or len(unknown) < len(columns):
        raise RequestError(
            f"{path}, line 1: expected a header with {', '.join(ARGUMENT_COLUMNS)} among its {max(columns) + 1} names "
            f"or more, found a pair, or a header of {len(header)} without {', '.join(unknown)}"
        )
    return columns


def facet_metrics(pairs: StsPairs, encode: Encode) -> Metrics:
    """Computes `facets/<topic>/<correlation>_cosine` without training, and their means over the topics."""
    cosines = [topic.similarities(encode)["cosine"] for topic in pairs.by_part().values()]
    similar = {"cosine": np.concatenate(cosines)}
    return without_gold("AFS", pairs) | part_correlations("facets", "facets/mean", similar, pairs)


def run(settings: FacetSettings, context: StageContext) -> Metrics:
    """Tests each fold after training on the others; returns the means `facets/<split>/<correlation>_<measure>`.

    The measure is `cosine` of an encoder's vectors or `score` of a cross-encoder.
    """
    pairs = read_topics(OfficialFiles(Path(settings.data)))
    if pairs is None:
        raise RequestError(f"data: expected {', '.join(TOPICS.values())}, found none below {settings.data}")
    fold_of, precision = _folds(pairs, settings), context.precision(settings.precision)
    by_fold = []
    for fold in range(fold_of.max() + 1):
        name = f"{settings.split}-{fold}"
        table = _write_pairs(pairs.where(fold_of != fold), context.work / f"{name}.jsonl")
        by_fold.append(_test_fold(name, table, pairs.where(fold_of == fold), settings, context, precision))
    if not context.process_group.is_main:
        return {}
    similar = {measure: np.concatenate([fold[measure] for fold in by_fold]) for measure in by_fold[0]}
    order = np.argsort(fold_of, kind="stable")  # fold after fold, as the similarities are
    means = correlations(f"facets/{settings.split}", similar, pairs.scores[order], fold_of[order])
    return means | without_gold("AFS", pairs)


def _folds(pairs: StsPairs, settings: FacetSettings) -> NDArray[np.int64]:
    """Numbers the fold of each pair, (pairs,): its topic, or one of equal parts drawn by the seed."""
    fold_of, names = pairs.part, list(pairs.without_gold)
    if settings.split == "ten-fold":
        fold_of = np.random.default_rng(settings.seed).permutation(len(fold_of)) % settings.folds
        names = [f"fold {fold}" for fold in range(settings.folds)]
    least = np.bincount(fold_of, minlength=len(names)).min()
    if least < LEAST_IN_FOLD:
        raise RequestError(
            f"folds: expected at least {LEAST_IN_FOLD} pairs with a score in each of {len(names)} folds, to correlate "
            f"them, found {least} in one of them. Check the files, or ask for fewer folds."
        )
    for fold, name in enumerate(names):
        if np.ptp(pairs.scores[fold_of == fold]) == 0:
            raise RequestError(
                f"data: expected different scores in each part that is tested, found a single score in {name}, with "
                "which nothing correlates. Check the files."
            )
    return fold_of


def _test_fold(
    name: str,
    table: Table,
    tested: StsPairs,
    settings: FacetSettings,
    context: StageContext,
    precision: ComputePrecision,
) -> dict[str, Floats]:
    """Trains a network on `table` and returns its similarities of the tested pairs, (tested,), by the measure's name.

    Empty in all but the main process.
    """
    if settings.learner == "encoder":
        training = TrainSettings(objective="cosine", train=[table], **common_values(settings, TrainSettings))
        model = train_once(name, train.run, training, context)
        if context.process_group.is_main:
            return tested.similarities(encoder_at(model, precision))
    else:
        pairs = CrossEncoderSettings(train=[table], **common_values(settings, CrossEncoderSettings))
        model = train_once(name, pair_training.run, pairs, context)
        if context.process_group.is_main:
            return {"score": CrossEncoder.load(model).predict(tested.sentence_pairs(), precision=precision)}
    return {}


def _write_pairs(pairs: StsPairs, path: Path) -> Table:
    """Writes the pairs to `path`; returns them as a table."""
    records = (dict(zip(SCORED_PAIRS.columns, row, strict=True)) for row in pairs.rows())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(map(json_line, records)))
    return Table(path=InputFile(path.resolve()))
