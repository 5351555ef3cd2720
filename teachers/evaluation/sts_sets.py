"""The seven STS sets of the SBERT paper, read from their official files and scored without training.

A year's task is several subsets. Its score is their mean; `all` is the score of all pairs of a year together,
which is how some papers count.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Rejects, read
from bertrelay.data.tables import Table
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import Metric, pairwise
from bertrelay.evaluation.statistics import Floats, pearson, spearman, with_interval
from bertrelay.progress import log
from bertrelay.settings import InputFile
from bertrelay.stage import Metrics, StageContext
from teachers.data import BLANK
from teachers.evaluation.official import (
    OfficialFiles,
    Scale,
    distinct,
    fields_of,
    gold_score,
    read_lines,
    refuse_several,
)
from teachers.evaluation.settings import MAIN, SETS, YEARS
from teachers.evaluation.sts import Encode, StsPairs

SINGLE: dict[str, dict[str, dict[str, Any]]] = {
    "STSb": {
        "sts-test.csv": {"format": "tsv", "header": False, "columns": [5, 6, 4]},
        "stsb-en-test.csv": {"format": "csv", "header": False, "columns": [0, 1, 2]},  # as stsb-multi-mt has it
    },
    "SICK-R": {
        "SICK_test_annotated.txt": {"format": "tsv", "columns": ["sentence_A", "sentence_B", "relatedness_score"]},
    },
}
SCALES: dict[str, Scale] = {"STSb": (0, 5), "SICK-R": (1, 5)}
YEAR = re.compile(r"(?:sts|(?<!\d)20)(1[2-6])(?!\d)", re.IGNORECASE)  # STS12-en-test, STS2012, semeval2012, 2012
SIMILARITIES: tuple[Metric, ...] = ("cosine", "euclidean", "manhattan")
CORRELATIONS: dict[str, Callable[[Floats, Floats], float | None]] = {"spearman": spearman, "pearson": pearson}
MEASURES = tuple(f"{correlation}_{similarity}" for similarity in SIMILARITIES for correlation in CORRELATIONS)


@dataclass(frozen=True)
class StsSet:
    """A set's pairs by subset; of STSb and SICK-R the only one has no name.

    without_gold: pairs that nobody has scored, by subset; they are left out.
    """

    subsets: Mapping[str, StsPairs]
    without_gold: Mapping[str, int] = field(default_factory=dict)


def read_sets(
    files: OfficialFiles, names: Sequence[str], context: StageContext, rejects: Rejects
) -> dict[str, StsSet | None]:
    """Each of the sets `names`, None for one that is not there at all.

    Raises RequestError for one of which a part is missing, and for a file that is not in its official form.
    """
    found = {
        name: _year(files, name, rejects) if name in YEARS else _single(files, name, context, rejects) for name in names
    }
    for name, each in found.items():
        if each is not None and (missing := sum(each.without_gold.values())):
            log(f"{name}: left out {missing:,} pairs, which nobody has scored")
    return found


def _single(files: OfficialFiles, name: str, context: StageContext, rejects: Rejects) -> StsSet | None:
    path = files.find(*SINGLE[name])
    if path is None:
        return None
    table = Table(path=InputFile(path.resolve()), **SINGLE[name][path.name.removesuffix(".gz")])
    rows = [(record.line, *record.values) for record in read(table, (), context.cache, rejects)]
    pairs, missing = _scored(path, rows, path, rejects, SCALES[name])
    return StsSet({"": pairs}, {"": missing})


def _year(files: OfficialFiles, name: str, rejects: Rejects) -> StsSet | None:
    found = {subset: _subset_files(files, name, subset) for subset in YEARS[name]}
    missing = [subset for subset, paths in found.items() if paths is None]
    if len(missing) == len(found):
        return None
    if missing:
        raise RequestError(
            f"{name}: expected its {len(found)} subsets, found none of {', '.join(missing)} below {files.data}; "
            f"expected files such as STS.input.{missing[0]}.txt and STS.gs.{missing[0]}.txt in a folder that its year "
            f"names, such as {name}-en-test"
        )
    known = {subset: _subset(*paths, rejects) for subset, paths in found.items() if paths}
    return StsSet(
        {subset: pairs for subset, (pairs, _) in known.items()},
        {subset: missing for subset, (_, missing) in known.items()},
    )


def _subset_files(files: OfficialFiles, name: str, subset: str) -> tuple[Path, Path | None] | None:
    """Sentences and gold scores of a subset, from one folder, or the one file of some collections that has both."""
    year = name.removeprefix("STS")
    sentences, golds, both = (
        distinct(path for path in files.named(*names) if _year_of(path, files.data) == year)
        for names in _file_names(year, subset)
    )
    found: list[tuple[Path, Path | None]] = [(path, None) for path in both]
    found += [(path, gold) for path in sentences for gold in golds if path.parent == gold.parent]
    refuse_several([" with ".join(map(str, filter(None, files))) for files in found], f"{subset} of {name}")
    if not found and sentences and golds:
        raise RequestError(
            f"{name}: expected sentences and gold scores in one folder, found {sentences[0]}, {golds[0]}"
        )
    return found[0] if found else None


def _file_names(year: str, subset: str) -> tuple[list[str], list[str], list[str]]:
    """Of a subset's sentences, of its gold scores, and of the file that has both."""
    return (
        [f"STS.input.{subset}.txt", f"STS20{year}.input.{subset}.txt"],
        [f"STS.gs.{subset}.txt", f"STS20{year}.gs.{subset}.txt"],
        [f"{subset}.test.tsv"],
    )


