from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel, XLMRobertaConfig, XLMRobertaModel
from transformers.masking_utils import bidirectional_mask_function

from bertrelay import cpu_kernels as attention
from bertrelay.cpu_kernels import LONGEST_FOR_PRODUCTS, VECTOR, use_attention_kernel

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "pad_token_id": 0,
}


EACH_WAY = pytest.mark.parametrize("tokens", [VECTOR - 1, VECTOR, 2 * VECTOR])


def inputs(tokens: int = 9) -> tuple[Tensor, Tensor]:
    ids, mask = torch.randint(3, 50, (3, tokens)), torch.ones(3, tokens, dtype=torch.int64)
    mask[1, 4:] = 0
    return ids * mask, mask


@pytest.mark.parametrize("network", [BertModel(BertConfig(**SIZES)), XLMRobertaModel(XLMRobertaConfig(**SIZES))])
@pytest.mark.parametrize("padded", [True, False])
@EACH_WAY
def test_products_give_what_torchs_kernel_gives(network: BertModel, padded: bool, tokens: int) -> None:
    ids, mask = inputs(tokens)
    mask = mask if padded else torch.ones_like(mask)
    with torch.no_grad():
        network.eval().set_attn_implementation("sdpa")
        expected = network(input_ids=ids, attention_mask=mask).last_hidden_state
        use_attention_kernel(network)
        found = network(input_ids=ids, attention_mask=mask).last_hidden_state
    assert network.config._attn_implementation == attention.NAME
    assert torch.allclose(found[mask.bool()], expected[mask.bool()], atol=1e-6)


@EACH_WAY
def test_gradients_agree_in_float64(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient(longest: int) -> Tensor:
        monkeypatch.setitem(attention.LONGEST_FOR_PRODUCTS, torch.float64, longest)
        torch.manual_seed(0)
        network = BertModel(BertConfig(**SIZES)).double().eval()
        use_attention_kernel(network)
        ids, mask = inputs(tokens)
        states = network(input_ids=ids, attention_mask=mask).last_hidden_state
        (states * mask[..., None]).square().sum().backward()
        return network.encoder.layer[0].attention.self.key.weight.grad

    assert torch.allclose(gradient(longest=64), gradient(longest=0), atol=1e-12)


@EACH_WAY
def test_bf16_is_near_to_what_torchs_kernel_gives_in_float64(tokens: int) -> None:
    torch.manual_seed(5)
    query, key, value = torch.randn(3, 2, 3, tokens, 8).bfloat16()
    visible = (torch.arange(tokens) < tokens - 3).expand(2, 1, tokens, tokens)
    found, _ = attention.attention(torch.nn.Module(), query, key, value, visible)
    exact = torch.nn.functional.scaled_dot_product_attention(query.double(), key.double(), value.double(), visible)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.double(), exact.transpose(1, 2), atol=0.02)


@EACH_WAY
def test_a_share_of_the_weights_is_dropped_and_the_rest_scaled(tokens: int) -> None:
    torch.manual_seed(6)
    nothing = torch.zeros(20, 2, tokens, 8).bfloat16()  # so that each token looks at all alike
    identity = torch.eye(tokens).bfloat16().expand(20, 2, tokens, tokens)
    found, _ = attention.attention(torch.nn.Module(), nothing, nothing, identity, None, dropout=0.5)  # the weights
    assert torch.allclose(found.float().unique(), torch.tensor([0, 2 / tokens]), rtol=0.01)
    assert abs((found == 0).float().mean() - 0.5) < 5 * 0.5 / found.numel() ** 0.5


def test_products_are_kept_to_where_they_are_faster() -> None:
    def chosen(dtype: torch.dtype, tokens: int) -> bool:
        return attention._products_are_faster(torch.zeros(1, 1, tokens, 4, dtype=dtype))

    bf16, fp32 = LONGEST_FOR_PRODUCTS[torch.bfloat16], LONGEST_FOR_PRODUCTS[torch.float32]
    assert (chosen(torch.bfloat16, bf16), chosen(torch.bfloat16, bf16 + 1)) == (True, False)
    assert not chosen(torch.float32, 8)  # with gradients
    with torch.no_grad():
        assert (chosen(torch.float32, fp32), chosen(torch.float32, fp32 + 1)) == (True, False)


def test_a_mask_of_padding_is_one_row_and_any_other_is_kept() -> None:
    """Each way to hide tokens gives what torch gives: where all tokens see the same ones, and where they do not."""
    states = torch.randn(3, 2, 3, 9, 8)  # (query key value, batch, heads, tokens, head dim)
    padding, own = torch.ones(2, 9, dtype=torch.bool), torch.rand(2, 1, 9, 9) < 0.6
    padding[0, 5:], own[..., 0] = False, True
    shared = attention.mask(
        batch_size=2, q_length=9, kv_length=9, mask_function=bidirectional_mask_function, attention_mask=padding
    )
    assert shared is not None and shared.stride(-2) == 0 and shared[0, 0, 3].tolist() == padding[0].tolist()
    with torch.no_grad():
        for visible in (shared, own):
            found, _ = attention.attention(torch.nn.Identity(), *states, visible)
            expected = torch.nn.functional.scaled_dot_product_attention(*states, attn_mask=visible)
            assert torch.allclose(found, expected.transpose(1, 2), atol=1e-6)


def test_masks_that_differ_from_token_to_token_are_left_as_transformers_makes_them() -> None:
    found = attention.mask(batch_size=1, q_length=4, kv_length=4, allow_is_causal_skip=False)
    assert found is not None and torch.equal(found[0, 0], torch.ones(4, 4).tril().bool())


def test_a_network_with_its_own_attention_keeps_it() -> None:
    network = MPNetModel(MPNetConfig(**SIZES))
    use_attention_kernel(network)
    assert network.config._attn_implementation == "eager"


def test_a_saved_network_does_not_name_it(tmp_path: Any) -> None:
    network = BertModel(BertConfig(**SIZES))
    use_attention_kernel(network)
    network.save_pretrained(tmp_path)
    assert attention.NAME not in (tmp_path / "config.json").read_text()
