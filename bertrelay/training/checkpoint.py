"""Checkpoints: the state of a training, captured, written, checked and restored.

A checkpoint is written under another name, synced and renamed; so its folder is complete or absent. The digests of its
files are checked before it is used.
"""

import hashlib
import json
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import Optimizer

from bertrelay.errors import RequestError
from bertrelay.files import sync, write_error, write_tensors
from bertrelay.progress import log
from bertrelay.stage import Metrics

MOST_CHECKPOINTS = 2  # the newest, and the one before it in case the newest is damaged
MANIFEST = "checkpoint.json"

Tensors = dict[str, torch.Tensor]


class Checkpoint(NamedTuple):
    """Everything that a training needs to resume.

    step: steps done when it was written.
    state: numbers and metrics, as JSON holds them.
    tensors: file name (`model`, `optimizer`, `best`) to its tensors by name.
    """

    step: int
    state: dict[str, Any]
    tensors: dict[str, Tensors]


@dataclass(kw_only=True)
class State:
    """The numbers of a training, besides the weights and the optimizer's moments.

    step: steps done. evaluated_step: the steps done at the last evaluation.
    best_tensors: the best weights so far, None before the first evaluation.
    precision, total_steps: must be the same in a training that resumes, or it would end with other weights.
    scaler: the state of the gradient's scale, in fp16.
    """

    step: int = 0
    evaluated_step: int | None = None
    best_step: int | None = None
    best_metrics: Metrics = field(default_factory=dict)
    evaluations_since_best: int = 0
    seconds: float = 0.0
    precision: str
    total_steps: int
    scaler: dict[str, Any] = field(default_factory=dict)
    best_tensors: Tensors | None = None


