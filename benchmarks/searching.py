"""Exact search beside a graph and vectors of fewer bits: milliseconds a query, what is found, memory, the build.

Claims: a graph, int8 and binary vectors, as they are built by default, find at least 0.95 of the nearest ten; and where
three tenths of the rows repeat two sentences, a graph and int8 at least 0.99, for queries that are distinct.

    python -m benchmarks.searching --data DIR
    python -m benchmarks.searching --data DIR --sentences 0 --rows 100000
    python -m benchmarks.searching --data DIR --sentences 0 --rows 1000000 --stand-ins

The vectors are all-MiniLM-L6-v2's, of distinct English sentences of Multi30K and the STS benchmark. Queries are other
such sentences' vectors, one in a call; all kinds take turns. A time is a query's, without its encoding. MB are those of
the file that is searched; that of int8 and binary vectors is in memory, the others are mapped from the disk.

--rows: the case with repeats, of so many rows, of Multi30K in four languages. --stand-ins takes random unit vectors in
their place, of as many dimensions, in a subspace of 24: a graph finds as much among them as among sentences'.
"""

from argparse import Namespace
from functools import partial
from math import prod
from shutil import copytree
from typing import Any

import numpy as np

from benchmarks.harness import Answer, Claim, Result, Spread, in_turns, main, timed
from benchmarks.machine import MINILM, MULTI30K, STSB, Tables, sentences_of
from bertrelay.data.vectors import Vectors
from bertrelay.evaluation.similarity import unit
from bertrelay.model.encoder import SentenceEncoder
from students.searching.equal_vectors import distinct, equal_rows
from students.searching.faiss import (
    Approximate,
    Find,
    build_structure,
    exact_neighbours,
    open_faiss,
    recall,
    write_index,
)
from students.searching.index import SearchIndex, build_index
from students.searching.settings import ApproximateKind, Hnsw

KINDS: tuple[ApproximateKind, ...] = ("hnsw", "int8", "binary")
EXACT, K, FOUND, FOUND_OF_REPEATS = "exact", 10, 0.95, 0.99
SOURCES = {**MULTI30K, **STSB}
LANGUAGES: Tables = {
    f"parallel/multi30k/train.{language}.gz": {"columns": [0]} for language in ("en", "de", "fr", "cs")
}
DIM, SUBSPACE, BLOCK = 384, 24, 50_000
REPEATED = 0.3
"""Of the rows: those that have one of two vectors."""


def ask(index: SearchIndex, queries: Vectors) -> Answer:
    """Milliseconds of a query, and the rows that were found, (queries, K)."""
    rows, seconds = timed(lambda: [index.neighbours(query[None], K)[1][0] for query in queries])
    return {"milliseconds": 1e3 * seconds / len(queries), "rows": np.stack(rows).tolist()}


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    claims, metrics = measure_distinct(options) if options.sentences else ([], {})
    if options.rows:
        more, repeats = measure_repeats(options)
        return [*claims, *more], {**metrics, "repeats": repeats}
    return claims, metrics


