"""Token ids of many sentences on disk: tokenized once, memory-mapped, padded when a batch is made."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertrelay.cache import cached_folder
from bertrelay.data.tables import BLOCK_ROWS
from bertrelay.progress import progress

Tokenize = Callable[[Sequence[str]], list[list[int]]]


class Encoder(Protocol):
    """An encoder as far as tokenizing goes."""

    def text_before(self) -> str: ...

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]: ...


class Tokens:
    """The ids of sentences, end to end in one file, and the position at which each sentence starts in another.

    lengths: tokens of each sentence, special tokens included, (sentences,).
    """

    def __init__(self, folder: Path) -> None:
        self._starts = np.memmap(folder / "starts.bin", np.int64, "r")
        self.lengths: NDArray[np.int64] = np.diff(self._starts)
        count = int(self._starts[-1])
        self._ids = np.memmap(folder / "ids.bin", np.int32, "r", shape=(count,)) if count else np.empty(0, np.int32)

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, sentences: NDArray[np.integer], pad_id: int) -> tuple[Tensor, Tensor]:
        """Ids and attention mask of `sentences`, both (len(sentences), longest), int64."""
        lengths = self.lengths[sentences]
        ids, mask = pad_rows(self._ids, self._starts[sentences], lengths, int(lengths.max(initial=1)), pad_id)
        return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


def pad_rows(
    ids: NDArray[np.integer], starts: NDArray[np.integer], lengths: NDArray[np.integer], width: int, pad_id: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Cuts rows out of `ids` and pads them: `10 11 12 13` from 1 and 3, 2 and 1 long, gives `11 12` and `13 pad`.

    starts, lengths: of the rows, (rows,). Returns the ids and their mask, both (rows, width).
    """
    columns = np.arange(width)  # (width,)
    mask = columns < lengths[:, None]  # (rows, width)
    rows = np.full(mask.shape, pad_id, np.int64)
    rows[mask] = ids[(starts[:, None] + columns)[mask]]
    return rows, mask


def prompt_tokenizer(encoder: Encoder) -> Tokenize:
    """Tokenizes sentences as `encode` does, after the model's default prompt, so that training sees what use does."""
    prompt = encoder.text_before()
    return lambda sentences: encoder.tokenize([prompt + sentence for sentence in sentences])


def store_tokens(
    read_block: Callable[[int, int], Sequence[str]], count: int, tokenize: Tokenize, folder: Path
) -> Tokens:
    """Opens the tokens of `count` sentences in `folder`. The first process to call it writes them, others wait.

    read_block: (first, end) → the sentences of these rows, so that they need not be in memory.
    folder: tokens in it are used as they are, so its name must change with the tokenizer, its options and the texts.
    """

    def write(building: Path) -> None:
        lengths = np.zeros(count + 1, dtype=np.int64)
        with (building / "ids.bin").open("wb") as file, progress("tokenizing", count, "sentences") as bar:
            for start in range(0, count, BLOCK_ROWS):
                rows = tokenize(read_block(start, min(start + BLOCK_ROWS, count)))
                lengths[start + 1 : start + 1 + len(rows)] = [len(row) for row in rows]
                # numpy.tofile would hide that the disk is full.
                file.write(np.concatenate([np.asarray(row, dtype=np.int32) for row in rows]).data)
                bar.advance(len(rows))
        (building / "starts.bin").write_bytes(np.cumsum(lengths).data)

    return Tokens(cached_folder(folder, write))
