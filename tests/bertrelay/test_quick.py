import torch
from torch import nn
from transformers import BertConfig, BertForPreTraining

from bertrelay.cpu_kernels import Dropout, Linear, use_cpu_kernels


def test_everything_is_quickened_in_place_and_what_is_tied_stays_tied() -> None:
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    network = BertForPreTraining(BertConfig(**sizes, intermediate_size=32, hidden_dropout_prob=0.25))
    names, ids = list(network.state_dict()), torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected = network.eval()(ids).prediction_logits
        use_cpu_kernels(network)
        found = network(ids).prediction_logits
    kinds = {type(module) for module in network.modules()}
    assert {Dropout, Linear} <= kinds
    assert not kinds & {nn.Dropout, nn.Linear}
    assert {module.p for module in network.modules() if isinstance(module, Dropout)} == {0.25, 0.1}
    assert list(network.state_dict()) == names
    assert network.cls.predictions.decoder.weight is network.bert.embeddings.word_embeddings.weight
    assert torch.allclose(found, expected, atol=1e-6)
