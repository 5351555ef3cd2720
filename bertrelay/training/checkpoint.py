"""Checkpoints: what a training state is, how it is captured and restored, and folders that are complete or not there.

A checkpoint is written beside, synced and renamed, and its digests are checked before it is used.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import Optimizer

from bertrelay.errors import RequestError
from bertrelay.files import sync, write_error, write_tensors
from bertrelay.progress import log
from bertrelay.stage import Metrics

KEPT = 2  # the newest, and the one before it in case the newest is damaged
MANIFEST = "checkpoint.json"

Tensors = dict[str, torch.Tensor]


class Checkpoint(NamedTuple):
    """What a training needs to resume.

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

    evaluated_step: after which the last evaluation was.
    best_tensors: the best weights so far, None before the first evaluation.
    precision, total_steps: the same when it resumes, so that it ends where an uninterrupted one does.
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
    """All that the training needs to resume here.

    copy: training continues while it is written; else tensors share memory with the live ones where possible.
    """
    values = dict(vars(state))
    best = values.pop("best_tensors")  # copies, which later ones replace
    moments = {
        f"{key} {name}": value.detach().to("cpu", copy=copy)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    tensors = {"model": unique_tensors(model, copy), "optimizer": moments}
    return Checkpoint(state.step, values, tensors if best is None else {**tensors, "best": best})


def restore(checkpoint: Checkpoint, new: State, model: nn.Module, optimizer: Optimizer, folder: Path) -> State:
    """Loads the checkpoint into `model` and `optimizer`, and returns its state.

    new: the state of this training where it starts anew. folder: where the checkpoint was found, for messages.
    Raises RequestError when it belongs to another training.
    """
    try:
        state = State(**checkpoint.state, best_tensors=checkpoint.tensors.get("best"))
    except TypeError as error:
        raise RequestError(
            f"{folder}: expected a checkpoint of this version of BertRelay, found one of another, which states other "
            "things. Resume with that version, or train in another folder."
        ) from error
    if state.precision != new.precision:
        raise RequestError(
            f"{folder}: expected to resume in {state.precision}, found precision {new.precision}, which changes "
            f"the result. Set precision = {state.precision!r}, or train in another folder."
        )
    if state.total_steps != new.total_steps:
        raise RequestError(
            f"{folder}: the checkpoint is of a training of {state.total_steps:,} steps and this one has "
            f"{new.total_steps:,}, so data or settings differ. Train in another folder."
        )
    if others := set(checkpoint.tensors["model"]) ^ set(unique_tensors(model)):
        raise RequestError(
            f"{folder}: expected a checkpoint of the same network, found one that differs in "
            f"{', '.join(sorted(others)[:3])}. Train in another folder."
        )
    model.load_state_dict(checkpoint.tensors["model"], strict=False)  # a tied tensor has one name in it
    parameters = dict(model.named_parameters())
    for full_name, value in checkpoint.tensors["optimizer"].items():
        key, _, name = full_name.partition(" ")
        optimizer.state[parameters[name]][key] = value.to(parameters[name].device)
    return state


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes `checkpoint` as `folder/checkpoint-<step>` and keeps the newest two.

    Raises WorkError when the disk is full; the checkpoints before it stay.
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
    for old in _newest_first(folder)[KEPT:]:
        shutil.rmtree(old)


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
        log(f"{path}: this checkpoint is damaged ({damage}); removing it and using the one before")
        shutil.rmtree(path)
    if checkpoints:
        log(f"{folder}: no intact checkpoint is left; starting from step 0")
    return None


def unique_tensors(module: torch.nn.Module, copy: bool = False) -> Tensors:
    """The state of `module`, tied tensors once, on the CPU, sharing memory where possible unless `copy` is set."""
    seen, tensors = set(), Tensors()
    for name, tensor in module.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() == 0 or place not in seen:
            seen.add(place)
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
    """What is wrong with the checkpoint at `path`, or None when every byte is as written."""
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
