"""The training loop: exact in its resuming, and in its gradients for any number of processes and micro-batches."""

import copy
import json
import random
import signal
import threading
from contextlib import closing
from multiprocessing.connection import wait

import numpy as np
import pytest
import small_training
import torch
from device_waits import Waits
from forked import finish, kill
from safetensors.torch import load_file
from small_training import SETTINGS, Fault, InBatch, TwoLosses, logged, planned, result, run, stderr_of
from torch import nn
from torch.nn import functional

from bertrelay.errors import RequestError, Stopped, WorkError
from bertrelay.training import checkpoint, loop
from bertrelay.training.batches import BatchSchedule, learning_rate, micro_batches
from bertrelay.training.loop import Training, train
from bertrelay.training.settings import TrainingSettings

DROPOUT = {"task": {"dropout": 0.2}}
IN_A_CHECKPOINT = [
    Fault("update", 3),  # before there is any
    Fault("write_tensors", 2, "within"),  # the optimizer's half in the first one
    Fault("fsync", 2),
    Fault("fsync", 5),  # the folder's names
    Fault("rename", 1, "before"),
    Fault("rename", 1, "after"),
    Fault("write_tensors", 3, "within"),  # the best weights
    Fault("evaluate", 1, "after"),
    Fault("rename", 2, "before"),
    Fault("rmtree", 4, "within"),  # the oldest one's files
    Fault("fsync", 7),
    Fault("update", 8, "after"),
]


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    """The folder of a training with dropout that ran through, by number of processes and further settings."""
    folders = {}

    def get(processes, **settings):
        key = (processes, *settings.items())
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("whole")
            codes = run(folders[key], processes, settings=settings, **DROPOUT)
            assert codes == [0] * processes, stderr_of(folders[key])
        return folders[key]

    return get


def assert_same_end(folder, whole, processes=1):
    for rank in range(processes):
        ended, expected = result(folder, rank), result(whole, rank)
        assert (ended["weights"], ended["metrics"]) == (expected["weights"], expected["metrics"])
    constant = ["step", "epoch", "loss/mlm", "loss/nsp", "lr", "grad_norm", "padding_share", "score", "unmeasured"]
    lines, whole_lines = ([{key: line.get(key) for key in constant} for line in logged(f)] for f in (folder, whole))
    assert lines == whole_lines


# Killed and resumed


@pytest.mark.parametrize("settings", [{}, {"asynchronous": True}], ids=["waiting", "asynchronous"])
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_in_every_act_of_a_checkpoint_a_training_ends_with_the_weights_of_one_never_stopped(
    tmp_path, never_stopped, processes, settings
):
    for fault in IN_A_CHECKPOINT:
        codes = run(tmp_path, processes, settings=settings, faults=(fault,), **DROPOUT)
        assert codes[0] == -signal.SIGKILL, (fault, stderr_of(tmp_path))
    assert run(tmp_path, processes, settings=settings, **DROPOUT) == [0] * processes, stderr_of(tmp_path)
    assert_same_end(tmp_path, never_stopped(processes), processes)


def test_a_gpu_trains_while_a_checkpoint_is_written_and_the_checkpoint_is_of_its_step(tmp_path, monkeypatch):
    train(TwoLosses(criterion=None), settings(), tmp_path / "waiting")
    expected = sorted(tmp_path.glob("waiting/checkpoint-*"))
    save, threads = checkpoint.save_checkpoint, []
    next_step = threading.Event()

    def save_during_the_next_step(folder, captured):
        assert captured.step == LAST or next_step.wait(20)
        save(folder, captured)
        threads.append(threading.current_thread().name)

    class Training(loop.Training):
        def step(self, *args):
            signal_number = super().step(*args)
            if self.state.step % 5 == 0:  # a checkpoint follows
                next_step.clear()
            else:
                next_step.set()
            return signal_number

    monkeypatch.setattr(loop, "Training", Training)
    monkeypatch.setattr(checkpoint, "save_checkpoint", save_during_the_next_step)
    monkeypatch.setattr(loop, "is_asynchronous", lambda _: True)
    train(TwoLosses(criterion=None), settings(), tmp_path / "continuing")
    written = sorted(tmp_path.glob("continuing/checkpoint-*"))
    assert [folder.name for folder in written] == [folder.name for folder in expected]
    for name in ("model.safetensors", "optimizer.safetensors"):
        for one, other in zip(written, expected, strict=True):
            assert (one / name).read_bytes() == (other / name).read_bytes()
    assert len(threads) == 6 and all(name.startswith("checkpoints") for name in threads)

    def fail(*_):
        raise WorkError("the disk is full")

    monkeypatch.setattr(checkpoint, "save_checkpoint", fail)
    with pytest.raises(WorkError, match="the disk is full"):
        train(TwoLosses(criterion=None), settings(), tmp_path / "failing")


