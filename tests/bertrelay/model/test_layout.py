from dataclasses import replace

import pytest

from bertrelay.model.layout import Dense, Layout, Prompts

LAYOUT = Layout(
    pooling=("mean", "max"), token_dim=3, dense=(Dense(6, 4), Dense(4, 2, False)), prompts=Prompts({"a": "b"}, "a")
)
DIGESTED = (
    "Layout(pooling=('mean', 'max'), include_prompt=True, token_dim=3, dense=(Dense(in_features=6, out_features=4, "
    "bias=True, activation='torch.nn.modules.linear.Identity', normalized=False), Dense(in_features=4, out_features=2, "
    "bias=False, activation='torch.nn.modules.linear.Identity', normalized=False)), normalize=False, max_tokens=None, "
    "lower_case=False, prompts=Prompts(texts={'a': 'b'}, default='a'), similarity=None, transformer_folder='')"
)


def test_digests_that_exist_stay_valid():
    assert LAYOUT.digested == DIGESTED
    assert "dense=(Dense(in_features=6," in replace(LAYOUT, dense=(Dense(6, 4),)).digested
    assert "normalized=False),), normalize" in replace(LAYOUT, dense=(Dense(6, 4),)).digested
    assert "dense=(), normalize" in replace(LAYOUT, dense=()).digested


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({"pooling": ("max", "mean")}, True),
        ({"include_prompt": False}, True),
        ({"dense": (Dense(6, 4, normalized=True),)}, True),
        ({"normalize": True}, True),
        ({"max_tokens": 9}, True),
        ({"prompts": Prompts({"a": "b"})}, True),
        ({"similarity": "dot"}, False),
        ({"truncate_dim": 1}, False),
        ({"spaces": ("0" * 64,)}, False),
        ({"transformer_folder": "0_Transformer"}, False),
        ({"dense": (Dense(6, 4, folder="2_Dense"), Dense(4, 2, False, folder="3_Dense"))}, False),
    ],
)
def test_only_statements_that_determine_vectors_are_digested(changed, counts):
    assert (replace(LAYOUT, **changed).digested != DIGESTED) is counts
