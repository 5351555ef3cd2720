"""Metrics of ranked documents by graded judgements, equal to trec_eval's, and of an encoder that ranks them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.vectors import Vectors
from bertrelay.device import ComputePrecision, resolve_precision
from bertrelay.evaluation.encode import finite
from bertrelay.evaluation.similarity import unit
from bertrelay.evaluation.statistics import Floats, share, with_interval
from bertrelay.model.encoder import SentenceEncoder, open_encoder
from bertrelay.stage import Metrics
from students.evaluate.judgements import RetrievalData, retrieval_data
from students.searching.equal_vectors import Rows
from students.searching.lexical import WordIndex, fuse
from students.searching.settings import SearchMode

DEPTH = 1000
"""Documents that are ranked for a query, as in runs of TREC and BEIR; mean average precision counts no later one."""
CUT = 10
"""Ranks that nDCG and MRR count."""
RECALL_AT = (10, 100)
COSINE_DIGITS = 6
"""Equal vectors differ in the last bits of their products with others; cosines equal to these digits are a tie."""
QUERIES_AT_ONCE = 64
WEIGHTS = tuple(step / 10 for step in range(11))
"""Weights of the ranking by words among which one is chosen."""

Grades = NDArray[np.int64]


def evaluate_retrieval(
    model: SentenceEncoder | str | Path,
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    judgements: Mapping[str, Mapping[str, int]],
    *,
    recall_at: Sequence[int] = RECALL_AT,
    precision: str = "auto",
) -> Metrics:
    """Ranks all `documents` for each of `queries` by cosine, and scores the ranking by `judgements`.

    queries, documents: text by id. judgements: grade by query and document; grades up to 0 are not relevant, and
        queries without a relevant document are not counted.
    Returns `ndcg_at_10`, `mrr_at_10`, `map` and `recall_at_<k>`, with 95 % intervals over the queries.
    Raises RequestError for a judgement of a query or a document that does not exist, and without any query.
    """
    data = retrieval_data(queries, documents, judgements)
    encoder = open_encoder(model)
    ranked = rank(data, *encode_data(data, encoder, resolve_precision(precision, encoder.device)))
    values = ranking_values(grades_at(ranked, data), data.grades, recall_at)
    return {key: value for name, column in values.items() for key, value in with_interval(name, share, column).items()}


def retrieval_metrics(name: str, data: RetrievalData, values: Mapping[str, Floats]) -> Metrics:
    """Means of `values`, (queries,) each, with intervals: `retrieval/<name>/<measure>`, and of each language.

    Those of a language are `retrieval/<name>/<language>/<measure>`, where the language of queries is known.
    """
    languages = np.array(data.languages)
    parts = {f"retrieval/{name}": np.ones(len(languages), bool)}
    parts |= {
        f"retrieval/{name}/{language}": languages == language for language in dict.fromkeys(data.languages) if language
    }
    metrics: Metrics = {f"retrieval/{name}/documents": len(data.documents)}
    if data.unanswered:
        metrics[f"retrieval/{name}/unanswered"] = data.unanswered
    for prefix, rows in parts.items():
        metrics[f"{prefix}/queries"] = int(rows.sum())
        for measure, column in values.items():
            metrics |= with_interval(f"{prefix}/{measure}", share, column[rows])
    return metrics


def encode_data(data: RetrievalData, encoder: SentenceEncoder, precision: ComputePrecision) -> tuple[Vectors, Vectors]:
    """Computes the vectors of queries and documents, each after the model's prompt for it if it has both."""
    prompts = encoder.retrieval_prompts
    queries, documents = (
        finite(
            lambda texts, prompt=prompt: encoder.encode(  # type: ignore[misc]
                texts, prompt_name=prompt, precision=precision, show_progress_bar=True
            )
        )(texts)
        for texts, prompt in zip((data.queries, data.documents), prompts, strict=True)
    )
    return queries, documents


def rank(
    data: RetrievalData, queries: Vectors, documents: Vectors, depth: int = DEPTH, *, relevant_last: bool = False
) -> Rows:
    """Ranks the documents of `data` by cosine: the rows of the first `depth`, (queries, depth).

    queries, documents: their vectors, (n, dim) each.
    relevant_last: of documents as near, those with a lower grade come first, so that equal vectors of all texts find
        nothing; else they are in the order of `data`.
    """
    depth, documents = min(depth, len(documents)), unit(documents)
    ranked = np.zeros((len(queries), depth), np.int64)
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        cosines = np.round(unit(queries[start : start + QUERIES_AT_ONCE]) @ documents.T, COSINE_DIGITS)
        for row, similarities in enumerate(cosines, start):
            ties = _grade_of(data.grades[row], len(documents)) if relevant_last else None
            ranked[row] = ranked_rows(similarities, depth, ties)
    return ranked


