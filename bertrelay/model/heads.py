"""Models with a head: a BERT, a linear map for one task on it, and its tokenizer; started, saved, loaded and checked.

On disk such a model is a plain transformers folder, which the auto class of its task loads, with a JSON file beside the
weights for statements that transformers does not know. Cross-encoders, entity taggers, question answerers and outcome
classifiers share this. In an exported model the BERT is a graph, and the head's weights have a separate file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from bertrelay.cache import Cache
from bertrelay.device import default_device, resolve_precision
from bertrelay.errors import RequestError
from bertrelay.inference.batches import inference_mode, pack_for
from bertrelay.inference.kernels import use_cpu_kernels, use_packed
from bertrelay.model.dropout import set_dropout
from bertrelay.model.files import GRAPHS, Backend, explain_unreadable, fail_with
from bertrelay.model.folder import CONFIG, ModelFolder
from bertrelay.model.graph import BackendChoice, GraphNetwork, check_backend, fastest, load_graph
from bertrelay.model.network import load_backbone, load_config, load_network, position_limit, refuse_missing
from bertrelay.model.tokenizer import check_vocabulary, load_tokenizer

Loaded = tuple[PreTrainedModel, PreTrainedTokenizerFast]

TIMED_TEXTS, TIMED_TOKENS = 16, 64
HEAD_WEIGHTS = "head.safetensors"  # of an exported model: all weights outside the graph
AUTO_CLASSES: dict[str, Any] = {
    "ForTokenClassification": AutoModelForTokenClassification,
    "ForQuestionAnswering": AutoModelForQuestionAnswering,
    "ForSequenceClassification": AutoModelForSequenceClassification,
}
"""Auto classes of transformers by the ending of an architecture's name."""


class FullPrecision(nn.Linear):
    """A linear map in float32 under autocast: bf16 would round scores to three digits and make ties."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        with torch.autocast(input.device.type, enabled=False):
            return linear(input.float(), self.weight, self.bias)


class HeadNetwork(nn.Module):
    """Base of the networks with a head.

    network: with a head, of transformers. last: the last linear map of the head, which then computes in float32.
    """

    def __init__(self, network: PreTrainedModel, last: Any) -> None:
        super().__init__()
        self.network = network
        last.__class__ = FullPrecision  # in place, so that the names of weights stay
        use_cpu_kernels(network)

    @property
    def device(self) -> torch.device:
        return self.network.device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves or converts all weights, as `to` and `half` do; the head of a graph stays with it on the CPU."""
        return self if isinstance(self.backbone, GraphNetwork) else super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    @property
    def backbone(self) -> Any:
        """The BERT under the head."""
        return self.network.base_model


