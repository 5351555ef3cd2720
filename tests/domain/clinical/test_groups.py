"""Metrics of groups: of the group's admissions only, and none of groups so small that they identify someone."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from bertrelay.evaluation.statistics import resampled_weights
from domain.clinical import groups as groups_module
from domain.clinical.groups import confusion, groups_of, label_slices
from domain.clinical.metrics import Predicted, PredictedLabels, label_metrics


def drawn(groups, seed=0):
    """So many admissions of each group in random order: P, calibrated P, and outcomes, a third of them true."""
    names = np.repeat(list(groups), list(groups.values()))
    generator = np.random.default_rng(seed)
    outcomes = np.concatenate([np.arange(count) % 3 == 0 for count in groups.values()])
    order = generator.permutation(len(names))
    probabilities = generator.random(len(names))
    return pd.DataFrame({"insurance": names[order]}), probabilities, probabilities**2, outcomes[order]


def slices(groups, probability, calibrated, outcomes, subjects, seed=0):
    return groups_module.slices(groups, Predicted(subjects, outcomes, probability, calibrated, probability), seed)


def test_a_group_has_its_own_metrics_and_intervals_that_resample_its_subjects_with_all_their_admissions():
    groups, probabilities, calibrated, outcomes = drawn({"A": 60, "B": 90})
    subjects = np.arange(150) // 3 + 1000
    listed = slices(groups, probabilities, calibrated, outcomes, subjects, seed=5)
    assert [(part["group"], part["admissions"]) for part in listed] == [("A", 60), ("B", 90)]
    for part in listed:
        members = np.flatnonzero(groups["insurance"] == part["group"])
        true, raw, recalibrated = outcomes[members], probabilities[members], calibrated[members]
        metrics = part["metrics"]
        expected = {
            "auroc": roc_auc_score(true, raw),
            "auprc": average_precision_score(true, raw),
            "prevalence": true.mean(),
            "mean_calibrated": recalibrated.mean(),
            "observed_expected": true.sum() / recalibrated.sum(),
            "observed_expected_uncalibrated": true.sum() / raw.sum(),
        }
        assert {name: metrics[name] for name in expected} == pytest.approx(expected)
        (weights,) = resampled_weights(subjects[members], 5)
        resampled = {"prevalence": weights @ true / weights.sum(1)}
        resampled["observed_expected"] = weights @ true / (weights @ recalibrated)
        for name, values in resampled.items():
            bounds = metrics[f"{name}_low"], metrics[f"{name}_high"]
            assert bounds == pytest.approx(tuple(np.percentile(values, [2.5, 97.5])))


SMALL = [  # groups, of whom a third return, the names that are reported, and how many groups are not
    ({"A": 60, "B": 90, "rare": 27, "unique": 1}, ["A", "B"], 2),
    ({"A": 60, "B": 90, "rare": 20}, ["B"], 2),  # a single small group takes the next with it
    ({"A": 60, "B": 90, **{f"rare {number}": 3 for number in range(4)}}, ["B"], 5),  # of the rare ones four returned
]


@pytest.mark.parametrize(("sizes", "named", "suppressed"), SMALL)
def test_of_small_groups_neither_name_nor_size_is_reported_nor_left_to_a_subtraction(sizes, named, suppressed):
    groups, probabilities, calibrated, outcomes = drawn(sizes)
    listed = slices(groups, probabilities, calibrated, outcomes, np.arange(len(groups)))
    assert [part["group"] for part in listed] == [*named, None]
    assert listed[-1]["suppressed"] == suppressed and listed[-1]["admissions"] is None
    assert "rare" not in json.dumps(listed) and "unique" not in json.dumps(listed)
    hidden = ~groups["insurance"].isin(named).to_numpy()
    assert min(outcomes[hidden].sum(), (~outcomes[hidden]).sum()) >= 10


def test_labels_that_exclude_each_other_are_hidden_until_ten_admissions_have_one_of_them():
    labels = np.repeat(np.eye(4, dtype=bool), [60, 40, 3, 4], axis=0)  # (admissions, labels)
    probabilities = np.random.default_rng(0).random(labels.shape)
    listed = label_slices(
        "length-of-stay", ["a", "b", "c", "d"], PredictedLabels(np.arange(107), labels, probabilities, "multi-class")
    )
    assert [(part["group"], part["suppressed"]) for part in listed] == [("a", 0), (None, 3)]


def test_ages_and_lengths_fall_into_bands():
    characteristics = pd.DataFrame(
        {
            "sex": ["F", None, "M", "F"],
            "age": [18.0, 44.9, 91.0, None],
            "insurance": ["Medicare", "", None, "Medicare"],
            "race": ["WHITE"] * 4,
            "admission_type": ["URGENT"] * 4,
        }
    )
    grouped = groups_of(characteristics, [10, 500, 30, 40])
    assert grouped["sex"].tolist() == ["F", "unknown", "M", "F"]
    assert grouped["insurance"].tolist() == ["Medicare", "unknown", "unknown", "Medicare"]
    assert grouped["age"].tolist() == ["under 45", "under 45", "85 and over", "unknown"]
    assert grouped["note length"].tolist() == ["shortest quarter", "longest quarter", "second quarter", "third quarter"]
    assert "ethnicity" in grouped and "admission type" in grouped


# Of several labels


def test_without_a_label_that_differs_between_admissions_there_is_no_metric():
    nothing = PredictedLabels(np.arange(4), np.zeros((4, 2), bool), np.full((4, 2), 0.5), "multi-label")
    metrics = label_metrics(nothing)
    assert metrics["auroc_macro"] is None and metrics["auroc_micro"] is None and "auroc_macro_low" not in metrics


def table_of(rows):
    """Admissions with this confusion matrix: rows are true labels, columns predicted ones."""
    pairs = [
        (true, predicted) for true, row in enumerate(rows) for predicted, count in enumerate(row) for _ in range(count)
    ]
    true, predicted = np.array(pairs).T
    return PredictedLabels(np.arange(len(pairs)), np.eye(3)[true].astype(bool), np.eye(3)[predicted], "multi-class")


def test_a_row_with_a_small_count_is_hidden_and_never_alone():
    assert confusion(table_of([[40, 12, 0], [30, 55, 9], [0, 0, 90]])) == [None, None, [0, 0, 90]]
    assert confusion(table_of([[40, 1, 0], [30, 55, 9], [0, 0, 90]])) == [None, None, [0, 0, 90]]
    assert confusion(table_of([[4, 1, 0], [3, 5, 9], [1, 0, 9]])) == [None, None, None]
