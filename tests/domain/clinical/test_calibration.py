"""Recalibration against scikit-learn and known distortions."""

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from domain.biomedical.calibration import expected_calibration_error
from domain.clinical.calibration import Recalibration, calibrated, fit_recalibration


def drawn(count, prevalence=0.3, seed=0):
    """Log-odds of true risks, and outcomes."""
    generator = np.random.default_rng(seed)
    risks = generator.normal(logit(prevalence), 1.2, count)
    return risks, generator.random(count) < expit(risks)


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
    assert before[test].mean() > 0.35 and expected_calibration_error(before[test], outcomes[test]) > 0.3
    assert after.mean() == pytest.approx(outcomes[test].mean(), abs=0.01)
    assert np.argsort(after).tolist() == np.argsort(before[test]).tolist()
    by_chance = expected_calibration_error(expit(features[test]), outcomes[test])  # that of the true risks
    assert expected_calibration_error(after, outcomes[test]) < by_chance + 0.01


def test_slope_and_intercept_are_scikit_learns_and_give_back_the_distortion():
    log_odds, outcomes = drawn(4_000)
    spoiled = expit(2.0 * log_odds + 1.0)
    slope, intercept = fit_recalibration(spoiled, outcomes)
    theirs = LogisticRegression(C=np.inf, tol=1e-8).fit(logit(spoiled)[:, None], outcomes)
    assert (slope, intercept) == pytest.approx((theirs.coef_[0, 0], theirs.intercept_[0]), rel=0.01)
    assert (slope, intercept) == pytest.approx((0.5, -0.5), abs=0.1)


def test_what_is_calibrated_stays_as_it_is_and_what_is_only_shifted_keeps_its_slope():
    unchanged, unchanged_slopes = 0, 0
    for seed in range(40):
        log_odds, outcomes = drawn(1_000, seed=seed)
        unchanged += fit_recalibration(expit(log_odds), outcomes) == (1, 0)
        slope, intercept = fit_recalibration(expit(log_odds + 1.5), outcomes)
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
    message = "recalibration of tfidf: no slope; it takes 10 of either outcome on validation, found 3 of 50 positive"
    assert message in capsys.readouterr().err
    for one in (np.zeros(50, bool), np.ones(50, bool)):
        assert fit_recalibration(probability, one) == Recalibration(1, 0)
        assert "recalibration of model: none; it takes validation admissions of either" in capsys.readouterr().err
    extreme = np.array([0.0, 1.0, 1.0, 1.0])
    assert calibrated(extreme, *fit_recalibration(extreme, extreme < 0.5)).mean() == pytest.approx(0.25)


def test_where_p_falls_with_the_outcome_all_get_the_prevalence(capsys):
    log_odds, outcomes = drawn(500)
    fitted = fit_recalibration(expit(-log_odds), outcomes)
    assert fitted.slope == 0
    assert calibrated(expit(-log_odds), *fitted) == pytest.approx(np.full(500, outcomes.mean()))
    assert "its probability does not rise with the outcome" in capsys.readouterr().err
