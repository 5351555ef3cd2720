"""InferSent's encoder (Conneau et al. 2017): an LSTM reads word vectors both ways, each figure's maximum counts.

It learns by the softmax objective, as the teachers do; the word vectors stay as they are. It keeps those of the words
in its train and dev data alone, so that a folder stands by itself; any other word is unknown to it, where the paper
looks it up in all of GloVe.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertrelay.errors import RequestError
from bertrelay.files import write_json, write_tensors
from bertrelay.layout import Prompts
from bertrelay.model_files import Description, Size, read_model_file
from bertrelay.pooling import Pooling
from teachers.baselines.weights import fill, read_weights
from teachers.baselines.word_vectors import WordVectors, words_of

DESCRIPTION, WEIGHTS = "bilstm.json", "bilstm.safetensors"
UNKNOWN = 0
MAX_WORDS = 128
BATCH = 64


class _Description(Description):
    words: list[str]
    word_dim: Size
    hidden: Size


class BiLstmEncoder(nn.Module):
    """Sentences to vectors, (sentences, 2 · hidden).

    words: what each row of the word vectors after the first, which is for unknown words, stands for.
    """

    def __init__(self, words: Sequence[str], word_dim: int, hidden: int) -> None:
        super().__init__()
        self.words = list(words)
        self._rows = {word: row for row, word in enumerate(self.words, 1)}
        self.embeddings = nn.Embedding(len(self.words) + 1, word_dim)
        self.embeddings.requires_grad_(False)
        self.lstm = nn.LSTM(word_dim, hidden, batch_first=True, bidirectional=True)
        self.pooling = Pooling(["max"])
        self.pad_id, self.prompts = UNKNOWN, Prompts()

    @classmethod
    def of(cls, vectors: WordVectors, hidden: int, seed: int) -> "BiLstmEncoder":
        """A network before its first step, over `vectors`; an unknown word is zeros."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = cls(list(vectors.rows), vectors.matrix.shape[1], hidden)
        zeros = np.zeros((1, vectors.matrix.shape[1]), np.float32)
        encoder.embeddings.weight.data = torch.from_numpy(np.concatenate([zeros, vectors.matrix]))
        return encoder

    @property
    def dim(self) -> int:
        return 2 * self.lstm.hidden_size

    @property
    def device(self) -> torch.device:
        return self.embeddings.weight.device

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]:
        """The rows of each sentence's words, as they are written or in lower case; at least one."""
        return [
            [self._rows.get(word, self._rows.get(word.lower(), UNKNOWN)) for word in words_of(sentence)[:MAX_WORDS]]
            or [UNKNOWN]
            for sentence in sentences
        ]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(batch, words) ids and mask to (batch, 2 · hidden), float32."""
        with torch.autocast(input_ids.device.type, enabled=False):
            lengths = attention_mask.sum(dim=1).cpu()
            packed = pack_padded_sequence(self.embeddings(input_ids), lengths, batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)  # (batch, words, 2 · hidden)
            return cast(Tensor, self.pooling(states, attention_mask[:, : states.shape[1]]))

    def encode(self, sentences: Sequence[str], *, precision: str = "fp32") -> NDArray[np.float32]:  # noqa: ARG002
        """Vectors of `sentences`, float32 (sentences, dim); always computed in fp32."""
        rows = self.tokenize(sentences)
        vectors = np.empty((len(rows), self.dim), np.float32)
        order = sorted(range(len(rows)), key=lambda place: -len(rows[place]))
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                places = order[start : start + BATCH]
                ids = nn.utils.rnn.pad_sequence([torch.tensor(rows[place]) for place in places], batch_first=True)
                lengths = torch.tensor([len(rows[place]) for place in places])
                mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
                vectors[places] = self(ids.to(self.device), mask.to(self.device)).cpu().numpy()
        return vectors

    def save(self, folder: str | Path) -> None:
        """Writes the folder that `load` reads."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS, self.state_dict())
        sizes = {"word_dim": self.embeddings.embedding_dim, "hidden": self.lstm.hidden_size}
        write_json(folder / DESCRIPTION, {**sizes, "words": self.words}, compact=True)

    @classmethod
    def load(cls, folder: str | Path) -> "BiLstmEncoder":
        """The encoder of a folder that was saved here. Raises RequestError for a folder that holds none."""
        folder = Path(folder)
        told = read_model_file(folder / DESCRIPTION, _Description)
        if told is None or not (folder / WEIGHTS).is_file():
            raise RequestError(
                f"bilstm: expected {DESCRIPTION} and {WEIGHTS} in {folder}; train it with teachers.bilstm"
            )
        with torch.device("meta"):  # sizes take memory only when the weights have them
            encoder = cls(told.words, told.word_dim, told.hidden)
        fill(encoder, read_weights(folder / WEIGHTS), folder / WEIGHTS)
        encoder.embeddings.requires_grad_(False)
        return encoder.eval()
