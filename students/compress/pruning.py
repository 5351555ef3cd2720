"""Smaller networks: whole layers, and neurons of the feed-forward layers, are left out."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertrelay.errors import RequestError
from bertrelay.evaluation.encode import finite
from bertrelay.evaluation.similarity import pairwise
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.progress import progress
from students.compress.coverage import sample_texts

STACKS = ("encoder.layer", "transformer.layer", "layers", "encoder.block")
"""Paths of the list of layers: BERT, XLM-R and MPNet; DistilBERT; ModernBERT, Qwen3 and Gemma; T5."""
FEED_FORWARD = (
    (("intermediate.dense",), "output.dense"),
    (("ffn.lin1",), "ffn.lin2"),
    (("mlp.Wi",), "mlp.Wo"),
    (("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"),
)
"""The maps to the neurons of a layer and the map from them: BERT, XLM-R and MPNet; DistilBERT; ModernBERT; Qwen3 and
Gemma. T5's are missing."""
WIDTHS = ("hidden_dim", "intermediate_size")  # names of the number of neurons in configs; the first is DistilBERT's
SENTENCES = 256  # sampled from the texts, to choose layers and neurons


def keep_layers(encoder: SentenceEncoder, count: int, texts: Iterable[str], precision: str = "auto") -> None:
    """Leaves out layers of the network one by one, until `count` remain.

    Each time it is the layer without which the vectors of SENTENCES of the `texts` move the least from those of the
    whole encoder. Six of twelve layers of a distilled multilingual E5 so start at a mean cosine of 0.62 to it; without
    every other layer it is 0.43.
    A first layer with other weights than the last one stays.

    precision: of the network while it encodes them.
    Raises RequestError for a network with fewer layers, or with shared ones as ALBERT's.

    Example: of layers 0, 1, 2, 3 two are to remain. Without 1 the cosine to the whole encoder is 0.90, the highest of
    four; then without 3 it is 0.70, the highest of three. Layers 0 and 2 remain.
    """
    path = layer_stack(encoder.backbone, "layers")
    stack = cast(nn.ModuleList, encoder.backbone.get_submodule(path))
    if count > len(stack):
        raise RequestError(f"layers: expected at most the {len(stack)} of the base, found {count}")
    config, kinds = encoder.backbone.config, getattr(encoder.backbone.config, "layer_types", None)

    def use_layers(indices: Sequence[int]) -> None:
        encoder.backbone.set_submodule(path, nn.ModuleList([stack[index] for index in indices]))
        config.num_hidden_layers = len(indices)
        if kinds:  # a layer attends as it did, to all tokens or to near ones
            config.layer_types = [kinds[index] for index in indices]

    remaining, sentences = list(range(len(stack))), sample_texts(texts, SENTENCES)
    if not sentences:
        raise RequestError("layers: expected text to choose them by, found none")
    # T5's first layer holds what all others add to their attention, and ModernBERT's lacks a norm that they have.
    first, last = (set(layer.state_dict()) for layer in (stack[0], stack[-1]))
    needed = [0] if first != last else []
    encode = finite(partial(encoder.encode, precision=precision))
    whole = encode(sentences)

    def cosine_without(layer: int) -> float:
        use_layers([index for index in remaining if index != layer])
        return float(pairwise(whole, encode(sentences)).mean())

    with progress("choosing layers", len(stack) - count, "layers left out") as bar:
        while len(remaining) > count:
            remaining.remove(max((index for index in remaining if index not in needed), key=cosine_without))
            bar.advance(1)
    use_layers(remaining)


def layer_stack(backbone: PreTrainedModel, setting: str) -> str:
    """Finds the path of the list of layers. Raises RequestError, about `setting`, if there is none, as in ALBERT."""
    modules = dict(backbone.named_modules())
    path = next((path for path in STACKS if isinstance(modules.get(path), nn.ModuleList)), None)
    if path is None:
        raise RequestError(f"{setting}: a {backbone.config.model_type!r} network has no layers of their own")
    return path


