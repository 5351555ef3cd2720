"""Prompts of teacher and student: in training, in saved models and in evaluation."""

import json

import numpy as np
import pytest
import torch

from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import Prompts
from bertrelay.model.pooling import Pooling
from bertrelay.stage import StageContext
from students.compress.settings import ShrinkSettings
from students.distill import train as distill
from students.distill.settings import DistillSettings
from students.distill.start import student_prompts
from students.distill.targets import fill_targets
from students.evaluate import stage as evaluate
from students.evaluate.settings import EvaluateSettings
from students.teacher import OpenedTeacher

PROMPT = "one dog: "
TRAINING = {"epochs": 1, "precision": "fp32", "dev_sentences": 20, "learning_rate": 1e-3, "layers": 1}


@pytest.fixture(scope="module")
def teacher(tiny_encoder, toy):
    prompts = Prompts({"query": "the fish ", "title": "no cat sings "}, default="title")
    return tiny_encoder("bert", [row[0] for row in toy.train], prompts=prompts, normalize=True)


@pytest.fixture(scope="module")
def base(tiny_encoder, toy):
    texts = [text for row in toy.train for text in row]
    prompts = Prompts({"passage": PROMPT})
    return tiny_encoder("xlm-roberta", texts, pooling=Pooling(["mean"], include_prompt=False), prompts=prompts)


@pytest.fixture
def sources(teacher, base, toy, tmp_path):
    for name, encoder in (("teacher", teacher), ("base", base)):
        encoder.save(tmp_path / name)
    return {
        "teacher": str(tmp_path / "teacher"),
        "base": str(tmp_path / "base"),
        "parallel": [toy.source()],
        **TRAINING,
    }


def run(sources, context, **more):
    distill.run(DistillSettings.model_validate({**sources, **more}), context)
    return SentenceEncoder.load(context.output / "model")


def test_targets_are_the_teachers_vectors_after_the_prompt_and_cached(teacher, toy, context, tmp_path, monkeypatch):
    corpus = toy.corpus(tmp_path)
    english = corpus.english.read(0, len(corpus.english))
    for prompt in (None, "the fish ", "a dog? "):
        vectors = fill_targets(OpenedTeacher(teacher, prompt), corpus, context, ComputePrecision.FP32).vectors
        before = "no cat sings " if prompt is None else prompt  # the default one
        expected = teacher.encode([before + sentence for sentence in english], prompt="", precision="fp32")
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
    monkeypatch.setattr(SentenceEncoder, "forward", None)
    cached = fill_targets(OpenedTeacher(teacher, "a dog? "), corpus, context, ComputePrecision.FP32).vectors
    np.testing.assert_array_equal(cached, vectors)


@pytest.mark.parametrize("name", ["passage", None])
def test_a_student_is_trained_and_saved_with_its_prompt(sources, context, toy, monkeypatch, name):
    begun = []
    learn = distill.train
    monkeypatch.setattr(distill, "train", lambda task, *more: (begun.append(step_by_hand(task)), learn(task, *more))[1])
    student = run(sources, context, student_prompt=name or {"text": PROMPT}, teacher_prompt="query")
    [(loss, expected)] = begun
    assert loss == pytest.approx(expected, rel=1e-4)
    assert student.prompts.default == (name or "default")
    assert not student.pooling.include_prompt
    sentences = [row[1] for row in toy.test[:3]]
    plain = student.encode(sentences, precision="fp32")
    for options in ({"prompt": PROMPT}, {"prompt_name": "query"}, {"prompt_name": "document"}):
        np.testing.assert_array_equal(student.encode(sentences, precision="fp32", **options), plain)
    assert np.abs(student.encode(sentences, prompt="", precision="fp32") - plain).max() > 1e-3
    written = json.loads((context.output / "model/config_sentence_transformers.json").read_text())
    assert written["prompts"][written["default_prompt_name"]] == PROMPT


