"""Smaller networks: whole layers are left out, and neurons of the feed-forward layers, and the rest is fitted anew."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.inference import computing
from bertrelay.progress import progress
from students.coverage import sample_of

STACKS = ("encoder.layer", "transformer.layer", "layers", "encoder.block")
"""Where the layers are: BERT, XLM-R and MPNet; DistilBERT; ModernBERT, Qwen3 and Gemma; T5."""
OWN_NORM = "post_feedforward_layernorm"  # Gemma's, of what a feed-forward layer gives, before it is added
FEED_FORWARD = (
    (("intermediate.dense",), "output.dense", "output.LayerNorm"),
    (("ffn.lin1",), "ffn.lin2", "output_layer_norm"),
    (("mlp.Wi",), "mlp.Wo", None),
    (("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj", OWN_NORM),
    (("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj", None),
)
"""The maps to the neurons of a layer, the map from them, and what normalises its sum with the layer's other vectors, if
anything does: BERT, XLM-R and MPNet; DistilBERT; ModernBERT; Gemma; Qwen3. T5's are not there."""
WIDTHS = ("hidden_dim", "intermediate_size")  # what configs call the number of neurons; the first is DistilBERT's
SENTENCES, FITTED_SENTENCES = 256, 2048  # by which layers are chosen, and by which the rest is fitted
RIDGE = 0.001  # of the mean square of a neuron's activations: holds the fitted weights to those they were


def prune(
    encoder: SentenceEncoder, texts: Iterable[str], *, layers: int | None = None, neurons: int | None = None
) -> None:
    """Keeps `layers` of the network's layers, and `neurons` of each feed-forward layer; None keeps them all.

    Layers are left out one by one: each time the one without which the vectors of SENTENCES of the `texts` move the
    least from those of the whole encoder. Then, from the first kept layer to the last, the map from its neurons is
    fitted by least squares on FITTED_SENTENCES: what it gives comes as near as it can to what the whole network has
    before the next kept layer. Neurons are left out one by one too, or few at a time: those whose loss the others make
    up best (Hassibi & Stork 1993, "Optimal Brain Surgeon").
    Raises RequestError where there are fewer, and for a family whose layers, or their neurons, are not known.
    """
    if layers is None and neurons is None:
        return
    stack = _Stack.of(encoder, "layers" if layers is not None else "intermediate_size")
    feed_forward = [_FeedForward.of(layer) for layer in stack.layers]
    config, kept = encoder.backbone.config, list(range(len(stack.layers)))
    width = next((name for name in WIDTHS if hasattr(config, name)), None)
    is_known = width is not None and None not in feed_forward
    if neurons is not None:
        if not is_known:
            raise RequestError(f"intermediate_size: the neurons of a {config.model_type!r} network cannot be left out")
        _check_at_most("intermediate_size", neurons, getattr(config, cast(str, width)))
    if layers is not None:
        _check_at_most("layers", layers, len(kept))
        kept = _chosen_layers(encoder, stack, layers, _sample(texts, SENTENCES, "layers"))
    if is_known and (neurons is not None or len(kept) < len(stack.layers)):
        sentences = _sample(texts, FITTED_SENTENCES, "intermediate_size")
        _fit(encoder, stack.layers, kept, cast(list[_FeedForward], feed_forward), neurons, sentences)
    stack.keep(kept)
    if neurons is not None:
        setattr(config, cast(str, width), neurons)


def _sample(texts: Iterable[str], count: int, setting: str) -> list[str]:
    sentences = sample_of(texts, count)
    if not sentences:
        raise RequestError(f"{setting}: expected text to choose by, found none")
    return sentences


def _check_at_most(setting: str, count: int, there: int) -> None:
    if count > there:
        raise RequestError(f"{setting}: expected at most the {there:,} of the base, found {count:,}")


class _Stack(NamedTuple):
    """The layers of a network, and where they are held."""

    backbone: PreTrainedModel
    path: str
    layers: list[nn.Module]
    kinds: list[str]  # a layer attends to all tokens or to near ones, in networks that have both

    @classmethod
    def of(cls, encoder: SentenceEncoder, setting: str) -> "_Stack":
        """Raises RequestError, about `setting`, for a network without one, such as ALBERT."""
        path, config = layer_stack(encoder.backbone, setting), encoder.backbone.config
        layers = list(cast(nn.ModuleList, encoder.backbone.get_submodule(path)))
        return cls(encoder.backbone, path, layers, list(getattr(config, "layer_types", None) or []))

    def keep(self, kept: Sequence[int]) -> None:
        """Makes the network's layers these alone, in this order."""
        (parent, _, name), config = self.path.rpartition("."), self.backbone.config
        setattr(self.backbone.get_submodule(parent), name, nn.ModuleList([self.layers[index] for index in kept]))
        config.num_hidden_layers = len(kept)
        if self.kinds:
            config.layer_types = [self.kinds[index] for index in kept]


