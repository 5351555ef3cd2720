"""Sequences that a model reads, with masked tokens.

Masks are a function of (seed, epoch, item, position) and of nothing else.
"""

import string
import unicodedata
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertrelay.data.tokens import pad_rows
from bertrelay.errors import RequestError
from bertrelay.training import batches
from bertrelay.training.task import Batch
from domain.pretraining.corpus import Corpus
from domain.pretraining.pairs import Booleans, Integers, Items, within
from domain.pretraining.settings import Masking, PretrainSettings
from domain.sampling import uniform_draws

Floats = NDArray[np.float64]

WORD_MARKS = ("▁", "Ġ")
DRAWS = 3  # masked or not, kind of replacement, random token


class WordStarts:
    """Marks subwords that begin a word, for masking of whole words.

    `WordStarts(tokenizer)(ids)` is bool (tokens,) for ids (tokens,) of neighbouring tokens; the first is always True.
    For a WordPiece vocabulary, `acute ki ##dney` gives True, True, False.
    WordPiece marks the subwords that continue a word (`##`). SentencePiece and byte-level vocabularies mark those that
    begin one (`▁`, `Ġ`); there a punctuation sign is a word, as for BERT, and the subword after it begins one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        rules = tokenizer.backend_tokenizer
        subwords = [rules.id_to_token(number) or "" for number in range(len(tokenizer))]
        stands_alone = np.zeros(len(subwords), bool)
        if isinstance(rules.model, WordPiece):
            begins = [not subword.startswith(rules.model.continuing_subword_prefix) for subword in subwords]
        else:
            begins = [subword.startswith(WORD_MARKS) for subword in subwords]
            texts = rules.decode_batch([[number] for number in range(len(subwords))], skip_special_tokens=False)
            stripped = (text.strip() for text in texts)
            signs = string.punctuation  # and what Unicode calls so: punctuation as BERT has it
            stands_alone |= [
                bool(text) and all(sign in signs or unicodedata.category(sign)[0] == "P" for sign in text)
                for text in stripped
            ]
        stands_alone[[*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids]] = True
        self._begins = np.array(begins) | stands_alone  # (vocabulary,)
        self._stands_alone = stands_alone  # (vocabulary,)
        self._is_mark = np.array([subword in WORD_MARKS for subword in subwords])  # (vocabulary,)

    def __call__(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        starts: NDArray[np.bool_] = self._begins[ids]  # (tokens,)
        starts[1:] |= self._stands_alone[ids[:-1]]
        starts[1:] &= ~self._is_mark[ids[:-1]]  # a mark that is a subword by itself belongs to the next one
        starts[:1] = True
        return starts


class Masker:
    """Chooses tokens and replaces them.

    Every word has the same probability, independent of its length and of other words.

    maskable: true for ids that may be masked and may replace others: all but special and protected ones, (vocabulary,).
    word_starts: ids of neighbouring tokens → true for those that begin a word, as those that are not maskable always
        do; None makes each token a word.
    """

    def __init__(
        self,
        settings: Masking,
        mask_id: int,
        maskable: Booleans,
        word_starts: Callable[[Integers], Booleans] | None = None,
    ) -> None:
        self.settings, self.mask_id, self.maskable, self.word_starts = settings, mask_id, maskable, word_starts
        self._replacements = np.flatnonzero(maskable)

    def __call__(self, ids: Integers, draws: Floats) -> tuple[Integers, Booleans]:
        """`ids` of sequences, end to end, with replacements, and true for masked ones, (tokens,) each.

        draws: from 0 to 1, (tokens, DRAWS).
        """
        word_start = np.arange(len(ids))  # the position at which each token's word begins, (tokens,)
        if self.word_starts is not None:
            word_start = np.maximum.accumulate(np.where(self.word_starts(ids), word_start, 0))
        chosen = self.maskable[ids] & (draws[word_start, 0] < self.settings.share)
        random = self._replacements[(draws[:, 2] * len(self._replacements)).astype(np.int64)]
        is_mask, is_random = (draws[:, 1] < bound for bound in np.cumsum([self.settings.mask, self.settings.random]))
        changed = np.where(is_mask, self.mask_id, np.where(is_random, random, ids))
        return np.where(chosen, changed, ids), chosen


class Sequences:
    """The sequences `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]` of items, masked where that is an objective.

    Raises RequestError for a tokenizer without one of these tokens, `[PAD]` or `[MASK]`.
    """

    def __init__(self, corpus: Corpus, tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings) -> None:
        names = ("cls_token", "sep_token", "pad_token", "mask_token")
        missing = [name for name in names if getattr(tokenizer, name) is None]
        if missing:
            raise RequestError(
                f"base: pretraining needs a tokenizer with {', '.join(names)}; it lacks {', '.join(missing)}"
            )
        self.corpus, self.objectives = corpus, settings.objectives
        self.cls, self.sep, self.pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
        maskable = np.ones(max(tokenizer.get_vocab().values()) + 1, dtype=bool)  # (vocabulary,)
        maskable[[*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder]] = False
        word_starts = WordStarts(tokenizer) if settings.masking.whole_words else None
        self.masker = Masker(settings.masking, tokenizer.mask_token_id, maskable, word_starts)

    def batch(self, items: Items, chosen: batches.Items, seed: int, epoch: int) -> Batch:
        """The micro-batch of the `chosen` of an epoch's items; its masks depend on seed, epoch and item alone.

        inputs: input_ids, attention_mask and token_type_ids, (batch, tokens); masked, the positions of masked
            tokens in the flattened batch, and masked_ids, their ids, (masked,); is_random, (batch,).
        """
        starts, tokens, lengths = items.starts[chosen], items.tokens[chosen], items.lengths[chosen]
        ids = np.concatenate([self.ids(start, count) for start, count in zip(starts, tokens, strict=True)])
        rows = np.repeat(np.arange(len(chosen)), lengths)
        positions = within(lengths)
        replaced, masked = ids, np.zeros(len(ids), dtype=bool)
        if "mlm" in self.objectives:
            replaced, masked = self.masker(ids, uniform_draws(seed, epoch, chosen[rows], positions, DRAWS))
        width, begins = int(lengths.max()), np.cumsum(lengths) - lengths
        input_ids, mask = pad_rows(replaced, begins, lengths, width, self.pad)
        types, _ = pad_rows((positions > tokens[rows, 0] + 1).astype(np.int64), begins, lengths, width, 0)
        inputs = {
            "input_ids": torch.from_numpy(input_ids),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
            "token_type_ids": torch.from_numpy(types),
            "masked": torch.from_numpy((rows * width + positions)[masked]),
            "masked_ids": torch.from_numpy(ids[masked]),
            "is_random": torch.from_numpy(items.is_random[chosen].astype(np.int64)),
        }
        counts = {"mlm": int(masked.sum()), "nsp": len(chosen)}
        return Batch(inputs, {objective: counts[objective] for objective in self.objectives})

    def ids(self, starts: Integers, tokens: NDArray[np.int32]) -> Integers:
        """The ids of one item, with special ones."""
        segments = [self.corpus.tokens(*span) for span in zip(starts.tolist(), (starts + tokens).tolist(), strict=True)]
        ended = [part for segment in segments if len(segment) for part in (segment, [self.sep])]
        return np.concatenate([[self.cls], *ended], dtype=np.int64)
