import copy

import pytest
import torch
from torch import nn

from bertrelay.cpu_kernels import Linear, pack, using
from bertrelay.hardware import computes_in_bf16

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no bf16 products"
)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Linear(24, 40), nn.GELU(), Linear(40, 8, bias=False))


@pytest.mark.skipif(not computes_in_bf16(), reason="this machine computes bf16 in fp32")
def test_packed_weights_give_what_autocast_gives() -> None:
    maps, values = network(), torch.randn(3, 7, 24)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = maps(values)
        with using(pack(maps)):
            found = maps(values)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(found, expected)


def test_changed_weights_are_laid_out_anew() -> None:
    maps, values = network(), torch.randn(5, 24)
    with torch.no_grad():
        with using(pack(maps)):
            before = maps(values)
        maps[2].weight.data.mul_(2)
        with using(pack(maps)):
            after = maps(values)
    assert torch.equal(after, 2 * before)


def test_outside_of_it_nothing_is_kept_not_even_after_an_error() -> None:
    maps = network()
    with pytest.raises(RuntimeError), using(pack(maps)):
        maps(torch.randn(5, 23))
    values = torch.randn(5, 24)
    plain = nn.functional.linear(
        nn.functional.gelu(nn.functional.linear(values, maps[0].weight, maps[0].bias)), maps[2].weight
    )
    assert torch.equal(maps(values), plain)
    assert torch.equal(copy.deepcopy(maps)(values), plain)


def test_maps_of_one_input_and_of_others_by_turns_give_what_each_gives_alone() -> None:
    first, second = Linear(24, 8), Linear(24, 8)
    both = nn.ModuleList([first, second])
    one, other = torch.randn(5, 24), torch.randn(5, 24)
    with torch.inference_mode(), using(pack(both)):
        found = [each(values) for values in (one, other, one) for each in (first, second)]
    with torch.inference_mode():
        expected = []
        for values in (one, other, one):
            for each in (first, second):
                with using(pack(each)):
                    expected.append(each(values.clone()))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
