"""Cleaning of parallel text: pairs with a low ratio margin are left out.

The ratio margin compares the cosine of a pair with those of the nearest neighbours of both sentences (Artetxe & Schwenk
2019); WikiMatrix and CCMatrix were mined by it. Each pair is compared with the pairs of a neighbourhood, drawn from
those of its language. So memory is the same at any size, time grows as the pairs do, and a score depends little on the
size of the corpus. After a kill the same call resumes at the first block of vectors or of scores that is missing.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    mask_of,
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
"""Most pairs that are compared with each other: 100 MB of vectors of 768 dimensions for each column."""
COLUMNS, VECTORS, SCORES = ("english", "other"), "vectors", "margins.npy"

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
    pairs: pa.Table, language_of: NDArray[np.str_], margin: MarginFilter, precision: ComputePrecision, cache: Cache
) -> Scores:
    """The ratio margin of every pair, (pairs,): from the cache, or computed."""
    encoder = at_unit_length(SentenceEncoder.load(margin.model, cache=cache))
    digest = hashlib.sha256()
    for chunk in pairs["pair"].chunks:
        digest.update(b"".join(chunk.to_pylist()))
    decides = {"model": encoder_digest(encoder), "pairs": digest.hexdigest(), "k": margin.k, "most": NEIGHBOURHOOD}
    key = fingerprint({**decides, "precision": precision})

    def score(folder: Path) -> None:
        vectors = folder / VECTORS  # a thousand times the size of the scores
        if not (folder / SCORES).is_file():
            vectors.mkdir(exist_ok=True)
            encode = partial(_encode, encoder, precision, vectors, key)
            _write_scores(folder / SCORES, vectors / "scores", key, pairs, language_of, encode, margin.k)
        shutil.rmtree(vectors, ignore_errors=True)

    folder = cached_folder(cache.folder / "margins" / key[:32], score, resume=True)
    return open_vectors(folder / SCORES)[:, 0]


def _write_scores(
    path: Path,
    shard_folder: Path,
    key: str,
    pairs: pa.Table,
    language_of: NDArray[np.str_],
    encode: Callable[[str, Iterator[dict[str, pa.Array]]], Vectors],
    k: int,
) -> None:
    """Writes the margins of all pairs, (pairs, 1), to `path`, and before to shards, a neighbourhood each."""
    keys = _sentence_keys(pairs, language_of)
    rows, vectors = [], []
    for column in COLUMNS:
        numbers, first = number_distinct(keys[column])
        is_first = mask_of(first, len(pairs))
        rows.append(numbers)
        vectors.append(encode(column, select_rows(pairs, is_first, {"sentence": column})))
    pair_of, first = number_distinct(pairs["pair"].combine_chunks())
    blocks = neighbourhoods(pairs["pair"].take(pa.array(first)), language_of[first])
    order = first[np.concatenate(blocks)]  # rows of the table, block after block
    ends = np.cumsum([len(block) for block in blocks]).tolist()
    spans = [Span(end - len(block), end, len(block)) for block, end in zip(blocks, ends, strict=True)]

    def compute(missing: Iterable[Span], bar: Bar) -> Iterator[Vectors]:
        for start, end, size in missing:
            block_rows = [numbers[order[start:end]] for numbers in rows]
            yield block_margins(block_rows, vectors, k)[:, None]
            bar.advance(size)

    work = Work(whole_span, lambda: compute, "margins", "pairs")
    shards = fill_shards(shard_folder, spans, {"key": key}, work, suffix=".npy", write=write_block)
    in_order = np.concatenate([open_vectors(path) for path in shards.complete()])  # (distinct pairs, 1)
    distinct = np.empty_like(in_order)
    distinct[np.concatenate(blocks)] = in_order
    with atomic_write(path) as building:
        write_npy(building, [distinct[pair_of]], len(pairs), 1)


def _sentence_keys(pairs: pa.Table, language_of: NDArray[np.str_]) -> Mapping[str, pa.Array]:
    """Digests of the sentences of each column: equal for equal English, and for equal text of one language."""
    texts = (text for chunk in pairs["other"].chunks for text in chunk.to_pylist())
    other = text_digests(f"{language}\n{text}" for language, text in zip(language_of, texts, strict=True))
    return {"english": pairs["target"].combine_chunks(), "other": other}


def _encode(
    encoder: SentenceEncoder,
    precision: ComputePrecision,
    folder: Path,
    key: str,
    column: str,
    blocks: Iterator[dict[str, pa.Array]],
) -> Vectors:
    """The unit vectors of distinct sentences, which stay on disk, (sentences, dim)."""
    write_arrow(folder / f"{column}.arrow", SENTENCE_SCHEMA, blocks)
    sentences, path = Sentences(folder / f"{column}.arrow"), folder / f"{column}.npy"
    description = f"encoding {column} sentences"
    fill_vectors(encoder, sentences.read, len(sentences), path, key, precision=precision, description=description)
    return open_vectors(path)


def neighbourhoods(digests: pa.ChunkedArray, language_of: NDArray[np.str_]) -> list[Rows]:
    """Groups rows of distinct pairs by language, into groups of almost equal size, `NEIGHBOURHOOD` at most.

    The pairs of a group depend on their digests only, and so neither on their order nor on their subject. With at most
    10 pairs in a group, 35 German and 25 French ones become groups of 9 9 9 8 and of 9 8 8.
    """
    order, groups = pc.sort_indices(digests.combine_chunks()).to_numpy().astype(np.int64), list[Rows]()
    for language in np.unique(language_of):
        rows = order[language_of[order] == language]
        groups += np.array_split(rows, -(-len(rows) // NEIGHBOURHOOD))
    return groups


def block_margins(rows: Sequence[NDArray[np.integer]], vectors: Sequence[Vectors], k: int) -> Scores:
    """The ratio margins of pairs, (pairs,), in three steps.

    1. The nearness of a sentence is the mean cosine to its `k` nearest sentences of the other column of these pairs.
    2. The margin of a pair is its cosine, divided by the mean nearness of its two sentences.
    3. A sentence that several pairs have counts once.

    rows: of the `vectors` of each column, (pairs,).
    """
    distinct, positions = zip(*(np.unique(column, return_inverse=True) for column in rows), strict=True)
    english, other = (np.asarray(vectors[column][distinct[column]]) for column in (0, 1))  # (sentences, dim)
    nearness = [neighbours.cosines.mean(axis=1) for neighbours in exact_knn(english, other, k)]
    cosines = np.empty(len(positions[0]))
    for start in range(0, len(cosines), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        cosines[block] = np.einsum("nd,nd->n", english[positions[0][block]], other[positions[1][block]])
    return ratio_margins(cosines, (nearness[0][positions[0]] + nearness[1][positions[1]]) / 2).astype(np.float32)
