from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings

from bertrelay.encoder import Projection, SentenceEncoder
from bertrelay.stage import StageContext
from students import build as room
from students.build import start_student
from students.parallel.corpus import ParallelCorpus
from students.settings import DistillSettings
from students.targets import Targets, fill_targets

MakeEncoder = Callable[..., SentenceEncoder]

NEW = {"layers": 2, "dim": 24, "heads": 2, "vocabulary": 150, "max_tokens": 32}
COPY = {"layers_of": "teacher", "vocabulary": 150}


@pytest.fixture
def corpus(toy: Any, tmp_path: Path) -> ParallelCorpus:
    return toy.corpus(tmp_path / "corpora")


@pytest.fixture
def make_teacher(tiny_encoder: MakeEncoder, toy: Any) -> Callable[..., SentenceEncoder]:
    return lambda **parts: tiny_encoder("bert", [english for english, *_ in toy.train], **parts)


def settings(base: Any, **given: Any) -> DistillSettings:
    source = {"path": "train.tsv", "others": {"de": "de"}}
    return DistillSettings.model_validate({"teacher": "./teacher", "base": base, "parallel": [source], **given})


def begin(
    base: Any, corpus: ParallelCorpus, teacher: SentenceEncoder, context: StageContext, **given: Any
) -> tuple[SentenceEncoder, Targets]:
    targets = fill_targets(teacher, corpus, context, "key", "fp32")
    return start_student(settings(base, **given), corpus, teacher, targets, context).student, targets


def error_at_the_start(student: SentenceEncoder, corpus: ParallelCorpus, targets: Targets) -> float:
    """The loss over all items: 1 for the mean vector, 0 for the teacher."""
    vectors = student.eval().encode(corpus.texts(0, len(corpus)), precision="fp32").astype(np.float64)
    wanted = targets.vectors[corpus.targets[:]].astype(np.float64)
    distances = ((vectors - wanted) ** 2).sum(axis=1)
    return float(np.average(distances, weights=corpus.weights[:]) / targets.variance)


# Unit-norm teachers


def test_the_student_of_a_unit_norm_teacher_ends_in_a_normalisation(
    corpus: ParallelCorpus, make_teacher: Callable[..., SentenceEncoder], context: StageContext, tmp_path: Path
) -> None:
    student, targets = begin(COPY, corpus, make_teacher(normalize=True), context)
    assert targets.is_unit and student.normalize and student.projection is None
    student.save(tmp_path / "student")
    vectors = SentenceEncoder.load(tmp_path / "student").encode(corpus.texts(0, 20), precision="fp32")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


def test_sinusoids_begin_where_an_xlmr_begins_to_count(
    corpus: ParallelCorpus, make_teacher: Callable[..., SentenceEncoder], context: StageContext
) -> None:
    student, _ = begin({**NEW, "positions": "sinusoidal"}, corpus, make_teacher(normalize=True), context)
    table = student.backbone.get_parameter("embeddings.position_embeddings.weight")
    expected = torch.empty(32, 24)
    create_sinusoidal_embeddings(32, 24, expected)
    assert table.shape == (34, 24)  # two that no token has
    assert torch.allclose(table[2:] / table[2, 1], expected, atol=1e-5)  # the cosine of 0 is 1


def test_where_sizes_differ_a_projection_is_learnt_and_saved(
    corpus: ParallelCorpus, make_teacher: Callable[..., SentenceEncoder], context: StageContext, tmp_path: Path
) -> None:
    student, targets = begin(NEW, corpus, make_teacher(normalize=True), context)
    assert student.projection is not None and student.normalize
    assert (student.pooled_dim, student.dim) == (24, 16)
    assert all(weight.requires_grad for weight in student.projection.parameters())
    assert error_at_the_start(student, corpus, targets) < 1
    student.save(tmp_path / "student")
    again = SentenceEncoder.load(tmp_path / "student")
    texts = corpus.texts(0, 20)
    np.testing.assert_array_equal(again.encode(texts, precision="fp32"), student.encode(texts, precision="fp32"))


# Other teachers