def keep_neurons(encoder: SentenceEncoder, count: int, texts: Iterable[str]) -> None:
    """Keeps `count` neurons of each feed-forward layer: those without which its output would change the most.

    A neuron that is left out counts as its mean activation on the texts, which becomes a part of the bias. The mean
    square of the change is then its activation's variance times the squared length of its outgoing weights. Without a
    bias it counts as 0, and its activation's mean square takes the place of the variance. Half of the 1,536 neurons in
    each of the twelve layers of a distilled multilingual E5 give a mean cosine of 0.90, a quarter of them 0.75.

    Raises RequestError if there are fewer, and for a family with other feed-forward layers than FEED_FORWARD.

    Example: activations 5, 5, 5 and 0, 1, 2 of two neurons with outgoing weights of one length. The first is larger but
    constant, so its part of the output moves into the bias, and the second is kept.
    """
    stack = cast(nn.ModuleList, encoder.backbone.get_submodule(layer_stack(encoder.backbone, "intermediate_size")))
    layers, config = [_FeedForward.of(layer) for layer in stack], encoder.backbone.config
    width = next((name for name in WIDTHS if hasattr(config, name)), None)
    if width is None or None in layers:
        raise RequestError(f"intermediate_size: the neurons of a {config.model_type!r} network cannot be left out")
    neurons = cast(int, getattr(config, width))
    if count > neurons:
        raise RequestError(f"intermediate_size: expected at most the {neurons:,} of the base, found {count:,}")
    sentences = sample_texts(texts, SENTENCES)
    if not sentences:
        raise RequestError("intermediate_size: expected text to choose neurons by, found none")
    with_maps = [layer for layer in layers if layer is not None]
    measured = [_Activations(neurons) for _ in with_maps]
    with ExitStack() as hooks:
        for layer, activations in zip(with_maps, measured, strict=True):
            hooks.enter_context(layer.down.register_forward_pre_hook(activations))
        finite(partial(encoder.encode, precision="fp32", batch_size=1))(sentences)  # one by one, without padding
    for layer, activations in zip(with_maps, measured, strict=True):
        layer.keep(count, activations.mean, activations.variance)
    setattr(config, width, count)


class _FeedForward(NamedTuple):
    """The linear maps to the neurons and from them; a gated layer has two `up`, or one with twice the rows."""

    up: list[nn.Linear]
    down: nn.Linear

    @classmethod
    def of(cls, layer: nn.Module) -> "_FeedForward | None":
        """Finds the maps of a layer; None for a family that FEED_FORWARD lacks."""
        modules = dict(layer.named_modules())
        for up, down in FEED_FORWARD:
            if any(name.startswith("ffn.") and name.endswith(f".{down}") for name in modules):
                return None  # MobileBERT's layers have several
            candidates = [modules.get(name) for name in (*up, down)]
            maps = [module for module in candidates if isinstance(module, nn.Linear)]
            if len(maps) == len(candidates):
                return cls(maps[:-1], maps[-1])
        return None

    @torch.no_grad()
    def keep(self, count: int, mean: Tensor, variance: Tensor) -> None:
        """Cuts the maps to `count` neurons; mean, variance: of the activations, (neurons,)."""
        neurons, weight, bias = self.down.in_features, self.down.weight.cpu().double(), self.down.bias  # (dim, neurons)
        lost = variance if bias is not None else variance + mean.square()
        remaining = (lost * weight.square().sum(dim=0)).topk(count).indices.sort().values
        if bias is not None:
            bias.add_((weight @ mean.index_fill(0, remaining, 0.0)).float().to(bias))
        self.down.weight, self.down.in_features = nn.Parameter(self.down.weight[:, remaining]), count
        for up in self.up:
            rows = torch.cat([remaining + start for start in range(0, up.out_features, neurons)])
            up.weight, up.out_features = nn.Parameter(up.weight[rows]), len(rows)
            if up.bias is not None:
                up.bias = nn.Parameter(up.bias[rows])


class _Activations:
    """The mean and the variance of each neuron's activations, over all tokens, in float64."""

    def __init__(self, neurons: int) -> None:
        self.count, self.sum, self.squares = 0, torch.zeros(neurons).double(), torch.zeros(neurons).double()

    def __call__(self, _: nn.Module, inputs: tuple[Tensor]) -> None:
        values = inputs[0].detach().cpu().double().flatten(0, -2)  # (tokens, neurons)
        self.count += len(values)
        self.sum += values.sum(dim=0)
        self.squares += values.square().sum(dim=0)

    @property
    def mean(self) -> Tensor:
        return self.sum / self.count

    @property
    def variance(self) -> Tensor:
        return self.squares / self.count - self.mean.square()
