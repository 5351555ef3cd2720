"""How a network computes while it learns nothing: tokens enough for the device at once, weights laid out if it pays."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import nn

from bertrelay.errors import check_count
from bertrelay.hardware import autocast
from bertrelay.linear import Packed, pack

CPU_BATCH_TOKENS = 2_048  # as much as stays in the caches; more is slower
GPU_BATCH_TOKENS = 65_536


class Network(Protocol):
    """A module that knows its device."""

    training: bool

    @property
    def device(self) -> torch.device: ...

    def train(self, mode: bool = True) -> object: ...


def best_batch_tokens(device: torch.device, asked: int | None = None) -> int:
    """As many tokens, padding included, as the device computes best at once, or as many as are `asked` for.

    Raises RequestError for fewer than one.
    """
    check_count("batch_tokens", asked)
    return asked or (CPU_BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS)


def pack_for(tokens: int, network: nn.Module, precision: str, batch_tokens: int) -> Packed:
    """The weights of `network` laid out for so many tokens; none for one batch, where it costs more than it saves."""
    return pack(network) if precision == "bf16" and tokens > batch_tokens else {}


@contextmanager
def computing(network: Network, precision: str) -> Iterator[None]:
    """Without gradients or dropout, in `precision`, bf16 or fp32.

    Threads may do so with one network, unless it is in training mode: to that the first to end brings it back.
    """
    was_training = network.training
    network.train(False)
    try:
        with torch.inference_mode(), autocast(network.device, precision):
            yield
    finally:
        network.train(was_training)
