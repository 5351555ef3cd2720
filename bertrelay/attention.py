"""Attention as every network here computes it: by plain products where a CPU is faster so, else by torch's own kernel.

transformers calls it by name, so its networks stay as they are. On a CPU in bf16 two matrix products and a softmax
take half to three quarters of the time of torch's fused kernel, and a third or less with gradients and dropout, which
that kernel does not have. In float32 it holds for the shortest sequences only, and not with gradients.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from bertrelay.dropout import dropout as dropped

NAME = "bertrelay"
LONGEST_FOR_PRODUCTS = {torch.bfloat16: 512, torch.float32: 32}  # tokens
VECTOR = 16
"""So many float32 a processor with AVX512 computes at once, and twice as many bf16. A softmax over the last dimension
takes rows that are shorter than a vector number by number, in four to six times the time."""


def use_in(backbone: PreTrainedModel) -> None:
    """Has `backbone` call `attention`, if it computes attention the usual way; MPNet, for one, does not."""
    if getattr(backbone.config, "_attn_implementation", None) == "sdpa":
        AttentionInterface.register(NAME, attention)
        AttentionMaskInterface.register(NAME, mask)
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
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    one_row = attention_mask is not None and attention_mask.stride(-2) == 0
    if attention_mask is not None and one_row:
        query, key = _with_mask(query, key, attention_mask[:, :, 0])
        attention_mask = None
    if attention_mask is None and query.shape[-2] < VECTOR:
        scores = key @ query.transpose(-1, -2)  # (batch, heads, keys, queries): vectors lie along the queries
        weights = dropped(_softmax(scores, -2), dropout).transpose(-1, -2)
    else:
        scores = query @ key.transpose(-1, -2)  # (batch, heads, queries, keys)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, -torch.inf)
        weights = dropped(_softmax(scores, -1), dropout)
    return (weights @ value).transpose(1, 2).contiguous(), None


def _softmax(scores: Tensor, dim: int) -> Tensor:
    """In the precision of `scores`; short ones are computed in float32, of which a vector needs half as many."""
    is_short = scores.shape[-1] < 2 * VECTOR
    computed = torch.promote_types(scores.dtype, torch.float32) if is_short else scores.dtype
    return scores.softmax(dim, dtype=computed).to(scores.dtype)


def mask(**options: Any) -> Tensor | None:
    """As transformers makes it; one of padding alone, which all tokens share, as a single row that is expanded."""
    found: Tensor | None = sdpa_mask(**options)
    if found is None or options.get("mask_function") is not bidirectional_mask_function:
        return found
    return found[:, :, :1].expand_as(found)


def _with_mask(query: Tensor, key: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Both with one dimension more, whose product is 0 where `visible` (batch, 1, tokens), and else as good as −∞.

    So no pass over the scores is needed, of which there are many more.
    """
    hidden = query.new_zeros(visible.shape).masked_fill_(~visible, torch.finfo(query.dtype).min / 2)
    ones = query.new_ones(1).expand(*query.shape[:-1], 1)
    return torch.cat([query, ones], -1), torch.cat([key, hidden[..., None].expand(*key.shape[:-1], 1)], -1)


def _products_are_faster(query: Tensor) -> bool:
    learns_in_fp32 = query.dtype == torch.float32 and torch.is_grad_enabled()
    longest = LONGEST_FOR_PRODUCTS.get(query.dtype, 0)
    return query.device.type == "cpu" and query.shape[-2] <= longest and not learns_in_fp32