def measure_distinct(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    drawn = sentences_of(options.data, SOURCES, options.sentences + options.queries, options.seed)
    encoder = SentenceEncoder.load(MINILM)
    corpus = options.scratch / "corpus.txt"
    corpus.write_text("\n".join(drawn[options.queries :]) + "\n", encoding="utf-8")
    queries = unit(encoder.encode(drawn[: options.queries]))
    exact = build_index(encoder, corpus, options.scratch / EXACT, kind="exact")
    indexes, sizes = {EXACT: exact}, {EXACT: 4 * prod(exact.vectors.shape) / 1e6}
    seconds: dict[str, float] = {}
    for kind in KINDS:
        folder = copytree(options.scratch / EXACT, options.scratch / kind)
        indexes[kind], seconds[kind] = timed(partial(build_index, encoder, corpus, folder, kind=kind))
        sizes[kind] = sum(path.stat().st_size for path in folder.glob(f"*.{kind}*.faiss")) / 1e6
    works = {kind: lambda _, index=index: ask(index, queries) for kind, index in indexes.items()}
    results = in_turns(works, options.rounds)
    spreads, claims = show(results, sizes, seconds), []
    rows_of_exact = np.array(results[EXACT].answers[0]["rows"])
    for kind in KINDS:
        rows = np.array(results[kind].answers[0]["rows"])
        found = float((rows[:, :, None] == rows_of_exact[:, None]).any(axis=1).mean())
        claims.append(Claim(f"{kind} finds at least {FOUND} of the nearest {K}", f"{found:.4f}", found >= FOUND))
    return claims, {"milliseconds": spreads, "built": seconds, "megabytes": sizes}


def show(results: dict[str, Result], sizes: dict[str, float], seconds: dict[str, float]) -> dict[str, Spread]:
    """Prints and returns the milliseconds of each kind, beside its size and how long it took to build."""
    spreads = {kind: result.spread("milliseconds") for kind, result in results.items()}
    for kind, spread in spreads.items():
        built = f", built in {seconds[kind]:.1f} s" if kind in seconds else ""
        print(f"{kind}: {spread} ms a query, {sizes[kind]:.1f} MB{built}")
    return spreads


# Repeats


def measure_repeats(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    """As an index does it: equal vectors are found, and a graph and codes have each distinct one once."""
    vectors = repeated(options)
    equal, took = timed(equal_rows, vectors)
    assert equal is not None
    once = distinct(vectors, equal)
    print(f"{len(vectors):,} rows, {len(once):,} distinct vectors, found in {took:.1f} s", flush=True)
    finds: dict[str, Find] = {EXACT: lambda queries, k: exact_neighbours(queries, vectors, k)}
    sizes, claims = {EXACT: vectors.nbytes / 1e6}, []
    seconds: dict[str, float] = {}
    repeated_kinds: tuple[ApproximateKind, ...] = ("int8", "hnsw")
    for kind in repeated_kinds:
        built, seconds[kind] = timed(build_structure, kind, once, Hnsw())
        path = options.scratch / f"{kind}.faiss"
        write_index(built, path)
        sizes[kind] = path.stat().st_size / 1e6
        search = Approximate(kind, open_faiss(path, kind), vectors, equal)
        finds[kind] = partial(search.neighbours, candidates=Hnsw().ef_search)
        found = float(recall(partial(search.distinct_neighbours, candidates=Hnsw().ef_search), once).mean())
        text = f"{kind} finds at least {FOUND_OF_REPEATS} of the nearest {K} where rows repeat"
        claims.append(Claim(text, f"{found:.4f}", found >= FOUND_OF_REPEATS))
    queries = once[np.linspace(0, len(once) - 1, options.queries).astype(np.int64)]

    results = in_turns({kind: partial(ask_one_by_one, find, queries) for kind, find in finds.items()}, options.rounds)
    return claims, {"milliseconds": show(results, sizes, seconds), "built": seconds, "megabytes": sizes}


def ask_one_by_one(find: Find, queries: Vectors, _: int) -> Answer:
    seconds = timed(lambda: [find(query[None], K) for query in queries])[1]
    return {"milliseconds": 1e3 * seconds / len(queries)}


def repeated(options: Namespace) -> Vectors:
    """`--rows` vectors in a file mapped from the disk, of which three tenths have one of two vectors."""
    copies = round(REPEATED * options.rows)
    count, generator = options.rows - copies, np.random.default_rng(options.seed)
    vectors = np.lib.format.open_memmap(options.scratch / "vectors.npy", "w+", np.float32, (options.rows, DIM))
    if options.stand_ins:
        axes = generator.standard_normal((SUBSPACE, DIM), np.float32)
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            vectors[start : start + size] = unit(generator.standard_normal((size, SUBSPACE), np.float32) @ axes)
    else:
        sentences = sentences_of(options.data, LANGUAGES, count, options.seed)
        vectors[:count] = unit(SentenceEncoder.load(MINILM).encode(sentences))
    vectors[count:] = vectors[generator.integers(0, 2, copies)]
    generator.shuffle(vectors)
    return vectors


if __name__ == "__main__":
    main(
        measure,
        __doc__,
        *SOURCES,
        *LANGUAGES,
        sentences=38_000,
        queries=500,
        rounds=5,
        rows=0,
        stand_ins=False,
        seed=0,
    )
