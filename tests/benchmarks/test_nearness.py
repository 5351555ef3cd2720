"""The forecast of benchmarks.nearness, by hand."""

import pytest

from benchmarks.nearness import forecast


def test_a_forecast_continues_the_line_over_the_logarithm():
    assert forecast([(100, 0.4), (1_000, 0.5)], 10_000) == pytest.approx(0.6)


def test_a_forecast_is_the_least_squares_line_where_points_of_a_size_differ():
    assert forecast([(100, 0.3), (100, 0.5), (1_000, 0.5), (1_000, 0.5)], 10_000) == pytest.approx(0.6)