def step_by_hand(task):
    """The loss of the first items before the first step, and that of what `encode` gives of prompt and sentence."""
    items = np.arange(200, 230)
    batch, student = task.collate(items, 0), task.model.eval()
    vectors = student.encode(task.corpus.texts(200, 230), prompt=PROMPT, precision="fp32")
    teacher = task.targets.teacher
    distances = ((vectors - teacher.vectors[task.corpus.targets[items]]) ** 2).sum(axis=1)
    with torch.no_grad():
        return task.loss(student, batch)["mse"].item(), task.corpus.weights[items] @ distances / teacher.variance


@pytest.mark.promise(
    "A student is trained with its prompt, and `encode` uses it, in sentence-transformers too", about="elsewhere"
)
def test_sentence_transformers_uses_the_students_prompt_too(sources, context, toy):
    peer = pytest.importorskip("sentence_transformers")
    student = run(sources, context, student_prompt="passage")
    theirs = peer.SentenceTransformer(str(context.output / "model"), device="cpu")
    sentences = [text for row in toy.test[:5] for text in row]
    np.testing.assert_allclose(student.encode(sentences, precision="fp32"), theirs.encode(sentences), atol=1e-5)
    for one, other in ((student.encode_query, theirs.encode_query), (student.encode_document, theirs.encode_document)):
        np.testing.assert_allclose(one(sentences, precision="fp32"), other(sentences), atol=1e-5)


def test_a_trimmed_student_cuts_sentences_after_its_prompt_as_its_base_does(sources, base, context, toy):
    student = run(sources, context, student_prompt={"text": "zzz: "}, trim_vocabulary=True, dev_sentences=0)
    texts = [f"zzz: {text}" for row in toy.train for text in row]
    encoders = (student, base)
    pieces = [model.tokenizer.convert_ids_to_tokens(ids) for model in encoders for ids in model.tokenize(texts)]
    assert pieces[: len(texts)] == pieces[len(texts) :]


def test_without_a_prompt_of_its_own_a_student_has_none(sources, base):
    assert student_prompts(DistillSettings.model_validate(sources), base) == Prompts()


def test_the_distance_to_a_teacher_is_that_to_its_vectors_after_the_prompt(sources, context, toy, tmp_path):
    """Evaluates the teacher as its own student: the distance is 0 with the same prompt only."""
    english = tmp_path / "english.txt"
    english.write_text("".join(f"{row[0]}\n" for row in toy.test))
    same = {"english": str(english), "other": str(english), "language": "en-x-same"}
    distances = {}
    for prompt in ("query", "title", {"text": "no cat sings "}):
        models = {"model": sources["teacher"], "teacher": sources["teacher"], "teacher_prompt": prompt}
        settings = EvaluateSettings.model_validate({**models, "parallel": [same], "precision": "fp32"})
        distances[str(prompt)] = evaluate.run(settings, StageContext(context.output, context.cache))["mse/en"]
    assert distances["query"] > 1e-4
    assert distances["title"] == distances["{'text': 'no cat sings '}"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"teacher_prompt": "qurey"},
            r"teacher_prompt: expected one of the model's prompts query, title, found 'qurey'",
        ),
        ({"student_prompt": "query"}, r"student_prompt: expected one of the model's prompts passage, found 'query'"),
    ],
)
def test_a_name_that_the_model_has_not_is_refused(sources, context, changes, message):
    with pytest.raises(RequestError, match=message):
        run(sources, context, **changes)


def test_a_name_that_an_evaluated_a_shrunk_or_a_new_model_has_not_is_found_by_the_plan(sources):
    model, base = {"model": sources["teacher"], "prompt": "qurey"}, {"layers": 1, "dim": 16, "heads": 2}
    sizes = {"vocabulary": 500, "max_tokens": 32}
    for kind, settings, key in (
        (EvaluateSettings, {**model, "parallel": sources["parallel"]}, "prompt"),
        (ShrinkSettings, {**model, "corpus": [{"path": "a.txt"}]}, "prompt"),
        (DistillSettings, {**sources, "base": base | sizes, "student_prompt": "qurey"}, "student_prompt"),
    ):
        [(setting, problem)] = kind.model_validate(settings).input_problems()
        assert setting == key and "found 'qurey'" in problem
