"""The seven STS sets of the SBERT paper, read from their official files and scored without training.

The task of a year has several subsets. Its score is their mean; `all` is the score of all pairs of a year together, as
some papers report it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Rejects, read
from bertrelay.data.tables import Record, Table
from bertrelay.errors import RequestError
from bertrelay.evaluation.encode import Encode
from bertrelay.evaluation.statistics import Floats, pearson, spearman, with_interval
from bertrelay.progress import log
from bertrelay.settings import InputFile, Metric
from bertrelay.stage import Metrics, StageContext
from teachers.data import BLANK, usable
from teachers.evaluation.sts import ScoredPair, ScoredPart, StsPairs
from teachers.sbert_paper.official import (
    OfficialFiles,
    Scale,
    distinct,
    gold_score,
    read_fields,
    read_lines,
    refuse_several,
)
from teachers.sbert_paper.settings import SETS

YEARS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),  # the fourth, SMT, is not free, and papers leave it out
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
"""Subsets of the STS task of each year."""
MAIN = ("spearman_cosine", "spearman_score")
"""Correlations that papers report: of vectors, and of networks that read two sentences at once."""


def stsb_files(part: str) -> dict[str, dict[str, Any]]:
    """Maps the names of the file of a part of the STS benchmark, official and stsb-multi-mt's, to table settings."""
    return {
        f"sts-{part}.csv": {"format": "tsv", "header": False, "columns": [5, 6, 4]},
        f"stsb-en-{part}.csv": {"format": "csv", "header": False, "columns": [0, 1, 2]},
    }


SINGLE: dict[str, dict[str, dict[str, Any]]] = {
    "STSb": stsb_files("test"),
    "SICK-R": {
        "SICK_test_annotated.txt": {"format": "tsv", "columns": ["sentence_A", "sentence_B", "relatedness_score"]},
    },
}
SCALES: dict[str, Scale] = {"STSb": (0, 5), "SICK-R": (1, 5)}
YEAR = re.compile(r"(?:sts|(?<!\d)20)(1[2-6])(?!\d)", re.IGNORECASE)  # STS12-en-test, STS2012, semeval2012, 2012
SIMILARITIES: tuple[Metric, ...] = ("cosine", "euclidean", "manhattan")
CORRELATIONS: dict[str, Callable[[Floats, Floats], float | None]] = {"spearman": spearman, "pearson": pearson}
MEASURES = tuple(f"{correlation}_{similarity}" for similarity in SIMILARITIES for correlation in CORRELATIONS)


def read_sets(
    files: OfficialFiles, names: Sequence[str], context: StageContext, rejects: Rejects
) -> dict[str, StsPairs | None]:
    """Reads each of the sets `names`; None for one without any of its files.

    Raises RequestError for an incomplete set, and for a file that is not in its official form.
    """
    sets: dict[str, StsPairs | None] = {}
    for name in names:
        pairs = None
        if name in YEARS:
            pairs = _year(files, name, rejects)
        elif path := files.find(*SINGLE[name]):
            table = Table(path=InputFile(path.resolve()), **SINGLE[name][path.name.removesuffix(".gz")])
            records = list(read(table, (), context.cache, rejects))
            pairs = StsPairs.of({"": _scored(records, path, rejects, SCALES[name])})
        if pairs and (missing := sum(pairs.without_gold.values())):
            log(f"{name}: left out {missing:,} pairs, which nobody has scored")
        sets[name] = pairs
    return sets


def _year(files: OfficialFiles, name: str, rejects: Rejects) -> StsPairs | None:
    by_subset = {subset: _subset_files(files, name, subset) for subset in YEARS[name]}
    missing = [subset for subset, paths in by_subset.items() if not paths]
    if len(missing) == len(by_subset):
        return None
    if missing:
        raise RequestError(
            f"{name}: expected its {len(by_subset)} subsets, found none of {', '.join(missing)} below {files.data}; "
            f"expected files such as STS.input.{missing[0]}.txt and STS.gs.{missing[0]}.txt in a folder that its year "
            f"names, such as {name}-en-test"
        )
    return StsPairs.of({subset: _scored(_records(*paths), paths[-1], rejects) for subset, paths in by_subset.items()})


