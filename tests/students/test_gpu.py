"""Training on a GPU: no step waits for it, every precision is near to the CPU, resume is exact."""

import os
import signal
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertrelay.cache import Cache
from bertrelay.errors import Stopped
from bertrelay.stage import StageContext
from bertrelay.training import cuda_graphs
from bertrelay.training.loop import Training
from students.distill.settings import DistillSettings
from students.distill.train import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")

NEW = {"layers": 2, "dim": 64, "heads": 2, "vocabulary": 200, "max_tokens": 24, "dropout": 0.1}
TRAINING = {"seed": 3, "epochs": 4, "batch_tokens": 300, "device_tokens": 160, "learning_rate": 3e-3, "log_every": 20}
MSE, CONTRASTIVE = {}, {"contrastive": 1.0, "ranking": 1.0, "cosine": 1.0}
COSINES = {"fp32": 0.999999, "tf32": 0.9999, "bf16": 0.999, "fp16": 0.9999}


@contextmanager
def waits_as(mode):
    """Has torch warn or raise where it waits for the GPU."""
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def steps_without_waits(monkeypatch):
    """Raises in a step that waits for the GPU; the steps that did not, counted."""
    counts, step = [], Training.step

    def checked(*args):
        with waits_as("error"):
            received = step(*args)
        counts.append(1)
        return received

    monkeypatch.setattr(Training, "step", checked)
    return counts


@pytest.fixture
def captures(monkeypatch):
    """The passes that were captured as CUDA graphs."""
    passes, capture_graph = [], cuda_graphs.capture_graph

    def counted(launch, pool):
        replay = capture_graph(launch, pool)
        passes.append(launch)
        return replay

    monkeypatch.setattr(cuda_graphs, "capture_graph", counted)
    return passes


@pytest.fixture(scope="module")
def sources(tiny_encoder, toy, tmp_path_factory):
    teacher = tmp_path_factory.mktemp("teacher")
    tiny_encoder("bert", [row[0] for row in toy.train], normalize=True).save(teacher)
    return {"teacher": str(teacher), "base": NEW, "parallel": [toy.source()], "dev_sentences": 30, **TRAINING}


def distill(folder, sources, **more):
    for name in ("output", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    context = StageContext(folder / "output", Cache(folder / "cache"))
    metrics = run(DistillSettings.model_validate({**sources, **more}), context)
    return metrics, load_file(context.output / "model/model.safetensors")


@pytest.mark.parametrize("precision", COSINES)
def test_vectors_are_near_those_of_the_cpu(tiny_encoder, toy, precision):
    sentences = [row[0] for row in toy.train]
    encoder = tiny_encoder("bert", sentences, sizes={"hidden_size": 64})
    expected = encoder.encode(sentences, precision="fp32")
    vectors = encoder.to("cuda").encode(sentences, precision=precision)
    cosines = (expected * vectors).sum(axis=1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(vectors, axis=1)
    assert cosines.min() > COSINES[precision]


def test_encoding_waits_once_a_block(tiny_encoder, toy, monkeypatch):
    sentences = list(dict.fromkeys(row[0] for row in toy.train))
    encoder = tiny_encoder("bert", sentences).to("cuda")
    encoder.encode(sentences)
    monkeypatch.setattr("bertrelay.inference.encode.BLOCK_SENTENCES", -(-len(sentences) // 3))
    with waits_as("warn"), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        encoder.encode(sentences, batch_tokens=64)
    assert len([warning for warning in seen if "synchroniz" in str(warning.message)]) == 3


@pytest.mark.parametrize("objectives", [MSE, CONTRASTIVE], ids=["mse", "contrastive"])
@pytest.mark.parametrize("precision", COSINES)
def test_no_step_waits_and_the_student_learns(sources, tmp_path, objectives, precision, steps_without_waits):
    metrics, _ = distill(tmp_path, sources, objectives=objectives, precision=precision)
    assert len(steps_without_waits) == metrics["train_steps"] > 20
    assert metrics["dev/explained_variance"] > 0.1


@pytest.mark.promise(
    "On a GPU a stopped training ends with the same bits, in every precision, with `deterministic = true`",
    about="resume",
)
@pytest.mark.parametrize("objectives", [MSE, CONTRASTIVE], ids=["mse", "contrastive"])
@pytest.mark.parametrize("precision", COSINES)
def test_stopped_and_resumed_it_ends_with_the_same_bits(sources, tmp_path, objectives, precision, monkeypatch):
    sources = {**sources, "objectives": objectives, "precision": precision, "deterministic": True}
    try:
        _, expected = distill(tmp_path / "whole", sources)
        update = Training._update

        def stop_after_ten(self):
            update(self)
            if self.state.step == 10:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(Training, "_update", stop_after_ten)
        with pytest.raises(Stopped):
            distill(tmp_path / "stopped", sources)
        _, resumed = distill(tmp_path / "stopped", sources)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(resumed[name], weight) for name, weight in expected.items())


def test_activations_that_are_computed_again_give_the_same_bits(sources, tmp_path):
    sources = {**sources, "precision": "bf16", "deterministic": True}
    try:
        _, expected = distill(tmp_path / "once", sources)
        _, weights = distill(tmp_path / "again", sources, gradient_checkpointing=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())


@pytest.mark.promise("Passes replayed as CUDA graphs give the bits of eager ones", about="exact")
@pytest.mark.parametrize("objectives", [MSE, CONTRASTIVE], ids=["mse", "contrastive"])
def test_replayed_passes_end_with_the_bits_of_eager_ones(sources, tmp_path, objectives, captures):
    sources = {**sources, "objectives": objectives, "deterministic": True}
    try:
        _, weights = distill(tmp_path / "replayed", sources)
        assert captures
        captures.clear()
        _, expected = distill(tmp_path / "eager", sources, cuda_graphs=False)
        assert not captures
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())
