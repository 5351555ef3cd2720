"""The training loop besides gradients and resuming: what it refuses, waits for, evaluates and logs."""

import numpy as np
import pytest
import torch
from device_waits import Waits
from small_training import TwoLosses, logged, planned, reference, run, stderr_of, train, training_settings
from torch.nn import functional

from bertrelay.errors import RequestError
from bertrelay.training import loop
from bertrelay.training.batches import learning_rate, micro_batches


def test_a_training_without_items_is_refused(tmp_path):
    with pytest.raises(RequestError, match="at least one training item"):
        train(TwoLosses(items=0), training_settings(), tmp_path)


class MasksByWeight(TwoLosses):
    """The same losses, without selecting rows by a mask: only the device knows their number.

    waits: read the loss in every step.
    """

    def __init__(self, waits=False):
        super().__init__(criterion=None)
        self.waits = waits

    def loss(self, model, batch):
        words, is_next = model(batch.inputs["ids"], batch.inputs["attention_mask"])
        token_losses = functional.cross_entropy(words.transpose(1, 2), batch.inputs["ids"], reduction="none")
        mlm = (token_losses * batch.inputs["masked"]).sum()
        if self.waits:
            float(mlm.detach())
        return {"mlm": mlm, "nsp": functional.cross_entropy(is_next, batch.inputs["is_next"], reduction="sum")}


@pytest.mark.promise("Between two lines of the log a training waits for no device", about="waiting")
@pytest.mark.parametrize("waits_in_loss", [False, True])
def test_between_two_lines_of_the_log_nothing_waits_for_the_device(tmp_path, monkeypatch, waits_in_loss):
    monkeypatch.setattr(loop.Training, "_save", lambda _: None)  # after the last step it reads the weights
    settings = training_settings(log_every=4, checkpoint_every=1000, device_tokens=1000)
    with Waits() as waits:
        train(MasksByWeight(waits_in_loss), settings, tmp_path)
    steps = logged(tmp_path)[-1]["step"]
    assert steps > 12 and len(logged(tmp_path)) == -(-steps // 4)
    assert waits.count == -(-steps // 4) + waits_in_loss * steps


def test_the_log_has_each_step_once(uninterrupted):
    lines = [line for line in logged(uninterrupted(1)) if "lr" in line]
    task = TwoLosses()
    batches = planned(task)
    assert [line["step"] for line in lines] == list(range(1, len(batches) + 1))
    for line, batch in zip(lines, batches, strict=True):
        assert line["lr"] == learning_rate(line["step"] - 1, len(batches), training_settings())
        assert line["tokens_per_second"] > 0
        assert line["memory_mb"] > 10
        padded = sum(
            len(items) * task.lengths[items].max() for items in micro_batches(batch, task.lengths, task.lengths, 24)
        )
        assert line["padding_share"] == pytest.approx(1 - task.lengths[batch].sum() / padded)
    assert [line["epoch"] for line in lines] == sorted(line["epoch"] for line in lines)
    assert {line["epoch"] for line in lines} == {0, 1, 2}


def test_a_line_of_several_steps_has_the_mean_over_all_their_items(tmp_path):
    """The sum of losses over the sum of counts, not a mean of means."""
    constant_weights = {"learning_rate": 1e-30, "weight_decay": 0.0}
    train(TwoLosses(criterion=None), training_settings(**constant_weights, epochs=1, log_every=3), tmp_path)
    first_three = np.concatenate(planned(TwoLosses())[:3])
    losses, _ = reference(TwoLosses(), 0, first_three, {})
    line = logged(tmp_path)[0]
    assert line["step"] == 3
    assert (line["loss/mlm"], line["loss/nsp"]) == pytest.approx((losses["mlm"], losses["nsp"]), rel=1e-5)


def test_evaluation_is_once_an_epoch_by_default_and_a_missing_metric_selects_nothing(tmp_path):
    task = TwoLosses()
    task.evaluate = lambda _: {"score": None}
    metrics = train(task, training_settings(evaluate_every=None), tmp_path)
    ends = np.cumsum([len(planned(task, epochs=n + 1)) - len(planned(task, epochs=n)) for n in range(3)])
    assert [line["step"] for line in logged(tmp_path) if "score" in line] == ends.tolist()
    assert "best_step" not in metrics and metrics["train_steps"] == 27


@pytest.mark.parametrize("before", [False, True])
def test_deterministic_algorithms_are_used_if_requested_and_the_setting_is_restored(tmp_path, before):
    task, seen = TwoLosses(), []
    task.evaluate = lambda _: seen.append(torch.are_deterministic_algorithms_enabled()) or {"score": None}
    torch.use_deterministic_algorithms(before)
    try:
        for deterministic in (False, True):
            train(task, training_settings(deterministic=deterministic, epochs=1), tmp_path / str(deterministic))
            assert torch.are_deterministic_algorithms_enabled() == before and seen.pop() == (deterministic or before)
    finally:
        torch.use_deterministic_algorithms(False)


def test_backward_passes_are_in_tf32_if_the_training_is(tmp_path):
    task, seen = TwoLosses(criterion=None), set()
    for parameter in filter(lambda parameter: parameter.requires_grad, task.model.parameters()):
        parameter.register_hook(lambda _: seen.add(torch.backends.cuda.matmul.fp32_precision))
    before = torch.backends.cuda.matmul.fp32_precision
    train(task, training_settings(precision="tf32", epochs=1), tmp_path)
    assert seen == {"tf32"} != {before}
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_a_tracker_gets_the_values_of_the_log(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run(tmp_path, settings={"tracker": "tensorboard"}) == [0], stderr_of(tmp_path)
    (file,) = tmp_path.rglob("events.out.tfevents*")
    events = EventAccumulator(str(file)).Reload()
    tracked = {event.step: event.value for event in events.Scalars("loss/mlm")}
    assert tracked == pytest.approx({line["step"]: line["loss/mlm"] for line in logged(tmp_path) if "lr" in line})
