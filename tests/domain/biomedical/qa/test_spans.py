"""The best spans against an enumeration of all, no answer among them, and spans of several contexts."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch

from domain.biomedical.qa.spans import Spans, allowed_pairs, n_best, pool_spans, probabilities, top_with_ties


def drawn(generator, has_ties):
    """Scores of 3 windows of 9 subwords: a first one, two of a question, the text's, and behind it padding."""
    shape = (3, 9, 2)
    values = generator.integers(0, 3, shape) if has_ties else generator.normal(size=shape)
    scores = values.astype(np.float32)
    scores[:, 1:3] = -np.inf
    for window, width in enumerate(generator.integers(4, 10, 3)):
        scores[window, width:] = -np.inf
    return scores


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize(("longest", "top"), [(1, 4), (3, 1), (3, 5), (50, 100)])
def test_the_best_spans_are_the_best_of_all(has_ties, longest, top):
    """Scores of two windows of one question, the second 2 subwords later, and of one of another question."""
    questions, moved = np.array([0, 0, 1]), np.array([0, 2, 0])
    for seed in range(10):
        scores = drawn(np.random.default_rng(seed), has_ties)
        windows, firsts, lasts, values = top_with_ties(allowed_pairs(torch.from_numpy(scores), longest), top)
        starts, ends = firsts + moved[windows], lasts + 1 + moved[windows]
        ours = n_best(questions[windows], starts, ends, values, [0.5, None], top)
        best = [{}, {}]
        for rows, question, shift in zip(scores, questions.tolist(), moved.tolist(), strict=True):
            for start, end in combinations_with_replacement(range(1, 9), 2):
                score, position = float(rows[start, 0] + rows[end, 1]), (start + shift, end + 1 + shift)
                if end - start < longest and score > -np.inf:
                    best[question][position] = max(score, best[question].get(position, -np.inf))
        for spans, every, no_answer in zip(ours, best, [0.5, None], strict=True):
            expected = sorted(((*span, score) for span, score in every.items()), key=lambda span: (-span[2], span))
            assert list(zip(*spans[1:4], strict=True)) == expected[:top]
            assert (set(spans.contexts), spans.no_answer) == ({0}, no_answer)


def test_pairs_of_subwords_by_hand():
    scores = torch.tensor([[[9.0, 9.0], [1.0, 3.0], [2.0, 5.0]]])
    assert allowed_pairs(scores, 2).tolist() == [[[-np.inf] * 2, [4.0, 6.0], [7.0, -np.inf]]]
    windows, firsts, lasts, values = top_with_ties(allowed_pairs(scores, 2), 2)
    assert (windows.tolist(), firsts.tolist(), lasts.tolist(), values.tolist()) == ([0, 0], [1, 2], [2, 2], [6.0, 7.0])


def spans_of(scores, no_answer):
    return Spans([0] * len(scores), list(range(len(scores))), [n + 1 for n in range(len(scores))], scores, no_answer)


@pytest.mark.parametrize(
    ("scores", "no_answer", "threshold", "starts", "ranked"),
    [
        ([3.0, 1.0], 2.5, 1.0, [0, -1, 1], [3.0, 1.5, 1.0]),
        ([3.0, 1.0], 5.0, 1.0, [-1, 0, 1], [4.0, 3.0, 1.0]),
        ([3.0, 1.0], 1.5, 1.0, [0, 1, -1], [3.0, 1.0, 0.5]),
        ([3.0], 4.0, 1.0, [0, -1], [3.0, 3.0]),  # of equals the span
        ([], 4.0, 1.0, [-1], [0.0]),  # nothing to choose
        ([], None, None, [-1], [0.0]),
        ([1.0, 0.0], 9.0, None, [0, 1], [1.0, 0.0]),
    ],
)
def test_no_answer_stands_where_its_score_less_the_threshold_puts_it(scores, no_answer, threshold, starts, ranked):
    spans = spans_of(scores, no_answer).with_no_answer(threshold)
    assert (spans.starts, spans.scores) == (starts, ranked)
    assert [(context, end) for context, end in zip(spans.contexts, spans.ends, strict=True)] == [
        (-1, -1) if start < 0 else (0, start + 1) for start in starts
    ]
    weights = np.exp(np.array(ranked) / 2)
    (chances,) = probabilities([spans], 2.0)
    np.testing.assert_allclose(chances[: len(ranked)], weights / weights.sum())
    assert not chances[len(ranked) :].any()


def test_spans_of_several_contexts_are_ranked_together_and_no_answer_is_as_unlikely_as_anywhere():
    first, nothing = spans_of([3.0, 1.0], 2.0), spans_of([], None)
    pooled = pool_spans([nothing, first, spans_of([3.0, 2.0], 4.0), spans_of([], 1.0)])
    assert pooled == Spans([1, 2, 2, 1], [0, 0, 1, 1], [1, 1, 2, 2], [3.0, 3.0, 2.0, 1.0], 1.0)
    assert [pooled.text(rank, ["", "ab", "cd", ""]) for rank in range(4)] == ["a", "c", "d", "b"]
    assert pool_spans([nothing, nothing]) == nothing
    assert len(pool_spans([spans_of([0.0] * 20, None)] * 2).scores) == 20