def test_killed_at_random_moments_a_training_ends_with_the_weights_of_one_never_stopped(tmp_path, never_stopped):
    longer = {"settings": {"epochs": 15}, **DROPOUT}
    chance = random.Random(5)
    kills, codes = 0, []
    while codes != [0]:
        started = small_training.start(tmp_path, **longer)
        if kills < 8 and not wait([started[0].sentinel], timeout=chance.uniform(0.05, 0.25)):
            kill(started)
            kills += 1
        codes = finish(started)
    assert kills > 0
    assert_same_end(tmp_path, never_stopped(1, epochs=15))


def test_three_processes_resume_exactly_too(tmp_path, never_stopped):
    """Two add up a gradient in one order only; DDP's buckets decide the order of three."""
    assert run(tmp_path, 3, faults=(Fault("update", 18),), **DROPOUT)[0] == -signal.SIGKILL
    assert run(tmp_path, 3, **DROPOUT) == [0, 0, 0], stderr_of(tmp_path)
    assert_same_end(tmp_path, never_stopped(3), 3)


def test_patience_runs_out_at_the_same_step_in_a_killed_training(tmp_path, never_stopped):
    settings = {"patience": 3, "evaluate_every": 1, "epochs": 6}
    whole = never_stopped(1, **settings)
    metrics = result(whole)["metrics"]
    assert 3 < metrics["train_steps"] == metrics["best_step"] + 3 < len(planned(TwoLosses(), epochs=6))
    settings["checkpoint_every"] = 1  # the third look without a better score is in another process than the first
    fault = Fault("save", int(metrics["train_steps"]) - 1, "after")
    assert run(tmp_path, settings=settings, faults=(fault,), **DROPOUT) == [-signal.SIGKILL]
    assert run(tmp_path, settings=settings, **DROPOUT) == [0]
    assert_same_end(tmp_path, whole)


def test_the_best_weights_are_left_in_the_model_even_when_they_were_found_before_the_kill(tmp_path):
    task = TwoLosses(dropout=0.2)
    metrics = train(task, settings(checkpoint_every=100), tmp_path)
    scores = {line["step"]: line["score"] for line in logged(tmp_path) if "score" in line}
    assert metrics["best_step"] == max(scores, key=scores.get) < metrics["train_steps"]
    assert task.evaluate()["score"] == scores[metrics["best_step"]] == metrics["score"]


def test_a_damaged_checkpoint_costs_steps_and_no_bit(tmp_path, never_stopped):
    run(tmp_path, faults=(Fault("update", 18),), **DROPOUT)
    file = tmp_path / "checkpoint-00000015" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert run(tmp_path, **DROPOUT) == [0]
    assert "checkpoint-00000015: this checkpoint is damaged" in stderr_of(tmp_path)
    assert "resuming after step 10 of" in stderr_of(tmp_path)
    assert_same_end(tmp_path, never_stopped(1))


# Stopped by a signal


LAST = len(planned(TwoLosses()))