def _subset_files(files: OfficialFiles, name: str, subset: str) -> tuple[Path, ...]:
    """Finds the files of the sentences and gold scores of a subset in one folder, or the one file of some collections.

    Empty without any.
    """
    year = name.removeprefix("STS")
    sentences, golds, both = (
        distinct(path for path in files.named(*names) if _year_of(path, files.data) == year)
        for names in _file_names(year, subset)
    )
    choices: list[tuple[Path, ...]] = [(path,) for path in both]
    choices += [(path, gold) for path in sentences for gold in golds if path.parent == gold.parent]
    refuse_several([" with ".join(map(str, paths)) for paths in choices], f"{subset} of {name}")
    if not choices and sentences and golds:
        raise RequestError(
            f"{name}: expected sentences and gold scores in one folder, found {sentences[0]}, {golds[0]}"
        )
    return choices[0] if choices else ()


def _file_names(year: str, subset: str) -> tuple[list[str], list[str], list[str]]:
    """Lists the names of the files of a subset: of its sentences, of its gold scores, and of both in one."""
    return (
        [f"STS.input.{subset}.txt", f"STS20{year}.input.{subset}.txt"],
        [f"STS.gs.{subset}.txt", f"STS20{year}.gs.{subset}.txt"],
        [f"{subset}.test.tsv"],
    )


def without_year(files: OfficialFiles, names: Sequence[str]) -> Path | None:
    """Finds a file of one of the years among `names` in a folder that names no year; None without any."""
    kinds = chain.from_iterable(_file_names(name[3:], subset) for name in names for subset in YEARS.get(name, ()))
    named = files.named(*chain.from_iterable(kinds))
    return next((path for path in named if _year_of(path, files.data) is None), None)


def _year_of(path: Path, data: Path) -> str | None:
    """Returns the year that the innermost folder below `data` names; None without one or with several in a name."""
    for folder in reversed(path.relative_to(data).parent.parts):
        years = set(YEAR.findall(folder))
        if len(years) == 1:
            return str(years.pop())
    return None


def _records(path: Path, gold: Path | None = None) -> list[Record]:
    """Reads both sentences and the gold score of each line: of two files, or of one that has the score first."""
    if gold is None:
        rows = read_fields(path, "\t", 3, "a score and two sentences with tabs between them")
        values = [(first, second, score) for score, first, second, *_ in rows]
    else:
        rows, golds = read_fields(path, "\t", 2, "two sentences with a tab between them"), read_lines(gold)
        if len(golds) != len(rows):
            raise RequestError(
                f"line n of {gold} should score line n of {path}, but the first has {len(golds):,} lines and the "
                f"second {len(rows):,}. Copy both again."
            )
        values = [(first, second, score) for (first, second, *_), score in zip(rows, golds, strict=True)]
    return [Record(fields, str(path), line) for line, fields in enumerate(values, 1)]


def _scored(records: Sequence[Record], gold: Path, rejects: Rejects, scale: Scale = (0, 5)) -> ScoredPart:
    """Selects the pairs of `records` with a gold score; those with a blank sentence are rejected.

    gold: the file of the scores, each on the line of its pair.
    """

    def pair(record: Record) -> ScoredPair:
        first, second, text = record.values
        score = gold_score(text, gold, record.line, scale)
        if not first.strip() or not second.strip():
            raise ValueError(BLANK)
        return first, second, score

    with_gold = [record for record in records if record.values[2].strip()]
    pairs = list(usable(with_gold, pair, rejects))
    if not pairs:
        raise RequestError(f"{gold}: expected pairs with a gold score, found none that can be used")
    return pairs, len(records) - len(with_gold)


