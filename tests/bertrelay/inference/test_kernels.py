"""CPU kernels give what torch gives: attention, packed linear maps, dropout."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForPreTraining, BertModel, MPNetConfig, MPNetModel
from transformers.masking_utils import bidirectional_mask_function

from bertrelay.device import computes_in_bf16
from bertrelay.inference import kernels as cpu_kernels
from bertrelay.inference.kernels import (
    VECTOR,
    Dropout,
    Linear,
    apply_dropout,
    pack,
    use_attention_kernel,
    use_cpu_kernels,
)

SIZES: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32, "pad_token_id": 0}
MANY = 1_000_000
EACH_ORDER = pytest.mark.parametrize("tokens", [VECTOR - 1, VECTOR, 2 * VECTOR])
BF16_PRODUCTS = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no bf16 products"
)


def test_all_kernels_are_used_in_place_and_tied_weights_stay_tied():
    network = BertForPreTraining(BertConfig(**SIZES, hidden_dropout_prob=0.25))
    names, ids = list(network.state_dict()), torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected = network.eval()(ids).prediction_logits
        use_cpu_kernels(network)
        computed = network(ids).prediction_logits
    kinds = {type(module) for module in network.modules()}
    assert {Dropout, Linear} <= kinds
    assert not kinds & {nn.Dropout, nn.Linear}
    assert {module.p for module in network.modules() if isinstance(module, Dropout)} == {0.25, 0.1}
    assert list(network.state_dict()) == names
    assert network.cls.predictions.decoder.weight is network.bert.embeddings.word_embeddings.weight
    assert torch.allclose(computed, expected, atol=1e-6)


def inputs(tokens=9):
    ids, mask = torch.randint(3, 50, (3, tokens)), torch.ones(3, tokens, dtype=torch.int64)
    mask[1, 4:] = 0
    return ids * mask, mask


@pytest.mark.parametrize("padded", [True, False])
@EACH_ORDER
def test_products_give_what_torchs_kernel_gives(padded, tokens):
    network = BertModel(BertConfig(**SIZES))
    ids, mask = inputs(tokens)
    mask = mask if padded else torch.ones_like(mask)
    with torch.no_grad():
        network.eval().set_attn_implementation("sdpa")
        expected = network(input_ids=ids, attention_mask=mask).last_hidden_state
        use_attention_kernel(network)
        computed = network(input_ids=ids, attention_mask=mask).last_hidden_state
    assert network.config._attn_implementation == cpu_kernels.NAME
    assert torch.allclose(computed[mask.bool()], expected[mask.bool()], atol=1e-6)


@EACH_ORDER
def test_gradients_agree_in_float64(tokens, monkeypatch):
    def gradient(longest):
        monkeypatch.setitem(cpu_kernels.LONGEST_FOR_PRODUCTS, torch.float64, longest)
        torch.manual_seed(0)
        network = BertModel(BertConfig(**SIZES)).double().eval()
        use_attention_kernel(network)
        ids, mask = inputs(tokens)
        states = network(input_ids=ids, attention_mask=mask).last_hidden_state
        (states * mask[..., None]).square().sum().backward()
        return network.encoder.layer[0].attention.self.key.weight.grad

    assert torch.allclose(gradient(longest=64), gradient(longest=0), atol=1e-12)


@EACH_ORDER
def test_bf16_is_near_to_what_torchs_kernel_gives_in_float64(tokens):
    torch.manual_seed(5)
    query, key, value = torch.randn(3, 2, 3, tokens, 8).bfloat16()
    visible = (torch.arange(tokens) < tokens - 3).expand(2, 1, tokens, tokens)
    computed, _ = cpu_kernels.attention(nn.Module(), query, key, value, visible)
    exact = nn.functional.scaled_dot_product_attention(query.double(), key.double(), value.double(), visible)
    assert computed.dtype == torch.bfloat16
    assert torch.allclose(computed.double(), exact.transpose(1, 2), atol=0.02)


@EACH_ORDER
def test_a_fraction_of_the_attention_weights_is_dropped_and_the_rest_scaled(tokens):
    torch.manual_seed(6)
    nothing = torch.zeros(20, 2, tokens, 8).bfloat16()  # so that each token attends to all alike
    identity = torch.eye(tokens).bfloat16().expand(20, 2, tokens, tokens)  # whose mean by weights is the weights
    weights, _ = cpu_kernels.attention(nn.Module(), nothing, nothing, identity, None, dropout=0.5)
    assert torch.allclose(weights.float().unique(), torch.tensor([0, 2 / tokens]), rtol=0.01)
    assert abs((weights == 0).float().mean() - 0.5) < 5 * 0.5 / weights.numel() ** 0.5


def test_a_mask_of_padding_is_one_row_and_any_other_is_kept():
    """Masks give what torch gives with them: where all tokens see the same ones, and where they do not."""
    states = torch.randn(3, 2, 3, 9, 8)  # (query key value, batch, heads, tokens, head dim)
    padding, by_row = torch.ones(2, 9, dtype=torch.bool), torch.rand(2, 1, 9, 9) < 0.6
    padding[0, 5:], by_row[..., 0] = False, True
    shared = cpu_kernels.mask(
        batch_size=2, q_length=9, kv_length=9, mask_function=bidirectional_mask_function, attention_mask=padding
    )
    assert shared is not None and shared.stride(-2) == 0 and shared[0, 0, 3].tolist() == padding[0].tolist()
    with torch.no_grad():
        for visible in (shared, by_row):
            computed, _ = cpu_kernels.attention(nn.Identity(), *states, visible)
            expected = nn.functional.scaled_dot_product_attention(*states, attn_mask=visible)
            assert torch.allclose(computed, expected.transpose(1, 2), atol=1e-6)
    causal = cpu_kernels.mask(batch_size=1, q_length=4, kv_length=4, allow_is_causal_skip=False)
    assert causal is not None and torch.equal(causal[0, 0], torch.ones(4, 4).tril().bool())


def test_a_network_with_its_own_attention_keeps_it_and_no_saved_one_names_ours(tmp_path):
    network = MPNetModel(MPNetConfig(**SIZES))
    use_attention_kernel(network)
    assert network.config._attn_implementation == "eager"
    network = BertModel(BertConfig(**SIZES))
    use_attention_kernel(network)
    network.save_pretrained(tmp_path)
    assert cpu_kernels.NAME not in (tmp_path / "config.json").read_text()


def maps_of_two():
    torch.manual_seed(0)
    return nn.Sequential(Linear(24, 40), nn.GELU(), Linear(40, 8, bias=False))


@BF16_PRODUCTS
@pytest.mark.skipif(not computes_in_bf16(), reason="this machine computes bf16 in fp32")
def test_packed_weights_give_what_autocast_gives():
    maps, values = maps_of_two(), torch.randn(3, 7, 24)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = maps(values)
        with cpu_kernels.use_packed(pack(maps)):
            computed = maps(values)
    assert computed.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(computed, expected)


@BF16_PRODUCTS
def test_changed_weights_are_packed_again_and_outside_nothing_is_kept_not_even_after_an_error():
    maps, values = maps_of_two(), torch.randn(5, 24)
    with torch.no_grad():
        with cpu_kernels.use_packed(pack(maps)):
            before = maps(values)
        maps[2].weight.data.mul_(2)
        with cpu_kernels.use_packed(pack(maps)):
            assert torch.equal(maps(values), 2 * before)
    with pytest.raises(RuntimeError), cpu_kernels.use_packed(pack(maps)):
        maps(torch.randn(5, 23))
    first, second = maps[0], maps[2]
    hidden = nn.functional.gelu(nn.functional.linear(values, first.weight, first.bias))
    assert torch.equal(maps(values), nn.functional.linear(hidden, second.weight))
    assert torch.equal(copy.deepcopy(maps)(values), maps(values))


@BF16_PRODUCTS
def test_maps_that_share_an_input_give_what_each_gives_alone():
    both = nn.ModuleList([Linear(24, 8), Linear(24, 8)])
    one, other = torch.randn(5, 24), torch.randn(5, 24)
    with torch.inference_mode():
        with cpu_kernels.use_packed(pack(both)):
            results = [linear(values) for values in (one, other, one) for linear in both]
        for (values, linear), result in zip([(v, m) for v in (one, other, one) for m in both], results, strict=True):
            with cpu_kernels.use_packed(pack(linear)):
                assert torch.equal(linear(values.clone()), result)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_fraction_is_dropped_and_the_mean_stays(p):
    torch.manual_seed(1)
    values = apply_dropout(torch.full((MANY,), 3.0), p)
    off = 5 * (p * (1 - p) / MANY) ** 0.5  # five standard deviations of a fraction, and the rounding of p
    assert abs((values == 0).float().mean().item() - p) < off + 2**-17
    assert torch.allclose(values.unique(), torch.tensor([0.0, 3 / (1 - p)]), rtol=1e-3)
    assert abs(values.mean().item() / 3 - 1) < off / (1 - p)


@pytest.mark.parametrize("apart", [1, 2, 3, 4, 8])
def test_neighbours_are_dropped_independently(apart):
    torch.manual_seed(2)
    gone = apply_dropout(torch.ones(MANY), 0.3) == 0
    both = (gone[:-apart] & gone[apart:]).float().mean().item()
    assert abs(both - 0.09) < 5 * (0.09 * 0.91 / MANY) ** 0.5


def test_the_gradient_of_dropout_is_that_of_what_was_kept_and_a_seed_repeats_it():
    values = torch.ones(1_001, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    result = apply_dropout(values, 0.25)
    result.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, result.detach())
    assert not torch.equal(apply_dropout(values, 0.25), result)
    torch.manual_seed(3)
    assert torch.equal(apply_dropout(values, 0.25), result)


def test_none_and_all_may_be_dropped_and_nothing_is_outside_training() -> None:
    ones = torch.ones(100)
    assert torch.equal(apply_dropout(ones, 0.0), ones)
    assert not apply_dropout(ones, 1.0).any()
    assert torch.equal(Dropout(0.4).eval()(ones), ones)
    assert not torch.equal(Dropout(0.4).train()(ones), ones)
