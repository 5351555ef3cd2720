"""Stages that do almost nothing, for tests of what runs them."""

import os
import signal
import types
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from bertrelay.errors import WorkError
from bertrelay.settings import RUN_ONLY, HubDataset, InputFile, ModelSource, Settings
from bertrelay.stage import Stage


class Corpus(Settings):
    path: InputFile
    language: str


class TeachSettings(Settings):
    """Teaches."""

    data: InputFile | None = None
    base: ModelSource | None = None
    hub: HubDataset | None = None
    epochs: int = Field(1, ge=1)
    rate: float = 0.1
    pooling: Literal["cls", "mean"] = "mean"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    workers: Annotated[int, RUN_ONLY] = 1
    seed: int = 0


class LearnSettings(Settings):
    """Learns."""

    teacher: ModelSource
    parallel: list[Corpus] = Field(default_factory=list)
    epochs: int = 1
    seed: int = 0


class ScoreSettings(Settings):
    """Scores."""

    model: ModelSource
    facet: str | None = None


class SlowSettings(Settings):
    """Takes its time."""

    steps: int = 3
    block_at: Annotated[int, RUN_ONLY] = 0
    fail: Annotated[str, RUN_ONLY] = ""
    megabytes: Annotated[int, RUN_ONLY] = 0


def teach(settings, context):
    (context.output / "model").mkdir(exist_ok=True)
    (context.output / "model" / "weights.txt").write_text(f"{settings.epochs} {settings.seed}")
    return {"score": settings.epochs + settings.seed, "unmeasured": None}


def learn(settings, context):
    (context.output / "model").mkdir(exist_ok=True)
    teacher = (Path(settings.teacher) / "weights.txt").read_text()
    (context.output / "model" / "weights.txt").write_text(f"learnt from {teacher}")
    return {"score": float(teacher.split()[1]) * 2}


def score(settings, context):  # noqa: ARG001
    return {"score": len((Path(settings.model) / "weights.txt").read_text())}


def slow(settings, context):
    """Appends a line per step to `steps.txt` and resumes from the lines that stand there."""
    file = context.output / f"steps-{context.process_group.rank}.txt"
    done = file.read_text().splitlines() if file.exists() else []
    for step in range(len(done) + 1, settings.steps + 1):
        with file.open("a") as out:
            out.write(f"{os.getpid()}\n")
        if step == settings.block_at:
            print(f"blocked {os.getpid()}", flush=True)
            while True:
                signal.pause()
    if settings.fail == f"rank {context.process_group.rank}":
        raise WorkError("the loss is not finite at step 3")
    if settings.fail == "unforeseen":
        raise KeyError("the patient's name")
    if settings.megabytes:
        (context.output / "large.bin").write_bytes(b"x" * 1_000_000 * settings.megabytes)
    return {"resumed_from": len(done)}


def write_report(run_folder):
    (run_folder / "report.html").write_text("<html>")


page = types.ModuleType("pipelines.report.page")
"""In place of the real one, which draws."""
page.write_report = write_report

HERE = "light_stages"
REGISTRY = (
    Stage("light.teach", 1, f"{HERE}:TeachSettings", f"{HERE}:teach"),
    Stage("light.learn", 1, f"{HERE}:LearnSettings", f"{HERE}:learn"),
    Stage("light.score", 1, f"{HERE}:ScoreSettings", f"{HERE}:score"),
    Stage("light.slow", 1, f"{HERE}:SlowSettings", f"{HERE}:slow"),
)