def layer_stack(backbone: PreTrainedModel, setting: str) -> str:
    """Where the list of layers is. Raises RequestError, about `setting`, for a network without one, such as ALBERT."""
    modules = dict(backbone.named_modules())
    path = next((path for path in STACKS if isinstance(modules.get(path), nn.ModuleList)), None)
    if path is None:
        raise RequestError(f"{setting}: a {backbone.config.model_type!r} network has no layers of their own")
    return path


def _chosen_layers(encoder: SentenceEncoder, stack: _Stack, count: int, sentences: Sequence[str]) -> list[int]:
    """Which layers stay; the network has all of them again."""
    kept = everything = list(range(len(stack.layers)))
    # T5's first layer holds what all others add to their attention.
    biased = [i for i in kept if any("relative_attention_bias" in key for key in stack.layers[i].state_dict())]
    needed = biased if len(biased) == 1 else []
    whole = encoder.encode(sentences)

    def cosine_without(layer: int) -> float:
        stack.keep([index for index in kept if index != layer])
        return float(pairwise(whole, encoder.encode(sentences)).mean())

    with progress("choosing layers", len(kept) - count, "layers left out") as bar:
        while len(kept) > count:
            least = max((index for index in kept if index not in needed), key=cosine_without)
            kept = [index for index in kept if index != least]
            bar.advance(1)
    stack.keep(everything)
    return kept


