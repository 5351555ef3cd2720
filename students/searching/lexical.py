"""Search by words: BM25 over the sentences of an index, and its fusion with search by vectors.

Words are runs of letters and digits in lower case. Scripts without spaces between words, and Korean, whose particles
follow a noun without one, are split into pairs of neighbouring characters.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertrelay.data.arrow import Mask
from bertrelay.data.vectors import Vectors
from bertrelay.files import atomic_write
from students.searching.equal_vectors import Rows

K1, B = 1.2, 0.75
"""Saturation of a word's frequency and weight of a text's length, the defaults of Lucene."""
RANK_OFFSET = 60
"""Constant of reciprocal rank fusion (Cormack, Clarke & Büttcher 2009)."""
CANDIDATES = 100
"""Fewest ranks of each search that are fused."""
PAIRED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fff\u3005-\u3007\u3021-\u302f\u3031-\u318f"
    "\u3190-\u9fff\ua960-\ua97f\ua9e0-\ua9ff\uaa60-\uaa7f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Chinese, Japanese and Korean, as ranges of a class of `re`."""


def word_spans(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields the words of `text` in lower case, each with its start and end.

    "Der Hund 東京都" gives der (0, 3), hund (4, 8), 東京 (9, 11) and 京都 (10, 12).
    """
    for match in _pattern().finditer(text):
        start, end = match.span()
        if match["paired"] is None or end - start < 2:
            yield _folded(match[0]), start, end
        else:
            yield from ((_folded(text[first : first + 2]), first, first + 2) for first in range(start, end - 1))


@cache
def _pattern() -> re.Pattern[str]:
    # Marks up to 0xFFFF: of a class of characters beyond it, `re` compares one after the other.
    marks = "".join(chr(code) for code in range(0x10000) if unicodedata.category(chr(code))[0] == "M")
    letters = rf"[^\W_{PAIRED}]"
    return re.compile(rf"(?P<paired>[{PAIRED}]+)|{letters}+(?:[{marks}]+{letters}*)*")


def _folded(word: str) -> str:
    return unicodedata.normalize("NFKC", word).casefold()


def matching_words(query: str, text: str) -> list[str]:
    """Lists the distinct words of `text` that `query` has too, as they are written; overlapping pairs are one word.

    Query "the dogs of Tokyo 東京都" and text "Dogs in 東京都心" give ["Dogs", "東京都"].
    """
    terms, spans = {word for word, _, _ in word_spans(query)}, list[tuple[int, int]]()
    for word, start, end in word_spans(text):
        if word in terms:
            if spans and start < spans[-1][1]:
                spans[-1] = spans[-1][0], end
            else:
                spans.append((start, end))
    return list(dict.fromkeys(text[start:end] for start, end in spans))


@dataclass(frozen=True)
class WordCounts:
    """The counts of the words of texts, by word.

    terms: position of each word. starts: where its rows begin in `rows`, (words + 1,).
    rows: of the texts with a word, rising, int32. counts: of the word in each of them, int32.
    lengths: words of each text, (texts,), int32.
    """

    terms: Mapping[str, int]
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    counts: NDArray[np.int32]
    lengths: NDArray[np.int32]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "WordCounts":
        """Counts the words of `texts`, in memory: 8 bytes for each distinct word of a text."""
        terms: dict[str, int] = {}
        words, rows, counts, lengths = list[int](), list[int](), list[int](), list[int]()
        for row, text in enumerate(texts):
            in_text = Counter(word for word, _, _ in word_spans(text))
            words += [terms.setdefault(word, len(terms)) for word in in_text]
            rows += [row] * len(in_text)
            counts += in_text.values()
            lengths.append(in_text.total())
        order = np.argsort(np.array(words, np.int64), kind="stable")
        frequencies = np.bincount(words, minlength=len(terms)) if words else np.zeros(0, np.int64)
        starts = np.append(0, np.cumsum(frequencies)).astype(np.int64)
        numbers = (np.array(values, np.int32) for values in (rows, counts, lengths))
        sorted_rows, sorted_counts, all_lengths = next(numbers)[order], next(numbers)[order], next(numbers)
        return cls(terms, starts, sorted_rows, sorted_counts, all_lengths)

    def write(self, path: Path) -> None:
        """Writes the file, whole or not at all."""
        words = np.frombuffer("\n".join(self.terms).encode(), np.uint8)
        with atomic_write(path) as building, building.open("wb") as file:
            np.savez(file, words=words, starts=self.starts, rows=self.rows, counts=self.counts, lengths=self.lengths)

    @classmethod
    def open(cls, source: Path | pa.NativeFile) -> "WordCounts":
        """Reads the file of `write`, by its name or opened, into memory."""
        with np.load(source) as file:
            words = file["words"].tobytes().decode().split("\n") if len(file["words"]) else []
            terms = {word: position for position, word in enumerate(words)}
            return cls(terms, file["starts"], file["rows"], file["counts"], file["lengths"])

    def of_word(self, word: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The rows of the texts with `word`, and how often each has it."""
        position = self.terms.get(word)
        span = slice(0, 0) if position is None else slice(self.starts[position], self.starts[position + 1])
        return self.rows[span], self.counts[span]


class WordIndex:
    """BM25 over texts in several parts, of which only the live ones count.

    A word's weight in a text is idf · tf / (tf + K1 · (1 − B + B · length / mean length)), with
    idf = ln(1 + (texts − df + .5) / (df + .5)) (Robertson & Zaragoza 2009, as Lucene has it).
    """

    def __init__(self, parts: Sequence[WordCounts], live: Mask | None = None) -> None:
        self.parts, self.live = parts, live
        lengths = np.concatenate([part.lengths for part in parts]).astype(np.float64)
        self.rows = len(lengths)
        self.texts = self.rows if live is None else int(live.sum())
        mean = float(np.mean(lengths if live is None else lengths[live])) if self.texts else 0.0
        self._damping = K1 * (1 - B + B * lengths / max(mean, 1e-9))  # (rows,); of texts without words too

    @classmethod
    def build(cls, texts: Iterable[str]) -> "WordIndex":
        """Counts the words of `texts`."""
        return cls([WordCounts.of(texts)])

    def scores(self, query: str) -> NDArray[np.float64]:
        """The BM25 score of each text, (rows,): the sum of the weights of the query's distinct words; 0 if deleted."""
        total = np.zeros(self.rows)
        for term in dict.fromkeys(word for word, _, _ in word_spans(query)):
            rows, counts = self._of_word(term)
            idf = np.log1p((self.texts - len(rows) + 0.5) / (len(rows) + 0.5))
            total[rows] += idf * counts / (counts + self._damping[rows])
        return total

    def _of_word(self, word: str) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The live rows with `word` of all parts, and how often each has it."""
        in_parts = [part.of_word(word) for part in self.parts]
        firsts = accumulate((len(part.lengths) for part in self.parts[:-1]), initial=0)
        rows = np.concatenate([rows + np.int64(first) for first, (rows, _) in zip(firsts, in_parts, strict=True)])
        counts = np.concatenate([counts for _, counts in in_parts])
        if self.live is None:
            return rows, counts
        inside = self.live[rows]
        return rows[inside], counts[inside]

    def neighbours(self, queries: Sequence[str], top_k: int, allowed: Mask | None = None) -> tuple[Vectors, Rows]:
        """Finds the `top_k` texts of the highest scores for each query, (n, top_k) both; row -1 without any word.

        Equal scores are in the order of their rows. allowed: the rows that may be found, (rows,); all without it.
        """
        top_k = min(top_k, self.rows)
        best, rows = np.full((len(queries), top_k), -np.inf, np.float32), np.full((len(queries), top_k), -1, np.int64)
        for number, query in enumerate(queries):
            scores = self.scores(query)
            if allowed is not None:
                scores[~allowed] = 0
            last = max(np.partition(scores, self.rows - top_k)[self.rows - top_k], np.finfo(np.float64).tiny)
            candidates = np.flatnonzero(scores >= last)
            ordered = candidates[np.argsort(-scores[candidates], kind="stable")][:top_k]
            best[number, : len(ordered)], rows[number, : len(ordered)] = scores[ordered], ordered
        return best, rows


def fuse(by_vectors: Rows, by_words: Rows, top_k: int, lexical_weight: float = 0.5) -> tuple[NDArray[np.float32], Rows]:
    """Fuses two rankings (n, k) by reciprocal rank: scores and rows, best first, (n, top_k); row -1 is none.

    The score of a row is the sum of weight / (RANK_OFFSET + rank) over the rankings that have it, doubled so that two
    weights of .5 are the sum that Cormack et al. have.
    lexical_weight: of the ranking by words; the other has the rest.

    For example, [[4, 7]] and [[7, -1]] give the rows [[7, 4]].
    """
    scores, rows = (
        np.full((len(by_vectors), top_k), -np.inf, np.float32),
        np.full((len(by_vectors), top_k), -1, np.int64),
    )
    weights = 2 * (1 - lexical_weight), 2 * lexical_weight
    for number, rankings in enumerate(zip(by_vectors, by_words, strict=True)):
        total: dict[int, float] = {}
        for weight, ranking in zip(weights, rankings, strict=True):
            for rank, row in enumerate(ranking[ranking >= 0].tolist(), 1):
                total[row] = total.get(row, 0.0) + weight / (RANK_OFFSET + rank)
        best = sorted(total, key=lambda row: (-total[row], row))[:top_k]
        rows[number, : len(best)], scores[number, : len(best)] = best, [total[row] for row in best]
    return scores, rows
