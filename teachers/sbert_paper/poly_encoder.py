"""The stage `teachers.poly-encoder`: the poly-encoder (Humeau et al. 2020), between vectors and a cross-encoder.

The network reads one sentence at a time. m learned codes each attend to the token vectors of the first; the vector of
the second attends to the m results, and their weighted sum is compared with it.
"""

import math
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from bertrelay.errors import RequestError
from bertrelay.files import write_tensors
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.files import explain_unreadable
from bertrelay.stage import Metrics, StageContext
from teachers.pairs.model import Pairs, PairScorer, PairTokens
from teachers.pairs.train import train_scorer
from teachers.sbert_paper.settings import PolyEncoderSettings

POLY_ENCODER = "poly.safetensors"  # beside an encoder's files; `bertrelay.model.kinds` knows a scorer by it
BESIDE_ENCODER = ("codes", "scale", "shift")  # parameters that are not in the encoder's files


def attend(queries: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Computes Σ softmax(q · v) v: (batch, queries, dim) over (batch, values, dim) with true `mask` (batch, values)."""
    weights = queries @ values.transpose(1, 2)  # (batch, queries, values)
    if mask is not None:
        weights = weights.masked_fill(~mask.unsqueeze(1), -torch.inf)
    return weights.softmax(dim=-1) @ values  # (batch, queries, dim)


class PolyEncoder(PairScorer):
    """A scorer of pairs by `codes` learned queries to the tokens of the first sentence."""

    def __init__(self, encoder: SentenceEncoder, codes: int, seed: int = 0) -> None:
        super().__init__()
        if encoder.projection is not None or len(encoder.pooling.modes) > 1:
            raise RequestError("base: expected an encoder of one pooling and no projection, for codes of its own size")
        self.encoder, self.pad_id, self.max_tokens = encoder, encoder.pad_id, encoder.max_tokens
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.codes = nn.Parameter(torch.randn(codes, encoder.dim) / math.sqrt(encoder.dim))
        # The paper ranks by the product itself; as a score from 0 to 1 it needs a scale and a shift.
        self.scale, self.shift = nn.Parameter(torch.tensor(1 / encoder.dim)), nn.Parameter(torch.zeros(()))

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device | None = None) -> "PolyEncoder":
        """Loads the poly-encoder of a folder. device: as in `SentenceEncoder.load`.

        Raises RequestError for another folder or damaged weights.
        """
        path = Path(folder) / POLY_ENCODER
        if not path.is_file():
            raise RequestError(
                f"model: expected a poly-encoder with {POLY_ENCODER} in {folder}; train it with teachers.poly-encoder"
            )
        encoder = SentenceEncoder.load(folder, device, backend="torch", is_base=True)
        with explain_unreadable(path, "the codes of a poly-encoder"):
            weights = load_file(path)
            model = cls(encoder, len(weights["codes"]))
            of_encoder = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
            model.load_state_dict({**of_encoder, **weights})
        return model.eval().to(model.encoder.device)  # the codes too

    def save(self, folder: str | Path) -> None:
        """Writes the encoder's folder, and the codes in it."""
        self.encoder.save(folder)
        write_tensors(Path(folder) / POLY_ENCODER, {name: self.get_parameter(name) for name in BESIDE_ENCODER})

    @property
    def backbone(self) -> nn.Module:
        return self.encoder.backbone

    def tokenize(self, pairs: Pairs) -> PairTokens:
        ids = self.encoder.tokenize([pair[position] for position in (0, 1) for pair in pairs])
        sizes = np.array([len(row) for row in ids], np.int64).reshape(2, -1)
        return PairTokens(np.fromiter(chain.from_iterable(ids), np.int32), sizes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Maps (2 · pairs, tokens), all first sentences first, to logits (pairs,), float32."""
        tokens = self.encoder.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        with torch.autocast(input_ids.device.type, enabled=False):
            first, second = tokens.float().chunk(2)  # (pairs, tokens, dim)
            first_mask, second_mask = attention_mask.bool().chunk(2)  # (pairs, tokens)
            candidates = self.encoder.pooling(second, second_mask)  # (pairs, dim)
            contexts = attend(self.codes.expand(len(first), -1, -1), first, first_mask)  # (pairs, codes, dim)
            mixed = attend(candidates.unsqueeze(1), contexts).squeeze(1)  # (pairs, dim)
            return cast(Tensor, self.scale * (mixed * candidates).sum(dim=-1) + self.shift)


def run(settings: PolyEncoderSettings, context: StageContext) -> Metrics:
    """Trains a network whose learned codes attend to the first sentence."""

    def start() -> PairScorer:
        encoder = SentenceEncoder.load(settings.base, backend="torch", cache=context.cache, is_base=True)
        return PolyEncoder(encoder, settings.codes, settings.seed)

    return train_scorer(start, settings, context)
