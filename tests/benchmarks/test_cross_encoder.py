from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from scipy.stats import spearmanr

from benchmarks import cross_encoder
from pipelines.recipe import read_recipe
from pipelines.registry import REGISTRY


def test_how_far_one_is_ahead_is_the_difference_of_the_means_of_scipys_figures() -> None:
    random = np.random.default_rng(1)
    gold = random.integers(6, size=200).astype(float)
    cross, bi = (
        [(gold + noise * random.normal(size=200)).astype(np.float32) for _ in range(3)] for noise in (1.0, 3.0)
    )
    found = cross_encoder.ahead(cross, bi, gold)
    one, other = (mean(spearmanr(scores, gold).statistic for scores in each) for each in (cross, bi))
    difference, low, high = (found[f"difference{end}"] for end in ("", "_low", "_high"))
    assert difference == pytest.approx(one - other, abs=1e-6)
    assert low is not None and high is not None and 0 < low < one - other < high


def test_figures_are_of_stages_of_the_recipe() -> None:
    stages = {step.name for step in read_recipe(str(cross_encoder.RECIPE), REGISTRY).steps}
    places = (*cross_encoder.DEV.values(), *cross_encoder.TEST.values())
    assert {stage for stage, _ in places} == stages


def test_pairs_and_gold_scores_are_those_of_the_test_part(tmp_path: Path) -> None:
    path = tmp_path / cross_encoder.STSB["test"].removesuffix(".gz")
    path.parent.mkdir(parents=True)
    path.with_suffix(".csv.gz").write_bytes(b'"a, b",c,3.5\nd,e,0\n')
    pairs, gold = cross_encoder.tested_pairs(tmp_path)
    assert pairs == [("a, b", "c"), ("d", "e")]
    assert gold.tolist() == [3.5, 0.0]
