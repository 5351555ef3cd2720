"""Kernels that are faster on a CPU than torch's own modules: attention over short texts, bf16 linear maps, dropout.

- Attention: transformers calls it by name, so the networks stay as they are. In bf16 two matrix products and a softmax
  take half to three quarters of the time of torch's fused kernel, and a third or less with gradients and dropout. In
  float32 that holds for the shortest sequences only, and not with gradients.
- Linear maps: under autocast every call casts the weights, lays them out for the kernel and copies the bias into the
  result, a tenth of the time of encoding; and query, key and value each cast the same input. Here weights are packed
  once for many batches.
- Dropout: torch draws a 64-bit random number for each element, a seventh of a training step. Here 16 bits serve one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

NAME = "bertrelay"
LONGEST_FOR_PRODUCTS = {torch.bfloat16: 512, torch.float32: 32}  # tokens
VECTOR = 16
"""Float32 numbers that a processor with AVX512 computes at once; twice as many bf16. A softmax over the last dimension
takes rows shorter than a vector number by number, in four to six times the time."""
DROPOUT_BITS = 16
SMALLEST = torch.iinfo(torch.int64).min


def use_cpu_kernels(network: PreTrainedModel) -> None:
    """Replaces the kernels of `network` in place; results (up to rounding) and names of weights stay the same."""
    use_attention_kernel(network)
    for module in network.modules():
        if type(module) in KERNELS:
            module.__class__ = KERNELS[type(module)]  # in place, so that tied weights stay tied


def use_attention_kernel(network: PreTrainedModel) -> None:
    """Makes `network` call `attention`, if it is BERT-like and computes attention the usual way; MPNet does not."""
    is_bert_like = getattr(network.config, "model_type", None) in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if is_bert_like and getattr(network.config, "_attn_implementation", None) == "sdpa":
        network.set_attn_implementation(NAME)


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
    """Computes attention as transformers expects it: values (batch, tokens, heads, head dim), and no weights.

    query, key, value: (batch, heads, tokens, head dim). attention_mask: True is visible, (batch, 1, tokens, tokens).
    """
    trains_in_fp32 = query.dtype == torch.float32 and torch.is_grad_enabled()
    is_short = query.shape[-2] <= LONGEST_FOR_PRODUCTS.get(query.dtype, 0)
    is_plain = query.shape[1] == key.shape[1] and options.get("position_bias") is None
    if query.device.type != "cpu" or not is_short or trains_in_fp32 or not is_plain:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **options)
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    one_row = attention_mask is not None and attention_mask.stride(-2) == 0
    if attention_mask is not None and one_row:
        query, key = _with_mask(query, key, attention_mask[:, :, 0])
        attention_mask = None
    if attention_mask is None and query.shape[-2] < VECTOR:
        scores = key @ query.transpose(-1, -2)  # (batch, heads, keys, queries): vectors lie along the queries
        weights = apply_dropout(_softmax(scores, -2), dropout).transpose(-1, -2)
    else:
        scores = query @ key.transpose(-1, -2)  # (batch, heads, queries, keys)
        if attention_mask is not None:
            # Not −∞: of padding that sees none but padding, as in a sliding window, no weight must become NaN.
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        weights = apply_dropout(_softmax(scores, -1), dropout)
    return (weights @ value).transpose(1, 2).contiguous(), None


def mask(**options: Any) -> Tensor | None:
    """Makes the mask that transformers makes; a mask of padding only, the same for all tokens, as one expanded row.

    transformers makes none where nothing is padded. To know that of a GPU's batch, it would wait for the GPU.
    """
    padding = options.get("attention_mask")
    if padding is not None and is_asynchronous(padding.device):
        options["allow_is_bidirectional_skip"] = False
    full: Tensor | None = sdpa_mask(**options)
    if full is None or options.get("mask_function") is not bidirectional_mask_function:
        return full
    return full[:, :, :1].expand_as(full)


AttentionInterface.register(NAME, attention)  # here, so that a network that another process sent finds them
AttentionMaskInterface.register(NAME, mask)


def is_asynchronous(device: torch.device) -> bool:
    """True where a program continues while `device` computes, until it reads a value."""
    return device.type != "cpu"


def _softmax(scores: Tensor, dim: int) -> Tensor:
    """Softmax in the type of `scores`. Short rows are computed in float32, of which a vector holds half as many."""
    is_short = scores.shape[-1] < 2 * VECTOR
    dtype = torch.promote_types(scores.dtype, torch.float32) if is_short else scores.dtype
    return scores.softmax(dim, dtype=dtype).to(scores.dtype)


def _with_mask(query: Tensor, key: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Adds a dimension to query and key whose product is 0 where `visible` (batch, 1, tokens), else practically −∞.

    It masks in the product itself, which saves a pass over the scores: they are far larger than query and key.
    Visible yes, no: query 3 becomes (3, 1), keys 2 and 5 become (2, 0) and (5, −1.7e38), scores 6 and −1.7e38.
    """
    hidden = query.new_zeros(visible.shape).masked_fill_(~visible, torch.finfo(query.dtype).min / 2)
    ones = query.new_ones(1).expand(*query.shape[:-1], 1)
    return torch.cat([query, ones], -1), torch.cat([key, hidden[..., None].expand(*key.shape[:-1], 1)], -1)


