"""What is asked, in which text, and which answers are right.

Offsets count Python characters (Unicode code points) from 0, and `answer.text` is always what the context has
from `answer.start` on: what the readers could not place is no answer here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertrelay.data.tables import Rejected

Synonyms = tuple[str, ...]
"""One right answer in all its wordings."""


class Answer(NamedTuple):
    """A right answer and its place: `context[start : start + len(text)] == text`."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a context, with what is right.

    answers: the right answers that are in the context, in the order of the file; each is right by itself.
    golds: right answers that are not in the context. They count in a score and cannot be trained on.
    impossible: whether the context is known not to answer it, as in SQuAD 2.0. With neither answers nor this it can
        be answered, but neither trained on nor scored.
    document: the article that the context is from; splits go by it.
    pool: the question that this one is, put to one of several contexts, whose answers are pooled before scoring; empty
        when it is asked of one context alone.
    synonyms: of BioASQ: each right answer with its synonyms.
    file, line: where it was read; empty and 0 when it was not.
    notes: for each answer one of `PLACINGS` or `ALIGNMENTS`.
    fields: further fields of JSONL, by name, that were to be kept.
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
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_registered(self) -> bool:
        """Whether it has an answer in its context, or is known to have none: what can be trained on."""
        return self.impossible or bool(self.answers)

    @property
    def has_gold(self) -> bool:
        """Whether it is known what is right: what can be scored."""
        return self.is_registered or bool(self.golds)

    @property
    def gold_texts(self) -> tuple[str, ...]:
        """Every text that a score takes for right; `("",)` where the right answer is none."""
        return (*(answer.text for answer in self.answers), *self.golds) or ("",)

    @property
    def scored_as(self) -> str:
        """The id of the question that this one is scored as."""
        return self.pool or self.id


PLACINGS = ("in place", "corrected", "nowhere")
"""How an answer with an offset was placed."""
ALIGNMENTS = ("exactly", "by case", "in a synonym", "not found")
"""How an answer without one was found, the best first."""

MOST_SHIFT = 10  # characters; further off it may be another mention

NOWHERE = "an answer that is not in its context at its offset, nor a few characters off"
NO_CONTEXT = "a question without a context"
DUPLICATE = "an id that another question has"


def placed_answers(
    context: str, given: Sequence[Answer]
) -> tuple[tuple[Answer, ...], tuple[str, ...], tuple[str, ...]]:
    """The answers at their places, the texts of those that are not there, and how each one was placed.

    Raises Rejected when none of several can be placed, and for an empty one.
    """
    if any(not answer.text.strip() for answer in given):
        raise Rejected("an empty answer", "give it its text, or leave it out")
    placings = [placed(context, *answer) for answer in given]
    answers = tuple(answer for answer, _ in placings if answer is not None)
    if given and not answers:
        starts = ", ".join(f"{answer.start:,}" for answer in given[:3])
        raise Rejected(
            NOWHERE, f"expected it at {starts} of {len(context):,} characters; correct the text or the offset"
        )
    lost = tuple(gold.text for gold, (answer, _) in zip(given, placings, strict=True) if answer is None)
    return answers, lost, tuple(how for _, how in placings)


def placed(context: str, text: str, start: int) -> tuple[Answer | None, str]:
    """The answer at `start`, else one at most `MOST_SHIFT` characters off.

    One that is no part of a longer word goes before one that is; then the nearest, and of two the earlier.
    """
    if start >= 0 and context.startswith(text, start):
        return Answer(text, start), "in place"
    begin = max(0, start - MOST_SHIFT)
    around = context[begin : max(0, start + MOST_SHIFT + len(text))]
    starts = [begin + match.start() for match in re.finditer(f"(?={re.escape(text)})", around)]
    if not starts:
        return None, "nowhere"
    whole = {answer.start for answer in _mentions(context, text)}
    return Answer(text, min(starts, key=lambda place: (place not in whole, abs(place - start)))), "corrected"


def aligned(context: str, wordings: Synonyms) -> tuple[tuple[Answer, ...], str]:
    """The place of an answer without offsets: its first wording, in other cases, or else a synonym of it.

    Every mention of the best kind counts; a mention begins and ends where words do. `Ret` is not in `retina`.
    """
    name, synonyms = wordings[:1], wordings[1:]
    tries: list[tuple[str, Synonyms, re.RegexFlag]] = [
        ("exactly", name, re.NOFLAG),
        ("by case", name, re.IGNORECASE),
        ("in a synonym", synonyms, re.NOFLAG),
        ("in a synonym", synonyms, re.IGNORECASE),
    ]
    for how, texts, flags in tries:
        if mentions := {answer for text in texts for answer in _mentions(context, text, flags)}:
            return tuple(sorted(mentions, key=lambda answer: answer.start)), how
    return (), "not found"


def _mentions(context: str, text: str, flags: re.RegexFlag = re.NOFLAG) -> list[Answer]:
    """Mentions of `text` that are no part of a longer word."""
    before = r"(?<!\w)" if re.match(r"\w", text) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", text) else ""
    return [Answer(match[0], match.start()) for match in re.finditer(before + re.escape(text) + after, context, flags)]


def checked(question: Question) -> Question:
    """The question. Raises Rejected for one that cannot be asked or contradicts itself."""
    if not question.question.strip():
        raise Rejected("an empty question", "write the question, or remove its record")
    if not question.context.strip():
        raise Rejected(NO_CONTEXT, "give the text that it is asked of")
    if question.impossible and (question.answers or question.golds):
        raise Rejected("an impossible question with an answer", "remove the answers, or set is_impossible to false")
    texts = [question.id, question.question, question.context, question.document, question.pool, *question.golds]
    try:
        "".join([*texts, *(text for wordings in question.synonyms for text in wordings)]).encode()
    except UnicodeEncodeError:
        raise Rejected("not valid Unicode", "half of a surrogate pair") from None
    return question
