"""CUDA graphs in training: a GPU launches the passes of a network at once, not kernel by kernel.

A GPU is done with a batch of short texts before Python has launched its thousand kernels. The kernels of a forward and
of a backward pass are recorded for a shape of the batch, and replayed for every later batch of that shape. Batches are
padded, so that shapes recur.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertrelay.inference import rounded_up

SHAPE_BITS = 4  # 16 to 31 tokens stay as they are, 32 to 63 become even; a twentieth of a batch is padding at most
MOST_SHAPES = 64  # of each, the result stays in the GPU's memory
RECORDED_AT = 2  # the batch of its shape with which a graph is recorded: what comes once only is not worth it

Inputs = dict[str, Tensor]


def can_replay(device: torch.device, processes: int) -> bool:
    """Several processes exchange gradients while these are computed, which a graph would not do."""
    return device.type == "cuda" and processes == 1


@contextmanager
def replaying(model: nn.Module) -> Iterator[None]:
    """Within it the networks of transformers in `model`, without their heads, are replayed where they train."""
    found: list[Any] = [each for each in model.modules() if isinstance(each, PreTrainedModel)]
    networks = list(dict.fromkeys(each.base_model for each in found))
    for each in networks:
        each.forward = ReplayedNetwork(each)
    try:
        yield
    finally:
        for each in networks:
            del each.forward


class ReplayedNetwork:
    """The forward method of a network, replayed while it trains.

    The gradients of its weights stay in place: they are to be set to zero after a step, and not to None.
    """

    def __init__(self, network: PreTrainedModel) -> None:
        self.network, self.original = network, network.forward
        self.pad_id = getattr(network.config, "pad_token_id", None) or 0
        self.seen: Counter[Any] = Counter()
        self.recorded: dict[Any, Passes] = {}
        self.pool: Any = None
        self.waiting: Passes | None = None  # for the backward pass: the next forward pass would overwrite its memory

    def __call__(self, **inputs: Any) -> Any:
        """What the network gives for `input_ids`, `attention_mask`, and `token_type_ids` if it has them.

        In a training it is computed from a padded batch. Any other call reaches the network as it is.
        """
        if not self.network.training or inputs.keys() - {"input_ids", "attention_mask", "token_type_ids"}:
            return self.original(**inputs)
        rows, width = inputs["input_ids"].shape
        inputs = self._padded(inputs, rows, width)
        shape = (*inputs["input_ids"].shape, *inputs)
        if torch.is_grad_enabled() and self.waiting is None:
            self.seen[shape] += 1
            if self.seen[shape] >= RECORDED_AT and shape not in self.recorded and len(self.recorded) < MOST_SHAPES:
                self.recorded[shape] = self._record(inputs)
        passes = self.recorded.get(shape) if torch.is_grad_enabled() and self.waiting is None else None
        if passes is None:
            kind, outputs = _tensors(self.original(**inputs))
        else:
            passes.read(inputs)
            anchor = torch.zeros((), device=inputs["input_ids"].device, requires_grad=True)
            replayed = _Replay.apply(anchor, self, passes)  # type: ignore[no-untyped-call]
            outputs = dict(zip(passes.outputs, replayed, strict=True))
            kind = passes.kind
        return kind(**{name: each[:rows, :width] if each.ndim == 3 else each[:rows] for name, each in outputs.items()})

    def _padded(self, inputs: Inputs, rows: int, width: int) -> Inputs:
        """Rows that are added see their first token, which is padding; tokens that are added are seen by none."""
        limit = getattr(self.network.config, "max_position_embeddings", None) or width
        shape = rounded_up(rows, SHAPE_BITS), max(width, min(rounded_up(width, SHAPE_BITS), limit))
        padded = {}
        for name, given in inputs.items():
            padded[name] = given.new_full(shape, self.pad_id if name == "input_ids" else 0)
            if name == "attention_mask":
                padded[name][rows:, 0] = 1
            padded[name][:rows, :width] = given
        return padded

    def _record(self, inputs: Inputs) -> "Passes":
        device, passes = inputs["input_ids"].device, Passes(self.original, self.network, inputs)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):  # dropout as if nothing was recorded
            self.pool = passes.record(self.pool)
        return passes


class Passes:
    """A forward and a backward pass for one shape of a batch, whose tensors stay where they are."""

    def __init__(self, forward: Callable[..., Any], network: nn.Module, inputs: Inputs) -> None:
        self.network_forward, self.inputs = forward, {name: each.clone() for name, each in inputs.items()}
        self.weights = [each for each in network.parameters() if each.requires_grad]
        self.outputs: Inputs = {}
        self.gradients: list[Tensor] = []  # of the outputs
        self.used: set[nn.Parameter] = set()
        self.kind: type = dict

    def record(self, pool: Any) -> Any:
        """Records both, in memory of `pool`, which all shapes share; returns it."""
        without = [each for each in self.weights if each.grad is None]
        for each in without:
            each.grad = torch.zeros_like(each)
        self.replay_forward, pool = recorded(self.forward, pool)
        self.gradients = [torch.zeros_like(each) for each in self.outputs.values()]
        self.replay_backward, pool = recorded(self.backward, pool)
        for each in without:
            if each not in self.used:
                each.grad = None  # as without a graph: the optimizer leaves it as it is
        self.outputs = {name: each.detach() for name, each in self.outputs.items()}
        return pool

    def read(self, inputs: Inputs) -> None:
        for name, each in inputs.items():
            self.inputs[name].copy_(each)

    def forward(self) -> None:
        kind = self.inputs["input_ids"].device.type
        with torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cache_enabled=False):
            self.kind, outputs = _tensors(self.network_forward(**self.inputs))
        self.outputs = {name: each for name, each in outputs.items() if each.requires_grad}

    def backward(self) -> None:
        """Adds to the gradients of the weights."""
        outputs = list(self.outputs.values())
        found = torch.autograd.grad(outputs, self.weights, self.gradients, allow_unused=True)
        new = {each: gradient for each, gradient in zip(self.weights, found, strict=True) if gradient is not None}
        torch._foreach_add_([cast(Tensor, each.grad) for each in new], list(new.values()))
        self.used = set(new)


def recorded(passed: Callable[[], None], pool: Any) -> tuple[Callable[[], None], Any]:
    """What replays the kernels of `passed`, which records and does not compute, and the pool of its memory."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Another thread prepares batches meanwhile, which is no part of this.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        passed()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, pool or graph.pool()


def _tensors(output: Any) -> tuple[type, Inputs]:
    """The kind of a network's output, and the tensors in it."""
    return type(output), {name: each for name, each in output.items() if torch.is_tensor(each)}


class _Replay(torch.autograd.Function):
    """anchor: a tensor with a gradient, so that there is a backward pass."""

    @staticmethod
    def forward(context: Any, anchor: Tensor, network: ReplayedNetwork, passes: Passes) -> tuple[Tensor, ...]:  # noqa: ARG004
        context.network, context.passes, network.waiting = network, passes, passes
        passes.replay_forward()
        return tuple(each.detach() for each in passes.outputs.values())

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, None, None]:
        for place, gradient in zip(context.passes.gradients, gradients, strict=True):
            place.copy_(gradient)
        context.passes.replay_backward()
        context.network.waiting = None
        return None, None, None
