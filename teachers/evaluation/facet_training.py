"""The stage `teachers.facets`: Argument Facet Similarity, learnt from some of the pairs and tested on the others."""

import json
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.tables import Table
from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import Floats
from bertrelay.files import write_text
from bertrelay.settings import InputFile, ModelSource
from bertrelay.stage import Metrics, StageContext
from teachers import train
from teachers.baselines import pair_train
from teachers.baselines.cross_encoder import CrossEncoder
from teachers.baselines.encoders import encoder_at
from teachers.baselines.settings import CrossEncoderSettings
from teachers.evaluation.facets import cosines_of, mean_over, read_topics, without_gold
from teachers.evaluation.official import OfficialFiles
from teachers.evaluation.settings import FacetSettings
from teachers.evaluation.sts import StsPairs
from teachers.evaluation.sts_sets import StsSet
from teachers.settings import TrainSettings
from teachers.variants import trained, training_keys

LEAST_IN_FOLD = 2


def run(settings: FacetSettings, context: StageContext) -> Metrics:
    """`facets/<split>/<correlation>_<measure>`: the mean over the folds, each tested by what the others teach.

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
    """How alike the sentences of each tested pair are, by what learnt from the other pairs, (tested,)."""
    taught, tested = _rows(pairs, ~is_tested), _rows(pairs, is_tested)
    name = f"{settings.split}-{number}"
    table = _written(taught, context.work / f"{name}.jsonl")
    learn = _by_reading_both if settings.learner == "cross-encoder" else _by_vectors
    return learn(name, table, tested, settings, context)


def _by_vectors(name: str, table: Table, tested: StsPairs, settings: FacetSettings, context: StageContext) -> Floats:
    """The cosines of an encoder that learnt to give those of `table`."""
    way = TrainSettings(
        base=settings.base,
        objective="cosine",
        train=[table],
        pooling=settings.pooling,
        max_tokens=settings.max_tokens,
        **training_keys(settings),
    )
    model, _ = trained(name, train.run, way, context)
    if not context.process_group.is_main:
        return np.zeros(len(tested.scores))
    return cosines_of(tested, encoder_at(model, settings.precision))


def _by_reading_both(
    name: str, table: Table, tested: StsPairs, settings: FacetSettings, context: StageContext
) -> Floats:
    """The scores of a cross-encoder that learnt to give those of `table`."""
    base = cast(ModelSource, settings.base)
    way = CrossEncoderSettings(base=base, train=[table], max_tokens=settings.max_tokens, **training_keys(settings))
    model, _ = trained(name, pair_train.run, way, context)
    if not context.process_group.is_main:
        return np.zeros(len(tested.scores))
    scorer = CrossEncoder.load(model)
    return scorer.score(list(zip(tested.first, tested.second, strict=True)), precision=settings.precision)


def _rows(pairs: StsPairs, rows: NDArray[np.bool_]) -> StsPairs:
    wanted = np.flatnonzero(rows)
    return StsPairs([pairs.first[row] for row in wanted], [pairs.second[row] for row in wanted], pairs.scores[wanted])


def _written(taught: StsPairs, path: Path) -> Table:
    """The table of the pairs, which are written to `path`."""
    rows = zip(taught.first, taught.second, taught.scores.tolist(), strict=True)
    lines = [json.dumps({"sentence1": first, "sentence2": second, "score": score}) for first, second, score in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))
    return Table(path=InputFile(path.resolve()))
