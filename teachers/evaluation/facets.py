"""For comparison with the papers: Argument Facet Similarity (Misra et al. 2016).

Do two arguments about a topic make the same point? Scored without training, or in folds of training and testing.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.tables import Table
from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import Floats
from bertrelay.files import write_text
from bertrelay.progress import log
from bertrelay.settings import InputFile
from bertrelay.stage import Metrics, StageContext
from teachers import cross_encoder_train, train
from teachers.baselines.encoders import encoder_at
from teachers.cross_encoder import CrossEncoder
from teachers.data import number
from teachers.evaluation.official import OfficialFiles, gold_score, read_lines
from teachers.evaluation.settings import ARGUMENT_COLUMNS, TOPICS, FacetSettings
from teachers.evaluation.sts import Encode, StsPairs
from teachers.evaluation.sts_sets import StsSet, correlations, numbered, without_gold
from teachers.settings import CrossEncoderSettings, TrainSettings, common_values
from teachers.train import trained

LEAST_IN_FOLD = 2


def read_topics(files: OfficialFiles) -> StsSet | None:
    """The pairs of each topic, None when there is none of the files; pairs without a score are left out, and counted.

    Raises RequestError when a topic is missing, and for a file that is not in its official form.
    """
    paths = files.all_or_none("facets", *TOPICS.values())
    return None if paths is None else {topic: _pairs(path) for topic, path in zip(TOPICS, paths, strict=True)}


def _pairs(path: Path) -> StsPairs:
    reader = csv.reader(StringIO("\n".join(read_lines(path)), newline=""))
    columns = _columns(path, next(reader))
    found, unscored = [], 0
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
            found.append((first, second, gold_score(score, path, line)))
        else:
            unscored += 1
    if not found:
        raise RequestError(f"{path}: expected pairs with a score, found none")
    if unscored:
        log(f"{path}: left out {unscored:,} of {unscored + len(found):,} pairs, which nobody has scored")
    return StsPairs.of(found, unscored)


def _columns(path: Path, header: list[str]) -> list[int]:
    """The columns of score and arguments: by their names, or, where the header has none of these, as in the files."""
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


def facet_metrics(topics: StsSet, encode: Encode) -> Metrics:
    """`facets/<topic>/<correlation>_cosine` without training, and their means over the topics."""
    metrics = without_gold("AFS", topics)
    similar = {topic: pairs.similarities(encode) for topic, pairs in topics.items()}
    for topic, pairs in topics.items():
        metrics |= correlations(f"facets/{topic}", similar[topic], pairs.scores)
    return metrics | _mean_over("facets/mean", list(similar.values()), list(topics.values()))


def _mean_over(name: str, similar: Sequence[Mapping[str, Floats]], parts: Sequence[StsPairs]) -> Metrics:
    """The correlations of similarities with the gold scores, as means over parts: topics or folds."""
    together = {measure: np.concatenate([each[measure] for each in similar]) for measure in similar[0]}
    return correlations(name, together, np.concatenate([part.scores for part in parts]), numbered(parts))


def run(settings: FacetSettings, context: StageContext) -> Metrics:
    """`facets/<split>/<correlation>_<measure>`: the mean over the folds, each tested after training on the others.

    measure: `cosine` of an encoder's vectors, `score` of a cross-encoder.
    """
    topics = read_topics(OfficialFiles(Path(settings.data)))
    if topics is None:
        raise RequestError(f"data: expected {', '.join(TOPICS.values())}, found none below {settings.data}")
    pairs, fold_of = StsPairs.joined(topics.values()), _folds(topics, settings)
    folds = [_chosen(pairs, fold_of == fold) for fold in range(fold_of.max() + 1)]
    similar = []
    for fold, tested in enumerate(folds):
        name = f"{settings.split}-{fold}"
        table = _written(_chosen(pairs, fold_of != fold), context.work / f"{name}.jsonl")
        similar.append(_tested(name, table, tested, settings, context))
    if not context.process_group.is_main:
        return {}
    return _mean_over(f"facets/{settings.split}", similar, folds) | without_gold("AFS", topics)


def _folds(topics: StsSet, settings: FacetSettings) -> NDArray[np.int64]:
    """The number of each pair's fold, (pairs,): its topic, or one of equally many drawn by the seed."""
    fold_of, names = numbered(topics.values()), list(topics)
    if settings.split == "ten-fold":
        fold_of = np.random.default_rng(settings.seed).permutation(len(fold_of)) % settings.folds
        names = [f"fold {fold}" for fold in range(settings.folds)]
    scores = np.concatenate([pairs.scores for pairs in topics.values()])
    least = np.bincount(fold_of, minlength=len(names)).min()
    if least < LEAST_IN_FOLD:
        raise RequestError(
            f"folds: expected at least {LEAST_IN_FOLD} pairs with a score in each of {len(names)} folds, to correlate "
            f"them, found {least} in one of them. Check the files, or ask for fewer folds."
        )
    for fold, name in enumerate(names):
        if np.ptp(scores[fold_of == fold]) == 0:
            raise RequestError(
                f"data: expected different scores in each part that is tested, found one score alone in {name}, with "
                "which nothing correlates. Check the files."
            )
    return fold_of


def _tested(
    name: str, table: Table, tested: StsPairs, settings: FacetSettings, context: StageContext
) -> dict[str, Floats]:
    """How alike the sentences of each tested pair are to a network trained on `table`, (tested,), by its measure."""
    if settings.learner == "encoder":
        training = TrainSettings(objective="cosine", train=[table], **common_values(settings, TrainSettings))
        model = trained(name, train.run, training, context)
        if context.process_group.is_main:
            return tested.similarities(encoder_at(model, settings.precision))
    else:
        pairs = CrossEncoderSettings(train=[table], **common_values(settings, CrossEncoderSettings))
        model = trained(name, cross_encoder_train.run, pairs, context)
        if context.process_group.is_main:
            sentences = zip(tested.first, tested.second, strict=True)
            return {"score": CrossEncoder.load(model).predict(sentences, precision=settings.precision)}
    return {}


def _chosen(pairs: StsPairs, are_chosen: NDArray[np.bool_]) -> StsPairs:
    return StsPairs.of([row for row, is_chosen in zip(pairs.rows(), are_chosen, strict=True) if is_chosen])


def _written(pairs: StsPairs, path: Path) -> Table:
    """The table of the pairs, which are written to `path`."""
    records = [dict(zip(("sentence1", "sentence2", "score"), row, strict=True)) for row in pairs.rows()]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{json.dumps(record)}\n" for record in records))
    return Table(path=InputFile(path.resolve()))
