"""Tiny random encoders of every architecture, with tokenizers trained on a few sentences."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

from bertrelay.encoder import SentenceEncoder
from bertrelay.new_encoder import train_unigram, train_wordpiece

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
SIZES = {
    "vocab_size": 300,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "embedding_size": 8,
}
LIKE_ROBERTA = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}


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
def make_encoder(word_piece, unigram):
    """`make_encoder("xlm-roberta", seed=1, pooling=["cls"])`: a random encoder, always the same for one seed."""

    def make(architecture="bert", seed=0, **settings):
        torch.manual_seed(seed)
        is_like_roberta = architecture in ("roberta", "xlm-roberta", "mpnet")
        config = AutoConfig.for_model(architecture, **SIZES, **(LIKE_ROBERTA if is_like_roberta else {}))
        network = AutoModel.from_config(config).eval()
        for weight in network.parameters():  # BERT starts so near to zero that all sentences look the same
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.3)
        tokenizer = unigram if is_like_roberta else word_piece
        return SentenceEncoder(network, tokenizer, **settings).eval()

    return make
