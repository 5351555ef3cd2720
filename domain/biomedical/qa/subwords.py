"""Questions and texts to word subwords, and windows of a text with the question before each.

A text of many questions is tokenized once. A window is [CLS] question [SEP] part of the text [SEP], or
whatever the tokenizer puts around a pair.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.biomedical.documents.document import shown_id
from domain.biomedical.qa.question_files import question_items, usable_questions
from domain.biomedical.qa.questions import Question
from domain.biomedical.qa.settings import QuestionSource
from domain.biomedical.qa.split import log_notes
from domain.biomedical.windows import Integers, Windows, cut_windows, ranges
from domain.pretraining.vocabulary import before_sentences, plain_rules

CUT_AT_ONCE = 1024


@dataclass(frozen=True)
class Texts:
    """The subwords of texts, end to end.

    ids: (subwords,). starts, ends: the characters of its text that each subword covers, without white space at their
        ends, (subwords,). lengths: how many subwords each text has, (texts,).
    edges: whether each subword's beginning and its end are no places inside a word, (subwords, 2).
    """

    ids: Integers
    starts: Integers
    ends: Integers
    lengths: Integers
    edges: NDArray[np.bool_]

    @cached_property
    def firsts(self) -> Integers:
        """The place of each text's first subword, (texts,)."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def is_solid(self) -> NDArray[np.bool_]:
        """Whether a subword is more than white space, (subwords,)."""
        return self.ends > self.starts


@dataclass(frozen=True)
class PairSubwords:
    """Questions and the texts they are asked of, cut.

    contexts: each distinct text once. context_of: which of them each question is asked of, (questions,).
    specials: how many subwords a window has beside those of question and text.
    """

    questions: Texts
    contexts: Texts
    context_of: Integers
    specials: int

    @property
    def to_read(self) -> int:
        """How many subwords of text are read, those of a text once for each question."""
        return int(self.contexts.lengths[self.context_of].sum())

    def space(self, max_tokens: int) -> Integers:
        """How many subwords of its text a window of each question holds, (questions,)."""
        return max_tokens - self.specials - self.questions.lengths

    def too_long(self, max_tokens: int, stride: int) -> NDArray[np.bool_]:
        """Which questions leave less space than `stride` in a window, where the text does not fit as a whole."""
        space = self.space(max_tokens)
        return (space < stride) & (self.contexts.lengths[self.context_of] > space)

    def windows(self, max_tokens: int, stride: int) -> Windows:
        """The windows of each question; starts and ends are counted over the subwords of all contexts.

        Windows begin `stride` subwords apart; the last one ends with the text. A question
        that is too long, or asked of a text without subwords, has none.
        """
        lengths = np.where(self.too_long(max_tokens, stride), 0, self.contexts.lengths[self.context_of])
        sizes = np.maximum(self.space(max_tokens), stride)  # with less space than a stride the text fits as a whole
        found = cut_windows(lengths, sizes, sizes - stride)
        moved = (self.contexts.firsts[self.context_of] - (np.cumsum(lengths) - lengths))[found.sequences]  # (windows,)
        return Windows(found.sequences, *(each + moved for each in found[1:]))


