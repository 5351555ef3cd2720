"""A tiny BERT learns toy notes, in which a patient has one illness; held-out metrics against sums by hand."""

import json
import math
import os
import signal

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from bertrelay.cache import Cache
from bertrelay.compute.engine import Engine
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError, Stopped
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.new import train_wordpiece
from bertrelay.stage import StageContext
from bertrelay.training.batches import rank_items
from bertrelay.training.loop import Training
from domain.pretraining.masking import Sequences
from domain.pretraining.network import Pretraining, start_network
from domain.pretraining.pairs import Text
from domain.pretraining.settings import PretrainSettings
from domain.pretraining.train import SEED, HeldOut, PretrainingTask, draw_items, run

ILLNESSES = {"flu": "fever", "asthma": "wheeze", "gout": "swelling", "angina": "chest pain", "migraine": "headache"}
PARTS = [
    "The patient has {illness}.",
    "There is {sign} since {days} days.",
    "No {other} was seen.",
    "Plan: treat {illness}.",
]
NEW = {"layers": 1, "dim": 32, "heads": 2, "vocabulary": 120, "max_tokens": 48, "dropout": 0.1}
SETTINGS = {
    "base": NEW,
    "seed": 2,
    "max_tokens": 24,
    "held_out_share": 0.2,
    "epochs": 4,
    "batch_items": 8,
    "learning_rate": 5e-3,
    "precision": "fp32",
    "log_every": 5,
}
WHOLE_WORDS = {"masking": {"whole_words": True}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objectives": ["mlm", "mlm"]}, "objectives: expected each once, found mlm, mlm"),
        ({"masking": {"mask": 0.9, "random": 0.2}}, "to make at most 1, found 0.9 and 0.2"),
        ({"held_out_share": 0}, "keep: the best weights need held-out documents"),
        ({"objectives": ["nsp"], "masking": {"whole_words": True}}, "masking: without effect"),
        ({"objectives": ["mlm"], "short_share": 0.2}, "short_share: without effect"),
        ({"keep": "last", "patience": 3}, "patience: without effect"),
        ({"documents": [{"path": "a.txt", "id": "n"}]}, "without effect, because only tables have columns"),
        ({"documents": [{"path": "a", "format": "blocks", "text": "t"}]}, "without effect, because only tables"),
    ],
)
def test_what_cannot_be_or_has_no_effect_is_reported(options, message):
    with pytest.raises(ValidationError, match=message):
        PretrainSettings.model_validate({"base": "./model", "documents": [{"path": "notes.jsonl"}], **options})


