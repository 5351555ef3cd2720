"""What scorers of pairs share whose sentence encoder has each sentence in a row of its own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.files import write_tensors
from teachers.cross_encoder import Pairs, score_pairs
from teachers.objectives import fill, read_weights


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


class SideScorer(nn.Module):
    """Pairs of sentences to how alike they are; `forward` takes first sentences, then second ones.

    file: where, in the encoder's folder, the parameters `own` stand, which that folder does not hold.
    title, stage: what it is, and what trains it, for who gives another folder.
    """

    file: ClassVar[str]
    own: ClassVar[tuple[str, ...]]
    title: ClassVar[str]
    stage: ClassVar[str]

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder, self.pad_id = encoder, encoder.pad_id

    @property
    def device(self) -> torch.device:
        return self.encoder.device

    @property
    def backbone(self) -> nn.Module:
        return self.encoder.backbone

    @property
    def max_tokens(self) -> int:
        return self.encoder.max_tokens

    def tokenize(self, pairs: Pairs) -> SideTokens:
        """The tokens of both sentences of `pairs`, each alone."""
        ids = self.encoder.tokenize([pair[side] for side in (0, 1) for pair in pairs])
        lengths = np.array([len(each) for each in ids], np.int64).reshape(2, -1)
        return SideTokens(ids, 2 * lengths.max(axis=0))

    def score(self, pairs: Pairs, *, precision: str = "auto", batch_tokens: int | None = None) -> NDArray[np.float32]:
        """How alike the sentences of each pair are, from 0 to 1, float32 (pairs,)."""
        return score_pairs(self, pairs, precision, batch_tokens)

    def save(self, folder: str | Path) -> None:
        """Writes the encoder's folder, and its own parameters in it."""
        self.encoder.save(folder)
        write_tensors(Path(folder) / self.file, {name: self.get_parameter(name) for name in self.own})

    @classmethod
    def of(cls, encoder: SentenceEncoder, weights: Mapping[str, Tensor]) -> Self:  # noqa: ARG003
        """One of the sizes that `weights` have, which it does not take over; the encoder says them, if nobody else."""
        return cls(encoder)

    @classmethod
    def stands_in(cls, folder: Path) -> bool:
        """Whether a folder holds one."""
        return (folder / cls.file).is_file()

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device | None = None) -> Self:
        """The one of a folder that was saved here, on `device`, which is as of `SentenceEncoder.load`.

        Raises RequestError for a folder that holds none.
        """
        path = Path(folder) / cls.file
        if not cls.stands_in(Path(folder)):
            raise RequestError(f"model: expected {cls.title} with {cls.file} in {folder}; train it with {cls.stage}")
        weights = read_weights(path)
        model = cls.of(SentenceEncoder.load(folder, device), weights)
        fill(model, weights, path, cls.own)
        return model.eval().to(model.device)  # its own weights too


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
