"""Tiny random encoders of every architecture, with tokenizers trained on a few sentences."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from bertrelay.encoder import SentenceEncoder

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
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
LIKE_ROBERTA = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 40}


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return list(SENTENCES)


@pytest.fixture
def many(sentences: list[str]) -> list[str]:
    """61 sentences: seven blocks and a bit, some sentences equal, lengths mixed."""
    return [f"{sentences[i % 7]} {sentences[i % 5]}"[: 10 + i % 7] for i in range(61)]


@pytest.fixture(scope="session")
def word_piece() -> PreTrainedTokenizerFast:
    rules = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    rules.normalizer = normalizers.BertNormalizer(lowercase=False)
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=300, special_tokens=BERT_TOKENS))
    rules.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=rules,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


@pytest.fixture(scope="session")
def unigram() -> PreTrainedTokenizerFast:
    rules = Tokenizer(models.Unigram())
    rules.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("ß", "ss")])
    rules.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=ROBERTA_TOKENS, unk_token="<unk>")
    rules.train_from_iterator(SENTENCES, trainer)
    rules.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=rules,
        pad_token="<pad>",
        unk_token="<unk>",
        cls_token="<s>",
        sep_token="</s>",
        bos_token="<s>",
        eos_token="</s>",
        mask_token="<mask>",
    )


def _network(architecture: str) -> PreTrainedModel:
    match architecture:
        case "bert":
            return BertModel(BertConfig(vocab_size=300, max_position_embeddings=40, **SIZES))
        case "albert":
            return AlbertModel(AlbertConfig(vocab_size=300, max_position_embeddings=40, embedding_size=8, **SIZES))
        case "distilbert":
            sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
            return DistilBertModel(DistilBertConfig(vocab_size=300, max_position_embeddings=40, **sizes))
        case "roberta":
            return RobertaModel(RobertaConfig(vocab_size=300, type_vocab_size=1, **LIKE_ROBERTA, **SIZES))
        case "xlm-roberta":
            return XLMRobertaModel(XLMRobertaConfig(vocab_size=300, type_vocab_size=1, **LIKE_ROBERTA, **SIZES))
        case "mpnet":
            return MPNetModel(MPNetConfig(vocab_size=300, **LIKE_ROBERTA, **SIZES))
    raise ValueError(architecture)


@pytest.fixture(scope="session")
def make_encoder(
    word_piece: PreTrainedTokenizerFast, unigram: PreTrainedTokenizerFast
) -> Callable[..., SentenceEncoder]:
    """`make_encoder("xlm-roberta", seed=1, pooling=["cls"])`: a random encoder, always the same for one seed."""

    def make(architecture: str = "bert", seed: int = 0, **settings: Any) -> SentenceEncoder:
        torch.manual_seed(seed)
        network = _network(architecture).eval()
        for weight in network.parameters():  # BERT starts so near to zero that all sentences look the same
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.3)
        tokenizer = unigram if architecture in ("roberta", "xlm-roberta", "mpnet") else word_piece
        return SentenceEncoder(network, tokenizer, **settings).eval()

    return make