def rank_by_modes(
    data: RetrievalData, vectors: tuple[Vectors, Vectors], modes: Sequence[SearchMode], dev: RetrievalData | None = None
) -> tuple[dict[SearchMode, Rows], float]:
    """Ranks by vectors, by words, or by both, and gives the weight of the ranking by words in the latter.

    vectors: of the queries of `data` and, where there is `dev`, then of its queries; and of the documents.
    dev: other judged queries of the same documents, on which the weight is chosen: the one of WEIGHTS with the highest
        nDCG@10, of equal ones that nearest to .5. Without it the weight is .5.
    """
    queries, documents = vectors
    by_vectors = rank(data, queries[: len(data.queries)], documents)
    if set(modes) <= {"dense"}:
        return {"dense": by_vectors}, 0.5
    words = WordIndex.build(data.documents)
    by_words, weight = words.neighbours(data.queries, DEPTH)[1], 0.5
    if dev is not None and "hybrid" in modes:
        rankings = rank(dev, queries[len(data.queries) :], documents), words.neighbours(dev.queries, DEPTH)[1]
        quality = {one: _mean_ndcg(dev, fuse(*rankings, CUT, one)[1]) for one in WEIGHTS}
        weight = max(WEIGHTS, key=lambda one: (quality[one], -abs(one - 0.5)))
    fused = fuse(by_vectors, by_words, by_vectors.shape[1], weight)[1]
    return {"dense": by_vectors, "lexical": by_words, "hybrid": fused}, weight


def _mean_ndcg(data: RetrievalData, ranked: Rows) -> float:
    return float(ranking_values(grades_at(ranked, data), data.grades)[f"ndcg_at_{CUT}"].mean())


def grades_at(ranked: Rows, data: RetrievalData) -> Grades:
    """Looks up the grades of ranked rows, (queries, depth); 0 for row -1, which is no document."""
    grades = np.zeros(ranked.shape, np.int64)
    for row, judged in enumerate(data.grades):
        grades[row] = np.where(ranked[row] < 0, 0, _grade_of(judged, len(data.documents))[ranked[row]])
    return grades


def ranked_rows(scores: Floats, depth: int, ties: Grades | None = None) -> Rows:
    """Positions of the `depth` highest `scores` (documents,), best first; equal scores by `ties`, else in their order.

    For example, scores [.2, .9, .9] and depth 2 give [1, 2], and with ties [0, 1, 0] they give [2, 1].
    """
    last = np.partition(scores, len(scores) - depth)[len(scores) - depth]
    candidates = np.flatnonzero(scores >= last)
    order = candidates if ties is None else ties[candidates]
    best: Rows = candidates[np.lexsort((order, -scores[candidates]))[:depth]]
    return best


def _grade_of(judged: Mapping[int, int], documents: int) -> Grades:
    """Grade of each document, (documents,)."""
    grades = np.zeros(documents, np.int64)
    grades[list(judged)] = list(judged.values())
    return grades


def ranking_values(
    ranked: Grades, judged: Sequence[Mapping[int, int]], recall_at: Sequence[int] = RECALL_AT
) -> dict[str, Floats]:
    """Measures of each query, (queries,) each, as trec_eval defines them.

    ranked: grades of a query's documents, best first, (queries, depth). judged: the grades of its relevant documents.
    `ndcg_at_10`: sum of grade / log2(rank + 1) to rank 10, over that of the best order (Järvelin & Kekäläinen 2002,
        with the discount of Burges et al. 2005).
    `mrr_at_10`: 1 / rank of the first relevant document, 0 beyond rank 10.
    `map`: mean of the precision at the rank of each relevant document, 0 for one that is not ranked.
    `recall_at_<k>`: fraction of the relevant documents to rank k.
    """
    is_relevant = ranked > 0
    counts = np.array([len(grades) for grades in judged])
    ideal = np.zeros((len(judged), CUT))
    for row, grades in enumerate(judged):
        best = sorted(grades.values(), reverse=True)[:CUT]
        ideal[row, : len(best)] = best
    precision = np.cumsum(is_relevant, axis=1) / np.arange(1, ranked.shape[1] + 1)  # (queries, depth)
    first = first_ranks(ranked)
    return {
        f"ndcg_at_{CUT}": _discounted(ranked[:, :CUT]) / _discounted(ideal),
        f"mrr_at_{CUT}": np.where(first <= CUT, 1 / first, 0),
        "map": (precision * is_relevant).sum(axis=1) / counts,
        **{f"recall_at_{top_k}": is_relevant[:, :top_k].sum(axis=1) / counts for top_k in recall_at},
    }


def first_ranks(ranked: Grades) -> Floats:
    """Rank of the first relevant document of each query, from 1; infinite where none is ranked, (queries,)."""
    is_relevant = ranked > 0
    return np.where(is_relevant.any(axis=1), is_relevant.argmax(axis=1) + 1.0, np.inf)


def _discounted(gains: NDArray[np.number]) -> Floats:
    total: Floats = (gains / np.log2(np.arange(gains.shape[1]) + 2)).sum(axis=1)
    return total
