"""Words to word pieces: every word has at least one, and its first one carries the word's tag."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bertrelay.errors import RequestError
from bertrelay.inference import padded
from domain.biomedical.windows import Integers, Windows, cut_windows, stretches
from domain.pretraining.vocabulary import before_sentences, plain_rules

Words = Sequence[str]
SPECIALS = 2  # [CLS] before a window, [SEP] after it


@dataclass(frozen=True)
class Pieces:
    """The pieces of sentences, end to end.

    ids: (pieces,). firsts: the place of each word's first piece among them, (words,).
    lengths, words: how many pieces and words each sentence has, (sentences,).
    token_types: 1 for the pieces of words with two capitals or more, else 0, (pieces,); None where none are marked.
    """

    ids: Integers
    firsts: Integers
    lengths: Integers
    words: Integers
    token_types: Integers | None = None

    def windows(self, max_tokens: int, overlap: int) -> Windows:
        """Windows over the sentences that have at most `max_tokens` with [CLS] and [SEP]."""
        return cut_windows(self.lengths, max_tokens - SPECIALS, overlap)


class Cutter:
    """Cuts words as the tokenizer would, and frames windows of their pieces.

    A word of which the tokenizer leaves nothing, of control characters alone for example, becomes the unknown piece.
    capitals: whether words with two capitals or more get the second token type.
    Raises RequestError for a tokenizer without one of the special tokens that this needs.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, capitals: bool = False) -> None:
        self._capitals = capitals
        self._rules = plain_rules(tokenizer)
        self._before = before_sentences(self._rules)
        names = ("cls_token_id", "sep_token_id", "pad_token_id", "unk_token_id")
        numbers = [getattr(tokenizer, name) for name in names]
        if None in numbers:
            missing = [name.removesuffix("_id") for name, number in zip(names, numbers, strict=True) if number is None]
            raise RequestError(f"model: tagging needs a tokenizer with a {', '.join(missing)}, and this one has none")
        self._cls, self._sep, self.pad, self._unknown = numbers

    def __call__(self, sentences: Sequence[Words]) -> Pieces:
        """The pieces of `sentences`, which may be empty; each distinct word is cut once, by itself."""
        place: dict[str, int] = {}
        numbers = [place.setdefault(word, len(place)) for words in sentences for word in words]  # distinct: cut once
        distinct = np.array(numbers, dtype=np.int64)  # (words,)
        ids = [each or [self._unknown] for each in self._cut(list(place))]
        counts = np.array([len(each) for each in ids], dtype=np.int64)  # (distinct words,)
        flat = np.array([number for each in ids for number in each], dtype=np.int64)
        starts = np.cumsum(counts) - counts
        word_lengths = counts[distinct]  # (words,)
        words = np.array([len(each) for each in sentences], dtype=np.int64)  # (sentences,)
        firsts = np.cumsum(word_lengths) - word_lengths
        ends = np.append(firsts, word_lengths.sum())[np.cumsum(words)]  # (sentences,)
        token_types = None
        if self._capitals:
            marked = np.array([has_two_capitals(word) for word in place], dtype=np.int64)  # (distinct words,)
            token_types = np.repeat(marked[distinct], word_lengths)
        ids_in_order = flat[stretches(starts[distinct], word_lengths)]
        return Pieces(ids_in_order, firsts, np.diff(ends, prepend=0), words, token_types)

    def _cut(self, words: list[str]) -> list[list[int]]:
        texts = [self._before + word for word in words]
        return [each.ids for each in self._rules.encode_batch_fast(texts, add_special_tokens=False)]

    def batch(self, pieces: Pieces, windows: Windows, width: int, height: int) -> dict[str, Tensor]:
        """What the network reads of `windows`: input_ids, attention_mask and perhaps token_type_ids, (height, width),
        and `places`.

        Rows beyond the windows repeat the last one. places: where the first pieces of the words that the windows own
        stand in the flattened batch, window by window, (words,).
        """
        starts, lengths = (np.pad(each, (0, height - len(each)), "edge") for each in (windows.starts, windows.lengths))
        content, mask = padded(pieces.ids, starts, lengths, width - SPECIALS, self.pad)
        ids = np.pad(content, ((0, 0), (1, 1)), constant_values=self.pad)
        ids[:, 0] = self._cls
        ids[np.arange(height), lengths + 1] = self._sep
        first_words, counts = owned_words(pieces, windows)
        rows = np.repeat(np.arange(len(counts)), counts)
        firsts = pieces.firsts[stretches(first_words, counts)]
        marks = {}
        if pieces.token_types is not None:
            token_types, _ = padded(pieces.token_types, starts, lengths, width - SPECIALS, 0)
            marks = {"token_type_ids": torch.from_numpy(np.pad(token_types, ((0, 0), (1, 1))))}
        return {
            **marks,
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(np.pad(mask, ((0, 0), (2, 0)), constant_values=True).astype(np.int64)),
            "places": torch.from_numpy(rows * width + 1 + firsts - windows.starts[rows]),
        }


def has_two_capitals(word: str) -> bool:
    """Whether a word has two capitals or more, as an abbreviation has and the first word of a sentence has not."""
    return sum(map(str.isupper, word)) > 1


def owned_words(pieces: Pieces, windows: Windows) -> tuple[Integers, Integers]:
    """The first word whose first piece each window owns, and how many such words there are, both (windows,)."""
    first, end = (np.searchsorted(pieces.firsts, each) for each in (windows.owned_starts, windows.owned_ends))
    return first, end - first