@dataclass(frozen=True)
class Head:
    """The head of a task, as transformers builds it.

    auto_class: of transformers, for the task. weights: prefix of the names of the head's weights.
    kind: of models, as in `bertrelay.model.kinds`.
    noun, purpose, remedy: for errors: such a network, its task, and the way to get one.
    layers: the modules on the BERT, one set for each supported form; any when empty.
    pooler: `dropped`, for a head that reads token vectors. Where the head reads the pooler and the files lack its
        weights, these are drawn from the seed: together `with head`, or before it, `first`, as transformers does.
    """

    auto_class: Any
    weights: str
    kind: str
    noun: str
    purpose: str
    remedy: str
    layers: tuple[frozenset[str], ...] = ()
    pooler: Literal["dropped", "with head", "first"] = "dropped"

    def start(
        self,
        source: str | Path | ModelFolder,
        config: Mapping[str, object] | None = None,
        *,
        dropout: float | None = None,
        seed: int = 0,
        cache: Cache | None = None,
    ) -> Loaded:
        """The BERT of `source`, which may be a sentence encoder, under a new head drawn from `seed`, and its tokenizer.

        config: values for the network's configuration.
        dropout: in every layer and before the head; as in the BERT when None.
        """
        folder = ModelFolder.find(source, cache=cache)
        inner = folder.transformer
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.pooler == "first":
                backbone, missing = load_network(inner)
                refuse_missing(inner.path, missing)
            else:
                backbone = load_backbone(inner)
                torch.manual_seed(seed)  # the head does not depend on what the files lack
            tokenizer = load_tokenizer(inner.path, folder.layout.lower_case)
            check_vocabulary(tokenizer, backbone.config.vocab_size)
            for name, value in (config or {}).items():
                setattr(backbone.config, name, value)
            network = self._draw(backbone.config)
        drawn = None if self.pooler == "dropped" else getattr(network.base_model, "pooler", None)
        _replace_base(network, backbone, drawn)
        if dropout is not None:
            set_dropout(network, dropout)
        return network, tokenizer

    def load(self, folder: ModelFolder, backend: BackendChoice = None) -> Loaded:
        """The network of `folder` and its tokenizer. Raises RequestError for one without this head, or damaged.

        backend: see `SentenceEncoder.load`; `auto` is measured on the CPU, and torch where there is an accelerator.
        """
        check_backend(backend, None)
        folder.check_kind(self.kind)
        load_config(folder)  # so that a folder without a model is reported as that
        usable, has_head = folder.backends, (folder.path / HEAD_WEIGHTS).is_file()
        if usable[0] != "torch" and not has_head and (fault := folder.fault(self.kind)):
            raise RequestError(f"model: {fault}")
        if usable[0] == "torch" and not has_head:
            usable = usable[:1]  # graphs that others wrote
        tokenizer = load_tokenizer(folder.path)
        if backend == "auto" and len(usable) > 1 and default_device().type == "cpu":
            networks = {name: self._load(folder, tokenizer, name) for name in usable}
            tokens = min(TIMED_TOKENS, tokenizer.model_max_length)
            batches = {name: _timed_batch(network, tokens) for name, network in networks.items()}
            network = networks[fastest(batches, folder.path)]
        else:
            chosen = usable[0] if backend in (None, "auto") else cast(Backend, backend)
            network = self._load(folder, tokenizer, chosen)
        check_vocabulary(tokenizer, network.config.vocab_size)
        return network, tokenizer

    def _load(self, folder: ModelFolder, tokenizer: PreTrainedTokenizerFast, backend: Backend) -> PreTrainedModel:
        path = folder.path
        if backend in GRAPHS:
            network, missing = _on_graph(folder, self.auto_class, tokenizer.model_max_length, backend)
        else:
            network, missing = load_network(folder, self.auto_class)
        if any(name.startswith(self.weights) for name in missing):
            raise RequestError(f"model: expected one that {self.purpose}, found none in {path}; {self.remedy}")
        refuse_missing(path, missing)
        if self.pooler != "dropped" and missing:
            raise RequestError(f"model: the weights in {path} lack a pooler, which the head reads; copy it again")
        self.check(network)
        return network

    def check(self, network: PreTrainedModel) -> None:
        """Raises RequestError for other modules on the BERT than the layers of this head."""
        modules = {name for name, _ in network.named_children()} - {network.base_model_prefix}
        if self.layers and modules not in self.layers:
            expected = " or ".join(" and ".join(sorted(layers)) for layers in self.layers)
            raise RequestError(
                f"model: expected a {self.noun} with {expected} on a BERT, found {network.config.model_type!r}, which "
                f"has {', '.join(sorted(modules))}"
            )

    def _draw(self, config: PreTrainedConfig) -> PreTrainedModel:
        try:
            network = self.auto_class.from_config(config)
        except ValueError as error:
            raise RequestError(f"base: transformers has no {self.noun} for {config.model_type!r}") from error
        self.check(network)
        return cast(PreTrainedModel, network)


def _replace_base(network: PreTrainedModel, backbone: PreTrainedModel, drawn: nn.Module | None) -> None:
    """Puts `backbone` under the head of `network`, with its trained pooler, or else the `drawn` one or none."""
    trained: Any = getattr(backbone, "pooler", None)
    if drawn is not None and trained is not None and any(weight.any() for weight in trained.parameters()):
        trained.requires_grad_(True)  # sentence encoders freeze it
    elif drawn is not None or trained is not None:  # zeros in a folder mean that there never was one
        setattr(backbone, "pooler", drawn)  # noqa: B010 (to mypy a module's attribute is no None)
    setattr(network, network.base_model_prefix, backbone)


