"""The start of a student, of each kind of base."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings

from bertrelay.device import ComputePrecision
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Projection
from students.distill import start as module
from students.distill.head import Regression
from students.distill.settings import DistillSettings
from students.distill.start import start_student
from students.distill.targets import fill_targets
from students.teacher import OpenedTeacher

NEW = {"layers": 2, "dim": 24, "heads": 2, "vocabulary": 150, "max_tokens": 32}
COPY = {"layers_of": "teacher", "vocabulary": 150}


@pytest.fixture
def corpus(toy, tmp_path):
    return toy.corpus(tmp_path / "corpora")


@pytest.fixture
def make_teacher(tiny_encoder, toy):
    return lambda **parts: tiny_encoder("bert", [english for english, *_ in toy.train], **parts)


def settings(base, **more):
    source = {"path": "train.tsv", "others": {"de": "de"}}
    return DistillSettings.model_validate({"teacher": "./teacher", "base": base, "parallel": [source], **more})


def begin(base, corpus, teacher, context, **more):
    shutil.rmtree(context.work / "start", ignore_errors=True)  # of another student
    teacher = OpenedTeacher(teacher)
    targets = fill_targets(teacher, corpus, context, ComputePrecision.FP32)
    return start_student(settings(base, **more), corpus, teacher, targets, context, ComputePrecision.FP32)[0], targets


def test_sinusoids_begin_where_an_xlmr_begins_to_count(corpus, make_teacher, context):
    student, _ = begin({**NEW, "positions": "sinusoidal"}, corpus, make_teacher(normalize=True), context)
    table = student.backbone.get_parameter("embeddings.position_embeddings.weight")
    expected = torch.empty(32, 24)
    create_sinusoidal_embeddings(32, 24, expected)
    assert table.shape == (34, 24)  # two that no token has
    assert torch.allclose(table[2:] / table[2, 1], expected, atol=1e-5)  # the cosine of 0 is 1


@pytest.mark.parametrize("kind", ["new", "pretrained", "new of another scale"])
def test_the_projection_begins_as_the_ridge_regression_from_the_pooled_vectors(
    corpus, make_teacher, tiny_encoder, context, tmp_path, kind
):
    """A pretrained base has its singular values raised to the power 1/4, at the scale of least error."""
    base, penalty = NEW, 1.0
    if kind == "pretrained":
        base, penalty = str(tmp_path / "base"), 0.01
        sizes = {"hidden_size": 24, "num_attention_heads": 2}
        tiny_encoder("xlm-roberta", corpus.texts(0, len(corpus)), sizes=sizes).save(base)
    student, targets = begin(base, corpus, make_teacher(normalize=not kind.endswith("scale")), context)
    bare = SentenceEncoder(student.backbone, student.tokenizer, max_tokens=student.max_tokens)
    pooled = bare.encode(corpus.texts(0, len(corpus)), precision="fp32").astype(np.float64)
    teacher = targets.vectors[corpus.targets[:]].astype(np.float64)
    fractions = corpus.weights[:] / corpus.weights[:].sum()
    pooled_mean, teacher_mean = fractions @ pooled, fractions @ teacher
    x, y = (np.sqrt(fractions)[:, None] * part for part in (pooled - pooled_mean, teacher - teacher_mean))
    # Least squares with the penalty as further rows, solved by numpy.
    more = np.sqrt(penalty * np.sum(x**2) / 24) * np.eye(24)
    solution, *_ = np.linalg.lstsq(np.concatenate([x, more]), np.concatenate([y, np.zeros((24, 16))]), rcond=None)
    weight = solution.T  # (dim, pooled)
    if kind == "pretrained":
        left, values, right = np.linalg.svd(weight, full_matrices=False)
        softened = left @ np.diag(values**0.25) @ right
        scale, *_ = np.linalg.lstsq((x @ softened.T).reshape(-1, 1), y.reshape(-1), rcond=None)
        weight = scale * softened
    assert student.normalize == targets.is_unit == (not kind.endswith("scale"))
    linear, bias = student.projection.linear, teacher_mean - weight @ pooled_mean
    np.testing.assert_allclose(linear.weight.detach(), weight, atol=1e-4 * abs(weight).max())
    np.testing.assert_allclose(linear.bias.detach(), bias, atol=1e-4 * abs(bias).max())


def test_softening_evens_out_what_the_corpus_hardly_shows():
    """The example of `fit_linear_head`."""
    cross = np.diag([16.0, 1.0])
    fit = Regression(cross, np.zeros(2), np.zeros(2), np.eye(2), cross)
    np.testing.assert_allclose(fit.softened, np.diag([13.2, 6.6]))


def test_a_projection_of_the_base_is_replaced_and_not_learnt_on_top_of(
    corpus, make_teacher, tiny_encoder, context, tmp_path
):
    texts = corpus.texts(0, len(corpus))
    dense = Projection(16, 8, activation=nn.Tanh())
    tiny_encoder("xlm-roberta", texts, projection=dense).save(tmp_path / "base")
    student, _ = begin(str(tmp_path / "base"), corpus, make_teacher(), context)
    assert (student.projection.linear.in_features, student.dim) == (16, 16)


def test_a_new_student_has_its_size_pieces_of_every_language_and_a_projection(corpus, make_teacher, context, toy):
    student, _ = begin(NEW, corpus, make_teacher(normalize=True), context)
    config = student.backbone.config
    sizes = (config.model_type, config.num_hidden_layers, config.hidden_size, config.intermediate_size)
    assert sizes == ("xlm-roberta", 2, 24, 96)
    assert len(student.tokenizer) <= 150
    unknown = student.tokenizer.unk_token_id
    assert not any(unknown in ids for row in toy.train for ids in student.tokenize(row))
    assert student.normalize and (student.pooled_dim, student.dim) == (24, 16)
    assert all(weight.requires_grad for weight in student.projection.parameters())


def test_a_pretrained_base_keeps_its_weights_and_pooling_and_may_lose_layers(
    corpus, make_teacher, tiny_encoder, context, tmp_path
):
    base = tiny_encoder("xlm-roberta", corpus.texts(0, len(corpus)), layers=4, pooling=["cls"])
    base.save(tmp_path / "base")
    smaller = {"layers": 2, "dropout": 0.25, "max_tokens": 7}
    student, _ = begin(str(tmp_path / "base"), corpus, make_teacher(normalize=True), context, **smaller)
    old, new = base.backbone.state_dict(), student.backbone.state_dict()
    name = "encoder.layer.{}.output.dense.weight"
    same = [[torch.equal(new[name.format(left)], old[name.format(layer)]) for layer in range(4)] for left in (0, 1)]
    first, second = (is_same.index(True) for is_same in same)
    assert first < second
    assert student.backbone.config.num_hidden_layers == 2
    assert (student.pooling.modes, student.max_tokens) == (("cls",), 7)
    assert {part.p for part in student.backbone.modules() if isinstance(part, nn.Dropout)} == {0.25}


def test_of_a_large_corpus_the_vocabulary_reads_sentences_evenly_spread(corpus, monkeypatch):
    texts = corpus.texts(0, len(corpus))
    assert list(module._sample(corpus)) == texts
    monkeypatch.setattr(module, "VOCABULARY_SENTENCES", 150)
    assert list(module._sample(corpus)) == texts[::4]  # 600 sentences


def test_a_start_is_made_once_and_read_again_bit_for_bit(corpus, make_teacher, tiny_encoder, context, toy, monkeypatch):
    base = context.cache.folder / "base"
    tiny_encoder("xlm-roberta", [text for row in toy.train for text in row]).save(base)
    chosen, teacher = settings(str(base), trim_vocabulary=True, layers=1, dropout=0.3), OpenedTeacher(make_teacher())
    targets = fill_targets(teacher, corpus, context, ComputePrecision.FP32)
    first, sizes = start_student(chosen, corpus, teacher, targets, context, ComputePrecision.FP32)
    monkeypatch.setattr("students.distill.start.trim_vocabulary", None)  # would fail if it were called
    again, same_sizes = start_student(chosen, corpus, teacher, targets, context, ComputePrecision.FP32)
    assert sizes == same_sizes and sizes["layers/after"] == 1
    assert first.state_dict().keys() == again.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())
    assert first.tokenize(["two cats"]) == again.tokenize(["two cats"])
    assert {module.p for module in again.backbone.modules() if isinstance(module, torch.nn.Dropout)} == {0.3}
