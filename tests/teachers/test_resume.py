"""The trainings of teachers and students: killed and resumed, and shared by two processes."""

import hashlib
import json
import os

import pytest
from forked import CONTEXT, finish, rank_environments
from official_files import write_official_files

from bertrelay.cache import Cache
from bertrelay.evaluation import statistics
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, join_processes
from bertrelay.stage import StageContext
from bertrelay.training.loop import Training
from pipelines.registry import REGISTRY

TRAINING = {"epochs": 2, "batch_items": 8, "learning_rate": 1e-3, "checkpoint_every": 2, "log_every": 1, "seed": 3}
IN_BATCH = ["contrastive", "angle", "distill-contrastive"]
"""Trainings whose losses compare the items of a batch."""
NAMES = ["train", "cross-encoder", "ten-fold", "distill", *IN_BATCH]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    write_official_files(folder)
    return folder


@pytest.fixture(scope="module")
def base(data, tiny_encoder, tmp_path_factory):
    """The folder of a small BERT, with dropout or without."""
    texts = (data / "STS/STSBenchmark/sts-train.csv").read_text().splitlines()
    folder = tmp_path_factory.mktemp("base")
    for name, sizes in (("True", {}), ("False", NO_DROPOUT)):
        tiny_encoder("bert", texts, layers=1, sizes=sizes).save(folder / name)
    return lambda dropout: folder / str(dropout)


def stage_of(name, data, base, dropout=False):
    """The kind of stage and its settings."""
    sts = {part: {"path": str(data / f"STS/STSBenchmark/sts-{part}.csv"), "format": "tsv"} for part in ("train", "dev")}
    scored = {part: [{**table, "header": False, "columns": [5, 6, 4]}] for part, table in sts.items()}
    columns = ["sentence1", "sentence2", "gold_label"]
    labelled = {
        part: [{"path": str(data / f"snli_1.0/snli_1.0_{part}.jsonl"), "columns": columns}] for part in ("train", "dev")
    }
    shared = {**TRAINING, "precision": "fp32", "base": str(base)}
    pairs = {**sts["train"], "header": False, "english": 5, "others": {"de": 6}}
    student = {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 120, "max_tokens": 32, "dropout": 0.1 * dropout}
    distill = {"teacher": str(base), "base": student, "parallel": [pairs], "dev_sentences": 6}
    # Not retention: at its start its gradient is rounding alone, which AdamW makes as large as any other.
    objectives = dict.fromkeys(("cosine", "contrastive", "ranking"), 1.0)
    contrasted = {**distill, "objectives": {**objectives, "candidates": 8, "dimensions": [8]}}
    # The label is a text like another: a hard negative of every anchor.
    guided = {**labelled, "objective": "contrastive", "dimensions": [8], "guide": str(base)}
    return {
        "train": ("teachers.train", {**shared, **labelled, "objective": "softmax", "dropout": 0.2 * dropout}),
        "cross-encoder": ("teachers.cross-encoder", {**shared, **scored}),
        "ten-fold": ("teachers.facets", {**shared, "data": str(data), "folds": 2}),
        "distill": ("students.distill", {**shared, **distill}),
        "contrastive": ("teachers.train", {**shared, **guided}),
        "angle": ("teachers.train", {**shared, **scored, "objective": "angle"}),
        "distill-contrastive": ("students.distill", {**shared, **contrasted}),
    }[name]


