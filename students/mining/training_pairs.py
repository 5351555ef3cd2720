"""Distinct pairs of an anchor and a positive, and the candidates for negatives, in files."""

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bertrelay.blocks import blocks_of
from bertrelay.cache import Cache
from bertrelay.data.arrow import mask_of, number_distinct, open_arrow, select_rows, text_digests, write_arrow
from bertrelay.data.records import Rejects, read
from bertrelay.data.sentences import clean
from bertrelay.data.tables import BLOCK_ROWS, Record, Table
from bertrelay.data.writing import write_jsonl
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write
from bertrelay.fingerprint import Digests, fingerprint
from students.searching.equal_vectors import Rows
from students.searching.sentences import write_sentences

EMPTY = "empty_side"
PAIR: tuple[str, str] = ("anchor", "positive")
PAIRS, CORPUS, CANDIDATES = "pairs.arrow", "corpus.arrow", "candidates.jsonl"
PAIR_SCHEMA = pa.schema(dict.fromkeys(PAIR, pa.string()))


@dataclass(frozen=True)
class TrainingPairs:
    """Distinct pairs in the order of their anchors, and the candidates; texts equal except case and space are one.

    first: the row of `pairs.arrow` with the first pair of each anchor, (anchors,).
    anchor_row: the candidate with the text of the anchor, or −1, (anchors,).
    rows: the row of `pairs.arrow` of each pair, (pairs,).
    anchor_of, positive_of: the anchor and the candidate of each pair, (pairs,).
    digest: of all texts.
    """

    folder: Path
    first: Rows
    anchor_row: Rows
    rows: Rows
    anchor_of: Rows
    positive_of: Rows
    candidates: int
    dropped: Counter[str]
    digest: str

    @classmethod
    def read(
        cls, pairs: Table, corpus: Table | None, folder: Path, cache: Cache | None, rejects: Rejects | None
    ) -> "TrainingPairs":
        """Writes `pairs.arrow` and `candidates.jsonl`.

        Raises RequestError for a table without a pair, and for a corpus of blanks only.
        """
        dropped: Counter[str] = Counter()
        with rejects or nullcontext():
            write_arrow(folder / PAIRS, PAIR_SCHEMA, _pair_blocks(pairs, cache, rejects, dropped))
            if corpus is not None:
                dropped["blank_candidate"] = write_sentences(corpus, folder / CORPUS, cache, rejects)
        table = open_arrow(folder / PAIRS)
        if not len(table):
            raise RequestError(
                f"{pairs.name}: expected pairs of an anchor and a positive, found none that can be used: "
                f"{dropped.get(EMPTY, 0):,} with an empty text"
            )
        in_corpus = list[pa.Array]() if corpus is None else open_arrow(folder / CORPUS)["text"].chunks
        texts = pa.chunked_array([*table["positive"].chunks, *in_corpus], pa.string())
        keys, anchor_keys = _keys(texts), _keys(table["anchor"])
        candidate_of, first_candidate = number_distinct(keys)
        _write_candidates(folder / CANDIDATES, texts, first_candidate)
        anchor_of, first = number_distinct(anchor_keys)
        pair_ids = anchor_of.astype(np.int64) * len(first_candidate) + candidate_of[: len(table)]
        rows = np.unique(pair_ids, return_index=True)[1]
        rows = rows[np.lexsort((rows, anchor_of[rows]))]
        dropped |= {"duplicate_pair": len(table) - len(rows)}
        anchor_row = pc.index_in(anchor_keys.take(pa.array(first)), keys.take(pa.array(first_candidate)))
        digest = fingerprint({name: Digests().of_file(folder / name) for name in (PAIRS, CANDIDATES)})
        return cls(
            folder,
            first,
            anchor_row.fill_null(-1).to_numpy().astype(np.int64),
            rows,
            anchor_of[rows].astype(np.int64),
            candidate_of[rows].astype(np.int64),
            len(first_candidate),
            dropped,
            digest,
        )

    @cached_property
    def table(self) -> pa.Table:
        """Opens the columns anchor and positive, which stay on disk."""
        return open_arrow(self.folder / PAIRS)

    def anchors(self, start: int, stop: int) -> list[str]:
        """Reads the texts of anchors `start` to `stop`, the last one not included."""
        column = self.table["anchor"]
        return [column[row].as_py() for row in self.first[start:stop].tolist()]


def _pair_blocks(
    table: Table, cache: Cache | None, rejects: Rejects | None, dropped: Counter[str]
) -> Iterator[dict[str, list[Any]]]:
    """Yields the pairs in blocks, without those with an empty text, which are counted."""
    records = (record for record in read(table, PAIR, cache, rejects) if _is_pair(record, rejects))
    for block in blocks_of(records, BLOCK_ROWS):
        usable = [record.values for record in block if all(value.strip() for value in record.values)]
        dropped[EMPTY] += len(block) - len(usable)
        yield {name: [pair[column] for pair in usable] for column, name in enumerate(PAIR)}


def _is_pair(record: Record, rejects: Rejects | None) -> bool:
    """Returns true if both values are text, and else rejects the record. Raises RequestError unless there are two."""
    if len(record.values) != len(PAIR):
        raise RequestError(
            f"{record.file}: expected {len(PAIR)} columns of text, found {len(record.values)} in `columns`"
        )
    if all(isinstance(value, str) for value in record.values):
        if rejects is not None:
            rejects.used()
        return True
    if rejects is None:
        raise RequestError(f"{record.file}, line {record.line:,}: expected text, found something else; name its column")
    rejects.add(record.file, record.line, "not text")
    return False


def _keys(texts: pa.ChunkedArray) -> pa.Array:
    """Computes a digest of each text, the same for texts that are equal except case and white space."""
    return text_digests(clean(text).casefold() for chunk in texts.chunks for text in chunk.to_pylist())


def _write_candidates(path: Path, texts: pa.ChunkedArray, first: Rows) -> None:
    """Writes the texts at the positions `first`, in their order."""
    blocks = select_rows(pa.table({"text": texts}), mask_of(first, len(texts)), {"text": "text"})
    with atomic_write(path) as building:
        write_jsonl(building, ({"text": text} for block in blocks for text in block["text"].to_pylist()))
