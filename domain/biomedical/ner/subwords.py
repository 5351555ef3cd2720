"""Words cut into subwords, as a tagger reads them, and windows of these as batches."""

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

    ids: (subwords,). firsts: the place of each word's first subword among them, (words,).
    lengths, words: how many subwords and words each sentence has, (sentences,).
    token_types: 1 for the subwords of words with two capitals or more, else 0, (subwords,); None where none are marked.
    """

    ids: Integers
    firsts: Integers
    lengths: Integers
    words: Integers
    token_types: Integers | None = None

    def windows(self, max_tokens: int, overlap: int) -> Windows:
        """Windows over the sentences that have at most `max_tokens` with [CLS] and [SEP]."""
        return cut_windows(self.lengths, max_tokens - SPECIALS, overlap)

    def window_lengths(self, windows: Windows) -> Integers:
        """The subwords of each window, [CLS] and [SEP] among them, (windows,)."""
        return windows.lengths + SPECIALS

    def owned_words(self, windows: Windows) -> tuple[Integers, Integers]:
        """The first word whose first subword each window owns, and how many there are, both (windows,)."""
        first, end = (np.searchsorted(self.firsts, each) for each in (windows.owned_starts, windows.owned_ends))
        return first, end - first


class WordSplitter:
    """Cuts words as the tokenizer would, and frames windows of their subwords.

    A word of which the tokenizer leaves nothing, of control characters alone for example, becomes the unknown subword.
    capitals: whether words with two capitals or more get the second token type.
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
        """The subwords of `sentences`, which may be empty; each distinct word is cut once, by itself."""
        place: dict[str, int] = {}
        numbers = [place.setdefault(word, len(place)) for words in sentences for word in words]
        distinct = np.array(numbers, dtype=np.int64)  # (words,)
        texts = [self._before + word for word in place]
        cut = [each.ids or [self._unknown] for each in self._rules.encode_batch_fast(texts, add_special_tokens=False)]
        counts = np.array([len(ids) for ids in cut], dtype=np.int64)  # (distinct words,)
        flat = np.array(list(chain.from_iterable(cut)), dtype=np.int64)
        word_lengths = counts[distinct]  # (words,)
        words = np.array([len(each) for each in sentences], dtype=np.int64)  # (sentences,)
        firsts = np.cumsum(word_lengths) - word_lengths
        ends = np.append(firsts, word_lengths.sum())[np.cumsum(words)]  # (sentences,)
        token_types = None
        if self._capitals:  # two or more, as an abbreviation has and the first word of a sentence has not
            marked = np.array([sum(map(str.isupper, word)) > 1 for word in place], dtype=np.int64)
            token_types = np.repeat(marked[distinct], word_lengths)
        ids = flat[ranges((np.cumsum(counts) - counts)[distinct], word_lengths)]
        return SentenceSubwords(ids, firsts, np.diff(ends, prepend=0), words, token_types)

    def batch(self, subwords: SentenceSubwords, windows: Windows, width: int, height: int) -> dict[str, Tensor]:
        """What the network reads of `windows`: input_ids, attention_mask and perhaps token_type_ids, (height, width),
        and `places`.

        Rows beyond the windows repeat the last one. places: where the first subwords of the words that the windows own
        are in the flattened batch, window by window, (words,).
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
            "places": row_of * width + 1 + firsts - windows.starts[row_of],
        }
        if subwords.token_types is not None:
            token_types, _ = pad_rows(subwords.token_types, rows.starts, rows.lengths, width - SPECIALS, 0)
            batch["token_type_ids"] = np.pad(token_types, ((0, 0), (1, 1)))
        return {name: torch.from_numpy(each) for name, each in batch.items()}
