"""Strict accuracy, lenient accuracy and mean reciprocal rank of factoid answers, as BioASQ's evaluator has them.

Its rules (EvaluatorTask1b, since BioASQ 5): an answer is right when it equals, in lower case and in nothing else, any
synonym of any gold answer; of an answer submitted with synonyms the first one counts. A question that a submission
lacks is skipped; one that is there with an empty list is wrong. The evaluator does not cut at the five answers that
the challenge asks for: `best_answers` gives no more.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bertrelay.stage import Metrics
from domain.biomedical.answers.questions import Question, Synonyms
from domain.biomedical.answers.squad_metrics import mean

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


def factoid_figures(found: Mapping[str, FactoidScore | None]) -> Metrics:
    """Means over the questions answered, as the evaluator has them, and over all of them, the unanswered as wrong."""
    answered = [each for each in found.values() if each is not None]
    whole = [each or FactoidScore(0.0, 0.0, 0.0) for each in found.values()]
    return {
        **_means("", answered),
        **_means("with_unanswered/", whole),
        "unanswered": len(whole) - len(answered),
    }


def _means(prefix: str, found: Sequence[FactoidScore]) -> Metrics:
    return {
        f"{prefix}strict_accuracy": mean([each.strict for each in found]),
        f"{prefix}lenient_accuracy": mean([each.lenient for each in found]),
        f"{prefix}mrr": mean([each.reciprocal_rank for each in found]),
    }