class PairSplitter:
    """Cuts questions and texts as the tokenizer would, and frames windows of them.

    Raises RequestError for a tokenizer that cannot frame a pair of texts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._rules = plain_rules(tokenizer)
        self._before_text = before_sentences(self._rules)
        self.before, self.between, self.after = _frame(tokenizer, self._rules)
        self.pad: int = tokenizer.pad_token_id

    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> PairSubwords:
        """The subwords of `questions`, each asked of the text at the same place in `contexts`."""
        place: dict[str, int] = {}
        context_of = np.array([place.setdefault(text, len(place)) for text in contexts], dtype=np.int64)
        specials = len(self.before) + len(self.between) + len(self.after)
        return PairSubwords(self._texts(questions), self._texts(list(place)), context_of, specials)

    def _texts(self, texts: Sequence[str]) -> Texts:
        added = len(self._before_text)
        cut = [(text, np.array(each.ids, np.int64), _trimmed(text, each, added)) for text, each in self._cut(texts)]
        ids = np.concatenate([np.zeros(0, np.int64), *(ids for _, ids, _ in cut)])
        starts, ends = np.concatenate([np.zeros((0, 2), np.int64), *(spans for _, _, spans in cut)]).T
        edges = np.concatenate([np.zeros((0, 2), bool), *(~_inside_words(text)[spans] for text, _, spans in cut)])
        return Texts(ids, starts, ends, np.array([len(ids) for _, ids, _ in cut], dtype=np.int64), edges)

    def _cut(self, texts: Sequence[str]) -> Iterator[tuple[str, Encoding]]:
        """Each text with its subwords; some at once, as an encoding holds much more than is kept of it."""
        for start in range(0, len(texts), CUT_AT_ONCE):
            block = texts[start : start + CUT_AT_ONCE]
            marked = [self._before_text + text for text in block]
            yield from zip(block, self._rules.encode_batch(marked, add_special_tokens=False), strict=True)

    def begins(self, subwords: PairSubwords, windows: Windows) -> Integers:
        """The column at which the text begins in each window, (windows,)."""
        return len(self.before) + len(self.between) + subwords.questions.lengths[windows.sequences]

    def lengths(self, subwords: PairSubwords, windows: Windows) -> Integers:
        """The subwords of each window, question and special ones among them, (windows,)."""
        return self.begins(subwords, windows) + windows.lengths + len(self.after)

    def batch(self, subwords: PairSubwords, windows: Windows, width: int, height: int) -> dict[str, Tensor]:
        """What the network reads of `windows`, all (height, width); rows beyond them repeat the last one.

        choices: where an answer may begin or end: in the text, but for white space, or on the first subword, which
        means no answer.
        """
        windows = windows.chosen(np.pad(np.arange(len(windows.starts)), (0, height - len(windows.starts)), "edge"))
        asked, begins = windows.sequences, self.begins(subwords, windows)
        zeros, question_lengths = np.zeros_like(begins), subwords.questions.lengths[asked]
        ids = np.full((height, width), self.pad, np.int64)
        _put(ids, zeros, self.before, zeros, zeros + len(self.before))
        _put(ids, zeros + len(self.before), subwords.questions.ids, subwords.questions.firsts[asked], question_lengths)
        _put(ids, begins, subwords.contexts.ids, windows.starts, windows.lengths)
        _put(ids, begins - len(self.between), self.between, zeros, zeros + len(self.between))
        _put(ids, begins + windows.lengths, self.after, zeros, zeros + len(self.after))
        choices = np.zeros((height, width), bool)
        _put(choices, begins, subwords.contexts.is_solid, windows.starts, windows.lengths)
        choices[:, 0] = True
        columns = np.arange(width)
        mask = columns < (begins + windows.lengths + len(self.after))[:, None]
        in_text = columns >= begins[:, None]
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
            "token_type_ids": torch.from_numpy((mask & in_text).astype(np.int64)),
            "choices": torch.from_numpy(choices),
        }

    def edges(self, subwords: PairSubwords, windows: Windows, width: int) -> Tensor:
        """Where an answer may begin and where it may end so that it has whole words, (windows, width, 2)."""
        begins = self.begins(subwords, windows)
        found = np.zeros((len(begins), width, 2), bool)
        for border in (0, 1):
            _put(found[..., border], begins, subwords.contexts.edges[:, border], windows.starts, windows.lengths)
        found[:, 0] = True  # no answer
        return torch.from_numpy(found)


def _put(rows: NDArray[Any], columns: Integers, values: NDArray[Any], starts: Integers, lengths: Integers) -> None:
    """Writes the range of `values` that begins at `starts` into each of `rows`, from its column on."""
    places = np.arange(rows.shape[1])
    where = (places >= columns[:, None]) & (places < (columns + lengths)[:, None])
    rows[where] = values[ranges(starts, lengths)]


def _frame(tokenizer: PreTrainedTokenizerFast, rules: Tokenizer) -> tuple[Integers, Integers, Integers]:
    """The special tokens before, between and after a pair of texts."""
    pair = rules.encode("a", "a")
    ids, of = np.array(pair.ids, dtype=np.int64), [-1 if text is None else text for text in pair.sequence_ids]
    first, second = of.index(0), of.index(1)
    ends = [len(of) - of[::-1].index(text) for text in (0, 1)]
    frame = ids[:first], ids[ends[0] : second], ids[ends[1] :]
    if not all(map(len, frame)) or ids[0] != tokenizer.cls_token_id or tokenizer.pad_token_id is None:
        raise RequestError(
            "model: answering questions needs a tokenizer that frames a pair of texts as [CLS] a [SEP] b [SEP] and has "
            "a pad_token, and this one does not; take that of a BERT"
        )
    return frame


def _trimmed(text: str, cut: Encoding, added: int) -> Integers:
    """Where the subwords of a text begin and end, white space at their ends left out, (subwords, 2).

    added: characters before the text that are not its own. A subword of white space alone has no character.
    """
    spans = np.asarray(cut.offsets, dtype=np.int64).reshape(-1, 2) - added
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    solid = np.flatnonzero(~np.isin(characters, _SPACES))  # places of all else
    starts, ends = spans.clip(min=0).T
    first, beyond = np.searchsorted(solid, starts), np.searchsorted(solid, ends)  # of what is solid in each subword
    known = np.append(solid, len(text))
    is_empty = first == beyond
    return np.stack([np.where(is_empty, starts, known[first]), np.where(is_empty, starts, known[beyond - 1] + 1)], 1)


def _inside_words(text: str) -> NDArray[np.bool_]:
    """Of each place in a text, from before its first character to after its last one, whether it is inside a word."""
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    distinct, which = np.unique(characters, return_inverse=True)
    is_of_word = np.array([_is_of_word(chr(code)) for code in distinct], bool)[which]
    return np.pad(is_of_word[:-1] & is_of_word[1:], (min(1, len(text)), 1))


def _is_of_word(character: str) -> bool:
    """Whether a character makes one word with such ones beside it: letters, digits and marks of scripts with spaces."""
    is_word = character.isalnum() or unicodedata.category(character)[0] == "M"
    return is_word and not _WITHOUT_SPACES.match(character)


_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)
"""Thai, Lao, Burmese, Khmer, Chinese and Japanese have no spaces between words; Korean adds endings to them."""

_SPACES = np.array([number for number in range(0x3001) if chr(number).isspace()], np.uint32)


Flags = NDArray[np.bool_]

TEXT = 1 << 40
"""More characters than a text has: a text's number times this, plus a place in it, is in the order of the texts."""

