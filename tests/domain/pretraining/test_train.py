"""A tiny BERT learns toy notes, in which a patient has one illness and what belongs to it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import Stopped
from bertrelay.stage import StageContext
from bertrelay.training.batches import rank_batch
from bertrelay.training.loop import Training
from domain.pretraining.items import Text
from domain.pretraining.network import Pretraining, start_network
from domain.pretraining.sequences import Sequences
from domain.pretraining.settings import PretrainSettings
from domain.pretraining.train import PretrainingTask, run

ILLNESSES = {"flu": "fever", "asthma": "wheeze", "gout": "swelling", "angina": "chest pain", "migraine": "headache"}
PARTS = [
    "The patient has {illness}.",
    "There is {sign} since {days} days.",
    "No {other} was seen.",
    "Plan: treat {illness}.",
]
NEW = {"layers": 1, "dim": 32, "heads": 2, "vocabulary": 120, "max_tokens": 48, "dropout": 0.0}
SETTINGS: dict[str, Any] = {
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


def note(generator: np.random.Generator) -> str:
    illness, other = generator.choice(list(ILLNESSES), 2, replace=False)
    values = {
        "illness": illness,
        "sign": ILLNESSES[illness],
        "other": ILLNESSES[other],
        "days": generator.integers(2, 9),
    }
    return " ".join(generator.choice(PARTS).format(**values) for _ in range(generator.integers(3, 9)))


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    rows = [{"text": note(generator), "patient": int(number // 2)} for number in range(120)]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {**SETTINGS, "documents": [{"path": str(tmp_path / "notes.jsonl"), "group": "patient"}]}


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    (tmp_path / "output").mkdir()
    return StageContext(tmp_path / "output", tmp_path / "cache")


def pretrain(context: StageContext, given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return run(PretrainSettings.model_validate({**given, **more}), context)


def looks(context: StageContext) -> list[dict[str, Any]]:
    lines = map(json.loads, (context.output / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "log_likelihood" in line]


def test_it_learns_and_shows_before_and_after(context: StageContext, given: dict[str, Any]) -> None:
    metrics = pretrain(context, given)
    for name in ("mlm_loss", "mlm_perplexity", "mlm_accuracy", "nsp_loss", "nsp_accuracy"):
        for figure in (name, f"before/{name}"):
            assert metrics[f"{figure}_low"] <= metrics[figure] <= metrics[f"{figure}_high"]
    assert metrics["before/mlm_loss"] == pytest.approx(np.log(120), abs=0.3)  # it knows nothing
    assert metrics["mlm_loss"] < 0.8 * metrics["before/mlm_loss"]
    assert metrics["mlm_accuracy"] > metrics["before/mlm_accuracy"] + 0.1
    seen = looks(context)
    assert len(seen) == 4
    best = max(seen, key=lambda look: look["log_likelihood"])
    assert metrics["best_step"] == best["step"] and metrics["mlm_loss"] == best["mlm_loss"]
    written = {path.name for path in context.output.iterdir()} - {context.work.name}
    assert written == {"corpus.json", "metrics.jsonl", "model", "rejects.jsonl"}


def test_the_model_can_be_trained_on(context: StageContext, given: dict[str, Any], tmp_path: Path) -> None:
    """Short sequences first and long ones after them are two stages."""
    metrics = pretrain(context, given)
    model = context.output / "model"
    following = StageContext(tmp_path / "following", context.cache)
    following.output.mkdir()
    onward = pretrain(following, given, base=str(model), max_tokens=48, epochs=1, learning_rate=1e-3)
    assert onward["before/mlm_loss"] < 0.75 * metrics["before/mlm_loss"]
    assert len(list(context.cache.rglob("corpus.json"))) == 1  # prepared once


def test_stopped_and_resumed_it_ends_with_the_same_bytes(
    context: StageContext, given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = StageContext(tmp_path / "whole", tmp_path / "another cache")
    whole.output.mkdir()
    more = {"base": {**NEW, "dropout": 0.1}, "masking": {"whole_words": True}, "epochs": 2}
    expected = pretrain(whole, given, **more)
    update = Training._update

    def stopped_in_the_second_epoch(self: Training) -> None:
        update(self)
        if self.state.step == self.schedule.total_steps - 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as stopping:
        stopping.setattr(Training, "_update", stopped_in_the_second_epoch)
        with pytest.raises(Stopped):
            pretrain(context, given, **more)
    metrics = pretrain(context, given, **more)
    untimed = {name for name in metrics if name != "train_seconds"}
    assert {name: metrics[name] for name in untimed} == {name: expected[name] for name in untimed}
    for file in (whole.output / "model").iterdir():
        assert (context.output / "model" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("objective", ["mlm", "nsp"])
def test_one_objective_alone_and_the_last_weights(context: StageContext, given: dict[str, Any], objective: str) -> None:
    metrics = pretrain(context, given, objectives=[objective], keep="last", epochs=1)
    named = {name.split("_")[0] for name in metrics if not name.startswith(("before", "train", "log"))}
    assert named == {objective}
    assert not looks(context) and "best_step" not in metrics
    assert metrics[f"{objective}_loss"] < 1.05 * metrics[f"before/{objective}_loss"]


def test_without_held_out_documents_there_are_no_metrics_and_the_model_has_the_new_tokens(
    context: StageContext, given: dict[str, Any]
) -> None:
    tokens = {"new_tokens": ["hyperkalemia"], "protected_tokens": ["[NAME]"]}
    metrics = pretrain(context, given, keep="last", held_out_share=0, epochs=1, **tokens)
    assert set(metrics) == {"train_steps", "train_seconds"}
    rules = SentenceEncoder.load(context.output / "model").tokenizer
    assert len(rules("[NAME] hyperkalemia", add_special_tokens=False).input_ids) == 2


# Processes


@pytest.fixture
def task(random_corpus: Any, given: dict[str, Any], tmp_path: Path) -> PretrainingTask:
    corpus, settings = random_corpus(60, (2, 7), (2, 9), vocabulary=(6, 40)), PretrainSettings.model_validate(given)
    network, tokenizer = start_network(settings, tmp_path)
    model = Pretraining(network, settings.objectives).double().eval()
    text = Text(corpus, corpus.groups >= 0)
    return PretrainingTask(model, settings, text, Sequences(corpus, tokenizer, settings), None)


def gradient(task: PretrainingTask, pieces: list[Any], epoch: int) -> dict[str, torch.Tensor]:
    """Of all pieces together, each loss over its count in all of them, as the training loop has it."""
    batches = [task.collate(piece, epoch) for piece in pieces]
    counts = {name: sum(batch.counts[name] for batch in batches) for name in batches[0].counts}
    task.model.zero_grad()
    for batch in batches:
        sum(total / counts[name] for name, total in task.loss(task.model, batch).items()).backward()
    return {name: each.grad.clone() for name, each in task.model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("processes", [2, 3])
def test_gradients_do_not_depend_on_processes(task: PretrainingTask, processes: int) -> None:
    batch = np.arange(17)
    whole = gradient(task, [batch], epoch=1)
    shared = gradient(task, [rank_batch(batch, rank, processes) for rank in range(processes)], epoch=1)
    assert whole.keys() == shared.keys()
    for name, expected in whole.items():
        torch.testing.assert_close(shared[name], expected, rtol=1e-9, atol=1e-12)
