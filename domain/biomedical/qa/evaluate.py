"""The stage `domain.qa-evaluate`: a model's answers as they are, scored on files of questions."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertrelay.data.records import Rejects
from bertrelay.evaluation.calibration import expected_calibration_error
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.files import atomic_write, write_json
from bertrelay.hardware import default_device
from bertrelay.progress import progress
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.qa import bioasq
from domain.biomedical.qa.answerer import QuestionInput, log_too_long, predict_blocks
from domain.biomedical.qa.decoding import Floats, NBest, Pools, with_no_answer
from domain.biomedical.qa.metrics import (
    FactoidScore,
    Score,
    ScoredText,
    best_answers,
    factoid_metrics,
    factoid_scores,
    golds_by_pool,
    scores,
    squad_metrics,
)
from domain.biomedical.qa.model import AnswerModel, load_model
from domain.biomedical.qa.question_files import question_format_of
from domain.biomedical.qa.questions import Question, Synonyms
from domain.biomedical.qa.settings import QaEvaluateSettings, QuestionSource
from domain.biomedical.qa.subwords import Golds, PairSplitter, count_long_answers, read_all
from domain.sentences import sentence_spans

FACTOID_METRICS = {"strict_accuracy": "strict", "lenient_accuracy": "lenient", "mrr": "reciprocal_rank"}
"""The metrics of BioASQ's evaluator, and the fields of a question's score that they are the means of."""
EXAMPLES_KEPT = 12
"""Questions answered right, and answered wrong, that are kept for the report; of each so many."""
AROUND = 400
"""Characters of a text that are kept before and after an example's answer."""


class Choice(NamedTuple):
    """What may be the answer: characters [start, end) of the text of question `asked`; −1 and −1 for none."""

    text: str
    asked: int
    start: int
    end: int
    score: float
    probability: float


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
        return {question.id: best[0].text for question, best in zip(self.pools.scored, self.choices, strict=True)}


def run(settings: QaEvaluateSettings, context: StageContext) -> Metrics:
    """Writes `predictions.json`, `nbest.jsonl`, `slices.json` and `examples.json`; the main process does it alone.

    Of sensitive data nothing is written that holds its text or ids, unless the settings ask for it.
    """
    if not context.process_group.is_main:
        return {}
    model = load_model(settings.model, cache_dir=context.cache / "hub")
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        questions = read_all(settings.test, rejects)
    model.network.to(default_device())
    found = answered(model, Pools.of(questions), settings.precision, settings.batch_tokens)
    score_of = scores(found.answers, found.pools.scored)
    shown = _examples(found, score_of)
    if context.sensitive and not settings.with_text:
        shown = {name: [] for name in shown}
    else:
        write_json(context.output / "predictions.json", found.answers)
        _write_nbest(found, context)
    write_json(context.output / "slices.json", slices(_placed(found), score_of))
    write_json(context.output / "examples.json", shown, compact=True)
    published = {f"published_{name}": value for name, value in settings.published.items()}
    metrics = {
        **_squad(found, score_of),
        **_bioasq(found, _golds_in(settings.test)),
        **_baseline(found.pools),
        **_calibration(found, score_of),
    }
    return {**metrics, **published, **_counts(model, found)}


def answered(model: AnswerModel, pools: Pools, precision: str, batch_tokens: int | None) -> AnswerPredictions:
    """What `model` answers to the questions of `pools`; one that is too long is logged, and has no answer."""
    asked = [QuestionInput(each.question, each.context, each.id) for each in pools.asked]
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
    log_too_long(model, refused)
    return _read_off(model, pools, NBest(*map(np.concatenate, zip(*parts, strict=True))))


def _read_off(model: AnswerModel, pools: Pools, spans: NBest) -> AnswerPredictions:
    choices = with_no_answer(pools.nbest(spans), model.threshold)
    calibrated, uncalibrated = (choices.probabilities(each) for each in (model.temperature, 1.0))
    columns = (*choices, calibrated)
    rows = zip(pools.texts(choices), *(column.tolist() for column in columns), strict=True)
    found = [[Choice(*each) for each in zip(*row, strict=False)] for row in rows]  # those beyond the texts are none
    return AnswerPredictions(pools, spans, found, calibrated[:, 0], uncalibrated[:, 0])


