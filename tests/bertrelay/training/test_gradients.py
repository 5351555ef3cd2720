"""Gradients of a step against one batch in float64: for any number of processes and micro-batches, and in 16 bits."""

import copy
import json
from contextlib import closing

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_training import (
    DROPOUT,
    InBatch,
    TwoLosses,
    logged,
    planned,
    reference,
    result,
    run,
    stderr_of,
    train,
    training_settings,
)

from bertrelay.device import ComputePrecision
from bertrelay.errors import WorkError
from bertrelay.training.batches import BatchSchedule
from bertrelay.training.loop import Training


def assert_gradients_are_the_reference(folder, batches, lines, task):
    """Compares gradients, losses and norms of every step. batches: epoch and items of each."""
    captured = load_file(folder / "gradients-0.safetensors")
    for step, ((epoch, items), line) in enumerate(zip(batches, lines, strict=True)):
        weights = {name: captured[f"{step} weight {name}"] for name, _ in task.model.named_parameters()}
        losses, gradient = reference(task, epoch, items, weights)
        norm = torch.cat([value.flatten() for value in gradient.values()]).norm()
        for name, expected in gradient.items():
            computed = captured[f"{step} grad {name}"].double()
            torch.testing.assert_close(computed, expected, rtol=0, atol=1e-6 * float(norm))
        logged_losses = [line["loss"]] if len(losses) == 1 else [line[f"loss/{name}"] for name in losses]
        assert logged_losses == pytest.approx(list(losses.values()), rel=1e-5)
        assert line["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


@pytest.mark.promise("Gradients do not depend on processes nor on micro-batches", about="processes")
@pytest.mark.parametrize("task", [TwoLosses, InBatch])
@pytest.mark.parametrize(
    ("processes", "device_tokens", "size"),
    [
        (1, 10_000, {"batch_tokens": 60}),  # one micro-batch
        (1, 15, {"batch_tokens": 60}),
        (1, 1, {"batch_tokens": 60}),  # an item at a time
        (2, 10_000, {"batch_tokens": 60}),
        (2, 15, {"batch_tokens": 60}),
        (2, 15, {"batch_items": 5}),  # more micro-batches in one process than in the other
        (2, 15, {"batch_items": 1}),  # nothing for the second process, ever
        (3, 15, {"batch_items": 2}),  # nothing for the third
    ],
)
def test_gradients_do_not_depend_on_processes_nor_on_micro_batches(tmp_path, processes, device_tokens, size, task):
    """Two losses of different denominators, and one that compares all items."""
    changes = {"batch_tokens": None, "batch_items": None, "device_tokens": device_tokens, "epochs": 1, **size}
    changes["max_grad_norm"] = 1e9
    options = {"settings": {**changes, "in_batch": task is InBatch}, "task": {"items": 24}}
    assert run(tmp_path, processes, **options) == [0] * processes, stderr_of(tmp_path)
    task = task(items=24)
    schedule = BatchSchedule(task.lengths, training_settings(**changes), getattr(task, "groups", None))
    batches = [schedule.batch(step) for step in range(schedule.total_steps)]
    lines = [line for line in logged(tmp_path) if "lr" in line]
    assert_gradients_are_the_reference(tmp_path, batches, lines, task)
    if processes > 1:
        gradients = [load_file(tmp_path / f"gradients-{rank}.safetensors") for rank in (0, 1)]
        assert all(torch.equal(gradients[1][name], value) for name, value in gradients[0].items())


@pytest.mark.promise("Dropout differs by step, process and micro-batch, and repeats", about="processes")
def test_dropout_differs_by_step_process_and_micro_batch_and_repeats(uninterrupted, tmp_path):
    # The first seed is of the pass that builds DDP's buckets, which is that of the first step.
    seeds = [result(uninterrupted(2), rank)["seeds"][1:] for rank in (0, 1)]
    assert len({*seeds[0], *seeds[1]}) == len(seeds[0]) + len(seeds[1]) > 2 * len(planned(TwoLosses()))
    assert run(tmp_path, 2, **DROPOUT) == [0, 0]
    assert result(tmp_path)["seeds"][1:] == seeds[0]


@pytest.mark.parametrize(
    ("processes", "poison", "precision"),
    [(1, np.inf, "fp16"), (1, "loss only", "fp32"), (2, np.inf, "fp32"), (2, "loss only", "fp16")],
)
def test_a_non_finite_loss_stops_every_process_with_step_and_items(tmp_path, processes, poison, precision):
    item = int(planned(TwoLosses())[6][1])  # of the seventh step, and of the second process where there are two
    options = {"settings": {"device_tokens": 1, "precision": precision}, "task": {"poisoned": item, "poison": poison}}
    assert run(tmp_path, processes, **options) == [1] * processes
    expected = f"step 7: expected finite numbers, found a non-finite one in the loss of training items [{item}]"
    assert all(expected in stderr_of(tmp_path, rank) for rank in range(processes))


@pytest.mark.promise("No update that is not finite is applied, even if it is read later", about="exact")
def test_no_weight_changes_from_a_non_finite_gradient_on_even_if_it_is_read_later(tmp_path):
    task, expected = TwoLosses(criterion=None), TwoLosses(criterion=None)
    task.poisoned = int(planned(task)[6][1])  # of the seventh step
    settings = training_settings(log_every=1000, checkpoint_every=1000)
    with pytest.raises(WorkError, match="step 7: expected finite numbers"):
        train(task, settings, tmp_path / "poisoned")
    folder = tmp_path / "six steps"
    training = Training(expected, settings, folder, folder, ComputePrecision.FP32)
    with closing(training.rank_batches()) as batches:
        for _ in range(6):
            training.step(batches)
    for (name, weight), other in zip(task.model.named_parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(weight, other), name


def test_a_gradient_that_overflows_in_fp16_makes_no_update_and_halves_the_scale(tmp_path, capsys):
    task = TwoLosses(criterion=None, poison=1e5)
    task.poisoned = int(planned(task)[6][1])  # of the seventh step
    training = Training(task, training_settings(log_every=1000), tmp_path, tmp_path, ComputePrecision.FP16)
    skipped = []
    with closing(training.rank_batches()) as batches:
        for step in range(1, 9):
            before = copy.deepcopy(task.model.state_dict())
            training.step(batches)
            if all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items()):
                skipped.append(step)
    training._save()
    lines = [f"step {step}: no update, as the gradient overflows in fp16; its scale is halved" for step in skipped]
    assert [line for line in capsys.readouterr().err.splitlines() if "overflows" in line] == lines
    assert skipped[-1] == 7 and len(skipped) < 4  # the first scale is too large for this network
    scaler = json.loads((tmp_path / "checkpoint-00000008/checkpoint.json").read_text())["state"]["scaler"]
    assert (scaler["scale"], scaler["_growth_tracker"]) == (2.0 ** (16 - len(skipped)), 1)


def test_a_gradient_that_no_scale_makes_finite_stops_the_training(tmp_path):
    task = TwoLosses(items=12, criterion=None, poison=1e30)
    task.poisoned = 0
    with pytest.raises(WorkError, match="found a non-finite one in the gradient, with a finite loss"):
        train(task, training_settings(precision="fp16", epochs=60, batch_tokens=1000), tmp_path)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_gradient_in_16_bits_is_the_one_in_fp32_except_for_rounding(tmp_path, precision):
    norms = {}
    for name in ("fp32", precision):
        settings = training_settings(precision=name, epochs=1, learning_rate=1e-12)
        train(TwoLosses(criterion=None), settings, tmp_path / name)
        norms[name] = [line["grad_norm"] for line in logged(tmp_path / name) if "lr" in line]
    pairs = [pair for pair in zip(norms[precision], norms["fp32"], strict=True) if pair[0] is not None]
    assert len(pairs) > 5  # the first scale of fp16 is too large for this network
    for rounded, exact in pairs:
        assert rounded == pytest.approx(exact, rel=0.02) and rounded != exact


def test_a_step_is_the_one_adamw_takes_with_the_clipped_gradient(tmp_path):
    """One step by hand: m/√v is ±1 in the first, so a weight moves by the rate, and decays by rate · decay."""
    task, factors = TwoLosses(criterion=None), {"mix.weight": 3.0, "mix.bias": 20.0}
    task.rate_factors = lambda: factors
    before = {name: value.detach().clone() for name, value in task.model.named_parameters()}
    settings = training_settings(epochs=1, batch_tokens=10_000, warmup=0, max_grad_norm=1e-3, weight_decay=0.5)
    train(task, settings, tmp_path)
    _, gradient = reference(TwoLosses(), 0, np.arange(48), {})
    norm = float(torch.cat([value.flatten() for value in gradient.values()]).norm())
    for name, value in gradient.items():
        clipped = value * 1e-3 / norm
        direction = clipped / (clipped.abs() + 1e-8)
        decay = 0.5 if value.ndim == 2 else 0.0
        rate = 1e-2 * factors.get(name, 1.0)
        expected = before[name] * (1 - rate * decay) - rate * direction.float()
        torch.testing.assert_close(dict(task.model.named_parameters())[name].detach(), expected, rtol=0, atol=2e-4)
    assert torch.equal(task.model.frozen.weight, before["frozen.weight"])
