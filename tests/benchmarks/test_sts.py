"""The comparison of STS metrics fails from the fourth digit on."""

import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.sts import by_scipy, claims
from teachers.evaluation.sts import StsPairs
from teachers.evaluation.sts_sets import set_metrics

PAIRS = StsPairs([f"left {n}" for n in range(40)], [f"right {n}" for n in range(40)], np.arange(40.0) % 6)
SETS = {"STSb": {"": PAIRS}, "STS13": {"FNWN": PAIRS, "OnWN": PAIRS}}


def encode(sentences: Sequence[str]) -> NDArray[np.float32]:
    drawn = [np.random.default_rng(zlib.crc32(sentence.encode())).normal(size=6) for sentence in sentences]
    return np.array(drawn, np.float32)


@pytest.mark.parametrize(("bend", "names"), [(0.0, []), (6e-5, ["sts/STSb/spearman_cosine"])])
def test_a_metric_that_differs_in_its_fourth_digit_is_named(bend: float, names: list[str]) -> None:
    ours = set_metrics(SETS, encode, intervals=False)
    theirs = by_scipy(SETS, encode)
    assert set(theirs) == {f"sts/{name}/spearman_cosine" for name in ("STSb", "STS13/FNWN", "STS13/OnWN")}
    theirs["sts/STSb/spearman_cosine"] += bend
    assert [claim.text.split()[0] for claim in claims(ours, theirs) if not claim.holds] == names


def test_a_missing_metric_fails() -> None:
    (claim,) = claims({"sts/STSb/spearman_cosine": None}, {"sts/STSb/spearman_cosine": 0.8})
    assert not claim.holds
