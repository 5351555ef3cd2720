"""A tiny BERT and made-up sentences in which words of some endings are entities."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel

from bertrelay.backbone import save_backbone
from bertrelay.encoder_settings import NewEncoder
from bertrelay.new_encoder import bert_config, train_wordpiece
from bertrelay.stage import StageContext
from bertrelay.tokenizer import save_tokenizer

sys.path.append(str(Path(__file__).parent))  # asked_texts and real_files are imported by name

PLAIN = [
    "the",
    "patient",
    "was",
    "given",
    "after",
    "a",
    "course",
    "of",
    "and",
    "with",
    "no",
    "sign",
    "in",
    "mild",
    "seen",
]
DISEASES = ["flu", "asthma", "gout", "angina pectoris", "migraine", "type two diabetes"]
CHEMICALS = ["aspirin", "lithium", "gold salts", "insulin"]
SIZE = {"layers": 1, "dim": 32, "heads": 2, "vocabulary": 200, "max_tokens": 40, "dropout": 0.0}

Tagged = list[tuple[str, str]]


def sentence(generator: np.random.Generator, plain: int = 8, types: Sequence[str] = ("Disease", "Chemical")) -> Tagged:
    """A few plain words, with up to two entities among them."""
    words: Tagged = [(str(word), "O") for word in generator.choice(PLAIN, plain)]
    for kind in types:
        if generator.random() < 0.7:
            mention = str(generator.choice(DISEASES if kind == "Disease" else CHEMICALS)).split()
            tags = [f"B-{kind}", *[f"I-{kind}"] * (len(mention) - 1)]
            free = [
                place for place in range(len(words) + 1) if words[place : place + 1] == [] or words[place][1][0] != "I"
            ]
            place = int(generator.choice(free))
            words[place:place] = list(zip(mention, tags, strict=True))
    return words


WriteSentences = Callable[..., Path]


@pytest.fixture
def write_sentences(tmp_path: Path) -> WriteSentences:
    """`write_sentences("train.tsv", 60, seed=1, plain=8, types=("Disease",))`: so many made-up sentences in CoNLL."""

    def write(name: str, count: int, seed: int = 0, **more: Any) -> Path:
        generator = np.random.default_rng(seed)
        blocks = ["".join(f"{word}\t{tag}\n" for word, tag in sentence(generator, **more)) for _ in range(count)]
        (tmp_path / name).write_text("\n".join(blocks))
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random BERT whose subwords are of the sentences above, and of parts of their words."""
    folder = tmp_path_factory.mktemp("bert")
    size = NewEncoder.model_validate(SIZE)
    texts = [" ".join([*PLAIN, *DISEASES, *CHEMICALS])] * 3
    tokenizer = train_wordpiece(texts, size.vocabulary, size.max_tokens)
    torch.manual_seed(0)
    network = BertModel(bert_config(size, tokenizer))
    for weight in network.parameters():  # BERT starts so near to zero that all words look the same
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    save_backbone(network, folder)
    save_tokenizer(tokenizer, folder, size.max_tokens, has_types=True)
    return folder


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    for name in ("output", "cache"):
        (tmp_path / name).mkdir()
    return StageContext(tmp_path / "output", tmp_path / "cache")
