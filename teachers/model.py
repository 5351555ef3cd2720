"""The network in training: an encoder, and for the softmax objective a head for pairs of sentences (`head/`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from bertrelay.data.tokens import Encoder
from bertrelay.errors import RequestError
from bertrelay.files import write_json, write_tensors
from bertrelay.model.files import explain_unreadable, read_model_file
from teachers.settings import ObjectiveSettings


def concatenate(u: Tensor, v: Tensor, parts: Sequence[str]) -> Tensor:
    """Joins the sentence vectors (batch, dim) of pairs to one vector (batch, len(parts) · dim)."""
    by_name = {"u": u, "v": v, "|u-v|": (u - v).abs(), "u*v": u * v}
    return torch.cat([by_name[part] for part in parts], dim=-1)


class TrainableEncoder(Encoder, Protocol):
    """A module from tokens to vectors, such as a `SentenceEncoder`. dim: of a vector."""

    pad_id: int

    @property
    def dim(self) -> int: ...

    def __call__(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor: ...

    def encode(self, sentences: Sequence[str], *, precision: str) -> NDArray[np.float32]: ...


class Teacher(nn.Module):
    """An encoder from sentences to vectors; with a head, from pairs of sentences to logits."""

    def __init__(self, encoder: TrainableEncoder, head: nn.Linear | None, dropout: float, parts: Sequence[str]) -> None:
        super().__init__()
        self.encoder, self.head, self.parts = encoder, head, parts
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Maps (sentences, tokens) to vectors (sentences, dim), or to logits (sentences / 2, classes).

        With a head, the first half of the sentences are the first ones of the pairs.
        """
        vectors: Tensor = self.dropout(self.encoder(input_ids, attention_mask))  # (sentences, dim)
        return vectors if self.head is None else self.logits(*vectors.chunk(2))

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        """Computes W (u, v, …) in float32, (pairs, classes)."""
        assert self.head is not None
        with torch.autocast(u.device.type, enabled=False):
            logits: Tensor = self.head(concatenate(u, v, self.parts))
        return logits


HEAD_WEIGHTS, HEAD_DESCRIPTION = "head.safetensors", "head.json"


def start_head(settings: ObjectiveSettings, encoder: TrainableEncoder, classes: Sequence[str]) -> nn.Linear:
    """Makes a linear map for the classes of the data, or loads the one of an earlier training.

    Raises RequestError for a map of other classes, of another concatenation or of another size.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = nn.Linear(len(settings.concatenation) * encoder.dim, len(classes))
    if settings.head is None:
        return head
    folder = Path(settings.head)
    trained = read_model_file(folder / HEAD_DESCRIPTION, dict[str, list[str]])
    if trained is None or not (folder / HEAD_WEIGHTS).is_file():
        raise RequestError(f"head: expected {HEAD_DESCRIPTION} and {HEAD_WEIGHTS} of an earlier training in {folder}")
    if trained != _description(classes, settings.concatenation):
        raise RequestError(
            f"head: the one in {folder} was trained for {trained.get('classes')} on {trained.get('concatenation')}, "
            f"and this training has {classes} on {settings.concatenation}. Leave `head` out to begin a new one."
        )
    with explain_unreadable(folder / HEAD_WEIGHTS, f"a linear map of {head.in_features} numbers"):
        head.load_state_dict(load_file(folder / HEAD_WEIGHTS))
    return head


def save_head(head: nn.Linear, classes: Sequence[str], parts: Sequence[str], folder: Path) -> None:
    """Writes the linear map, the concatenation that it reads, and the names of its classes."""
    folder.mkdir(exist_ok=True)
    write_tensors(folder / HEAD_WEIGHTS, head.state_dict())
    write_json(folder / HEAD_DESCRIPTION, _description(classes, parts))


def _description(classes: Sequence[str], parts: Sequence[str]) -> dict[str, list[str]]:
    return {"classes": list(classes), "concatenation": list(parts)}
