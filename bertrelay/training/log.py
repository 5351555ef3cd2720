"""`metrics.jsonl`: a line every few training steps, and one for each evaluation."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from bertrelay.hardware import private_memory_mb

LOG = "metrics.jsonl"


class TrainingLog:
    """Adds up the losses of steps in every process; the main one writes the means over all of them."""

    def __init__(self, folder: Path, accelerator: Accelerator, tracked: bool) -> None:
        self.path, self.accelerator, self.tracked = folder / LOG, accelerator, tracked
        self._clear()

    def add(self, sums: Mapping[str, float], counts: Mapping[str, int], tokens: int, padded: int) -> None:
        """Adds a step: this process's summed losses, tokens and padded size; the counts are of all processes."""
        self._counts.update({name: self._counts[name] + count for name, count in counts.items()})
        for name, value in {**sums, "tokens": tokens, "padded": padded}.items():
            self._own[name] += value

    def write_steps(self, step: int, epoch: int, rate: float, grad_norm: float, seconds: float) -> None:
        """The line of the steps since the last one."""
        totals: dict[str, float] = self._own
        if self.accelerator.num_processes > 1:
            own = torch.tensor(list(self._own.values()), dtype=torch.float32, device=self.accelerator.device)
            totals = dict(zip(self._own, self.accelerator.reduce(own, "sum").tolist(), strict=True))
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
        """Appends a line, and logs it to the tracker."""
        if self.accelerator.is_main_process:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        if self.tracked:
            metrics = {key: value for key, value in line.items() if key != "step" and value is not None}
            self.accelerator.log(metrics, step=line["step"])

    def cut(self, after_step: int) -> None:
        """Drops the lines of steps that will be repeated, and one that a kill cut short."""
        if self.accelerator.is_main_process and self.path.is_file():
            kept = [line for line in self.path.read_text().splitlines() if _step_of(line) <= after_step]
            building = self.path.with_suffix(".partial")
            building.write_text("".join(f"{line}\n" for line in kept))
            building.replace(self.path)

    def _clear(self) -> None:
        self._own: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)
        self._since = time.monotonic()


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