def set_metrics(sets: Mapping[str, StsPairs], encode: Encode, intervals: bool = True) -> Metrics:
    """Computes `sts/<set>[/<subset>]/<correlation>_<similarity>` of each set and of its subsets, and their means.

    `sts/STS12/…` is the mean of the year's subsets, `sts/STS12/all/…` takes the year's pairs together, and
    `sts/mean/…` is the mean of the seven sets, absent without all of them. Distances count negatively.
    `without_gold/<set>[/<subset>]` counts the pairs without a gold score.
    """
    metrics: Metrics = {}
    for name, pairs in sets.items():
        similar = pairs.similarities(encode, SIMILARITIES)
        end = ""
        if name in YEARS:
            metrics |= part_correlations(f"sts/{name}", f"sts/{name}", similar, pairs, intervals)
            end = "/all"
        metrics |= correlations(f"sts/{name}{end}", similar, pairs.scores, intervals=intervals)
        metrics |= without_gold(name, pairs)
    if set(SETS["sts"]) <= sets.keys():
        for measure in MEASURES:
            for end in ("", "/all"):
                by_set = [f"sts/{name}{end if name in YEARS else ''}/{measure}" for name in SETS["sts"]]
                metrics[f"sts/mean{end}/{measure}"] = _mean([metrics[name] for name in by_set])
    return metrics


def without_gold(name: str, pairs: StsPairs) -> Metrics:
    """Counts the pairs without a gold score as `without_gold/<set>[/<subset>]`."""
    return {"/".join(filter(None, ["without_gold", name, part])): n for part, n in pairs.without_gold.items()}


def part_correlations(
    name: str, mean: str, similar: Mapping[str, Floats], pairs: StsPairs, intervals: bool = True
) -> Metrics:
    """Computes the correlations in each part, `<name>/<part>/…`, and their means over the parts, `<mean>/…`."""
    metrics: Metrics = {}
    for number, part in enumerate(pairs.without_gold):
        rows = pairs.part == number
        within = {measure: values[rows] for measure, values in similar.items()}
        metrics |= correlations(f"{name}/{part}", within, pairs.scores[rows], intervals=intervals)
    return metrics | correlations(mean, similar, pairs.scores, pairs.part, intervals)


def correlations(
    name: str,
    similar: Mapping[str, Floats],
    scores: Floats,
    groups: NDArray[np.int64] | None = None,
    intervals: bool = True,
) -> Metrics:
    """Computes `<name>/<correlation>_<similarity>`, with an interval for Spearman of the cosine or the score.

    similar: similarities of the pairs, (pairs,), by the name of the measure; `score` is that of a cross-encoder.
    groups: the group of each pair, (pairs,); the correlation is then the mean over groups.
    """
    metrics: Metrics = {}
    grouped = np.zeros(len(scores), np.int64) if groups is None else groups
    for similarity, values in similar.items():
        for correlation, statistic in CORRELATIONS.items():
            measure, mean = f"{correlation}_{similarity}", partial(_mean_over_groups, statistic)
            if intervals and measure in MAIN:
                metrics |= with_interval(f"{name}/{measure}", mean, values, scores, grouped, groups=grouped)
                if metrics[f"{name}/{measure}"] is None:
                    log(f"{name}: no correlation, as all its gold scores are equal, or all similarities are")
            else:
                metrics[f"{name}/{measure}"] = mean(values, scores, grouped)
    return metrics


def _mean_over_groups(
    statistic: Callable[[Floats, Floats], float | None], first: Floats, second: Floats, groups: NDArray[np.int64]
) -> float | None:
    """Computes the mean of `statistic` over the groups; None where it is None in one of them."""
    return _mean([statistic(first[groups == group], second[groups == group]) for group in np.unique(groups)])


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers and len(numbers) == len(values) else None
