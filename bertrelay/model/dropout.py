"""The dropout of a network, which transformers keeps in modules, in numbers beside them, and in the configuration."""

from torch import nn
from transformers import PreTrainedModel

from bertrelay.inference.kernels import Dropout

NAMES = ("dropout", "dropout_prob", "dropout_rate", "pdrop")
"""Endings of names in configurations and modules: BERT's, T5's and GPT-2's. The dropout of whole layers is another."""


def set_dropout(network: PreTrainedModel, dropout: float) -> None:
    """Sets the dropout of every layer, of the attention and of a head, in the modules and in the configuration.

    ModernBERT, T5 and causal networks copy the attention's from the configuration into a number of the module; and
    ModernBERT has no module after the attention when it is built without dropout.
    """
    for module in list(network.modules()):
        if isinstance(module, nn.Dropout):
            module.p = dropout
        for name, child in module.named_children():
            if isinstance(child, nn.Identity) and "drop" in name:
                setattr(module, name, Dropout(dropout).train(module.training))
        for name, value in vars(module).items():
            if name.endswith(NAMES) and isinstance(value, int | float) and not isinstance(value, bool):
                vars(module)[name] = dropout
    for name, value in network.config.to_dict().items():
        if name.endswith(NAMES) and not isinstance(value, bool):  # ESM's token_dropout is a switch
            setattr(network.config, name, dropout)
