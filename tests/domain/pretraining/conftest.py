"""A corpus in memory, of numbers alone, for what is drawn from it and read out of it."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray


class MemoryCorpus:
    """`documents` are lists of sentences, which are lists of ids."""

    def __init__(self, documents: Sequence[Sequence[Sequence[int]]], of_groups: Sequence[int] | None = None) -> None:
        sentences = [sentence for document in documents for sentence in document]
        self.lengths = np.array([len(sentence) for sentence in sentences], np.int32)
        self.sentence_starts = np.cumsum([0, *self.lengths])
        self.document_starts = np.cumsum([0, *map(len, documents)])
        self.groups = np.array(of_groups or range(len(documents)), np.int64)
        self._ids = np.array([number for sentence in sentences for number in sentence], np.int32)

    def tokens(self, start: int, stop: int) -> NDArray[np.int32]:
        return self._ids[start:stop]


@pytest.fixture(scope="session")
def random_corpus() -> Callable[..., MemoryCorpus]:
    """`random_corpus(100, (1, 12), (3, 30))`: so many documents, of sentences and tokens between these bounds."""

    def make(
        documents: int,
        sentences: tuple[int, int] = (1, 12),
        tokens: tuple[int, int] = (3, 30),
        groups: int | None = None,
        vocabulary: tuple[int, int] = (5, 200),
        seed: int = 0,
    ) -> MemoryCorpus:
        generator = np.random.default_rng(seed)
        sizes = generator.integers(*sentences, documents, endpoint=True)
        lengths = (generator.integers(*tokens, count, endpoint=True) for count in sizes)
        made = [[generator.integers(*vocabulary, length).tolist() for length in each] for each in lengths]
        return MemoryCorpus(made, generator.integers(0, groups, documents).tolist() if groups else None)

    return make


@pytest.fixture(scope="session")
def corpus_of() -> type[MemoryCorpus]:
    return MemoryCorpus
