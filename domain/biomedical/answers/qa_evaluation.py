"""The stage `domain.qa-evaluate`: a model's answers as they are, scored on files of questions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertrelay.files import whole_file, write_json
from bertrelay.hardware import accelerator
from bertrelay.progress import progress, say
from bertrelay.rejects import Rejects
from bertrelay.stage import Metrics, StageContext
from bertrelay.statistics import share, with_interval
from domain.biomedical.answers.bioasq_metrics import Candidate, factoid_figures, factoid_scores, golds_by_pool, pooled
from domain.biomedical.answers.decoding import Floats, NBest, with_no_answer
from domain.biomedical.answers.finding import Asked, predict_blocks, too_long
from domain.biomedical.answers.learning import Golds, count_long_answers, read_all
from domain.biomedical.answers.network import AnswerModel, load_model
from domain.biomedical.answers.pieces import Cutter
from domain.biomedical.answers.qa_settings import QaEvaluateSettings
from domain.biomedical.answers.questions import Question
from domain.biomedical.answers.scoring import Pools
from domain.biomedical.answers.slices import slices
from domain.biomedical.answers.squad_metrics import Score, figures, scores
from domain.calibration import expected_calibration_error
from domain.sentences import sentence_spans

EXAMPLES_KEPT = 12
"""Questions answered right, and answered wrong, that are kept for the report; of each so many."""
AROUND = 400
"""Characters of a text that are kept on either side of an example's answer."""


class Choice(NamedTuple):
    """What may be the answer: characters [start, end) of the text of question `asked`; −1 and −1 for none."""

    text: str
    asked: int
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class Answered:
    """What a model answers to the questions that are scored.

    choices: of each question, best first. confidences, uncalibrated: of the best ones, (questions,).
    """

    pools: Pools
    choices: list[list[Choice]]
    confidences: Floats
    uncalibrated: Floats

    @property
    def answers(self) -> dict[str, str]:
        """The best choice by the question's id, "" for no answer."""
        return {question.id: best[0].text for question, best in zip(self.pools.scored, self.choices, strict=True)}


def run(settings: QaEvaluateSettings, context: StageContext) -> Metrics:
    """Writes `predictions.json`, `nbest.jsonl`, `slices.json` and `examples.json`; the main process does it alone."""
    if not context.world.is_main:
        return {}
    model = load_model(settings.model, cache_dir=context.cache / "hub")
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        questions = read_all(settings.test, rejects)
    model.network.to(accelerator().device)
    found = answered(model, Pools.of(questions), settings.precision, settings.batch_tokens)
    score_of = scores(found.answers, found.pools.scored)
    write_json(context.output / "predictions.json", found.answers)
    _write_nbest(found, context)
    write_json(context.output / "slices.json", slices(found.pools.scored, score_of))
    write_json(context.output / "examples.json", _examples(found, score_of), compact=True)
    published = {f"published_{name}": value for name, value in settings.published.items()}
    told = {**_squad(found, score_of), **_bioasq(found), **_baseline(found.pools), **_calibration(found, score_of)}
    return {**told, **published, **_counts(model, found)}


def answered(model: AnswerModel, pools: Pools, precision: str, batch_tokens: int | None) -> Answered:
    """What `model` answers to the questions of `pools`; one that is too long is told of, and has no answer."""
    asked = [Asked(each.question, each.context, each.id) for each in pools.asked]
    refused: list[str] = []
    parts, done = [], 0
    with progress("answering", len(asked), "questions") as bar:
        blocks = predict_blocks(
            model, asked, precision=precision, batch_tokens=batch_tokens, refused=lambda each: refused.append(each.id)
        )
        for _, block in blocks:
            parts.append(block._replace(texts=block.texts + done))
            done += len(block.nulls)
            bar.advance(len(block.nulls))
    if refused:
        say(f"{len(refused):,} questions count as not answered, {refused[0]} the first: {too_long(model)}")
    return _read_off(model, pools, pools.nbest(NBest(*map(np.concatenate, zip(*parts, strict=True)))))


def _read_off(model: AnswerModel, pools: Pools, nbest: NBest) -> Answered:
    choices = with_no_answer(nbest, model.threshold)
    calibrated, uncalibrated = (choices.probabilities(each) for each in (model.temperature, 1.0))
    columns = (*choices, calibrated)
    rows = zip(pools.texts(choices), *(column.tolist() for column in columns), strict=True)
    found = [[Choice(*each) for each in zip(*row, strict=False)] for row in rows]  # those beyond the texts are none
    return Answered(pools, found, calibrated[:, 0], uncalibrated[:, 0])


def _squad(found: Answered, score_of: Mapping[str, Score]) -> Metrics:
    """Exact match and F1 with intervals over questions."""
    told: Metrics = {}
    for name in Score._fields:
        told |= with_interval(name, share, np.array([getattr(each, name) for each in score_of.values()]))
    return {**told, **figures(score_of, found.pools.scored)}


