"""The log of a training: `metrics.jsonl`, with a line every few steps and one for each evaluation, and trackers."""

import importlib.util
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import DistributedType

from bertrelay.device import CUBLAS_CONFIG
from bertrelay.errors import RequestError
from bertrelay.files import write_text
from bertrelay.memory import private_memory_mb
from bertrelay.process_group import TIMEOUT
from bertrelay.progress import log

LOG = "metrics.jsonl"


def accelerator(tracker: str | None = None, folder: Path | None = None) -> Accelerator:
    """Accelerate, for devices, processes and trackers; precision is left to `bertrelay.device.autocast`.

    tracker: `tensorboard`, `wandb` or `mlflow`, which writes below `folder`; call within `tracking`.
    Raises RequestError for anything but data parallelism.
    """
    os.environ.setdefault(*CUBLAS_CONFIG)
    timeout = InitProcessGroupKwargs(timeout=TIMEOUT)
    connected = Accelerator(mixed_precision="no", log_with=tracker, project_dir=folder, kwargs_handlers=[timeout])
    if connected.distributed_type in {DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM}:
        raise RequestError(
            f"expected data-parallel processes, found {connected.distributed_type.value}: each process "
            "holds the whole model here. Run `accelerate config` and choose no FSDP, DeepSpeed or Megatron."
        )
    if tracker:
        connected.init_trackers("bertrelay", init_kwargs=_wandb_options(folder) if tracker == "wandb" else {})
    return connected


@contextmanager
def tracking(tracker: str | None, folder: Path) -> Iterator[None]:
    """Points a tracker to `folder` for one training, unless the environment names another location.

    At the end the environment is as before, and a run that failed is ended, as another training of this process would
    continue it.
    """
    if tracker and importlib.util.find_spec(tracker) is None:  # Accelerate does not check it
        raise RequestError(
            f"tracker: {tracker} is not installed; install the extra `trackers`, or leave the setting out"
        )
    defaults = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db", "MLFLOW_DISABLE_TELEMETRY": "true"}
    added = {name: value for name, value in defaults.items() if tracker == "mlflow" and name not in os.environ}
    os.environ.update(added)
    try:
        yield
    except BaseException:
        loaded = sys.modules.get(tracker or "")
        with suppress(Exception):  # the error of the training is the one to report
            if loaded and tracker == "mlflow":
                loaded.end_run("FAILED")
            elif loaded and tracker == "wandb":
                loaded.finish(1)
        raise
    finally:
        for name in added:
            os.environ.pop(name, None)


def _wandb_options(folder: Path | None) -> dict[str, dict[str, str]]:
    """Folder and mode of wandb, passed with each run, as wandb reads the environment once in a process."""
    target, mode = os.environ.get("WANDB_DIR", str(folder or Path.cwd())), os.environ.get("WANDB_MODE", "offline")
    if mode == "offline":
        log(
            f"tracker: wandb writes offline, into {target}/wandb, and sends nothing. `wandb sync` sends it later, "
            "WANDB_MODE=online in the environment at once"
        )
    return {"wandb": {"dir": target, "mode": mode, "reinit": "finish_previous"}}


class TrainingLog:
    """Adds up the losses of steps in every process; the main process writes the means over all of them."""

    def __init__(self, folder: Path, accelerator: Accelerator, tracked: bool) -> None:
        self.path, self.accelerator, self.tracked = folder / LOG, accelerator, tracked
        self._clear()

    def add(self, sums: Mapping[str, float], counts: Mapping[str, int], tokens: int, padded: int) -> None:
        """Adds a step: the summed losses, tokens and padded tokens of this process; counts are of all processes."""
        self._counts.update(counts)  # a Counter adds them
        for name, value in {**sums, "tokens": tokens, "padded": padded}.items():
            self._sums[name] += value

    def write_steps(self, step: int, epoch: int, rate: float, grad_norm: float | None, seconds: float) -> None:
        """Writes the line of the steps since the last one."""
        totals: dict[str, float] = self._sums
        if self.accelerator.num_processes > 1:
            sums = torch.tensor(list(self._sums.values()), dtype=torch.float32, device=self.accelerator.device)
            totals = dict(zip(self._sums, self.accelerator.reduce(sums, "sum").tolist(), strict=True))
        losses = {f"loss/{name}": totals[name] / max(1, count) for name, count in self._counts.items()}
        elapsed = max(time.monotonic() - self._since, 1e-9)
        self.write(
            {
                "step": step,
                "epoch": epoch,
                **(losses if len(losses) > 1 else {"loss": next(iter(losses.values()))}),
                "lr": rate,
                "grad_norm": grad_norm,
                "tokens_per_second": totals["tokens"] / elapsed,
                "padding_share": 1 - totals["tokens"] / max(1.0, totals["padded"]),
                "memory_mb": private_memory_mb(),
                "seconds": seconds,
            }
        )
        self._clear()

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line and sends it to the tracker."""
        if self.accelerator.is_main_process:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        if self.tracked:
            metrics = {key: value for key, value in line.items() if key != "step" and value is not None}
            self.accelerator.log(metrics, step=line["step"])

    def cut(self, after_step: int, evaluated_step: int | None) -> None:
        """Drops the lines of steps and evaluations that a resumed training repeats, and a line that a kill cut short.

        after_step: steps done. evaluated_step: steps done at the last evaluation.
        """
        if self.accelerator.is_main_process and self.path.is_file():

            def is_final(line: str) -> bool:
                try:
                    content = json.loads(line)
                    return bool(content["step"] <= (after_step if "seconds" in content else evaluated_step or 0))
                except (ValueError, KeyError, TypeError):
                    return False

            lines = filter(is_final, self.path.read_text().splitlines())
            write_text(self.path, "".join(f"{line}\n" for line in lines))

    def _clear(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._counts = Counter[str]()
        self._since = time.monotonic()
