"""The best spans beside the slow way: every span of every window, one by one."""

import numpy as np
import pytest
import torch
from torch import Tensor

from domain.biomedical.qa.answerer import CandidateSpans, NBest, n_best, spans_in_windows
from domain.biomedical.qa.metrics import best_threshold

Listed = list[tuple[int, int, float]]


def drawn(generator: np.random.Generator, has_ties: bool) -> Tensor:
    """Scores of 3 windows of 9 subwords: a first one, two of a question, the text's, and behind it padding."""
    shape = (3, 9, 2)
    values = generator.integers(0, 3, shape) if has_ties else generator.normal(size=shape)
    scores = torch.from_numpy(values.astype(np.float32))
    scores[:, 1:3] = -torch.inf
    for window, width in enumerate(generator.integers(4, 10, 3)):
        scores[window, width:] = -torch.inf
    return scores


def listed(scores: Tensor, longest: int) -> Listed:
    """Every span of one window with its score."""
    rows = scores.tolist()
    return [
        (start, end + 1, float(np.float32(rows[start][0]) + np.float32(rows[end][1])))
        for start in range(1, len(rows))
        for end in range(start, min(start + longest, len(rows)))
        if rows[start][0] > -np.inf and rows[end][1] > -np.inf
    ]


def best_first(spans: Listed) -> Listed:
    return sorted(spans, key=lambda span: (-span[2], span[0], span[1]))


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize(("longest", "top"), [(1, 4), (3, 1), (3, 5), (50, 100)])
def test_the_best_spans_are_the_best_of_all(has_ties: bool, longest: int, top: int) -> None:
    for seed in range(20):
        generator = np.random.default_rng(seed)
        scores, moved = drawn(generator, has_ties), np.array([0, 2, 0])  # the second window begins 2 subwords later
        owners = np.array([0, 0, 1])  # the question of each window
        found = spans_in_windows(scores, longest, top)
        shift = moved[found.owners][:, None]
        places = np.hstack([owners[found.owners][:, None], found.places[:, 1:] + shift])
        of_questions = CandidateSpans(owners[found.owners], places, found.scores)
        nbest = n_best(of_questions, np.zeros(2), top)
        for question in range(2):
            known: dict[tuple[int, int], float] = {}
            for window in np.flatnonzero(owners == question):
                for start, end, score in listed(scores[window], longest):
                    place = (start + int(moved[window]), end + int(moved[window]))
                    known[place] = max(score, known.get(place, -np.inf))
            expected = best_first([(*place, score) for place, score in known.items()])[:top]
            told = [
                (*place[1:], score)
                for place, score in zip(nbest.places[question].tolist(), nbest.scores[question].tolist(), strict=True)
            ]
            assert told[: len(expected)] == expected
            assert all(span == (-1, -1, -np.inf) for span in told[len(expected) :])


def nbest_of(scores: list[list[float]], nulls: list[float]) -> NBest:
    places = [[0, start, start + 1] for start in range(len(scores[0]))]
    return NBest(np.array([places] * len(scores)), np.array(scores), np.array(nulls))


def test_no_answer_stands_where_its_score_less_the_threshold_puts_it() -> None:
    nbest = nbest_of([[3.0, 1.0], [3.0, 1.0], [3.0, -np.inf], [-np.inf, -np.inf]], [2.5, 5.0, 4.0, np.inf])
    choices = nbest.with_no_answer(1.0)
    assert choices.places[..., 1].tolist() == [[0, -1, 1], [-1, 0, 1], [0, -1, 1], [-1, 0, 1]]
    assert choices.scores[:, :2].tolist() == [[3.0, 1.5], [4.0, 3.0], [3.0, 3.0], [0.0, -np.inf]]
    weights = np.exp([3.0 / 2, 1.5 / 2, 1.0 / 2])
    np.testing.assert_allclose(choices.probabilities(2.0)[0], weights / weights.sum())
    np.testing.assert_allclose(choices.probabilities(2.0)[3], [1, 0, 0])


def test_without_a_threshold_a_text_that_was_read_always_answers() -> None:
    choices = nbest_of([[1.0, 0.0], [-np.inf, -np.inf]], [9.0, np.inf]).with_no_answer(None)
    assert choices.places[..., 1].tolist() == [[0, 1, -1], [-1, 0, 1]]
    np.testing.assert_allclose(choices.probabilities(1.0)[:, 0], [1 / (1 + np.exp(-1)), 1])


def test_the_threshold_is_the_best_there_is() -> None:
    for seed in range(50):
        generator = np.random.default_rng(seed)
        gaps = generator.integers(-4, 4, 12).astype(float)  # equal ones among them
        gaps[:2] = np.inf
        answered, unanswered = generator.random(12), generator.integers(0, 2, 12).astype(float)

        def total(threshold: float) -> float:
            return float(np.where(gaps <= threshold, answered, unanswered).sum())  # noqa: B023

        candidates = [*(gaps[2:] + 0.5), gaps[2:].min() - 1]
        assert total(best_threshold(gaps, answered, unanswered)) == pytest.approx(max(map(total, candidates)))
    assert best_threshold(np.array([np.inf]), np.ones(1), np.zeros(1)) == 0.0


def test_nothing_read_gives_nothing() -> None:
    none = CandidateSpans(np.zeros(0, np.int64), np.zeros((0, 3), np.int64), np.zeros(0))
    found = n_best(none, np.full(2, np.inf), 3)
    assert found.scores.shape == (2, 3)
    assert not np.isfinite(found.scores).any()
    assert (found.gaps == np.inf).all()
