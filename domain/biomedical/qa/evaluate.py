"""The stage `domain.qa-evaluate`: scores a model's answers on files of questions."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertrelay.data.records import Rejects
from bertrelay.data.writing import json_line, write_lines
from bertrelay.device import ComputePrecision, default_device
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.files import atomic_write, write_json
from bertrelay.progress import progress
from bertrelay.report import identity, write_report
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.calibration import expected_calibration_error
from domain.biomedical.qa.bioasq import Gold, bioasq_metrics, exact_answers, gold_of
from domain.biomedical.qa.data import Question
from domain.biomedical.qa.metrics import Pools, Score, scores, squad_metrics
from domain.biomedical.qa.model import AnswerModel, load_model
from domain.biomedical.qa.predict import answer_blocks, log_too_long
from domain.biomedical.qa.question_files import bioasq_golds, question_format_of, read_all
from domain.biomedical.qa.report import evaluation_report
from domain.biomedical.qa.settings import QaEvaluateSettings, QuestionSource
from domain.biomedical.qa.spans import NO_SPANS, Spans, probabilities
from domain.biomedical.qa.subwords import PairSplitter, count_long_answers, gold_spans
from domain.sampling import spread_evenly
from domain.text.sentences import sentence_spans
from domain.text.windows import Floats

AROUND = 400
"""Characters of a text that are kept before and after an example's answer."""
FIFTHS = 5


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
    pools = Pools.of(questions)
    spans = _find_spans(model, questions, settings, precision)
    ranked = [candidates.with_no_answer(model.threshold) for candidates in pools.spans(spans)]
    chances, answers = probabilities(ranked, model.temperature), pools.answers(ranked)
    score_of = scores(answers, pools.scored)
    shown = _examples(pools, ranked, chances, score_of)
    if context.sensitive and not settings.with_text:
        shown = {name: [] for name in shown}
    else:
        write_json(context.output / "predictions.json", answers)
        _write_nbest(pools, ranked, chances, context.output / "nbest.jsonl")
    by_slice = slices(_with_answers_of_contexts(pools, ranked), score_of)
    write_json(context.output / "slices.json", by_slice)
    write_json(context.output / "examples.json", shown, compact=True)
    subwords = PairSplitter(model.tokenizer)(questions)
    golds = gold_spans(questions, subwords)
    is_right = np.array([score.exact_match == 1 for score in score_of.values()], bool)
    calibration = {
        name: expected_calibration_error(probabilities(ranked, temperature)[pools.with_gold, 0], is_right)
        for name, temperature in {"ece": model.temperature, "ece_uncalibrated": 1.0}.items()
    }
    metrics: Metrics = {
        **squad_metrics(score_of, pools.scored, intervals=True),
        "scored": len(score_of),
        **_bioasq(questions, spans, settings.test, model.list_margin),
        **_baseline(pools.scored),
        **calibration,
        **{f"published_{name}": value for name, value in settings.published.items()},
        "questions": len(pools.scored),
        "texts": len(subwords.contexts.lengths),
        "longest_text_tokens": int(subwords.contexts.lengths.max(initial=0)),
        "beyond_max_answer_tokens": count_long_answers(questions, golds, model.max_answer_tokens),
        "answered": sum(answer != "" for answer in answers.values()),
    }
    same_data = identity("f1", [(question.question, question.gold_texts) for question in pools.scored])
    write_report(evaluation_report(metrics, by_slice, shown, same_data), context, with_text=settings.with_text)
    return metrics


def _find_spans(
    model: AnswerModel, questions: Sequence[Question], settings: QaEvaluateSettings, precision: ComputePrecision
) -> list[Spans]:
    """The spans of each question; none of those that are too long, which are logged."""
    refused, all_spans = list[Question](), list[Spans]()
    with progress("answering", len(questions), "questions") as bar:
        for block in answer_blocks(model, questions, precision=precision, batch_tokens=settings.batch_tokens):
            refused += (question for question, spans in block if spans is None)
            all_spans += (spans or NO_SPANS for _, spans in block)
            bar.advance(len(block))
    log_too_long(model, refused)
    return all_spans


