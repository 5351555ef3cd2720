"""The stage `domain.qa-evaluate`: a model's answers as they are, scored on files of questions."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from bertrelay.data.records import Rejects
from bertrelay.evaluation.calibration import expected_calibration_error
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.files import atomic_write, write_json
from bertrelay.hardware import default_device
from bertrelay.progress import progress
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.qa.answerer import answered_blocks, log_too_long
from domain.biomedical.qa.decoding import Choice, Floats, NBest, Pools
from domain.biomedical.qa.metrics import (
    Score,
    ScoredText,
    best_answers,
    factoid_metrics,
    scores,
    squad_metrics,
)
from domain.biomedical.qa.model import AnswerModel, load_model
from domain.biomedical.qa.question_files import bioasq_golds, question_format_of, read_all
from domain.biomedical.qa.questions import Question, Synonyms
from domain.biomedical.qa.settings import QaEvaluateSettings, QuestionSource
from domain.biomedical.qa.subwords import PairSplitter, count_long_answers, gold_spans
from domain.findings import spread_evenly
from domain.sentences import sentence_spans

EXAMPLES_KEPT = 12
"""Questions answered right, and answered wrong, that are kept for the report; of each so many."""
AROUND = 400
"""Characters of a text that are kept before and after an example's answer."""
FIFTHS = 5


@dataclass(frozen=True)
class AnswerPredictions:
    """What a model answers to the questions that are scored.

    spans: the n-best of what is asked, which pools then share. choices: of each question that is scored, best first.
    confidences, uncalibrated: of the best ones, (questions,).
    """

    pools: Pools
    spans: NBest
    choices: list[list[Choice]]
    confidences: Floats
    uncalibrated: Floats

    @property
    def answers(self) -> dict[str, str]:
        """The best choice by the question's id, "" for no answer."""
        best = zip(self.pools.scored, self.choices, strict=True)
        return {question.id: self.pools.text(*choices[0][:3]) for question, choices in best}


def run(settings: QaEvaluateSettings, context: StageContext) -> Metrics:
    """Writes `predictions.json`, `nbest.jsonl`, `slices.json` and `examples.json`; the main process does it alone.

    Of sensitive data nothing is written that has its text or ids, unless the settings ask for it.
    """
    if not context.process_group.is_main:
        return {}
    model = load_model(settings.model, cache_dir=context.cache / "hub")
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        questions = read_all(settings.test, rejects)
    model.network.to(default_device())
    found = _predicted(model, Pools.of(questions), settings)
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
    return {
        **squad_metrics(score_of, found.pools.scored, intervals=True),
        "scored": len(score_of),
        **_bioasq(found, _golds_in(settings.test)),
        **_baseline(found.pools.scored),
        **_calibration(found, score_of),
        **{f"published_{name}": value for name, value in settings.published.items()},
        "questions": len(found.pools.scored),
        **_counts(model, questions),
        "answered": sum(answer != "" for answer in answers.values()),
    }


def _predicted(model: AnswerModel, pools: Pools, settings: QaEvaluateSettings) -> AnswerPredictions:
    """What `model` answers; a question that is too long is logged, and has no answer."""
    refused, parts, done = list[Question](), list[NBest](), 0
    options: dict[str, Any] = {"precision": settings.precision, "batch_tokens": settings.batch_tokens}
    with progress("answering", len(pools.asked), "questions") as bar:
        for block in answered_blocks(model, pools.asked, **options):
            refused += compress(block.questions, block.is_too_long)
            parts.append(block.nbest._replace(texts=block.nbest.texts + done))
            done += len(block.questions)
            bar.advance(len(block.questions))
    log_too_long(model, refused)
    return _of_nbest(model, pools, NBest(*map(np.concatenate, zip(*parts, strict=True))))


def _of_nbest(model: AnswerModel, pools: Pools, spans: NBest) -> AnswerPredictions:
    choices = pools.nbest(spans).with_no_answer(model.threshold)
    confidences, uncalibrated = (choices.probabilities(each)[:, 0] for each in (model.temperature, 1.0))
    return AnswerPredictions(pools, spans, choices.ranked(model.temperature), confidences, uncalibrated)


# Metrics


def _bioasq(found: AnswerPredictions, in_files: Mapping[str, Sequence[Synonyms]]) -> Metrics:
    """The metrics of BioASQ with intervals over questions, where there are questions of its kind.

    in_files: the gold answers that the files have, by id; those that could not be asked count as not answered.
    """
    golds = {each.scored_as: each.synonyms for each in found.pools.asked if each.synonyms} | dict(in_files)
    if not golds:
        return {}
    texts = defaultdict[str, list[ScoredText]](list)  # every span that was kept: equal ones are joined before the cut
    rows, ranks = np.nonzero(found.spans.scores > -np.inf)
    columns = (each[rows, ranks].tolist() for each in (found.spans.starts, found.spans.ends, found.spans.scores))
    for row, start, end, logit in zip(rows.tolist(), *columns, strict=True):
        asked = found.pools.asked[row]
        texts[asked.scored_as].append(ScoredText(asked.context[start:end], logit))
    answers = {name: best for name, each in texts.items() if (best := best_answers(each))}
    return factoid_metrics(answers, golds, intervals=True)


