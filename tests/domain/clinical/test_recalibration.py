"""Recalibration against scikit-learn and a case with a known answer; too little to fit; the figures of calibration."""

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from domain.clinical.metrics import Bins
from domain.clinical.recalibration import (
    Calibration,
    Recalibration,
    calibrated,
    calibration_figures,
    fit_recalibration,
    logistic_regression,
)
from domain.clinical.settings import OutcomeModelSettings


def drawn(count: int, prevalence: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds of true risks, and outcomes."""
    generator = np.random.default_rng(seed)
    risks = generator.normal(logit(prevalence), 1.2, count)
    return risks, generator.random(count) < expit(risks)


def error(probability: np.ndarray, outcomes: np.ndarray) -> float:
    return float(Bins.by_size(probability, outcomes).error(np.ones(len(outcomes))))


def test_after_balanced_training_probabilities_are_those_of_the_true_prevalence():
    features, outcomes = drawn(200_000, 0.035)  # spread makes it 0.06
    assert outcomes.mean() == pytest.approx(0.06, abs=0.005)
    train, validation, test = slice(0, 180_000), slice(180_000, 183_000), slice(183_000, None)
    positives = np.flatnonzero(outcomes[train])
    balanced = np.concatenate([positives, np.flatnonzero(~outcomes[train])[: len(positives)]])
    model = LogisticRegression().fit(features[balanced, None], outcomes[balanced])
    before = model.predict_proba(features[:, None])[:, 1]
    fitted = fit_recalibration(before[validation], outcomes[validation])
    after = calibrated(before[test], *fitted)
    assert before[test].mean() > 0.35 and error(before[test], outcomes[test]) > 0.3
    assert after.mean() == pytest.approx(outcomes[test].mean(), abs=0.01)
    assert np.argsort(after).tolist() == np.argsort(before[test]).tolist()
    by_chance = error(expit(features[test]), outcomes[test])  # that of the true risks
    assert error(after, outcomes[test]) < by_chance + 0.01


def test_slope_and_intercept_are_scikit_learns_and_give_back_the_distortion():
    given, outcomes = drawn(4_000)
    spoiled = expit(2.0 * given + 1.0)
    slope, intercept = fit_recalibration(spoiled, outcomes)
    theirs = LogisticRegression(C=np.inf, tol=1e-8).fit(logit(spoiled)[:, None], outcomes)
    assert (slope, intercept) == pytest.approx((theirs.coef_[0, 0], theirs.intercept_[0]), rel=0.01)
    assert (slope, intercept) == pytest.approx((0.5, -0.5), abs=0.1)


def test_shifting_log_odds_before_the_fit_changes_no_fitted_probability():
    given, outcomes = drawn(2_000)
    before, shifted = expit(2 * given + 1), expit(2 * given - 1.7)  # as a correction for sampling by the label would
    fitted, after_shift = fit_recalibration(before, outcomes), fit_recalibration(shifted, outcomes)
    assert calibrated(shifted, *after_shift) == pytest.approx(calibrated(before, *fitted), abs=1e-4)


def test_what_is_calibrated_stays_as_it_is_and_what_is_only_shifted_keeps_its_slope():
    unchanged, unchanged_slopes = 0, 0
    for seed in range(40):
        given, outcomes = drawn(1_000, seed=seed)
        unchanged += fit_recalibration(expit(given), outcomes) == (1, 0)
        slope, intercept = fit_recalibration(expit(given + 1.5), outcomes)
        assert intercept == pytest.approx(-1.5, abs=0.5)
        unchanged_slopes += slope == 1
    assert unchanged >= 34 and unchanged_slopes >= 34  # 38 are expected of tests at 0.05


def test_separable_outcomes_have_a_finite_slope_and_probabilities_inside_of_0_and_1():
    probability = np.concatenate([np.linspace(0.1, 0.4, 60), np.linspace(0.6, 0.9, 20)])
    outcomes = probability > 0.5
    slope, intercept = fit_recalibration(probability, outcomes)
    after = calibrated(probability, slope, intercept)
    assert 1 < slope < 100 and np.isfinite(intercept)
    assert after.mean() == pytest.approx(0.25, abs=0.01) and 0 < after.min() < after.max() < 1


def test_of_few_admissions_the_intercept_alone_is_fitted_and_one_outcome_gives_nothing(capsys):
    probability = np.concatenate([np.linspace(0.3, 0.9, 47), [0.8, 0.7, 0.95]])
    outcomes = np.arange(50) >= 47
    slope, intercept = fit_recalibration(probability, outcomes, "tfidf")
    assert slope == 1 and calibrated(probability, slope, intercept).mean() == pytest.approx(3 / 50)
    told = "recalibration of tfidf: no slope; it takes 10 of either outcome on validation, found 3 of 50 positive"
    assert told in capsys.readouterr().err
    for one in (np.zeros(50, bool), np.ones(50, bool)):
        assert fit_recalibration(probability, one) == Recalibration(1, 0)
        assert "recalibration of model: none; it takes validation admissions of either" in capsys.readouterr().err
    extreme = np.array([0.0, 1.0, 1.0, 1.0])
    assert calibrated(extreme, *fit_recalibration(extreme, extreme < 0.5)).mean() == pytest.approx(0.25)


def test_where_p_falls_with_the_outcome_all_get_the_prevalence(capsys):
    given, outcomes = drawn(500)
    fitted = fit_recalibration(expit(-given), outcomes)
    assert fitted.slope == 0
    assert calibrated(expit(-given), *fitted) == pytest.approx(np.full(500, outcomes.mean()))
    assert "P does not rise with the outcome" in capsys.readouterr().err


@pytest.mark.parametrize("count", [40, 1_000])
def test_figures_of_calibration_are_scikit_learns_for_every_row_of_weights(count):
    given, outcomes = drawn(count, seed=3)
    weights = np.random.default_rng(1).integers(0, 4, (5, count)).astype(float)
    probability = expit(0.6 * given + 0.8)
    found = Calibration(probability, outcomes).figures(weights)
    x = logit(probability)
    for row, weight in enumerate(weights):
        theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=500).fit(x[:, None], outcomes, sample_weight=weight)
        assert found["calibration_slope"][row] == pytest.approx(theirs.coef_[0, 0], rel=1e-3)
        expected = weight @ expit(x + found["calibration_intercept"][row])
        assert expected == pytest.approx(weight @ outcomes, rel=1e-5)
        assert found["observed_expected"][row] == pytest.approx(weight @ outcomes / (weight @ probability))


@pytest.mark.parametrize("spread", [1.0, 0.01, 1e-4])
def test_probabilities_that_hardly_differ_have_a_slope(spread):
    given, outcomes = drawn(800)
    probability = expit(-1 + spread * given)
    model = LogisticRegression(C=np.inf, tol=1e-10).fit(given[:, None], outcomes)
    found = Calibration(probability, outcomes).figures(np.ones(800))["calibration_slope"]
    assert found * spread == pytest.approx(model.coef_[0, 0], rel=1e-3)


def test_what_has_no_finite_solution_has_no_figure():
    probability, ones = np.linspace(0.1, 0.9, 30), np.ones(30)
    separable = Calibration(probability, probability > 0.5).figures(ones)
    assert np.isnan(separable["calibration_slope"]) and np.isfinite(separable["calibration_intercept"])
    nobody = Calibration(probability, np.zeros(30, bool)).figures(ones)
    assert np.isnan(nobody["calibration_slope"]) and np.isnan(nobody["calibration_intercept"])
    alike = Calibration(np.full(30, 0.2), np.arange(30) < 12).figures(ones)
    assert np.isnan(alike["calibration_slope"])
    assert alike["calibration_intercept"] == pytest.approx(logit(0.4) - logit(0.2))
    assert logistic_regression(np.ones((0, 1)), 0.0, np.zeros(0), np.zeros((2, 0))).shape == (2, 1)


def test_before_and_after_stand_side_by_side():
    given, outcomes = drawn(3_000)
    found = calibration_figures(outcomes, expit(2 * given + 1), expit(given))(np.ones(3_000))
    assert found["calibration_slope"] == pytest.approx(1, abs=0.1)
    assert found["calibration_slope_uncalibrated"] == pytest.approx(found["calibration_slope"] / 2)
    assert abs(found["observed_expected"] - 1) < 0.05 < 1 - found["observed_expected_uncalibrated"]


def test_the_temperature_of_an_older_model_is_a_slope():
    found = OutcomeModelSettings.model_validate({"temperature": 4.0, "threshold": 0.3})
    assert (found.slope, found.intercept, found.threshold) == (0.25, 0.0, 0.3)
    odds = 3.0 ** (1 / 4)
    assert calibrated(np.array([0.75]), found.slope, found.intercept) == pytest.approx([odds / (1 + odds)])
    for wrong in (0.0, -1.0, "2", None, float("nan"), float("inf"), [1.0]):
        with pytest.raises(ValueError, match="temperature"):
            OutcomeModelSettings.model_validate({"temperature": wrong})