def _bioasq(
    questions: Sequence[Question], spans: Sequence[Spans], sources: Sequence[QuestionSource], list_margin: float
) -> Metrics:
    """The metrics of BioASQ with intervals over questions, where there are questions of its kind.

    In BioASQ's own files a question that cannot be asked, without snippets for example, counts as not answered.
    """
    golds = {
        question.scored_as: Gold(question.answer_type, question.synonyms, question.yes)
        for question in questions
        if question.synonyms or question.yes is not None
    }
    for source in sources:
        if (source.format or question_format_of(Path(source.path))) == "bioasq":
            of_file = bioasq_golds(Path(source.path), source.types)
            golds |= {name: gold for name, record in of_file.items() if (gold := gold_of(record))}
    answers = exact_answers(zip(questions, spans, strict=True), list_margin) if golds else {}
    return bioasq_metrics({name: answer for name, answer in answers.items() if answer}, golds, intervals=True)


def _baseline(questions: Sequence[Question]) -> Metrics:
    """Exact match and F1 of answering each question with the first sentence of its text."""
    firsts: dict[str, str] = {}
    for context in {question.context for question in questions}:
        start, end = next(iter(sentence_spans(context)), (0, 0))
        firsts[context] = context[start:end]
    score_of = scores({question.id: firsts[question.context] for question in questions}, questions)
    return {f"first_sentence/{name}": value for name, value in squad_metrics(score_of, questions).items()}


def _with_answers_of_contexts(pools: Pools, ranked: Sequence[Spans]) -> list[Question]:
    """The scored questions with the gold answers of the context answered from, else of the first one that has any."""
    questions = []
    for question, members, spans in zip(pools.scored, pools.members, ranked, strict=True):
        best = [members[spans.contexts[0]]] if spans.starts[0] >= 0 else []
        member = next((member for member in [*best, *members] if member.answers), question)
        questions.append(replace(question, context=member.context, answers=member.answers))
    return questions


def slices(questions: Sequence[Question], score_of: Mapping[str, Score]) -> dict[str, list[dict[str, object]]]:
    """Metrics by length and position of the gold answer, `answer_words` and `position`: lists of slices in order.

    A slice has `name`, `questions`, `exact_match` and `f1`. Only questions with an answer in the text count, by the
    first one in their file: its number of words, 1, 2–3, 4–7, …, and the fifth of the text that it begins in.
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


def _write_nbest(pools: Pools, ranked: Sequence[Spans], chances: Floats, path: Path) -> None:
    """Writes a line for each question: its id and its candidates.

    Where snippets are pooled, `context` is the id of the member of the pool that has the candidate in its context.
    """

    def rows() -> Iterator[dict[str, Any]]:
        for number, (question, spans) in enumerate(zip(pools.scored, ranked, strict=True)):
            candidates = []
            for rank, chance in enumerate(chances[number, : len(spans.scores)].tolist()):
                row: dict[str, Any] = {"text": spans.text(rank, pools.contexts(number)), "start": spans.starts[rank]}
                row |= {"end": spans.ends[rank], "score": spans.scores[rank], "probability": chance}
                member = pools.members[number][spans.contexts[rank]]
                if spans.starts[rank] >= 0 and member.id != question.id:
                    row["context"] = member.id
                candidates.append(row)
            yield {"id": question.id, "nbest": candidates}

    with atomic_write(path) as building:
        write_lines(building, map(json_line, rows()))


def _examples(
    pools: Pools, ranked: Sequence[Spans], chances: Floats, score_of: Mapping[str, Score]
) -> dict[str, list[dict[str, object]]]:
    """Questions spread evenly over the data: answered right, and wrong."""
    numbers: dict[str, list[int]] = {"right": [], "wrong": []}
    for number, question in enumerate(pools.scored):
        if score := score_of.get(question.id):
            numbers["right" if score.exact_match == 1 else "wrong"].append(number)
    return {
        name: [_example(pools, number, ranked[number], float(chances[number, 0])) for number in spread_evenly(listed)]
        for name, listed in numbers.items()
    }


def _example(pools: Pools, number: int, ranked: Spans, chance: float) -> dict[str, object]:
    """A scored question, its gold answers and the model's, and the text around both as `passages`."""
    question, start, end = pools.scored[number], ranked.starts[0], ranked.ends[0]
    shown = pools.members[number][ranked.contexts[0]] if start >= 0 else question
    marks = [(answer.start, answer.end, "gold") for answer in shown.answers]
    if start >= 0:
        marks.append((start, end, "answer"))
    return {
        "id": question.id,
        "question": question.question,
        "golds": list(question.gold_texts),
        "answer": ranked.text(0, pools.contexts(number)),
        "probability": chance,
        "passages": passages(shown.context, marks),
    }


def passages(text: str, marks: Sequence[tuple[int, int, str]]) -> list[dict[str, object]]:
    """The parts of `text` around its marks (start, end, kind), in order, with the marks inside them.

    Parts that touch one another are one. Without a mark it is the beginning of the text.
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