def _bioasq(found: Answered) -> Metrics:
    """BioASQ's figures with intervals over questions, where there are questions of its kind."""
    golds = golds_by_pool(found.pools.asked)
    if not golds:
        return {}
    answers = {
        question.id: pooled(Candidate(each.text, each.score) for each in choices)
        for question, choices in zip(found.pools.scored, found.choices, strict=True)
    }
    score_of = factoid_scores({name: each for name, each in answers.items() if each}, golds)
    known = [each for each in score_of.values() if each is not None]
    told: Metrics = {}
    for figure, field in {"strict_accuracy": "strict", "lenient_accuracy": "lenient", "mrr": "reciprocal_rank"}.items():
        told |= with_interval(figure, share, np.array([getattr(each, field) for each in known]))
    return {**told, **factoid_figures(score_of)}


def _baseline(pools: Pools) -> Metrics:
    """Exact match and F1 of answering each question with the first sentence of its text."""
    firsts: dict[str, str] = {}
    for context in {question.context for question in pools.scored}:
        start, end = next(iter(sentence_spans(context)), (0, 0))
        firsts[context] = context[start:end]
    found = scores({question.id: firsts[question.context] for question in pools.scored}, pools.scored)
    return {f"first_sentence/{name}": value for name, value in figures(found, pools.scored).items()}


def _calibration(found: Answered, score_of: Mapping[str, Score]) -> Metrics:
    """How far probabilities are from the share of exact matches, with the model's temperature and without."""
    is_right, known = np.array([each.exact_match == 1 for each in score_of.values()], bool), found.pools.known
    return {
        "ece": expected_calibration_error(found.confidences[known], is_right),
        "ece_uncalibrated": expected_calibration_error(found.uncalibrated[known], is_right),
    }


def _counts(model: AnswerModel, found: Answered) -> Metrics:
    """What there was to answer."""
    asked = found.pools.asked
    pieces = Cutter(model.tokenizer)([each.question for each in asked], [each.context for each in asked])
    return {
        "questions": len(found.pools.scored),
        "texts": len(pieces.contexts.lengths),
        "longest_text_pieces": int(pieces.contexts.lengths.max(initial=0)),
        "beyond_max_answer_tokens": count_long_answers(asked, Golds.of(asked, pieces), model.max_answer_tokens),
        "answered": sum(best[0].text != "" for best in found.choices),
    }


def _write_nbest(found: Answered, context: StageContext) -> None:
    """A line for each question: its id and its choices; `context` says of a pool which of its texts one stands in."""
    with (
        whole_file(context.output / "nbest.jsonl") as building,
        building.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for question, choices in zip(found.pools.scored, found.choices, strict=True):
            listed = [_told(choice, question, found.pools) for choice in choices]
            file.write(json.dumps({"id": question.id, "nbest": listed}, ensure_ascii=False) + "\n")


def _told(choice: Choice, question: Question, pools: Pools) -> dict[str, object]:
    told = choice._asdict()
    asked = pools.asked[told.pop("asked")].id
    return told if asked == question.id or choice.start < 0 else {**told, "context": asked}


def _examples(found: Answered, score_of: Mapping[str, Score]) -> dict[str, list[dict[str, object]]]:
    """Questions spread evenly over the data: answered right, and wrong."""
    exact = {
        place: score_of[question.id].exact_match == 1
        for place, question in enumerate(found.pools.scored)
        if question.id in score_of
    }
    among = {
        "right": [place for place, is_right in exact.items() if is_right],
        "wrong": [place for place, is_right in exact.items() if not is_right],
    }
    return {
        name: [_example(found, place) for place in places[:: max(1, len(places) // EXAMPLES_KEPT)][:EXAMPLES_KEPT]]
        for name, places in among.items()
    }


def _example(found: Answered, place: int) -> dict[str, object]:
    """A question, what is right and what was answered, and the text around both as `passages` with their places."""
    question, best = found.pools.scored[place], found.choices[place][0]
    asked = found.pools.asked[best.asked] if best.start >= 0 else question
    marks = [(answer.start, answer.end, "gold") for answer in asked.answers]
    if best.start >= 0:
        marks.append((best.start, best.end, "answer"))
    return {
        "id": question.id,
        "question": question.question,
        "golds": list(question.gold_texts),
        "answer": best.text,
        "probability": best.probability,
        "passages": passages(asked.context, marks),
    }


def passages(text: str, marks: Sequence[tuple[int, int, str]]) -> list[dict[str, object]]:
    """The parts of `text` around its marks (start, end, kind), in order; each with the marks that stand in it.

    Parts that touch one another are one. Without a mark the beginning of the text is shown.
    """
    borders: list[tuple[int, int]] = []
    for start, end, _ in sorted(marks) or [(0, 0, "")]:
        begin, stop = max(0, start - AROUND), min(len(text), end + AROUND)
        if borders and begin <= borders[-1][1]:
            begin, stop = borders[-1][0], max(stop, borders.pop()[1])
        borders.append((begin, stop))
    return [
        {
            "text": text[begin:stop],
            "start": begin,
            "marks": [
                {"start": start - begin, "end": end - begin, "kind": kind}
                for start, end, kind in sorted(marks)
                if begin <= start and end <= stop
            ],
        }
        for begin, stop in borders
    ]
