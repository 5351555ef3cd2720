"""The report of evaluating a student."""

from collections.abc import Mapping
from typing import Any

from bertrelay.report import Headline, Matrix, Measure, Section, StageReport, dots, identity
from bertrelay.stage import Metrics
from students.evaluate.judgements import RetrievalData
from students.parallel.pairs import Translations
from students.parallel.settings import ENGLISH
from teachers.evaluation.sts import StsPairs
from teachers.report import sts_headline

SEARCHES = {"": "search by vectors", "-lexical": "search by words", "-hybrid": "search by both"}
"""Ends of the names of sets, and the search that they are of."""
ACCURACY, LOOKUP = "translation_accuracy", "lookup_accuracy"


def evaluation_report(
    metrics: Metrics,
    parallel: Mapping[str, Translations],
    sts: Mapping[str, StsPairs],
    retrieval: Mapping[str, RetrievalData],
    picture: Mapping[str, Any] | None = None,
) -> StageReport:
    """The report of an evaluation.

    parallel, sts, retrieval: the test data, from which stages on the same data are recognised. picture: similarities.
    """
    headlines = [
        translation_headline(metrics, parallel),
        sts_headline(metrics, {name: pairs.rows() for name, pairs in sts.items()}),
        _recall_headline(metrics, parallel),
        *(retrieval_headline(metrics, name, data) for name, data in retrieval.items()),
    ]
    sections = []
    if picture:
        matrix = Matrix(
            title="Cosine similarity of sentences and their translations",
            rows=picture["rows"],
            columns=picture["labels"],
            values=picture["matrix"],
        )
        sections.append(Section(title="Similarity", blocks=[matrix]))
    return StageReport(headlines=[headline for headline in headlines if headline], sections=sections)


def translation_headline(metrics: Metrics, parallel: Mapping[str, Translations]) -> Headline | None:
    """The mean accuracy into English, the direction of published results, beside word-for-word lookup."""
    if not parallel:
        return None
    languages = list(parallel)
    names, lookups = ([f"{name}/{language}-{ENGLISH}" for language in languages] for name in (ACCURACY, LOOKUP))
    labels = {
        language: [(name, ""), (lookup, "word-for-word lookup")]
        for language, name, lookup in zip(languages, names, lookups, strict=True)
    }
    lookup = Measure.mean_of(metrics, lookups, "word-for-word lookup")
    return Headline(
        title="Translation accuracy into English",
        measure=Measure.mean_of(metrics, names),
        metrics=names,
        data=f"{_sizes(parallel)} of {len(languages):,} languages",
        beside=[] if lookup.value is None else [lookup],
        identity=identity(ACCURACY, {language: [pairs.english, pairs.other] for language, pairs in parallel.items()}),
        model="model",
        chart=dots(metrics, labels, "Translation accuracy into English, by language"),
    )


def _recall_headline(metrics: Metrics, parallel: Mapping[str, Translations]) -> Headline | None:
    """The mean recall of queries in other languages in the teacher's English index, beside that of English queries."""
    depth = next(
        (name.split("/")[0] for name in metrics if name.startswith("recall_at_") and "ratio" not in name), None
    )
    names = [f"{depth}/{language}" for language in parallel if f"{depth}/{language}" in metrics]
    if depth is None or not names:
        return None
    english = Measure.of(metrics, f"{depth}/{ENGLISH}", "the same in English")
    languages = [name.removeprefix(f"{depth}/") for name in names]
    return Headline(
        title=f"Recall@{depth.removeprefix('recall_at_')} in the teacher's index",
        measure=Measure.mean_of(metrics, names),
        metrics=names,
        data=f"queries in {len(languages):,} languages, with an English index",
        beside=[english],
        identity=identity(depth, {language: [pairs.english, pairs.other] for language, pairs in parallel.items()}),
        model="model",
        chart=dots(metrics, dict(zip(languages, ([(name, "")] for name in names), strict=True)), "Recall, by language"),
    )


def retrieval_headline(metrics: Metrics, name: str, data: RetrievalData) -> Headline:
    """nDCG@10 of all queries of a set, by vectors where measured, beside other searches, with a chart by language."""
    searches = {
        f"{name}{end}": label for end, label in SEARCHES.items() if f"retrieval/{name}{end}/ndcg_at_10" in metrics
    }
    (name, _), *others = searches.items()
    metric = f"retrieval/{name}/ndcg_at_10"
    languages = [language for language in dict.fromkeys(data.languages) if language]
    labels = {language: [(f"retrieval/{name}/{language}/ndcg_at_10", "")] for language in languages}
    return Headline(
        title=f"nDCG@10 on {name}",
        measure=Measure.of(metrics, metric),
        metrics=[metric],
        data=f"{len(data.queries):,} queries and {len(data.documents):,} documents",
        beside=[Measure.of(metrics, f"retrieval/{other}/ndcg_at_10", label) for other, label in others],
        identity=identity("ndcg_at_10", [data.queries, data.documents, [sorted(pair.items()) for pair in data.grades]]),
        model="model",
        chart=dots(metrics, labels, "nDCG@10, by language of the query"),
    )


def _sizes(parallel: Mapping[str, Translations]) -> str:
    sizes = sorted({len(pairs.other) for pairs in parallel.values()})
    numbers = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    return f"{numbers} sentences in each"
