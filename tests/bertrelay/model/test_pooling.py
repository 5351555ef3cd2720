import numpy as np
import pytest
import torch

from bertrelay.errors import RequestError
from bertrelay.model.layout import POOLINGS
from bertrelay.model.pooling import Pooling

LENGTHS = [5, 1, 7, 3]
TOKENS, DIM = 7, 6


def ragged_batch(left):
    vectors = torch.randn(len(LENGTHS), TOKENS, DIM, generator=torch.Generator().manual_seed(3)) - 2
    mask = torch.zeros(len(LENGTHS), TOKENS, dtype=torch.long)
    for row, length in enumerate(LENGTHS):
        mask[row, TOKENS - length if left else 0 :][:length] = 1
    return vectors, mask


BY_HAND = {  # of one sentence's real token vectors, (tokens, dim) in float64
    "cls": lambda tokens: tokens[0],
    "max": lambda tokens: np.max(tokens, axis=0),
    "mean": lambda tokens: sum(tokens) / len(tokens),
    "mean_sqrt_len": lambda tokens: sum(tokens) / len(tokens) ** 0.5,
    "weightedmean": lambda tokens: np.average(tokens, axis=0, weights=range(1, len(tokens) + 1)),
    "lasttoken": lambda tokens: tokens[-1],
}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("modes", [[mode] for mode in POOLINGS] + [["cls", "max", "mean"], ["mean", "cls"]])
def test_pooling_is_that_of_each_sentence_alone(modes, left):
    vectors, mask = ragged_batch(left)
    expected = [
        np.concatenate([BY_HAND[mode](vectors[row][mask[row] == 1].double().numpy()) for mode in modes])
        for row in range(len(LENGTHS))
    ]
    pooled = Pooling(modes)(vectors, mask)
    assert pooled.shape == (len(LENGTHS), DIM * len(modes))
    np.testing.assert_allclose(pooled.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rubbish", [1e30, -1e30, float("nan"), float("inf")])
def test_what_stands_in_padding_enters_no_pooling(rubbish):
    vectors, mask = ragged_batch(left=False)
    spoilt = vectors.masked_fill(mask.unsqueeze(-1) == 0, rubbish)
    assert torch.equal(Pooling(POOLINGS)(vectors, mask), Pooling(POOLINGS)(spoilt, mask))


def test_pooling_counts_in_float32_whatever_comes_in():
    ones = torch.ones(1, 1000, 2, dtype=torch.bfloat16)
    mask = torch.ones(1, 1000, dtype=torch.long)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pooled = Pooling(["mean_sqrt_len"])(ones, mask)
    assert pooled.dtype == torch.float32
    np.testing.assert_allclose(pooled.numpy(), np.sqrt(1000), rtol=1e-6)  # bf16 cannot count to 1,000


@pytest.mark.parametrize("modes", [[], ["median"], ["mean", "mean"]])
def test_unknown_absent_and_doubled_poolings_are_refused(modes):
    with pytest.raises(RequestError, match="pooling"):
        Pooling(modes)
