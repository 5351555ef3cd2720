"""Cleaning of parallel text: pairs are left out whose sentences a multilingual encoder finds no nearer than others.

The score of a pair is its ratio margin (Artetxe & Schwenk 2019), by which WikiMatrix and CCMatrix were mined. Each pair
is compared with the pairs of a neighbourhood, drawn from those of its language: memory stays the same at any size, time
grows as the pairs do, and a score depends little on how large the corpus is. Killed anywhere, the same call resumes:
from the first block of vectors or of scores that is missing.
"""

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertrelay.cache import Cache, cached_folder
from bertrelay.compute.work import Work, whole_span
from bertrelay.data.arrow import (
    SENTENCE_SCHEMA,
    Sentences,
    number_distinct,
    select_rows,
    text_digests,
    write_arrow,
)
from bertrelay.data.shards import Span
from bertrelay.data.tables import BLOCK_ROWS
from bertrelay.data.vectors import Vectors, open_vectors, write_block, write_npy
from bertrelay.device import ComputePrecision
from bertrelay.encode_files import fill_vectors
from bertrelay.files import atomic_write
from bertrelay.fingerprint import fingerprint
from bertrelay.inference.run_model import fill_shards
from bertrelay.model.encoder import SentenceEncoder, encoder_digest
from bertrelay.progress import Bar, log
from students.mining.knn import exact_knn, ratio_margins
from students.parallel.settings import MarginFilter
from students.parallel.split import LOW_MARGIN, UNDECIDED, Outcomes, decide, select
from students.searching.equal_vectors import Rows
from students.searching.faiss import at_unit_length, load_faiss

NEIGHBOURHOOD = 32_768
"""Pairs that are compared with each other: 100 MB of vectors of 768 dimensions for each side."""
SIDES, VECTORS, SCORES = ("english", "other"), "vectors", "margins.npy"

Scores = NDArray[np.float32]


def drop_low_margins(
    pairs: pa.Table,
    outcomes: Outcomes,
    languages: Sequence[str],
    margin: MarginFilter,
    precision: ComputePrecision,
    cache: Cache,
) -> tuple[Outcomes, dict[str, Any]]:
    """Leaves out the undecided pairs with a margin below the threshold.

    pairs: columns stream, english, other, target and pair, which are digests of the English and of the whole pair.
    languages: of each stream.
    cache: stores the scores, so that another threshold costs nothing.
    Returns the outcomes, and facts for `corpus.json`: the threshold, and by language how many undecided pairs there
    were, how many of them are below, and the deciles of their scores.
    """
    load_faiss()
    language_of = np.array(languages)[pairs["stream"].to_numpy()]  # (pairs,)
    scores = pair_margins(pairs, language_of, margin, precision, cache)  # (pairs,)
    undecided, is_low = select(outcomes, UNDECIDED), scores < margin.threshold
    facts: dict[str, Any] = {}
    for language in dict.fromkeys(languages):
        rows = undecided & (language_of == language)
        count, below = int(rows.sum()), int(is_low[rows].sum())
        deciles = np.quantile(scores[rows], np.linspace(0, 1, 11)).round(4).tolist() if count else []
        facts[language] = {"pairs": count, "below": below, "deciles": deciles}
        log(f"{language}: {below:,} of {count:,} pairs have a margin below {margin.threshold:g}")
    settings = {"model": str(margin.model), "threshold": margin.threshold, "k": margin.k}
    return (
        decide(outcomes, undecided & is_low, LOW_MARGIN),
        {**settings, "neighbourhood": NEIGHBOURHOOD, "languages": facts},
    )


def pair_margins(
    table: pa.Table, language_of: NDArray[np.str_], margin: MarginFilter, precision: ComputePrecision, cache: Cache
) -> Scores:
    """The ratio margin of every pair, (pairs,): from the cache, or computed."""
    encoder = at_unit_length(SentenceEncoder.load(margin.model, cache=cache))
    digest = hashlib.sha256()
    for chunk in table["pair"].chunks:
        digest.update(b"".join(chunk.to_pylist()))
    decides = {"model": encoder_digest(encoder), "pairs": digest.hexdigest(), "k": margin.k, "most": NEIGHBOURHOOD}
    key = fingerprint({**decides, "precision": precision})

    def score(folder: Path) -> None:
        vectors = folder / VECTORS  # of which the scores take a thousandth of the space
        if not (folder / SCORES).is_file():
            vectors.mkdir(exist_ok=True)
            encode = partial(_encode, encoder, precision, vectors, key)
            _write_scores(folder / SCORES, vectors / "scores", key, table, language_of, encode, margin.k)
        shutil.rmtree(vectors, ignore_errors=True)

    folder = cached_folder(cache.folder / "margins" / key[:32], score, resume=True)
    return open_vectors(folder / SCORES)[:, 0]


