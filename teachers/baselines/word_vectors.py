"""Averaged word vectors, such as GloVe (Pennington et al. 2014): a sentence is the mean of its words' vectors."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.readers import open_input, refuse_damaged
from bertrelay.errors import RequestError
from teachers.examples import is_number

WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")
HEADER_FIELDS = 2


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, float32 (words, dim)."""

    rows: dict[str, int]
    matrix: NDArray[np.float32]

    @classmethod
    def load(cls, path: Path, only: Iterable[str] | None = None) -> Self:
        """Reads a text file, `.gz` too: in each line a word and its figures; word2vec's first line is passed over.

        only: the words that are wanted, so that a file of gigabytes is read in little memory; all without it.
        Raises RequestError, with the line, for one that has other than the first one's number of figures, or among
        those that are wanted other than finite ones.
        """
        wanted = None if only is None else set(only)
        rows: dict[str, int] = {}
        vectors: list[NDArray[np.float32]] = []
        dim = 0
        with refuse_damaged(str(path)), open_input(str(path)) as lines:
            for number, line in enumerate(lines, 1):
                fields = line.decode("utf-8", "replace").rstrip().split(" ")
                if number == 1 and len(fields) == HEADER_FIELDS:
                    continue
                dim = dim or len(fields) - 1
                word = " ".join(fields[:-dim]) if dim else ""  # a few of GloVe's words have spaces in them
                if not word or (len(fields) > dim + 1 and is_number(fields[-dim - 1])):
                    found = "more" if word else "fewer"
                    raise RequestError(f"{path}, line {number:,}: expected a word and {dim} figures, found {found}")
                if word not in rows and (wanted is None or word in wanted):
                    rows[word] = len(rows)
                    vectors.append(_figures(fields[-dim:], path, number))
        if not dim:
            raise RequestError(f"{path}: expected word vectors, found none")
        return cls(rows, np.stack(vectors) if vectors else np.zeros((0, dim), np.float32))

    def encode(self, sentences: Sequence[str]) -> NDArray[np.float32]:
        """The mean of the vectors of the words that are known, (sentences, dim); zeros where none is."""
        vectors = np.zeros((len(sentences), self.matrix.shape[1]), np.float32)
        for place, sentence in enumerate(sentences):
            known = [row for word in words_of(sentence) if (row := self._row(word)) is not None]
            if known:
                vectors[place] = self.matrix[known].mean(axis=0)
        return vectors

    def _row(self, word: str) -> int | None:
        """The word as it is written, else in lower case."""
        return self.rows.get(word, self.rows.get(word.lower()))


def words_of(sentence: str) -> list[str]:
    """Words, with the apostrophes inside them, and signs each for itself."""
    return WORD.findall(sentence)


def forms_of(sentences: Sequence[str]) -> set[str]:
    """The words of `sentences` as they are written, and in lower case."""
    return {form for sentence in sentences for word in words_of(sentence) for form in (word, word.lower())}


def _figures(texts: Sequence[str], path: Path, line: int) -> NDArray[np.float32]:
    try:
        figures = np.array(texts, dtype=np.float32)
    except ValueError:
        figures = np.full(len(texts), np.nan, np.float32)
    if not np.isfinite(figures).all():
        raise RequestError(f"{path}, line {line:,}: expected a word and {len(texts)} finite figures, found others")
    return figures


def vectors_for(path: Path, sentences: Sequence[str]) -> WordVectors:
    """The word vectors of `path`, of which only those of the words of `sentences` are kept.

    Raises RequestError when none of them is known.
    """
    vectors = WordVectors.load(path, forms_of(sentences))
    if not vectors.rows:
        raise RequestError(f"{path}: knows no word of these sentences. Check that it is a file of word vectors.")
    return vectors
