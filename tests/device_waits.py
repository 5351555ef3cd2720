"""Counts on a CPU the calls that would make a program wait for a GPU."""

import torch
from torch.overrides import TorchFunctionMode

from bertrelay.inference import kernels as cpu_kernels
from bertrelay.training.loop import Training

READING = {"item", "tolist", "numpy", "cpu", "nonzero", "__float__", "__bool__", "__int__", "__index__"}
CHOOSING = {"__getitem__", "__setitem__", "masked_select"}


class Waits(TorchFunctionMode):
    """Counts the calls that need values of a tensor on the host: its numbers, or the number of rows in a mask.

    Tensors of whole numbers do not count: they are tokens, masks and positions, which come from the host.
    """

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, tensor, *rest = getattr(func, "__name__", ""), *args[:2], *[None] * (2 - len(args[:2]))
        is_value = isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.dtype == torch.bool)
        by_mask = any(isinstance(argument, torch.Tensor) and argument.dtype == torch.bool for argument in rest)
        self.count += (name in READING and is_value) or (name in CHOOSING and by_mask)
        return func(*args, **(kwargs or {}))


def waits_in_steps(monkeypatch):
    """A list of the waits in each step of later trainings, which run as on a GPU."""
    counts, step = [], Training.step

    def counted(*args):
        with Waits() as waits:
            signal = step(*args)
        counts.append(waits.count)
        return signal

    monkeypatch.setattr(cpu_kernels, "is_asynchronous", lambda _: True)
    monkeypatch.setattr(Training, "step", counted)
    return counts
