"""Averaged word vectors (GloVe)."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.readers import bounded_lines, open_input, refuse_damaged
from bertrelay.errors import RequestError
from teachers.data import number

WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")
HEADER_FIELDS = 2


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, float32 (words, dim)."""

    rows: dict[str, int]
    matrix: NDArray[np.float32]

    @classmethod
    def load(cls, path: Path, only: Collection[str] | None = None) -> Self:
        """Reads a text file, also `.gz`: in each line a word and its values; skips word2vec's first line.

        only: the words to read, so that a file of gigabytes takes little memory; all by default.
        Raises RequestError, with the line, for another number of values than in the first line, and for values of a
        word to read that are not finite.
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
                    count = "more" if dim and word else "fewer"
                    raise RequestError(f"{path}, line {line_number:,}: expected a word and {dim} values, found {count}")
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
        """Averages the vectors of the words of each sentence that have one, (sentences, dim); zeros without any."""
        vectors = np.zeros((len(sentences), self.matrix.shape[1]), np.float32)
        for index, sentence in enumerate(sentences):
            rows = [row for row in rows_of(sentence, self.rows) if row is not None]
            if rows:
                vectors[index] = self.matrix[rows].mean(axis=0)
        return vectors


def rows_of(sentence: str, rows: Mapping[str, int]) -> list[int | None]:
    """Returns the row of each word of `sentence`, else that of its lower case; None for an unknown word."""
    return [rows.get(word, rows.get(word.lower())) for word in WORD.findall(sentence)]


def vectors_for(path: Path, sentences: Sequence[str]) -> WordVectors:
    """Reads the word vectors of the words of `sentences` from `path`. Raises RequestError when it has none of them."""
    words = {word for sentence in sentences for word in WORD.findall(sentence)}
    vectors = WordVectors.load(path, words | {word.lower() for word in words})
    if not vectors.rows:
        raise RequestError(f"{path}: expected vectors of words of these sentences, found none. Are they word vectors?")
    return vectors
