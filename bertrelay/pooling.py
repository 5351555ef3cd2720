"""From token vectors to one vector per sentence: first token, mean, maximum, or several of them side by side."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bertrelay.errors import RequestError

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len")
"""In the order in which the folders' older keys concatenate them."""


class Pooling(nn.Module):
    """Pools token vectors in float32, in the order of `modes`; padding on either side enters none of them."""

    def __init__(self, modes: Sequence[str]) -> None:
        super().__init__()
        unknown = [mode for mode in modes if mode not in POOLINGS]
        if unknown or not modes:
            raise RequestError(f"pooling: expected one or more of {', '.join(POOLINGS)}, found {list(modes)}")
        if len(set(modes)) < len(modes):
            raise RequestError(f"pooling: expected each way once, found {list(modes)}")
        self.modes = tuple(modes)

    def forward(self, token_vectors: Tensor, attention_mask: Tensor) -> Tensor:
        """(batch, tokens, dim) and (batch, tokens) -> float32 (batch, dim * number of modes)."""
        vectors = token_vectors.float()  # (batch, tokens, dim)
        mask = attention_mask.bool()  # (batch, tokens)
        return torch.cat([_pool(mode, vectors, mask) for mode in self.modes], dim=-1)


def in_folder_order(modes: Sequence[str]) -> tuple[str, ...]:
    """`modes` in the order that the folders' older keys, and so every version of sentence-transformers, can say."""
    return tuple(sorted(modes, key=lambda mode: POOLINGS.index(mode) if mode in POOLINGS else len(POOLINGS)))


def _pool(mode: str, vectors: Tensor, mask: Tensor) -> Tensor:
    if mode == "cls":
        first = mask.int().argmax(dim=1)  # (batch,): the first real token, wherever the padding stands
        return vectors[torch.arange(len(vectors), device=vectors.device), first]  # (batch, dim)
    if mode == "max":
        return vectors.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)  # (batch, dim)
    # masked_fill, not a product: what stands in a padded place may be NaN, and 0 * NaN is NaN.
    total = vectors.masked_fill(~mask.unsqueeze(-1), 0.0).sum(dim=1)  # (batch, dim)
    count = mask.sum(dim=1, keepdim=True).to(total.dtype)  # (batch, 1)
    return total / (count if mode == "mean" else count.sqrt())