def without_year(files: OfficialFiles, names: Sequence[str]) -> Path | None:
    """A file that may be of one of the years among `names`, in no folder that names a year; None without any."""
    kinds = [kind for name in names for subset in YEARS.get(name, ()) for kind in _file_names(name[3:], subset)]
    found = (path for path in files.named(*chain(*kinds)) if _year_of(path, files.data) is None)
    return next(found, None)


def _year_of(path: Path, data: Path) -> str | None:
    """The year that the innermost folder below `data` names, if any does; None for a folder that names several."""
    for folder in reversed(path.relative_to(data).parent.parts):
        years = set(YEAR.findall(folder))
        if len(years) == 1:
            return str(years.pop())
    return None


def _subset(sentences: Path, gold: Path | None, rejects: Rejects) -> tuple[StsPairs, int]:
    """The pairs that have a gold score, and how many have none."""
    pairs, golds = _both_in_one(sentences) if gold is None else _side_by_side(sentences, gold)
    rows = [(line, *pair, text) for line, (pair, text) in enumerate(zip(pairs, golds, strict=True), 1)]
    return _scored(sentences, rows, gold or sentences, rejects)


def _scored(
    path: Path, rows: list[tuple[Any, ...]], gold: Path, rejects: Rejects, scale: Scale = (0, 5)
) -> tuple[StsPairs, int]:
    """The pairs of `path` that have a gold score, and how many have none; those with a blank sentence are rejected.

    rows: line, both sentences, and the score as the file `gold` has it on that line.
    """
    known = [row for row in rows if row[3].strip()]
    scores = [gold_score(text, gold, line, scale) for line, _, _, text in known]
    found = []
    for (line, first, second, _), score in zip(known, scores, strict=True):
        if first.strip() and second.strip():
            rejects.used()
            found.append((first, second, score))
        else:
            rejects.add(str(path), line, BLANK)
    if not found:
        raise RequestError(f"{gold}: expected pairs with a gold score, found none that can be used")
    firsts, seconds, usable = zip(*found, strict=True)
    return StsPairs(list(firsts), list(seconds), np.array(usable)), len(rows) - len(known)


def _both_in_one(path: Path) -> tuple[list[list[str]], list[str]]:
    rows = fields_of(path, read_lines(path), "\t", 3, "a score and two sentences with tabs between them")
    return [row[1:3] for row in rows], [row[0] for row in rows]


def _side_by_side(sentences: Path, gold: Path) -> tuple[list[list[str]], list[str]]:
    rows = fields_of(sentences, read_lines(sentences), "\t", 2, "two sentences with a tab between them")
    golds = read_lines(gold)
    if len(golds) != len(rows):
        raise RequestError(
            f"line n of {gold} should score line n of {sentences}, but the first has {len(golds):,} lines and the "
            f"second {len(rows):,}. Copy both again."
        )
    return [row[:2] for row in rows], golds


