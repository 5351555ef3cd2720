"""English sentences without translations in training: quotas by hand, draws, losses, the whole stage."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from corpora import aligned, build
from safetensors.torch import load_file

from bertrelay.data.tokens import store_tokens
from bertrelay.device import ComputePrecision
from bertrelay.training import checkpoint
from bertrelay.training.batches import BatchSchedule
from students.distill.epochs import MOST_TIMES, EpochItems, draw_english, source_quotas
from students.distill.settings import DistillSettings
from students.distill.targets import ItemTargets, Targets
from students.distill.train import DistillationTask, InBatchDistillationTask, run

SIZES = [30, 10, 4]
PAIRS = [("a dog runs", "ein Hund rennt"), ("a dog runs", "corre un perro"), ("a cat sleeps", "die Katze schläft")]


@pytest.mark.parametrize(
    ("sizes", "weights", "total", "expected"),
    [
        ([100, 100], [1, 1], 200, [100, 100]),
        ([10_000, 100], [1, 1], 1_100, [1_000, 100]),  # √ of the sizes
        ([10_000, 100], [1, 2.5], 1_000, [800, 200]),
        ([10_000, 100, 4], [1, 1, 1], 1_120, [1_004, 100, 16]),  # four times at most, the rest divided anew
        ([10, 0], [1, 1], 10, [10, 0]),
        ([5, 5], [1, 3], 100, [50, 50]),  # more than four times all: no source gives more than its part
    ],
)
def test_quotas_by_hand(sizes, weights, total, expected):
    assert source_quotas(np.array(sizes), weights, total).tolist() == expected


def test_quotas_add_up_and_no_small_source_outweighs_its_limit():
    random = np.random.default_rng(0)
    for _ in range(200):
        sizes = random.integers(1, 10 ** random.integers(1, 6), random.integers(1, 6))
        total = int(random.integers(1, 4 * sizes.sum() + 1))
        quotas = source_quotas(sizes, random.uniform(0.1, 9, len(sizes)), total)
        assert quotas.sum() == total and (quotas <= MOST_TIMES * sizes + 1).all() and (quotas >= 0).all()


@pytest.fixture
def sources(tmp_path):
    """Three sources of 30, 10 and 4 sentences of 3 to 32 words."""
    made = []
    for number, size in enumerate(SIZES):
        path = tmp_path / f"{'abc'[number]}.txt"
        path.write_text("".join(f"{'abc'[number]} {'so ' * (k + 1)}it is\n" for k in range(size)))
        made.append({"path": str(path)})
    return made


@pytest.fixture
def corpus(tmp_path, sources):
    return build(tmp_path, [aligned(tmp_path, "de", PAIRS)], english=sources)


def test_every_epoch_has_all_pairs_once_and_its_quota_of_each_source(corpus):
    quotas = np.array([12, 7, 6])
    items = EpochItems(corpus, quotas, seed=3)
    others = np.r_[: corpus.translated, len(corpus.english) : len(corpus)]
    first = corpus.translated + np.cumsum([0, *SIZES])
    drawn = [[], [], []]
    for epoch in range(10):
        now = items(epoch)
        assert len(now) == len(others) + quotas.sum()
        np.testing.assert_array_equal(np.sort(now)[: corpus.translated], np.arange(corpus.translated))
        assert set(others) <= set(now)
        np.testing.assert_array_equal(now, EpochItems(corpus, quotas, seed=3)(epoch))  # by the epoch alone
        for source in range(3):
            is_of_source = (now >= first[source]) & (now < first[source + 1])
            assert is_of_source.sum() == quotas[source]
            drawn[source] += now[is_of_source].tolist()
    for source, size in enumerate(SIZES):  # all sentences come once before any comes twice
        counts = np.bincount(np.array(drawn[source]) - first[source], minlength=size)
        assert counts.max() - counts.min() <= 1
    assert set(EpochItems(corpus, quotas, seed=4)(0)) != set(items(0))


def test_sentences_that_no_epoch_comes_to_are_left_out_evenly_over_the_lengths(corpus, tmp_path):
    settings = SimpleNamespace(
        english=[SimpleNamespace(name=name, weight=1.0) for name in "abc"], english_per_epoch=10, epochs=1, seed=0
    )
    smaller, items = draw_english(corpus, settings, tmp_path / "drawn")
    shares = 10 * np.sqrt(SIZES) / np.sqrt(SIZES).sum()  # 5.13, 2.96, 1.87
    assert np.bincount(smaller.english_sources).tolist() == [5, 3, 2] == np.rint(shares).tolist()
    assert sorted(items(0)) == list(range(len(smaller)))
    words = [len(text.split()) for text in smaller.english.read(smaller.translated, smaller.translated + 5)]
    assert words == [7, 13, 19, 25, 31]  # of 4 to 33
    assert [source["drawn"] for source in smaller.facts["english_sources"]] == [5, 3, 2]
    assert (smaller.facts["english_without_translations"], smaller.facts["items"]) == (10, len(smaller))
    settings.english_per_epoch = None
    whole, _ = draw_english(corpus, settings, tmp_path / "other")
    assert len(whole) < len(corpus) and len(whole.english_sources) < sum(SIZES)
    settings.epochs = 9
    assert draw_english(corpus, settings, tmp_path / "third")[0].english is corpus.english


@pytest.fixture
def task_of(tiny_encoder, corpus, tmp_path):
    """`task_of(kind, mse=…)`: a training on the corpus by these objectives, with quotas 12, 7 and 6."""
    student = tiny_encoder("xlm-roberta", list(corpus))
    tokens = store_tokens(corpus.texts, len(corpus), student.tokenize, tmp_path / "tokens")
    vectors = np.random.default_rng(0).normal(size=(len(corpus.english), 16)).astype(np.float32)

    def make(kind=DistillationTask, **objectives):
        settings = DistillSettings.model_validate(
            {"teacher": "./t", "base": "./b", "parallel": [{"path": "x.tsv", "others": {"de": "de"}}]}
            | {"objectives": objectives}
        )
        items = EpochItems(corpus, np.array([12, 7, 6]), 0)
        targets = ItemTargets(corpus, Targets(vectors, 2.5, is_unit=False))
        precision = ComputePrecision.FP32
        return kind(student, settings, targets, tokens, student.encode, precision, epoch_items=items)

    return make


@pytest.mark.parametrize("epoch", [0, 3])
def test_an_english_sentence_learns_the_teachers_vector_of_itself(task_of, corpus, epoch):
    task = task_of()
    positions = np.array([0, 4, 6, 20, 24])  # English with a translation, a translation, and three drawn ones
    items = task.epoch_items(epoch)[positions]
    batch = task.collate(positions, epoch)
    vectors = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 16)))
    loss = task.loss(lambda *_: vectors, batch)["mse"].item()
    texts, english = corpus.texts(0, len(corpus)), corpus.english.read(0, len(corpus.english))
    rows = [english.index(texts[item]) if item < len(english) else corpus.targets[item] for item in items]
    distances = ((vectors.numpy() - task.targets.teacher.vectors[rows]) ** 2).sum(axis=1)
    assert batch.counts == {"mse": 2 + 1 + 3} and (items[2:] >= corpus.translated).all()
    assert loss == pytest.approx(np.array([2, 1, 1, 1, 1]) @ distances / 2.5)
    assert batch.inputs["attention_mask"].sum(dim=1).tolist() == task.tokens.lengths[items].tolist()
    np.testing.assert_array_equal(task.lengths(epoch), task.tokens.lengths[task.epoch_items(epoch)])


def test_in_a_contrast_an_english_sentence_is_one_more_negative(task_of, corpus):
    """InfoNCE by loops: of translations among all English of the batch, and of their English among translations."""
    task = task_of(InBatchDistillationTask, mse=0, contrastive=1.0)
    items = task.epoch_items(0)
    positions = np.flatnonzero(np.isin(items, [0, 1, 2, 3, corpus.taught - 1, corpus.taught - 2, corpus.taught - 3]))
    positions = np.append(positions, len(items) - 1)
    vectors = torch.from_numpy(np.random.default_rng(1).normal(size=(len(positions), 16)))
    loss = task.batch_losses(vectors, positions, 0)["contrastive"].item()
    items = items[positions]
    english = [row for row, item in enumerate(items) if item < len(corpus.english)]
    others = [row for row, item in enumerate(items) if item >= len(corpus.english)]
    cosines = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1).numpy() / 0.05
    expected = 0.0
    for row in others:
        original = next(e for e in english if items[e] == corpus.targets[items[row]])
        negatives = [other for other in others if other == row or corpus.targets[items[other]] != items[original]]
        for scores in (cosines[row, english], cosines[original, negatives]):
            expected += (np.logaddexp.reduce(scores) - cosines[row, original]) / 2
    assert len(english) > 2 and loss == pytest.approx(expected)
    alone = task.batch_losses(vectors[-1:], positions[-1:], 0)["contrastive"].item()
    assert alone == 0 and task.collate(positions[-1:], 0).counts == {"contrastive": 0}


def test_batches_have_each_item_of_the_epoch_and_pairs_together(task_of, corpus):
    task = task_of(InBatchDistillationTask, contrastive=1.0)
    settings = SimpleNamespace(seed=0, batch_tokens=60, batch_items=None, epochs=3)
    schedule = BatchSchedule(task.lengths, settings, task.groups)
    seen = {}
    for step in range(schedule.total_steps):
        epoch, positions = schedule.batch(step)
        seen.setdefault(epoch, []).extend(positions.tolist())
        items = task.epoch_items(epoch)[positions]
        for english in items[items < corpus.translated]:
            translations = np.flatnonzero(corpus.targets[:] == english)
            assert set(translations) <= set(items)
    for epoch, positions in seen.items():
        assert sorted(positions) == list(range(len(task.epoch_items(epoch))))


SETTINGS = {
    "base": {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 200, "max_tokens": 40, "dropout": 0.1},
    "precision": "fp32",
    "batch_tokens": 200,
    "learning_rate": 3e-3,
    "dev_sentences": 20,
    "epochs": 2,
    "checkpoint_every": 4,
    "objectives": {"contrastive": 0.3, "ranking": 1.0, "candidates": 20},
}


@pytest.mark.promise(
    "A killed student that also learns English without translations resumes to the same weights", about="resume"
)
def test_a_student_learns_english_without_translations_and_resumes_to_the_same_weights(
    tiny_encoder, toy, sources, context, tmp_path, kill_at
):
    tiny_encoder("bert", [row[0] for row in toy.train], normalize=True).save(tmp_path / "teacher")
    settings = DistillSettings.model_validate(
        {"teacher": str(tmp_path / "teacher"), "parallel": [toy.source()], "english": sources, **SETTINGS}
    )
    models = []
    for is_killed in (True, False):
        if is_killed:
            kill_at(checkpoint, "save_checkpoint", 3, lambda: run(settings, context))
        metrics = run(settings, context)
        models.append(load_file(context.output / "model/model.safetensors"))
        shutil.rmtree(context.work)
        context.work.mkdir()
    assert all(torch.equal(models[1][name], weight) for name, weight in models[0].items())
    assert metrics["epoch_items"] == 3 * 180 + sum(SIZES)
    assert metrics["train_items"] == 3 * 180 + metrics["english_items"] <= metrics["epoch_items"]
