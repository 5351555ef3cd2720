"""A random corpus in memory, of numbers."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))  # document_files is imported by name


class MemoryCorpus:
    """`documents` are lists of sentences, which are lists of ids."""

    def __init__(self, documents, of_groups=None):
        sentences = [sentence for document in documents for sentence in document]
        self.lengths = np.array([len(sentence) for sentence in sentences], np.int32)
        self.sentence_starts = np.cumsum([0, *self.lengths])
        self.document_starts = np.cumsum([0, *map(len, documents)])
        self.groups = np.array(of_groups or range(len(documents)), np.int64)
        self._ids = np.array([number for sentence in sentences for number in sentence], np.int32)

    def tokens(self, start, stop):
        return self._ids[start:stop]


@pytest.fixture(scope="session")
def random_corpus():
    """`random_corpus(100, (1, 12), (3, 30))`: so many documents, of sentences and tokens between these bounds."""

    def make(
        documents,
        sentences=(1, 12),
        tokens=(3, 30),
        groups=None,
        vocabulary=(5, 200),
        seed=0,
    ):
        generator = np.random.default_rng(seed)
        sizes = generator.integers(*sentences, documents, endpoint=True)
        lengths = (generator.integers(*tokens, count, endpoint=True) for count in sizes)
        made = [[generator.integers(*vocabulary, length).tolist() for length in sizes] for sizes in lengths]
        return MemoryCorpus(made, generator.integers(0, groups, documents).tolist() if groups else None)

    return make


@pytest.fixture(scope="session")
def corpus_of():
    return MemoryCorpus
