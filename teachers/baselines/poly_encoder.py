"""The poly-encoder (Humeau et al. 2020): between vectors and a cross-encoder, as a re-ranker.

Each sentence is read alone. Of the first, m learnt codes each attend to its token vectors; the vector of the second
attends to the m results, and their mix is compared with it.
"""

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from teachers.baselines.side_scorer import SideScorer

WEIGHTS = "poly.safetensors"


def attend(queries: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Σ softmax(q · v) v: (batch, queries, dim) over (batch, values, dim), where `mask` (batch, values) is true."""
    weights = queries @ values.transpose(1, 2)  # (batch, queries, values)
    if mask is not None:
        weights = weights.masked_fill(~mask.unsqueeze(1), -torch.inf)
    return weights.softmax(dim=-1) @ values  # (batch, queries, dim)


class PolyEncoder(SideScorer):
    """Pairs of sentences to how alike they are, by `codes` learnt queries to the tokens of the first."""

    file, own, title, stage = WEIGHTS, ("codes", "scale", "shift"), "a poly-encoder", "teachers.poly-encoder"

    def __init__(self, encoder: SentenceEncoder, codes: int, seed: int = 0) -> None:
        super().__init__(encoder)
        if encoder.projection is not None or len(encoder.pooling.modes) > 1:
            raise RequestError("base: expected an encoder of one pooling and no projection, for codes of its own size")
        dim = encoder.dim
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.codes = nn.Parameter(torch.randn(codes, dim) / math.sqrt(dim))
        # The paper ranks by the product itself; as a score from 0 to 1 it needs a unit and a middle.
        self.scale, self.shift = nn.Parameter(torch.tensor(1 / dim)), nn.Parameter(torch.zeros(()))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(2 · pairs, tokens), first sentences first, to logits (pairs,), float32."""
        tokens = self.encoder.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        with torch.autocast(input_ids.device.type, enabled=False):
            first, second = tokens.float().chunk(2)  # (pairs, tokens, dim)
            first_mask, second_mask = attention_mask.bool().chunk(2)  # (pairs, tokens)
            candidates = self.encoder.pooling(second, second_mask)  # (pairs, dim)
            contexts = attend(self.codes.expand(len(first), -1, -1), first, first_mask)  # (pairs, codes, dim)
            mixed = attend(candidates.unsqueeze(1), contexts).squeeze(1)  # (pairs, dim)
            return cast(Tensor, self.scale * (mixed * candidates).sum(dim=-1) + self.shift)

    @classmethod
    def of(cls, encoder: SentenceEncoder, weights: Mapping[str, Tensor]) -> "PolyEncoder":
        return cls(encoder, len(weights.get("codes", ())))