def note(generator):
    illness, other = generator.choice(list(ILLNESSES), 2, replace=False)
    days = generator.integers(2, 9)
    values = {"illness": illness, "sign": ILLNESSES[illness], "other": ILLNESSES[other], "days": days}
    return " ".join(generator.choice(PARTS).format(**values) for _ in range(generator.integers(3, 9)))


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    generator, file = np.random.default_rng(0), tmp_path_factory.mktemp("notes") / "notes.jsonl"
    rows = [{"text": note(generator), "patient": int(number // 2)} for number in range(120)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {**SETTINGS, "documents": [{"path": str(file), "group": "patient"}]}


def pretrain(folder, settings, cache=None, **more):
    (folder / "output").mkdir(parents=True, exist_ok=True)
    context = StageContext(folder / "output", Cache(cache or folder / "cache"))
    return run(PretrainSettings.model_validate({**settings, **more}), context)


def test_two_processes_that_share_an_evaluation_find_what_one_does(settings, tmp_path, evaluated_twice):
    metrics_of_both = evaluated_twice("domain.pretraining.train")
    pretrain(tmp_path, settings, epochs=1)
    [(alone, shared)] = metrics_of_both
    assert shared == pytest.approx(alone, rel=1e-5) and alone["mlm_loss"] > 0


def evaluations(folder):
    lines = map(json.loads, (folder / "output/metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "log_likelihood" in line]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, settings):
    """The folder of a training, and its metrics."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, pretrain(folder, settings, **WHOLE_WORDS)


def test_it_learns_and_shows_before_and_after(trained):
    folder, metrics = trained
    for name in ("mlm_loss", "mlm_perplexity", "mlm_accuracy", "nsp_loss", "nsp_accuracy"):
        for metric in (name, f"before/{name}"):
            assert metrics[f"{metric}_low"] <= metrics[metric] <= metrics[f"{metric}_high"]
    assert metrics["before/mlm_loss"] == pytest.approx(np.log(120), abs=0.3)  # it knows nothing
    assert metrics["mlm_loss"] < 0.8 * metrics["before/mlm_loss"]
    assert metrics["mlm_accuracy"] > metrics["before/mlm_accuracy"] + 0.1
    evaluated = evaluations(folder)
    best = max(evaluated, key=lambda line: line["log_likelihood"])
    assert len(evaluated) == 4
    assert metrics["best_step"] == best["step"] and metrics["mlm_loss"] == best["mlm_loss"]
    written = {path.name for path in (folder / "output").iterdir()} - {"work"}
    assert written == {"corpus.json", "metrics.jsonl", "model", "rejects.jsonl", "report.json"}


def test_documents_are_prepared_on_the_engine_of_the_stage(settings, tmp_path):
    nowhere = Engine(engine="ray://127.0.0.1:9")  # a cluster that does not answer
    with pytest.raises(RequestError, match=r"engine: expected (a )?Ray"):
        run(
            PretrainSettings.model_validate(settings),
            StageContext(tmp_path, Cache(tmp_path / "cache"), engine=nowhere),
        )


def test_the_model_can_be_trained_on(trained, settings, tmp_path):
    """Short sequences first and long ones after them are two stages."""
    folder, metrics = trained
    more = {"base": str(folder / "output/model"), "max_tokens": 48, "epochs": 1, "learning_rate": 1e-3}
    onward = pretrain(tmp_path, settings, folder / "cache", **more)
    assert onward["before/mlm_loss"] < 0.75 * metrics["before/mlm_loss"]
    assert len(list((folder / "cache").rglob("corpus.json"))) == 1  # prepared once


def test_stopped_and_resumed_it_ends_with_the_same_bytes(trained, settings, tmp_path, monkeypatch):
    whole, expected = trained
    update = Training._update

    def stopped_in_the_last_epoch(self):
        update(self)
        if self.state.step == self.schedule.total_steps - 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as stopping:
        stopping.setattr(Training, "_update", stopped_in_the_last_epoch)
        with pytest.raises(Stopped):
            pretrain(tmp_path, settings, **WHOLE_WORDS)
    metrics = pretrain(tmp_path, settings, **WHOLE_WORDS)
    untimed = {name for name in metrics if name != "train_seconds"}
    assert {name: metrics[name] for name in untimed} == {name: expected[name] for name in untimed}
    for file in (whole / "output/model").iterdir():
        assert (tmp_path / "output/model" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(("objective", "held_out_share"), [("mlm", 0.0), ("nsp", 0.2)])
def test_one_objective_alone_with_the_last_weights_and_new_tokens(tmp_path, settings, objective, held_out_share):
    more = {"held_out_share": held_out_share, "new_tokens": ["hyperkalemia"], "protected_tokens": ["[NAME]"]}
    metrics = pretrain(tmp_path, settings, objectives=[objective], keep="last", epochs=1, **more)
    assert not evaluations(tmp_path) and "best_step" not in metrics
    scored = {name.split("_")[0] for name in metrics if not name.startswith(("before", "log"))}
    assert scored == ({"train", objective} if held_out_share else {"train"})
    if held_out_share:
        assert metrics[f"{objective}_loss"] < 1.05 * metrics[f"before/{objective}_loss"]
    rules = SentenceEncoder.load(tmp_path / "output/model").tokenizer
    assert len(rules("[NAME] hyperkalemia", add_special_tokens=False).input_ids) == 2


@pytest.fixture(scope="module")
def task(random_corpus, settings, tmp_path_factory):
    corpus, settings = random_corpus(60, (2, 7), (2, 9), vocabulary=(6, 40)), PretrainSettings.model_validate(settings)
    network, tokenizer = start_network(settings, Cache(tmp_path_factory.mktemp("cache")))
    model = Pretraining(network, settings.objectives).double().eval()
    text = Text(corpus, corpus.groups >= 0)
    return PretrainingTask(model, settings, text, Sequences(corpus, tokenizer, settings), None)


def gradient(task, pieces, epoch):
    """Each loss of all parts together over its count in all of them, as in the training loop."""
    batches = [task.collate(piece, epoch) for piece in pieces]
    counts = {name: sum(batch.counts[name] for batch in batches) for name in batches[0].counts}
    task.model.zero_grad()
    for batch in batches:
        sum(total / counts[name] for name, total in task.loss(task.model, batch).items()).backward()
    return {name: weight.grad.clone() for name, weight in task.model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("processes", [2, 3])
def test_gradients_do_not_depend_on_processes(task, processes):
    batch = np.arange(17)
    whole = gradient(task, [batch], epoch=1)
    shared = gradient(task, [rank_items(batch, rank, processes) for rank in range(processes)], epoch=1)
    torch.testing.assert_close(shared, whole, rtol=1e-9, atol=1e-12)


# Held-out metrics

TOKENIZER = train_wordpiece(["the heart and the lung", "a fever, a cough and a rash"], 80, 40)
WORDS = len(TOKENIZER)


class Guesser(nn.Module):
    """Gives logits that depend on the token that stood there and on the pair, so that metrics are known by hand."""

    objectives = ("mlm", "nsp")

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(0)))
        self.next_logits = nn.Parameter(torch.tensor([[0.3, -0.2], [0.1, 0.4]]))

    def forward(self, inputs):
        length_is_odd = inputs["attention_mask"].sum(dim=1) % 2
        return {"mlm": self.logits[inputs["masked_ids"]], "nsp": self.next_logits[length_is_odd]}


def held_out(random_corpus, documents, **settings):
    values = {"base": "./none", "documents": [{"path": "none.jsonl"}], "max_tokens": 24, "precision": "fp32"}
    valid = PretrainSettings.model_validate(values | settings)
    corpus = random_corpus(documents, sentences=(2, 9), tokens=(2, 9), vocabulary=(6, WORDS), seed=4)
    items = draw_items(Text(corpus, corpus.groups >= 0), valid, SEED, epoch=0)
    return HeldOut(items, Sequences(corpus, TOKENIZER, valid), valid, ComputePrecision.FP32)


def test_metrics_are_those_computed_by_hand_and_their_intervals_resample_documents(random_corpus):
    scored, model = held_out(random_corpus, 60), Guesser()
    metrics = scored.metrics(model)
    inputs = scored.sequences.batch(scored.items, np.arange(len(scored.items)), SEED, 0).inputs
    logits = model.logits.detach().double().numpy()
    ids = inputs["masked_ids"].numpy()
    losses = np.log(np.exp(logits[ids]).sum(axis=1)) - logits[ids, ids]
    assert metrics["mlm_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert metrics["mlm_perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-5)
    assert metrics["mlm_accuracy"] == pytest.approx((logits[ids].argmax(axis=1) == ids).mean())
    pairs = model.next_logits.detach().double().numpy()[inputs["attention_mask"].sum(dim=1).numpy() % 2]
    is_random = inputs["is_random"].numpy()
    next_losses = np.log(np.exp(pairs).sum(axis=1)) - pairs[np.arange(len(pairs)), is_random]
    hits = pairs.argmax(axis=1) == is_random
    assert metrics["nsp_loss"] == pytest.approx(next_losses.mean(), rel=1e-5)
    assert metrics["nsp_accuracy"] == pytest.approx(hits.mean())
    assert metrics["log_likelihood"] == pytest.approx(-losses.mean() - next_losses.mean(), rel=1e-5)

    by_document = [hits[scored.items.documents == number] for number in np.unique(scored.items.documents)]
    generator = np.random.default_rng(99)
    draws = (generator.integers(0, len(by_document), len(by_document)) for _ in range(2000))
    means = [np.concatenate([by_document[number] for number in drawn]).mean() for drawn in draws]
    low, high = np.percentile(means, [2.5, 97.5])
    assert metrics["nsp_accuracy_low"] == pytest.approx(low, abs=0.015)
    assert metrics["nsp_accuracy_high"] == pytest.approx(high, abs=0.015)


def test_metrics_are_the_same_in_batches_of_any_size_and_under_any_seed(random_corpus):
    model = Guesser()
    expected = held_out(random_corpus, 25).metrics(model)
    for settings in ({"device_tokens": 30}, {"seed": 5}):
        assert held_out(random_corpus, 25, **settings).metrics(model.train()) == pytest.approx(expected, rel=1e-9)
    assert model.training and model.logits.grad is None
