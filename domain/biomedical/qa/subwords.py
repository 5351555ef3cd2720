"""Subwords of questions and contexts, windows of both, and the gold answers in them.

A context of many questions is tokenized once. A window is [CLS] question [SEP] part of the context [SEP], or whatever
the tokenizer puts around a pair.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bertrelay.blocks import blocks_of
from bertrelay.errors import RequestError
from bertrelay.model.tokenizer import before_sentences, plain_rules
from bertrelay.progress import log
from domain.biomedical.qa.data import Question
from domain.reading import shown_id
from domain.text.windows import Flags, Integers, Windows, cut_windows
from domain.text.words import HANGUL, UNSPACED

CUT_AT_ONCE = 1024
"""Texts that are tokenized together; an encoding takes much more memory than the arrays made of it."""


@dataclass(frozen=True)
class Texts:
    """The subwords of texts, end to end.

    ids: (subwords,).
    starts, ends: the characters of its text that each subword covers, without white space at their ends, (subwords,).
    lengths: the number of subwords of each text, (texts,).
    edges: false where a subword's beginning or its end is inside a word, (subwords, 2).
    """

    ids: Integers
    starts: Integers
    ends: Integers
    lengths: Integers
    edges: Flags

    @cached_property
    def firsts(self) -> Integers:
        """The index of each text's first subword, (texts,)."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def is_solid(self) -> Flags:
        """Flags subwords that are more than white space, (subwords,)."""
        return self.ends > self.starts


@dataclass(frozen=True)
class PairSubwords:
    """Questions and their contexts as subwords.

    contexts: the distinct contexts. context_of: the index of each question's context, (questions,).
    frame: the numbers of special tokens before the question, between it and the text, and after the text of a window.
    """

    questions: Texts
    contexts: Texts
    context_of: Integers
    frame: tuple[int, int, int]

    @property
    def to_read(self) -> int:
        """The number of subwords of contexts to read, those of a context once for each question."""
        return int(self.contexts.lengths[self.context_of].sum())

    def space(self, max_tokens: int) -> Integers:
        """The number of subwords of text that a window of each question can hold, (questions,)."""
        return max_tokens - sum(self.frame) - self.questions.lengths

    def too_long(self, max_tokens: int, overlap: int) -> Flags:
        """Flags questions that `overlap` cannot hold with special tokens, and whose text needs several windows.

        Their windows would leave out text between them, (questions,).
        """
        space = self.space(max_tokens)
        return (max_tokens - space > overlap) & (self.contexts.lengths[self.context_of] > space)

    def windows(self, max_tokens: int, overlap: int) -> Windows:
        """Windows of each question; starts and ends are counted over the subwords of all contexts.

        Two neighbours share `overlap` subwords: the question, the special tokens, and text. With `max_tokens` 12,
        `overlap` 8, 3 special tokens and a question of 2 subwords, a text of 14 subwords is read in the windows
        [0, 7), [4, 11) and [7, 14): the last one ends with the text. A question that is too long, or asked of a text
        without subwords, has none.
        """
        step = max_tokens - overlap
        lengths = np.where(self.too_long(max_tokens, overlap), 0, self.contexts.lengths[self.context_of])
        sizes = np.maximum(self.space(max_tokens), step)  # with less space than a step the text is one window
        windows = cut_windows(lengths, sizes, sizes - step)
        moved = (self.contexts.firsts[self.context_of] - (np.cumsum(lengths) - lengths))[windows.sequences]
        return Windows(windows.sequences, *(borders + moved for borders in windows[1:]))

    def begins(self, windows: Windows) -> Integers:
        """The column at which the text begins in each window, (windows,)."""
        return self.frame[0] + self.frame[1] + self.questions.lengths[windows.sequences]

    def window_lengths(self, windows: Windows) -> Integers:
        """The subwords of each window, question and special ones among them, (windows,)."""
        return self.begins(windows) + windows.lengths + self.frame[2]

    def characters(
        self, windows: Windows, rows: Integers, firsts: Integers, lasts: Integers
    ) -> tuple[Integers, Integers]:
        """Starts and ends of spans in characters; a span has the columns from its first to its last in a window.

        rows: the places of their windows in `windows`, (spans,).
        """
        moved = (windows.starts - self.begins(windows))[rows]  # from a column to the subword of all contexts
        return self.contexts.starts[firsts + moved], self.contexts.ends[lasts + moved]

    def flags(self, windows: Windows, width: int, of_subword: Flags) -> Tensor:
        """Flags of the contexts' subwords, (subwords, …), in the columns of their windows, (windows, width, …).

        The first column, no answer, has them all, the question and padding none.
        """
        flags = np.zeros((len(windows.starts), width, *of_subword.shape[1:]), bool)
        begins = self.begins(windows)
        for row, begin, start, end in zip(flags, begins.tolist(), *(c.tolist() for c in windows[1:3]), strict=True):
            row[begin : begin + end - start] = of_subword[start:end]
        flags[:, 0] = True
        return torch.from_numpy(flags)


