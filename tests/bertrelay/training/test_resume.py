"""Trainings that were killed or stopped at any moment end with the weights of one that ran through, bit for bit."""

import json
import random
import signal
import threading
from multiprocessing.connection import wait

import pytest
import small_training
from forked import finish, kill
from small_training import DROPOUT, Fault, TwoLosses, logged, planned, result, run, stderr_of, train, training_settings
from torch import nn

from bertrelay.errors import RequestError, Stopped, WorkError
from bertrelay.training import checkpoint, loop

LAST = len(planned(TwoLosses()))
IN_A_CHECKPOINT = [
    Fault("update", 3),  # before the first checkpoint
    Fault("write_tensors", 2, "within"),  # half of the optimizer's file in the first one
    Fault("fsync", 2),
    Fault("fsync", 5),  # the folder's names
    Fault("rename", 1, "before"),
    Fault("rename", 1, "after"),
    Fault("write_tensors", 3, "within"),  # the best weights
    Fault("evaluate", 1, "after"),
    Fault("rename", 2, "before"),
    Fault("rmtree", 4, "within"),  # the files of the oldest one
    Fault("fsync", 7),
    Fault("update", 8, "after"),
]


def assert_same_end(folder, expected_folder, processes=1):
    for rank in range(processes):
        ended, expected = result(folder, rank), result(expected_folder, rank)
        assert (ended["weights"], ended["metrics"]) == (expected["weights"], expected["metrics"])
    constant = ["step", "epoch", "loss/mlm", "loss/nsp", "lr", "grad_norm", "padding_share", "score", "unmeasured"]
    lines, expected = (
        [{key: line.get(key) for key in constant} for line in logged(path)] for path in (folder, expected_folder)
    )
    assert lines == expected


@pytest.mark.promise(
    "A training killed in any phase of writing a checkpoint ends with the same weights", about="resume"
)
@pytest.mark.parametrize("settings", [{}, {"asynchronous": True}], ids=["waiting", "asynchronous"])
@pytest.mark.parametrize("processes", [1, 2])
def test_killed_in_every_act_of_a_checkpoint_it_ends_with_the_same_weights(
    tmp_path, uninterrupted, processes, settings
):
    for fault in IN_A_CHECKPOINT:
        codes = run(tmp_path, processes, settings=settings, faults=(fault,), **DROPOUT)
        assert codes[0] == -signal.SIGKILL, (fault, stderr_of(tmp_path))
    assert run(tmp_path, processes, settings=settings, **DROPOUT) == [0] * processes, stderr_of(tmp_path)
    assert_same_end(tmp_path, uninterrupted(processes), processes)


@pytest.mark.promise("On a GPU training continues while a checkpoint of its step is written", about="waiting")
def test_on_a_gpu_training_continues_while_a_checkpoint_of_its_step_is_written(tmp_path, monkeypatch):
    train(TwoLosses(criterion=None), training_settings(), tmp_path / "waiting")
    expected = sorted(tmp_path.glob("waiting/checkpoint-*"))
    save, threads = checkpoint.save_checkpoint, []
    next_step = threading.Event()

    def save_after_the_next_step(folder, captured):
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
    monkeypatch.setattr(checkpoint, "save_checkpoint", save_after_the_next_step)
    monkeypatch.setattr(loop, "is_asynchronous", lambda _: True)
    train(TwoLosses(criterion=None), training_settings(), tmp_path / "continuing")
    written = sorted(tmp_path.glob("continuing/checkpoint-*"))
    assert [folder.name for folder in written] == [folder.name for folder in expected]
    for name in ("model.safetensors", "optimizer.safetensors"):
        for one, other in zip(written, expected, strict=True):
            assert (one / name).read_bytes() == (other / name).read_bytes()
    assert len(threads) == 6 and all(name.startswith("checkpoints") for name in threads)


def test_an_error_of_the_thread_that_writes_a_checkpoint_ends_the_training(tmp_path, monkeypatch):
    def fail(*_):
        raise WorkError("the disk is full")

    monkeypatch.setattr(loop, "is_asynchronous", lambda _: True)
    monkeypatch.setattr(checkpoint, "save_checkpoint", fail)
    with pytest.raises(WorkError, match="the disk is full"):
        train(TwoLosses(criterion=None), training_settings(), tmp_path)


@pytest.mark.promise("A training killed at random moments ends with the same weights, bit for bit", about="resume")
def test_killed_at_random_moments_it_ends_with_the_same_weights(tmp_path, uninterrupted):
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
    assert_same_end(tmp_path, uninterrupted(1, epochs=15))


