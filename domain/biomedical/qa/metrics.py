"""Metrics of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018) and of BioASQ, and the threshold of no answer.

SQuAD compares an answer in lower case, without ASCII punctuation, without the words a, an and the, and with one space
between words; its score is the best against any gold answer. The versions differ in empty answers: in 2.0 an empty
answer is right for an impossible question, and golds of only articles and punctuation do not count. BioASQ compares
five ranked answers to a factoid question with all wordings of its gold answers, in lower case.
"""

import re
import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.stage import Metrics
from domain.biomedical.qa.data import Question, Synonyms
from domain.biomedical.qa.spans import Spans, pool_spans
from domain.text.windows import Floats, Integers

Version = Literal["1.1", "2.0"]
Value = TypeVar("Value")

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Score(NamedTuple):
    """SQuAD's score of an answer: exact match is 0 or 1, F1 from 0 to 1."""

    exact_match: float
    f1: float


WRONG = Score(0.0, 0.0)


class FactoidScore(NamedTuple):
    """BioASQ's score of ranked answers: 1 if the first is right, 1 if any is, 1 / the rank of the first right one."""

    strict_accuracy: float
    lenient_accuracy: float
    mrr: float


def means(prefix: str, fields: Sequence[str], scored: Sequence[NamedTuple], intervals: bool = False) -> Metrics:
    """The mean of each of the fields of scores, and its 95 % interval over questions; None without a question."""
    metrics: Metrics = {}
    for name in fields:
        values = [getattr(score, name) for score in scored]
        bounds = with_interval(prefix + name, share, np.array(values)) if intervals else {}
        # The sum in order: numpy's pairwise sum differs from the published scripts in the last digit.
        metrics |= {**bounds, prefix + name: sum(values) / len(values) if values else None}
    return metrics


def score(answer: str, golds: Iterable[str], version: Version = "1.1") -> Score:
    """The best score of an answer against any gold; in 2.0 without golds, or with only `""`, an empty one is right.

    For example, "the mild flu" has the F1 0.8 against "mild flu seen", 2 · (2/2 · 2/3) / (2/2 + 2/3).
    """
    text, compared = normalise(answer), [normalise(gold) for gold in golds]
    if version == "2.0":
        compared = [gold for gold in compared if gold] or [""]
    f1 = 0.0
    for gold in compared:
        words, gold_words = text.split(), gold.split()
        if version == "2.0" and not (words and gold_words):
            f1 = max(f1, float(text == gold))
        elif shared := (Counter(words) & Counter(gold_words)).total():
            precision, recall = shared / len(words), shared / len(gold_words)
            f1 = max(f1, 2 * precision * recall / (precision + recall))
    return Score(float(text in compared), f1)


def normalise(text: str) -> str:
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def scores(
    answers: Mapping[str, str], questions: Iterable[Question], version: Version | None = None
) -> dict[str, Score]:
    """The score of each question by id, in order; those without gold answers are left out.

    answers: by id, `""` for none. A question without one is wrong in 1.1, and left out in 2.0.
    version: when absent 2.0 if any question is impossible, else 1.1.
    """
    with_gold = [question for question in questions if question.has_gold]
    version = version or ("2.0" if any(question.impossible for question in with_gold) else "1.1")
    return {
        question.id: score(answers[question.id], question.gold_texts, version) if question.id in answers else WRONG
        for question in with_gold
        if version == "1.1" or question.id in answers
    }


def squad_metrics(score_of: Mapping[str, Score], questions: Iterable[Question], intervals: bool = False) -> Metrics:
    """Means over the questions that have a score; where some are impossible, over these and over the others too."""
    impossible = {question.id for question in questions if question.impossible} & score_of.keys()
    metrics = means("", Score._fields, list(score_of.values()), intervals)
    if impossible:
        with_answer = [score for name, score in score_of.items() if name not in impossible]
        without = [score for name, score in score_of.items() if name in impossible]
        metrics |= means("has_answer/", Score._fields, with_answer, intervals)
        metrics |= means("no_answer/", Score._fields, without, intervals)
    return metrics


