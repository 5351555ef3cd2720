from dataclasses import replace

import pytest

from bertrelay.model.layout import Dense, Layout, Prompts

LAYOUT = Layout(
    pooling=("mean", "max"), token_dim=3, dense=(Dense(6, 4), Dense(4, 2, False)), prompts=Prompts({"a": "b"}, "a")
)


def test_digested_statements_stay_as_indexes_and_students_have_their_digest():
    identity = "torch.nn.modules.linear.Identity"
    shapes = [(6, 4, True, identity, False), (4, 2, False, identity, False)]
    names = ("in_features", "out_features", "bias", "activation", "normalized")
    assert LAYOUT.digested == {
        "pooling": ("mean", "max"),
        "include_prompt": True,
        "token_dim": 3,
        "dense": [dict(zip(names, shape, strict=True)) for shape in shapes],
        "normalize": False,
        "max_tokens": None,
        "lower_case": False,
        "prompts": {"texts": {"a": "b"}, "default": "a"},
    }


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
        ({"matryoshka_dimensions": (2, 4)}, False),
        ({"transformer_folder": "0_Transformer"}, False),
        ({"dense": (Dense(6, 4, folder="2_Dense"), Dense(4, 2, False, folder="3_Dense"))}, False),
    ],
)
def test_only_statements_that_determine_vectors_are_digested(changed, counts):
    assert (replace(LAYOUT, **changed).digested != LAYOUT.digested) is counts
