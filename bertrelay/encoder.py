"""The sentence encoder: a BERT-like network, pooling, perhaps a projection, perhaps a normalisation to length 1."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bertrelay import backbone as backbones
from bertrelay.cpu_kernels import use_cpu_kernels
from bertrelay.errors import RequestError
from bertrelay.files import write_tensors
from bertrelay.hardware import as_device
from bertrelay.layout import Dense, Layout, Prompts, read_layout, write_layout
from bertrelay.pooling import Pooling, in_folder_order

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TOKENS_WITHOUT_ANY_LIMIT = 512
ACTIVATIONS = ("torch.nn.modules.activation", "torch.nn.modules.linear")
"""Where torch has its activations, and the map that changes nothing."""
CHARACTERS_AT_ONCE = 1 << 20  # tokenized together; thousands of usual sentences


class Projection(nn.Module):
    """A linear map of the pooled vector, and an activation after it."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias)
        self.activation = nn.Identity() if activation is None else activation

    def forward(self, vectors: Tensor) -> Tensor:
        return cast(Tensor, self.activation(self.linear(vectors)))  # (batch, out_features)


class SentenceEncoder(nn.Module):
    """Sentences to vectors.

    pooling: names in any order, which the folder's order replaces, or a `Pooling`, whose order is kept.
    max_tokens: the longest input, special tokens included, and at most what the position table holds.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        pooling: Pooling | Sequence[str] = ("mean",),
        projection: Projection | None = None,
        normalize: bool = False,
        max_tokens: int | None = None,
        prompts: Prompts | None = None,
        similarity: str | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooling = pooling if isinstance(pooling, Pooling) else Pooling(in_folder_order(pooling))
        self.projection = projection
        self.normalize = normalize
        self.max_tokens = _longest_input(backbone, max_tokens or tokenizer.model_max_length)
        self.prompts = prompts or Prompts()
        self.similarity = similarity
        self.pad_id = backbones.pad_id_of(backbone, tokenizer)
        self._rules = _cutting_rules(tokenizer, self.max_tokens)
        backbones.freeze_pooler(backbone)
        use_cpu_kernels(backbone)
        # As its network: one that was loaded has no dropout, before, while and after it encodes.
        self.train(backbone.training)
        self._check_sizes()

    def _check_sizes(self) -> None:
        words, rows = len(self.tokenizer), self.backbone.config.vocab_size
        if words > rows:
            raise RequestError(
                f"model: the tokenizer has {words:,} tokens and the network vectors for {rows:,} of them only"
            )
        if self.projection is not None and self.projection.linear.in_features != self.pooled_dim:
            raise RequestError(
                f"model: the projection expects {self.projection.linear.in_features} dimensions "
                f"and the pooling ({', '.join(self.pooling.modes)}) gives {self.pooled_dim}"
            )

    @classmethod
    def load(
        cls,
        source: str | Path,
        device: str | torch.device | None = None,
        *,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
    ) -> "SentenceEncoder":
        """The encoder of a sentence-transformers folder, of a plain transformers folder (mean pooling), or of a hub id.

        device: where it computes: by default the accelerator of this machine, of several the one of this process.
        Raises RequestError when it is not there, not whole, or not of a kind that is known here.
        """
        device = as_device(device)
        folder = backbones.model_folder(source, revision, cache_dir)
        layout = read_layout(folder)
        transformer = folder / layout.transformer_folder
        network = backbones.load_backbone(transformer)
        if layout.token_dim not in (None, network.config.hidden_size):
            raise RequestError(
                f"model: the pooling in {folder} expects token vectors of {layout.token_dim} dimensions "
                f"and the network gives {network.config.hidden_size}"
            )
        return cls(
            network,
            backbones.load_tokenizer(transformer, layout.lower_case),
            pooling=Pooling(layout.pooling),
            projection=_load_projection(folder, layout.dense) if layout.dense else None,
            normalize=layout.normalize,
            max_tokens=layout.max_tokens,
            prompts=layout.prompts,
            similarity=layout.similarity,
        ).to(device)

    def save(self, folder: str | Path) -> None:
        """Writes a sentence-transformers folder, which its versions 3 to 6 load too."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        backbones.save_backbone(self.backbone, folder)
        has_types = getattr(self.backbone.config, "type_vocab_size", 0) > 1
        backbones.save_tokenizer(self.tokenizer, folder, self.max_tokens, has_types)
        write_layout(folder, self.layout)
        if self.projection is not None:
            path = folder / Dense.folder / "model.safetensors"
            write_tensors(path, self.projection.state_dict(), {"format": "pt"})

    @property
    def layout(self) -> Layout:
        """What a folder says of this encoder, apart from weights, network and tokenizer."""
        dense = None
        if self.projection is not None:
            linear, activation = self.projection.linear, type(self.projection.activation)
            path = f"{activation.__module__}.{activation.__qualname__}"
            dense = Dense(linear.in_features, linear.out_features, linear.bias is not None, path)
        return Layout(
            pooling=self.pooling.modes,
            token_dim=self.backbone.config.hidden_size,
            dense=dense,
            normalize=self.normalize,
            max_tokens=self.max_tokens,
            prompts=self.prompts,
            similarity=self.similarity,
        )

    @property
    def pooled_dim(self) -> int:
        """Dimensions after the pooling and before the projection."""
        return int(self.backbone.config.hidden_size) * len(self.pooling.modes)

    @property
    def dim(self) -> int:
        """Dimensions of a sentence vector."""
        return self.pooled_dim if self.projection is None else self.projection.linear.out_features

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(batch, tokens) ids and mask -> float32 (batch, dim). Only the network computes in bf16 under autocast."""
        tokens = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        with torch.autocast(input_ids.device.type, enabled=False):
            vectors = self.pooling(tokens, attention_mask)  # (batch, pooled_dim)
            if self.projection is not None:
                vectors = self.projection(vectors)  # (batch, dim)
            return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]:
        """The ids of each sentence, special tokens included, cut to `max_tokens`; never an empty list."""
        ids: list[list[int]] = []
        for some in _slices(sentences):
            ids += [encoding.ids or [self.pad_id] for encoding in self._rules.encode_batch_fast(some)]
        return ids

    def encode(
        self,
        sentences: str | Iterable[str],
        *,
        precision: str = "auto",
        batch_tokens: int | None = None,
        prompt_name: str | None = None,
        progress: bool = False,
    ) -> "NDArray[np.float32]":
        """Vectors of `sentences`, float32 (n, dim), of one string (dim,); see `bertrelay.encoding.encode`."""
        from bertrelay.encoding import encode

        return encode(
            self, sentences, precision=precision, batch_tokens=batch_tokens, prompt_name=prompt_name, progress=progress
        )


def as_encoder(model: SentenceEncoder | str | Path, cache: Path | None = None) -> SentenceEncoder:
    """`model` itself, or the encoder of that name; `cache` keeps one of the hub."""
    if isinstance(model, SentenceEncoder):
        return model
    return SentenceEncoder.load(model, cache_dir=cache and cache / "hub")


def _slices(sentences: Sequence[str]) -> Iterator[list[str]]:
    """`sentences`, so many at once that what the tokenizer keeps of them, cut off or not, stays small."""
    first = characters = 0
    for place, sentence in enumerate(sentences, 1):
        characters += len(sentence)
        if characters >= CHARACTERS_AT_ONCE:
            yield list(sentences[first:place])
            first, characters = place, 0
    if first < len(sentences):
        yield list(sentences[first:])


def _longest_input(backbone: nn.Module, max_tokens: int) -> int:
    """`max_tokens`, or what the position table holds if that is less."""
    limit = backbones.position_limit(backbone)
    if limit is None and max_tokens >= 2**31:
        return TOKENS_WITHOUT_ANY_LIMIT
    return max_tokens if limit is None else min(max_tokens, limit)


def _cutting_rules(tokenizer: PreTrainedTokenizerFast, max_tokens: int) -> Tokenizer:
    """A copy of the tokenizer's own rules that cuts at `max_tokens`: the caller's tokenizer stays as it is."""
    rules = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    rules.no_padding()
    backbones.check_max_tokens(rules, max_tokens)
    rules.enable_truncation(max_tokens, direction=tokenizer.truncation_side)
    return rules


def _load_projection(folder: Path, dense: Dense) -> Projection:
    kind: Any = getattr(nn, dense.activation.rpartition(".")[2], None)
    try:
        is_activation = dense.activation.startswith("torch.nn.") and kind.__module__ in ACTIVATIONS
        with torch.device("meta"):  # a size takes memory only when the weights have it
            projection = Projection(
                dense.in_features, dense.out_features, dense.bias, kind() if is_activation else None
            )
    except (AttributeError, TypeError):  # no class, or one that wants arguments
        is_activation = False
    if not is_activation:
        raise RequestError(
            f"model: expected an activation of torch.nn, found {dense.activation!r} in {folder / dense.folder}"
        )
    weights = {name: weight.float() for name, weight in backbones.read_weights(folder / dense.folder).items()}
    try:
        projection.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise RequestError(f"model: the weights in {folder / dense.folder} do not fit its config.json") from error
    return projection