def _timed_batch(network: PreTrainedModel, tokens: int) -> Callable[[], NDArray[np.float32]]:
    """A function that computes the token vectors of one random batch, to be timed."""
    sizes, drawn = (TIMED_TEXTS, tokens), torch.Generator().manual_seed(0)
    ids = torch.randint(network.config.vocab_size, sizes, generator=drawn)
    wrapped = HeadNetwork(network, nn.Linear(1, 1)).eval()
    precision = resolve_precision("auto", ids.device)
    packed = pack_for(ids.numel(), network.base_model, precision, batch_tokens=1)

    def compute() -> NDArray[np.float32]:
        with inference_mode(wrapped, precision), use_packed(packed):
            outputs = network.base_model(input_ids=ids, attention_mask=torch.ones_like(ids))
        return np.asarray(outputs.last_hidden_state.float().flatten(0, 1))  # (all tokens, dim)

    return compute


def _on_graph(
    folder: ModelFolder, auto_class: Any, max_tokens: int, backend: Backend
) -> tuple[PreTrainedModel, set[str]]:
    """A network whose BERT is the graph of `folder`, and the names of weights that its head lacks in the files."""
    graph = load_graph(folder, backend, max_tokens)
    with fail_with(lambda error: f"no network can be built from {folder.path / CONFIG} ({type(error).__name__})"):
        with torch.device("meta"):
            network = auto_class.from_config(load_config(folder))
        graph.pooler = getattr(network.base_model, "pooler", None)
        setattr(network, network.base_model_prefix, graph)
    with explain_unreadable(file := folder.path / HEAD_WEIGHTS, "the weights of a head"):
        missing, unexpected = network.load_state_dict(load_file(file), strict=False, assign=True)
    if unexpected:
        names = ", ".join(sorted(unexpected)[:3])
        raise RequestError(f"model: {file} has weights that config.json has no place for ({names}); export it again")
    return network.eval(), {name for name in missing if not name.endswith(".digest")}


def load_with_head(folder: ModelFolder) -> PreTrainedModel | None:
    """The network of `folder` with the head that its config.json names; None without a name of one.

    Raises RequestError for missing weights of the network, the head, or a pooler between them.
    """
    config = folder.network_config
    for name in (config and config.architectures) or ():
        for ending, auto_class in AUTO_CLASSES.items():
            if name.endswith(ending):
                network, missing = load_network(folder, auto_class)
                if missing:
                    raise RequestError(
                        f"model: the weights in {folder.path} lack {len(missing)} that {name} has "
                        f"({', '.join(sorted(missing)[:3])}); copy the folder again"
                    )
                return network
    return None


def head_weights(network: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of `network` behind its token vectors: of its head and, if it has one, its pooler."""
    pooler = f"{network.base_model_prefix}.pooler."
    return {
        name: weight.detach().cpu().clone()
        for name, weight in network.state_dict().items()
        if name.startswith(pooler) or not name.startswith(f"{network.base_model_prefix}.")
    }


def read_tokenizer(model: str) -> tuple[PreTrainedTokenizerFast, int | None]:
    """The tokenizer of a model folder or hub id, and its number of positions; None when no file states it."""
    folder = ModelFolder.find(model)
    config = folder.transformer.network_config
    tokenizer = load_tokenizer(folder.transformer.path, folder.layout.lower_case)
    return tokenizer, config.max_position_embeddings if config else None


def check_positions(network: PreTrainedModel, requested: int | None, key: str = "max_tokens") -> int | None:
    """The positions of `network`, if they are limited. Raises RequestError for more `requested` by `key`."""
    positions = position_limit(network)
    if requested is not None and positions is not None and requested > positions:
        raise RequestError(
            f"{key}: expected at most the {positions} positions of the base, found {requested}; lower it"
        )
    return positions


def window_size(positions: int | None, largest: int) -> int:
    """The default tokens of a window: `largest`, or the positions of the network when they are fewer."""
    return min(largest, positions or largest)


def window_tokens(network: PreTrainedModel, requested: int | None, largest: int) -> int:
    """The tokens of a window: `requested`, or the default. Raises RequestError for more than there are positions."""
    positions = check_positions(network, requested)
    return requested or window_size(positions, largest)
