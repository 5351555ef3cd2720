"""The stage `domain.qa-evaluate`: a model's answers as they are, scored on files of questions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from bertrelay.data.records import Rejects
from bertrelay.data.writing import json_line, write_lines
from bertrelay.device import ComputePrecision, default_device
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.files import atomic_write, write_json
from bertrelay.progress import progress
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.calibration import expected_calibration_error
from domain.biomedical.qa.metrics import Pools, Score, best_answers, factoid_metrics, scores, squad_metrics
from domain.biomedical.qa.model import AnswerModel, load_model
from domain.biomedical.qa.predict import Choice, Choices, NBest, answered_blocks, log_too_long
from domain.biomedical.qa.question_files import bioasq_golds, question_format_of, read_all
from domain.biomedical.qa.questions import Question
from domain.biomedical.qa.settings import QaEvaluateSettings, QuestionSource
from domain.biomedical.qa.subwords import PairSplitter, count_long_answers, gold_spans
from domain.sampling import spread_evenly
from domain.text.sentences import sentence_spans

AROUND = 400
"""Characters of a text that are kept before and after an example's answer."""
FIFTHS = 5


@dataclass(frozen=True)
class AnswerPredictions:
    """What a model answers to the questions that are scored.

    spans: the n-best of what is asked, which pools then share. choices: of each question that is scored, and `ranked`
    the same as a list, best first.
    """

    pools: Pools
    spans: NBest
    choices: Choices
    ranked: list[list[Choice]]

    @property
    def answers(self) -> dict[str, str]:
        """The best choice by the question's id, "" for no answer."""
        best = zip(self.pools.scored, self.ranked, strict=True)
        return {question.id: self.pools.text(*choices[0][:3]) for question, choices in best}


def run(settings: QaEvaluateSettings, context: StageContext) -> Metrics:
    """Writes `predictions.json`, `nbest.jsonl`, `slices.json` and `examples.json`; the main process does it alone.

    Of sensitive data nothing is written that has its text or ids, unless the settings ask for it.
    """
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    model = load_model(settings.model, cache=context.cache)
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        questions = read_all(settings.test, rejects, max_swapped=settings.max_swapped)
    model.network.to(default_device())
    found = _predicted(model, Pools.of(questions), settings, precision)
    answers = found.answers
    score_of = scores(answers, found.pools.scored)
    shown = _examples(found, score_of)
    if context.sensitive and not settings.with_text:
        shown = {name: [] for name in shown}
    else:
        write_json(context.output / "predictions.json", answers)
        _write_nbest(found, context.output / "nbest.jsonl")
    write_json(context.output / "slices.json", slices(_placed(found), score_of))
    write_json(context.output / "examples.json", shown, compact=True)
    subwords = PairSplitter(model.tokenizer)(questions)
    golds = gold_spans(questions, subwords)
    known, is_right = found.pools.known, np.array([score.exact_match == 1 for score in score_of.values()], bool)
    calibration = {
        name: expected_calibration_error(found.choices.probabilities(temperature)[known, 0], is_right)
        for name, temperature in {"ece": model.temperature, "ece_uncalibrated": 1.0}.items()
    }
    return {
        **squad_metrics(score_of, found.pools.scored, intervals=True),
        "scored": len(score_of),
        **_bioasq(found, settings.test),
        **_baseline(found.pools.scored),
        **calibration,
        **{f"published_{name}": value for name, value in settings.published.items()},
        "questions": len(found.pools.scored),
        "texts": len(subwords.contexts.lengths),
        "longest_text_pieces": int(subwords.contexts.lengths.max(initial=0)),
        "beyond_max_answer_tokens": count_long_answers(questions, golds, model.max_answer_tokens),
        "answered": sum(answer != "" for answer in answers.values()),
    }


def _predicted(
    model: AnswerModel, pools: Pools, settings: QaEvaluateSettings, precision: ComputePrecision
) -> AnswerPredictions:
    """What `model` answers; a question that is too long is logged, and has no answer."""
    refused, parts, done = list[Question](), list[NBest](), 0
    options: dict[str, Any] = {"precision": precision, "batch_tokens": settings.batch_tokens}
    with progress("answering", len(pools.asked), "questions") as bar:
        for block, is_too_long, nbest in answered_blocks(model, pools.asked, **options):
            refused += compress(block, is_too_long)
            parts.append(nbest._replace(places=nbest.places + np.array([done, 0, 0])))  # from the texts of a block
            done += len(block)
            bar.advance(len(block))
    log_too_long(model, refused)
    return _of_nbest(model, pools, NBest(*map(np.concatenate, zip(*parts, strict=True))))


def _of_nbest(model: AnswerModel, pools: Pools, spans: NBest) -> AnswerPredictions:
    choices = pools.nbest(spans).with_no_answer(model.threshold)
    return AnswerPredictions(pools, spans, choices, choices.ranked(model.temperature))


# Metrics


def _bioasq(found: AnswerPredictions, sources: Sequence[QuestionSource]) -> Metrics:
    """The metrics of BioASQ with intervals over questions, where there are questions of its kind.

    In BioASQ's own files a question that cannot be asked, without snippets for example, counts as not answered.
    """
    golds = {asked.scored_as: asked.synonyms for asked in found.pools.asked if asked.synonyms}
    for source in sources:
        if (source.format or question_format_of(Path(source.path))) == "bioasq":
            golds |= bioasq_golds(Path(source.path))
    if not golds:
        return {}
    texts = defaultdict[str, list[tuple[str, float]]](list)  # every span: equal ones are joined before the cut
    spans = found.spans.spans()
    for row, (_, start, end), logit in zip(*(column.tolist() for column in spans), strict=True):
        asked = found.pools.asked[row]
        texts[asked.scored_as].append((asked.context[start:end], logit))
    answers = {name: best for name, scored in texts.items() if (best := best_answers(scored))}
    return factoid_metrics(answers, golds, intervals=True)