def _golds_in(sources: Sequence[QuestionSource]) -> dict[str, tuple[Synonyms, ...]]:
    """The gold answers of every question in BioASQ's own files: a question without snippets is not read, and counts."""
    paths = [(Path(source.path), source.format) for source in sources]
    files = [path for path, format_name in paths if (format_name or question_format_of(path)) == "bioasq"]
    return {name: golds for path in files for name, golds in bioasq_golds(path).items()}


def _baseline(questions: Sequence[Question]) -> Metrics:
    """Exact match and F1 of answering each question with the first sentence of its text."""
    firsts: dict[str, str] = {}
    for context in {question.context for question in questions}:
        start, end = next(iter(sentence_spans(context)), (0, 0))
        firsts[context] = context[start:end]
    found = scores({question.id: firsts[question.context] for question in questions}, questions)
    return {f"first_sentence/{name}": value for name, value in squad_metrics(found, questions).items()}


def _calibration(found: AnswerPredictions, score_of: Mapping[str, Score]) -> Metrics:
    """How far probabilities are from the share of exact matches, with the model's temperature and without."""
    is_right, known = np.array([each.exact_match == 1 for each in score_of.values()], bool), found.pools.known
    return {
        "ece": expected_calibration_error(found.confidences[known], is_right),
        "ece_uncalibrated": expected_calibration_error(found.uncalibrated[known], is_right),
    }


def _counts(model: AnswerModel, asked: Sequence[Question]) -> Metrics:
    """What there was to answer."""
    subwords = PairSplitter(model.tokenizer)(asked)
    return {
        "texts": len(subwords.contexts.lengths),
        "longest_text_pieces": int(subwords.contexts.lengths.max(initial=0)),
        "beyond_max_answer_tokens": count_long_answers(asked, gold_spans(asked, subwords), model.max_answer_tokens),
    }


# Slices: by the length and the place of the right answer


def _placed(found: AnswerPredictions) -> list[Question]:
    """The scored questions with the right answers of the text answered from, else of the first text that has one."""
    asked, members = found.pools.asked, defaultdict[int, list[Question]](list)
    for question, pool in zip(asked, found.pools.pool_of.tolist(), strict=True):
        members[pool].append(question)
    placed = []
    for number, (question, choices) in enumerate(zip(found.pools.scored, found.choices, strict=True)):
        answered_from = [asked[choices[0].asked]] if choices[0].start >= 0 else []
        text = next((each for each in [*answered_from, *members[number]] if each.answers), question)
        placed.append(replace(question, context=text.context, answers=text.answers))
    return placed


def slices(questions: Sequence[Question], score_of: Mapping[str, Score]) -> dict[str, list[dict[str, object]]]:
    """`answer_words` and `position`, each a list of slices in order: `name`, `questions`, `exact_match` and `f1`.

    Of questions with an answer in the text alone, by the first one in their file: how many words it has, 1, 2–3, 4–7,
    …, and in which fifth of the text it begins.
    """
    words, fifths = (defaultdict[int, list[Score]](list) for _ in range(2))
    for question in questions:
        if question.answers and question.id in score_of:
            text, start = question.answers[0]
            words[1 << (max(1, len(text.split())).bit_length() - 1)].append(score_of[question.id])
            fifths[start * FIFTHS // len(question.context)].append(score_of[question.id])
    in_words = {low: "1 word" if low == 1 else f"{low}–{2 * low - 1} words" for low in words}
    in_fifths = {fifth: f"{100 * fifth // FIFTHS}–{100 * (fifth + 1) // FIFTHS} %" for fifth in fifths}
    return {
        "answer_words": [_slice(in_words[low], words[low]) for low in sorted(words)],
        "position": [_slice(in_fifths[fifth], fifths[fifth]) for fifth in sorted(fifths)],
    }


def _slice(name: str, found: Sequence[Score]) -> dict[str, object]:
    columns = dict(zip(Score._fields, np.array(found).T, strict=True))
    metrics = [with_interval(field, share, values) for field, values in columns.items()]
    return {"name": name, "questions": len(found), **metrics[0], **metrics[1]}


# Predictions and examples


def _write_nbest(found: AnswerPredictions, path: Path) -> None:
    """A line for each question: its id and its choices; `context` is the text of a pool that one is from."""
    with atomic_write(path) as building, building.open("w", encoding="utf-8", newline="\n") as file:
        for question, choices in zip(found.pools.scored, found.choices, strict=True):
            listed = []
            for choice in choices:
                row = {"text": found.pools.text(*choice[:3]), **choice._asdict()}
                asked = found.pools.asked[row.pop("asked")].id
                listed.append(row if asked == question.id or choice.start < 0 else {**row, "context": asked})
            file.write(json.dumps({"id": question.id, "nbest": listed}, ensure_ascii=False) + "\n")


def _examples(found: AnswerPredictions, score_of: Mapping[str, Score]) -> dict[str, list[dict[str, object]]]:
    """Questions spread evenly over the data: answered right, and wrong."""
    known = [place for place, question in enumerate(found.pools.scored) if question.id in score_of]
    is_right = {place: score_of[found.pools.scored[place].id].exact_match == 1 for place in known}
    among = {
        name: [place for place in known if is_right[place] == right]
        for name, right in (("right", True), ("wrong", False))
    }
    return {
        name: [_example(found, place) for place in spread_evenly(places, EXAMPLES_KEPT)]
        for name, places in among.items()
    }


def _example(found: AnswerPredictions, place: int) -> dict[str, object]:
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