class _FeedForward(NamedTuple):
    """The linear maps to the neurons and from them; a gated layer has two of the first, or both as one of twice the
    rows.

    norm: what is given the sum of the map's vectors and the layer's others, or its vectors alone if it is Gemma's; None
    where that sum is what the layer gives.
    """

    up: list[nn.Linear]
    down: nn.Linear
    norm: nn.Module | None
    is_own_norm: bool

    @classmethod
    def of(cls, layer: nn.Module) -> "_FeedForward | None":
        """Those of a layer, or None if its family is not known."""
        modules = dict(layer.named_modules())
        for up, down, norm in FEED_FORWARD:
            if any(name.startswith("ffn.") and name.endswith(f".{down}") for name in modules):
                return None  # MobileBERT's layers have several
            maps = [module for name in (*up, down) if isinstance(module := modules.get(name), nn.Linear)]
            if len(maps) == len(up) + 1 and (norm is None or norm in modules):
                return cls(maps[:-1], maps[-1], modules[norm] if norm else None, norm == OWN_NORM)
        return None

    @contextmanager
    def watched(self, layer: nn.Module) -> Iterator["_Seen"]:
        """What the last call of the layer computes."""
        seen = _Seen()

        def of_map(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            seen.activations, seen.output = inputs[0], output

        def of_norm(_: nn.Module, inputs: tuple[Tensor]) -> None:
            seen.total = inputs[0]

        def of_layer(_: nn.Module, __: object, output: Any) -> None:
            seen.total = _hidden(output)

        with (
            self.down.register_forward_hook(of_map),
            self.norm.register_forward_pre_hook(of_norm) if self.norm else layer.register_forward_hook(of_layer),
        ):
            yield seen

    @torch.no_grad()
    def replace(self, kept: Tensor, weights: Tensor) -> None:
        """Keeps these neurons, with these weights (dim, neurons) of the map from them, whose last column is its bias's
        where it has one.
        """
        neurons, bias = self.down.in_features, self.down.bias
        if bias is not None:
            bias.copy_(weights[:, -1])
            kept, weights = kept[:-1], weights[:, :-1]
        self.down.weight, self.down.in_features = nn.Parameter(weights.to(self.down.weight)), len(kept)
        for up in self.up:
            rows = torch.cat([kept + start for start in range(0, up.out_features, neurons)])
            up.weight, up.out_features = nn.Parameter(up.weight[rows]), len(rows)
            if up.bias is not None:
                up.bias = nn.Parameter(up.bias[rows])


class _Seen:
    """activations: of the neurons, (…, neurons); output: of the map from them; total: its sum with the others."""

    activations: Tensor
    output: Tensor
    total: Tensor


@dataclass
class _Batch:
    """Sentences on their way through the whole network and the smaller one.

    mask: (rows, width), true for real tokens.
    calls: what each layer is given beside the vectors of tokens.
    whole, smaller: vectors of tokens, (rows, width, dim).
    """

    mask: Tensor
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    whole: Tensor = field(init=False)
    smaller: Tensor = field(init=False)

    def through(self, layer: nn.Module, index: int, hidden: Tensor) -> Tensor:
        """What the layer makes of `hidden`, given what layer `index` is given."""
        args, named = self.calls[index]
        return _hidden(layer(hidden, *args, **named))


def _hidden(output: Any) -> Tensor:
    return cast(Tensor, output[0] if isinstance(output, tuple) else output)


def _batches(encoder: SentenceEncoder, layers: Sequence[nn.Module], sentences: Sequence[str]) -> list[_Batch]:
    """The sentences as they enter the first layer."""
    batches: list[_Batch] = []

    def begin(_: nn.Module, __: object, named: dict[str, Any]) -> None:
        batches.append(_Batch(named["attention_mask"].bool()))

    def record(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        batch = batches[-1]
        if not batch.calls:
            batch.whole = batch.smaller = args[0]
        # A cache of keys and values would hold those of this call too.
        batch.calls.append((args[1:], {name: each for name, each in named.items() if name != "past_key_values"}))

    with ExitStack() as hooks:
        hooks.enter_context(encoder.backbone.register_forward_pre_hook(begin, with_kwargs=True))
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(record, with_kwargs=True))
        encoder.encode(sentences, precision="fp32")
    return batches


def _fit(
    encoder: SentenceEncoder,
    layers: Sequence[nn.Module],
    kept: Sequence[int],
    feed_forward: Sequence[_FeedForward],
    neurons: int | None,
    sentences: Sequence[str],
) -> None:
    """Fits the kept layers, each to the last layer before the next kept one."""
    batches, reached = _batches(encoder, layers, sentences), 0
    with progress("fitting layers", len(kept), "layers") as bar:
        for index, following in zip(kept, [*kept[1:], len(layers)], strict=True):
            own, layer = feed_forward[index], layers[index]
            goal = index if own.is_own_norm else following - 1
            sums = _Sums(own.down)
            with computing(encoder, "fp32"):
                for batch in batches:
                    for passed in range(reached, goal):
                        batch.whole = batch.through(layers[passed], passed, batch.whole)
                    with feed_forward[goal].watched(layers[goal]) as aim:
                        batch.whole = batch.through(layers[goal], goal, batch.whole)
                        total = aim.total
                    with own.watched(layer) as seen:
                        batch.through(layer, index, batch.smaller)
                    if own.norm is not None and not own.is_own_norm:  # which does not see scale and mean
                        total = _scaled_as(seen.total, total)
                    sums.add(seen.activations[batch.mask], (total - (seen.total - seen.output))[batch.mask])
            reached = goal + 1
            own.replace(*sums.fitted(own.down, neurons))
            if own.norm is not None:
                own.norm.load_state_dict(cast(nn.Module, feed_forward[goal].norm).state_dict())
            with computing(encoder, "fp32"):
                for batch in batches:
                    batch.smaller = batch.through(layer, index, batch.smaller)
            bar.advance(1)


def _scaled_as(like: Tensor, vectors: Tensor) -> Tensor:
    """`vectors` (…, dim), each with the mean and the standard deviation of that of `like`."""
    deviation, mean = torch.std_mean(vectors, dim=-1, keepdim=True)
    like_deviation, like_mean = torch.std_mean(like, dim=-1, keepdim=True)
    return (vectors - mean) / deviation * like_deviation + like_mean


class _Sums:
    """Sums over tokens, in float64: of products of activations with one another, and with what the map should give.

    A bias counts as one more neuron, whose activation is always 1 and which always stays.
    """

    def __init__(self, down: nn.Linear) -> None:
        self.has_bias = down.bias is not None
        columns = down.in_features + self.has_bias
        self.square = torch.zeros(columns, columns).double()
        self.cross = torch.zeros(down.out_features, columns).double()

    def add(self, activations: Tensor, targets: Tensor) -> None:
        """activations: (tokens, neurons); targets: (tokens, dim)."""
        if self.has_bias:
            activations = torch.cat([activations, torch.ones_like(activations[:, :1])], dim=1)
        self.square += (activations.T @ activations).cpu().double()
        self.cross += (targets.T @ activations).cpu().double()

    def fitted(self, down: nn.Linear, count: int | None) -> tuple[Tensor, Tensor]:
        """Which columns stay, (columns,), and their weights (dim, columns): those of least squares, and of RIDGE.

        A neuron's loss is what the sum of squares grows by without it, the others fitted once more.
        """
        neurons = down.in_features
        ridge = (RIDGE * self.square.diagonal()[:neurons].mean()).clamp(min=1e-12)
        square, cross = self.square.clone(), self.cross.clone()
        pulls = ridge * down.weight.detach().cpu().double()  # (dim, neurons)
        square.diagonal()[:neurons] += ridge
        cross[:, :neurons] += pulls
        kept = torch.arange(len(square))
        while True:
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(square[kept][:, kept]))
            weights = cross[:, kept] @ inverse
            there = len(kept) - self.has_bias
            surplus = there - (count or there)
            if surplus == 0:
                return kept, weights
            loss = (weights.square().sum(dim=0) / inverse.diagonal())[:there]
            loss -= pulls[:, kept[:there]].square().sum(dim=0) / ridge  # what is left out is no longer held
            at_once = min(surplus, max(1, surplus // 8, neurons // 64))
            stays = torch.ones(len(kept), dtype=torch.bool)
            stays[loss.topk(at_once, largest=False).indices] = False
            kept = kept[stays]
