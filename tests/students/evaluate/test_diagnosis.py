"""Planted failures of students are named, with what to try; sound trainings have none."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist

from bertrelay.model.families import family_of, unlike_family
from bertrelay.model.layout import Prompts
from bertrelay.model.pooling import Projection
from students.distill.settings import DistillSettings
from students.distill.train import run as distill
from students.evaluate.diagnosis import diagnose, gain_metrics
from students.evaluate.settings import EvaluateSettings
from students.evaluate.spread import spread
from students.evaluate.stage import run as evaluate
from students.evaluate.verdicts import of_failures, of_student
from students.parallel.soundness import template_fraction


def texts_of(metrics):
    return [text for _, text in of_failures(metrics)]


@pytest.fixture
def teacher(tiny_encoder, toy, tmp_path):
    """A teacher whose tokenizer knows English words, in a folder named as one of a family with prompts."""
    english = [row[0] for row in (*toy.train, *toy.test)]
    folder = tmp_path / "e5_small"
    tiny_encoder("bert", english * 5, normalize=True, prompts=Prompts({"question": "query: "})).save(folder)
    return folder


def train(context, teacher, source, **changes):
    options = {"learning_rate": 1e-3, "dev_sentences": 20, "precision": "fp32", "batch_tokens": 512, **changes}
    settings = {"teacher": str(teacher), "parallel": [source], **options}
    return distill(DistillSettings.model_validate(settings), context)


def test_a_sound_training_has_no_failure(context, toy, teacher, tiny_encoder, tmp_path):
    texts = [text for row in (*toy.train, *toy.test) for text in row]
    tiny_encoder("xlm-roberta", texts, sizes={"hidden_size": 32}).save(tmp_path / "base")
    metrics = train(context, teacher, toy.source(), teacher_prompt="question", base=str(tmp_path / "base"), epochs=1)
    assert of_failures(metrics) == []
    assert {
        "corpus/template",
        "corpus/english_fit/de",
        "gain/accuracy/fr",
        "dev/spread/cosine/teacher",
    } <= metrics.keys()


def test_swapped_sides_repeated_pairs_and_a_wrong_prompt_are_named_together(context, toy, teacher, tmp_path, capsys):
    rows = [(row[1], row[0]) for row in toy.train] * 10
    (tmp_path / "swapped.tsv").write_text("en\tde\n" + "".join(f"{de}\t{en}\n" for de, en in rows))
    source = {"path": str(tmp_path / "swapped.tsv"), "others": {"de": "de"}}
    metrics = train(context, teacher, source, base={"layers": 1, "dim": 16, "heads": 2, "vocabulary": 200})
    prompt, swapped, repeated, *_ = texts_of(metrics)
    assert prompt.startswith("the teacher has not the prompt of its family (set teacher_prompt")
    assert swapped.startswith("English and de seem to be swapped")
    assert repeated.startswith("up to 90% of the pairs in de only repeat others")
    errors = capsys.readouterr().err
    assert "E5 models expect the prompt 'query: ' or 'passage: ' before each text, found ''" in errors
    assert f"warn: {swapped}" in errors
    assert swapped in of_student(metrics).comparison


def test_a_constant_student_fails_and_a_flat_one_does(context, tiny_encoder, toy, tmp_path):
    rows = [*toy.train, *toy.test]
    torch.manual_seed(0)
    constant = Projection(16, 16)
    with torch.no_grad():
        constant.linear.weight.mul_(1e-3)
    texts = [text for row in rows for text in row]
    tiny_encoder("xlm-roberta", texts, projection=constant).save(tmp_path / "student")
    tiny_encoder("bert", [row[0] for row in rows], pooling=["max"]).save(tmp_path / "teacher")
    settings = {"model": str(tmp_path / "student"), "parallel": [toy.source("test")], "precision": "fp32"}
    for teacher in ({}, {"teacher": str(tmp_path / "teacher")}):
        metrics = evaluate(EvaluateSettings.model_validate({**settings, **teacher}), context)
        verdict = of_student(metrics)
        assert verdict.level == "fail"
        assert "the vectors of en, de and fr have collapsed: the mean cosine of different" in verdict.text
        assert "try a lower learning_rate" in verdict.comparison
    flat = {"spread/dimensions/de": 2.0, "spread/dimensions/en": 40.0, "spread/dimensions/teacher": 60.0}
    assert diagnose(flat)[0].text.startswith("the vectors of de use 2.0 dimensions only, the teacher's 60.0")


def test_spread_is_the_mean_cosine_and_the_participation_ratio():
    vectors = np.random.default_rng(1).normal(size=(40, 8)) + 1
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    eigenvalues = np.linalg.eigvalsh(np.cov(directions.T))
    expected = {
        "cosine": 1 - pdist(vectors, "cosine").mean(),
        "dimensions": eigenvalues.sum() ** 2 / (eigenvalues**2).sum(),
    }
    assert spread(vectors.astype(np.float32)) == pytest.approx(expected, rel=1e-5)
    few = vectors[:5].astype(np.float32)  # fewer vectors than dimensions
    eigenvalues = np.linalg.eigvalsh(np.cov(directions[:5].T))
    assert spread(few)["dimensions"] == pytest.approx(eigenvalues.sum() ** 2 / (eigenvalues**2).sum(), rel=1e-4)
    assert spread(few[:1]) == {"cosine": None, "dimensions": None}
    assert spread(np.eye(4, dtype=np.float32)) == pytest.approx({"cosine": 0, "dimensions": 3})


def test_a_template_is_the_same_frequent_words_around_rare_ones():
    names = [f"{chr(97 + n % 26)}x{chr(97 + n // 26)}" for n in range(90)]
    listed = [f"Add {name} to the {number} lists." for number, name in enumerate(names)]
    assert template_fraction([*listed, *names[:10]]) == 0.9
    assert template_fraction(names) == 0
    assert diagnose({"corpus/template": 0.9})[0].text.startswith("90% of the English sentences are one template")


def test_a_language_without_gain_is_named_unless_it_is_right_anyway():
    start = {"dev/mse_relative/en": 0.9, "dev/nearness/cosine/en": 0.5}
    for language in ("de", "ko", "fr"):
        start |= {f"dev/mse_relative/{language}": 0.9, f"dev/nearness/cosine/{language}": 0.5}
        start |= {f"dev/translation_accuracy/{way}": 0.7 for way in (f"en-{language}", f"{language}-en")}
    end = {**start, "dev/nearness/cosine/de": 0.6, "dev/translation_accuracy/en-ko": 0.6, "dev/nearness/cosine/ko": 0.4}
    for metrics in (start, end):
        metrics |= {"dev/translation_accuracy/en-fr": 0.97, "dev/translation_accuracy/fr-en": 0.97}
    gains = gain_metrics(start, end)
    assert gains["gain/accuracy/ko"] == pytest.approx(-0.05) and gains["gain/cosine/de"] == pytest.approx(0.1)
    (text,) = texts_of(end | gains)
    assert text.startswith("ko did not gain from the training")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("intfloat/multilingual-e5-small", "E5"),
        ("/models/multilingual_e5_small", "E5"),
        ("BAAI/bge-m3", "BGE"),
        ("sentence-transformers/all-mpnet-base-v2", "sentence-transformers' models"),
        ("Qwen/Qwen3-Embedding-0.6B", "Qwen3 Embedding"),
        ("intfloat/multilingual-e5-large-instruct", None),
        ("runs/student/latest/model", None),
    ],
)
def test_a_family_is_known_by_the_name_of_a_model(name, family):
    assert getattr(family_of(name), "name", None) == family


def test_another_pooling_than_the_familys_is_named(tiny_encoder):
    encoder = tiny_encoder("bert", ["a dog"] * 9)
    assert unlike_family("BAAI/bge-m3", encoder) == {"pooling": "BGE models pool by cls, found mean"}
    assert unlike_family("multilingual-e5-small", encoder, "query: ") == {}
    assert diagnose({"family/base_pooling": 1})[0].text.startswith("the base has not the pooling of its family")