def _baseline(questions: Sequence[Question]) -> Metrics:
    """Exact match and F1 of answering each question with the first sentence of its text."""
    firsts: dict[str, str] = {}
    for context in {question.context for question in questions}:
        start, end = next(iter(sentence_spans(context)), (0, 0))
        firsts[context] = context[start:end]
    found = scores({question.id: firsts[question.context] for question in questions}, questions)
    return {f"first_sentence/{name}": value for name, value in squad_metrics(found, questions).items()}


# Slices: by the length and the place of the right answer


def _placed(found: AnswerPredictions) -> list[Question]:
    """The scored questions with the right answers of the text answered from, else of the first text that has one."""
    asked, members = found.pools.asked, defaultdict[int, list[Question]](list)
    for question, pool in zip(asked, found.pools.pool_of.tolist(), strict=True):
        members[pool].append(question)
    placed = []
    for number, (question, choices) in enumerate(zip(found.pools.scored, found.ranked, strict=True)):
        answered_from = [asked[choices[0].asked]] if choices[0].start >= 0 else []
        member = next((member for member in [*answered_from, *members[number]] if member.answers), question)
        placed.append(replace(question, context=member.context, answers=member.answers))
    return placed


def slices(questions: Sequence[Question], score_of: Mapping[str, Score]) -> dict[str, list[dict[str, object]]]:
    """`answer_words` and `position`, each a list of slices in order: `name`, `questions`, `exact_match` and `f1`.

    Of questions with an answer in the text alone, by the first one in their file: how many words it has, 1, 2–3, 4–7,
    …, and in which fifth of the text it begins.
    """
    by_words, by_fifth = (defaultdict[int, list[Score]](list) for _ in range(2))
    for question in questions:
        if question.answers and question.id in score_of:
            text, start = question.answers[0]
            by_words[1 << (max(1, len(text.split())).bit_length() - 1)].append(score_of[question.id])
            by_fifth[start * FIFTHS // len(question.context)].append(score_of[question.id])
    words = {low: "1 word" if low == 1 else f"{low}–{2 * low - 1} words" for low in sorted(by_words)}
    fifths = {fifth: f"{100 * fifth // FIFTHS}–{100 * (fifth + 1) // FIFTHS} %" for fifth in sorted(by_fifth)}
    return {
        "answer_words": [_slice(name, by_words[low]) for low, name in words.items()],
        "position": [_slice(name, by_fifth[fifth]) for fifth, name in fifths.items()],
    }


def _slice(name: str, scored: Sequence[Score]) -> dict[str, object]:
    columns = zip(Score._fields, np.array(scored).T, strict=True)
    exact_match, f1 = (with_interval(field, share, values) for field, values in columns)
    return {"name": name, "questions": len(scored), **exact_match, **f1}


# Predictions and examples


def _write_nbest(found: AnswerPredictions, path: Path) -> None:
    """A line for each question: its id and its choices; `context` is the text of a pool that one is from."""

    def row(question: Question, choice: Choice) -> dict[str, Any]:
        asked, values = found.pools.asked[choice.asked].id, choice._asdict()
        del values["asked"]
        context = {} if asked == question.id or choice.start < 0 else {"context": asked}
        return {"text": found.pools.text(*choice[:3]), **values, **context}

    ranked = zip(found.pools.scored, found.ranked, strict=True)
    with atomic_write(path) as building:
        write_lines(
            building,
            (
                json_line({"id": asked.id, "nbest": [row(asked, choice) for choice in choices]})
                for asked, choices in ranked
            ),
        )


def _examples(found: AnswerPredictions, score_of: Mapping[str, Score]) -> dict[str, list[dict[str, object]]]:
    """Questions spread evenly over the data: answered right, and wrong."""
    places: dict[str, list[int]] = {"right": [], "wrong": []}
    for place, question in enumerate(found.pools.scored):
        if score := score_of.get(question.id):
            places["right" if score.exact_match == 1 else "wrong"].append(place)
    return {name: [_example(found, place) for place in spread_evenly(listed)] for name, listed in places.items()}


def _example(found: AnswerPredictions, place: int) -> dict[str, object]:
    """A question, what is right and what was answered, and the text around both as `passages` with their places."""
    question, best = found.pools.scored[place], found.ranked[place][0]
    asked = found.pools.asked[best.asked] if best.start >= 0 else question
    marks = [(answer.start, answer.end, "gold") for answer in asked.answers]
    if best.start >= 0:
        marks.append((best.start, best.end, "answer"))
    return {
        "id": question.id,
        "question": question.question,
        "golds": list(question.gold_texts),
        "answer": found.pools.text(*best[:3]),
        "probability": best.probability,
        "passages": passages(asked.context, marks),
    }


def passages(text: str, marks: Sequence[tuple[int, int, str]]) -> list[dict[str, object]]:
    """The parts of `text` around its marks (start, end, kind), in order; each with the marks inside it.

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
