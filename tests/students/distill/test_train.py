import json
import shutil
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from device_waits import waits_in_steps
from safetensors.torch import load_file
from transformers.models.bert.modeling_bert import BertIntermediate

from bertrelay.cache import Cache
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.stage import StageContext
from students.distill.settings import DistillSettings
from students.distill.train import CRITERION, run
from students.evaluate.translation import read_variance
from students.evaluate.verdicts import of_failures
from students.parallel.corpus import ParallelCorpus

NEW = {"layers": 2, "dim": 32, "heads": 2, "vocabulary": 200, "max_tokens": 24, "dropout": 0.0}
TRAINING = {
    "seed": 3,
    "epochs": 12,
    "batch_tokens": 300,
    "learning_rate": 3e-3,
    "precision": "fp32",
    "dev_sentences": 30,
    "log_every": 1,
}


@pytest.fixture(scope="module")
def sources(tiny_encoder, toy, tmp_path_factory):
    teacher = tmp_path_factory.mktemp("teacher")
    tiny_encoder("bert", [row[0] for row in toy.train], normalize=True).save(teacher)
    return {"teacher": str(teacher), "base": NEW, "parallel": [toy.source()], **TRAINING}


def distill(context, sources, **more):
    return run(DistillSettings.model_validate({**sources, **more}), context)


@pytest.fixture(scope="module")
def distilled(sources, tmp_path_factory):
    """The folders of a finished training, and its metrics."""
    folder = tmp_path_factory.mktemp("distilled")
    context = StageContext(folder / "output", Cache(folder / "cache"))
    context.output.mkdir()
    return context, distill(context, sources)


def test_two_processes_that_share_an_evaluation_find_what_one_does(context, sources, evaluated_twice):
    evaluations = evaluated_twice("students.distill.train")
    distill(context, sources, epochs=1)
    [(alone, shared)] = evaluations
    assert shared == pytest.approx(alone, abs=1e-5) and alone[CRITERION] is not None


def logged(context, key):
    log = (context.output / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, log) if key in line]


def test_from_two_languages_to_one_space(distilled, toy):
    context, metrics = distilled
    losses = [line["loss"] for line in logged(context, "loss")]
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    evaluations = logged(context, CRITERION)
    assert len(evaluations) == 12
    steps = [evaluation["step"] for evaluation in evaluations]
    best = max(evaluations, key=lambda evaluation: evaluation[CRITERION])
    assert metrics["best_step"] == best["step"]
    del best["step"]
    assert best.items() <= metrics.items()
    ways = ("en-de", "de-en", "en-fr", "fr-en")
    assert set(best) == {
        CRITERION,
        "dev/explained_variance",
        *(f"dev/{name}/{language}" for name in ("mse", "mse_relative") for language in ("en", "de", "fr")),
        *(f"dev/translation_accuracy/{kind}{way}" for kind in ("", "untrained/") for way in ways),
        *(
            f"dev/nearness/{measure}/{kind}{language}"
            for measure in ("cosine", "agreement", "error", "unrelated")
            for kind in ("", "untrained/")
            for language in ("en", "de", "fr", "mean")
        ),
        *(f"dev/sentences/{kind}{language}" for kind in ("", "untrained/") for language in ("de", "fr")),
        *(f"dev/spread/{name}/{part}" for name in ("cosine", "dimensions") for part in ("en", "de", "fr", "teacher")),
    }
    assert of_failures(metrics) == []
    relative = [best[f"dev/mse_relative/{language}"] for language in ("en", "de", "fr")]
    explained, untrained = 1 - np.mean(relative), [best[f"dev/translation_accuracy/untrained/{way}"] for way in ways]
    assert best["dev/explained_variance"] == pytest.approx(explained) and explained > 0.3
    assert best[CRITERION] == pytest.approx((explained + np.mean(untrained)) / 2)
    assert best["dev/translation_accuracy/fr-en"] > 10 / 30  # one in thirty by chance
    assert metrics["train_items"] == 3 * (len(toy.train) - 30)
    assert read_variance(SimpleNamespace(folder=context.output / "model")) == metrics["target_variance"]
    written = {path.name for path in context.output.iterdir()} - {context.work.name}
    files = {"corpus.json", "learning_curve.json", "metrics.jsonl", "model", "rejects.jsonl", "report.json"}
    assert written == files
    curve = json.loads((context.output / "learning_curve.json").read_text())["rows"]
    assert [row["step"] for row in curve] == steps
    assert [row["sentences"] for row in curve] == [epoch * metrics["train_items"] for epoch in range(1, 13)]
    kinds = [f"{kind}{language}" for kind in ("", "untrained/") for language in ("en", "mean")]
    names = [f"{measure}/{kind}" for measure in ("cosine", "agreement") for kind in kinds]
    assert set(curve[0]) == {"step", "sentences", *names}
    assert [curve[-1][name] for name in names] == [evaluations[-1][f"dev/nearness/{name}"] for name in names]


