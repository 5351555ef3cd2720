"""Exact match and F1 by the published rules of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018).

An answer is compared in lower case, without ASCII punctuation, without the words a, an and the, and with one space
between words; it is as right as against the gold answer that suits it best. The two versions differ in what is empty:
in 2.0 no answer is right where there is none, and golds of nothing but articles and punctuation do not count.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from bertrelay.stage import Metrics
from domain.biomedical.qa.questions import Question, Synonyms

Version = Literal["1.1", "2.0"]

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Score(NamedTuple):
    """How right an answer is: 0 or 1, and from 0 to 1."""

    exact_match: float
    f1: float


def score(answer: str, golds: Iterable[str], version: Version = "1.1") -> Score:
    """The best of an answer against each gold; none of these, or `""`, means in 2.0 that no answer is right."""
    compared = list(golds)
    if version == "2.0":
        compared = [gold for gold in compared if normalised(gold)] or [""]
    found = [_score(answer, gold, version) for gold in compared]
    return Score(max(each.exact_match for each in found), max(each.f1 for each in found))


def scores(
    answers: Mapping[str, str], questions: Iterable[Question], version: Version | None = None
) -> dict[str, Score]:
    """The score of each question by id, in order; those without gold answers are left out.

    answers: by id, `""` for none. A question that is not in them is wrong in 1.1, and left out in 2.0.
    version: 2.0 where any question is impossible, when not given.
    """
    known = [question for question in questions if question.has_gold]
    version = version or version_of(known)
    asked = [question for question in known if version == "1.1" or question.id in answers]
    golds = {question.id: question.gold_texts for question in asked}
    return {
        name: score(answers[name], texts, version) if name in answers else Score(0.0, 0.0)
        for name, texts in golds.items()
    }


def version_of(questions: Iterable[Question]) -> Version:
    """2.0 where any question is impossible."""
    return "2.0" if any(question.impossible for question in questions) else "1.1"


def squad_metrics(found: Mapping[str, Score], questions: Iterable[Question]) -> Metrics:
    """Means over the questions that have a score; where some are impossible, over these and over the others too."""
    impossible = {question.id: question.impossible for question in questions}
    metrics = _means("", list(found.values()))
    if any(impossible[name] for name in found):
        for prefix, kind in (("has_answer/", False), ("no_answer/", True)):
            metrics |= _means(prefix, [each for name, each in found.items() if impossible[name] == kind])
    return metrics


def normalised(text: str) -> str:
    """The text as answers are compared."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def mean(values: Sequence[float]) -> float | None:
    """The sum in order, divided: numpy's pairwise sum differs from the published scripts in the last digit."""
    return sum(values) / len(values) if len(values) else None


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


def _means(prefix: str, found: Sequence[Score]) -> Metrics:
    return {
        f"{prefix}exact_match": mean([each.exact_match for each in found]),
        f"{prefix}f1": mean([each.f1 for each in found]),
    }


MOST_ANSWERS = 5


class ScoredText(NamedTuple):
    """An answer that a model gives to one snippet, and its logit: logits of different snippets can be compared."""

    text: str
    logit: float


class FactoidScore(NamedTuple):
    """How right the answers to a question are."""

    strict: float
    lenient: float
    reciprocal_rank: float


def best_answers(candidates: Iterable[ScoredText], most: int = MOST_ANSWERS) -> list[str]:
    """The answers to a question from all its snippets, best first, each once (in lower case); empty ones are none."""
    found: dict[str, str] = {}
    for candidate in sorted(candidates, key=lambda each: -each.logit):
        if candidate.text:
            found.setdefault(candidate.text.lower(), candidate.text)
    return list(found.values())[:most]


def first_wordings(answers: Sequence[str | Sequence[str]]) -> list[str]:
    """Of answers, `[["a", "synonym"], ["b"]]` or `["a", "b"]`, the first wording each; an empty one keeps its rank."""
    return [answer if isinstance(answer, str) else next(iter(answer), "") for answer in answers]


def factoid_score(answers: Sequence[str | Sequence[str]], golds: Iterable[Synonyms]) -> FactoidScore:
    """How right ranked answers are, the best first; one may be given with its synonyms, the first of which counts."""
    right = {wording.lower() for wordings in golds for wording in wordings}
    texts = first_wordings(answers)
    rank = next((rank for rank, answer in enumerate(texts, 1) if answer and answer.lower() in right), None)
    return FactoidScore(float(rank == 1), float(rank is not None), 1 / rank if rank else 0.0)


def golds_by_pool(questions: Iterable[Question]) -> dict[str, tuple[Synonyms, ...]]:
    """The gold answers of each question that is known to have some, by the id that its snippets share."""
    return {question.pool or question.id: question.synonyms for question in questions if question.synonyms}


def factoid_scores(
    answers: Mapping[str, Sequence[str | Sequence[str]]], golds: Mapping[str, Sequence[Synonyms]]
) -> dict[str, FactoidScore | None]:
    """The score of each gold question, by id and in order; None of one that was not answered."""
    return {
        name: factoid_score(answers[name], wordings) if name in answers else None for name, wordings in golds.items()
    }


def factoid_metrics(found: Mapping[str, FactoidScore | None]) -> Metrics:
    """Means over the questions answered, as the evaluator has them, and over all of them, the unanswered as wrong."""
    answered = [each for each in found.values() if each is not None]
    whole = [each or FactoidScore(0.0, 0.0, 0.0) for each in found.values()]
    return {
        **_factoid_means("", answered),
        **_factoid_means("with_unanswered/", whole),
        "unanswered": len(whole) - len(answered),
    }


def _factoid_means(prefix: str, found: Sequence[FactoidScore]) -> Metrics:
    return {
        f"{prefix}strict_accuracy": mean([each.strict for each in found]),
        f"{prefix}lenient_accuracy": mean([each.lenient for each in found]),
        f"{prefix}mrr": mean([each.reciprocal_rank for each in found]),
    }
