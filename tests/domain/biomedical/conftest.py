"""A tiny BERT of the made-up texts."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import BertModel

from bertrelay.model.network import save_backbone
from bertrelay.model.new import bert_config, train_wordpiece
from bertrelay.model.settings import NewEncoder
from bertrelay.model.tokenizer import save_tokenizer

sys.path.append(str(Path(__file__).parent))  # asked_texts and real_files are imported by name

SIZE = {"layers": 1, "dim": 32, "heads": 2, "vocabulary": 200, "max_tokens": 40, "dropout": 0.0}


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """The folder of a random BERT whose subwords are of the made-up texts, and of parts of their words."""
    from asked_texts import ASKED, MENTIONS, PLAIN

    folder = tmp_path_factory.mktemp("bert")
    size = NewEncoder.model_validate(SIZE)
    texts = [" ".join([*PLAIN, *ASKED.values(), *MENTIONS["disease"], *MENTIONS["chemical"]])] * 3
    tokenizer = train_wordpiece(texts, size.vocabulary, size.max_tokens)
    torch.manual_seed(0)
    network = BertModel(bert_config(size, tokenizer))
    for weight in network.parameters():  # BERT starts so near to zero that all words look the same
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    save_backbone(network, folder)
    save_tokenizer(tokenizer, folder, size.max_tokens, has_types=True)
    return folder
