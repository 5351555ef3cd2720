"""Every loss of a student and its gradient, against loops in float64 and against sentence-transformers."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from bertrelay.data.tokens import store_tokens
from bertrelay.device import ComputePrecision
from students.distill.losses import LOSSES, BatchPairs, compare_batches, pair_loss
from students.distill.settings import DistillSettings, Objectives, Weight
from students.distill.targets import ItemTargets, Targets
from students.distill.train import DistillationTask, InBatchDistillationTask

PAIRS = [
    ("a dog runs", "ein Hund rennt"),
    ("a dog runs", "un chien court"),
    ("a dog runs", "corre un perro"),
    ("the cat sleeps here", "hier schläft die Katze"),
    ("no bird", "kein Vogel"),
    ("no bird", "aucun oiseau"),
]
ITEMS = np.arange(3 + 6)


@pytest.fixture
def corpus(corpus_of):
    return corpus_of(PAIRS)


@pytest.fixture
def targets(corpus):
    """Three targets of 16 dimensions."""
    vectors = np.random.default_rng(0).normal(size=(len(corpus.english), 16)).astype(np.float32)
    return ItemTargets(corpus, Targets(vectors, 2.5, is_unit=False))


@pytest.fixture
def task_of(tiny_encoder, targets, tmp_path):
    """`task_of(mse=0, cosine=2)`: a training by these objectives."""
    student = tiny_encoder("xlm-roberta", [text for pair in PAIRS for text in pair])
    tokens = store_tokens(targets.corpus.texts, len(targets.corpus), student.tokenize, tmp_path / "tokens")
    source = {"path": "x.tsv", "others": {"qaa": "qaa"}}

    def make(targets=targets, **objectives):
        settings = DistillSettings.model_validate(
            {"teacher": "./t", "base": "./b", "parallel": [source], "objectives": objectives}
        )
        kind = InBatchDistillationTask if compare_batches(settings.objectives) else DistillationTask
        return kind(student, settings, targets, tokens, student.encode, ComputePrecision.FP32)

    return make


class MoreObjectives(Objectives):
    added: Weight = 0.0


def test_a_student_needs_the_weight_of_any_loss_but_retention():
    assert MoreObjectives(mse=0, added=1).added == 1
    with pytest.raises(ValidationError, match="above 0 for mse, cosine, contrastive, ranking or added"):
        MoreObjectives(mse=0, retention=1)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "retention"])
def test_a_temperature_has_an_effect_with_the_losses_that_divide_by_it(name, task_of):
    weights = {"mse": 0.0, name: 1.0}
    divides = hasattr(task_of(**weights).losses[name], "temperature")
    with nullcontext() if divides else pytest.raises(ValidationError, match="temperature: without effect"):
        Objectives(**weights, temperature=0.5)


def normal(rows, seed, dim=16):
    return np.random.default_rng(seed).normal(size=(rows, dim))


def item_loss(task, vectors, name):
    """The loss of all items, where the network gives `vectors`."""
    return task.loss(lambda *_: vectors, task.collate(ITEMS, 0))[name]


def test_mse_and_its_gradient_are_those_of_explicit_pairs(task_of, targets):
    """Σ over pairs |s(en) − t(en)|² + |s(qaa) − t(en)|², in units of the variance."""
    task = task_of()
    sentences = targets.corpus.texts(0, len(ITEMS))
    drawn = normal(len(ITEMS), 1)
    vectors = torch.tensor(drawn, requires_grad=True)
    loss = item_loss(task, vectors, "mse")
    loss.backward()
    expected, gradient = 0.0, np.zeros_like(drawn)
    for pair in PAIRS:
        target = targets.teacher.vectors[sentences.index(pair[0])].astype(np.float64)
        for sentence in pair:
            row = sentences.index(sentence)
            error = drawn[row] - target
            expected += error @ error / 2.5
            gradient[row] += 2 * error / 2.5
    assert task.collate(ITEMS, 0).counts == {"mse": 2 * len(PAIRS)}
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(vectors.grad, gradient, rtol=1e-10)


def test_with_own_vectors_every_text_counts_once_and_learns_its_own(task_of, targets):
    vectors, drawn = normal(len(ITEMS), 2).astype(np.float32), normal(len(ITEMS), 1)
    corpus = replace(targets.corpus, own_vectors=True)
    task = task_of(ItemTargets(corpus, Targets(vectors, 2.5, is_unit=False)))
    assert task.collate(ITEMS, 0).counts == {"mse": len(ITEMS)}
    assert item_loss(task, torch.tensor(drawn), "mse").item() == pytest.approx(((drawn - vectors) ** 2).sum() / 2.5)


def test_cosine_and_weights_of_objectives_by_hand(task_of, targets):
    drawn, task = normal(len(ITEMS), 1), task_of(mse=0.5, cosine=2.0)
    rows, weights = targets.corpus.targets[:], targets.corpus.weights[:]
    expected = targets.teacher.vectors[rows].astype(np.float64)
    cosines = (drawn * expected).sum(axis=1) / np.linalg.norm(drawn, axis=1) / np.linalg.norm(expected, axis=1)
    assert task.collate(ITEMS, 0).counts == {"mse": weights.sum(), "cosine": weights.sum()}
    assert item_loss(task, torch.tensor(drawn), "cosine").item() == pytest.approx(2 * weights @ (1 - cosines))
    squares = 0.5 * weights @ ((drawn - expected) ** 2).sum(axis=1) / 2.5
    assert item_loss(task, torch.tensor(drawn), "mse").item() == pytest.approx(squares)


@pytest.mark.promise("The ranking objective has the values of the divergence in float64", about="exact")
def test_ranking_is_the_divergence_of_softmaxes_over_the_teachers_vectors(task_of, targets):
    """Each sentence ranks the three English sentences."""
    task, drawn = task_of(mse=0, ranking=2.0, temperature=0.2), normal(len(ITEMS), 1)
    vectors = torch.tensor(drawn, requires_grad=True)
    loss = item_loss(task, vectors, "ranking")
    loss.backward()
    teacher = targets.teacher.vectors.astype(np.float64)
    teacher /= np.linalg.norm(teacher, axis=1, keepdims=True)
    rows, weights, expected = targets.corpus.targets[:], np.asarray(targets.corpus.weights[:]), 0.0
    for item, row in enumerate(rows):
        by_teacher, by_student = (
            np.exp(teacher @ vector / np.linalg.norm(vector) / 0.2) for vector in (teacher[row], drawn[item])
        )
        by_teacher, by_student = by_teacher / by_teacher.sum(), by_student / by_student.sum()
        expected += weights[item] * np.sum(by_teacher * np.log(by_teacher / by_student))
    assert task.collate(ITEMS, 0).counts == {"ranking": 2 * len(PAIRS)}
    assert loss.item() == pytest.approx(2 * expected, rel=1e-6)  # the teacher's vectors are float32
    assert item_loss(task, vectors.detach() - 1e-3 * vectors.grad, "ranking") < loss
    assert item_loss(task, torch.tensor(teacher[rows]), "ranking").item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("name", ["cosine", "ranking"])
def test_gradients_are_those_of_differences_in_float64(task_of, name):
    """Compares with central differences of each number of each vector."""
    task, drawn = task_of(mse=0, **{name: 2.0}), normal(len(ITEMS), 1)
    batch = task.collate(ITEMS, 0)
    batch.inputs["targets"] = batch.inputs["targets"].double()

    def loss(vectors):
        return task.loss(lambda *_: vectors, batch)[name]

    vectors = torch.tensor(drawn, requires_grad=True)
    loss(vectors).backward()
    for position in np.ndindex(drawn.shape):
        step = np.zeros_like(drawn)
        step[position] = 1e-6
        ahead, behind = (loss(torch.tensor(drawn + sign * step)).item() for sign in (1, -1))
        assert vectors.grad[position].item() == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-6)


def test_ranking_beside_the_contrastive_loss_is_the_same(task_of):
    """It depends neither on the batch nor on the precision."""
    ranking = {"ranking": 2.0, "candidates": 2}
    by_item, in_batch = task_of(**ranking), task_of(**ranking, contrastive=1.0)
    vectors = torch.from_numpy(normal(len(ITEMS), 2).astype(np.float32))
    whole = in_batch.batch_losses(vectors, ITEMS, 0)["ranking"]
    parts = 0.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for items in np.split(ITEMS, [4, 5]):
            batch = by_item.collate(items, 0)
            parts += by_item.loss(lambda *_, items=items: vectors[items], batch)["ranking"].item()
    assert parts == pytest.approx(whole.item(), rel=1e-5)


def test_contrastive_is_the_mean_over_whole_and_cut_vectors_of_the_pairs(task_of, targets):
    """The English and the translations of a batch come in any order."""
    task = task_of(mse=0, contrastive=3.0, temperature=0.1, dimensions=[4])
    items = np.array([5, 0, 8, 2, 3, 1, 4, 7, 6])
    assert task.collate(items, 0).counts == {"contrastive": 6}
    vectors = torch.from_numpy(normal(len(items), 2))
    row = {text: vectors[items.tolist().index(item)] for item, text in enumerate(targets.corpus.texts(0, 9))}
    expected = 0.0
    for size in (4, 16):
        scores = {
            (english, other): torch.cosine_similarity(row[english][:size], row[other][:size], dim=0) / 0.1
            for english in {english for english, _ in PAIRS}
            for _, other in PAIRS
        }
        for english, other in PAIRS:
            to_english = [score for (_, translation), score in scores.items() if translation == other]
            others = [translation for sentence, translation in PAIRS if sentence != english or translation == other]
            to_other = [scores[english, translation] for translation in others]
            expected += sum(
                torch.logsumexp(torch.stack(part), 0) - scores[english, other] for part in (to_english, to_other)
            )
    assert task.batch_losses(vectors, items, 0)["contrastive"].item() == pytest.approx(3.0 * expected.item() / 2 / 2)


def random_vectors(rows, seed, dim=8):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def assert_equal(ours, theirs, *inputs):
    """Compares values and gradients of two losses."""
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-9)
    gradients = torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs)
    torch.testing.assert_close(*gradients)


def test_the_pairs_of_a_batch_by_hand():
    """The example of the docstring, and one text that translates both sentences."""
    pairs = BatchPairs.find(np.array([4, 9]), ["Open", "Shut"], np.array([4, 4, 9]), ["Offen", "Auf", "Zu"])
    assert pairs.english_rows.tolist() == [0, 0, 1]
    assert pairs.excluded_english.tolist() == [[True, False], [True, False], [False, True]]
    assert pairs.excluded_translations.tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    pairs = BatchPairs.find(np.array([4, 9]), ["Open", "Shut"], np.array([4, 9]), ["Tür", "tür"])
    assert pairs.excluded_english.all() and pairs.excluded_translations.all()


def test_pairs_of_one_english_sentence_each_are_multiple_negatives_in_both_directions():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    english, other = random_vectors(6, 1), random_vectors(6, 2)
    pairs = BatchPairs.find(np.arange(6)[::-1], list("uvwxyz"), np.arange(6), list("abcdef"))
    ours = pair_loss(english.flip(0), other, pairs, 0.05) / 6
    loss = losses.MultipleNegativesRankingLoss(
        None, scale=20, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
    )
    assert_equal(ours, loss.compute_loss_from_embeddings([other, english], None), english, other)


def test_neither_other_translations_nor_equal_texts_are_negatives():
    """Five English sentences, two of one text, with nine translations, three of one text; without case; by loops."""
    english, other, temperature = random_vectors(5, 3), random_vectors(9, 4), 0.1
    english_ids, english_of = np.array([7, 3, 9, 1, 4]), np.array([3, 3, 7, 9, 1, 4, 4, 4, 9])
    sentences, texts = ["Open", "b", "c", "open", "e"], ["a", "b", "c", "A", "d", "a", "f", "g", "h"]
    rows = [english_ids.tolist().index(number) for number in english_of]
    same = [{k for k in range(5) if sentences[k].lower() == sentence.lower()} for sentence in sentences]
    fits = [set().union(*(same[rows[j]] for j in range(9) if texts[j].lower() == text.lower())) for text in texts]
    scores = [[torch.cosine_similarity(a, b, dim=0) / temperature for b in english] for a in other]
    total = torch.zeros((), dtype=torch.float64)
    for i, row in enumerate(rows):
        to_english = [scores[i][e] for e in range(5) if e == row or e not in fits[i]]
        to_others = [scores[j][row] for j in range(9) if j == i or row not in fits[j]]
        total = total + sum(torch.logsumexp(torch.stack(part), 0) - scores[i][row] for part in (to_english, to_others))
    pairs = BatchPairs.find(english_ids, sentences, english_of, texts)
    assert_equal(pair_loss(english, other, pairs, temperature), total / 2, english, other)
