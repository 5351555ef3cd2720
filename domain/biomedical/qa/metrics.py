"""How right answers are: by the rules of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), and by those of BioASQ.

SQuAD compares an answer in lower case, without ASCII punctuation, without the words a, an and the, and with one space
between words; it is as right as against the gold answer that suits it best. The two versions differ in what is empty:
in 2.0 no answer is right where there is none, and golds of nothing but articles and punctuation do not count. BioASQ
compares five ranked answers to a factoid question with all wordings of its gold answers, in lower case.
"""

import re
import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.stage import Metrics
from domain.biomedical.qa.predict import NBest, n_best
from domain.biomedical.qa.questions import Question, Synonyms
from domain.text.windows import Floats, Integers

Version = Literal["1.1", "2.0"]

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


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
    prefix: str, kind: type[Score | FactoidScore], scored: Sequence[Score | FactoidScore], intervals: bool = False
) -> Metrics:
    """The mean of each field of a kind of score, and its 95 % interval over questions; None of no question."""
    metrics: Metrics = {}
    for name in kind._fields:
        values = [getattr(score, name) for score in scored]
        bounds = with_interval(prefix + name, share, np.array(values)) if intervals else {}
        # The sum in order: numpy's pairwise sum differs from the published scripts in the last digit.
        metrics |= {**bounds, prefix + name: sum(values) / len(values) if values else None}
    return metrics


# SQuAD


def score(answer: str, golds: Iterable[str], version: Version = "1.1") -> Score:
    """The best of an answer against each gold; none of these, or `""`, means in 2.0 that no answer is right."""
    text, compared = normalised(answer), [normalised(gold) for gold in golds]
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


def normalised(text: str) -> str:
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
        asked.id: score(answers[asked.id], asked.gold_texts, version) if asked.id in answers else Score(0.0, 0.0)
        for asked in known
        if version == "1.1" or asked.id in answers
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


def best_answers(candidates: Iterable[tuple[str, float]], most: int = 5) -> list[str]:
    """The answers to a question from all its snippets, best first, each once (in lower case); empty ones are none.

    candidates: texts and their logits; logits of different snippets can be compared.
    """
    answers: dict[str, str] = {}
    for text, _ in sorted(candidates, key=lambda candidate: -candidate[1]):
        if text:
            answers.setdefault(text.lower(), text)
    return list(answers.values())[:most]


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
    metrics = means("", FactoidScore, answered, intervals) | means("with_unanswered/", FactoidScore, whole, intervals)
    return {**metrics, "unanswered": len(whole) - len(answered)}


def best_threshold(gaps: Floats, answered: Floats, unanswered: Floats) -> float:
    """The threshold at which questions score most together, (questions,).

    gaps: by how much no answer is above the best span. answered, unanswered: what a question scores with its best span
    and without an answer.
    """
    is_open = np.isfinite(gaps)
    order = np.argsort(gaps[is_open], kind="stable")
    ordered, gains = gaps[is_open][order], (answered - unanswered)[is_open][order]
    if not len(ordered):
        return 0.0
    borders = np.flatnonzero(np.diff(ordered, prepend=-np.inf, append=np.inf) > 0)  # between unequal gaps
    best = borders[np.append(0.0, np.cumsum(gains))[borders].argmax()]  # so many are answered
    around = np.concatenate([[ordered[0] - 1], ordered, [ordered[-1] + 1]])
    return float((around[best] + around[best + 1]) / 2)


@dataclass(frozen=True)
class Pools:
    """Questions as they are scored: what is `asked` of several texts is one question.

    scored: each with everything that is right in any of its texts. pool_of: which of these are asked, (asked,).
    """

    asked: Sequence[Question]
    scored: list[Question]
    pool_of: Integers

    @classmethod
    def of(cls, questions: Sequence[Question]) -> "Pools":
        pools = defaultdict[str, list[Question]](list)
        for question in questions:
            pools[question.scored_as].append(question)
        scored = []
        for name, members in pools.items():
            if len(members) == 1 and members[0].id == name:
                scored.append(members[0])
                continue
            golds = tuple(
                dict.fromkeys(text for each in members if each.answers or each.golds for text in each.gold_texts)
            )
            is_impossible = not golds and any(member.impossible for member in members)
            scored.append(replace(members[0], id=name, answers=(), golds=golds, impossible=is_impossible))
        place = {name: number for number, name in enumerate(pools)}
        return cls(questions, scored, np.array([place[question.scored_as] for question in questions], dtype=np.int64))

    @property
    def known(self) -> Integers:
        """The places of the scored questions with gold answers."""
        return np.flatnonzero([question.has_gold for question in self.scored])

    def nbest(self, found: NBest) -> NBest:
        """The n-best of what is asked as that of what is scored; no answer is as likely as where it is least so."""
        spans = found.spans()
        nulls = np.full(len(self.scored), np.inf)
        np.minimum.at(nulls, self.pool_of, found.nulls)
        return n_best(spans._replace(owners=self.pool_of[spans.owners]), nulls, found.scores.shape[1])

    def text(self, asked: int, start: int, end: int) -> str:
        """The text of a choice, "" for no answer."""
        return self.asked[asked].context[start:end] if start >= 0 else ""

    def scores_at(self, nbest: NBest, threshold: float | None) -> dict[str, Score]:
        """How right the best choices are, by id; of questions with gold answers alone."""
        best = nbest.with_no_answer(threshold).places[:, 0].tolist()
        answers = {question.id: self.text(*place) for question, place in zip(self.scored, best, strict=True)}
        return scores(answers, self.scored)