@pytest.mark.promise("sentence-transformers loads a student with the same vectors", about="elsewhere")
def test_sentence_transformers_loads_the_student_and_gives_the_same_vectors(distilled, toy):
    context, _ = distilled
    texts = [text for row in toy.test for text in row]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = pytest.importorskip("sentence_transformers")
        theirs = peer.SentenceTransformer(str(context.output / "model"), device="cpu").encode(texts)
    ours = SentenceEncoder.load(context.output / "model").encode(texts, precision="fp32")
    assert theirs.shape == ours.shape == (150, 16)
    assert np.abs(theirs - ours).max() < 1e-5
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("objectives", [{}, {"contrastive": 1.0, "ranking": 1.0}], ids=["mse", "contrastive"])
def test_own_vectors_are_the_teachers_of_all_texts_and_of_the_held_out_ones(context, sources, objectives):
    metrics = distill(context, sources, own_vectors=True, epochs=1, objectives=objectives)
    teacher, student = (SentenceEncoder.load(path) for path in (sources["teacher"], context.output / "model"))
    [folder] = (context.cache.folder / "corpora").glob("*/")
    corpus = ParallelCorpus.open(folder)
    [path] = context.cache.folder.glob("targets/*/vectors.bin")
    stored = np.fromfile(path, np.float32).reshape(-1, teacher.dim)
    np.testing.assert_allclose(stored, teacher.encode(list(corpus), precision="fp32"), atol=1e-5)
    german = corpus.dev["de"].other
    errors = student.encode(german, precision="fp32") - teacher.encode(german, precision="fp32")
    assert metrics["dev/mse/de"] == pytest.approx((errors**2).mean(), rel=1e-3)


def test_what_is_shared_between_runs_is_made_once(context, sources, tmp_path, monkeypatch):
    seen = []
    forward = SentenceEncoder.forward

    def spy(self, input_ids, *inputs):
        if self.backbone.config.model_type == "bert":
            seen.append(len(input_ids))
        return forward(self, input_ids, *inputs)

    monkeypatch.setattr(SentenceEncoder, "forward", spy)
    distill(context, sources, epochs=1)
    # 170 to learn from, 30 of dev, 150 that come with the project, and what fills batches up
    assert 350 <= sum(seen) < 400
    again = StageContext(tmp_path / "another student", context.cache)
    again.output.mkdir()
    distill(again, sources, epochs=1, learning_rate=1e-3)
    assert 530 <= sum(seen) < 590  # the dev sentences again: they are what the student is measured against


def test_a_student_with_the_teachers_layers_learns_too_and_contrasts(context, sources):
    base, objectives = {"layers_of": "teacher", "vocabulary": 200}, {"contrastive": 0.1, "dimensions": [8]}
    metrics = distill(context, sources, base=base, layers=1, epochs=2, objectives=objectives)
    contrasted = [line["loss/contrastive"] for line in logged(context, "loss/contrastive")]
    assert np.mean(contrasted[-5:]) < np.mean(contrasted[:5])
    assert metrics["dev/explained_variance"] is not None
    saved = SentenceEncoder.load(context.output / "model")
    assert saved.backbone.config.num_hidden_layers == metrics["layers/after"] == 1 and saved.normalize
    assert metrics["layers/before"] == 2
    assert saved.projection is None
    assert saved.matryoshka_dimensions == (8,)


def test_without_dev_sentences_the_last_weights_are_saved_and_unusable_records_are_listed(context, sources, tmp_path):
    (tmp_path / "more.tsv").write_bytes(b"en\tde\na bird\tein \xff\n" + b"a tree\tein Baum\n" * 120)
    broken = {"path": str(tmp_path / "more.tsv"), "others": {"de": "de"}}
    metrics = distill(context, sources, parallel=[*sources["parallel"], broken], dev_sentences=0, epochs=1)
    assert not [name for name in metrics if name.startswith(("dev/", "best"))]
    assert not logged(context, "dev/explained_variance")
    assert (context.output / "model" / "model.safetensors").is_file()
    listed = [json.loads(line) for line in (context.output / "rejects.jsonl").read_text().splitlines()]
    position = {"file": str(tmp_path / "more.tsv"), "line": 2, "reason": "not valid UTF-8"}
    assert listed == [{**position, "detail": "byte 17 of the file, counted from 0"}]


@pytest.mark.promise("Between two lines of the log a student's training waits for no device", about="waiting")
@pytest.mark.parametrize("objectives", [{"ranking": 1.0}, {"contrastive": 1.0, "ranking": 1.0, "cosine": 1.0}])
def test_between_two_lines_of_the_log_a_student_waits_for_no_device(sources, context, objectives, monkeypatch):
    counts = waits_in_steps(monkeypatch)
    distill(context, sources, epochs=2, objectives=objectives)
    assert len(counts) > 5 and not any(counts)


@pytest.mark.promise("Computing activations again changes no bit", about="exact")
@pytest.mark.parametrize("objectives", [{}, {"contrastive": 1.0}])
def test_activations_that_are_computed_again_give_the_same_bits(sources, context, objectives, monkeypatch):
    """Under dropout, in several micro-batches; each layer then computes twice for one backward pass."""
    calls, ended, forward = [], [], BertIntermediate.forward

    def counted(layer, *args, **named):
        calls.extend([1] * layer.training)
        return forward(layer, *args, **named)

    monkeypatch.setattr(BertIntermediate, "forward", counted)
    for again in (False, True):
        calls.clear()
        for folder in (context.work, context.output):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        settings = {"epochs": 1, "device_tokens": 100, "dropout": 0.3, "dev_sentences": 0, "objectives": objectives}
        distill(context, sources, gradient_checkpointing=again, **settings)
        ended.append((len(calls), load_file(context.output / "model/model.safetensors")))
    (once, expected), (twice, weights) = ended
    assert twice == (3 * once // 2 if objectives else 2 * once)  # in-batch losses compute all of it twice anyway
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())
