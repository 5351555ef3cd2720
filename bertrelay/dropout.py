"""Dropout whose random bits a CPU draws sixteen at a time for each number, and not sixty-four.

torch draws a whole random number for each element, one after the other, which takes a seventh of a training step.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

BITS = 16
SMALLEST = torch.iinfo(torch.int64).min


class Dropout(nn.Dropout):
    """As torch's, the same on a GPU; on a CPU `p` is rounded to 1/65,536."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch's name)
        return dropout(input, self.p if self.training else 0.0)


def set_dropout(network: PreTrainedModel, p: float) -> None:
    """Has each layer, the attention and the head of `network` drop a share `p`, and its configuration say so."""
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = p
    for name in network.config.to_dict():
        if name.endswith(("dropout", "dropout_prob")):
            setattr(network.config, name, p)


def dropout(values: Tensor, p: float) -> Tensor:
    """`values` with a share `p` of them set to zero at random, and the rest scaled so that the mean stays."""
    if p in (0, 1) or values.device.type != "cpu":
        return nn.functional.dropout(values, p)
    dropped = min(round(p * 2**BITS), 2**BITS - 1)
    words = torch.empty(-(-values.numel() * BITS // 64), dtype=torch.int64).random_(SMALLEST, None)
    bits = words.view(torch.int16)[: values.numel()].view(values.shape)  # uniform in ±2¹⁵
    kept = bits.ge_(dropped - 2 ** (BITS - 1)).to(values.dtype)  # in int16: a bool takes eight times as long
    scaled: Tensor = values * kept.mul_(2**BITS / (2**BITS - dropped))
    return scaled