@pytest.mark.promise("A training in several processes resumes to the same weights", about="resume")
def test_three_processes_resume_exactly(tmp_path, uninterrupted):
    """Two add up a gradient in one order only; DDP's buckets decide the order of three."""
    assert run(tmp_path, 3, faults=(Fault("update", 18),), **DROPOUT)[0] == -signal.SIGKILL
    assert run(tmp_path, 3, **DROPOUT) == [0, 0, 0], stderr_of(tmp_path)
    assert_same_end(tmp_path, uninterrupted(3), 3)


def test_patience_ends_at_the_same_step_after_a_kill(tmp_path, uninterrupted):
    settings = {"patience": 3, "evaluate_every": 1, "epochs": 6}
    expected = uninterrupted(1, **settings)
    metrics = result(expected)["metrics"]
    assert 3 < metrics["train_steps"] == metrics["best_step"] + 3 < len(planned(TwoLosses(), epochs=6))
    settings["checkpoint_every"] = 1  # the third evaluation without a better score is in another process
    fault = Fault("save", int(metrics["train_steps"]) - 1, "after")
    assert run(tmp_path, settings=settings, faults=(fault,), **DROPOUT) == [-signal.SIGKILL]
    assert run(tmp_path, settings=settings, **DROPOUT) == [0]
    assert_same_end(tmp_path, expected)


def test_the_model_ends_with_the_best_weights(tmp_path):
    task = TwoLosses(dropout=0.2)
    metrics = train(task, training_settings(checkpoint_every=100), tmp_path)
    scores = {line["step"]: line["score"] for line in logged(tmp_path) if "score" in line}
    assert metrics["best_step"] == max(scores, key=scores.get) < metrics["train_steps"]
    assert task.evaluate()["score"] == scores[metrics["best_step"]] == metrics["score"]


@pytest.mark.promise("A damaged checkpoint costs steps, not bits", about="resume")
def test_a_damaged_checkpoint_costs_steps_and_no_bit(tmp_path, uninterrupted):
    run(tmp_path, faults=(Fault("update", 18),), **DROPOUT)
    file = tmp_path / "checkpoint-00000015" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert run(tmp_path, **DROPOUT) == [0]
    assert "checkpoint-00000015: this checkpoint is damaged" in stderr_of(tmp_path)
    assert "resuming after step 10 of" in stderr_of(tmp_path)
    assert_same_end(tmp_path, uninterrupted(1))


@pytest.mark.promise("Stop signals save and exit with their own code", about="resume")
@pytest.mark.parametrize(
    ("function", "call", "sent", "step", "processes"),
    [
        ("update", 7, signal.SIGINT, 7, 1),
        ("update", 7, signal.SIGHUP, 7, 1),
        ("progress", 1, signal.SIGTERM, 0, 1),  # before the first step, when the optimizer has nothing to save yet
        ("update", LAST, signal.SIGTERM, LAST, 1),
        ("update", 7, signal.SIGTERM, 7, 2),  # sent to the second process only
    ],
)
def test_a_signal_saves_and_ends_with_its_own_exit_code(tmp_path, uninterrupted, function, call, sent, step, processes):
    fault = Fault(function, call, sent=(sent,), rank=processes - 1)
    assert run(tmp_path, processes, faults=(fault,), **DROPOUT) == [128 + sent] * processes
    for rank in range(processes):
        assert f"stopped by {sent.name} after step {step} of {LAST}" in stderr_of(tmp_path, rank)
    assert (tmp_path / f"checkpoint-{step:08d}").is_dir()
    assert run(tmp_path, processes, **DROPOUT) == [0] * processes
    assert_same_end(tmp_path, uninterrupted(processes), processes)


def test_a_signal_while_the_best_weights_are_copied_does_not_mix_steps(tmp_path, monkeypatch):
    expected = train(TwoLosses(), training_settings(), tmp_path / "uninterrupted")
    copies = []

    def copy_under_a_signal(model):
        if not copies:
            copies.append(signal.raise_signal(signal.SIGTERM))
        return checkpoint.unique_tensors(model)

    monkeypatch.setattr(loop, "unique_tensors", copy_under_a_signal)
    with pytest.raises(Stopped, match="The same command resumes from here"):
        train(TwoLosses(), training_settings(), tmp_path)
    first = next(line for line in logged(tmp_path / "uninterrupted") if "score" in line)
    saved = max(tmp_path.glob("checkpoint-*"))
    assert (saved / "best.safetensors").is_file() and int(saved.name[-8:]) in (first["step"], first["step"] + 1)
    task = TwoLosses()
    metrics = train(task, training_settings(), tmp_path)
    assert metrics["best_step"] == expected["best_step"] and task.evaluate()["score"] == expected["score"]