def set_metrics(sets: Mapping[str, StsSet], encode: Encode, intervals: bool = True) -> Metrics:
    """`sts/<set>[/<subset>]/<correlation>_<similarity>` for each set and each of its subsets, and their means.

    `sts/STS12/…` is the mean of the year's subsets, `sts/STS12/all/…` takes the year's pairs together, and
    `sts/mean/…` is the mean of the seven sets, absent without all of them. Distances count negatively.
    `without_gold/<set>[/<subset>]` counts the pairs that nobody has scored.
    """
    metrics: Metrics = {}
    for name, each in sets.items():
        metrics |= _of_set(f"sts/{name}", each, encode, intervals)
        for subset, count in each.without_gold.items():
            metrics["/".join(filter(None, ["without_gold", name, subset]))] = count
    if set(SETS["sts"]) <= sets.keys():
        for measure in MEASURES:
            metrics[f"sts/mean/{measure}"] = _mean([metrics[f"sts/{name}/{measure}"] for name in SETS["sts"]])
            together = [
                f"sts/{name}/all/{measure}" if name in YEARS else f"sts/{name}/{measure}" for name in SETS["sts"]
            ]
            metrics[f"sts/mean/all/{measure}"] = _mean([metrics[name] for name in together])
    return metrics


def _of_set(name: str, each: StsSet, encode: Encode, intervals: bool) -> Metrics:
    metrics: Metrics = {}
    similar, scores, subset_of = _similarities(each.subsets, encode)
    for number, subset in enumerate(filter(None, each.subsets)):
        rows = subset_of == number
        within = {measure: values[rows] for measure, values in similar.items()}
        metrics |= correlations(f"{name}/{subset}", within, scores[rows], intervals=intervals)
    if "" in each.subsets:
        return correlations(name, similar, scores, intervals=intervals)
    metrics |= correlations(name, similar, scores, subset_of, intervals)
    return metrics | correlations(f"{name}/all", similar, scores, intervals=intervals)


def _similarities(
    subsets: Mapping[str, StsPairs], encode: Encode
) -> tuple[dict[str, Floats], NDArray[np.float64], NDArray[np.int64]]:
    """By each similarity of all pairs, (pairs,), their gold scores and the numbers of their subsets."""
    parts = list(subsets.values())
    first = [sentence for part in parts for sentence in part.first]
    vectors = encode([*first, *(sentence for part in parts for sentence in part.second)])
    u, v = vectors[: len(first)], vectors[len(first) :]  # (pairs, dim)
    subset_of = np.repeat(np.arange(len(parts)), [len(part.scores) for part in parts])
    similar: dict[str, Floats] = {each: pairwise(u, v, each) for each in SIMILARITIES}
    return similar, np.concatenate([part.scores for part in parts]), subset_of


def correlations(
    name: str,
    similar: Mapping[str, Floats],
    scores: Floats,
    groups: NDArray[np.int64] | None = None,
    intervals: bool = True,
) -> Metrics:
    """`<name>/<correlation>_<similarity>`, with an interval for Spearman of the cosine or the score.

    similar: how alike the pairs are, (pairs,), by each similarity, or by the `score` of a network that reads both.
    groups: what each pair belongs to; the correlation is then the mean over groups.
    """
    metrics: Metrics = {}
    grouped = np.zeros(len(scores), np.int64) if groups is None else groups
    for similarity, values in similar.items():
        for correlation, statistic in CORRELATIONS.items():
            measure = f"{correlation}_{similarity}"
            mean_statistic = over_groups(statistic)
            if intervals and measure in MAIN:
                metrics |= with_interval(f"{name}/{measure}", mean_statistic, values, scores, grouped, groups=grouped)
                if metrics[f"{name}/{measure}"] is None:
                    log(f"{name}: no correlation, for all its gold scores are equal, or all similarities are")
            else:
                metrics[f"{name}/{measure}"] = mean_statistic(values, scores, grouped)
    return metrics


def over_groups(statistic: Callable[[Floats, Floats], float | None]) -> Callable[..., float | None]:
    """`statistic` as the mean of what it is in each group; None where it is that in one of them."""

    def mean(first: Floats, second: Floats, groups: NDArray[np.int64]) -> float | None:
        return _mean([statistic(first[groups == group], second[groups == group]) for group in np.unique(groups)])

    return mean


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None
