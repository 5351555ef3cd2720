"""Argument Facet Similarity (Misra et al. 2016): do two arguments about a topic make the same point?"""

import csv
import json
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.tables import Table
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.evaluation.statistics import Floats
from bertrelay.files import write_text
from bertrelay.progress import log
from bertrelay.settings import InputFile, ModelSource
from bertrelay.stage import Metrics, StageContext
from teachers import cross_encoder_train, train
from teachers.baselines.encoders import encoder_at
from teachers.cross_encoder import CrossEncoder
from teachers.data import is_number
from teachers.evaluation.official import OfficialFiles, gold_score, read_lines
from teachers.evaluation.settings import ARGUMENT_COLUMNS, TOPICS, FacetSettings
from teachers.evaluation.sts import Encode, StsPairs
from teachers.evaluation.sts_sets import StsSet, correlations
from teachers.settings import CrossEncoderSettings, TrainSettings
from teachers.train import trained, training_keys


def read_topics(files: OfficialFiles) -> StsSet | None:
    """The pairs of each topic, None when there is none of the files; pairs without a score are left out, and counted.

    Raises RequestError when a topic is missing, and for a file that is not in its official form.
    """
    found = {topic: files.find(name) for topic, name in TOPICS.items()}
    missing = [TOPICS[topic] for topic, path in found.items() if path is None]
    if len(missing) == len(found):
        return None
    if missing:
        raise RequestError(f"facets: expected the three topics, found no {', '.join(missing)} below {files.data}")
    read = {topic: _pairs(path) for topic, path in found.items() if path}
    return StsSet(
        {topic: pairs for topic, (pairs, _) in read.items()}, {topic: missing for topic, (_, missing) in read.items()}
    )


def _pairs(path: Path) -> tuple[StsPairs, int]:
    """The pairs that have a score, and how many have none."""
    rows = list(_rows(path))
    scored = [row for row in rows if row.score.strip()]
    if not scored:
        raise RequestError(f"{path}: expected pairs with a score, found none")
    scores = np.array([gold_score(row.score, path, row.line) for row in scored])
    if missing := len(rows) - len(scored):
        log(f"{path}: left out {missing:,} of {len(rows):,} pairs, which nobody has scored")
    return StsPairs([row.first for row in scored], [row.second for row in scored], scores), missing


class _Row(NamedTuple):
    line: int
    score: str
    first: str
    second: str


def _rows(path: Path) -> Iterator[_Row]:
    """Each record after the header."""
    reader = csv.reader(StringIO("\n".join(read_lines(path)), newline=""))
    columns = _columns(path, next(reader))
    for fields in reader:
        line = reader.line_num
        if len(fields) <= max(columns):
            score, first, second = columns
            raise RequestError(
                f"{path}, line {line:,}: expected a score in column {score} and two arguments in columns {first} and "
                f"{second}, counted from 0, found {len(fields)} columns"
            )
        row = _Row(line, *(fields[column] for column in columns))
        if not row.first.strip() or not row.second.strip():
            raise RequestError(
                f"{path}, line {line:,}: expected two arguments, found an empty one. Copy the file again."
            )
        yield row


def _columns(path: Path, header: list[str]) -> list[int]:
    """The columns of score and arguments: by their names, or, where the header has none of these, as in the files."""
    unknown = [name for name in ARGUMENT_COLUMNS if name not in header]
    columns = list(ARGUMENT_COLUMNS.values())
    if not unknown:
        return [header.index(name) for name in ARGUMENT_COLUMNS]
    if len(header) <= max(columns) or not header[columns[0]].strip() or is_number(header[columns[0]]):
        raise RequestError(
            f"{path}, line 1: expected a header with {', '.join(ARGUMENT_COLUMNS)} among its {max(columns) + 1} names "
            f"or more, found a pair or another header of {len(header)}"
        )
    if len(unknown) < len(ARGUMENT_COLUMNS):
        raise RequestError(
            f"{path}, line 1: expected a header with {', '.join(ARGUMENT_COLUMNS)}, found no {unknown[0]}"
        )
    return columns


def facet_metrics(topics: StsSet, encode: Encode) -> Metrics:
    """`facets/<topic>/<correlation>_cosine` without training, and their means over the topics."""
    metrics = without_gold(topics)
    cosines = {topic: cosines_of(pairs, encode) for topic, pairs in topics.subsets.items()}
    for topic, pairs in topics.subsets.items():
        metrics |= correlations(f"facets/{topic}", {"cosine": cosines[topic]}, pairs.scores)
    scores = [pairs.scores for pairs in topics.subsets.values()]
    return metrics | mean_over("facets/mean", list(cosines.values()), scores)


def without_gold(topics: StsSet) -> Metrics:
    """`without_gold/AFS/<topic>`: the pairs that nobody has scored."""
    return {f"without_gold/AFS/{topic}": count for topic, count in topics.without_gold.items()}


def cosines_of(pairs: StsPairs, encode: Encode) -> Floats:
    """(pairs,)"""
    vectors = encode([*pairs.first, *pairs.second])
    found: Floats = pairwise(vectors[: len(pairs.first)], vectors[len(pairs.first) :])
    return found