TOO_LONG = "a question so long that it leaves its text no space in a window; raise max_tokens or lower stride"
NOT_HELD = "an answer that no window holds whole; raise max_tokens or lower stride"
NO_SUBWORDS = "an answer of which the tokenizer leaves nothing"


def read_all(sources: Sequence[QuestionSource], rejects: Rejects) -> list[Question]:
    """The questions of all `sources`; logs corrected offsets. Raises RequestError where there are none."""
    items = (question_items(source.path, source.format) for source in sources)
    found = list(usable_questions(chain.from_iterable(items), rejects))
    if not found:
        files = ", ".join(str(source.path) for source in sources)
        raise RequestError(f"{files}: expected questions, found none that can be used")
    log_notes(Counter(note for question in found for note in question.notes))
    return found


class Golds(NamedTuple):
    """Right answers as subwords [firsts, ends) of all contexts, all (golds,), sorted by their question's number."""

    questions: Integers
    firsts: Integers
    ends: Integers

    @classmethod
    def of(cls, questions: Sequence[Question], subwords: PairSubwords) -> "Golds":
        """Every distinct gold answer that has subwords: those of its characters but white space at its ends.

        It begins or ends inside a subword where word borders are others: the whole subword is then its own.
        """
        spans = [
            (number, *_solid(answer.text, answer.start))
            for number, question in enumerate(questions)
            for answer in question.answers
        ]
        owners, starts, ends = np.array(spans, dtype=np.int64).reshape(-1, 3).T
        starts, ends = (each + subwords.context_of[owners] * TEXT for each in (starts, ends))
        contexts = subwords.contexts
        moved = np.repeat(np.arange(len(contexts.lengths)) * TEXT, contexts.lengths)  # (subwords,)
        solid = np.flatnonzero(contexts.is_solid)
        first = np.searchsorted((contexts.ends + moved)[solid], starts, side="right")  # the first that ends after it
        end = np.searchsorted((contexts.starts + moved)[solid], ends, side="left")  # the first that begins after it
        has_pieces = first < end
        owners, first, end = np.unique(np.stack([owners, first, end])[:, has_pieces], axis=1)
        return cls(owners, solid[first], solid[end - 1] + 1)

    def only_longer_than(self, subwords: int) -> Integers:
        """The questions of which no right answer has so many subwords or fewer."""
        return np.setdiff1d(self.questions, self.questions[self.ends - self.firsts <= subwords])


