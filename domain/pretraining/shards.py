"""A corpus is prepared shard by shard: some ten thousand sentences, tokenized, and what became of their documents.

A shard is an Arrow file that `datasets` writes and reads, a document a row, and a JSON file that is written after it
and says how far the input was read. A kill costs the shard that was being made, and no more.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter
from numpy.typing import NDArray

from bertrelay.data.tables import Unusable
from bertrelay.files import read_json, write_json
from domain.pretraining.documents import NO_TEXT, Document, Item, LeftOut
from domain.sentences import sentence_spans

SHARD_SENTENCES = 2**16
BATCH = 2048  # sentences tokenized at once
FEATURES = Features(
    {
        "group": Value("int64"),
        "held_out": Value("bool"),
        "lengths": List(Value("int32")),
        "ids": List(Value("int32")),
    }
)
HASH_KEY = b"bertrelay documents"

Tokenize = Callable[[Sequence[str]], list[list[int]]]


class Position(NamedTuple):
    """How far the input is read: the number of a file, and how many of its items."""

    file: int
    item: int


@dataclass(frozen=True)
class Grouping:
    """Which documents are of one group, a patient's for example, and which groups are held out.

    key: of the hashes that stand for groups in shards. Made for a corpus and thrown away with its last shard, so that
        nobody can try which patient a hash is of.
    held_out_share: of the groups. A hash without a secret chooses them, in every corpus the same; only its verdict is
        written.
    """

    key: bytes
    held_out_share: float

    def __call__(self, document: Document) -> tuple[int, bool]:
        """A hash that documents of one group share, and whether they are held out.

        A document without a group goes by its own id, or by its text where it has none. Hashes need no list of all
        groups in memory, and say who is held out without regard to who else is there.
        """
        kind, name = ("group", document.group) if document.group else ("document", document.id or document.text)
        said = f"{kind}\0{name}".encode()
        place = int.from_bytes(blake2b(said, digest_size=8, key=HASH_KEY).digest(), "little")
        group = int.from_bytes(blake2b(said, digest_size=8, key=self.key).digest(), "little", signed=True)
        return group, place < self.held_out_share * 2.0**64


@dataclass
class Draft:
    """The documents of a shard to be, as sentences, and the account of all that was read for it."""

    after: Position
    grouping: Grouping
    groups: list[int] = field(default_factory=list)
    held_out: list[bool] = field(default_factory=list)
    documents: list[list[str]] = field(default_factory=list)
    sentences: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    rejects: list[Unusable] = field(default_factory=list)

    def add(self, item: Item) -> None:
        match item:
            case LeftOut():
                self.left_out[item.reason] += 1
            case Unusable():
                self.rejects.append(item)
            case Document():
                group, is_held_out = self.grouping(item)
                self.groups.append(group)
                self.held_out.append(is_held_out)
                self.documents.append(_sentences(item.text))
                self.sentences += len(self.documents[-1])


def drafts(items: Iterator[tuple[Position, Item]], grouping: Grouping) -> Iterator[Draft]:
    """The items in runs of whole documents with `SHARD_SENTENCES` or some more."""
    draft = None
    for position, item in items:
        draft = draft or Draft(position, grouping)
        draft.add(item)
        draft.after = position
        if draft.sentences >= SHARD_SENTENCES:
            yield draft
            draft = None
    if draft:
        yield draft


def _sentences(text: str) -> list[str]:
    return [" ".join(text[start:end].split()) for start, end in sentence_spans(text)]


class Shard(NamedTuple):
    """A shard as it lies on the disk, memory-mapped.

    groups: a hash of each document's group, (documents,). held_out: whether it is held out, (documents,).
    document_starts: number of the first sentence of each document, and after the last one, (documents + 1,).
    lengths: tokens of each sentence, at least 1, (sentences,).
    ids: of all tokens, end to end, (tokens,).
    """

    groups: NDArray[np.int64]
    held_out: NDArray[np.bool_]
    document_starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    ids: NDArray[np.int32]


def write_shard(path: Path, draft: Draft, tokenize: Tokenize, unknown_id: int | None) -> dict[str, Any]:
    """Tokenizes and writes a shard, and returns its facts; both are on the disk then, the facts as JSON beside it."""
    shard = _tokenized(draft, tokenize)
    with path.open("wb") as file:
        with ArrowWriter(stream=file, features=FEATURES) as writer:
            writer.write_table(_table(shard), max(len(shard.groups), 1))
            writer.finalize(close_stream=False)
        os.fsync(file.fileno())
    without_text = len(draft.groups) - len(shard.groups)
    facts = {
        "after": draft.after,
        "documents": len(shard.groups),
        "documents_of_one_sentence": int(np.count_nonzero(np.diff(shard.document_starts) == 1)),
        "sentences": len(shard.lengths),
        "tokens": len(shard.ids),
        "unknown_tokens": int(np.count_nonzero(shard.ids == unknown_id)),
        "left_out": dict(draft.left_out + Counter({NO_TEXT: without_text})),
        "rejects": [(found.file, found.line, found.reason) for found in draft.rejects],
    }
    write_json(path.with_suffix(".json"), facts, compact=True)
    return facts


def read_facts(path: Path) -> dict[str, Any] | None:
    """The facts of a shard that is done, else None."""
    return read_json(path.with_suffix(".json"))


def open_shard(path: Path) -> Shard:
    """Maps a shard into memory."""
    columns = Dataset.from_file(str(path)).data
    groups, held_out, lengths, ids = (_only_chunk(columns.column(name)) for name in FEATURES)
    return Shard(
        groups.to_numpy(),
        held_out.to_numpy(zero_copy_only=False),
        lengths.offsets.to_numpy(),
        lengths.values.to_numpy(),
        ids.values.to_numpy(),
    )


def _only_chunk(column: pa.ChunkedArray) -> pa.Array:
    """All of a column without copying it; an Arrow file of no rows has no chunk."""
    return column.chunk(0) if column.num_chunks else column.combine_chunks()


def _tokenized(draft: Draft, tokenize: Tokenize) -> Shard:
    """Sentences without a token (control characters and the like) go, and documents of such sentences alone."""
    texts = list(chain.from_iterable(draft.documents))
    batches = [_flat(tokenize(texts[start : start + BATCH])) for start in range(0, len(texts), BATCH)]
    ids, lengths = (np.concatenate([np.empty(0, np.int32), *(batch[part] for batch in batches)]) for part in (0, 1))
    document = np.repeat(np.arange(len(draft.documents)), [len(sentences) for sentences in draft.documents])
    sentences = np.bincount(document[lengths > 0], minlength=len(draft.documents))
    document_starts = _starts(sentences[sentences > 0])
    groups, held_out = np.array(draft.groups, np.int64), np.array(draft.held_out, bool)
    kept = sentences > 0
    return Shard(groups[kept], held_out[kept], document_starts, lengths[lengths > 0], ids)


def _flat(rows: list[list[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The ids of rows, end to end, and the length of each."""
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths


def _starts(counts: NDArray[np.integer]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _table(shard: Shard) -> pa.Table:
    token_starts = _starts(shard.lengths)[shard.document_starts]
    lists = ((shard.document_starts, shard.lengths), (token_starts, shard.ids))
    columns = [pa.ListArray.from_arrays(pa.array(starts), pa.array(values)) for starts, values in lists]
    return pa.table([pa.array(shard.groups), pa.array(shard.held_out), *columns], schema=FEATURES.arrow_schema)