def capture(state: State, model: nn.Module, optimizer: Optimizer, copy: bool = False) -> Checkpoint:
    """The checkpoint of a training as it stands.

    copy: copy all tensors, for a training that continues meanwhile; else they share memory with the live ones where
        possible.
    """
    values = dict(vars(state))
    best = values.pop("best_tensors")  # never changed in place: a better evaluation replaces them
    moments = {
        f"{key} {name}": value.detach().to("cpu", copy=copy)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    tensors = {"model": unique_tensors(model, copy), "optimizer": moments}
    return Checkpoint(state.step, values, tensors if best is None else {**tensors, "best": best})


def restore(checkpoint: Checkpoint, new: State, model: nn.Module, optimizer: Optimizer, folder: Path) -> State:
    """Loads the checkpoint into `model` and `optimizer`, and returns its state.

    new: the state of this training if it started at step 0. folder: of the checkpoint, for messages.
    Raises RequestError when the checkpoint belongs to another training.
    """
    try:
        state = State(**checkpoint.state, best_tensors=checkpoint.tensors.get("best"))
    except TypeError as error:
        raise RequestError(
            f"{folder}: expected a checkpoint of this version of BertRelay, found one of another version. Resume with "
            "that version, or train in another folder."
        ) from error
    if state.precision != new.precision:
        raise RequestError(
            f"{folder}: expected to resume in {state.precision}, found precision {new.precision}, which changes "
            f"the result. Set precision = {state.precision!r}, or train in another folder."
        )
    if state.total_steps != new.total_steps:
        raise RequestError(
            f"{folder}: expected a checkpoint of a training of {new.total_steps:,} steps, found one of "
            f"{state.total_steps:,}, so data or settings differ. Train in another folder."
        )
    if others := set(checkpoint.tensors["model"]) ^ set(unique_tensors(model)):
        raise RequestError(
            f"{folder}: expected a checkpoint of the same network, found one that differs in "
            f"{', '.join(sorted(others)[:3])}. Train in another folder."
        )
    model.load_state_dict(checkpoint.tensors["model"], strict=False)  # of tied tensors it has one name
    parameters = dict(model.named_parameters())
    for full_name, value in checkpoint.tensors["optimizer"].items():
        key, _, name = full_name.partition(" ")
        optimizer.state[parameters[name]][key] = value.to(parameters[name].device)
    return state


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes `checkpoint` as `folder/checkpoint-<step>` and removes all but the newest two.

    Raises WorkError when the disk is full; earlier checkpoints stay.
    """
    target = folder / f"checkpoint-{checkpoint.step:08d}"
    if target.is_dir() and _damage(target) is None:
        return
    building = target.with_suffix(".partial")
    shutil.rmtree(building, ignore_errors=True)
    try:
        building.mkdir(parents=True)
        for name, tensors in checkpoint.tensors.items():
            write_tensors(building / f"{name}.safetensors", tensors)
        digests = {path.name: _sync_and_digest(path) for path in sorted(building.iterdir())}
        manifest = {"step": checkpoint.step, "state": checkpoint.state, "sha256": digests}
        (building / MANIFEST).write_text(json.dumps({**manifest, "seal": _seal(manifest)}))
        _sync_and_digest(building / MANIFEST)
        sync(building)
        shutil.rmtree(target, ignore_errors=True)
        building.rename(target)
        sync(folder)
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)  # a full disk needs its space
        raise write_error(target, error) from error
    for old in _newest_first(folder)[MOST_CHECKPOINTS:]:
        shutil.rmtree(old)


class CheckpointWriter:
    """Writes the checkpoints of a training into a folder, one at a time.

    is_asynchronous: on a GPU a checkpoint is a copy in the host's memory, written by another thread while training
        continues. On a CPU the copy would need the memory of weights and moments once more, so training waits.
    """

    def __init__(self, folder: Path, is_asynchronous: bool) -> None:
        self.folder, self.is_asynchronous = folder, is_asynchronous
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def write(self, state: State, model: nn.Module, optimizer: Optimizer) -> None:
        """Writes a checkpoint of this moment, after the one before it."""
        self.wait()
        checkpoint = capture(state, model, optimizer, copy=self.is_asynchronous)
        if self.is_asynchronous:
            self._writing = self._thread.submit(save_checkpoint, self.folder, checkpoint)
        else:
            save_checkpoint(self.folder, checkpoint)

    def wait(self) -> None:
        """Returns when the last checkpoint is on disk; raises the error of writing it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest intact checkpoint of `folder`, or None. Damaged ones are reported and removed."""
    for leftover in folder.glob("checkpoint-*.partial"):
        shutil.rmtree(leftover)
    checkpoints = _newest_first(folder)
    for path in checkpoints:
        damage = _damage(path)
        if damage is None:
            manifest = json.loads((path / MANIFEST).read_text())
            tensors = {name.removesuffix(".safetensors"): load_file(path / name) for name in manifest["sha256"]}
            return Checkpoint(manifest["step"], manifest["state"], tensors)
        log(f"{path}: this checkpoint is damaged ({damage}); removing it and using the one before it")
        shutil.rmtree(path)
    if checkpoints:
        log(f"{folder}: no intact checkpoint is left; starting from step 0")
    return None


def unique_tensors(module: torch.nn.Module, copy: bool = False) -> Tensors:
    """The state of `module` on the CPU, tied tensors once; shares memory where possible unless `copy` is set."""
    seen, tensors = set(), Tensors()
    for name, tensor in module.state_dict().items():
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() == 0 or memory not in seen:
            seen.add(memory)
            tensors[name] = tensor.detach().to("cpu", copy=copy).contiguous()
    return tensors


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-" + "[0-9]" * 8), reverse=True)


def _sync_and_digest(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _damage(path: Path) -> str | None:
    """The damage of the checkpoint at `path`, in words; None if every byte is as written."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        seal = manifest.pop("seal")
    except (OSError, ValueError, KeyError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read: {type(error).__name__}"
    if _seal(manifest) != seal:
        return f"{MANIFEST} has other content than was written"
    for name, digest in manifest["sha256"].items():
        try:
            if _sync_and_digest(path / name) != digest:
                return f"{name} has other bytes than were written"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None
