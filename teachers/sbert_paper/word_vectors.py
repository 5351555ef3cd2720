"""For comparison with the papers: averaged word vectors (GloVe), and InferSent's BiLSTM over them.

InferSent (Conneau et al. 2017) reads word vectors in both directions and takes each dimension's maximum. It is trained
by the softmax objective; the word vectors stay as they are. A model folder keeps those of the words in its train and
dev data alone; any other word is unknown to it, where the paper looks it up in all of GloVe.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from bertrelay.data.readers import bounded_lines, open_input, refuse_damaged
from bertrelay.errors import RequestError
from bertrelay.files import write_json, write_tensors
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.files import Description, Size, explain_unreadable, read_model_file
from bertrelay.model.layout import Prompts
from bertrelay.model.pooling import Pooling
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics, StageContext
from teachers.data import number
from teachers.sbert_paper.settings import BiLstmSettings, common_values
from teachers.settings import TrainSettings
from teachers.train import TeacherData, learn

WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")
HEADER_FIELDS = 2


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, float32 (words, dim)."""

    rows: dict[str, int]
    matrix: NDArray[np.float32]

    @classmethod
    def load(cls, path: Path, only: Collection[str] | None = None) -> Self:
        """Reads a text file, `.gz` too: in each line a word and its values; word2vec's first line is passed over.

        only: the words that are wanted, so that a file of gigabytes is read in little memory; all without it.
        Raises RequestError, with the line, for one that has other than the first one's number of values, or among
        those that are wanted other than finite ones.
        """
        rows: dict[str, int] = {}
        vectors: list[NDArray[np.float32]] = []
        dim = 0
        with refuse_damaged(str(path)), open_input(str(path)) as lines:
            for line_number, line in enumerate(bounded_lines(lines), 1):
                fields = line.decode("utf-8", "replace").rstrip().split(" ")
                if line_number == 1 and len(fields) == HEADER_FIELDS:
                    continue
                dim = dim or len(fields) - 1
                word, values = " ".join(fields[:-dim]), fields[-dim:]  # a few of GloVe's words have spaces in them
                if not dim or not word or (len(fields) > dim + 1 and number(fields[-dim - 1]) is not None):
                    found = "more" if dim and word else "fewer"
                    raise RequestError(f"{path}, line {line_number:,}: expected a word and {dim} values, found {found}")
                if word not in rows and (only is None or word in only):
                    rows[word] = len(rows)
                    try:
                        vectors.append(np.array(values, dtype=np.float32))
                    except ValueError:
                        vectors.append(np.full(dim, np.nan, np.float32))
                    if not np.isfinite(vectors[-1]).all():
                        raise RequestError(
                            f"{path}, line {line_number:,}: expected a word and {dim} finite values, found others"
                        )
        if not dim:
            raise RequestError(f"{path}: expected word vectors, found none")
        return cls(rows, np.stack(vectors) if vectors else np.zeros((0, dim), np.float32))

    def encode(self, sentences: Sequence[str]) -> NDArray[np.float32]:
        """The mean of the vectors of the words that are known, (sentences, dim); zeros where none is."""
        vectors = np.zeros((len(sentences), self.matrix.shape[1]), np.float32)
        for place, sentence in enumerate(sentences):
            known = [row for row in rows_of(sentence, self.rows) if row is not None]
            if known:
                vectors[place] = self.matrix[known].mean(axis=0)
        return vectors


def rows_of(sentence: str, rows: Mapping[str, int]) -> list[int | None]:
    """The row of each word as it is written, else in lower case; None for an unknown one."""
    return [rows.get(word, rows.get(word.lower())) for word in WORD.findall(sentence)]


def vectors_for(path: Path, sentences: Sequence[str]) -> WordVectors:
    """The word vectors of `path`, of which only those of the words of `sentences` are kept.

    Raises RequestError when none of them is known.
    """
    words = {word for sentence in sentences for word in WORD.findall(sentence)}
    vectors = WordVectors.load(path, words | {word.lower() for word in words})
    if not vectors.rows:
        raise RequestError(f"{path}: knows no word of these sentences. Check that it is a file of word vectors.")
    return vectors


