"""A tiny BERT with random weights that knows the words of a few texts, for models with heads."""

import torch
from transformers import BertModel

from bertrelay.model.network import save_backbone
from bertrelay.model.new import bert_config, train_wordpiece
from bertrelay.model.settings import NewEncoder
from bertrelay.model.tokenizer import save_tokenizer

SIZE = {"layers": 1, "dim": 32, "heads": 2, "vocabulary": 200, "max_tokens": 40, "dropout": 0.0}


def save_random_bert(folder, texts, std=0.3, **size):
    """Saves a BERT of the subwords of `texts`, with weights of this standard deviation; returns its folder."""
    size = NewEncoder.model_validate({**SIZE, **size})
    tokenizer = train_wordpiece(texts, size.vocabulary, size.max_tokens)
    torch.manual_seed(0)
    network = BertModel(bert_config(size, tokenizer))
    for weight in network.parameters():  # BERT starts so near to zero that all words look the same
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=std)
    save_backbone(network, folder)
    save_tokenizer(tokenizer, folder, size.max_tokens, has_types=True)
    return folder
