"""From token vectors to one vector per sentence: first or last token, mean, maximum or several, and projections."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertrelay.errors import RequestError
from bertrelay.model.layout import POOLINGS, Dense
from bertrelay.model.network import read_weights

ACTIVATIONS = ("torch.nn.modules.activation", "torch.nn.modules.linear")  # modules with the classes a folder may name


class Pooling(nn.Module):
    """Pools token vectors in float32, in the order of `modes`; padding on either side has no effect.

    include_prompt: pool the tokens of a prompt with those of the sentence.
    """

    def __init__(self, modes: Sequence[str], include_prompt: bool = True) -> None:
        super().__init__()
        if not modes or len(set(modes) & set(POOLINGS)) < len(modes):
            raise RequestError(
                f"pooling: expected one or more of {', '.join(POOLINGS)}, each once, found {list(modes)}"
            )
        self.modes = tuple(modes)
        self.include_prompt = include_prompt

    def forward(self, token_vectors: Tensor, attention_mask: Tensor, prompt_tokens: int = 0) -> Tensor:
        """(batch, tokens, dim) and (batch, tokens) -> float32 (batch, dim * number of modes).

        prompt_tokens: number of first tokens of a sentence that are skipped, unless `include_prompt`.
        """
        vectors = token_vectors.float()  # (batch, tokens, dim)
        mask = attention_mask.bool()  # (batch, tokens)
        positions = mask.cumsum(dim=1)  # (batch, tokens): 1 for the first real token
        if prompt_tokens and not self.include_prompt:
            longest = positions.amax(dim=1, keepdim=True)  # (batch, 1)
            mask = mask & (
                positions > (longest - 1).clamp(max=prompt_tokens)
            )  # of a text cut inside its prompt, the last token
        return torch.cat([_pool(mode, vectors, mask, positions) for mode in self.modes], dim=-1)


def _pool(mode: str, vectors: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
    """Pools by one mode. positions: of tokens in their sentence, from 1, with the prompt, (batch, tokens)."""
    if mode in ("cls", "lasttoken"):  # the first or last token that counts, wherever the padding is
        chosen = (mask.int() if mode == "cls" else mask * positions).argmax(dim=1)  # (batch,)
        return vectors[torch.arange(vectors.shape[0], device=vectors.device), chosen]  # (batch, dim)
    if mode == "max":
        return vectors.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)  # (batch, dim)
    # masked_fill, not a product: a padded position may hold NaN, and 0 * NaN is NaN.
    real = vectors.masked_fill(~mask.unsqueeze(-1), 0.0)  # (batch, tokens, dim)
    if mode == "weightedmean":
        weights = (positions * mask).to(real.dtype)  # (batch, tokens)
        return torch.einsum("btd,bt->bd", real, weights) / weights.sum(dim=1, keepdim=True)
    total = real.sum(dim=1)  # (batch, dim)
    count = mask.sum(dim=1, keepdim=True).to(total.dtype)  # (batch, 1)
    divisors = {"mean": count, "mean_sqrt_len": count.sqrt()}
    return total / divisors[mode]


class Projection(nn.Module):
    """A linear map of the pooled vector, followed by an activation; `normalized`: of the vector at length 1."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: nn.Module | None = None,
        normalized: bool = False,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias)
        self.activation = nn.Identity() if activation is None else activation
        self.normalized = normalized

    def forward(self, vectors: Tensor) -> Tensor:
        if self.normalized:
            vectors = nn.functional.normalize(vectors, dim=-1)  # (batch, in_features)
        vectors = vectors.to(self.linear.weight.dtype)  # float16 after `half()`
        return cast(Tensor, self.activation(self.linear(vectors)))  # (batch, out_features)

    @property
    def dense(self) -> Dense:
        """The description of the projection in a folder."""
        linear, activation = self.linear, type(self.activation)
        path = f"{activation.__module__}.{activation.__qualname__}"
        return Dense(linear.in_features, linear.out_features, linear.bias is not None, path, self.normalized)


def linear_projection(weight: Tensor, bias: Tensor | None) -> Projection:
    """A projection of `weight` (out, in) and `bias` (out,)."""
    projection = Projection(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        projection.linear.weight.copy_(weight)
        if bias is not None:
            projection.linear.bias.copy_(bias)
    return projection


def projections_of(projection: Projection | nn.Sequential | None) -> list[Projection]:
    """The list of an encoder's projections."""
    if projection is None:
        return []
    return (
        [cast(Projection, module) for module in projection] if isinstance(projection, nn.Sequential) else [projection]
    )


def projection_of(projections: Sequence[Projection]) -> Projection | nn.Sequential | None:
    """The argument `projection` of an encoder with these projections."""
    return projections[0] if len(projections) == 1 else nn.Sequential(*projections) if projections else None


def load_projection(folder: Path, dense: Dense) -> Projection:
    """The projection in the model's `folder`. Raises RequestError for other activations, and for unfitting weights."""
    kind: Any = getattr(nn, dense.activation.rpartition(".")[2], None)
    try:
        is_activation = dense.activation.startswith("torch.nn.") and kind.__module__ in ACTIVATIONS
        with torch.device("meta"):  # no memory for sizes that the weights do not have
            activation = kind() if is_activation else None
            projection = Projection(dense.in_features, dense.out_features, dense.bias, activation, dense.normalized)
    except (AttributeError, TypeError):  # no class, or one that needs arguments
        is_activation = False
    if not is_activation:
        raise RequestError(
            f"model: expected an activation of torch.nn, found {dense.activation!r} in {folder / dense.folder}"
        )
    weights = {name: weight.float() for name, weight in read_weights(folder / dense.folder).items()}
    try:
        projection.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise RequestError(f"model: the weights in {folder / dense.folder} do not fit its config.json") from error
    return projection
