"""What a model answers to questions, and how right it is: snippets pooled, no answer where that is likelier."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertrelay.evaluation.calibration import fit_temperature
from domain.biomedical.answers.decoding import Choices, NBest, best_threshold, pooled, with_no_answer
from domain.biomedical.answers.network import AnswerModel
from domain.biomedical.answers.questions import Question
from domain.biomedical.answers.squad_metrics import Score, scores
from domain.biomedical.windows import Integers


@dataclass(frozen=True)
class Pools:
    """Questions as they are scored: what is asked of several texts is one question.

    asked: of each text. scored: each with everything that is right in any of its texts. pool_of: which of these each
    of those belongs to, (asked,).
    """

    asked: Sequence[Question]
    scored: list[Question]
    pool_of: Integers

    @classmethod
    def of(cls, questions: Sequence[Question]) -> "Pools":
        members: dict[str, list[Question]] = {}
        for question in questions:
            members.setdefault(question.pool or question.id, []).append(question)
        place = {name: number for number, name in enumerate(members)}
        pool_of = np.array([place[question.pool or question.id] for question in questions], dtype=np.int64)
        return cls(questions, [_joined(name, each) for name, each in members.items()], pool_of)

    @property
    def known(self) -> Integers:
        """The places of the scored questions of which somebody knows what is right."""
        return np.flatnonzero([question.has_gold for question in self.scored])

    def nbest(self, found: NBest) -> NBest:
        """The n-best of what is asked as that of what is scored."""
        return pooled(found, self.pool_of, len(self.scored))

    def texts(self, choices: Choices) -> list[list[str]]:
        """The text of each choice of what is scored, best first; "" for no answer."""
        columns = (choices.texts.tolist(), choices.starts.tolist(), choices.ends.tolist())
        counts = (choices.scores > -np.inf).sum(axis=1).tolist()
        return [
            [self._text(*place) for place in list(zip(*row, strict=True))[:count]]
            for *row, count in zip(*columns, counts, strict=True)
        ]

    def _text(self, text: int, start: int, end: int) -> str:
        return self.asked[text].context[start:end] if text >= 0 else ""


def _joined(name: str, members: Sequence[Question]) -> Question:
    if len(members) == 1 and members[0].id == name:
        return members[0]
    golds = dict.fromkeys(text for each in members if each.answers or each.golds for text in each.gold_texts)
    is_impossible = not golds and any(each.impossible for each in members)
    return replace(members[0], id=name, answers=(), golds=tuple(golds), impossible=is_impossible)


def scores_at(pools: Pools, nbest: NBest, threshold: float | None) -> dict[str, Score]:
    """How right the best choices are, by id; of questions alone of which somebody knows what is right."""
    best = [texts[0] for texts in pools.texts(with_no_answer(nbest, threshold))]
    return scores({question.id: answer for question, answer in zip(pools.scored, best, strict=True)}, pools.scored)


def with_threshold(model: AnswerModel, pools: Pools, nbest: NBest) -> AnswerModel:
    """The model with the threshold at which the mean F1 is highest; as it is where no question is impossible."""
    if not any(question.impossible for question in pools.scored):
        return model
    answered, unanswered = (
        np.array([each.f1 for each in scores_at(pools, nbest, threshold).values()]) for threshold in (None, -np.inf)
    )
    return replace(model, threshold=best_threshold(nbest.gaps[pools.known], answered, unanswered))


def with_temperature(model: AnswerModel, pools: Pools, nbest: NBest) -> AnswerModel:
    """The model with the temperature at which the probabilities of its answers suit how often they are right."""
    is_right = np.array([each.exact_match == 1 for each in scores_at(pools, nbest, model.threshold).values()], bool)
    choices = with_no_answer(nbest, model.threshold)
    found = fit_temperature(lambda temperature: choices.probabilities(temperature)[pools.known, 0], is_right)
    return replace(model, temperature=found)
