"""Several trainings in one stage, one after the other."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bertrelay.files import read_json, write_json
from bertrelay.process_group import wait_for_all
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.settings import TrainingSettings

AnyTraining = TypeVar("AnyTraining", bound=TrainingSettings)


def train_once(
    name: str, run: Callable[[AnyTraining, StageContext], Metrics], settings: AnyTraining, context: StageContext
) -> Path:
    """Trains by `run` with `settings`, unless an earlier call has finished it; returns the model folder.

    name: of the training's folder, below the stage's `work`.
    """
    precision = context.precision(settings.precision)
    inner = StageContext(context.work / name, context.cache, context.process_group)
    done = inner.output / "trained.json"
    if read_json(done) is None:
        inner.output.mkdir(parents=True, exist_ok=True)
        metrics = run(settings.model_copy(update={"precision": precision}), inner)
        if context.process_group.is_main:
            write_json(done, metrics)
            shutil.rmtree(inner.work, ignore_errors=True)  # its checkpoints
    wait_for_all(context.process_group)
    return inner.output / "model"
