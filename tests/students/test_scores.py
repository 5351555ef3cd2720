import numpy as np
import pytest

from students.metrics import mse, mse_metrics, translation_metrics


def at(*degrees: float, length: float = 1.0) -> np.ndarray:
    turned = np.radians(degrees)
    return (length * np.stack([np.cos(turned), np.sin(turned)], axis=1)).astype(np.float32)


def test_translation_accuracy_in_both_directions_by_hand() -> None:
    english, german = at(0, 40, 90, 180), at(10, 80, 85, 100)
    # From English 0 finds 10, 40 finds 10 (a miss), 90 finds 85, 180 finds 100; from German 10 finds 0, 85 finds 90,
    # and 80 and 100 find 90, which is a miss.
    assert translation_metrics("de", english, german, intervals=False) == {
        "translation_accuracy/en-de": 0.75,
        "translation_accuracy/de-en": 0.5,
    }


def test_of_a_tie_the_first_row_is_found_so_one_of_two_equal_sentences_is_a_miss() -> None:
    english, korean = at(0, 50, 0), at(0, 50, 0)
    assert translation_metrics("ko", english, korean, intervals=False) == {
        "translation_accuracy/en-ko": pytest.approx(2 / 3),
        "translation_accuracy/ko-en": pytest.approx(2 / 3),
    }


def test_mse_is_the_mean_over_sentences_and_dimensions() -> None:
    student, teacher = np.array([[1, 2], [3, 4]], np.float32), np.array([[1, 0], [0, 4]], np.float32)
    assert mse(student, teacher) == (0 + 4 + 9 + 0) / 4
    assert mse_metrics("de", student, teacher, variance=2.6) == {
        "mse/de": 3.25,
        "mse_relative/de": pytest.approx((4 + 9) / 2 / 2.6),  # mean squared distance, in units of the variance
    }


def test_the_mean_vector_scores_1_and_the_teacher_0() -> None:
    teacher = np.random.default_rng(0).normal(3, 2, (50, 6)).astype(np.float32)
    variance = float(np.sum(np.var(teacher.astype(np.float64), axis=0)))
    mean = np.broadcast_to(teacher.mean(axis=0), teacher.shape)
    assert mse_metrics("de", mean, teacher, variance)["mse_relative/de"] == pytest.approx(1)
    assert mse_metrics("de", teacher, teacher, variance)["mse_relative/de"] == 0
