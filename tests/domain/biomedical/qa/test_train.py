"""A tiny BERT learns to find answers: in later windows, across their edges, at the end, and that there is none."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic_questions import WORDS, ask, find_answers, many, random_question, stopped_and_resumed, write

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError, WorkError
from bertrelay.stage import StageContext
from domain.biomedical.qa import train as training
from domain.biomedical.qa.data import Answer, Question
from domain.biomedical.qa.metrics import score
from domain.biomedical.qa.model import load_model, start_model
from domain.biomedical.qa.settings import QaSettings
from domain.biomedical.qa.subwords import PairSplitter, gold_spans
from domain.biomedical.qa.train import QaDevSet, QaTask

LEARNING = {
    "max_tokens": 40,
    "overlap": 26,
    "max_answer_tokens": 5,
    "epochs": 8,
    "batch_tokens": 512,
    "learning_rate": 3e-3,
    "precision": "fp32",
    "seed": 3,
}


def learn(folder, base, **more):
    (folder / "output").mkdir(parents=True, exist_ok=True)
    settings = QaSettings.model_validate({**LEARNING, "base": str(base), **more})
    return training.run(settings, StageContext(folder / "output", Cache(folder / "cache")))


@pytest.fixture(scope="module")
def learnt(tiny_bert, tmp_path_factory):
    """A trained model and the metrics of its training."""
    folder = tmp_path_factory.mktemp("learnt")
    train, dev = write(folder / "train.jsonl", many(300, 1)), write(folder / "dev.jsonl", many(60, 2))
    more = {"epochs": 6, "learning_rate": 4e-3, "evaluate_every": 10_000}  # once, at the end
    metrics = learn(folder, tiny_bert, train=[train], dev=[dev], **more)
    return load_model(folder / "output" / "model"), metrics


def test_two_processes_that_share_an_evaluation_find_what_one_does(tiny_bert, tmp_path, evaluated_twice):
    train, dev = write(tmp_path / "train.jsonl", many(40, 1)), write(tmp_path / "dev.jsonl", many(31, 2))
    metrics_of_both = evaluated_twice("domain.biomedical.qa.train")
    learn(tmp_path, tiny_bert, train=[train], dev=[dev], epochs=1)
    [(alone, shared)] = metrics_of_both
    assert shared == alone and 0 < alone["dev/f1"] < 1


def exact_match(model, questions):
    queries = [ask(question.question, question.context) for question in questions]
    candidates = find_answers(model, queries, precision="fp32")
    answers = [
        question.context[best.start : best.end] if best.start >= 0 else ""
        for question, (best, *_) in zip(questions, candidates, strict=True)
    ]
    right = [score(answer, question.gold_texts, "2.0") for answer, question in zip(answers, questions, strict=True)]
    return float(np.mean([measured.exact_match for measured in right]))


PLACES = {
    "beyond the first window": (45, WORDS, None),
    "over its edge": (24, 36, "type two diabetes"),
    "at the very end": (WORDS, WORDS + 1, None),
}
"""The fewest words before the answer, one more than the most, and the answer."""


@pytest.mark.parametrize("where", PLACES)
def test_answers_are_found_wherever_they_are(learnt, where):
    model, generator, (low, high, mention) = learnt[0], np.random.default_rng(5), PLACES[where]
    drawn = [random_question(generator, str(n), int(generator.integers(low, high)), mention) for n in range(200)]
    subwords = PairSplitter(model.tokenizer)(drawn)
    windows, text_ends = subwords.windows(model.max_tokens, model.overlap), np.cumsum(subwords.contexts.lengths)
    edges = windows.ends[np.unique(windows.sequences, return_index=True)[1]]  # of the first window of each text
    firsts, ends = np.array([span for (span,) in gold_spans(drawn, subwords)]).T
    is_there = {
        "beyond the first window": firsts >= edges,
        "over its edge": (firsts < edges) & (edges < ends),
        "at the very end": ends == text_ends,
    }[where]
    questions = [drawn[number] for number in np.flatnonzero(is_there)][:40]
    assert len(questions) >= 15
    assert exact_match(model, questions) >= 0.95


def test_that_there_is_no_answer_is_learnt(learnt):
    model, metrics = learnt
    assert exact_match(model, many(40, 7, impossible=1.0)) >= 0.95
    assert exact_match(model, many(40, 8, impossible=0.0)) >= 0.95
    assert metrics["dev/no_answer/exact_match"] >= 0.9
    assert model.threshold == metrics["threshold"]
    assert model.temperature == metrics["temperature"]


def question(context, *answers, text="mild", **more):
    """A question with answers where their text first stands."""
    golds = tuple(Answer(answer, context.index(answer)) for answer in answers)
    return Question("q", text, context, golds, file="q.jsonl", line=1, **more)


def task_of(tiny_bert, questions, rejects=None, **more):
    values = {**LEARNING, "base": str(tiny_bert), "train": [{"path": "none.jsonl"}], **more}
    settings = QaSettings.model_validate(values)
    model = start_model(settings)
    model.network.eval()
    return QaTask(model, settings, questions, [], rejects or Rejects(None, 1.0), ComputePrecision.FP32)


LONG = " ".join(["the patient of"] * 11 + ["gout"] + ["no sign"] * 8 + ["flu"] + ["seen"] * 12)


def test_a_window_teaches_each_answer_that_it_holds_and_one_without_any_that_there_is_none(tiny_bert):
    task = task_of(tiny_bert, [question(LONG, "gout", "flu")])
    everything = np.arange(len(task.window_lengths))
    batch = task.collate(everything, 0)
    assert batch.counts == {"answer": len(everything)}
    tokenizer = task.qa_model.tokenizer
    gout, flu = (tokenizer.convert_tokens_to_ids(word) for word in ("gout", "flu"))
    for row in everything:
        ids = batch.inputs["input_ids"][row]
        starts = [int((ids == number).nonzero()[0, 0]) for number in (gout, flu) if number in ids]
        taught = [pair for pair in batch.inputs["answers"][row].tolist() if pair[0] >= 0]
        assert taught == [[start, start] for start in sorted(starts or [0])]
    assert batch.inputs["answers"].shape[1] == 2


def test_a_loss_is_minus_the_logarithm_of_what_all_right_answers_have_together(tiny_bert):
    task = task_of(tiny_bert, [question("the patient of gout and type two diabetes", "gout", "type two diabetes")])
    batch = task.collate(np.array([0]), 0)
    network, tokenizer = task.qa_model.network.network, task.qa_model.tokenizer
    encoded = tokenizer("mild", "the patient of gout and type two diabetes", return_tensors="pt")
    logits = network(**encoded)
    choices = [0, *range(3, len(encoded["input_ids"][0]) - 1)]  # not the question, not what frames it
    starts, ends = (torch.softmax(scores[0, choices], 0) for scores in (logits.start_logits, logits.end_logits))
    expected = -torch.log(starts[4] * ends[4] + starts[6] * ends[8])
    torch.testing.assert_close(task.loss(task.model, batch)["answer"], expected)


def test_gradients_do_not_depend_on_how_windows_are_batched(tiny_bert):
    task = task_of(tiny_bert, [question(LONG, "gout"), question("the patient of gout", "gout"), *many(3, 5)])
    everything = np.arange(len(task.window_lengths))

    def gradients(batches):
        task.model.zero_grad()
        for items in batches:
            task.loss(task.model, task.collate(items, 0))["answer"].backward()
        return [weight.grad.clone() for weight in task.model.parameters() if weight.grad is not None]

    for one, other in zip(gradients([everything]), gradients(np.split(everything, len(everything))), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_so_many_windows_without_an_answer_are_drawn_anew_for_each_epoch(tiny_bert):
    questions = [question(LONG, "flu"), question(LONG, impossible=True)]
    everything = task_of(tiny_bert, questions)
    task = task_of(tiny_bert, questions, empty_windows=1)
    answered = int(everything.is_answered.sum())
    drawn = {tuple(task._items(epoch).tolist()) for epoch in range(10)}
    assert len(drawn) > 1
    assert all(len(items) == answered + 2 for items in drawn)
    assert all(set(np.flatnonzero(task.is_answered)) <= set(items) for items in drawn)
    assert task._items(3).tolist() == task_of(tiny_bert, questions, empty_windows=1)._items(3).tolist()
    assert len(task.lengths(0)) == answered + 2
    batch = task.collate(np.arange(answered + 2), 0)
    assert int((batch.inputs["answers"][:, 0] == 0).all(dim=1).sum()) == 2


def test_characters_of_answers_become_subwords_also_inside_words_and_beyond_the_basic_plane(tiny_bert):
    context = "𝒳é the patient of gout, no İ sign\u00a0flu"
    task = task_of(tiny_bert, [question(context, "gout", "patient of", " sign\u00a0", "out", "flu")])
    contexts = task.subwords.contexts
    spans = {context[contexts.starts[first] : contexts.ends[end - 1]] for first, end in task.golds[0]}
    assert spans == {"gout", "patient of", "sign", "flu"}


def test_questions_that_cannot_be_learnt_are_rejected_by_id_or_left_out(tiny_bert, tmp_path, capsys):
    faults = {
        "a question so long": question(LONG, "flu", text="mild given " * 13),
        "no window holds whole": question(LONG, LONG[5:230]),
        "an answer without subwords": question("\x01\x02 the patient", "\x01\x02"),
    }
    with Rejects(tmp_path / "rejects.jsonl", 1.0) as rejects:
        questions = [replace(fault, id=reason) for reason, fault in faults.items()]
        rejects.used(8)  # as reading them counts
        task = task_of(tiny_bert, [*many(5, 1), question(LONG), *questions], rejects)  # one has no known answer
    assert task.questions == 5
    assert set(task.windows.sequences.tolist()) == set(range(5))
    assert "nothing to train on in 1 of 9 questions" in capsys.readouterr().err
    listed = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert all(reject["record"] in reject["reason"] and "patient" not in json.dumps(reject) for reject in listed)
    assert len(listed) == 3
    train = write(tmp_path / "train.jsonl", [*many(20, 1), questions[0]])
    with pytest.raises(WorkError, match=r"1 of 21 records cannot be used.*a question so long"):
        learn(tmp_path, tiny_bert, train=[train], epochs=1)


def test_questions_of_dev_that_are_in_train_are_refused_and_contexts_counted(tiny_bert, tmp_path, capsys):
    train = many(20, 1)
    dev = [replace(train[0], question="what else had flu"), *many(4, 2)]
    metrics = learn(
        tmp_path,
        tiny_bert,
        train=[write(tmp_path / "a.jsonl", train)],
        dev=[write(tmp_path / "b.jsonl", dev)],
        epochs=1,
    )
    shared = {question.context for question in train} & {question.context for question in dev}
    assert metrics["dev_contexts_in_train"] == len(shared) >= 1
    assert f"contexts, {len(shared)} in train too" in capsys.readouterr().err
    again = write(tmp_path / "c.jsonl", [*dev, train[3], train[5]])
    with pytest.raises(RequestError, match="dev: expected questions that are not in train, found 2 of 7 that are"):
        learn(tmp_path, tiny_bert, train=[write(tmp_path / "a.jsonl", train)], dev=[again], epochs=1)


def test_stopped_and_resumed_it_ends_with_the_same_weights(tiny_bert, tmp_path):
    train, dev = write(tmp_path / "train.jsonl", many(20, 1)), write(tmp_path / "dev.jsonl", many(12, 2))
    options = {"train": [train], "dev": [dev], "epochs": 2, "empty_windows": 1}
    whole, resumed = stopped_and_resumed(lambda folder: learn(folder, tiny_bert, **options), tmp_path)
    assert whole.keys() >= {"model.safetensors", "qa.json"}
    assert whole == resumed


def test_without_impossible_questions_there_is_always_an_answer_and_without_dev_no_calibration(
    tiny_bert, tmp_path, capsys
):
    train = write(tmp_path / "train.jsonl", many(10, 1, impossible=0.0))
    learn(tmp_path, tiny_bert, train=[train], epochs=1)
    assert "there is no dev data: the probabilities of this model are not calibrated" in capsys.readouterr().err
    model = load_model(tmp_path / "output" / "model")
    assert model.threshold is None
    (candidates,) = find_answers(model, [ask("mild", LONG)], precision="fp32")
    assert all(candidate.start >= 0 for candidate in candidates)


def test_what_dev_data_cannot_do_is_reported(tiny_bert, capsys):
    model = start_model(QaSettings.model_validate({**LEARNING, "base": str(tiny_bert), "train": [{"path": "none"}]}))
    splitter, long = PairSplitter(model.tokenizer), question(LONG, "flu", text="mild given " * 13)
    QaDevSet([*many(5, 2), long], model, splitter, ComputePrecision.FP32).tuned(model)
    reported = capsys.readouterr().err
    assert (
        "dev: 1 questions count as not answered, 'q' the first: too long: with special tokens it must fit into the 26"
        in reported
    )
    assert "probabilities are not calibrated: expected at least 20 dev examples" in reported
    with pytest.raises(RequestError, match="dev: expected questions with answers"):
        QaDevSet([question(LONG)], model, splitter, ComputePrecision.FP32)