class Linear(nn.Linear):
    """A linear map as torch's, which inside `use_packed` computes with the weights of `pack`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch's name)
        in_use = IN_USE.get()
        weights = None if in_use is None else in_use.packed.get(self)
        if in_use is None or weights is None:
            return super().forward(input)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(in_use.to_bf16(input), *weights, "none", [], "")
        return result


Packed = dict[Linear, tuple[Tensor, Tensor | None]]
"""Weight and bias of each linear map, in the layout of oneDNN's kernels."""


def pack(network: nn.Module) -> Packed:
    """Packs the weights of the linear maps of `network`; gives none where the processor has no bf16 products."""
    maps = [module for module in network.modules() if isinstance(module, Linear)]
    if not (maps and maps[0].weight.device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return {}
    packed = Packed()
    for module in maps:
        weight = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach().bfloat16(), None)
        packed[module] = weight, None if module.bias is None else module.bias.detach().bfloat16()
    return packed


@contextmanager
def use_packed(packed: Packed) -> Iterator[None]:
    """Has these linear maps compute with the packed weights, in this thread: in bf16 and without gradients.

    Their weights must not have changed since they were packed.
    """
    token = IN_USE.set(_PackedInUse(packed))
    try:
        yield
    finally:
        IN_USE.reset(token)


class _PackedInUse:
    """Packed weights, and the last input that was cast to bf16: query, key and value share it."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.last: Tensor | None = None
        self.rounded: Tensor | None = None

    def to_bf16(self, values: Tensor) -> Tensor:
        if self.rounded is None or values is not self.last:
            self.last, self.rounded = values, values.bfloat16()
        return self.rounded


# Not on the modules: like torch's autocast it holds for one thread, while others may compute with the same network.
IN_USE: ContextVar[_PackedInUse | None] = ContextVar("packed_weights", default=None)


class Dropout(nn.Dropout):
    """Dropout as torch's; on a CPU `p` is rounded to 1/65,536."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch's name)
        return apply_dropout(input, self.p if self.training else 0.0)


def apply_dropout(values: Tensor, p: float) -> Tensor:
    """Sets a fraction `p` of `values` to zero at random, and scales the others so that the mean stays."""
    if p in (0, 1) or values.device.type != "cpu":
        return nn.functional.dropout(values, p)
    dropped = min(round(p * 2**DROPOUT_BITS), 2**DROPOUT_BITS - 1)
    words = torch.empty(-(-values.numel() * DROPOUT_BITS // 64), dtype=torch.int64).random_(SMALLEST, None)
    bits = words.view(torch.int16)[: values.numel()].view(values.shape)  # uniform in ±2¹⁵
    mask = bits.ge_(dropped - 2 ** (DROPOUT_BITS - 1)).to(values.dtype)  # in int16: a bool takes eight times as long
    scaled: Tensor = values * mask.mul_(2**DROPOUT_BITS / (2**DROPOUT_BITS - dropped))
    return scaled


KERNELS: dict[type[nn.Module], type[nn.Module]] = {nn.Dropout: Dropout, nn.Linear: Linear}
