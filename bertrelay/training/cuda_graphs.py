"""CUDA graphs in training: a GPU launches the passes of a network at once, not kernel by kernel.

A GPU is done with a batch of short texts before Python has launched its thousand kernels. A forward and a backward pass
are captured for a shape of the batch, and replayed for every later batch of that shape; all others run eagerly. Batches
are padded, so that shapes recur, whether or not passes are captured: so dropout is the same.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from bertrelay.inference.batches import rounded_up
from bertrelay.progress import log

SHAPE_BITS = 4  # 16 to 31 rows or tokens become even, 32 to 63 multiples of four; an eighth more at most
MOST_SHAPES = 64  # of each, the result stays in the GPU's memory
CAPTURED_AT = 2  # the batch of its shape with which a graph is captured: what comes once only is not worth it

Inputs = dict[str, Tensor]
NEEDED = {"input_ids", "attention_mask"}
KNOWN = {*NEEDED, "token_type_ids"}


def can_replay(device: torch.device, processes: int) -> bool:
    """Several processes exchange gradients while these are computed, which a graph would not do."""
    return device.type == "cuda" and processes == 1


@contextmanager
def replaying(model: nn.Module, *, capture: bool = True) -> Iterator[None]:
    """Within it the networks of transformers in `model`, without their heads, are replayed where they train.

    capture: otherwise batches are padded as they would be, and all run eagerly.
    """
    found: list[Any] = [each for each in model.modules() if isinstance(each, PreTrainedModel)]
    networks = list(dict.fromkeys(each.base_model for each in found))
    for each in networks:
        inside, weights = set(each.modules()), set(each.parameters())
        others = (module for module in model.modules() if module not in inside)
        tied = [weight for module in others for weight in module.parameters(recurse=False) if weight in weights]
        each.forward = ReplayedNetwork(each, tied, MOST_SHAPES if capture else 0)
    try:
        yield
    finally:
        for each in networks:
            del each.forward


class ReplayedNetwork:
    """The forward method of a network, replayed while it trains.

    The gradients of its weights stay in place: they are to be set to zero after a step, and not to None.

    tied: weights that a head has too.
    """

    def __init__(self, network: PreTrainedModel, tied: Sequence[nn.Parameter], most_shapes: int) -> None:
        self.network, self.tied, self.original = network, tied, network.forward
        self.pad_id = getattr(network.config, "pad_token_id", None) or 0
        self.seen: Counter[Any] = Counter()
        self.captured: dict[Any, Passes] = {}
        self.pool: Any = None
        self.most_shapes = most_shapes
        self.waiting: Passes | None = None  # for the backward pass: the next forward pass would overwrite its memory

    def __call__(self, *args: Any, **options: Any) -> Any:
        """What the network gives for `input_ids`, `attention_mask`, and `token_type_ids` if it has them.

        In a training it is computed from a padded batch. Any other call reaches the network as it is.
        """
        named = {**dict(zip(["input_ids"], args, strict=False)), **options}
        inputs = {name: each for name, each in named.items() if each is not None}
        if inputs.get("return_dict") is True:  # as it is by default
            del inputs["return_dict"]
        if not self.network.training or len(args) > 1 or not NEEDED <= inputs.keys() <= KNOWN:
            return self.original(*args, **options)
        rows, width = inputs["input_ids"].shape
        inputs = self._padded(inputs, rows, width)
        shape = (*inputs["input_ids"].shape, *inputs)
        passes = self._passes(shape, inputs)
        if passes is None:
            kind, outputs = _tensors(self.original(**inputs))
        else:
            passes.read(inputs)
            anchor = torch.zeros((), device=inputs["input_ids"].device, requires_grad=True)
            replayed = _Replay.apply(anchor, self, passes, *passes.tied)  # type: ignore[no-untyped-call]
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

    def _passes(self, shape: Any, inputs: Inputs) -> "Passes | None":
        """Those captured for a shape, or None where it is to run eagerly."""
        if not torch.is_grad_enabled() or self.waiting is not None:
            return None
        self.seen[shape] += 1
        if shape not in self.captured and self.seen[shape] >= CAPTURED_AT and len(self.captured) < self.most_shapes:
            device, passes = inputs["input_ids"].device, Passes(self.network, self.tied, self.original, inputs)
            try:  # and leave dropout as if nothing was captured
                with torch.random.fork_rng([device] if device.type == "cuda" else []):
                    self.pool = passes.capture(self.pool)
            except RuntimeError as error:
                self.most_shapes = 0
                why = str(error).partition("\n")[0]
                log(f"cuda_graphs: batches of new shapes run eagerly, as capturing their passes failed ({why})")
                return None
            self.captured[shape] = passes
        return self.captured.get(shape)


class Passes(nn.Module):
    """A forward and a backward pass of `network` for one shape of a batch, whose tensors stay where they are.

    tied: weights whose gradients autograd adds to those of a head first, as it does eagerly.
    """

    def __init__(
        self, network: PreTrainedModel, tied: Sequence[nn.Parameter], forward: Callable[..., Any], inputs: Inputs
    ) -> None:
        super().__init__()
        self.network, self.original = network, forward
        self.tied = [each for each in tied if each.requires_grad]
        self.inputs = {name: each.clone() for name, each in inputs.items()}
        # In the same memory as the weights, which autograd may still hold for a pass that ran eagerly.
        self.leaves = {each: each.detach().requires_grad_() for each in network.parameters() if each.requires_grad}
        self.outputs: Inputs = {}
        self.gradients: list[Tensor] = []  # of the outputs
        self.of_tied: list[Tensor | None] = []  # the gradients of `tied`
        self.used: list[nn.Parameter] = []  # weights whose gradients the backward pass adds to
        self.kind: type = dict

    def capture(self, pool: Any) -> Any:
        """Captures both, in memory of `pool`, which all shapes share; returns it."""
        without = [each for each in self.leaves if each.grad is None]
        for each in without:
            each.grad = torch.zeros_like(each)
        try:
            self.replay_forward, pool = captured(self.pass_forward, pool)
            self.gradients = [torch.zeros_like(each) for each in self.outputs.values()]
            self.replay_backward, pool = captured(self.pass_backward, pool)
        finally:
            for each in set(without) - set(self.used):
                each.grad = None  # as without a graph: the optimizer leaves it as it is
        self.outputs = {name: each.detach() for name, each in self.outputs.items()}
        return pool

    def read(self, inputs: Inputs) -> None:
        for name, each in inputs.items():
            self.inputs[name].copy_(each)

    def pass_forward(self) -> None:
        kind = self.inputs["input_ids"].device.type
        leaves = {name: self.leaves[each] for name, each in self.named_parameters() if each.requires_grad}
        with torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cache_enabled=False):
            self.kind, outputs = _tensors(functional_call(self, leaves, kwargs=self.inputs))
        self.outputs = {name: each for name, each in outputs.items() if each.requires_grad}

    def forward(self, **inputs: Tensor) -> Any:
        return self.original(**inputs)

    def pass_backward(self) -> None:
        """Adds to the gradients of the weights, but of `tied`."""
        outputs, leaves = list(self.outputs.values()), list(self.leaves.values())
        with torch.autocast(outputs[0].device.type, enabled=False):
            found = torch.autograd.grad(outputs, leaves, self.gradients, allow_unused=True)
        new = {each: gradient for each, gradient in zip(self.leaves, found, strict=True) if gradient is not None}
        self.of_tied = [new.pop(each, None) for each in self.tied]
        self.used = list(new)
        torch._foreach_add_([cast(Tensor, each.grad) for each in new], list(new.values()))


def captured(passed: Callable[[], None], pool: Any) -> tuple[Callable[[], None], Any]:
    """What replays the kernels of `passed`, which is captured and does not compute, and the pool of its memory."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Another thread prepares batches meanwhile, which is no part of this.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            passed()
        except BaseException:
            with suppress(RuntimeError):  # which says that something else went wrong before
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, graph.pool() if pool is None else pool


def _tensors(output: Any) -> tuple[type, Inputs]:
    return type(output), {name: each for name, each in output.items() if torch.is_tensor(each)}


class _Replay(torch.autograd.Function):
    """anchor: a tensor with a gradient, so that there is a backward pass. tied: those of `passes`."""

    @staticmethod
    def forward(
        context: Any,
        anchor: Tensor,  # noqa: ARG004
        network: ReplayedNetwork,
        passes: Passes,
        *tied: Tensor,  # noqa: ARG004
    ) -> tuple[Tensor, ...]:
        context.network, context.passes, network.waiting = network, passes, passes
        passes.replay_forward()
        return tuple(each.detach() for each in passes.outputs.values())

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        for place, gradient in zip(context.passes.gradients, gradients, strict=True):
            place.copy_(gradient)
        context.passes.replay_backward()
        context.network.waiting = None
        return None, None, None, *context.passes.of_tied
