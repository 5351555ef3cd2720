"""The exponential moving average (EMA) of a model's weights: steadier than those of any one step, and often better.

Polyak & Juditsky (1992), Acceleration of stochastic approximation by averaging; with a constant decay as in Tarvainen &
Valpola (2017), Mean teachers are better role models.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from bertrelay.checkpoints import Tensors


def start_average(model: nn.Module) -> Tensors:
    """What is learnt, by name, as it is before the first step."""
    return {name: weight.detach().clone() for name, weight in _learnt(model).items()}


def update_average(average: Tensors, model: nn.Module, decay: float) -> None:
    """Moves `average` the share 1 − `decay` of the way to the weights of `model`."""
    learnt = _learnt(model)
    move = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    move(list(average.values()), [learnt[name] for name in average], None)


@contextmanager
def averaged(model: nn.Module, average: Tensors | None) -> Iterator[None]:
    """Within, `model` has the weights of `average`, if there is one; afterwards its own again."""
    if average is None:
        yield
        return
    own = start_average(model)
    set_weights(model, average)
    try:
        yield
    finally:
        set_weights(model, own)


def set_weights(model: nn.Module, weights: Tensors) -> None:
    learnt = _learnt(model)
    with torch.no_grad():
        for name, weight in weights.items():
            learnt[name].copy_(weight)


def _learnt(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
