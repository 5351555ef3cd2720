"""The poly-encoder (Humeau et al. 2020): between vectors and a cross-encoder, as a re-ranker.

Each sentence is read alone. Of the first, m learnt codes each attend to its token vectors; the vector of the second
attends to the m results, and their mix is compared with it.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.files import share
from teachers.baselines.pair_scores import Pairs, score_pairs
from teachers.baselines.weights import fill, read_weights

WEIGHTS = "poly.safetensors"
OWN = ("codes", "scale", "shift")
"""The parameters that its encoder's folder does not hold."""


def attend(queries: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Σ softmax(q · v) v: (batch, queries, dim) over (batch, values, dim), where `mask` (batch, values) is true."""
    weights = queries @ values.transpose(1, 2)  # (batch, queries, values)
    if mask is not None:
        weights = weights.masked_fill(~mask.unsqueeze(1), -torch.inf)
    return weights.softmax(dim=-1) @ values  # (batch, queries, dim)


@dataclass(frozen=True)
class SideTokens:
    """The ids of the first sentences of pairs, then those of the second ones; tokens of each pair, (pairs,)."""

    ids: list[list[int]]
    lengths: NDArray[np.int64]
    sides: ClassVar[int] = 2

    def padded(self, rows: NDArray[np.integer], pad_id: int, width: int | None = None) -> dict[str, Tensor]:
        """First sentences, then second ones, padded together: both (2 · rows, width)."""
        chosen = [self.ids[place] for place in [*rows.tolist(), *(rows + len(self.lengths)).tolist()]]
        lengths = torch.tensor([len(each) for each in chosen])
        mask = torch.arange(width or int(lengths.max())) < lengths[:, None]  # (2 · rows, width)
        ids = torch.full(mask.shape, pad_id)
        ids[mask] = torch.tensor([token for each in chosen for token in each])
        return {"input_ids": ids, "attention_mask": mask.long()}


class PolyEncoder(nn.Module):
    """Pairs of sentences to how alike they are, by `codes` learnt queries to the tokens of the first."""

    def __init__(self, encoder: SentenceEncoder, codes: int, seed: int = 0) -> None:
        super().__init__()
        if encoder.projection is not None or len(encoder.pooling.modes) > 1:
            raise RequestError("base: expected an encoder of one pooling and no projection, for codes of its own size")
        self.encoder, self.pad_id = encoder, encoder.pad_id
        dim = encoder.dim
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.codes = nn.Parameter(torch.randn(codes, dim) / math.sqrt(dim))
        # The paper ranks by the product itself; as a score from 0 to 1 it needs a unit and a middle.
        self.scale, self.shift = nn.Parameter(torch.tensor(1 / dim)), nn.Parameter(torch.zeros(()))

    @property
    def device(self) -> torch.device:
        return self.encoder.device

    @property
    def backbone(self) -> nn.Module:
        return self.encoder.backbone

    @property
    def max_tokens(self) -> int:
        return self.encoder.max_tokens

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

    def tokenize(self, pairs: Pairs) -> SideTokens:
        """The tokens of both sentences of `pairs`, each alone."""
        ids = self.encoder.tokenize([pair[side] for side in (0, 1) for pair in pairs])
        lengths = np.array([len(each) for each in ids], np.int64).reshape(2, -1)
        return SideTokens(ids, 2 * lengths.max(axis=0))

    def score(self, pairs: Pairs, *, precision: str = "auto", batch_tokens: int | None = None) -> NDArray[np.float32]:
        """How alike the sentences of each pair are, from 0 to 1, float32 (pairs,)."""
        return score_pairs(self, pairs, precision, batch_tokens)

    def save(self, folder: str | Path) -> None:
        """Writes the encoder's folder, and the codes in it."""
        self.encoder.save(folder)
        own = {name: self.get_parameter(name).detach().cpu() for name in OWN}
        save_file(own, Path(folder) / WEIGHTS)
        share(Path(folder) / WEIGHTS)

    @classmethod
    def load(cls, folder: str | Path) -> "PolyEncoder":
        """The poly-encoder of a folder that was saved here. Raises RequestError for a folder that holds none."""
        if not holds_poly_encoder(Path(folder)):
            raise RequestError(
                f"model: expected a poly-encoder with {WEIGHTS} in {folder}; train it with teachers.poly-encoder"
            )
        file = Path(folder) / WEIGHTS
        weights = read_weights(file)
        model = cls(SentenceEncoder.load(folder), len(weights.get("codes", ())))
        fill(model, weights, file, OWN)
        return model.eval()


def holds_poly_encoder(folder: Path) -> bool:
    return (folder / WEIGHTS).is_file()
