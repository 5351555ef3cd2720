"""Intervals by resampling subjects: against a loop that copies rows, and how often they hold the truth."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from domain.clinical.bootstrap import of_distance, resampled, with_intervals
from domain.clinical.metrics import Bins, Ranking, auroc
from pipelines.samples.hospital import draw_risks

SETS, STAYS, NOISE = 400, 500, 1.0


def auroc_with_interval(scores, outcomes, subjects, **options):
    ranking = Ranking(scores, outcomes)
    return with_intervals(lambda weights: {"auroc": auroc(*ranking.counts(weights))}, subjects, **options)


def test_a_resample_has_as_many_subjects_and_all_stays_of_each():
    subjects = np.array(["b", "a", "b", "c", "b"])
    weights = np.concatenate(list(resampled(subjects, seed=0, resamples=500)))
    assert weights.shape == (500, 5)
    assert (weights[:, 0] == weights[:, 2]).all() and (weights[:, 0] == weights[:, 4]).all()
    assert (weights[:, [0, 1, 3]].sum(1) == 3).all()
    assert weights[:, [0, 1, 3]].mean(0) == pytest.approx([1, 1, 1], abs=0.15)


def test_the_interval_is_that_of_copied_rows():
    risks, outcomes = draw_risks(300, seed=4)
    subjects = np.arange(300) // 2
    found = auroc_with_interval(risks, outcomes, subjects, seed=9, resamples=200)
    (weights,) = resampled(subjects, 9, 200)
    copies = [np.repeat(np.arange(300), row.astype(int)) for row in weights]
    slow = [roc_auc_score(outcomes[rows], risks[rows]) for rows in copies]
    assert found["auroc"] == pytest.approx(roc_auc_score(outcomes, risks))
    assert (found["auroc_low"], found["auroc_high"]) == pytest.approx(tuple(np.percentile(slow, [2.5, 97.5])))


def test_stays_that_repeat_their_subject_widen_the_interval():
    risks, outcomes = draw_risks(200, seed=5)
    alone = auroc_with_interval(risks, outcomes, np.arange(200))
    times = np.repeat(np.arange(200), 9)
    repeated = auroc_with_interval(risks[times], outcomes[times], times)
    blind = auroc_with_interval(risks[times], outcomes[times], np.arange(1800))

    def width(found):
        return found["auroc_high"] - found["auroc_low"]

    assert width(repeated) == pytest.approx(width(alone), rel=0.2)
    assert width(blind) < 0.5 * width(alone)


def test_what_is_not_defined_has_no_figure_and_one_subject_no_interval():
    scores = np.array([0.1, 0.9, 0.4])
    assert auroc_with_interval(scores, np.zeros(3, bool), np.arange(3)) == {"auroc": None}
    assert auroc_with_interval(scores, np.array([False, True, False]), np.zeros(3)) == {"auroc": 1.0}


def test_a_seed_gives_the_same_interval_again():
    risks, outcomes = draw_risks(200, seed=6)
    first, again, other = (auroc_with_interval(risks, outcomes, np.arange(200), seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def noisy(risks: np.ndarray, seed: int) -> np.ndarray:
    """A score that a model might give: the log-odds of the true risk, and noise of one size, each patient's own."""
    return np.log(risks / (1 - risks)) + np.random.default_rng(seed).normal(0, NOISE, len(risks))


def test_the_interval_holds_the_truth_in_95_of_100_test_sets():
    risks, outcomes = draw_risks(1_000_000, seed=1)
    truth = roc_auc_score(outcomes, noisy(risks, 1))
    held = 0
    for number in range(SETS):
        risks, outcomes = draw_risks(STAYS, seed=1_000 + number)
        scores = noisy(risks, 1_000 + number)
        found = auroc_with_interval(scores, outcomes, np.arange(STAYS), seed=number, resamples=400)
        held += found["auroc_low"] <= truth <= found["auroc_high"]
    assert 0.92 <= held / SETS <= 0.98


def calibration_error(probabilities, outcomes, subjects, **options):
    bins = Bins.by_size(probabilities, outcomes)
    return with_intervals(lambda weights: {"error": bins.error(weights)}, subjects, distances=["error"], **options)


@pytest.mark.parametrize("stays", [300, 2000])
def test_the_interval_of_a_calibration_error_holds_that_of_perfect_probabilities_which_is_0(stays):
    held = 0
    for seed in range(40):
        risks, outcomes = draw_risks(stays, seed=seed)
        found = calibration_error(risks, outcomes, np.arange(stays), seed=seed, resamples=200)
        assert 0 <= found["error_low"] < found["error"] <= found["error_high"]
        held += found["error_low"] < 0.005
    assert held >= 38


def test_the_interval_of_a_calibration_error_leaves_out_0_where_the_probabilities_are_wrong():
    risks, outcomes = draw_risks(2000, seed=3)
    found = calibration_error(risks**0.5, outcomes, np.arange(2000))
    truth = float(np.mean(risks**0.5 - risks))  # all are too high, so that bins make no difference
    assert 0.1 < found["error_low"] < truth < found["error_high"] < found["error"] + 0.1


def test_a_distance_is_freed_of_the_noise_of_a_resample():
    assert of_distance(0.5, 0.4, 0.6) == pytest.approx(((2 * 0.25 - 0.36) ** 0.5, (2 * 0.25 - 0.16) ** 0.5))
    assert of_distance(0.026, 0.021, 0.049) == pytest.approx((0, (2 * 0.026**2 - 0.021**2) ** 0.5))
    assert of_distance(0.01, 0.02, 0.03) == (0, 0.01)
