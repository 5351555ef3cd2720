"""Exact search beside a graph: seconds for a query, the share of the nearest ten that the graph finds, and its build.

Claim: through a graph as it is built by default at least 0.95 of the nearest ten are found.

    python -m benchmarks.searching --data DIR

The vectors are all-MiniLM-L6-v2's, of distinct English sentences of Multi30K and the STS benchmark. Queries are other
such sentences' vectors, one in a call; both kinds take turns. A time is a query's, without its encoding.
"""

from argparse import Namespace
from typing import Any

import numpy as np

from benchmarks.harness import Answer, Claim, in_turns, main, timed
from benchmarks.machine import MINILM, MULTI30K, STSB, sentences_of
from bertrelay.encoder import SentenceEncoder
from bertrelay.evaluation.similarity import Vectors, unit
from students.index import SearchIndex, build_index

K, FOUND = 10, 0.95
SOURCES = {**MULTI30K, **STSB}


def ask(index: SearchIndex, queries: Vectors, *, exact: bool) -> Answer:
    """Milliseconds of a query, and the rows that were found, (queries, K)."""
    rows, seconds = timed(lambda: [index.neighbours(query[None], K, exact)[1][0] for query in queries])
    return {"milliseconds": 1e3 * seconds / len(queries), "rows": np.stack(rows).tolist()}


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    drawn = sentences_of(options.data, SOURCES, options.sentences + options.queries, options.seed)
    encoder = SentenceEncoder.load(MINILM)
    corpus, folder = options.scratch / "corpus.txt", options.scratch / "index"
    corpus.write_text("\n".join(drawn[options.queries :]) + "\n", encoding="utf-8")
    build_index(encoder, corpus, folder, kind="exact")  # encodes
    index, linking = timed(lambda: build_index(encoder, corpus, folder, kind="hnsw"))
    queries = unit(encoder.encode(drawn[: options.queries]))
    works = {name: lambda _, name=name: ask(index, queries, exact=name == "exact") for name in ("exact", "graph")}
    results = in_turns(works, options.rounds)
    spreads = {name: result.spread("milliseconds") for name, result in results.items()}
    for name, spread in spreads.items():
        print(f"{name}: {spread} ms a query")
    print(f"built in {linking:.1f} s, with its recall on queries of its own")
    exact, graph = (results[name].answers[0]["rows"] for name in ("exact", "graph"))
    found = float(np.mean([len(set(a) & set(b)) / K for a, b in zip(exact, graph, strict=True)]))
    claim = Claim(f"at least {FOUND} of the nearest {K} found by the graph", f"{found:.4f}", found >= FOUND)
    return [claim], {"milliseconds": spreads, "built": linking}


if __name__ == "__main__":
    main(measure, __doc__, *SOURCES, sentences=38_000, queries=500, rounds=5, seed=0)