def _squad(found: AnswerPredictions, score_of: Mapping[str, Score]) -> Metrics:
    """Exact match and F1 with intervals over questions: over all, and where some are impossible, of both kinds."""
    metrics: Metrics = {}
    exact = squad_metrics(score_of, found.pools.scored)
    impossible = {question.id for question in found.pools.scored if question.impossible}
    groups = {
        "": set(score_of),
        "has_answer/": score_of.keys() - impossible,
        "no_answer/": score_of.keys() & impossible,
    }
    for prefix, names in groups.items():
        for name in Score._fields:
            if prefix + name in exact:
                values = np.array([getattr(each, name) for key, each in score_of.items() if key in names])
                metrics |= with_interval(prefix + name, share, values)
    return {**metrics, **exact, "scored": len(score_of)}


def _bioasq(found: AnswerPredictions, in_files: Mapping[str, Sequence[Synonyms]]) -> Metrics:
    """The metrics of BioASQ with intervals over questions, where there are questions of its kind.

    in_files: the gold answers that the files have, by id; those that could not be asked count as not answered.
    """
    golds = {**golds_by_pool(found.pools.asked), **in_files}
    if not golds:
        return {}
    answers = {name: best_answers(texts) for name, texts in _texts(found).items()}
    score_of = factoid_scores({name: each for name, each in answers.items() if each}, golds)
    nothing = FactoidScore(0.0, 0.0, 0.0)
    groups = {
        "": [each for each in score_of.values() if each is not None],
        "with_unanswered/": [each or nothing for each in score_of.values()],
    }
    metrics: Metrics = {}
    for prefix, known in groups.items():
        for metric, field in FACTOID_METRICS.items():
            metrics |= with_interval(prefix + metric, share, np.array([getattr(each, field) for each in known]))
    return {**metrics, **factoid_metrics(score_of)}


def _texts(found: AnswerPredictions) -> dict[str, list[ScoredText]]:
    """Every span that was kept of any of its texts, by the question's id: what is equal is joined before it is cut."""
    texts: dict[str, list[ScoredText]] = {question.id: [] for question in found.pools.scored}
    spans, pools = found.spans, found.pools
    rows, ranks = np.nonzero(spans.scores > -np.inf)
    columns = (each[rows, ranks].tolist() for each in (spans.starts, spans.ends, spans.scores))
    for row, start, end, score in zip(rows.tolist(), *columns, strict=True):
        texts[pools.scored[pools.pool_of[row]].id].append(ScoredText(pools.asked[row].context[start:end], score))
    return texts


def _golds_in(sources: Sequence[QuestionSource]) -> dict[str, tuple[Synonyms, ...]]:
    """The gold answers of every question in BioASQ's own files: a question without snippets is not read, and counts."""
    files = [source.path for source in sources if (source.format or question_format_of(Path(source.path))) == "bioasq"]
    return {name: golds for path in files for name, golds in bioasq.golds_in(Path(path)).items()}


def _placed(found: AnswerPredictions) -> list[Question]:
    """The scored questions with the right answers of the text answered from, else of the first text that has one."""
    members: dict[int, list[int]] = {}
    for asked, pool in enumerate(found.pools.pool_of.tolist()):
        members.setdefault(pool, []).append(asked)
    placed = []
    for number, (question, choices) in enumerate(zip(found.pools.scored, found.choices, strict=True)):
        answered_from = [choices[0].asked] if choices[0].start >= 0 else []
        texts = [found.pools.asked[place] for place in [*answered_from, *members[number]]]
        text = next((each for each in texts if each.answers), question)
        placed.append(replace(question, context=text.context, answers=text.answers))
    return placed


def _baseline(pools: Pools) -> Metrics:
    """Exact match and F1 of answering each question with the first sentence of its text."""
    firsts: dict[str, str] = {}
    for context in {question.context for question in pools.scored}:
        start, end = next(iter(sentence_spans(context)), (0, 0))
        firsts[context] = context[start:end]
    found = scores({question.id: firsts[question.context] for question in pools.scored}, pools.scored)
    return {f"first_sentence/{name}": value for name, value in squad_metrics(found, pools.scored).items()}