class PairSplitter:
    """Splits questions and contexts into subwords as the tokenizer does, and frames windows of them.

    Raises RequestError for a tokenizer that cannot frame a pair of texts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._rules = plain_rules(tokenizer)
        self._before_text = before_sentences(self._rules)
        pair = self._rules.encode("a", "a")
        ids, text_of = np.array(pair.ids, dtype=np.int64), [-1 if text is None else text for text in pair.sequence_ids]
        first, second = text_of.index(0), text_of.index(1)
        ends = [len(text_of) - text_of[::-1].index(text) for text in (0, 1)]
        self.before, self.between, self.after = ids[:first], ids[ends[0] : second], ids[ends[1] :]
        is_framed = all(map(len, (self.before, self.between, self.after))) and ids[0] == tokenizer.cls_token_id
        if not is_framed or tokenizer.pad_token_id is None:
            raise RequestError(
                "model: answering questions needs a tokenizer that frames a pair of texts as [CLS] a [SEP] b [SEP] and "
                "has a pad_token, and this one does not; take that of a BERT"
            )
        self.pad: int = tokenizer.pad_token_id

    def __call__(self, questions: Sequence[Question]) -> PairSubwords:
        index: dict[str, int] = {}
        context_of = np.array([index.setdefault(question.context, len(index)) for question in questions], np.int64)
        frame = len(self.before), len(self.between), len(self.after)
        texts = self._texts([question.question for question in questions])
        return PairSubwords(texts, self._texts(list(index)), context_of, frame)

    def _texts(self, texts: Sequence[str]) -> Texts:
        """The subwords of texts."""
        ids, spans, edges = [np.zeros(0, np.int64)], [np.zeros((0, 2), np.int64)], [np.zeros((0, 2), bool)]
        for block in blocks_of(texts, CUT_AT_ONCE):
            marked = [self._before_text + text for text in block]
            cut = self._rules.encode_batch(marked, add_special_tokens=False)
            for text, encoding in zip(block, cut, strict=True):
                ids.append(np.array(encoding.ids, np.int64))
                spans.append(_trim_spans(text, encoding, len(self._before_text)))
                edges.append(~_inside_words(text)[spans[-1]])
        starts, ends = np.concatenate(spans).T
        lengths = np.array([len(text) for text in ids[1:]], dtype=np.int64)
        return Texts(np.concatenate(ids), starts, ends, lengths, np.concatenate(edges))

    def batch(self, subwords: PairSubwords, windows: Windows, width: int, height: int) -> dict[str, Tensor]:
        """The network's inputs for `windows`, all (height, width); rows beyond them repeat the last one.

        choices: true where an answer may begin or end: in the text, but for white space, or on the first subword, which
        means no answer.
        """
        windows = windows.filled(height)
        questions, contexts = subwords.questions, subwords.contexts
        ids = np.full((height, width), self.pad, np.int64)
        for row, number, start, end in zip(ids, *(column.tolist() for column in windows[:3]), strict=True):
            first = questions.firsts[number]
            question = questions.ids[first : first + questions.lengths[number]]
            window = np.concatenate([self.before, question, self.between, contexts.ids[start:end], self.after])
            row[: len(window)] = window
        columns, lengths = np.arange(width), subwords.window_lengths(windows)
        mask = columns < lengths[:, None]
        types = mask & (columns >= subwords.begins(windows)[:, None])
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
            "token_type_ids": torch.from_numpy(types.astype(np.int64)),
            "choices": subwords.flags(windows, width, contexts.is_solid),
        }


_WITHOUT_SPACES = re.compile(f"[{UNSPACED}{HANGUL}]")  # Korean has spaces, and adds endings to its words
_SPACES = np.array([number for number in range(0x3001) if chr(number).isspace()], np.uint32)


def _trim_spans(text: str, encoding: Encoding, prefix: int) -> Integers:
    """The characters [start, end) of the subwords of a text, (subwords, 2), without white space at their ends.

    A subword of white space alone has no character. prefix: number of characters before the text that were encoded
    with it. For example, the subwords "a" and " b" of "a b" have the characters [0, 1) and [2, 3).
    """
    spans = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2) - prefix
    solid = np.flatnonzero(~np.isin(_characters(text), _SPACES))  # positions of all other characters
    starts, ends = spans.clip(min=0).T
    first, beyond = np.searchsorted(solid, starts), np.searchsorted(solid, ends)  # in `solid`
    positions = np.append(solid, len(text))
    is_empty = first == beyond
    return np.stack(
        [np.where(is_empty, starts, positions[first]), np.where(is_empty, starts, positions[beyond - 1] + 1)], 1
    )


def _inside_words(text: str) -> Flags:
    """Flags positions inside a word, (characters + 1,): from before the first character to after the last one.

    For example, of "ab c" only 1 is inside a word.
    """

    def is_part(character: str) -> bool:
        """True if it makes one word with such characters beside it: letters, digits, marks of scripts with spaces."""
        is_word = character.isalnum() or unicodedata.category(character)[0] == "M"
        return is_word and not _WITHOUT_SPACES.match(character)

    distinct, index = np.unique(_characters(text), return_inverse=True)
    is_of_word = np.array([is_part(chr(code)) for code in distinct], bool)[index]
    return np.pad(is_of_word[:-1] & is_of_word[1:], (min(1, len(text)), 1))


def _characters(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


SubwordSpan = tuple[int, int]
"""Subwords [first, end) of all contexts."""

TOO_LONG = "a question so long that it leaves its text no space in a window; raise overlap"
NOT_WHOLE = "an answer that no window holds whole; raise overlap"
NO_SUBWORDS = "an answer without subwords, whose characters the tokenizer drops"


def gold_spans(questions: Sequence[Question], subwords: PairSubwords) -> list[list[SubwordSpan]]:
    """The distinct gold answers of each question that have subwords, as their first and last character say.

    White space at their ends does not count. An answer that begins or ends inside a subword has all of it.
    """
    contexts, golds = subwords.contexts, list[list[SubwordSpan]]()
    for question, context in zip(questions, subwords.context_of.tolist(), strict=True):
        first = int(contexts.firsts[context])
        of_context = slice(first, first + int(contexts.lengths[context]))
        starts, ends = contexts.starts[of_context], contexts.ends[of_context]
        is_solid = contexts.is_solid[of_context]
        spans = set[SubwordSpan]()
        for answer in question.answers:
            start, end = answer.end - len(answer.text.lstrip()), answer.start + len(answer.text.rstrip())
            inside = np.flatnonzero(is_solid & (ends > start) & (starts < end))
            if len(inside):
                spans.add((first + int(inside[0]), first + int(inside[-1]) + 1))
        golds.append(sorted(spans))
    return golds


def golds_in_windows(golds: Sequence[Sequence[SubwordSpan]], windows: Windows) -> list[list[SubwordSpan]]:
    """The gold answers that are whole in each window; `golds` has those of each question."""
    columns = (column.tolist() for column in (windows.sequences, windows.starts, windows.ends))
    return [
        [(first, end) for first, end in golds[question] if first >= window_start and end <= window_end]
        for question, window_start, window_end in zip(*columns, strict=True)
    ]


def training_faults(
    questions: Sequence[Question],
    subwords: PairSubwords,
    golds: Sequence[Sequence[SubwordSpan]],
    max_tokens: int,
    overlap: int,
) -> list[str | None]:
    """The reason why each labelled question cannot be trained on in such windows; None where it can."""
    windows = subwords.windows(max_tokens, overlap)
    in_windows = zip(windows.sequences.tolist(), golds_in_windows(golds, windows), strict=True)
    answered = {number for number, spans in in_windows if spans}
    faults = list[str | None]()
    for number, is_too_long in enumerate(subwords.too_long(max_tokens, overlap).tolist()):
        if is_too_long:
            faults.append(TOO_LONG if questions[number].is_registered else None)
        elif questions[number].answers and number not in answered:
            faults.append(NOT_WHOLE if golds[number] else NO_SUBWORDS)
        else:
            faults.append(None)
    return faults


def count_long_answers(
    questions: Sequence[Question], golds: Sequence[Sequence[SubwordSpan]], max_answer_tokens: int
) -> int:
    """Counts and logs questions whose gold answers all have more subwords, which no model gives."""
    shortest = [min((end - first for first, end in spans), default=0) for spans in golds]
    long = [question for question, length in zip(questions, shortest, strict=True) if length > max_answer_tokens]
    if long:
        log(
            f"no right answer to {len(long):,} of {len(questions):,} questions, {shown_id(long[0].id)} the first, "
            f"has {max_answer_tokens} subwords or fewer, and a model finds no longer one: train with a larger "
            "max_answer_tokens"
        )
    return len(long)
