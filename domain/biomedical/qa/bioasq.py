"""Exact answers of BioASQ's task B, phase B: their limits, the files of them, and the metrics of its evaluator.

An exact answer is `[["a"], ["b"]]` to a factoid or list question, best first, and "yes" or "no" to a yes/no question.
The evaluator, `EvaluatorTask1b -phaseB -e 9` of BioASQ/Evaluation-Measures, compares strings in lower case and changes
nothing else; of an entry it reads the first wording. A question that a system leaves out is left out of its means, and
it fails there with `-e 5` and `-e 8`; metrics `with_unanswered/` count such a question as wrong.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import RESAMPLES, share, with_interval
from bertrelay.stage import Metrics
from domain.biomedical.documents.json_stream import Shape
from domain.biomedical.qa.data import Question, Synonyms
from domain.biomedical.qa.metrics import best_threshold, distinct_answers, factoid_metrics, means
from domain.biomedical.qa.question_files import BioasqQuestion, bioasq_records, yes_or_no
from domain.biomedical.qa.settings import AnswerType
from domain.biomedical.qa.spans import Spans
from domain.reading import shown_id

ExactAnswer = list[list[str]] | str
MOST_ANSWERS: dict[AnswerType, int] = {"factoid": 5, "list": 100}
"""The most entries of an answer, since BioASQ 5. The evaluator does not cut at them, and so counts further ones."""
LONGEST_ANSWER = 100
"""The most characters of an entry."""


class Gold(NamedTuple):
    """The right answer to a question: with synonyms, or `yes`."""

    type: AnswerType
    answers: Sequence[Synonyms] = ()
    yes: bool | None = None


class ListScore(NamedTuple):
    """BioASQ's score of the answer to a list question."""

    precision: float
    recall: float
    f1: float


class Submission(Shape):
    """A question of a system's file; the evaluator reads no other keys of it, and fails at answers of other shapes."""

    id: str | int
    exact_answer: list[list[str]] | str = Field(default_factory=list)

    @field_validator("exact_answer", mode="before")
    @classmethod
    def _refuse_flat(cls, answer: Any) -> Any:
        if isinstance(answer, list) and any(isinstance(entry, str) for entry in answer):
            raise ValueError('expected a list of lists, [["a"], ["b"]], found strings in one list')
        return answer


def exact_answers(answered: Iterable[tuple[Question, Spans]], list_margin: float) -> dict[str, ExactAnswer]:
    """The exact answer to each question by its id, from its spans in each of its contexts; empty without any.

    list_margin: how far the score of an entry of a list may be below that of its best one.
    """
    pools = defaultdict[str, list[tuple[Question, Spans]]](list)
    for question, spans in answered:
        pools[question.scored_as].append((question, spans))
    answers = dict[str, ExactAnswer]()
    for name, pool in pools.items():
        kind = pool[0][0].answer_type
        if kind == "yesno":
            answers[name] = yes_no_answer([spans.yes for _, spans in pool])
        else:
            entries = ranked_entries(pool)
            least = entries[0][1] - list_margin if entries and kind == "list" else -np.inf
            answers[name] = [[text] for text, score in entries[: MOST_ANSWERS[kind]] if score >= least]
    return answers


def yes_no_answer(log_odds: Iterable[float | None]) -> str:
    """The answer that the mean of the log-odds of yes in each context gives; empty without any."""
    values = [value for value in log_odds if value is not None]
    return "" if not values else "yes" if sum(values) >= 0 else "no"


def ranked_entries(pool: Sequence[tuple[Question, Spans]]) -> list[tuple[str, float]]:
    """The possible entries of the answer to a factoid or list question with their scores, the best first.

    pool: the question with each of its contexts, and the spans there. Scores of different contexts can be compared.
    Equal texts are one entry, however long each context is; those that no entry may have are left out. In a list no two
    entries are from spans that overlap, as different answers do not.
    """
    candidates = list[tuple[str, float]]()
    for question, spans in pool:
        spans = spans.apart() if question.answer_type == "list" else spans
        texts = (question.context[start:end] for start, end in zip(spans.starts, spans.ends, strict=True))
        candidates += zip(texts, spans.scores, strict=True)
    return distinct_answers((text, score) for text, score in candidates if len(text) <= LONGEST_ANSWER)


def best_list_margin(pools: Sequence[Sequence[tuple[Question, Spans]]]) -> float | None:
    """The margin at which the mean F1 of list questions is highest; None without a list question with gold answers.

    A list has its best entry at any margin.
    """
    gaps, gains = list[float](), list[float]()
    for pool in pools:
        question = pool[0][0]
        if question.answer_type != "list" or not question.synonyms:
            continue
        entries = ranked_entries(pool)[: MOST_ANSWERS["list"]]
        answer = [[text] for text, _ in entries]
        gaps += (entries[0][1] - score for _, score in entries)
        reached = [list_score(answer[:count], question.synonyms).f1 for count in range(len(answer) + 1)]
        gains += np.diff(reached).tolist()
    return max(0.0, best_threshold(np.array(gaps), np.array(gains))) if gaps else None