def distinct_answers(candidates: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """The distinct non-empty answers to a question from all its snippets, best first; case does not matter.

    candidates: texts and their scores, which can be compared between snippets.
    """
    answers: dict[str, tuple[str, float]] = {}
    for text, score in sorted(candidates, key=lambda candidate: -candidate[1]):
        if text:
            answers.setdefault(text.lower(), (text, score))
    return list(answers.values())


def factoid_score(answers: Sequence[str | Sequence[str]], golds: Iterable[Synonyms]) -> FactoidScore:
    """The score of ranked answers, best first.

    Answers are `["a", "b"]`, or `[["a", "synonym"], ["b"]]`, in which only the first wording counts. An empty one keeps
    its rank: `["", "B"]` with the gold answer `b` has the scores 0, 1 and 1/2.
    """
    right = {wording.lower() for wordings in golds for wording in wordings}
    texts = [answer if isinstance(answer, str) else next(iter(answer), "") for answer in answers]
    rank = next((rank for rank, answer in enumerate(texts, 1) if answer and answer.lower() in right), None)
    return FactoidScore(float(rank == 1), float(rank is not None), 1 / rank if rank else 0.0)


def factoid_metrics(
    answers: Mapping[str, Sequence[str | Sequence[str]]],
    golds: Mapping[str, Sequence[Synonyms]],
    intervals: bool = False,
) -> Metrics:
    """Means over the gold questions answered, as the evaluator has them, and over all, the unanswered as wrong."""
    answered = [factoid_score(answers[name], right) for name, right in golds.items() if name in answers]
    whole = [factoid_score(answers.get(name, []), right) for name, right in golds.items()]
    metrics = means("", FactoidScore._fields, answered, intervals) | means(
        "with_unanswered/", FactoidScore._fields, whole, intervals
    )
    return {**metrics, "unanswered": len(whole) - len(answered)}


def best_threshold(gaps: Floats, gains: Floats) -> float:
    """The threshold at which answerable questions score most together; those with a gap of at most it are answered.

    gaps: by how much no answer is above the best span, (questions,).
    gains: by how much the best span scores more than no answer, (questions,).
    For example, with the gaps −1, 2 and 3 and the gains 1, 1 and −1 it is 2.5: the first two are answered.
    """
    if not len(gaps):
        return 0.0
    order = np.argsort(gaps, kind="stable")
    gaps, totals = gaps[order], np.append(0.0, np.cumsum(gains[order]))  # totals: when so many are answered
    counts = np.flatnonzero(np.diff(gaps, prepend=-np.inf, append=np.inf) > 0)  # equal gaps are answered together
    answered = counts[totals[counts].argmax()]
    around = np.concatenate([[gaps[0] - 1], gaps, [gaps[-1] + 1]])
    return float((around[answered] + around[answered + 1]) / 2)


@dataclass(frozen=True)
class Pools:
    """Questions as they are scored: one that is put to several contexts is one question.

    questions: as they were read. scored: as they are scored, with all gold answers of any context.
    members: those of `questions` that are scored as one, one for each context, (scored,).
    """

    questions: Sequence[Question]
    scored: list[Question]
    members: list[list[Question]]

    @classmethod
    def of(cls, questions: Sequence[Question]) -> "Pools":
        members = _by_pool(questions, questions)
        return cls(questions, [_merge(pool) for pool in members], members)

    @property
    def with_gold(self) -> Integers:
        """The numbers of the scored questions with gold answers."""
        return np.flatnonzero([question.has_gold for question in self.scored])

    def spans(self, spans: Iterable[Spans]) -> list[Spans]:
        """The spans of the scored questions, from those of `questions`."""
        return list(map(pool_spans, self.grouped(spans)))

    def grouped(self, values: Iterable[Value]) -> list[list[Value]]:
        """The values of `questions`, those of a scored question in one list."""
        return _by_pool(self.questions, values)

    def contexts(self, number: int) -> list[str]:
        """The contexts of the scored question `number`."""
        return [member.context for member in self.members[number]]

    def answers(self, ranked: Iterable[Spans]) -> dict[str, str]:
        """The texts of the best candidates by the scored question's id; "" for no answer."""
        return {
            question.id: spans.text(0, self.contexts(number))
            for number, (question, spans) in enumerate(zip(self.scored, ranked, strict=True))
        }

    def scores_at(self, spans: Iterable[Spans], threshold: float | None) -> dict[str, Score]:
        """The score of each question with gold answers by id, when `threshold` decides between spans and no answer."""
        return scores(self.answers(candidates.with_no_answer(threshold) for candidates in spans), self.scored)


def _merge(members: Sequence[Question]) -> Question:
    """The question that is put to the contexts of `members`, with the gold answers of all."""
    name = members[0].scored_as
    if len(members) == 1 and members[0].id == name:
        return members[0]
    with_golds = [member for member in members if member.answers or member.golds]
    golds = tuple(dict.fromkeys(text for member in with_golds for text in member.gold_texts))
    is_impossible = not golds and any(member.impossible for member in members)
    return replace(members[0], id=name, answers=(), golds=golds, impossible=is_impossible)


def _by_pool(questions: Iterable[Question], values: Iterable[Value]) -> list[list[Value]]:
    """The values of `questions`, those of a pool in one list."""
    pools = defaultdict[str, list[Value]](list)
    for question, value in zip(questions, values, strict=True):
        pools[question.scored_as].append(value)
    return list(pools.values())