def _solid(text: str, start: int) -> tuple[int, int]:
    """Where a text that begins at `start` begins and ends, white space at its ends left out."""
    begins = start + len(text) - len(text.lstrip())
    return begins, begins + len(text.strip())


class Held(NamedTuple):
    """Which right answers are whole in which window.

    firsts, ends: subwords of all contexts, window by window, (answers held,). counts: of each window, (windows,).
    """

    firsts: Integers
    ends: Integers
    counts: Integers

    @classmethod
    def of(cls, golds: Golds, windows: Windows) -> "Held":
        begin, end = (np.searchsorted(golds.questions, windows.sequences, side) for side in ("left", "right"))
        window = np.repeat(np.arange(len(begin)), end - begin)  # of each gold answer to its question
        gold = ranges(begin, end - begin)
        firsts, ends = golds.firsts[gold], golds.ends[gold]
        is_held = (firsts >= windows.starts[window]) & (ends <= windows.ends[window])
        return cls(firsts[is_held], ends[is_held], np.bincount(window[is_held], minlength=len(begin)))

    def in_windows(self, which: Integers) -> tuple[Flags, Integers, Integers]:
        """Whether some windows have an answer, a second one, …, and its subwords [first, end), (windows, answers)."""
        counts = self.counts[which]
        there = np.arange(max(1, counts.max(initial=0))) < counts[:, None]
        places = ranges((np.cumsum(self.counts) - self.counts)[which], counts)
        columns = [np.zeros(there.shape, np.int64) for _ in range(2)]
        for column, values in zip(columns, (self.firsts, self.ends), strict=True):
            column[there] = values[places]
        return there, columns[0], columns[1]


def training_faults(
    questions: Sequence[Question], subwords: PairSubwords, golds: Golds, max_tokens: int, stride: int
) -> dict[str, Flags]:
    """Which questions with a known answer cannot be trained on in such windows, by reason, all (questions,)."""
    windows, numbers = subwords.windows(max_tokens, stride), np.arange(len(questions))
    is_held = np.isin(numbers, windows.sequences[Held.of(golds, windows).counts > 0])
    is_too_long = subwords.too_long(max_tokens, stride)
    has_answer = np.array([bool(question.answers) for question in questions], bool)
    has_pieces = np.isin(numbers, golds.questions)
    needs_window = has_answer & ~is_too_long
    return {
        TOO_LONG: is_too_long & is_known(questions),
        NO_SUBWORDS: needs_window & ~has_pieces,
        NOT_HELD: needs_window & has_pieces & ~is_held,
    }


def is_known(questions: Sequence[Question]) -> Flags:
    """Which questions have a known answer, or are known to have none, (questions,)."""
    return np.array([question.impossible or bool(question.answers) for question in questions], bool)


def trainable_questions(questions: Sequence[Question], faults: Mapping[str, Flags], rejects: Rejects) -> Flags:
    """Which questions can be trained on, (questions,); the others are counted or logged.

    faults: see `training_faults`. These questions were counted as used when they were read, and become rejects.
    """
    known, is_faulty = is_known(questions), np.any(list(faults.values()), axis=0)
    rejects.used(-int(is_faulty.sum()))
    for reason, has_fault in faults.items():
        for question in compress(questions, has_fault):
            rejects.add(question.file, question.line, reason, shown_id(question.id))
    if not known.all():
        first = shown_id(questions[int(np.argmin(known))].id)
        log(
            f"nothing to train on in {np.sum(~known):,} of {len(questions):,} questions, {first} the first: no "
            "answer is in their text. Mark those impossible that have none."
        )
    can: Flags = known & ~is_faulty
    return can


def count_long_answers(questions: Sequence[Question], golds: Golds, max_answer_tokens: int) -> int:
    """How many questions have right answers of more subwords alone, which no model gives; logs them."""
    beyond = golds.only_longer_than(max_answer_tokens)
    if len(beyond):
        first = shown_id(questions[beyond[0]].id)
        log(
            f"no right answer to {len(beyond):,} of {len(questions):,} questions, {first} the first, "
            f"has {max_answer_tokens} subwords or fewer, and no longer one is given: train with a larger "
            "max_answer_tokens"
        )
    return len(beyond)
