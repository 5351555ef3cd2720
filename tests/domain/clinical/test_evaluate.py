"""Metrics of binary outcomes against arithmetic by hand, and null where one is undefined."""

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from bertrelay.evaluation.statistics import resampled_weights
from domain.clinical.baselines import Baseline
from domain.clinical.calibration import calibrated, fit_recalibration
from domain.clinical.evaluate import evaluate_baseline, in_column
from domain.clinical.metrics import (
    Predicted,
    alarm_metrics,
    best_metrics,
    binary_metrics,
    metric_differences,
    permutation_metrics,
)

PROBABILITIES = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
OUTCOMES = np.array([True, False, True, True, True, False])


def drawn(count=400, seed=0):
    """True risks, and outcomes drawn from them."""
    generator = np.random.default_rng(seed)
    probabilities = generator.uniform(0.02, 0.98, count)
    return probabilities, generator.random(count) < probabilities


def predicted(probabilities, outcomes, **more):
    return Predicted(
        np.arange(len(outcomes)) // 2,
        outcomes,
        probabilities,
        **{"calibrated": probabilities, "uncalibrated": probabilities, **more},
    )


def test_every_metric_is_that_of_scikit_learn_and_has_an_interval_that_holds_it():
    probabilities, outcomes = drawn()
    uncalibrated = probabilities**2
    metrics = binary_metrics(
        predicted(uncalibrated, outcomes, calibrated=probabilities, uncalibrated=uncalibrated), threshold=0.3
    )
    raised = uncalibrated >= 0.3
    expected = {
        "auroc": roc_auc_score(outcomes, uncalibrated),
        "auprc": average_precision_score(outcomes, uncalibrated),
        "rp80": outcomes[raised].sum() / outcomes.sum(),
        "rp80_precision": outcomes[raised].mean(),
        "brier": brier_score_loss(outcomes, probabilities),
        "brier_uncalibrated": brier_score_loss(outcomes, uncalibrated),
        "prevalence": outcomes.mean(),
        "observed_expected": outcomes.sum() / probabilities.sum(),
        "observed_expected_uncalibrated": outcomes.sum() / uncalibrated.sum(),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert metrics["calibration_error_low"] < 0.02 < metrics["calibration_error_uncalibrated_low"]
    of_all = {name for name in metrics if not name.endswith(("_low", "_high"))}
    calibration = {"calibration_error", "calibration_slope", "calibration_intercept"}
    calibration |= {f"{name}_uncalibrated" for name in calibration}
    assert of_all == {*expected, *calibration, "rp80_optimistic"}
    assert all(metrics[f"{name}_low"] <= metrics[name] <= metrics[f"{name}_high"] for name in of_all)


def test_a_threshold_is_taken_as_it_is_and_without_one_there_is_no_recall_but_the_optimistic_one():
    admissions = predicted(PROBABILITIES, OUTCOMES)
    for threshold, recall, precision in ((0.65, 2 / 4, 2 / 3), (0.95, 0, None), (None, None, None)):
        metrics = binary_metrics(admissions, threshold)
        assert (metrics["rp80"], metrics["rp80_precision"], metrics["rp80_optimistic"]) == (recall, precision, 1)
    assert "rp80_low" not in metrics and metrics["auroc"] is not None
    assert alarm_metrics(admissions, None) == {"alarms": None, "alarm_recall": None, "alarm_precision": None}
    nobody = binary_metrics(predicted(PROBABILITIES, ~OUTCOMES), threshold=None)
    assert nobody["rp80_optimistic"] is None  # the first is none, and of the first two one is


@pytest.mark.parametrize("outcome", [True, False])
def test_of_one_class_what_sets_two_apart_is_not_known_and_distances_are(outcome):
    metrics = binary_metrics(predicted(PROBABILITIES, np.full(6, outcome)), threshold=0.5)
    assert metrics["auroc"] is None and "auroc_low" not in metrics
    assert metrics["prevalence"] == outcome
    assert metrics["brier"] == pytest.approx(((PROBABILITIES - outcome) ** 2).mean())
    assert metrics["calibration_error"] == pytest.approx(abs(PROBABILITIES - outcome).mean())
    assert (metrics["rp80"], metrics["auprc"]) == ((5 / 6, 1) if outcome else (None, None))
    assert best_metrics(np.arange(6), np.full(6, outcome), PROBABILITIES) == {"best_auroc": None}


def test_baselines_are_calibrated_on_validation_as_the_model_is():
    of_validation, outcomes_before = drawn(2_000, 1)
    of_test, outcomes = drawn(2_000, 2)
    too_sure = [calibrated(risks, 3.0, 1.5) for risks in (of_validation, of_test)]
    baseline = Baseline("tfidf", *(risks[:, None] for risks in too_sure), permuted=np.linspace(0.4, 0.6, 20))
    ours = Predicted(np.arange(2_000), outcomes, of_test, of_test)
    other, metrics = evaluate_baseline(baseline, outcomes_before, ours)
    named = in_column("tfidf", metrics)
    fitted = fit_recalibration(too_sure[0], outcomes_before)
    assert fitted == pytest.approx((1 / 3, -0.5), abs=0.1)
    assert named["brier/tfidf"] == pytest.approx(brier_score_loss(outcomes, calibrated(too_sure[1], *fitted)))
    assert named["brier_uncalibrated/tfidf"] == pytest.approx(brier_score_loss(outcomes, too_sure[1]))
    assert named["calibration_error/tfidf"] < 0.03 < 0.1 < named["calibration_error_uncalibrated/tfidf"]
    assert named["auroc/tfidf"] == pytest.approx(roc_auc_score(outcomes, of_test))
    assert other.probability is not other.calibrated
    assert named["auroc_difference/tfidf"] == pytest.approx(0, abs=1e-12)  # of the same order
    assert {"auprc_difference/tfidf_low", "auroc_permuted/tfidf", "permutation_p/tfidf"} <= named.keys()


def test_differences_are_paired_in_every_resample_of_subjects():
    probabilities, outcomes = drawn(300, 5)
    worse = probabilities + np.random.default_rng(6).normal(0, 0.3, 300)
    first, second = predicted(probabilities, outcomes), predicted(worse, outcomes)
    differences = metric_differences(first, second)
    for name, metric in (("auroc", roc_auc_score), ("auprc", average_precision_score)):
        expected = metric(outcomes, probabilities) - metric(outcomes, worse)
        assert differences[f"{name}_difference"] == pytest.approx(expected)

    def auroc_by_ranks(rows, scores):
        positive = outcomes[rows]
        above = rankdata(scores[rows])[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
        return above / (positive.sum() * (~positive).sum())

    (weights,) = resampled_weights(first.subjects, 0)
    resamples = [np.repeat(np.arange(300), row.astype(int)) for row in weights]
    both = np.array([[auroc_by_ranks(rows, scores) for scores in (probabilities, worse)] for rows in resamples])
    low, high = np.percentile(both[:, 0] - both[:, 1], [2.5, 97.5])
    assert (differences["auroc_difference_low"], differences["auroc_difference_high"]) == pytest.approx((low, high))
    assert high - low < np.ptp(np.percentile(both[:, 1], [2.5, 97.5]))  # what both share is taken off


def test_a_metric_is_among_those_of_permuted_labels_by_its_rank():
    permuted = np.linspace(0.4, 0.59, 20)
    metrics = permutation_metrics(0.575, permuted)
    assert metrics["permutations"] == 20 and metrics["auroc_permuted"] == pytest.approx(0.495)
    assert metrics["auroc_permuted_sd"] == pytest.approx(np.sqrt(np.sum((permuted - 0.495) ** 2) / 19))
    assert metrics["auroc_permuted_highest"] == 0.59
    assert metrics["permutation_p"] == 3 / 21  # of itself, 0.58 and 0.59
    best = permutation_metrics(0.9, permuted)
    assert best["permutation_p"] == best["permutation_p_least"] == 1 / 21  # no model can show less with 20
