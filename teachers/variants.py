"""Several trainings inside one stage: each in a folder of its own, done once, and gone on with after a kill."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertrelay.distributed import wait_for_all
from bertrelay.files import read_json, write_json
from bertrelay.settings import AnySettings
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.settings import TrainingSettings

DONE = "trained.json"


def trained(
    name: str, run: Callable[[AnySettings, StageContext], Metrics], settings: AnySettings, context: StageContext
) -> tuple[Path, Metrics]:
    """The model folder of the training `run` with `settings`, and its metrics; what was done before is not repeated.

    name: of the folder, below the stage's `work`.
    """
    inner = StageContext(context.work / name, context.cache, context.process_group)
    done = read_json(inner.output / DONE)
    if done is None:
        inner.output.mkdir(parents=True, exist_ok=True)
        done = run(settings, inner)
        if context.process_group.is_main:
            write_json(inner.output / DONE, done)
            shutil.rmtree(inner.work, ignore_errors=True)  # its checkpoints
    wait_for_all(context.process_group)
    return inner.output / "model", done


def training_keys(settings: TrainingSettings) -> dict[str, Any]:
    """What `settings` say of the training itself, to be handed on to a training inside the stage."""
    return {key: getattr(settings, key) for key in TrainingSettings.model_fields}
