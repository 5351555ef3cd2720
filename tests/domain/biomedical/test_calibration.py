"""Temperature and calibration error against sums by hand and known distortions."""

import numpy as np
import pytest
from scipy.special import expit, logit

from domain.biomedical.calibration import expected_calibration_error, fit_temperature


def test_the_temperature_that_spoiled_confidences_is_found_again():
    generator = np.random.default_rng(0)
    honest = generator.uniform(0.02, 0.98, 20_000)
    is_right = generator.random(20_000) < honest
    spoiled = logit(honest) * 3.0  # sure beyond what it knows
    temperature_fitted = fit_temperature(lambda temperature: expit(spoiled / temperature), is_right)
    assert temperature_fitted == pytest.approx(3.0, rel=0.05)
    before = expected_calibration_error(expit(spoiled), is_right)
    after = expected_calibration_error(expit(spoiled / temperature_fitted), is_right)
    assert before is not None
    assert after is not None
    assert after < 0.02 < 0.1 < before


def test_calibration_error_is_that_of_a_calculation_by_hand():
    confidences = np.array([0.95, 0.91, 0.55, 0.52, 1.0])
    is_right = np.array([True, False, True, True, True])
    # bin 9: 0.95, 0.91 and 1.0, mean 0.9533…, two of three right; bin 5: mean 0.535, both right
    expected = 3 / 5 * (2.86 / 3 - 2 / 3) + 2 / 5 * (1 - 0.535)
    assert expected_calibration_error(confidences, is_right) == pytest.approx(expected)
    assert expected_calibration_error(np.zeros(0), np.zeros(0, bool)) is None


@pytest.mark.parametrize("is_right", [np.ones(50, bool), np.zeros(50, bool), np.array([True, False])])
def test_too_little_to_learn_from_leaves_the_temperature_and_is_reported(is_right, capsys):
    assert fit_temperature(lambda _: np.full(len(is_right), 0.5), is_right) == 1.0
    message = f"found {is_right.sum()} right (or positive) of {len(is_right)}; give more dev data"
    assert (
        f"probabilities are not calibrated: expected at least 20 dev examples, not all of one outcome, {message}"
        in (capsys.readouterr().err)
    )
