"""The exponential moving average (EMA) of a model's weights: steadier than those of any one step, and often better.

Polyak & Juditsky (1992), Acceleration of stochastic approximation by averaging; with a constant decay as in Tarvainen &
Valpola (2017), Mean teachers are better role models.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from bertrelay.checkpoints import Tensors


def start_average(model: nn.Module) -> Tensors:
    """What is learnt, by name, as it is before the first step."""
    return {name: weight.detach().clone() for name, weight in _learnt(model).items()}


@torch.no_grad()
def update_average(average: Tensors, model: nn.Module, decay: float, step: int) -> None:
    """Moves `average` the share 1 − `decay` of the way to the weights of `model`.

    step: so many were averaged before. The first ones count more, so that the start is soon forgotten.
    """
    share = 1 - min(decay, (1 + step) / (10 + step))
    for name, weight in _learnt(model).items():
        average[name].lerp_(weight, share)


@contextmanager
def averaged(model: nn.Module, average: Tensors) -> Iterator[None]:
    """Within, `model` has the weights of `average`, where there are some, and `average` those of `model`."""
    exchange(model, average)
    try:
        yield
    finally:
        exchange(model, average)


@torch.no_grad()
def exchange(model: nn.Module, average: Tensors) -> None:
    """One weight after the other, so that no second copy of them all is ever there."""
    learnt = _learnt(model)
    for name, mean in average.items():
        own = learnt[name].clone()
        learnt[name].copy_(mean)
        mean.copy_(own)


def _learnt(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
