"""The stage `teachers.bilstm`: InferSent's BiLSTM over word vectors (Conneau et al. 2017).

It reads word vectors in both directions and takes the maximum of each dimension. It is trained by the softmax
objective; the word vectors do not change. A model folder has only those of the words in its train and dev data; any
other word is unknown to it, where the paper looks it up in all of GloVe.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from bertrelay.errors import RequestError
from bertrelay.files import write_json, write_tensors
from bertrelay.model.files import Description, Size, explain_unreadable, read_model_file
from bertrelay.model.pooling import Pooling
from bertrelay.settings import common_values
from bertrelay.stage import Metrics, StageContext
from teachers.sbert_paper.settings import BiLstmSettings
from teachers.sbert_paper.word_vectors import WordVectors, rows_of, vectors_for
from teachers.settings import ObjectiveSettings
from teachers.train import TeacherData, learn

DESCRIPTION, WEIGHTS = "bilstm.json", "bilstm.safetensors"
UNKNOWN = 0
MAX_WORDS = 128
BATCH = 64


class BiLstmDescription(Description):
    words: list[str]
    word_dim: Size
    hidden: Size


class BiLstmEncoder(nn.Module):
    """An encoder from sentences to vectors, (sentences, 2 · hidden).

    words: of the rows of the word vectors after the first, which is for unknown words.
    """

    def __init__(self, words: Sequence[str], word_dim: int, hidden: int) -> None:
        super().__init__()
        self.words = list(words)
        self._rows = {word: row for row, word in enumerate(self.words, 1)}
        self.embeddings = nn.Embedding(len(self.words) + 1, word_dim)
        self.embeddings.requires_grad_(False)
        self.lstm = nn.LSTM(word_dim, hidden, batch_first=True, bidirectional=True)
        self.pooling = Pooling(["max"])
        self.pad_id = UNKNOWN
        self.dim = 2 * hidden

    def text_before(self) -> str:
        return ""

    @classmethod
    def of(cls, vectors: WordVectors, hidden: int, seed: int) -> "BiLstmEncoder":
        """Makes a network before its first step, over `vectors`; the vector of unknown words is zeros."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = cls(list(vectors.rows), vectors.matrix.shape[1], hidden)
        encoder.embeddings.weight.data = torch.from_numpy(np.pad(vectors.matrix, ((1, 0), (0, 0))))
        return encoder

    @property
    def device(self) -> torch.device:
        return self.embeddings.weight.device

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]:
        """Returns the rows of the words of each sentence; that of an unknown word for a sentence without words."""
        rows = [rows_of(sentence, self._rows)[:MAX_WORDS] or [UNKNOWN] for sentence in sentences]
        return [[row or UNKNOWN for row in sentence] for sentence in rows]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Maps ids and mask, (batch, words) each, to vectors (batch, 2 · hidden), float32."""
        with torch.autocast(input_ids.device.type, enabled=False):
            lengths = attention_mask.sum(dim=1).cpu()
            packed = pack_padded_sequence(self.embeddings(input_ids), lengths, batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)  # (batch, words, 2 · hidden)
            return cast(Tensor, self.pooling(states, attention_mask[:, : states.shape[1]]))

    def encode(self, sentences: Sequence[str], *, precision: str = "fp32") -> NDArray[np.float32]:  # noqa: ARG002
        """Encodes `sentences`, float32 (sentences, dim); always computes in fp32."""
        rows = [torch.tensor(tokens) for tokens in self.tokenize(sentences)]
        vectors = np.empty((len(rows), self.dim), np.float32)
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                ids = pad_sequence([rows[index] for index in batch], batch_first=True, padding_value=-1)
                inputs = ids.clamp(min=UNKNOWN).to(self.device), (ids >= 0).long().to(self.device)
                vectors[batch] = self(*inputs).cpu().numpy()
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
        """Loads the encoder of a folder that `save` wrote. Raises RequestError for another folder."""
        folder = Path(folder)
        description = read_model_file(folder / DESCRIPTION, BiLstmDescription)
        if description is None or not (folder / WEIGHTS).is_file():
            raise RequestError(
                f"bilstm: expected {DESCRIPTION} and {WEIGHTS} in {folder}; train it with teachers.bilstm"
            )
        with torch.device("meta"):  # a wrong size in the description takes no memory
            encoder = cls(description.words, description.word_dim, description.hidden)
        with explain_unreadable(folder / WEIGHTS, f"the weights that {DESCRIPTION} describes"):
            encoder.load_state_dict(load_file(folder / WEIGHTS), assign=True)
        encoder.embeddings.requires_grad_(False)
        return encoder.eval()


def run(settings: BiLstmSettings, context: StageContext) -> Metrics:
    """Trains the encoder by the softmax objective of `teachers.train` and writes `model/`."""
    training = ObjectiveSettings(objective="softmax", **common_values(settings, ObjectiveSettings))
    data = TeacherData.read(training, context)
    vectors = vectors_for(Path(settings.glove), [*data.train.sentences, *(data.dev.sentences if data.dev else [])])
    encoder = BiLstmEncoder.of(vectors, settings.hidden, settings.seed)
    _, metrics = learn(encoder, data, training, context)
    if context.process_group.is_main:
        encoder.save(context.output / "model")
    return metrics