def mean_over(name: str, found: Sequence[Floats], scores: Sequence[Floats], measure: str = "cosine") -> Metrics:
    """The correlations of what was found with the gold scores, as means over parts: topics or folds."""
    part_of = np.repeat(np.arange(len(scores)), [len(part) for part in scores])
    return correlations(name, {measure: np.concatenate(found)}, np.concatenate(scores), part_of)


LEAST_IN_FOLD = 2


def run(settings: FacetSettings, context: StageContext) -> Metrics:
    """`facets/<split>/<correlation>_<measure>`: the mean over the folds, each tested after training on the others.

    measure: `cosine` of an encoder's vectors, `score` of a cross-encoder.
    """
    topics = read_topics(OfficialFiles(Path(settings.data)))
    if topics is None:
        raise RequestError(f"data: expected ArgPairs_GC.csv and its two sisters, found none below {settings.data}")
    pairs, fold_of = _joined(topics), _folds(topics, settings)
    tested = [_fold(number, pairs, fold_of == number, settings, context) for number in range(fold_of.max() + 1)]
    scores = [pairs.scores[fold_of == number] for number in range(len(tested))]
    if not context.process_group.is_main:
        return {}
    measure = "score" if settings.learner == "cross-encoder" else "cosine"
    return mean_over(f"facets/{settings.split}", tested, scores, measure) | without_gold(topics)


def _joined(topics: StsSet) -> StsPairs:
    parts = list(topics.subsets.values())
    return StsPairs(
        [sentence for part in parts for sentence in part.first],
        [sentence for part in parts for sentence in part.second],
        np.concatenate([part.scores for part in parts]),
    )


def _folds(topics: StsSet, settings: FacetSettings) -> NDArray[np.int64]:
    """The number of each pair's fold, (pairs,): its topic, or one of equally many drawn by the seed."""
    sizes = [len(part.scores) for part in topics.subsets.values()]
    if settings.split == "cross-topic":
        folds, fold_of = len(sizes), np.repeat(np.arange(len(sizes)), sizes)
    else:
        folds, fold_of = settings.folds, np.random.default_rng(settings.seed).permutation(sum(sizes)) % settings.folds
    least = np.bincount(fold_of, minlength=folds).min()
    if least < LEAST_IN_FOLD:
        raise RequestError(
            f"folds: expected at least {LEAST_IN_FOLD} pairs with a score in each of {folds} folds, to correlate them, "
            f"found {least} in one of them. Check the files, or ask for fewer folds."
        )
    scores = np.concatenate([part.scores for part in topics.subsets.values()])
    constant = [fold for fold in range(folds) if np.ptp(scores[fold_of == fold]) == 0]
    if constant:
        which = list(topics.subsets)[constant[0]] if settings.split == "cross-topic" else f"fold {constant[0]}"
        raise RequestError(
            f"data: expected different scores in each part that is tested, found one score alone in {which}, with "
            "which nothing correlates. Check the files."
        )
    return fold_of


def _fold(
    number: int, pairs: StsPairs, is_tested: NDArray[np.bool_], settings: FacetSettings, context: StageContext
) -> Floats:
    """How alike the sentences of each tested pair are, after training on the other pairs, (tested,)."""
    train_pairs, tested = _chosen(pairs, ~is_tested), _chosen(pairs, is_tested)
    name = f"{settings.split}-{number}"
    table = _written(train_pairs, context.work / f"{name}.jsonl")
    learn = _by_cross_encoder if settings.learner == "cross-encoder" else _by_vectors
    return learn(name, table, tested, settings, context)


def _by_vectors(name: str, table: Table, tested: StsPairs, settings: FacetSettings, context: StageContext) -> Floats:
    """The cosines of an encoder trained on `table`."""
    training = TrainSettings(
        base=settings.base,
        objective="cosine",
        train=[table],
        pooling=settings.pooling,
        max_tokens=settings.max_tokens,
        **training_keys(settings),
    )
    model, _ = trained(name, train.run, training, context)
    if not context.process_group.is_main:
        return np.zeros(len(tested.scores))
    return cosines_of(tested, encoder_at(model, settings.precision))


def _by_cross_encoder(
    name: str, table: Table, tested: StsPairs, settings: FacetSettings, context: StageContext
) -> Floats:
    """The scores of a cross-encoder trained on `table`."""
    base = cast(ModelSource, settings.base)
    training = CrossEncoderSettings(base=base, train=[table], max_tokens=settings.max_tokens, **training_keys(settings))
    model, _ = trained(name, cross_encoder_train.run, training, context)
    if not context.process_group.is_main:
        return np.zeros(len(tested.scores))
    scorer = CrossEncoder.load(model)
    scores: Floats = scorer.predict(zip(tested.first, tested.second, strict=True), precision=settings.precision)
    return scores


def _chosen(pairs: StsPairs, rows: NDArray[np.bool_]) -> StsPairs:
    wanted = np.flatnonzero(rows)
    return StsPairs([pairs.first[row] for row in wanted], [pairs.second[row] for row in wanted], pairs.scores[wanted])


def _written(train_pairs: StsPairs, path: Path) -> Table:
    """The table of the pairs, which are written to `path`."""
    rows = zip(train_pairs.first, train_pairs.second, train_pairs.scores.tolist(), strict=True)
    lines = [json.dumps({"sentence1": first, "sentence2": second, "score": score}) for first, second, score in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))
    return Table(path=InputFile(path.resolve()))
