"""The files and metrics of a model's answers, against counts by hand."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic_questions import ask, find_answers, many, start_answerer, write

from bertrelay.cache import Cache
from bertrelay.device import ComputePrecision
from bertrelay.report import read_report
from bertrelay.stage import StageContext
from domain.biomedical.qa import evaluate as evaluation
from domain.biomedical.qa.data import Answer, Question
from domain.biomedical.qa.evaluate import slices
from domain.biomedical.qa.metrics import Pools, Score
from domain.biomedical.qa.model import save_model
from domain.biomedical.qa.settings import QaEvaluateSettings
from domain.biomedical.qa.spans import Spans, probabilities
from domain.biomedical.qa.subwords import PairSplitter
from domain.biomedical.qa.train import QaDevSet
from domain.sampling import spread_evenly


@pytest.fixture(scope="module")
def model(tiny_bert):
    started = start_answerer(tiny_bert, max_tokens=24, overlap=16, max_answer_tokens=2)
    torch.nn.init.normal_(started.network.network.qa_outputs.weight, generator=torch.Generator().manual_seed(0))
    started.network.eval()
    return replace(started, threshold=0.0, temperature=2.0)


def evaluate(folder, model, questions, **more):
    save_model(model, folder / "model")
    (folder / "scores").mkdir(exist_ok=True)
    written = [write(folder / "test.jsonl", questions)]
    paths = {"model": str(folder / "model"), "precision": "fp32", "test": written}
    settings = QaEvaluateSettings.model_validate({**paths, **more})
    return evaluation.run(settings, StageContext(folder / "scores", Cache(folder / "cache")))


def bare(text):
    """A text of small letters as SQuAD compares it."""
    return " ".join(word for word in text.split() if word not in {"a", "an", "the"})


def word_f1(answer, gold):
    """F1 of the words of two texts, as SQuAD counts them."""
    first, second = Counter(bare(answer).split()), Counter(bare(gold).split())
    return 2 * (first & second).total() / (first.total() + second.total())


def calibration_error(rows):
    """The error of rows (probability, is right) in ten bins of equal width (Naeini, Cooper & Hauskrecht 2015)."""
    gaps = [0.0] * 10
    for probability, is_right in rows:
        gaps[min(int(10 * probability), 9)] += probability - is_right
    return sum(map(abs, gaps)) / len(rows)


def read_nbest(folder):
    lines = (folder / "scores" / "nbest.jsonl").read_text().splitlines()
    return {row["id"]: row["nbest"] for row in map(json.loads, lines)}


def test_answers_are_written_and_scored_as_they_are_given(model, tmp_path):
    questions = many(30, 4, words=12)
    ranked = list(find_answers(model, [ask(q.question, q.context) for q in questions], top=21, precision="fp32"))
    answers = {
        q.id: q.context[best.start : best.end] if best.start >= 0 else ""
        for q, (best, *_) in zip(questions, ranked, strict=True)
    }
    right = next(q for q in questions if answers[q.id] and not q.impossible)  # at least one is
    start = right.context.index(answers[right.id])
    questions[questions.index(right)] = replace(right, answers=(Answer(answers[right.id], start),))
    metrics = evaluate(tmp_path, model, questions)
    assert json.loads((tmp_path / "scores" / "predictions.json").read_text()) == answers
    exact = {True: [], False: []}  # by whether there is an answer
    for q in questions:
        golds = [answer.text for answer in q.answers] or [""]
        exact[bool(q.answers)].append(float(bare(answers[q.id]) in map(bare, golds)))
    for kind, values in (
        ("", [*exact[True], *exact[False]]),
        ("no_answer/", exact[False]),
        ("has_answer/", exact[True]),
    ):
        name = f"{kind}exact_match"
        assert metrics[name] == pytest.approx(np.mean(values))
        assert metrics[f"{name}_low"] <= metrics[name] <= metrics[f"{name}_high"]
    assert (metrics["questions"], metrics["scored"]) == (30, 30)
    assert metrics["answered"] == sum(answer != "" for answer in answers.values())
    for q, expected in zip(questions, ranked, strict=True):
        written = read_nbest(tmp_path)[q.id]
        assert [(row["start"], row["end"]) for row in written] == [candidate[:2] for candidate in expected]
        chances = [candidate.probability for candidate in expected]
        assert [row["probability"] for row in written] == pytest.approx(chances, abs=1e-5)
        texts = [q.context[candidate.start : candidate.end] if candidate.start >= 0 else "" for candidate in expected]
        assert [row["text"] for row in written] == texts
    f1, calibration = read_report(tmp_path / "scores").headlines
    rows = [
        (
            read_nbest(tmp_path)[q.id][0]["probability"],
            bare(answers[q.id]) in ([bare(a.text) for a in q.answers] or [""]),
        )
        for q in questions
    ]
    assert calibration.measure.value == pytest.approx(calibration_error(rows), abs=1e-4)
    values = [
        max(word_f1(answers[q.id], answer.text) for answer in q.answers) if q.answers else answers[q.id] == ""
        for q in questions
    ]
    assert f1.measure.value == pytest.approx(np.mean(values))
    examples = json.loads((tmp_path / "scores" / "examples.json").read_text())
    assert examples["right"]
    for example in [*examples["right"], *examples["wrong"]]:
        marked = [
            p["text"][m["start"] : m["end"]] for p in example["passages"] for m in p["marks"] if m["kind"] == "answer"
        ]
        assert marked == ([example["answer"]] if example["answer"] else [])


def test_the_first_sentence_stands_beside_it(model, tmp_path):
    text = "He has gout. It was seen by the patient."
    questions = [
        Question("1", "mild", text, (Answer("gout", 7),)),
        Question("2", "given", text, (Answer("He has gout.", 0),)),
    ]
    metrics = evaluate(tmp_path, model, questions)
    assert metrics["first_sentence/exact_match"] == 0.5
    assert metrics["first_sentence/f1"] == pytest.approx((2 * (1 / 3) / (1 / 3 + 1) + 1) / 2)


def test_snippets_of_a_question_are_pooled_by_their_scores(model, tmp_path):
    texts = ["the patient of gout", "no sign of flu in the patient", "gout and flu seen after a course"]
    by_question = list(
        find_answers(replace(model, threshold=None), [ask("mild", text) for text in texts], top=20, precision="fp32")
    )
    ranked = sorted(
        (-span.score, text[span.start : span.end])
        for text, spans in zip(texts, by_question, strict=True)
        for span in spans
    )
    answers = list(dict.fromkeys(text for _, text in ranked))[:5]
    golds = ((answers[1].upper(), "no such word"),)
    questions = [
        Question(f"q_{n}", "mild", text, golds=golds[0], pool="q", synonyms=golds) for n, text in enumerate(texts)
    ]
    metrics = evaluate(tmp_path, replace(model, threshold=None), questions)
    assert list(json.loads((tmp_path / "scores" / "predictions.json").read_text()).items()) == [("q", answers[0])]
    assert (metrics["strict_accuracy"], metrics["lenient_accuracy"], metrics["mrr"]) == (0.0, 1.0, 0.5)
    assert metrics["questions"] == 1
    nbest = read_nbest(tmp_path)["q"]
    assert [candidate["text"] for candidate in nbest] == [text for _, text in ranked[:20]]
    for candidate in nbest:
        text = texts[int(candidate["context"][-1])]
        assert text[candidate["start"] : candidate["end"]] == candidate["text"]


def test_right_answers_that_the_model_would_never_give_are_counted(model, tmp_path, capsys):
    text = "the patient of gout and angina pectoris"
    questions = [
        Question("short", "mild", text, (Answer("patient of gout", 4), Answer("gout", 15))),
        Question("long", "mild", text, (Answer("gout and angina pectoris", 15),)),
        Question("too", "mild given " * 12, " ".join([text] * 5), (Answer("gout", 15),)),
    ]
    metrics = evaluate(tmp_path, model, questions)
    assert metrics["beyond_max_answer_tokens"] == 1
    stderr = capsys.readouterr().err
    assert "no right answer to 1 of 3 questions, long the first, has 2 subwords or fewer" in stderr
    assert "1 questions count as not answered, 'too' the first: too long" in stderr
    assert metrics["questions"] == 3
    assert json.loads((tmp_path / "scores" / "predictions.json").read_text())["too"] == ""


def test_equal_texts_of_all_snippets_are_joined_before_five_are_left():
    texts = ["gout " * 20, "flu and asthma"]
    questions = [Question(f"q_{n}", "mild", text, pool="q", synonyms=(("asthma",),)) for n, text in enumerate(texts)]
    gout = Spans([0] * 20, [5 * n for n in range(20)], [5 * n + 4 for n in range(20)], [9.0] * 20, 0.0)
    metrics = evaluation._bioasq(questions, [gout, Spans([0, 0], [0, 8], [3, 14], [2.0, 1.0], 0.0)], [], 0.0)
    assert (metrics["strict_accuracy"], metrics["mrr"]) == (0.0, pytest.approx(1 / 3))  # gout, flu, asthma


def test_a_question_of_bioasq_that_cannot_be_asked_counts_as_not_answered(model, tmp_path):
    text = "the patient of gout"
    (best, *_) = next(find_answers(replace(model, threshold=None), [ask("mild", text)], precision="fp32"))
    right = [[text[best.start : best.end]]]
    factoid = {"type": "factoid", "body": "mild", "exact_answer": right, "snippets": [{"text": text, "document": "d"}]}
    listed = [
        {**factoid, "id": "a"},
        {**factoid, "id": "b", "snippets": []},
        {**factoid, "id": "c", "snippets": [{"text": ""}]},
    ]
    (tmp_path / "b.json").write_text(json.dumps({"questions": [*listed, {**factoid, "id": "d", "type": "list"}]}))
    source = {"path": str(tmp_path / "b.json")}
    metrics = evaluate(tmp_path, replace(model, threshold=None), questions=[], test=[source], max_rejects=1.0)
    assert (metrics["mrr"], metrics["with_unanswered/mrr"]) == (1.0, pytest.approx(1 / 3))
    assert (metrics["unanswered"], metrics["questions"]) == (2, 1)
    assert metrics["with_unanswered/mrr_low"] <= 1 / 3 <= metrics["with_unanswered/mrr_high"]
    sliced = json.loads((tmp_path / "scores" / "slices.json").read_text())
    words, fifth = len(right[0][0].split()), best.start * 5 // len(text)
    assert [part["questions"] for part in sliced["answer_words"]] == [1]
    assert sliced["answer_words"][0]["name"] == ("1 word" if words == 1 else "2–3 words")
    assert [part["name"] for part in sliced["position"]] == [f"{20 * fifth}–{20 * fifth + 20} %"]


def test_a_pool_is_sliced_by_the_text_answered_from_or_the_first_that_has_an_answer():
    texts = {"none": "of flu", "first": "gout of flu", "other": "it was seen in gout"}
    questions = [
        Question(name, "mild", text, (Answer("gout", text.index("gout")),) if "gout" in text else (), pool="q")
        for name, text in texts.items()
    ]

    def context(answered_from):
        ranked = [Spans([answered_from], [0], [2], [1.0], 0.0)]
        (question,) = evaluation._with_answers_of_contexts(Pools.of(questions), ranked)
        return question.context

    assert [context(number) for number in range(3)] == [texts["first"], texts["first"], texts["other"]]


def test_examples_are_spread_evenly():
    assert spread_evenly(range(18), 12) == [0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16]
    assert spread_evenly(range(3), 12) == [0, 1, 2]


def test_slices_are_by_words_and_by_fifths():
    context = "0123456789 " * 10
    cases = {
        "a": (0, "0123", 1.0),
        "b": (21, " 0123456789 01", 0.0),
        "c": (22, "0123456789 0123456789", 1.0),
        "d": (100, "123", 0.5),
    }
    questions = [Question(name, "?", context, (Answer(text, start),)) for name, (start, text, _) in cases.items()]
    score_of = {name: Score(float(f1 == 1), f1) for name, (_, _, f1) in cases.items()}
    parts = slices([*questions, Question("e", "?", context, impossible=True)], {**score_of, "e": Score(1, 1)})
    short = [
        [(part["name"], part["questions"], part["f1"]) for part in parts[way]] for way in ("answer_words", "position")
    ]
    assert short[0] == [("1 word", 2, 0.75), ("2–3 words", 2, 0.5)]
    assert short[1] == [("0–20 %", 2, 0.5), ("20–40 %", 1, 1.0), ("80–100 %", 1, 0.5)]


def test_the_threshold_and_the_temperature_are_the_best_for_dev_questions(model):
    questions = many(60, 6, words=10, impossible=0.5)
    dev = QaDevSet(questions, model, PairSplitter(model.tokenizer), ComputePrecision.FP32)
    spans, tuned = dev._spans(model), dev.tuned(model)

    def mean_f1(threshold):
        return float(np.mean([score.f1 for score in dev.pools.scores_at(spans, threshold).values()]))

    others = [None, -np.inf, *np.quantile([span.gap for span in spans], np.linspace(0, 1, 30))]
    assert mean_f1(tuned.threshold) == pytest.approx(max(mean_f1(tuned.threshold), *map(mean_f1, others)))
    is_right = [score.exact_match == 1 for score in dev.pools.scores_at(spans, tuned.threshold).values()]
    ranked = [span.with_no_answer(tuned.threshold) for span in spans]

    def likelihood(temperature):
        best = probabilities(ranked, temperature)[:, 0].clip(1e-6, 1 - 1e-6)
        return float(np.log(np.where(is_right, best, 1 - best)).mean())

    assert 0 < np.mean(is_right) < 1
    assert all(likelihood(tuned.temperature) >= likelihood(other) - 1e-4 for other in (0.5, 1.0, 2.0, 4.0))
    assert dev.metrics(model)["dev/f1"] == pytest.approx(mean_f1(tuned.threshold))
