"""Figures of several labels against scikit-learn, resample by resample, and counts that may not be told."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

from bertrelay.evaluation.statistics import resampled_weights
from domain.clinical.evaluation import PredictedLabels, confusion, label_metrics, label_slices


def classes(count=400, seed=0):
    """One of three labels is true of each admission; probabilities that know something of it, ties among them."""
    generator = np.random.default_rng(seed)
    true = generator.integers(0, 3, count)
    probabilities = np.round(generator.random((count, 3)) + 0.5 * np.eye(3)[true], 1)
    probabilities /= probabilities.sum(1, keepdims=True)
    return PredictedLabels(np.arange(count) // 2, np.eye(3)[true].astype(bool), probabilities, "multi-class")


def groups(count=300, labels=6, seed=1):
    generator = np.random.default_rng(seed)
    risk = np.round(generator.random((count, labels)), 1)
    return PredictedLabels(np.arange(count) // 3, generator.random((count, labels)) < risk, risk, "multi-label")


def test_classes_are_evaluated_one_against_the_rest_as_scikit_learn_does():
    predicted = classes()
    found = label_metrics(predicted)
    true = predicted.labels.argmax(1)
    expected = roc_auc_score(true, predicted.probabilities, multi_class="ovr", average="macro")
    assert found["auroc_macro"] == pytest.approx(expected)
    assert found["accuracy"] == pytest.approx(accuracy_score(true, predicted.probabilities.argmax(1)))
    assert "auroc_micro" not in found and found["labels"] == 3 and found["labels_left_out"] == 0
    assert found["auroc_macro_low"] < found["auroc_macro"] < found["auroc_macro_high"]


def test_labels_that_may_be_true_together_have_a_macro_and_a_micro_auroc():
    predicted = groups()
    found = label_metrics(predicted)
    for average in ("macro", "micro"):
        expected = roc_auc_score(predicted.labels, predicted.probabilities, average=average)
        assert found[f"auroc_{average}"] == pytest.approx(expected)
    assert "accuracy" not in found


def test_intervals_are_those_of_subjects_drawn_with_all_their_admissions():
    predicted = groups(120, 2)
    found = label_metrics(predicted, seed=4)
    macro, micro = [], []
    for weights in np.concatenate(list(resampled_weights(predicted.subjects, 4))):
        rows = np.repeat(np.arange(120), weights.astype(int))
        macro.append(roc_auc_score(predicted.labels[rows], predicted.probabilities[rows], average="macro"))
        micro.append(roc_auc_score(predicted.labels[rows], predicted.probabilities[rows], average="micro"))
    for name, drawn in (("auroc_macro", macro), ("auroc_micro", micro)):
        assert [found[f"{name}_low"], found[f"{name}_high"]] == pytest.approx(np.percentile(drawn, [2.5, 97.5]))


def test_a_label_true_of_none_or_of_all_is_left_out_of_the_mean_and_counted():
    predicted = groups()
    predicted.labels[:, 1], predicted.labels[:, 4] = False, True
    found = label_metrics(predicted)
    known = [0, 2, 3, 5]
    expected = roc_auc_score(predicted.labels[:, known], predicted.probabilities[:, known], average="macro")
    assert found["auroc_macro"] == pytest.approx(expected)
    assert (found["labels"], found["labels_left_out"]) == (6, 2)


def test_without_a_label_that_differs_between_admissions_there_is_no_metric():
    nothing = PredictedLabels(np.arange(4), np.zeros((4, 2), bool), np.full((4, 2), 0.5), "multi-label")
    found = label_metrics(nothing)
    assert found["auroc_macro"] is None and found["auroc_micro"] is None and "auroc_macro_low" not in found


def table_of(rows):
    """Admissions that give this table of what was true (rows) and what was told."""
    pairs = [(true, told) for true, row in enumerate(rows) for told, count in enumerate(row) for _ in range(count)]
    true, told = np.array(pairs).T
    return PredictedLabels(np.arange(len(pairs)), np.eye(3)[true].astype(bool), np.eye(3)[told], "multi-class")


def test_a_table_of_large_counts_is_reported_and_zeros_are_no_small_ones():
    rows = [[40, 12, 0], [30, 55, 10], [0, 0, 90]]
    assert confusion(table_of(rows)) == rows


def test_a_row_with_a_small_count_is_hidden_and_never_alone():
    assert confusion(table_of([[40, 12, 0], [30, 55, 9], [0, 0, 90]])) == [None, None, [0, 0, 90]]
    assert confusion(table_of([[40, 1, 0], [30, 55, 9], [0, 0, 90]])) == [None, None, [0, 0, 90]]
    assert confusion(table_of([[4, 1, 0], [3, 5, 9], [1, 0, 9]])) == [None, None, None]


def test_small_labels_are_counted_and_not_named():
    predicted = groups(300, 4)
    predicted.labels[:, 2], predicted.labels[:, 3] = np.arange(300) < 9, np.arange(300) > 5
    told = label_slices("diagnoses", ["A", "B", "C", "D"], predicted)
    assert [(each["group"], each["suppressed"]) for each in told] == [("A", 0), ("B", 0), (None, 2)]
    assert told[0]["admissions"] == predicted.labels[:, 0].sum()
    expected = roc_auc_score(predicted.labels[:, 1], predicted.probabilities[:, 1])
    assert told[1]["figures"]["auroc"] == pytest.approx(expected)
