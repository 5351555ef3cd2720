"""Tiny random encoders of every architecture, with tokenizers trained on a few sentences."""

import sys
from pathlib import Path

import pytest

from bertrelay.model.new import train_unigram, train_wordpiece

sys.path.append(str(Path(__file__).parent))  # small_training is imported by name, in other processes too

SENTENCES = [
    "A dog runs.",
    "Two children are playing with a red ball in the park near the old station.",
    "Zwei Mädchen spielen im Garten.",
    "Ein großer Hund läuft über die Straße.",
    "두 아이가 공원에서 공을 가지고 놀고 있다.",
    "Un homme lit le journal.",
    "Rain.",
    "The woman in the blue coat waits for the bus, and nobody knows when it will come.",
]
UNLIMITED = 10**30  # as transformers writes it


@pytest.fixture(scope="session")
def sentences():
    return list(SENTENCES)


@pytest.fixture
def many(sentences):
    """61 sentences: seven blocks and a bit, some sentences equal, lengths mixed."""
    return [f"{sentences[i % 7]} {sentences[i % 5]}"[: 10 + i % 7] for i in range(61)]


@pytest.fixture(scope="session")
def word_piece():
    return train_wordpiece(SENTENCES, 300, UNLIMITED, lowercase=False)


@pytest.fixture(scope="session")
def unigram():
    return train_unigram(SENTENCES, 200, UNLIMITED)


@pytest.fixture(scope="session")
def make_encoder(tiny_encoder, word_piece, unigram):
    """`make_encoder("xlm-roberta", seed=1, pooling=["cls"])`: a random encoder, always the same for one seed."""

    def make(architecture="bert", **settings):
        is_like_roberta = architecture in ("roberta", "xlm-roberta", "mpnet")
        sizes = {"vocab_size": 300, "embedding_size": 8, "type_vocab_size": 1 if is_like_roberta else 2}
        return tiny_encoder(architecture, unigram if is_like_roberta else word_piece, sizes=sizes, **settings)

    return make