DESCRIPTION, WEIGHTS = "bilstm.json", "bilstm.safetensors"
UNKNOWN = 0
MAX_WORDS = 128
BATCH = 64


class BiLstmDescription(Description):
    words: list[str]
    word_dim: Size
    hidden: Size


class BiLstmEncoder(nn.Module):
    """Sentences to vectors, (sentences, 2 · hidden).

    words: the word of each row of the word vectors after the first, which is for unknown words.
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
        self.dim = 2 * hidden

    def text_before(self) -> str:
        return ""

    @classmethod
    def of(cls, vectors: WordVectors, hidden: int, seed: int) -> "BiLstmEncoder":
        """A network before its first step, over `vectors`; an unknown word is zeros."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            encoder = cls(list(vectors.rows), vectors.matrix.shape[1], hidden)
        encoder.embeddings.weight.data = torch.from_numpy(np.pad(vectors.matrix, ((1, 0), (0, 0))))
        return encoder

    @property
    def device(self) -> torch.device:
        return self.embeddings.weight.device

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]:
        """The rows of each sentence's words; at least one."""
        rows = [rows_of(sentence, self._rows)[:MAX_WORDS] or [UNKNOWN] for sentence in sentences]
        return [[row or UNKNOWN for row in each] for each in rows]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(batch, words) ids and mask to (batch, 2 · hidden), float32."""
        with torch.autocast(input_ids.device.type, enabled=False):
            lengths = attention_mask.sum(dim=1).cpu()
            packed = pack_padded_sequence(self.embeddings(input_ids), lengths, batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)  # (batch, words, 2 · hidden)
            return cast(Tensor, self.pooling(states, attention_mask[:, : states.shape[1]]))

    def encode(self, sentences: Sequence[str], *, precision: str = "fp32") -> NDArray[np.float32]:  # noqa: ARG002
        """Vectors of `sentences`, float32 (sentences, dim); always computed in fp32."""
        rows = [torch.tensor(each) for each in self.tokenize(sentences)]
        vectors = np.empty((len(rows), self.dim), np.float32)
        order = sorted(range(len(rows)), key=lambda place: -len(rows[place]))
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                places = order[start : start + BATCH]
                ids = pad_sequence([rows[place] for place in places], batch_first=True, padding_value=-1)
                inputs = ids.clamp(min=UNKNOWN).to(self.device), (ids >= 0).long().to(self.device)
                vectors[places] = self(*inputs).cpu().numpy()
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
        """The encoder of a folder that was saved here. Raises RequestError for a folder without one."""
        folder = Path(folder)
        found = read_model_file(folder / DESCRIPTION, BiLstmDescription)
        if found is None or not (folder / WEIGHTS).is_file():
            raise RequestError(
                f"bilstm: expected {DESCRIPTION} and {WEIGHTS} in {folder}; train it with teachers.bilstm"
            )
        with torch.device("meta"):  # sizes take memory only when the weights have them
            encoder = cls(found.words, found.word_dim, found.hidden)
        with explain_unreadable(folder / WEIGHTS, f"the weights that {DESCRIPTION} describes"):
            encoder.load_state_dict(load_file(folder / WEIGHTS), assign=True)
        encoder.embeddings.requires_grad_(False)
        return encoder.eval()


def run(settings: BiLstmSettings, context: StageContext) -> Metrics:
    """Trains the encoder by the softmax objective of the teachers, whose base is not used, and writes `model/`."""
    teaching = TrainSettings(base=ModelSource("/"), objective="softmax", **common_values(settings, TrainSettings))
    data = TeacherData.read(teaching, context)
    vectors = vectors_for(Path(settings.glove), [*data.train.sentences, *(data.dev.sentences if data.dev else [])])
    encoder = BiLstmEncoder.of(vectors, settings.hidden, settings.seed)
    _, metrics = learn(cast(SentenceEncoder, encoder), data, teaching, context)
    if context.process_group.is_main:
        encoder.save(context.output / "model")
    return metrics
