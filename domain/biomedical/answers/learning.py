"""What there is to learn: right answers as pieces of their texts, and which of them each window holds."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.biomedical.answers.account import tell_notes
from domain.biomedical.answers.pieces import Pieces
from domain.biomedical.answers.question_files import question_items, usable
from domain.biomedical.answers.questions import Question
from domain.biomedical.answers.questions_settings import QuestionSource
from domain.biomedical.formats.items import told_id
from domain.biomedical.windows import Integers, Windows, stretches

Flags = NDArray[np.bool_]

TEXT = 1 << 40
"""More characters than a text has: a text's number times this, plus a place in it, is in the order of the texts."""

TOO_LONG = "a question so long that it leaves its text no room in a window; raise max_tokens or lower stride"
NOT_HELD = "an answer that no window holds whole; raise max_tokens or lower stride"
NO_PIECES = "an answer of which the tokenizer leaves nothing"


def read_all(sources: Sequence[QuestionSource], rejects: Rejects) -> list[Question]:
    """The questions of all `sources`; what was mended in reading is told. Raises RequestError where there are none."""
    items = (question_items(source.path, source.format) for source in sources)
    found = list(_counted(usable(chain.from_iterable(items), rejects), rejects))
    if not found:
        files = ", ".join(str(source.path) for source in sources)
        raise RequestError(f"{files}: expected questions, found none that can be used")
    tell_notes(Counter(note for question in found for note in question.notes))
    return found


def _counted(questions: Iterator[Question], rejects: Rejects) -> Iterator[Question]:
    for question in questions:
        rejects.used()
        yield question


class Golds(NamedTuple):
    """Right answers as pieces [firsts, ends) of all contexts, all (golds,), sorted by their question's number."""

    questions: Integers
    firsts: Integers
    ends: Integers

    @classmethod
    def of(cls, questions: Sequence[Question], pieces: Pieces) -> "Golds":
        """Every distinct gold answer that has pieces: those that its characters are in, white space at its ends aside.

        It begins or ends inside a piece where the text does not say otherwise: the whole piece is then its own.
        """
        told = [
            (number, *_solid(answer.text, answer.start))
            for number, question in enumerate(questions)
            for answer in question.answers
        ]
        owners, starts, ends = np.array(told, dtype=np.int64).reshape(-1, 3).T
        starts, ends = (each + pieces.context_of[owners] * TEXT for each in (starts, ends))
        contexts = pieces.contexts
        moved = np.repeat(np.arange(len(contexts.lengths)) * TEXT, contexts.lengths)  # (pieces,)
        solid = np.flatnonzero(contexts.is_solid)
        first = np.searchsorted((contexts.ends + moved)[solid], starts, side="right")  # the first that ends after it
        end = np.searchsorted((contexts.starts + moved)[solid], ends, side="left")  # the first that begins after it
        has_pieces = first < end
        owners, first, end = np.unique(np.stack([owners, first, end])[:, has_pieces], axis=1)
        return cls(owners, solid[first], solid[end - 1] + 1)

    def only_longer_than(self, pieces: int) -> Integers:
        """The questions of which no right answer has so many pieces or fewer."""
        return np.setdiff1d(self.questions, self.questions[self.ends - self.firsts <= pieces])


def _solid(text: str, start: int) -> tuple[int, int]:
    """Where a text that begins at `start` begins and ends, white space at its ends left out."""
    begins = start + len(text) - len(text.lstrip())
    return begins, begins + len(text.strip())


class Held(NamedTuple):
    """Which right answers stand whole in which window.

    firsts, ends: pieces of all contexts, window by window, (answers held,). counts: of each window, (windows,).
    """

    firsts: Integers
    ends: Integers
    counts: Integers

    @classmethod
    def of(cls, golds: Golds, windows: Windows) -> "Held":
        begin, end = (np.searchsorted(golds.questions, windows.sequences, side) for side in ("left", "right"))
        window = np.repeat(np.arange(len(begin)), end - begin)  # of each gold answer to its question
        gold = stretches(begin, end - begin)
        firsts, ends = golds.firsts[gold], golds.ends[gold]
        is_held = (firsts >= windows.starts[window]) & (ends <= windows.ends[window])
        return cls(firsts[is_held], ends[is_held], np.bincount(window[is_held], minlength=len(begin)))

    def in_windows(self, which: Integers) -> tuple[Flags, Integers, Integers]:
        """Whether some windows have an answer, a second one, …, and its pieces [first, end), all (windows, answers)."""
        counts = self.counts[which]
        there = np.arange(max(1, counts.max(initial=0))) < counts[:, None]
        places = stretches((np.cumsum(self.counts) - self.counts)[which], counts)
        columns = [np.zeros(there.shape, np.int64) for _ in range(2)]
        for column, values in zip(columns, (self.firsts, self.ends), strict=True):
            column[there] = values[places]
        return there, columns[0], columns[1]


def faults_in_learning(
    questions: Sequence[Question], pieces: Pieces, golds: Golds, max_tokens: int, stride: int
) -> dict[str, Flags]:
    """Which questions with a known answer cannot be learnt from in such windows, by reason, all (questions,)."""
    windows, numbers = pieces.windows(max_tokens, stride), np.arange(len(questions))
    is_held = np.isin(numbers, windows.sequences[Held.of(golds, windows).counts > 0])
    is_too_long = pieces.too_long(max_tokens, stride)
    has_answer = np.array([bool(question.answers) for question in questions], bool)
    has_pieces = np.isin(numbers, golds.questions)
    needs_window = has_answer & ~is_too_long
    return {
        TOO_LONG: is_too_long & is_known(questions),
        NO_PIECES: needs_window & ~has_pieces,
        NOT_HELD: needs_window & has_pieces & ~is_held,
    }


def is_known(questions: Sequence[Question]) -> Flags:
    """Of which questions there is something to learn, (questions,): where the answer stands, or that there is none."""
    return np.array([question.impossible or bool(question.answers) for question in questions], bool)


def can_be_learnt(questions: Sequence[Question], faults: Mapping[str, Flags], rejects: Rejects) -> Flags:
    """Which questions there is something to learn from, (questions,); the others are counted or told of.

    faults: see `faults_in_learning`. These questions were counted as used when they were read, and become rejects.
    """
    known, is_faulty = is_known(questions), np.any(list(faults.values()), axis=0)
    rejects.used(-int(is_faulty.sum()))
    for reason, has_fault in faults.items():
        for question in compress(questions, has_fault):
            rejects.add(question.file, question.line, reason, told_id(question.id))
    if not known.all():
        first = told_id(questions[int(np.argmin(known))].id)
        log(
            f"nothing to learn from in {np.sum(~known):,} of {len(questions):,} questions, {first} the first: no "
            "answer stands in their text. Mark those impossible that it should not answer."
        )
    can: Flags = known & ~is_faulty
    return can


def count_long_answers(questions: Sequence[Question], golds: Golds, max_answer_tokens: int) -> int:
    """How many questions have right answers of more pieces alone, which no model gives; they are told of."""
    beyond = golds.only_longer_than(max_answer_tokens)
    if len(beyond):
        first = told_id(questions[beyond[0]].id)
        log(
            f"no right answer to {len(beyond):,} of {len(questions):,} questions, {first} the first, "
            f"has {max_answer_tokens} pieces or fewer, and no longer one is given: train with a larger "
            "max_answer_tokens"
        )
    return len(beyond)
