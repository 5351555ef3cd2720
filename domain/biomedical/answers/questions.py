"""What is asked, in which text, and which answers are right.

Offsets count Python characters (Unicode code points) from 0, and `answer.text` is always what stands in the context
from `answer.start` on: what the readers could not place is no answer here.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

Synonyms = tuple[str, ...]
"""One right answer in all its wordings."""


class Answer(NamedTuple):
    """A right answer where it stands: `context[start : start + len(text)] == text`."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a context, with what is right.

    answers: the right answers that stand in the context, in the order of the file; each is right by itself.
    golds: right answers that stand nowhere in the context. They count in a score and cannot be learnt.
    impossible: whether it is known that the context answers it not, as in SQuAD 2.0. A question that has neither
        answers nor this can be asked and scored, but there is nothing to learn from it.
    document: the article that the context is from; splits go by it.
    pool: the question that this one is, put to one of several contexts: what they answer is pooled before it is
        scored. Empty when it is asked of one context alone.
    synonyms: of BioASQ: each right answer with its synonyms.
    file, line: where it was read; empty and 0 when it was not.
    notes: what its reader did to it, a word for each answer; see `domain.biomedical.answers.placing`.
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

    @property
    def has_gold(self) -> bool:
        """Whether it is known what is right."""
        return self.impossible or bool(self.answers or self.golds)

    @property
    def gold_texts(self) -> tuple[str, ...]:
        """Every text that a score takes for right; `("",)` where the right answer is none."""
        return (*(answer.text for answer in self.answers), *self.golds) or ("",)