def list_score(answers: Sequence[Sequence[str]], golds: Iterable[Synonyms]) -> ListScore:
    """The score of the answer to a list question.

    1. Each entry takes the first gold answer that has its first wording; without one it is a false positive, and so are
       a second mention of one answer and an empty entry.
    2. A gold answer that none has taken is a false negative, unless an entry has a wording of it; that entry is taken.
       This matters only where gold answers share wordings.

    For example, `[["a"], ["A"], ["x"]]` for the gold answers a and b has the precision 1/3 and the recall 1/2.
    """
    left = [{wording.lower() for wording in wordings} for wordings in golds]
    entries = [entry[0].lower() if entry else None for entry in answers]
    right = 0
    for entry in entries:
        if (position := next((index for index, wordings in enumerate(left) if entry in wordings), None)) is not None:
            del left[position]
            right += 1
    missed, untaken = 0, list(entries)
    for wordings in left:
        if (position := next((index for index, entry in enumerate(untaken) if entry in wordings), None)) is None:
            missed += 1
        else:
            del untaken[position]
    precision = right / len(entries) if entries else 0.0
    recall = right / (right + missed) if entries and right + missed else 0.0
    both = precision + recall
    return ListScore(precision, recall, 2 * precision * recall / both if both else 0.0)


def yesno_metrics(prefix: str, is_yes: Sequence[bool], is_right: Sequence[bool], intervals: bool = False) -> Metrics:
    """Accuracy, the F1 of yes and of no, and their mean; None without a question.

    What is neither yes nor no counts as the other answer. The F1 of an answer that is never right and never given is 0:
    if all are rightly yes, the mean is 1/2.
    """
    right, columns = np.array(is_right, bool), (np.array(is_yes, bool), np.array(is_right, bool))
    statistics: dict[str, Callable[..., float | None]] = {
        "f1_yes": partial(_f1, label=True),
        "f1_no": partial(_f1, label=False),
        "macro_f1": _macro_f1,
    }
    if not len(right):
        return {prefix + name: None for name in ("accuracy", *statistics)}
    resamples = RESAMPLES if intervals else 0
    metrics = with_interval(prefix + "accuracy", share, right, resamples=resamples)
    for name, statistic in statistics.items():
        metrics |= with_interval(prefix + name, statistic, *columns, resamples=resamples)
    return metrics


Flags = NDArray[np.bool_]


def _f1(is_yes: Flags, is_right: Flags, label: bool) -> float:
    right, wrong = int((is_right & (is_yes == label)).sum()), int((~is_right).sum())
    return 2 * right / (2 * right + wrong) if right + wrong else 0.0


def _macro_f1(is_yes: Flags, is_right: Flags) -> float:
    return (_f1(is_yes, is_right, label=True) + _f1(is_yes, is_right, label=False)) / 2


def bioasq_metrics(answers: Mapping[str, ExactAnswer], golds: Mapping[str, Gold], intervals: bool = False) -> Metrics:
    """The evaluator's metrics of each type of questions that `golds` has, by id; `list/` and `yesno/` are prefixes.

    answers: by id, only those that a system gives. One of another form than the question's is wrong.
    """
    by_type = {kind: {name: gold for name, gold in golds.items() if gold.type == kind} for kind in MOST_ANSWERS}
    listed = {name: answer if isinstance(answer, list) else [] for name, answer in answers.items()}
    metrics: Metrics = {}
    if factoid := {name: gold.answers for name, gold in by_type["factoid"].items()}:
        metrics |= factoid_metrics(listed, factoid, intervals)
    if lists := by_type["list"]:
        scored = {name: list_score(listed[name], gold.answers) for name, gold in lists.items() if name in listed}
        missing = ListScore(0.0, 0.0, 0.0)
        metrics |= means("list/", ListScore._fields, list(scored.values()), intervals)
        whole = [scored.get(name, missing) for name in lists]
        metrics |= means("with_unanswered/list/", ListScore._fields, whole, intervals)
        metrics["list/unanswered"] = len(lists) - len(scored)
    if verdicts := {name: gold.yes for name, gold in golds.items() if gold.yes is not None}:
        system_verdicts = {name: _is_yes(answers[name]) for name in verdicts if name in answers}
        for prefix, names in (("yesno/", list(system_verdicts)), ("with_unanswered/yesno/", list(verdicts))):
            is_right = [system_verdicts.get(name) == verdicts[name] for name in names]
            metrics |= yesno_metrics(prefix, [verdicts[name] for name in names], is_right, intervals)
        metrics["yesno/unanswered"] = len(verdicts) - len(system_verdicts)
    return metrics


def _is_yes(answer: ExactAnswer) -> bool | None:
    """None for what is neither yes nor no."""
    return {"yes": True, "no": False, "none": None}[yes_or_no(answer) if isinstance(answer, str) else "none"]


def gold_of(record: BioasqQuestion) -> Gold | None:
    """The right answer to a question of a golden file; None where it has none, as for a summary."""
    if record.type == "summary" or not (record.golds or record.yes is not None):
        return None
    return Gold(record.type, record.golds, record.yes)


def score_bioasq(gold: Path | str, system: Path | str) -> Metrics:
    """BioASQ's metrics of a system's file against a golden one.

    Raises RequestError for files that are none of BioASQ's, and for a question, with line and id, at which the
    evaluator would fail: of a flat list, for example.
    """
    golds = {name: gold_of(record) for name, record in bioasq_records(gold, BioasqQuestion).items()}
    answers = {name: record.exact_answer for name, record in bioasq_records(system, Submission).items()}
    for name, right in golds.items():
        if right and right.type == "yesno" and isinstance(answers.get(name), list):
            raise RequestError(
                f'{system}, question {shown_id(name)}: expected "yes" or "no" as `exact_answer`, found a list or none; '
                "the evaluator fails at it"
            )
    return bioasq_metrics(answers, {name: right for name, right in golds.items() if right})
