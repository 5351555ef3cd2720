"""What changes while training: figures, weights and Adam's moments, taken down in a checkpoint and put back."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from bertrelay.checkpoints import Checkpoint, Tensors, unique_tensors
from bertrelay.errors import RequestError
from bertrelay.stage import Metrics


@dataclass
class State:
    """What changes while training, beside weights and moments.

    best_tensors: the best weights so far, None before the first look at the dev data.
    """

    step: int = 0
    best_step: int | None = None
    best_figures: Metrics = field(default_factory=dict)
    looks_without_better: int = 0
    seconds: float = 0.0
    best_tensors: Tensors | None = None


@dataclass(frozen=True)
class Terms:
    """What must stay as it was when a training goes on, so that it ends where one never stopped does."""

    precision: str
    total_steps: int


def take_down(state: State, terms: Terms, model: nn.Module, optimizer: Optimizer) -> Checkpoint:
    """All that the training needs to go on from here; tensors share memory with the living ones where they can."""
    figures = {**vars(state), **asdict(terms)}
    best = figures.pop("best_tensors")
    tensors = {"model": unique_tensors(model), "optimizer": _moments(model, optimizer)}
    return Checkpoint(state.step, figures, tensors if best is None else {**tensors, "best": best})


def put_back(checkpoint: Checkpoint, terms: Terms, model: nn.Module, optimizer: Optimizer, folder: Path) -> State:
    """Gives `model` and `optimizer` what the checkpoint holds, and returns the rest.

    folder: where it was found, for messages. Raises RequestError when it belongs to another training.
    """
    figures = dict(checkpoint.state)
    _refuse_other_terms(Terms(figures.pop("precision"), figures.pop("total_steps")), terms, folder)
    _refuse_other_network(set(checkpoint.tensors["model"]) ^ set(unique_tensors(model)), folder)
    model.load_state_dict(checkpoint.tensors["model"], strict=False)  # a tied tensor has one name in it
    parameters = dict(model.named_parameters())
    for full_name, value in checkpoint.tensors["optimizer"].items():
        key, _, name = full_name.partition(" ")
        optimizer.state[parameters[name]][key] = value.to(parameters[name].device)
    return State(**figures, best_tensors=checkpoint.tensors.get("best"))


def _moments(model: nn.Module, optimizer: Optimizer) -> Tensors:
    return {
        f"{key} {name}": value.detach().cpu()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _refuse_other_terms(found: Terms, wanted: Terms, folder: Path) -> None:
    if found.precision != wanted.precision:
        raise RequestError(
            f"{folder}: this training began in {found.precision} and would go on in {wanted.precision}, which changes "
            f"its result. Set precision = {found.precision!r}, or begin anew in another folder."
        )
    if found.total_steps != wanted.total_steps:
        raise RequestError(
            f"{folder}: the training there has {found.total_steps:,} steps and this one {wanted.total_steps:,}, "
            "so its data or settings are other ones. Begin anew in another folder."
        )


def _refuse_other_network(others: set[str], folder: Path) -> None:
    if others:
        raise RequestError(
            f"{folder}: expected the checkpoint of the same network, found one that differs in "
            f"{', '.join(sorted(others)[:3])}. Begin anew in another folder."
        )
