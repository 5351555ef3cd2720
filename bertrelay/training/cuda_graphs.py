"""CUDA graphs in training: a GPU launches the passes of a network at once, not kernel by kernel.

A GPU is done with a batch of short texts before Python has launched its thousand kernels. So the forward and the
backward pass of a network are captured once for each shape of a batch, and replayed for later batches of that shape:

    batch of its shape     forward and backward pass of the network
    first                  eager
    second                 captured, then replayed
    later                  replayed
    any, too many shapes   eager

Captured kernels read and write the same memory at each replay, so tensors are copied in, and read where they lie:

    input_ids, … ──copy──▶ Passes.inputs
                              │ replay_forward: the kernels of the network's forward pass
                              ▼
    pooling, head, loss ◀── Passes.outputs
         │ loss.backward(), eager down to the outputs
         └──copy──▶ Passes.output_gradients
                              │ replay_backward: the kernels of the network's backward pass
                              ▼
                    weight.grad += gradient, in place; gradients of weights that a head shares go back to autograd

Everything outside the network runs eagerly. Batches are padded so that shapes recur, captured or not; so dropout is the
same in both.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from bertrelay.inference.batches import round_up
from bertrelay.progress import log

SHAPE_BITS = 4  # 16 to 31 rows or tokens become even, 32 to 63 multiples of four; at most an eighth more
MOST_SHAPES = 64  # the outputs of each stay in the GPU's memory
CAPTURED_AT = 2  # the batch of its shape that is captured: a shape that comes once is not worth it

Tensors = dict[str, Tensor]
REQUIRED = {"input_ids", "attention_mask"}
ALLOWED = {*REQUIRED, "token_type_ids"}


def can_replay(device: torch.device, processes: int) -> bool:
    """True on one GPU: with several processes DDP exchanges gradients during the backward pass, which no graph has."""
    return device.type == "cuda" and processes == 1


@contextmanager
def replay_networks(model: nn.Module, *, capture: bool = True) -> Iterator[None]:
    """Captures and replays the networks of transformers in `model`, without their heads, while they train.

    capture: False runs all batches eagerly, padded as if they were captured.
    """
    pretrained: list[Any] = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    networks = list(dict.fromkeys(module.base_model for module in pretrained))
    for network in networks:
        inside, weights = set(network.modules()), set(network.parameters())
        outside = (module for module in model.modules() if module not in inside)
        tied = [weight for module in outside for weight in module.parameters(recurse=False) if weight in weights]
        network.forward = ReplayedForward(network, tied, MOST_SHAPES if capture else 0)
    try:
        yield
    finally:
        for network in networks:
            del network.forward


class ReplayedForward:
    """The forward method of a network that replays its passes while it trains.

    The gradients of weights stay in place: set them to zero after a step, not to None.

    tied: weights of the network that a head has too.
    """

    def __init__(self, network: PreTrainedModel, tied: Sequence[nn.Parameter], most_shapes: int) -> None:
        self.network, self.tied, self.eager_forward = network, tied, network.forward
        self.pad_id = getattr(network.config, "pad_token_id", None) or 0
        self.batches: Counter[Any] = Counter()  # by shape
        self.captured: dict[Any, Passes] = {}
        self.pool: Any = None
        self.most_shapes = most_shapes
        self.in_use: Passes | None = None  # until its backward pass: another forward pass would overwrite its memory

    def __call__(self, *args: Any, **options: Any) -> Any:
        """The network's output for `input_ids`, `attention_mask` and perhaps `token_type_ids`.

        In training it is computed from a padded batch and cut. Calls with other arguments reach the network unchanged.
        """
        named = {**dict(zip(["input_ids"], args, strict=False)), **options}
        inputs = {name: value for name, value in named.items() if value is not None}
        if inputs.get("return_dict") is True:  # the default
            del inputs["return_dict"]
        if not self.network.training or len(args) > 1 or not REQUIRED <= inputs.keys() <= ALLOWED:
            return self.eager_forward(*args, **options)
        rows, width = inputs["input_ids"].shape
        inputs = self._pad(inputs, rows, width)
        shape = (*inputs["input_ids"].shape, *inputs)
        passes = self._passes(shape, inputs)
        if passes is None:
            output_type, outputs = _tensors(self.eager_forward(**inputs))
        else:
            passes.read(inputs)
            anchor = torch.zeros((), device=inputs["input_ids"].device, requires_grad=True)
            replayed = _Replay.apply(anchor, self, passes, *passes.tied)  # type: ignore[no-untyped-call]
            output_type, outputs = passes.output_type, dict(zip(passes.outputs, replayed, strict=True))
        cut = {name: value[:rows, :width] if value.ndim == 3 else value[:rows] for name, value in outputs.items()}
        return output_type(**cut)

    def _pad(self, inputs: Tensors, rows: int, width: int) -> Tensors:
        """Pads `inputs`. Added rows attend to their first token, which is padding; no token attends to added ones."""
        limit = getattr(self.network.config, "max_position_embeddings", None) or width
        shape = round_up(rows, SHAPE_BITS), max(width, min(round_up(width, SHAPE_BITS), limit))
        padded = {}
        for name, tensor in inputs.items():
            padded[name] = tensor.new_full(shape, self.pad_id if name == "input_ids" else 0)
            if name == "attention_mask":
                padded[name][rows:, 0] = 1
            padded[name][:rows, :width] = tensor
        return padded

    def _passes(self, shape: Any, inputs: Tensors) -> "Passes | None":
        """The captured passes of a shape, captured now if they are due; None for a batch that runs eagerly."""
        if not torch.is_grad_enabled() or self.in_use is not None:
            return None
        self.batches[shape] += 1
        if shape not in self.captured and self.batches[shape] >= CAPTURED_AT and len(self.captured) < self.most_shapes:
            device, passes = inputs["input_ids"].device, Passes(self.network, self.tied, self.eager_forward, inputs)
            try:
                with torch.random.fork_rng([device] if device.type == "cuda" else []):  # capturing draws no dropout
                    self.pool = passes.capture(self.pool)
            except RuntimeError as error:
                self.most_shapes = 0
                reason = str(error).partition("\n")[0]
                log(f"cuda_graphs: batches of new shapes run eagerly, as capturing their passes failed ({reason})")
                return None
            self.captured[shape] = passes
        return self.captured.get(shape)


class Passes(nn.Module):
    """The captured forward and backward pass of `network` for one shape of a batch.

    tied: weights whose gradients go back to autograd, which adds those of the head first, as it does eagerly.
    leaves: the weights by parameter, as tensors of their own in the same memory: autograd may still hold the parameters
        for a pass that ran eagerly.
    updated: the weights whose gradients the backward pass adds to.
    """

    def __init__(
        self, network: PreTrainedModel, tied: Sequence[nn.Parameter], eager_forward: Callable[..., Any], inputs: Tensors
    ) -> None:
        super().__init__()
        self.network, self.eager_forward = network, eager_forward
        self.tied = [weight for weight in tied if weight.requires_grad]
        self.inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        trained = (weight for weight in network.parameters() if weight.requires_grad)
        self.leaves = {weight: weight.detach().requires_grad_() for weight in trained}
        self.outputs: Tensors = {}
        self.output_type: type = dict
        self.output_gradients: list[Tensor] = []
        self.tied_gradients: list[Tensor | None] = []
        self.updated: list[nn.Parameter] = []

    def capture(self, pool: Any) -> Any:
        """Captures both passes in memory of `pool`, which all shapes share; returns the pool."""
        without = [weight for weight in self.leaves if weight.grad is None]
        for weight in without:
            weight.grad = torch.zeros_like(weight)
        try:
            self.replay_forward, pool = capture_graph(self.pass_forward, pool)
            self.output_gradients = [torch.zeros_like(output) for output in self.outputs.values()]
            self.replay_backward, pool = capture_graph(self.pass_backward, pool)
        finally:
            for weight in set(without) - set(self.updated):
                weight.grad = None  # so that the optimizer leaves it unchanged, as it does without a graph
        self.outputs = {name: output.detach() for name, output in self.outputs.items()}
        return pool

    def read(self, inputs: Tensors) -> None:
        for name, tensor in inputs.items():
            self.inputs[name].copy_(tensor)

    def pass_forward(self) -> None:
        device = self.inputs["input_ids"].device.type
        leaves = {name: self.leaves[weight] for name, weight in self.named_parameters() if weight.requires_grad}
        dtype, is_enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        with torch.autocast(device, dtype, is_enabled, cache_enabled=False):
            self.output_type, outputs = _tensors(functional_call(self, leaves, kwargs=self.inputs))
        self.outputs = {name: output for name, output in outputs.items() if output.requires_grad}

    def forward(self, **inputs: Tensor) -> Any:
        return self.eager_forward(**inputs)

    def pass_backward(self) -> None:
        """Adds to the gradients of the weights, except those of `tied`."""
        outputs, leaves = list(self.outputs.values()), list(self.leaves.values())
        with torch.autocast(outputs[0].device.type, enabled=False):
            computed = torch.autograd.grad(outputs, leaves, self.output_gradients, allow_unused=True)
        gradients = {weight: value for weight, value in zip(self.leaves, computed, strict=True) if value is not None}
        self.tied_gradients = [gradients.pop(weight, None) for weight in self.tied]
        self.updated = list(gradients)
        torch._foreach_add_([cast(Tensor, weight.grad) for weight in gradients], list(gradients.values()))


def capture_graph(launch: Callable[[], None], pool: Any) -> tuple[Callable[[], None], Any]:
    """Captures the kernels that `launch` launches, without running them; returns their replay and the memory pool."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Thread-local, as another thread pins the memory of the next batch meanwhile.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            launch()
        except BaseException:
            with suppress(RuntimeError):  # it only says that something failed before
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay, graph.pool() if pool is None else pool


def _tensors(output: Any) -> tuple[type, Tensors]:
    return type(output), {name: value for name, value in output.items() if torch.is_tensor(value)}


class _Replay(torch.autograd.Function):
    """The replayed passes as one node of autograd's graph.

    anchor: any tensor with a gradient, without which autograd would not call `backward`. tied: those of `passes`.
    """

    @staticmethod
    def forward(
        context: Any,
        anchor: Tensor,  # noqa: ARG004
        owner: ReplayedForward,
        passes: Passes,
        *tied: Tensor,  # noqa: ARG004
    ) -> tuple[Tensor, ...]:
        context.owner, context.passes, owner.in_use = owner, passes, passes
        passes.replay_forward()
        return tuple(output.detach() for output in passes.outputs.values())

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        for output_gradient, gradient in zip(context.passes.output_gradients, gradients, strict=True):
            output_gradient.copy_(gradient)
        context.passes.replay_backward()
        context.owner.in_use = None
        return None, None, None, *context.passes.tied_gradients