def ridge_by_hand(pooled: np.ndarray, wanted: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least squares with the penalty as further rows, solved by numpy."""
    share = weights / weights.sum()
    centre, wanted_centre = share @ pooled, share @ wanted
    x, y = (np.sqrt(share)[:, None] * part for part in (pooled - centre, wanted - wanted_centre))
    penalty = room.RIDGE * np.sum(x**2) / pooled.shape[1]
    rows = np.concatenate([x, np.sqrt(penalty) * np.eye(pooled.shape[1])])
    solution, *_ = np.linalg.lstsq(rows, np.concatenate([y, np.zeros((pooled.shape[1], y.shape[1]))]), rcond=None)
    return solution.T, wanted_centre - centre @ solution


@pytest.mark.parametrize("unit_norm", [False, True])
def test_the_projection_begins_as_the_ridge_regression_from_the_pooled_vectors(
    corpus: ParallelCorpus, make_teacher: Callable[..., SentenceEncoder], context: StageContext, unit_norm: bool
) -> None:
    student, targets = begin(NEW, corpus, make_teacher(normalize=unit_norm), context)
    bare = SentenceEncoder(student.backbone, student.tokenizer, max_tokens=student.max_tokens)
    pooled = bare.encode(corpus.texts(0, len(corpus)), precision="fp32").astype(np.float64)
    wanted = targets.vectors[corpus.targets[:]].astype(np.float64)
    weight, bias = ridge_by_hand(pooled, wanted, corpus.weights[:])
    assert student.projection is not None
    np.testing.assert_allclose(student.projection.linear.weight.detach(), weight, atol=1e-4 * abs(weight).max())
    np.testing.assert_allclose(student.projection.linear.bias.detach(), bias, atol=1e-4 * abs(bias).max())


@pytest.mark.parametrize("base", [NEW, COPY])
def test_the_student_of_any_other_teacher_begins_with_an_error_of_at_most_1(
    corpus: ParallelCorpus, make_teacher: Callable[..., SentenceEncoder], context: StageContext, base: dict[str, Any]
) -> None:
    large = Projection(16, 16)
    with torch.no_grad():
        large.linear.weight.mul_(30)
        large.linear.bias.fill_(50.0)  # long vectors, far from the origin
    student, targets = begin(base, corpus, make_teacher(projection=large), context)
    assert not targets.is_unit and not student.normalize
    assert error_at_the_start(student, corpus, targets) <= 1


def test_a_projection_of_the_base_is_replaced_and_not_learnt_on_top_of(
    corpus: ParallelCorpus,
    make_teacher: Callable[..., SentenceEncoder],
    tiny_encoder: MakeEncoder,
    context: StageContext,
    tmp_path: Path,
) -> None:
    texts = corpus.texts(0, len(corpus))
    dense = Projection(16, 8, activation=nn.Tanh())
    tiny_encoder("xlm-roberta", texts, projection=dense).save(tmp_path / "base")
    student, targets = begin(str(tmp_path / "base"), corpus, make_teacher(), context)
    assert student.projection is not None
    assert (student.projection.linear.in_features, student.dim) == (16, 16)
    assert error_at_the_start(student, corpus, targets) <= 1


# What a student is made of


def test_a_new_student_has_the_size_asked_for_and_pieces_of_every_language(
    corpus: ParallelCorpus, make_teacher: Callable[..., SentenceEncoder], context: StageContext, toy: Any
) -> None:
    student, _ = begin(NEW, corpus, make_teacher(), context)
    config = student.backbone.config
    assert (config.model_type, config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (
        "xlm-roberta", 2, 24, 96,
    )  # fmt: skip
    assert len(student.tokenizer) <= 150
    unknown = student.tokenizer.unk_token_id
    assert not any(unknown in ids for row in toy.train for ids in student.tokenize(row))


def test_the_seed_decides_a_new_students_weights(
    corpus: ParallelCorpus, make_teacher: Callable[..., SentenceEncoder], context: StageContext
) -> None:
    teacher = make_teacher(normalize=True)
    first, same, other = (begin(NEW, corpus, teacher, context, seed=seed)[0] for seed in (1, 1, 2))
    for name, weight in first.backbone.state_dict().items():
        assert torch.equal(weight, same.backbone.state_dict()[name])
    words = "embeddings.word_embeddings.weight"
    assert not torch.equal(first.backbone.state_dict()[words], other.backbone.state_dict()[words])


def test_a_pretrained_base_keeps_its_weights_and_pooling_and_may_lose_layers(
    corpus: ParallelCorpus,
    make_teacher: Callable[..., SentenceEncoder],
    tiny_encoder: MakeEncoder,
    context: StageContext,
    tmp_path: Path,
) -> None:
    base = tiny_encoder("xlm-roberta", corpus.texts(0, len(corpus)), layers=4, pooling=["cls"])
    base.save(tmp_path / "base")
    given = {"layers": 2, "dropout": 0.25, "max_tokens": 7}
    student, _ = begin(str(tmp_path / "base"), corpus, make_teacher(normalize=True), context, **given)
    old, new = base.backbone.state_dict(), student.backbone.state_dict()
    for kept, layer in ((0, 0), (1, 3)):
        name = "encoder.layer.{}.output.dense.weight"
        assert torch.equal(new[name.format(kept)], old[name.format(layer)])
    assert student.backbone.config.num_hidden_layers == 2
    assert (student.pooling.modes, student.max_tokens) == (("cls",), 7)
    assert {part.p for part in student.backbone.modules() if isinstance(part, nn.Dropout)} == {0.25}


def test_of_a_large_corpus_the_vocabulary_reads_sentences_evenly_spread(
    corpus: ParallelCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = corpus.texts(0, len(corpus))
    assert list(room._vocabulary_texts(corpus)) == texts
    monkeypatch.setattr(room, "VOCABULARY_SENTENCES", 150)
    monkeypatch.setattr(room, "READ_AT_ONCE", 16)
    assert list(room._vocabulary_texts(corpus)) == texts[::4]  # 600 sentences
