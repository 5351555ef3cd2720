"""The chunks of many admissions: tokenized once into files, memory-mapped ever after."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from bertrelay.files import read_json, sync_contents, write_json
from bertrelay.inference import padded
from bertrelay.progress import log, progress
from domain.clinical.notes.chunks import Chunk, Chunker, Chunks

DONE = "done.json"
UNKNOWN_LIMIT = 0.1
"""The share of unknown tokens above which an admission is warned of; BERT's vocabulary knows all but some 0.1 %."""
COLUMNS = ("admissions", "spans_start", "spans_end", "lengths")


@dataclass(frozen=True)
class ChunkTokens:
    """Chunks, those of an admission in order, and the admissions that they are of.

    ids: of all tokens, end to end. starts, lengths: of each chunk in `ids`, (chunks,).
    admissions: whose each chunk is, by its place among the texts. spans: the characters of it, (chunks, 2).
    lost_chunks, lost_characters: what `max_chunks` cost.
    """

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    admissions: NDArray[np.int64]
    spans: NDArray[np.int64]
    lost_chunks: int = 0
    lost_characters: int = 0

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, chunks: NDArray[np.integer], width: int, pad_id: int) -> tuple[Tensor, Tensor]:
        """Ids and attention mask of `chunks`, both (chunks, width), int64."""
        ids, mask = padded(self.ids, self.starts[chunks], self.lengths[chunks], width, pad_id)
        return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))

    def of(self, is_wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The chunks of those admissions that are wanted, (admissions,)."""
        return np.flatnonzero(is_wanted[self.admissions])


def unknown_shares(tokens: ChunkTokens, count: int, chunker: Chunker) -> NDArray[np.float64]:
    """The share of unknown tokens in each of `count` texts, special ones left out, (count,); nan without tokens."""
    unknown = _counts(tokens, count, tokens.ids == (-1 if chunker.unknown_id is None else chunker.unknown_id))
    of_texts = np.bincount(tokens.admissions, tokens.lengths - chunker.specials, count)
    found: NDArray[np.float64] = np.divide(unknown, of_texts, out=np.full(count, np.nan), where=of_texts > 0)
    return found


def unreadable(tokens: ChunkTokens, count: int, chunker: Chunker) -> NDArray[np.bool_]:
    """Which of `count` texts the model cannot read, (count,): without tokens, or with unknown ones and no known word.

    Punctuation and marks are no words: a text in another script has the former, too.
    """
    shares = unknown_shares(tokens, count, chunker)
    words = _counts(tokens, count, chunker.is_word[tokens.ids])
    found: NDArray[np.bool_] = np.isnan(shares) | (shares > 0) & (words == 0)
    return found


def _counts(tokens: ChunkTokens, count: int, is_counted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """How many tokens of each text are counted, (count,); is_counted: of all tokens."""
    of_chunks = np.add.reduceat(is_counted, tokens.starts, dtype=np.int64) if len(tokens) else np.zeros(0)
    return np.bincount(tokens.admissions, of_chunks, count).astype(np.float64)


def warn_of_unknown(shares: NDArray[np.float64]) -> None:
    """Logs how many admissions have more than `UNKNOWN_LIMIT` of unknown tokens; (admissions,), nan without tokens."""
    above = int((shares > UNKNOWN_LIMIT).sum())
    if above:
        log(
            f"warning: more than {UNKNOWN_LIMIT:.0%} of the tokens are unknown to the model in {above:,} of "
            f"{len(shares):,} admissions, whose probabilities mean little; check the language, encoding and column of "
            "the notes"
        )


def chunk_tokens(texts: Iterable[str], chunker: Chunker) -> ChunkTokens:
    """The chunks of some texts, in memory."""
    ids, rows, lost = [np.zeros(0, np.int32)], list[tuple[int, int, int, int]](), [0, 0]
    for admission, chunks in enumerate(chunker.of_texts(texts)):
        ids += [chunk.ids for chunk in chunks.kept]
        rows += _rows(admission, chunks.kept)
        lost = _and(lost, chunks)
    return _tokens(np.concatenate(ids), np.array(rows, np.int64).reshape(-1, len(COLUMNS)).T, *lost)


def stored_chunk_tokens(texts: Iterable[str], count: int, chunker: Chunker, folder: Path) -> ChunkTokens:
    """The chunks of `count` texts, read from `folder` or written there first, by whoever comes first.

    folder: named by the caller after everything the chunks depend on.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        facts = read_json(folder / DONE)
        if facts is None:
            facts = _write(texts, count, chunker, folder)
    columns = [np.fromfile(folder / f"{name}.bin", np.int64) for name in COLUMNS]
    size = int(columns[-1].sum())
    ids: Any = np.memmap(folder / "ids.bin", np.int32, "r", shape=(size,)) if size else np.zeros(0, np.int32)
    return _tokens(ids, columns, facts["lost_chunks"], facts["lost_characters"])


def _write(texts: Iterable[str], count: int, chunker: Chunker, folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    lost = [0, 0]
    with ExitStack() as stack:
        bar = stack.enter_context(progress("cutting notes into chunks", count, "admissions"))
        ids, *columns = (stack.enter_context((folder / f"{name}.bin").open("wb")) for name in ("ids", *COLUMNS))
        for admission, chunks in enumerate(chunker.of_texts(texts)):
            _append(ids, columns, admission, chunks.kept)
            lost = _and(lost, chunks)
            bar.advance()
    sync_contents(folder)
    facts = {"lost_chunks": lost[0], "lost_characters": lost[1]}
    write_json(folder / DONE, facts)  # last: its presence means all is there
    return facts


def _append(ids: BinaryIO, columns: Sequence[BinaryIO], admission: int, chunks: list[Chunk]) -> None:
    for chunk in chunks:
        ids.write(chunk.ids.data)
    for column, values in zip(columns, zip(*_rows(admission, chunks), strict=True), strict=False):
        column.write(np.array(values, np.int64).data)


def _rows(admission: int, chunks: list[Chunk]) -> list[tuple[int, int, int, int]]:
    return [(admission, chunk.start, chunk.end, len(chunk.ids)) for chunk in chunks]


def _and(lost: list[int], chunks: Chunks) -> list[int]:
    return [lost[0] + chunks.lost_chunks, lost[1] + chunks.lost_characters]


def _tokens(ids: NDArray[np.int32], columns: Any, lost_chunks: int, lost_characters: int) -> ChunkTokens:
    admissions, starts, ends, lengths = columns
    spans = np.stack([starts, ends], axis=1)
    return ChunkTokens(ids, np.cumsum(lengths) - lengths, lengths, admissions, spans, lost_chunks, lost_characters)