def _write_scores(
    path: Path, partial_scores: Path, key: str, table: pa.Table, language_of: NDArray[np.str_], encode: Any, k: int
) -> None:
    """Writes the margins of all pairs, (pairs, 1), to `path`; shards beside `partial_scores` have them before."""
    keys = _distinct_keys(table, language_of)
    rows, vectors = [], []
    for side in SIDES:
        side_rows, first = number_distinct(keys[side])
        wanted = np.zeros(len(table), bool)
        wanted[first] = True
        rows.append(side_rows)
        vectors.append(encode(side, select_rows(table, wanted, {"sentence": side})))
    pair_of, first = number_distinct(table["pair"].combine_chunks())
    blocks = neighbourhoods(table["pair"].take(pa.array(first)), language_of[first])
    order = first[np.concatenate(blocks)]  # rows of the table, block after block
    ends = np.cumsum([len(block) for block in blocks]).tolist()
    spans = [Span(end - len(block), end, len(block)) for block, end in zip(blocks, ends, strict=True)]

    def compute(missing: Iterable[Span], bar: Bar) -> Iterator[Vectors]:
        for start, end, size in missing:
            of_block = [side_rows[order[start:end]] for side_rows in rows]
            yield block_margins(of_block, vectors, k)[:, None]
            bar.advance(size)

    work = Work(whole_span, lambda: compute, "margins", "pairs")
    shards = fill_shards(partial_scores, spans, {"key": key}, work, suffix=".npy", write=write_block)
    of_order = np.concatenate([open_vectors(path) for path in shards.complete()])  # (distinct pairs, 1)
    distinct = np.empty_like(of_order)
    distinct[np.concatenate(blocks)] = of_order
    with atomic_write(path) as building:
        write_npy(building, [distinct[pair_of]], len(table), 1)


def _distinct_keys(table: pa.Table, language_of: NDArray[np.str_]) -> Mapping[str, pa.Array]:
    """Of each side what equal sentences share: of English in all languages, of the others in theirs."""
    texts = (text for chunk in table["other"].chunks for text in chunk.to_pylist())
    other = text_digests(f"{language}\n{text}" for language, text in zip(language_of, texts, strict=True))
    return {"english": table["target"].combine_chunks(), "other": other}


def _encode(
    encoder: SentenceEncoder,
    precision: ComputePrecision,
    folder: Path,
    key: str,
    side: str,
    blocks: Iterator[dict[str, pa.Array]],
) -> Vectors:
    """The unit vectors of distinct sentences, which stay on disk, (sentences, dim)."""
    write_arrow(folder / f"{side}.arrow", SENTENCE_SCHEMA, blocks)
    sentences, path = Sentences(folder / f"{side}.arrow"), folder / f"{side}.npy"
    description = f"encoding {side} sentences"
    fill_vectors(encoder, sentences.read, len(sentences), path, key, precision=precision, description=description)
    return open_vectors(path)


def neighbourhoods(digests: pa.ChunkedArray, language_of: NDArray[np.str_]) -> list[Rows]:
    """Rows of distinct pairs in groups of one language and of almost equal size, `NEIGHBOURHOOD` at most.

    Which pairs are in one depends on their digests alone, and so neither on their order nor on what they are about.
    """
    order, blocks = pc.sort_indices(digests.combine_chunks()).to_numpy().astype(np.int64), list[Rows]()
    for language in np.unique(language_of):
        own = order[language_of[order] == language]
        blocks += np.array_split(own, -(-len(own) // NEIGHBOURHOOD))
    return blocks


def block_margins(rows: Sequence[NDArray[np.integer]], vectors: Sequence[Vectors], k: int) -> Scores:
    """The ratio margins of pairs, (pairs,), among the `k` nearest sentences of the other side of the same pairs.

    rows: of each side's `vectors`, (pairs,).
    """
    distinct, own = zip(*(np.unique(side, return_inverse=True) for side in rows), strict=True)
    sides = [np.asarray(vectors[side][distinct[side]]) for side in (0, 1)]  # (sentences, dim)
    nearness = [neighbours.cosines.mean(axis=1) for neighbours in exact_knn(sides[0], sides[1], k)]
    cosines = np.empty(len(own[0]))
    for start in range(0, len(cosines), BLOCK_ROWS):
        some = slice(start, start + BLOCK_ROWS)
        cosines[some] = np.einsum("nd,nd->n", *(side[places[some]] for side, places in zip(sides, own, strict=True)))
    return ratio_margins(cosines, (nearness[0][own[0]] + nearness[1][own[1]]) / 2).astype(np.float32)
