"""What a student finds: English in its teacher's index, translations in sets of many languages and in two corpora."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Rejects
from bertrelay.data.vectors import Vectors
from bertrelay.device import ComputePrecision
from bertrelay.evaluation.encode import Encode
from bertrelay.evaluation.similarity import ROUNDING, is_among_nearest, pairwise, unit
from bertrelay.evaluation.statistics import Floats, share, with_interval
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.stage import Metrics, StageContext
from students.evaluate.settings import XsimPairs
from students.evaluate.translation import english_of
from students.mining.bitext import mine_files
from students.mining.knn import Neighbours, exact_knn, ratio_margins
from students.mining.settings import NEIGHBOURS, MiningTest
from students.parallel.pairs import Translations
from students.parallel.settings import ENGLISH

Rows = dict[tuple[str, int], str]
"""Sentences of a language by the English sentence they translate, and its number among equal ones."""

# Search across spaces


def search_metrics(pairs: Mapping[str, Translations], student: Encode, teacher: Encode, k: int) -> Metrics:
    """Recall of the student's queries in the index of the teacher's vectors, with 95 % intervals.

    The index has every distinct English sentence of `pairs` once. A query is a distinct sentence of a language, and
    relevant are the English sentences that it translates; its recall is the share of them among the `k` nearest. One as
    near as the k-th is among them.

    `queries/<language>`: how many there are, in English as many as the index has.
    `recall_at_<k>/en`: of the English sentences themselves, each of which has to find itself.
    `recall_at_<k>/<language>`: the mean over the queries of a language.
    `recall_at_<k>_ratio/<language>`: that mean over what the English sentences they translate have.
    """
    english = english_of(pairs)
    rows, index = {sentence: row for row, sentence in enumerate(english)}, teacher(english)

    def found(queries: Sequence[str], relevant: Sequence[int]) -> NDArray[np.float64]:
        return is_among_nearest(student(queries), index, np.array(relevant), k).astype(np.float64)

    finds_itself = found(english, range(len(english)))
    metrics = {f"queries/{ENGLISH}": len(english)} | with_interval(f"recall_at_{k}/{ENGLISH}", share, finds_itself)
    for language, sentences in pairs.items():
        relevant: dict[str, set[int]] = {}
        for source, other in zip(*sentences, strict=True):
            relevant.setdefault(other, set()).add(rows[source])
        hits = iter(found(*zip(*((query, row) for query, wanted in relevant.items() for row in wanted), strict=True)))
        recall = [np.mean([next(hits) for _ in wanted]) for wanted in relevant.values()]
        of_english = [finds_itself[list(wanted)].mean() for wanted in relevant.values()]
        columns = np.array(recall), np.array(of_english)
        metrics[f"queries/{language}"] = len(recall)
        metrics |= with_interval(f"recall_at_{k}/{language}", share, columns[0])
        metrics |= with_interval(f"recall_at_{k}_ratio/{language}", ratio_of_means, *columns)
    return metrics


def ratio_of_means(part: Floats, whole: Floats) -> float | None:
    """The mean of `part` over that of `whole`; None where the latter is 0."""
    return float(np.mean(part) / np.mean(whole)) if np.any(whole) else None


# xsim


def xsim_metrics(name: str, pairs: Mapping[str, Translations], encode: Encode, chosen: XsimPairs) -> Metrics:
    """`xsim_error/<name>/<source>/<target>` with 95 % intervals: sentences that find another than their own, in %.

    pairs: an n-way set: sentences of two languages belong together where they translate the same English sentence.
    chosen: as in `EvaluateSettings`.
    """
    rows = rows_by_language(pairs)
    wanted = _directions(list(rows), chosen)
    metrics: Metrics = {}
    for one, other in combinations(rows, 2):
        directions = [(one, other), (other, one)]
        keys = [key for key in rows[one] if key in rows[other]]
        if not keys or wanted.isdisjoint(directions):
            continue
        vectors = [unit(encode([rows[language][key] for key in keys])) for language in (one, other)]  # (keys, dim) each
        forward, backward = exact_knn(vectors[0], vectors[1], NEIGHBOURS)
        for direction, neighbours in zip(directions, ((forward, backward), (backward, forward)), strict=True):
            if direction in wanted:
                source, target = vectors if direction == directions[0] else vectors[::-1]
                wrong = ~finds_own(best_by_margin(*neighbours), source, target)
                metrics |= with_interval(f"xsim_error/{name}/{'/'.join(direction)}", percentage, wrong)
    return metrics


def rows_by_language(pairs: Mapping[str, Translations]) -> dict[str, Rows]:
    """The sentences of each language, English first."""
    english: Rows = {}
    rows: dict[str, Rows] = {ENGLISH: english}
    for language, sentences in pairs.items():
        times, own = Counter[str](), rows.setdefault(language, {})
        for source, other in zip(*sentences, strict=True):
            key = source, times[source]
            times[source] += 1
            english[key], own[key] = source, other
    return rows


def best_by_margin(forward: Neighbours, backward: Neighbours) -> NDArray[np.int64]:
    """The row of each source's neighbour with the highest ratio margin (Artetxe & Schwenk 2019), as LASER's xsim.

    forward: of each source its k nearest targets; backward: of each target its k nearest sources.
    """
    near_source, near_target = forward.cosines.mean(axis=1), backward.cosines.mean(axis=1)
    margins = ratio_margins(forward.cosines, (near_source[:, None] + near_target[forward.rows]) / 2)  # (sources, k)
    return np.take_along_axis(forward.rows, margins.argmax(axis=1)[:, None], 1)[:, 0]


def finds_own(found: NDArray[np.int64], source: Vectors, target: Vectors) -> NDArray[np.bool_]:
    """Whether row `found` (n,) of `target` (n, dim) is that of each `source` (n, dim), or has the same vector."""
    is_own = (found == np.arange(len(found))) | (pairwise(target[found], target) >= 1 - ROUNDING)
    return np.asarray(is_own & is_among_nearest(source, target, top_k=NEIGHBOURS))


def percentage(hits: Floats) -> float:
    """How many of `hits` are true, in %."""
    return 100 * float(np.mean(hits))


def _directions(languages: Sequence[str], chosen: XsimPairs) -> set[tuple[str, str]]:
    """The pairs of source and target that are asked for."""
    if not isinstance(chosen, str):
        return {(source, target) for source, target in chosen}
    return {pair for pair in permutations(languages, 2) if chosen == "all" or ENGLISH in pair}


# Bitext mining


def mining_metrics(
    name: str,
    test: MiningTest,
    model: SentenceEncoder,
    context: StageContext,
    precision: ComputePrecision,
    max_rejects: float,
) -> Metrics:
    """`mining_f1/<name>/train` and `/test` with 95 % intervals, precision, recall and `mining_sentences`, how many
    sentences were looked for; and `mining_threshold/<name>`.

    The pairs go to `mined/<name>.train.tsv` and `.test.tsv`; those of test are of the threshold chosen on train.
    """
    folder = context.output / "mined"
    folder.mkdir(exist_ok=True)
    metrics: Metrics = {}
    threshold = None
    for part, files in (("train", test.train), ("test", test.test)):
        output = folder / f"{name}.{part}.tsv"
        mining = mine_files(
            model,
            files.source,
            files.target,
            output,
            gold=files.gold,
            id_column=test.id_column,
            work=context.work / f"mining-{name}-{part}",
            cache=context.cache,
            rejects=Rejects(output.with_suffix(".rejects.jsonl"), max_rejects, keep_empty=False),
            threshold=threshold,
            precision=precision,
        )
        threshold = mining.threshold
        f1 = f"mining_f1/{name}/{part}"
        metrics[f"mining_sentences/{name}/{part}"] = mining.sources
        metrics |= {f1: mining.f1, f"{f1}_low": mining.f1_low, f"{f1}_high": mining.f1_high}
        metrics |= {f"mining_precision/{name}/{part}": mining.precision, f"mining_recall/{name}/{part}": mining.recall}
    return {**metrics, f"mining_threshold/{name}": threshold}