def _calibration(found: AnswerPredictions, score_of: Mapping[str, Score]) -> Metrics:
    """How far probabilities are from the share of exact matches, with the model's temperature and without."""
    is_right, known = np.array([each.exact_match == 1 for each in score_of.values()], bool), found.pools.known
    return {
        "ece": expected_calibration_error(found.confidences[known], is_right),
        "ece_uncalibrated": expected_calibration_error(found.uncalibrated[known], is_right),
    }


def _counts(model: AnswerModel, found: AnswerPredictions) -> Metrics:
    """What there was to answer."""
    asked = found.pools.asked
    subwords = PairSplitter(model.tokenizer)([each.question for each in asked], [each.context for each in asked])
    return {
        "questions": len(found.pools.scored),
        "texts": len(subwords.contexts.lengths),
        "longest_text_pieces": int(subwords.contexts.lengths.max(initial=0)),
        "beyond_max_answer_tokens": count_long_answers(asked, Golds.of(asked, subwords), model.max_answer_tokens),
        "answered": sum(best[0].text != "" for best in found.choices),
    }


def _write_nbest(found: AnswerPredictions, context: StageContext) -> None:
    """A line for each question: its id and its choices; `context` is the text of a pool that one is from."""
    with (
        atomic_write(context.output / "nbest.jsonl") as building,
        building.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for question, choices in zip(found.pools.scored, found.choices, strict=True):
            listed = [_candidate_row(choice, question, found.pools) for choice in choices]
            file.write(json.dumps({"id": question.id, "nbest": listed}, ensure_ascii=False) + "\n")


def _candidate_row(choice: Choice, question: Question, pools: Pools) -> dict[str, object]:
    row = choice._asdict()
    asked = pools.asked[row.pop("asked")].id
    return row if asked == question.id or choice.start < 0 else {**row, "context": asked}


def _examples(found: AnswerPredictions, score_of: Mapping[str, Score]) -> dict[str, list[dict[str, object]]]:
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
        name: [_example(found, place) for place in spread_evenly(places, EXAMPLES_KEPT)]
        for name, places in among.items()
    }


def spread_evenly(places: Sequence[int], most: int) -> list[int]:
    """At most so many of them, from the first to the last part."""
    kept = min(most, len(places))
    return [places[number * len(places) // kept] for number in range(kept)]


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
        "answer": best.text,
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


FIFTHS = 5
Slice = dict[str, str | float | None]


def slices(questions: Sequence[Question], score_of: Mapping[str, Score]) -> dict[str, list[Slice]]:
    """`answer_words` and `position`, each a list of slices in order: `name`, `questions`, `exact_match` and `f1`.

    Of questions with an answer in the text alone, by the first one in their file.
    """
    known = [question for question in questions if question.answers and question.id in score_of]
    ways: dict[str, Callable[[Question], str]] = {"answer_words": _words, "position": _position}
    return {name: _of(known, score_of, way) for name, way in ways.items()}


def _words(question: Question) -> str:
    """How many words the right answer has: 1, 2–3, 4–7, …"""
    low = 1 << (max(1, len(question.answers[0].text.split())).bit_length() - 1)
    return "1 word" if low == 1 else f"{low}–{2 * low - 1} words"


def _position(question: Question) -> str:
    """In which fifth of the text the right answer begins."""
    fifth = question.answers[0].start * FIFTHS // len(question.context)
    return f"{100 * fifth // FIFTHS}–{100 * (fifth + 1) // FIFTHS} %"


def _of(questions: Sequence[Question], score_of: Mapping[str, Score], way: Callable[[Question], str]) -> list[Slice]:
    members: dict[str, list[Score]] = {}
    for question in questions:
        members.setdefault(way(question), []).append(score_of[question.id])
    in_order = sorted(members.items(), key=lambda item: int(item[0].replace("–", " ").split()[0]))
    return [{"name": name, "questions": len(found), **_slice_metrics(found)} for name, found in in_order]


def _slice_metrics(found: Sequence[Score]) -> Metrics:
    metrics: Metrics = {}
    for name in Score._fields:
        metrics |= with_interval(name, share, np.array([getattr(score, name) for score in found]))
    return metrics
