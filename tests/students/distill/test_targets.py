import numpy as np
import pytest
import torch

from bertrelay import encode_files
from bertrelay.cache import Cache
from bertrelay.compute.engine import Engine
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.inference.run_model import connect
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.stage import StageContext
from students.distill import targets as module
from students.distill.targets import fill_targets
from students.teacher import OpenedTeacher

WORDS = ["a dog", "two cats", "the bird", "one fish", "a child", "the old man", "some mice", "no horse"]
ENGLISH = [f"{who} {what}." for who in WORDS for what in ("runs", "sleeps here", "reads in the park", "sings")]


@pytest.fixture
def corpus(corpus_of):
    """Sentence i has 1 + i % 3 translations, and English repeats itself with each of them."""
    return corpus_of((english, f"{english[::-1]} {k}") for i, english in enumerate(ENGLISH) for k in range(1 + i % 3))


@pytest.fixture
def teacher(tiny_encoder):
    return tiny_encoder("bert", ENGLISH)


def fill(teacher, corpus, context, executor=None):
    return fill_targets(OpenedTeacher(teacher), corpus, context, ComputePrecision.FP32, executor)


def translations(corpus):
    return np.asarray(corpus.weights[: len(corpus.english)])


def test_row_i_is_the_teachers_vector_of_english_sentence_i(teacher, corpus, context):
    targets = fill(teacher, corpus, context)
    sentences = corpus.english.read(0, len(corpus.english))
    assert sorted(sentences) == sorted(ENGLISH)
    one_by_one = np.concatenate([teacher.encode([sentence], precision="fp32") for sentence in sentences])
    np.testing.assert_allclose(targets.vectors, one_by_one, atol=1e-5)
    stored = targets.vectors.stored
    assert isinstance(stored, np.memmap) and not stored.flags.writeable


@pytest.mark.slow
def test_the_workers_of_a_cluster_compute_the_same(teacher, corpus, context, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(encode_files, "SMALLEST_SHARD", 8)
    by_process = fill(teacher, corpus, context)
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    in_process = "bertrelay.encode_files.encode_blocks"  # workers import the real one
    monkeypatch.setattr(in_process, lambda *_, **__: pytest.fail("encoded in this process"))
    try:
        elsewhere = StageContext(tmp_path / "output", Cache(tmp_path / "elsewhere"))
        with connect(Engine(engine="ray")) as executor:
            by_workers = fill(teacher, corpus, elsewhere, executor)
    finally:
        ray.shutdown()
    np.testing.assert_array_equal(by_workers.vectors, by_process.vectors)


def test_variance_is_the_weighted_mean_squared_distance_to_the_weighted_mean(teacher, corpus, context, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 7)  # several blocks, the last one short
    targets = fill(teacher, corpus, context)
    repeated = np.repeat(np.asarray(targets.vectors, np.float64), translations(corpus), axis=0)
    assert len(repeated) > len(ENGLISH)
    expected = np.mean(np.sum((repeated - repeated.mean(axis=0)) ** 2, axis=1))
    assert targets.variance == pytest.approx(expected, rel=1e-9)


def test_only_a_teacher_that_normalises_is_unit_norm(teacher, corpus, context):
    assert not fill(teacher, corpus, context).is_unit
    unit = SentenceEncoder(teacher.backbone, teacher.tokenizer, normalize=True)
    for precision in (ComputePrecision.FP32, ComputePrecision.BF16):
        targets = fill_targets(OpenedTeacher(unit), corpus, context, precision)
        assert targets.is_unit
        lengths = np.linalg.norm(np.asarray(targets.vectors, np.float64), axis=1)
        assert np.abs(lengths - 1).max() < module.UNIT_TOLERANCE / 1000  # float32 rounding, in either precision
        assert targets.variance == pytest.approx(
            1 - np.sum(np.average(targets.vectors, axis=0, weights=translations(corpus)) ** 2), rel=1e-4
        )


def test_a_vector_a_little_off_length_1_is_not_unit_norm():
    vectors = np.eye(4, dtype=np.float32)
    weights = np.ones(4, np.int32)
    exact = module.targets_of(vectors, weights, "teacher")
    assert (exact.variance, exact.is_unit) == (pytest.approx(0.75), True)
    vectors[2] *= 1.005
    assert not module.targets_of(vectors, weights, "teacher").is_unit


def test_a_teacher_with_one_vector_for_all_sentences_is_refused(teacher, corpus, context):
    with torch.no_grad():
        for name, weight in teacher.named_parameters():
            if "LayerNorm" in name:
                weight.zero_()
    with pytest.raises(RequestError, match="teacher: expected vectors that differ"):
        fill(teacher, corpus, context)
