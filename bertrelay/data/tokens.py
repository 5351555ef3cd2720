"""Token ids of many sentences on disk: tokenized once, memory-mapped ever after, padded when a batch is made."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from bertrelay.files import sync_contents, write_json
from bertrelay.inference.batches import padded
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.progress import progress

BLOCK = 8192  # sentences tokenized at once

Tokenize = Callable[[Sequence[str]], list[list[int]]]


class Tokens:
    """The ids of sentences, one after the other in one file, and where each sentence starts in another.

    lengths: tokens of each sentence, special ones among them, (sentences,).
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
        longest = int(lengths.max(initial=1))
        ids, mask = padded(self._ids, self._starts[sentences], lengths, longest, pad_id)
        return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


def tokenizer_of(encoder: SentenceEncoder) -> Tokenize:
    """Sentences to ids as `encode` makes them, the model's default prompt before each: what is trained is used."""
    prompt = encoder.prompts.text()
    return lambda sentences: encoder.tokenize([prompt + sentence for sentence in sentences])


def tokens_of(read_block: Callable[[int, int], Sequence[str]], count: int, tokenize: Tokenize, folder: Path) -> Tokens:
    """The tokens of `count` sentences, read from `folder` or written there first, by whoever comes first.

    read_block: (first, end) -> the sentences of these rows, so that they need not be in memory.
    folder: named by the caller after everything the ids depend on.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if (folder / "done.json").is_file():
            return Tokens(folder)
        folder.mkdir(exist_ok=True)
        lengths = np.zeros(count + 1, dtype=np.int64)
        with (folder / "ids.bin").open("wb") as file, progress("tokenizing", count, "sentences") as bar:
            for start in range(0, count, BLOCK):
                rows = tokenize(read_block(start, min(start + BLOCK, count)))
                lengths[start + 1 : start + 1 + len(rows)] = [len(row) for row in rows]
                # NumPy's own writing hides that it was the disk that was full.
                file.write(np.concatenate([np.asarray(row, dtype=np.int32) for row in rows]).data)
                bar.advance(len(rows))
        (folder / "starts.bin").write_bytes(np.cumsum(lengths).data)
        sync_contents(folder)
        write_json(folder / "done.json", {"sentences": count})  # last: its presence means all is there
    return Tokens(folder)
