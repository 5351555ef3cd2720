"""A cross-encoder that begins as a bi-encoder: each sentence looks at the other one through gates, which learn to open.

Every layer has a gate for each head: a figure that is added to the attention scores of the other sentence's tokens.
With all at −∞ no sentence sees the other, and pairs are in the order of the bi-encoder's cosines; at 0 each sees both
alike, as in other cross-encoders. Nothing that the bi-encoder knows has to be learnt anew, and a score knows no order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from bertrelay import cpu_kernels as plain
from bertrelay.backbone import model_folder
from bertrelay.cpu_kernels import apply_dropout
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from teachers.baselines.pair_scores import COSINE
from teachers.baselines.side_scorer import SideScorer

NAME = "bertrelay-gated"
WEIGHTS = "gates.safetensors"
RATE_FACTOR = 1_000.0
"""AdamW moves a parameter by about the learning rate in a step. A gate has to move by whole numbers."""
START = -2.0
"""A token of the other sentence has a seventh of the weight that it would have in one's own."""

GATES: ContextVar[Iterator[Tensor] | None] = ContextVar("gates", default=None)
"""Those of the layers to come, (heads,) each."""


class GatedCrossEncoder(SideScorer):
    """Pairs of sentences to how alike they are, by the cosine of their vectors, each read with a look at the other."""

    output = COSINE
    rate_factors: ClassVar = {"gates": RATE_FACTOR}
    file, own, title, stage = WEIGHTS, ("gates",), "a gated cross-encoder", "teachers.cross-encoder"

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__(encoder)
        config: Any = encoder.backbone.config
        looks_everywhere = "sliding_attention" not in (getattr(config, "layer_types", None) or ())
        if config._attn_implementation not in (plain.NAME, NAME) or not looks_everywhere:
            raise RequestError(
                "base: expected a network whose attention can be replaced, as BERT's and RoBERTa's, for gated; "
                f"found {config.model_type!r}"
            )
        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, plain.mask)
        encoder.backbone.set_attn_implementation(NAME)
        self.shape = int(config.num_hidden_layers), int(config.num_attention_heads)
        self.gates = nn.Parameter(torch.full((self.shape[0] * self.shape[1],), START))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(2 · pairs, tokens), first sentences first, to cosines (pairs,), float32."""
        with looking_across(self.gates.view(self.shape)):
            vectors = self.encoder(input_ids, attention_mask)  # (2 · pairs, dim)
        with torch.autocast(input_ids.device.type, enabled=False):
            first, second = vectors.chunk(2)
            return nn.functional.cosine_similarity(first, second)


def start_gated(base: str | Path, cache_dir: Path | None = None) -> GatedCrossEncoder:
    """A gated cross-encoder before its first step, of a sentence encoder, or of one whose gates are open already."""
    folder = model_folder(base, cache_dir=cache_dir)
    if GatedCrossEncoder.stands_in(folder):
        return GatedCrossEncoder.load(folder)
    return GatedCrossEncoder(SentenceEncoder.load(folder))


@contextmanager
def looking_across(gates: Tensor) -> Iterator[None]:
    """Within it, layer n of a gated network attends with `gates` (layers, heads) n."""
    token = GATES.set(iter(gates))
    try:
        yield
    finally:
        GATES.reset(token)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Within `looking_across`, each sentence's tokens attend to those of both sentences of its pair.

    query, key, value: (2 · pairs, heads, tokens, head dim), first sentences first. attention_mask: True where to look,
    (2 · pairs, 1, tokens, tokens), the same for all queries. Returns (2 · pairs, tokens, heads, head dim).
    """
    in_use = GATES.get()
    if in_use is None:
        return plain.attention(module, query, key, value, attention_mask, dropout, scaling, **options)
    gates = next(in_use).to(query.dtype)  # (heads,)
    rows, _, tokens, size = query.shape
    visible = query.new_ones(rows, tokens, dtype=torch.bool) if attention_mask is None else attention_mask[:, 0, 0]
    bias = torch.stack([torch.zeros_like(gates), gates], -1).repeat_interleave(tokens, -1)  # (heads, 2 · tokens)
    bias = torch.where(_with_partner(visible, 1)[:, None], bias, -torch.inf)  # (2 · pairs, heads, 2 · tokens)
    query = query * (size**-0.5 if scaling is None else scaling)
    scores = query @ _with_partner(key, 2).transpose(-1, -2) + bias[:, :, None]
    weights = apply_dropout(scores.softmax(-1), dropout)  # (2 · pairs, heads, tokens, 2 · tokens)
    return (weights @ _with_partner(value, 2)).transpose(1, 2).contiguous(), None


def _with_partner(rows: Tensor, dim: int) -> Tensor:
    """Each row with that of the other sentence of its pair beside it, along `dim`."""
    return torch.cat([rows, rows.roll(len(rows) // 2, 0)], dim)
