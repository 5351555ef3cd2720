"""Exact search beside a graph and vectors of fewer bits: milliseconds a query, what is found, memory, the build.

Claim: a graph, int8 and binary vectors, as they are built by default, find at least 0.95 of the nearest ten.

    python -m benchmarks.searching --data DIR

The vectors are all-MiniLM-L6-v2's, of distinct English sentences of Multi30K and the STS benchmark. Queries are other
such sentences' vectors, one in a call; all kinds take turns. A time is a query's, without its encoding. MB are those of
the file that is searched; that of int8 and binary vectors is in memory, the others are mapped from the disk.
"""

from argparse import Namespace
from functools import partial
from shutil import copytree
from typing import Any

import numpy as np

from benchmarks.harness import Answer, Claim, in_turns, main, timed
from benchmarks.machine import MINILM, MULTI30K, STSB, sentences_of
from bertrelay.encoder import SentenceEncoder
from bertrelay.evaluation.similarity import Vectors, unit
from students.index import SearchIndex, build_index
from students.index_build import FAISS

EXACT, K, FOUND = "exact", 10, 0.95
SOURCES = {**MULTI30K, **STSB}


def ask(index: SearchIndex, queries: Vectors) -> Answer:
    """Milliseconds of a query, and the rows that were found, (queries, K)."""
    rows, seconds = timed(lambda: [index.neighbours(query[None], K)[1][0] for query in queries])
    return {"milliseconds": 1e3 * seconds / len(queries), "rows": np.stack(rows).tolist()}


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    drawn = sentences_of(options.data, SOURCES, options.sentences + options.queries, options.seed)
    encoder = SentenceEncoder.load(MINILM)
    corpus = options.scratch / "corpus.txt"
    corpus.write_text("\n".join(drawn[options.queries :]) + "\n", encoding="utf-8")
    queries = unit(encoder.encode(drawn[: options.queries]))
    exact = build_index(encoder, corpus, options.scratch / EXACT, kind=EXACT)
    indexes, seconds, sizes = {EXACT: exact}, {}, {EXACT: exact.vectors.nbytes / 1e6}
    for kind, file in FAISS.items():
        folder = copytree(options.scratch / EXACT, options.scratch / kind)
        indexes[kind], seconds[kind] = timed(partial(build_index, encoder, corpus, folder, kind=kind))
        sizes[kind] = (folder / file).stat().st_size / 1e6
    works = {kind: lambda _, index=index: ask(index, queries) for kind, index in indexes.items()}
    results = in_turns(works, options.rounds)
    spreads, claims = {kind: result.spread("milliseconds") for kind, result in results.items()}, []
    for kind, spread in spreads.items():
        built = f", built in {seconds[kind]:.1f} s" if kind in seconds else ""
        print(f"{kind}: {spread} ms a query, {sizes[kind]:.1f} MB{built}")
    nearest = np.array(results[EXACT].answers[0]["rows"])
    for kind in FAISS:
        rows = np.array(results[kind].answers[0]["rows"])
        found = float((rows[:, :, None] == nearest[:, None]).any(axis=1).mean())
        claims.append(Claim(f"{kind} finds at least {FOUND} of the nearest {K}", f"{found:.4f}", found >= FOUND))
    return claims, {"milliseconds": spreads, "built": seconds, "megabytes": sizes}


if __name__ == "__main__":
    main(measure, __doc__, *SOURCES, sentences=38_000, queries=500, rounds=5, seed=0)
