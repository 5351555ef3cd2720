"""The network a teacher is trained as: an encoder, dropout on its vectors, and the softmax objective's linear map."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.files import write_json, write_tensors
from bertrelay.model_files import read_model_file
from teachers.baselines.weights import fill, read_weights
from teachers.objectives import concatenate
from teachers.settings import TrainSettings

WEIGHTS, DESCRIPTION = "head.safetensors", "head.json"


class Teacher(nn.Module):
    """Sentences to vectors, or, where there is a head, pairs of sentences to logits."""

    def __init__(self, encoder: SentenceEncoder, head: nn.Linear | None, dropout: float, parts: Sequence[str]) -> None:
        super().__init__()
        self.encoder, self.head, self.parts = encoder, head, parts
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(sentences, tokens) to vectors (sentences, dim), or logits (sentences / 2, classes): first halves, second."""
        vectors: Tensor = self.dropout(self.encoder(input_ids, attention_mask))  # (sentences, dim)
        if self.head is None:
            return vectors
        return self.logits(*vectors.chunk(2))

    def logits(self, u: Tensor, v: Tensor) -> Tensor:
        """W (u, v, …) in float32, (pairs, classes)."""
        assert self.head is not None
        with torch.autocast(u.device.type, enabled=False):
            logits: Tensor = self.head(concatenate(u, v, self.parts))
        return logits


def start_head(settings: TrainSettings, encoder: SentenceEncoder, classes: list[str]) -> nn.Linear | None:
    """A new linear map for the classes of the data, or the one of an earlier training; None without softmax."""
    if settings.objective != "softmax":
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = nn.Linear(len(settings.concatenation) * encoder.dim, len(classes))
    if settings.head is not None:
        _load_head(head, classes, settings, Path(settings.head))
    return head


def save_head(head: nn.Linear, classes: list[str], settings: TrainSettings, folder: Path) -> None:
    """Writes the linear map, what it maps from, and the names of its classes."""
    folder.mkdir(exist_ok=True)
    write_tensors(folder / WEIGHTS, head.state_dict())
    write_json(folder / DESCRIPTION, _description(classes, settings))


def _load_head(head: nn.Linear, classes: list[str], settings: TrainSettings, folder: Path) -> None:
    known = read_model_file(folder / DESCRIPTION, dict[str, list[str]])
    if known is None or not (folder / WEIGHTS).is_file():
        raise RequestError(f"head: expected {DESCRIPTION} and {WEIGHTS} of an earlier training in {folder}")
    if known != _description(classes, settings):
        raise RequestError(
            f"head: the one in {folder} was trained for {known.get('classes')} on {known.get('concatenation')}, "
            f"and this training has {classes} on {settings.concatenation}. Leave `head` out to begin a new one."
        )
    weights = read_weights(folder / WEIGHTS)
    figures = weights["weight"].shape[-1] if "weight" in weights else None
    if figures not in (None, head.in_features):
        raise RequestError(
            f"head: the one in {folder} maps from {figures} figures, and this encoder gives {head.in_features}"
        )
    fill(head, weights, folder / WEIGHTS)


def _description(classes: list[str], settings: TrainSettings) -> dict[str, list[str]]:
    return {"classes": classes, "concatenation": list(settings.concatenation)}
