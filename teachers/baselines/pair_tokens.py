"""Pairs of sentences as a cross-encoder reads them: one row of ids, the two sentences told apart by token types."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bertrelay.backbone import check_max_tokens
from bertrelay.inference import padded
from teachers.baselines.pair_scores import Pairs

BLOCK = 8_192  # pairs tokenized at once


@dataclass(frozen=True)
class PairTokens:
    """The ids of pairs and their token types, end to end, (all tokens,); lengths and starts of pairs, (pairs,)."""

    ids: NDArray[np.int32]
    types: NDArray[np.int32]
    lengths: NDArray[np.int64]
    sides: ClassVar[int] = 1

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths) - self.lengths

    def padded(self, rows: NDArray[np.integer], pad_id: int, width: int | None = None) -> dict[str, Tensor]:
        """What a network of transformers is called with, each (rows, width)."""
        starts, lengths = self.starts[rows], self.lengths[rows]
        width = width or int(lengths.max())
        ids, mask = padded(self.ids, starts, lengths, width, pad_id)
        types, _ = padded(self.types, starts, lengths, width, 0)
        named = {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": types}
        return {name: torch.from_numpy(values) for name, values in named.items()}


def pair_rules(tokenizer: PreTrainedTokenizerFast, max_tokens: int) -> Tokenizer:
    """A copy of the tokenizer's rules that cuts the longer of two sentences until the pair has `max_tokens`."""
    rules = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    rules.no_padding()
    check_max_tokens(rules, max_tokens, sentences=2)
    rules.enable_truncation(max_tokens, strategy="longest_first")
    return rules


def tokenize_pairs(rules: Tokenizer, pairs: Pairs) -> PairTokens:
    """The tokens of `pairs`, special ones among them."""
    ids, types, lengths = [], [], []
    for start in range(0, len(pairs), BLOCK):
        for encoding in rules.encode_batch(list(pairs[start : start + BLOCK])):
            ids.append(np.array(encoding.ids, np.int32))
            types.append(np.array(encoding.type_ids, np.int32))
            lengths.append(len(encoding.ids))
    return PairTokens(np.concatenate(ids), np.concatenate(types), np.array(lengths, np.int64))
