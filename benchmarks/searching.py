"""Exact search beside a graph: seconds for a query, the share of the nearest ten that the graph finds, and its linking.

Claim: through a graph as it is linked without settings at least 0.95 of the nearest ten are found.

    python -m benchmarks.searching --data DIR

The vectors are all-MiniLM-L6-v2's, of distinct English sentences of Multi30K and the STS benchmark. Queries are other
such sentences' vectors, one in a call as a user's come; both ways take turns. A time is a query's, its encoding not in.
"""

import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np

from benchmarks.contenders import Answer, Claim, Spread, in_turns, judge
from benchmarks.english import MULTI30K, STSB, draw
from benchmarks.machine import MINILM, add_data, machine, require
from bertrelay.encoder import SentenceEncoder
from bertrelay.evaluation.similarity import Vectors, unit
from students.index import SearchIndex
from students.index_build import build_index

K, FOUND = 10, 0.95


def ask(index: SearchIndex, queries: Vectors, *, exact: bool) -> Answer:
    """Milliseconds of a query, and the rows that were found, (queries, K)."""
    begin = time.perf_counter()
    rows = [index.neighbours(query[None], K, exact)[1][0] for query in queries]
    return {"milliseconds": 1e3 * (time.perf_counter() - begin) / len(queries), "rows": np.stack(rows)}


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.searching", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--sentences", type=int, default=38_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sources = {**MULTI30K, **STSB}
    require(parser, options.data, *sources)
    print(machine())
    drawn = draw(options.data, sources, options.sentences + options.queries, options.seed)
    encoder = SentenceEncoder.load(MINILM)
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch, "corpus.txt")
        corpus.write_text("\n".join(drawn[options.queries :]) + "\n", encoding="utf-8")
        folder = Path(scratch, "index")
        build_index(encoder, corpus, folder, kind="exact")
        begin = time.perf_counter()
        index = build_index(encoder, corpus, folder, kind="hnsw")
        linking = time.perf_counter() - begin
        queries = unit(encoder.encode(drawn[: options.queries]))
        answers = in_turns(
            {
                "exact": lambda _: ask(index, queries, exact=True),
                "graph": lambda _: ask(index, queries, exact=False),
            },
            options.rounds,
        )
    for name, told in answers.items():
        print(f"{name}: {Spread.of(each['milliseconds'] for each in told)} ms a query")
    exact, graph = answers["exact"][0]["rows"], answers["graph"][0]["rows"]
    found = float(np.mean([len(set(a) & set(b)) / K for a, b in zip(exact.tolist(), graph.tolist(), strict=True)]))
    print(f"linked in {linking:.1f} s, its recall measured on sentences of its own among that")
    holds = judge([Claim(f"at least {FOUND} of the nearest {K} found by the graph", f"{found:.4f}", found >= FOUND)])
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
