"""How right answers are: by the rules of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), and by those of BioASQ.

SQuAD compares an answer in lower case, without ASCII punctuation, without the words a, an and the, and with one space
between words; it is as right as against the gold answer that suits it best. The two versions differ in what is empty:
in 2.0 no answer is right where there is none, and golds of nothing but articles and punctuation do not count. BioASQ
compares five ranked answers to a factoid question with all wordings of its gold answers, in lower case.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.stage import Metrics
from domain.biomedical.qa.questions import Question, Synonyms

Version = Literal["1.1", "2.0"]

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
MOST_ANSWERS = 5


class Score(NamedTuple):
    """How right an answer is: 0 or 1, and from 0 to 1."""

    exact_match: float
    f1: float


class FactoidScore(NamedTuple):
    """How right the first of ranked answers to a question is, any of them, and 1 / the rank of the first right one."""

    strict_accuracy: float
    lenient_accuracy: float
    mrr: float


def means(
    prefix: str, kind: type[Score | FactoidScore], found: Sequence[Score | FactoidScore], intervals: bool = False
) -> Metrics:
    """The mean of each field of a kind of score, and its 95 % interval over questions; None of no question."""
    metrics: Metrics = {}
    for name in kind._fields:
        values = [getattr(each, name) for each in found]
        bounds = with_interval(prefix + name, share, np.array(values)) if intervals else {}
        # The sum in order: numpy's pairwise sum differs from the published scripts in the last digit.
        metrics |= {**bounds, prefix + name: sum(values) / len(values) if values else None}
    return metrics


# SQuAD


def score(answer: str, golds: Iterable[str], version: Version = "1.1") -> Score:
    """The best of an answer against each gold; none of these, or `""`, means in 2.0 that no answer is right."""
    compared = list(golds)
    if version == "2.0":
        compared = [gold for gold in compared if normalised(gold)] or [""]
    found = [_score(answer, gold, version) for gold in compared]
    return Score(max(each.exact_match for each in found), max(each.f1 for each in found))


def _score(answer: str, gold: str, version: Version) -> Score:
    one, other = normalised(answer), normalised(gold)
    exact = float(one == other)
    words, gold_words = one.split(), other.split()
    if version == "2.0" and not (words and gold_words):
        return Score(exact, exact)
    shared = (Counter(words) & Counter(gold_words)).total()
    if not shared:
        return Score(exact, 0.0)
    precision, recall = shared / len(words), shared / len(gold_words)
    return Score(exact, 2 * precision * recall / (precision + recall))


def normalised(text: str) -> str:
    """The text as answers are compared."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def scores(
    answers: Mapping[str, str], questions: Iterable[Question], version: Version | None = None
) -> dict[str, Score]:
    """The score of each question by id, in order; those without gold answers are left out.

    answers: by id, `""` for none. A question that is not in them is wrong in 1.1, and left out in 2.0.
    version: 2.0 where any question is impossible, when not given.
    """
    known = [question for question in questions if question.has_gold]
    version = version or ("2.0" if any(question.impossible for question in known) else "1.1")
    return {
        each.id: score(answers[each.id], each.gold_texts, version) if each.id in answers else Score(0.0, 0.0)
        for each in known
        if version == "1.1" or each.id in answers
    }


def squad_metrics(found: Mapping[str, Score], questions: Iterable[Question], intervals: bool = False) -> Metrics:
    """Means over the questions that have a score; where some are impossible, over these and over the others too."""
    impossible = {question.id for question in questions if question.impossible} & found.keys()
    metrics = means("", Score, list(found.values()), intervals)
    if impossible:
        has_answer = [found[name] for name in found if name not in impossible]
        metrics |= means("has_answer/", Score, has_answer, intervals)
        metrics |= means("no_answer/", Score, [found[name] for name in found if name in impossible], intervals)
    return metrics


# BioASQ


class ScoredText(NamedTuple):
    """An answer that a model gives to one snippet, and its logit: logits of different snippets can be compared."""

    text: str
    logit: float


def best_answers(candidates: Iterable[ScoredText], most: int = MOST_ANSWERS) -> list[str]:
    """The answers to a question from all its snippets, best first, each once (in lower case); empty ones are none."""
    found: dict[str, str] = {}
    for candidate in sorted(candidates, key=lambda each: -each.logit):
        if candidate.text:
            found.setdefault(candidate.text.lower(), candidate.text)
    return list(found.values())[:most]


def factoid_score(answers: Sequence[str | Sequence[str]], golds: Iterable[Synonyms]) -> FactoidScore:
    """How right ranked answers are, the best first; one may be given with its synonyms, the first of which counts.

    Answers are `[["a", "synonym"], ["b"]]` or `["a", "b"]`; an empty one keeps its rank.
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
    by_group = (means("", FactoidScore, answered, intervals), means("with_unanswered/", FactoidScore, whole, intervals))
    return {**by_group[0], **by_group[1], "unanswered": len(whole) - len(answered)}