def learn(folder, kind, settings, process_group=SINGLE_PROCESS):
    for name in ("output", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    [stage] = [stage for stage in REGISTRY if stage.kind == kind]
    context = StageContext(folder / "output", Cache(folder / "cache"), process_group)
    return stage.load_run()(stage.load_settings().model_validate(settings), context)


def weights(folder):
    """The digests of all weights that a stage wrote, also those of trainings inside it."""
    files = [path for kind in ("model", "head") for path in sorted((folder / "output").rglob(f"{kind}/*.safetensors"))]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def losses(folder):
    """The loss of every step of every training; where there are several, their sum."""
    by_training = {}
    for path in sorted((folder / "output").rglob("metrics.jsonl")):
        lines = map(json.loads, path.read_text().splitlines())
        steps = ([value for name, value in line.items() if name.split("/")[0] == "loss"] for line in lines)
        by_training[str(path.relative_to(folder))] = [sum(parts) for parts in steps if parts]
    return by_training


def learn_all(stages_file, environment):
    """Runs all stages in one of the two processes."""
    os.environ.update(environment)
    process_group = ProcessGroup.from_environment()
    with join_processes(process_group):  # left at the end, as a thread of the group would sometimes abort the exit
        for name, (kind, settings) in json.loads(stages_file.read_text()).items():
            folder = stages_file.parent / name
            metrics = learn(folder, kind, settings, process_group)
            if process_group.is_main:
                (folder / "metrics.json").write_text(json.dumps(metrics))


class Killed(BaseException):
    """Ends a training at once like a kill: nothing is saved."""


def learn_until_the_last_step_but_one(folder, kind, settings, monkeypatch):
    """Kills a training in `killed` before the last step that it has in `whole`; of several, the last one."""
    update, steps = Training._update, 0
    killed_at = sum(map(len, losses(folder / "whole").values())) - 1

    def killed_after(self):
        nonlocal steps
        update(self)
        steps += 1
        if steps == killed_at:
            raise Killed

    with monkeypatch.context() as killing:
        killing.setattr(Training, "_update", killed_after)
        with pytest.raises(Killed):
            learn(folder / "killed", kind, settings)


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_and_resumed_training_ends_with_the_same_weights(data, base, tmp_path, monkeypatch, name):
    monkeypatch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
    kind, settings = stage_of(name, data, base(True), dropout=True)
    expected = learn(tmp_path / "whole", kind, settings)
    learn_until_the_last_step_but_one(tmp_path, kind, settings, monkeypatch)
    metrics = learn(tmp_path / "killed", kind, settings)
    untimed = {key for key in expected if key != "train_seconds"}
    assert {key: metrics[key] for key in untimed} == {key: expected[key] for key in untimed}
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole") != {}
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


@pytest.mark.promise(
    "A stage that began where `auto` is bf16 ends with the same bits on a machine where it is fp32", about="resume"
)
@pytest.mark.parametrize("name", ["train", "ten-fold", "distill"])
def test_begun_where_auto_is_bf16_it_ends_with_the_same_weights_where_it_is_fp32(
    data, base, tmp_path, monkeypatch, name
):
    kind, settings = stage_of(name, data, base(True))
    settings = {**settings, "precision": "auto"}
    monkeypatch.setattr("bertrelay.device.computes_in_bf16", lambda *_: True)
    learn(tmp_path / "whole", kind, settings)
    learn_until_the_last_step_but_one(tmp_path, kind, settings, monkeypatch)
    monkeypatch.setattr("bertrelay.device.computes_in_bf16", lambda *_: False)
    learn(tmp_path / "killed", kind, settings)
    learn(tmp_path / "other", kind, settings)
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole") != weights(tmp_path / "other")


def test_two_processes_learn_the_same_as_one_with_micro_batches_too(data, base, tmp_path):
    stages = {name: stage_of(name, data, base(False)) for name in NAMES}
    stages = {name: (kind, {**settings, "epochs": 1}) for name, (kind, settings) in stages.items()}
    (tmp_path / "two").mkdir()
    in_parts = {name: {"device_tokens": 50} if name in IN_BATCH else {} for name in NAMES}
    shared_out = {name: (kind, {**settings, **in_parts[name]}) for name, (kind, settings) in stages.items()}
    (tmp_path / "two/stages.json").write_text(json.dumps(shared_out))
    environments = [{**arguments, "OMP_NUM_THREADS": "1"} for arguments in rank_environments(2)]
    both = [(tmp_path / "two/stages.json", environment) for environment in environments]
    started = [CONTEXT.Process(target=learn_all, args=arguments) for arguments in both]
    for process in started:
        process.start()
    assert finish(started) == [0, 0]
    for name, (kind, settings) in stages.items():
        expected = learn(tmp_path / name, kind, settings)
        by_one, by_two = losses(tmp_path / name), losses(tmp_path / "two" / name)
        assert by_one.keys() == by_two.keys() and by_one
        for training, values in by_one.items():
            assert by_two[training] == pytest.approx(values, rel=3e-4), training  # rounding, over some steps
        metrics = json.loads((tmp_path / "two" / name / "metrics.json").read_text())
        untimed = {key: value for key, value in expected.items() if key not in ("train_seconds", "best_step")}
        assert {key: metrics[key] for key in untimed} == pytest.approx(untimed, abs=0.02), name