@pytest.mark.promise("A signal ends an evaluation at once, and no step is trained twice", about="resume")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("call", "step"), [(2, 8), (-(-LAST // 4), LAST)], ids=["in-between", "after-the-last-step"])
def test_a_signal_ends_an_evaluation_at_once_and_no_step_is_trained_twice(
    tmp_path, uninterrupted, call, step, processes
):
    options = {"settings": {"checkpoint_every": 100}, **DROPOUT}
    faults = [Fault("evaluate", call, sent=(signal.SIGTERM,), rank=rank) for rank in range(processes)]
    assert run(tmp_path, processes, faults=faults, **options) == [128 + signal.SIGTERM] * processes
    assert [line["step"] for line in logged(tmp_path) if "score" in line] == list(range(4, step, 4))
    assert run(tmp_path, processes, **options) == [0] * processes
    assert f"resuming after step {step} of {LAST}" in stderr_of(tmp_path)
    assert (len(result(tmp_path)["seeds"]) < 2) == (step == LAST)  # DDP builds its buckets in one more
    assert_same_end(tmp_path, uninterrupted(processes), processes)


@pytest.mark.promise("A kill after the last step repeats no step", about="resume")
@pytest.mark.parametrize("settings", [{}, {"patience": 1}], ids=["all-steps", "out-of-patience"])
def test_a_kill_after_the_last_step_repeats_no_step(tmp_path, settings):
    options = {"settings": {"checkpoint_every": 100, **settings}, **DROPOUT}
    assert run(tmp_path, **options) == [0]
    first = result(tmp_path)
    assert run(tmp_path, **options) == [0]  # as a stage does whose last evaluation or saving was killed
    assert result(tmp_path) == {**first, "seeds": []}


def test_a_second_signal_acts_at_once(tmp_path):
    codes = run(tmp_path, faults=(Fault("update", 7, sent=(signal.SIGTERM, signal.SIGTERM)),))
    assert codes == [-signal.SIGTERM]
    assert not (tmp_path / "checkpoint-00000007").exists()


@pytest.mark.promise("A training in fp16 that was killed ends with the same bits", about="resume")
@pytest.mark.parametrize("processes", [1, 2])
def test_in_fp16_a_killed_training_resumes_with_the_scale_of_its_gradient(tmp_path, processes):
    folder, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    item = int(planned(TwoLosses())[1][0])  # of the second step of each epoch
    options = {"settings": {"precision": "fp16"}, "task": {"dropout": 0.2, "poisoned": item, "poison": 1e5}}
    for path, faults, code in ((folder, (), 0), (killed, (Fault("update", 18),), -signal.SIGKILL), (killed, (), 0)):
        path.mkdir(exist_ok=True)
        assert run(path, processes, faults=faults, **options)[0] == code, stderr_of(path)
    assert_same_end(killed, folder, processes)
    scalers = [
        json.loads(max(path.rglob("checkpoint.json")).read_text())["state"]["scaler"] for path in (killed, folder)
    ]
    assert scalers[0] == scalers[1]
    assert scalers[0]["scale"] < 2.0**15  # halved before the kill, and after it


def test_a_checkpoint_of_another_training_is_refused(tmp_path, monkeypatch):
    run(tmp_path, faults=(Fault("update", 7),))
    with pytest.raises(RequestError, match="expected to resume in fp32, found precision bf16"):
        train(TwoLosses(), training_settings(precision="bf16"), tmp_path)
    with pytest.raises(RequestError, match=r"a training of \d+ steps, found one of 27"):
        train(TwoLosses(items=40), training_settings(), tmp_path)
    saved = checkpoint.load_checkpoint(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(RequestError, match="a checkpoint of this version"):
        patch.setattr(loop, "load_checkpoint", lambda _: saved._replace(state=saved.state | {"later": 1}))
        train(TwoLosses(), training_settings(), tmp_path)
    task = TwoLosses()
    task.model.added = nn.Linear(2, 2)
    with pytest.raises(RequestError, match=r"differs in added\.bias, added\.weight"):
        train(task, training_settings(), tmp_path)
