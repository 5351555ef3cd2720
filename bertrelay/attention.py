"""Attention as every network here computes it: by plain products where a CPU is faster so, else by torch's own kernel.

transformers calls it by name, so its networks stay as they are. torch's fused kernel is made for long sequences: on
a CPU, over the few tokens of a sentence, two matrix products and a softmax take half of its time in bf16, and a
fifth with gradients. In float32 that holds for the shortest sequences only, and not with gradients.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bertrelay.dropout import dropout as dropped

NAME = "bertrelay"
LONGEST_FOR_PRODUCTS = {torch.bfloat16: 256, torch.float32: 32}  # tokens


def use_in(backbone: PreTrainedModel) -> None:
    """Has `backbone` call `attention`, if it computes attention the usual way; MPNet, for one, does not."""
    if getattr(backbone.config, "_attn_implementation", None) == "sdpa":
        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        backbone.set_attn_implementation(NAME)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers asks of an attention: the attended values, (batch, tokens, heads, head dim), and no weights.

    query, key, value: (batch, heads, tokens, head dim). attention_mask: True where to look, (batch, 1, tokens, tokens).
    """
    if not _products_are_faster(query):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **options)
    scaled = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scaled @ key.transpose(-1, -2)  # (batch, heads, tokens, tokens)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    weights = dropped(scores.softmax(dim=-1), dropout)  # (batch, heads, tokens, tokens)
    return (weights @ value).transpose(1, 2).contiguous(), None


def _products_are_faster(query: Tensor) -> bool:
    learns_in_fp32 = query.dtype == torch.float32 and torch.is_grad_enabled()
    longest = LONGEST_FOR_PRODUCTS.get(query.dtype, 0)
    return query.device.type == "cpu" and query.shape[-2] <= longest and not learns_in_fp32
