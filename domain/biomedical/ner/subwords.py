"""Words split into subwords, and batches of their windows for a tagger."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bertrelay.data.tokens import pad_rows
from bertrelay.errors import RequestError
from bertrelay.model.tokenizer import before_sentences, plain_rules
from domain.text.windows import Integers, Windows, cut_windows, ranges

Words = Sequence[str]
SPECIALS = 2  # [CLS] before a window, [SEP] after it


@dataclass(frozen=True)
class SentenceSubwords:
    """The subwords of sentences, end to end.

    ids: (subwords,).
    firsts: the index in `ids` of each word's first subword, (words,).
    lengths, words: the numbers of subwords and words of each sentence, (sentences,).
    token_types: 1 for the subwords of words with two capitals or more, else 0, (subwords,); None if none are marked.

    The sentences `gout pectoris` and `flu`, with `pectoris` as two subwords, have firsts [0, 1, 3], lengths [3, 1]
    and words [2, 1].
    """

    ids: Integers
    firsts: Integers
    lengths: Integers
    words: Integers
    token_types: Integers | None = None

    def windows(self, max_tokens: int, overlap: int) -> Windows:
        """Windows of the sentences, of at most `max_tokens` subwords with [CLS] and [SEP]."""
        return cut_windows(self.lengths, max_tokens - SPECIALS, overlap)

    def window_lengths(self, windows: Windows) -> Integers:
        """The number of subwords of each window with [CLS] and [SEP], (windows,)."""
        return windows.lengths + SPECIALS

    def owned_words(self, windows: Windows) -> tuple[Integers, Integers]:
        """The first of the words whose first subwords a window owns, and their number, both (windows,)."""
        first = np.searchsorted(self.firsts, windows.owned_starts)
        return first, np.searchsorted(self.firsts, windows.owned_ends) - first


class WordSplitter:
    """Splits words by a tokenizer, and frames windows of their subwords.

    A word that the tokenizer drops, such as control characters, becomes the unknown subword.
    capitals: give words with two capitals or more the second token type.
    Raises RequestError for a tokenizer without one of the special tokens that this needs.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, capitals: bool = False) -> None:
        self._capitals = capitals
        self._rules = plain_rules(tokenizer)
        self._before = before_sentences(self._rules)
        names = ("cls_token", "sep_token", "pad_token", "unk_token")
        numbers = {name: getattr(tokenizer, f"{name}_id") for name in names}
        if missing := [name for name, number in numbers.items() if number is None]:
            raise RequestError(f"model: tagging needs a tokenizer with a {', '.join(missing)}, and this one has none")
        self._cls, self._sep, self.pad, self._unknown = numbers.values()

    def __call__(self, sentences: Sequence[Words]) -> SentenceSubwords:
        """The subwords of `sentences`, which may be empty; each distinct word is tokenized once, by itself."""
        number_of: dict[str, int] = {}
        numbers = [number_of.setdefault(word, len(number_of)) for words in sentences for word in words]
        distinct = np.array(numbers, dtype=np.int64)  # (words,)
        encodings = self._rules.encode_batch_fast([self._before + word for word in number_of], add_special_tokens=False)
        distinct_ids = [encoding.ids or [self._unknown] for encoding in encodings]
        counts = np.array([len(ids) for ids in distinct_ids], dtype=np.int64)  # (distinct words,)
        flat = np.array(list(chain.from_iterable(distinct_ids)), dtype=np.int64)
        word_lengths = counts[distinct]  # (words,)
        words = np.array([len(sentence) for sentence in sentences], dtype=np.int64)  # (sentences,)
        firsts = np.cumsum(word_lengths) - word_lengths
        ends = np.append(firsts, word_lengths.sum())[np.cumsum(words)]  # (sentences,)
        token_types = None
        if self._capitals:  # two or more, unlike the first word of a sentence
            is_marked = np.array([sum(map(str.isupper, word)) > 1 for word in number_of], dtype=np.int64)
            token_types = np.repeat(is_marked[distinct], word_lengths)
        ids = flat[ranges((np.cumsum(counts) - counts)[distinct], word_lengths)]
        return SentenceSubwords(ids, firsts, np.diff(ends, prepend=0), words, token_types)

    def batch(self, subwords: SentenceSubwords, windows: Windows, width: int, height: int) -> dict[str, Tensor]:
        """The network's inputs for `windows`: input_ids, attention_mask, perhaps token_type_ids, and first_subwords.

        Rows beyond the windows repeat the last one. All are (height, width) but `first_subwords`, the indices in the
        flattened batch of the first subwords of all words that the windows own, (words,).
        """
        rows = windows.filled(height)
        content, mask = pad_rows(subwords.ids, rows.starts, rows.lengths, width - SPECIALS, self.pad)
        ids = np.pad(content, ((0, 0), (1, 1)), constant_values=self.pad)
        ids[:, 0] = self._cls
        ids[np.arange(height), rows.lengths + 1] = self._sep
        first_words, counts = subwords.owned_words(windows)
        row_of = np.repeat(np.arange(len(counts)), counts)  # (words,)
        firsts = subwords.firsts[ranges(first_words, counts)]
        batch = {
            "input_ids": ids,
            "attention_mask": np.pad(mask, ((0, 0), (2, 0)), constant_values=True).astype(np.int64),
            "first_subwords": row_of * width + 1 + firsts - windows.starts[row_of],
        }
        if subwords.token_types is not None:
            token_types, _ = pad_rows(subwords.token_types, rows.starts, rows.lengths, width - SPECIALS, 0)
            batch["token_type_ids"] = np.pad(token_types, ((0, 0), (1, 1)))
        return {name: torch.from_numpy(values) for name, values in batch.items()}