@pytest.mark.parametrize(
    ("function", "call", "sent", "step", "processes"),
    [
        ("update", 7, signal.SIGINT, 7, 1),
        ("update", 7, signal.SIGHUP, 7, 1),
        ("progress", 1, signal.SIGTERM, 0, 1),  # before the first step, when the optimizer has nothing to save yet
        ("update", LAST, signal.SIGTERM, LAST, 1),
        ("update", 7, signal.SIGTERM, 7, 2),  # which the second one alone gets
    ],
)
def test_a_signal_saves_and_ends_with_its_own_exit_code(tmp_path, never_stopped, function, call, sent, step, processes):
    fault = Fault(function, call, sent=(sent,), rank=processes - 1)
    assert run(tmp_path, processes, faults=(fault,), **DROPOUT) == [128 + sent] * processes
    for rank in range(processes):
        assert f"stopped by {sent.name} after step {step} of {LAST}" in stderr_of(tmp_path, rank)
    assert (tmp_path / f"checkpoint-{step:08d}").is_dir()
    assert run(tmp_path, processes, **DROPOUT) == [0] * processes
    assert_same_end(tmp_path, never_stopped(processes), processes)


def test_a_signal_while_the_best_weights_are_noted_leaves_them_those_of_their_step(tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    expected = train(TwoLosses(), settings(), whole)
    copied = []

    def copied_under_a_signal(model):
        if not copied:
            copied.append(signal.raise_signal(signal.SIGTERM))
        return checkpoint.unique_tensors(model)

    monkeypatch.setattr(loop, "unique_tensors", copied_under_a_signal)
    with pytest.raises(Stopped, match="The same command resumes from here"):
        train(TwoLosses(), settings(), tmp_path)
    first = next(line for line in logged(whole) if "score" in line)
    saved = max(tmp_path.glob("checkpoint-*"))
    assert (saved / "best.safetensors").is_file() and int(saved.name[-8:]) in (first["step"], first["step"] + 1)
    task = TwoLosses()
    metrics = train(task, settings(), tmp_path)
    assert metrics["best_step"] == expected["best_step"] and task.evaluate()["score"] == expected["score"]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("call", "step"), [(2, 8), (-(-LAST // 4), LAST)], ids=["in-between", "after-the-last-step"])
def test_a_signal_ends_an_evaluation_at_once_and_no_step_is_trained_twice(
    tmp_path, never_stopped, call, step, processes
):
    options = {"settings": {"checkpoint_every": 100}, **DROPOUT}
    faults = [Fault("evaluate", call, sent=(signal.SIGTERM,), rank=rank) for rank in range(processes)]
    assert run(tmp_path, processes, faults=faults, **options) == [128 + signal.SIGTERM] * processes
    assert [line["step"] for line in logged(tmp_path) if "score" in line] == list(range(4, step, 4))
    assert run(tmp_path, processes, **options) == [0] * processes
    assert f"resuming after step {step} of {LAST}" in stderr_of(tmp_path)
    assert (len(result(tmp_path)["seeds"]) < 2) == (step == LAST)  # DDP builds its buckets in one more
    assert_same_end(tmp_path, never_stopped(processes), processes)


@pytest.mark.parametrize("settings", [{}, {"patience": 1}], ids=["all-steps", "out-of-patience"])
def test_what_follows_a_training_may_be_killed_without_a_step_trained_twice(tmp_path, settings):
    options = {"settings": {"checkpoint_every": 100, **settings}, **DROPOUT}
    assert run(tmp_path, **options) == [0]
    first = result(tmp_path)
    assert run(tmp_path, **options) == [0]  # as a run does whose evaluation or saving was killed
    assert result(tmp_path) == {**first, "seeds": []}


def test_a_second_signal_acts_at_once(tmp_path):
    codes = run(tmp_path, faults=(Fault("update", 7, sent=(signal.SIGTERM, signal.SIGTERM)),))
    assert codes == [-signal.SIGTERM]
    assert not (tmp_path / "checkpoint-00000007").exists()


# Gradients


def reference(task, epoch, items, weights):
    """Losses and gradient of Σ sum/count over `items`, as one batch in float64."""
    model = copy.deepcopy(task.model).double().train()
    model.load_state_dict({name: tensor.double() for name, tensor in weights.items()}, strict=False)
    batch = task.collate(np.asarray(items), epoch)
    if isinstance(task, InBatch):
        sums = task.batch_losses(task.vectors(model, batch), np.asarray(items), epoch)
    else:
        sums = task.loss(model, batch)
    losses = {name: total / max(1, batch.counts[name]) for name, total in sums.items()}
    sum(losses.values()).backward()
    gradient = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: loss.item() for name, loss in losses.items()}, gradient


def assert_gradients_are_the_reference(folder, items_of_steps, lines, task):
    captured = load_file(folder / "gradients-0.safetensors")
    for step, ((epoch, batch), line) in enumerate(zip(items_of_steps, lines, strict=True)):
        weights = {name: captured[f"{step} weight {name}"] for name, _ in task.model.named_parameters()}
        losses, gradient = reference(task, epoch, batch, weights)
        found = {name: captured[f"{step} grad {name}"] for name in gradient}
        length = torch.cat([value.flatten() for value in gradient.values()]).norm()
        for name, expected in gradient.items():
            torch.testing.assert_close(found[name].double(), expected, rtol=0, atol=1e-6 * float(length))
        logged_losses = [line["loss"]] if len(losses) == 1 else [line[f"loss/{name}"] for name in losses]
        assert logged_losses == pytest.approx(list(losses.values()), rel=1e-5)
        assert line["grad_norm"] == pytest.approx(float(length), rel=1e-5)


@pytest.mark.parametrize("task", [TwoLosses, InBatch])
@pytest.mark.parametrize(
    ("processes", "device_tokens", "budget"),
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
def test_gradients_do_not_depend_on_processes_nor_on_micro_batches(tmp_path, processes, device_tokens, budget, task):
    """Two losses of different denominators, and one that compares all items, against one batch in float64."""
    given = {"device_tokens": device_tokens, "epochs": 1, "max_grad_norm": 1e9, **budget}
    others = {"batch_tokens": None, "batch_items": None}
    chosen = {**others, **given, "in_batch": task is InBatch}
    assert run(tmp_path, processes, settings=chosen, task={"items": 24}) == [0] * processes, stderr_of(tmp_path)
    task = task(items=24)
    schedule = BatchSchedule(task.lengths, settings(**others | given), getattr(task, "groups", None))
    steps = [schedule.batch(step) for step in range(schedule.total_steps)]
    lines = [line for line in logged(tmp_path) if "lr" in line]
    assert_gradients_are_the_reference(tmp_path, steps, lines, task)
    if processes > 1:
        gradients = [load_file(tmp_path / f"gradients-{rank}.safetensors") for rank in (0, 1)]
        assert all(torch.equal(gradients[1][name], value) for name, value in gradients[0].items())


def test_dropout_differs_by_step_process_and_micro_batch_and_comes_again(never_stopped, tmp_path):
    seeds = [result(never_stopped(2), rank)["seeds"] for rank in (0, 1)]
    for own in seeds:
        del own[0]  # from before the first step, which has the same seed
    assert len({*seeds[0], *seeds[1]}) == len(seeds[0]) + len(seeds[1]) > 2 * len(planned(TwoLosses()))
    assert run(tmp_path, 2, **DROPOUT) == [0, 0]
    assert result(tmp_path)["seeds"][1:] == seeds[0]


# What is refused, and what fails


def settings(**others):
    return TrainingSettings(**{**SETTINGS, **others})


def test_resuming_in_another_precision_with_other_data_or_another_network_is_refused(tmp_path, monkeypatch):
    run(tmp_path, faults=(Fault("update", 7),))
    with pytest.raises(RequestError, match="expected to resume in fp32, found precision bf16"):
        train(TwoLosses(), settings(precision="bf16"), tmp_path)
    with pytest.raises(RequestError, match=r"a training of \d+ steps, found one of 27"):
        train(TwoLosses(items=40), settings(), tmp_path)
    found = checkpoint.load_checkpoint(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(RequestError, match="a checkpoint of this version"):
        patched.setattr(loop, "load_checkpoint", lambda _: found._replace(state=found.state | {"later": 1}))
        train(TwoLosses(), settings(), tmp_path)
    task = TwoLosses()
    task.model.added = nn.Linear(2, 2)
    with pytest.raises(RequestError, match=r"differs in added\.bias, added\.weight"):
        train(task, settings(), tmp_path)
    with pytest.raises(RequestError, match="at least one training item"):
        train(TwoLosses(items=0), settings(), tmp_path)


@pytest.mark.parametrize(
    ("processes", "poison", "precision"),
    [(1, np.inf, "fp16"), (1, "loss alone", "fp32"), (2, np.inf, "fp32"), (2, "loss alone", "fp16")],
)
def test_a_non_finite_loss_stops_every_process_with_step_and_items(tmp_path, processes, poison, precision):
    task = TwoLosses()
    item = int(planned(task)[6][1])  # of the seventh step, and of the second process where there are two
    given = {"device_tokens": 1, "precision": precision}
    codes = run(tmp_path, processes, task={"poisoned": item, "poison": poison}, settings=given)
    assert codes == [1] * processes
    for rank in range(processes):
        error = stderr_of(tmp_path, rank)
        assert (
            f"step 7: expected finite numbers, found a non-finite one in the loss of training items [{item}]" in error
        )


# Waits for the device


class Quiet(TwoLosses):
    """The same losses without the choice of rows by a mask, whose number only the device knows."""

    def __init__(self, asks=False):
        super().__init__(criterion=None)
        self.asks = asks

    def loss(self, model, batch):
        words, is_next = model(batch.inputs["ids"], batch.inputs["attention_mask"])
        of_tokens = functional.cross_entropy(words.transpose(1, 2), batch.inputs["ids"], reduction="none")
        mlm = (of_tokens * batch.inputs["masked"]).sum()
        if self.asks:
            float(mlm.detach())
        return {"mlm": mlm, "nsp": functional.cross_entropy(is_next, batch.inputs["is_next"], reduction="sum")}


@pytest.mark.parametrize("asks", [False, True])
def test_between_two_lines_of_the_log_nothing_waits_for_the_device(tmp_path, monkeypatch, asks):
    monkeypatch.setattr(loop.Training, "_save", lambda _: None)  # after the last step it reads the weights
    with Waits() as waits:
        train(Quiet(asks), settings(log_every=4, checkpoint_every=1000, device_tokens=1000), tmp_path)
    steps = logged(tmp_path)[-1]["step"]
    assert steps > 12 and len(logged(tmp_path)) == -(-steps // 4)
    assert waits.count == -(-steps // 4) + asks * steps


def test_the_weights_before_a_gradient_that_is_not_finite_stay_whenever_it_is_seen(tmp_path):
    task, known = TwoLosses(criterion=None), TwoLosses(criterion=None)
    task.poisoned = int(planned(task)[6][1])  # of the seventh step
    few = settings(log_every=1000, checkpoint_every=1000)
    with pytest.raises(WorkError, match="step 7: expected finite numbers"):
        train(task, few, tmp_path / "seen late")
    training = Training(known, few, tmp_path / "known", tmp_path / "known")
    with closing(training.rank_batches()) as batches:
        for _ in range(6):
            training.step(batches)
    for (name, weight), expected in zip(task.model.named_parameters(), known.model.parameters(), strict=True):
        assert torch.equal(weight, expected), name


# fp16


@pytest.mark.parametrize("processes", [1, 2])
def test_in_fp16_a_killed_training_resumes_with_the_scale_of_its_gradient(tmp_path, processes):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    item = int(planned(TwoLosses())[1][0])  # of the second step of each epoch
    given = {"settings": {"precision": "fp16"}, "task": {"dropout": 0.2, "poisoned": item, "poison": 1e5}}
    for folder, faults, code in ((whole, (), 0), (killed, (Fault("update", 18),), -signal.SIGKILL), (killed, (), 0)):
        folder.mkdir(exist_ok=True)
        assert run(folder, processes, faults=faults, **given)[0] == code, stderr_of(folder)
    assert_same_end(killed, whole, processes)
    states = [json.loads(max(folder.rglob("checkpoint.json")).read_text())["state"] for folder in (killed, whole)]
    assert states[0]["scaler"] == states[1]["scaler"]
    assert states[0]["scaler"]["scale"] < 2.0**15  # halved before the kill, and after it


def test_a_gradient_that_overflows_in_fp16_makes_no_update_and_halves_the_scale(tmp_path, capsys):
    task = TwoLosses(criterion=None, poison=1e5)
    task.poisoned = int(planned(task)[6][1])  # of the seventh step
    training = Training(task, settings(precision="fp16", log_every=1000), tmp_path, tmp_path)
    still = []
    with closing(training.rank_batches()) as batches:
        for step in range(1, 9):
            before = copy.deepcopy(task.model.state_dict())
            training.step(batches)
            if all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items()):
                still.append(step)
    training._save()
    lines = [f"step {step}: no update, as the gradient overflows in fp16; its scale is halved" for step in still]
    assert [line for line in capsys.readouterr().err.splitlines() if "overflows" in line] == lines
    assert still[-1] == 7 and len(still) < 4  # the scale begins too large for this network
    state = json.loads((tmp_path / "checkpoint-00000008/checkpoint.json").read_text())["state"]
    assert (state["scaler"]["scale"], state["scaler"]["_growth_tracker"]) == (2.0 ** (16 - len(still)), 1)


def test_a_gradient_that_no_scale_makes_finite_stops_the_training(tmp_path):
    task = TwoLosses(items=12, criterion=None, poison=1e30)
    task.poisoned = 0
    with pytest.raises(WorkError, match="found a non-finite one in the gradient, with a finite loss"):
        train(task, settings(precision="fp16", epochs=60, batch_tokens=1000), tmp_path)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_gradient_of_16_bits_is_the_one_in_fp32_but_for_rounding(tmp_path, precision):
    norms = {}
    for each in ("fp32", precision):
        given = settings(precision=each, epochs=1, learning_rate=1e-12)
        train(TwoLosses(criterion=None), given, tmp_path / each)
        norms[each] = [line["grad_norm"] for line in logged(tmp_path / each) if "lr" in line]
    compared = [pair for pair in zip(norms[precision], norms["fp32"], strict=True) if pair[0] is not None]
    assert len(compared) > 5  # the scale of fp16 begins too large for this network
    for found, expected in compared:
        assert found == pytest.approx(expected, rel=0.02) and found != expected


# Updates and logs


def test_a_step_is_the_one_adamw_takes_with_the_clipped_gradient(tmp_path):
    """One step by hand: m/√v is ±1 in the first, so a weight moves by the rate, and decays by rate · decay."""
    task, factors = TwoLosses(criterion=None), {"mix.weight": 3.0, "mix.bias": 20.0}
    task.rate_factors = lambda: factors
    before = {name: value.detach().clone() for name, value in task.model.named_parameters()}
    train(task, settings(epochs=1, batch_tokens=10_000, warmup=0, max_grad_norm=1e-3, weight_decay=0.5), tmp_path)
    _, gradient = reference(TwoLosses(), 0, np.arange(48), {})
    length = float(torch.cat([value.flatten() for value in gradient.values()]).norm())
    for name, grad in gradient.items():
        clipped = grad * 1e-3 / length
        moved = clipped / (clipped.abs() + 1e-8)
        decay = 0.5 if grad.ndim == 2 else 0.0
        rate = 1e-2 * factors.get(name, 1.0)
        expected = before[name] * (1 - rate * decay) - rate * moved.float()
        torch.testing.assert_close(dict(task.model.named_parameters())[name].detach(), expected, rtol=0, atol=2e-4)
    assert torch.equal(task.model.frozen.weight, before["frozen.weight"])


def test_the_log_has_each_step_once(never_stopped):
    lines = [line for line in logged(never_stopped(1)) if "lr" in line]
    task = TwoLosses()
    batches = planned(task)
    assert [line["step"] for line in lines] == list(range(1, len(batches) + 1))
    for line, batch in zip(lines, batches, strict=True):
        assert line["lr"] == learning_rate(line["step"] - 1, len(batches), settings())
        assert line["tokens_per_second"] > 0
        assert line["memory_mb"] > 10
        padded = sum(
            len(items) * task.lengths[items].max() for items in micro_batches(batch, task.lengths, task.lengths, 24)
        )
        assert line["padding_share"] == pytest.approx(1 - task.lengths[batch].sum() / padded)
    assert [line["epoch"] for line in lines] == sorted(line["epoch"] for line in lines)
    assert {line["epoch"] for line in lines} == {0, 1, 2}


def test_lines_of_several_steps_hold_the_means_over_all_their_items(tmp_path):
    """The sum of losses over the sum of counts, not a mean of means."""
    frozen = {"learning_rate": 1e-30, "epochs": 1, "log_every": 3, "weight_decay": 0.0}
    task = TwoLosses(criterion=None)
    train(task, settings(**frozen), tmp_path)
    first_three = np.concatenate(planned(TwoLosses())[:3])
    losses, _ = reference(TwoLosses(), 0, first_three, {})
    line = logged(tmp_path)[0]
    assert line["step"] == 3
    assert (line["loss/mlm"], line["loss/nsp"]) == pytest.approx((losses["mlm"], losses["nsp"]), rel=1e-5)


def test_evaluation_is_once_an_epoch_by_default_and_a_missing_metric_selects_nothing(tmp_path):
    task = TwoLosses()
    task.evaluate = lambda _: {"score": None}
    metrics = train(task, settings(evaluate_every=None), tmp_path)
    ends = np.cumsum([len(planned(task, epochs=n + 1)) - len(planned(task, epochs=n)) for n in range(3)])
    assert [line["step"] for line in logged(tmp_path) if "score" in line] == ends.tolist()
    assert "best_step" not in metrics and metrics["train_steps"] == 27


@pytest.mark.parametrize("before", [False, True])
def test_deterministic_algorithms_are_used_where_that_is_asked_and_stay_as_they_were(tmp_path, before):
    task, found = TwoLosses(), []
    task.evaluate = lambda _: found.append(torch.are_deterministic_algorithms_enabled()) or {"score": None}
    torch.use_deterministic_algorithms(before)
    try:
        for deterministic in (False, True):
            train(task, settings(deterministic=deterministic, epochs=1), tmp_path / str(deterministic))
            assert torch.are_deterministic_algorithms_enabled() == before and found.pop() == (deterministic or before)
    finally:
        torch.use_deterministic_algorithms(False)


def test_backward_passes_are_in_tf32_where_the_training_is(tmp_path, monkeypatch):
    monkeypatch.setattr("bertrelay.training.loop.resolve_precision", lambda precision, _: precision)
    task, seen = TwoLosses(criterion=None), set()
    for parameter in filter(lambda each: each.requires_grad, task.model.parameters()):
        parameter.register_hook(lambda _: seen.add(torch.backends.cuda.matmul.fp32_precision))
    before = torch.backends.cuda.matmul.fp32_precision
    train(task, settings(precision="tf32", epochs=1), tmp_path)
    assert seen == {"tf32"} != {before}
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_a_tracker_gets_what_the_log_has(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run(tmp_path, settings={"tracker": "tensorboard"}) == [0], stderr_of(tmp_path)
    (file,) = tmp_path.rglob("events.out.tfevents*")
    events = EventAccumulator(str(file)).Reload()
    tracked = {event.step: event.value for event in events.Scalars("loss/mlm")}
    assert tracked == pytest.approx({line["step"]: line["loss/mlm"] for line in logged(tmp_path) if "lr" in line})
