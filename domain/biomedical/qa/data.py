"""Questions with their contexts and gold answers, and a model's replies.

Offsets count Python characters (Unicode code points) from 0. The text of an answer is what its context has at its
offsets: a gold answer that readers find nowhere in the context is among `Question.golds` only.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertrelay.data.tables import Rejected
from domain.biomedical.qa.settings import AnswerType

Synonyms = tuple[str, ...]
"""One gold answer in all its wordings, its name first."""


class Answer(NamedTuple):
    """A gold answer in the context: `context[start : start + len(text)] == text`."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a context, with its gold answers.

    answers: gold answers that are in the context, in the order of the file; any of them is right by itself.
    golds: gold answers that are not in the context. They count in a score and cannot be trained on.
    impossible: true if the context does not answer it, as in SQuAD 2.0. With neither answers nor this it can be
        answered, but neither trained on nor scored.
    document: the article that the context is from; splits go by it.
    pool: id of the question that is put to several contexts, this one among them, and whose answers are pooled before
        scoring; empty for a question with one context.
    synonyms: each gold answer of BioASQ with its synonyms.
    answer_type: the form of the answer. A question of SQuAD is a factoid one; a list question has every gold answer.
    yes: the right answer to a yes/no question; None for other questions, and where it is not known.
    file, line: its source; empty and 0 for a question that was not read from a file.
    notes: for each answer one of `PLACINGS` or `ALIGNMENTS`.
    fields: further fields of JSONL to be written with its answer, by name.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    golds: tuple[str, ...] = ()
    impossible: bool = False
    document: str = ""
    pool: str = ""
    synonyms: tuple[Synonyms, ...] = ()
    answer_type: AnswerType = "factoid"
    yes: bool | None = None
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_registered(self) -> bool:
        """True if it can be trained on: it has an answer in its context, is yes or no, or is marked as impossible."""
        return self.impossible or bool(self.answers) or self.yes is not None

    @property
    def has_gold(self) -> bool:
        """True if spans can be scored by it: it has gold answers, or is marked as impossible."""
        return self.impossible or bool(self.answers) or bool(self.golds)

    @property
    def gold_texts(self) -> tuple[str, ...]:
        """Every text that a score counts as right; `("",)` for an impossible question."""
        return (*(answer.text for answer in self.answers), *self.golds) or ("",)

    @property
    def scored_as(self) -> str:
        """The id that its score has: that of its pool, or else its own."""
        return self.pool or self.id


class Candidate(NamedTuple):
    """A candidate answer: the characters [start, end) of its context. "No answer" has no text, start or end."""

    text: str
    start: int | None
    end: int | None
    probability: float


class Reply(NamedTuple):
    """A model's answer to a question from a context: the best candidate, and the others.

    answer: empty where the context does not answer; start and end are then None.
    probability: that `answer` is right, or, where it is empty, that the context does not answer.
    sentence: the sentence or sentences that the answer is in; empty where there is no answer.
    nbest: the candidates, best first; "no answer" may be one of them, and the first.
    """

    answer: str
    start: int | None
    end: int | None
    probability: float
    sentence: str
    nbest: Sequence[Candidate]


PLACINGS = ("in place", "corrected", "nowhere")
"""Notes on answers that came with an offset."""
ALIGNMENTS = ("exactly", "by case", "in a synonym", "not found")
"""Notes on answers that came without an offset, the best match first."""

MAX_SHIFT = 10  # characters; further off it may be another mention

NOWHERE = "an answer that is not in its context at its offset, nor a few characters off"
NO_CONTEXT = "a question without a context"
DUPLICATE = "an id that another question has"


def place_answers(context: str, golds: Sequence[Answer]) -> tuple[tuple[Answer, ...], tuple[str, ...], tuple[str, ...]]:
    """The gold answers that are in the context, the texts of the others, and a note on each.

    Raises Rejected when none of several is in the context, and for an empty one.
    """
    if any(not gold.text.strip() for gold in golds):
        raise Rejected("an empty answer", "give it its text, or leave it out")
    placed = [place_answer(context, *gold) for gold in golds]
    answers = tuple(answer for answer, _ in placed if answer is not None)
    if golds and not answers:
        starts = ", ".join(f"{gold.start:,}" for gold in golds[:3])
        raise Rejected(
            NOWHERE, f"expected it at {starts} of {len(context):,} characters; correct the text or the offset"
        )
    absent = tuple(gold.text for gold, (answer, _) in zip(golds, placed, strict=True) if answer is None)
    return answers, absent, tuple(note for _, note in placed)


def place_answer(context: str, text: str, start: int) -> tuple[Answer | None, str]:
    """The answer at `start`, else one at most `MAX_SHIFT` characters off, and which of `PLACINGS` that is.

    A whole word is preferred to a part of a longer word, then the nearest mention, then the earlier one: "in" at 3 of
    "binding it in" becomes the one at 11, `(Answer("in", 11), "corrected")`.
    """
    if start >= 0 and context.startswith(text, start):
        return Answer(text, start), "in place"
    begin = max(0, start - MAX_SHIFT)
    around = context[begin : max(0, start + MAX_SHIFT + len(text))]
    starts = [begin + match.start() for match in re.finditer(f"(?={re.escape(text)})", around)]
    if not starts:
        return None, "nowhere"
    words = {answer.start for answer in _mentions(context, text)}
    nearest = min(starts, key=lambda position: (position not in words, abs(position - start)))
    return Answer(text, nearest), "corrected"


def align_answer(context: str, wordings: Synonyms) -> tuple[tuple[Answer, ...], str]:
    """The mentions of an answer without offsets, and which of `ALIGNMENTS` they are.

    Mentions of its name go before those that differ in case, and these before its synonyms; all of the best kind
    count: RET in "the ret gene, Ret" is at 4 and at 14, "by case". A mention begins and ends where words do: `Ret` is
    not in `retina`.
    """
    name, synonyms = wordings[:1], wordings[1:]
    kinds: list[tuple[str, Synonyms, re.RegexFlag]] = [
        ("exactly", name, re.NOFLAG),
        ("by case", name, re.IGNORECASE),
        ("in a synonym", synonyms, re.NOFLAG),
        ("in a synonym", synonyms, re.IGNORECASE),
    ]
    for note, texts, flags in kinds:
        if mentions := {answer for text in texts for answer in _mentions(context, text, flags)}:
            return tuple(sorted(mentions, key=lambda answer: answer.start)), note
    return (), "not found"


def _mentions(context: str, text: str, flags: re.RegexFlag = re.NOFLAG) -> list[Answer]:
    """Mentions of `text` that are no part of a longer word."""
    before = r"(?<!\w)" if re.match(r"\w", text) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", text) else ""
    return [Answer(match[0], match.start()) for match in re.finditer(before + re.escape(text) + after, context, flags)]


def check_question(question: Question) -> Question:
    """The question itself. Raises Rejected for one that cannot be asked or contradicts itself."""
    if not question.question.strip():
        raise Rejected("an empty question", "write the question, or remove its record")
    if not question.context.strip():
        raise Rejected(NO_CONTEXT, "give the text that answers it")
    if question.impossible and (question.answers or question.golds):
        raise Rejected("an impossible question with an answer", "remove the answers, or set is_impossible to false")
    texts = [question.id, question.question, question.context, question.document, question.pool, *question.golds]
    try:
        "".join([*texts, *(text for wordings in question.synonyms for text in wordings)]).encode()
    except UnicodeEncodeError:
        raise Rejected("not valid Unicode", "half of a surrogate pair") from None
    return question
