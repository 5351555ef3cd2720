"""Mortality, length of stay and diagnoses: labels, training, and the notes that may not be used."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit, softmax
from sklearn.metrics import roc_auc_score
from synthetic_patients import stays, write_early_stays

from bertrelay.cache import Cache
from bertrelay.errors import RequestError
from bertrelay.stage import StageContext
from domain.clinical.aggregation import aggregate, aggregate_labels
from domain.clinical.model import one_vs_rest_log_odds
from domain.clinical.outcomes import group_of, labels_of, read_labelled_notes
from domain.clinical.predict import OutcomeScore, OutcomeScorer, admission_page
from domain.clinical.settings import (
    DIAGNOSES,
    LENGTH_OF_STAY,
    MORTALITY,
    READMISSION,
    ModelDescription,
    OutcomeSettings,
)
from domain.clinical.train import negative_log_likelihood, run_outcome

TRAINING = {"batch_items": 16, "learning_rate": 3e-3, "precision": "fp32", "dropout": 0.0}
CLASSES = ["under_3_days", "3_to_7_days", "over_7_days"]


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    return write_early_stays(tmp_path_factory.mktemp("clinic"), stays())


def settings(clinic, bert, task, **more):
    paths = {"base": str(bert), "notes": str(clinic / "notes"), "cohort": str(clinic / "cohort"), "task": task}
    return OutcomeSettings.model_validate({**paths, "chunking": {"max_tokens": 24}, **TRAINING, **more})


@pytest.fixture(scope="module")
def learnt(clinic, bert, tmp_path_factory):
    """A function from a task to the metrics and the folder of its training, which runs once."""
    results = {}

    def learn(task):
        if task not in results:
            folder = tmp_path_factory.mktemp(task)
            chosen = settings(clinic, bert, task, c="chosen", epochs=8 if task == "length-of-stay" else 4)
            metrics = run_outcome(chosen, StageContext(folder, Cache(folder / "cache")))
            results[task] = metrics, folder
        return results[task]

    return learn


# Labels


def test_three_days_and_seven_are_in_the_middle():
    days = np.array([0.5, 2.99, 3.0, 5.0, 7.0, 7.01, 40.0])
    names, labels = labels_of(LENGTH_OF_STAY, pd.DataFrame({"length_of_stay_days": days}), Path(), 0)
    assert names == tuple(CLASSES) and labels.argmax(1).tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert (labels.sum(1) == 1).all()


def test_a_label_that_is_missing_is_never_taken_for_true():
    for outcome, column in ((READMISSION, "readmitted"), (LENGTH_OF_STAY, "length_of_stay_days")):
        with pytest.raises(RequestError, match=f"expected {column} of every stay in cohort, found 1 of 2 without"):
            labels_of(outcome, pd.DataFrame({column: [1.0, np.nan]}), Path("cohort"), 0)


CODES = {
    9: {"4280": "428", "0389": "038", "486": "486", "250.00": "250", "V5861": "V58", "V10": "V10", " e8497 ": "E849"},
    10: {"I509": "I50", "I10": "I10", "V586XXA": "V58", "C7A010": "C7A", "S72141A": "S72", "E119": "E11"},
}
NO_CODES = {9: ["I509", "E11", "38", "428000", ""], 10: ["4280", "S72141AXX", "QZXNAME"], 11: ["4280"]}


def test_a_code_is_of_the_category_that_its_version_gives_it():
    for version, codes in CODES.items():
        assert [group_of(code, version) for code in codes] == [f"ICD-{version} {group}" for group in codes.values()]
    assert not any(group_of(code, version) for version, codes in NO_CODES.items() for code in codes)


def test_diagnoses_are_the_commonest_groups_of_train(clinic):
    notes = read_labelled_notes(clinic / "notes", clinic / "cohort", DIAGNOSES, 50)
    train, numbers = notes.is_in("train"), np.arange(240)
    labels = {"ICD-9 428": stays()["readmitted"].to_numpy(), "ICD-9 250": numbers % 2 == 1}
    labels["ICD-9 401"] = (numbers % 3 == 0) & train
    expected = sorted(labels, key=lambda name: (-labels[name][train].sum(), name))
    assert list(notes.names) == expected  # none is E878, which one stay has, or QZX, which all have
    for column, name in enumerate(expected):
        assert notes.labels[:, column].tolist() == labels[name].tolist()
    assert read_labelled_notes(clinic / "notes", clinic / "cohort", DIAGNOSES, 2).names == tuple(expected[:2])


def test_discharge_notes_are_refused_with_the_reason(tmp_path):
    write_early_stays(tmp_path, stays(40))
    about = tmp_path / "notes/notes.json"
    for description, message in (
        ('{"input": "discharge", "stays": "cohort"}', 'as a discharge summary leaks it; .*input = "early"'),
        ("", "as a discharge summary leaks it; .*found notes of input none named in notes.json"),
        ('{"input": "early", "stays": "cohort"}', r'all stays, those that end in death among them; .*stays = "all"'),
    ):
        about.write_text(description)
        with pytest.raises(RequestError, match=f"notes: mortality is predicted f.*{message}"):
            read_labelled_notes(tmp_path / "notes", tmp_path / "cohort", MORTALITY)


@pytest.mark.parametrize(
    ("values", "others"),
    [
        (["yes", "no", "no", ""], "4 of 4 otherwise: 2 × 'no', 1 × 'yes', 1 × ''"),
        ([0, 1, 2, 2], "2 of 4 otherwise: 2 × 2"),
        ([True, "false", "Zoe wept", "Zoe wept"], "3 of 4 otherwise: 2 × other text, 1 × 'false'"),
        ([0.0, 1.0, 0.5, -1.0], "2 of 4 otherwise: 1 × 0.5, 1 × -1.0"),
    ],
)
def test_only_booleans_and_0_and_1_are_labels_and_no_text_of_a_patient_is_shown(values, others):
    stays = pd.DataFrame({"readmitted": pd.Series(values, dtype=object)})
    with pytest.raises(
        RequestError, match=rf"expected readmitted in .* as booleans, or 0 and 1, found {others}"
    ) as error:
        labels_of(READMISSION, stays, Path("cohort"), 0)
    assert "Zoe" not in str(error.value)


@pytest.mark.parametrize("values", [[True, False], [1, 0], [1.0, 0.0], [np.bool_(True), 0]])
def test_booleans_and_0_and_1_are_the_labels_they_are(values):
    assert labels_of(READMISSION, pd.DataFrame({"readmitted": values}), Path(), 0)[1].tolist() == [[True], [False]]


@pytest.mark.parametrize("days", [["3", "5"], [1.0, -0.5]])
def test_a_length_of_stay_that_is_no_number_of_days_is_refused(days):
    with pytest.raises(RequestError, match=r"expected length_of_stay_days .* as numbers from 0"):
        labels_of(LENGTH_OF_STAY, pd.DataFrame({"length_of_stay_days": days}), Path(), 0)


def test_what_cannot_be_trained_on_is_reported(tmp_path):
    table = stays(40)
    write_early_stays(tmp_path, table.assign(readmitted=table["readmitted"] & (table["split"] != "validation")))
    notes, cohort = tmp_path / "notes", tmp_path / "cohort"
    with pytest.raises(RequestError, match="with 'died in hospital' and without in validation, found 0 of 10"):
        read_labelled_notes(notes, cohort, MORTALITY)
    with pytest.raises(RequestError, match="with 'over 7 days' and without in validation, found 0 of 10"):
        read_labelled_notes(notes, cohort, LENGTH_OF_STAY)
    read_labelled_notes(notes, cohort, DIAGNOSES)  # for one label that differs between stays is enough
    file = cohort / "characteristics.parquet"
    characteristics = pd.read_parquet(file)
    characteristics.assign(diagnoses=[[{"code": "none", "version": 9}]] * 40).to_parquet(file)
    with pytest.raises(RequestError, match="found none that ten stays of train have"):
        read_labelled_notes(notes, cohort, DIAGNOSES)
    characteristics.assign(diagnoses=None).to_parquet(file)
    with pytest.raises(RequestError, match=r"expected diagnoses in .*found none\. Put the table DIAGNOSES_ICD"):
        read_labelled_notes(notes, cohort, DIAGNOSES)


# What is learnt


def test_the_negative_log_likelihood_is_that_of_each_kind_written_out():
    logits, labels = torch.tensor([[2.0, -1.0, 0.5]]), torch.tensor([[0.0, 0.0, 1.0]])
    losses = negative_log_likelihood(logits, labels, "multi-class")
    assert losses.tolist() == pytest.approx([-np.log(softmax(logits.numpy())[0, 2])])
    losses = negative_log_likelihood(logits, labels, "multi-label")
    likelihoods = [1 - expit(2.0), 1 - expit(-1.0), expit(0.5)]
    assert losses.tolist() == pytest.approx([-np.log(likelihoods).sum()])


def test_the_logistic_of_a_label_against_the_rest_is_the_softmax():
    logits = np.random.default_rng(0).normal(size=(50, 3)) * 4
    assert expit(one_vs_rest_log_odds(logits)) == pytest.approx(softmax(logits, axis=1))


def test_p_of_each_label_is_the_formulas_and_those_of_classes_add_up_to_one():
    generator = np.random.default_rng(0)
    owners, chunks = generator.integers(0, 9, 80), generator.random((80, 3))
    labels = ModelDescription(task="diagnoses", labels=["a", "b", "c"], c=3.0)
    aggregated = aggregate_labels(chunks, owners, 9, labels)
    for label in range(3):
        assert aggregated[:, label] == pytest.approx(aggregate(chunks[:, label], owners, 9, c=3.0))
    classes = aggregate_labels(chunks, owners, 9, labels.model_copy(update={"task": "length-of-stay"}))
    assert classes == pytest.approx(aggregated / aggregated.sum(1, keepdims=True))


def scores_of(folder, split="test"):
    scores = pd.read_parquet(folder / "scores.parquet")
    return scores[scores["split"] == split]


def test_length_of_stay_is_evaluated_by_auroc_and_accuracy(learnt):
    metrics, folder = learnt("length-of-stay")
    scores = scores_of(folder)
    probabilities = scores[[f"probability/{label}" for label in CLASSES]].to_numpy()
    true = scores[CLASSES].to_numpy().argmax(1)
    assert probabilities.sum(1) == pytest.approx(np.ones(60))
    assert metrics["auroc_macro"] == pytest.approx(roc_auc_score(true, probabilities, multi_class="ovr"))
    assert metrics["accuracy"] == pytest.approx((probabilities.argmax(1) == true).mean())
    assert metrics["accuracy_low"] < metrics["accuracy"] < metrics["accuracy_high"]
    assert roc_auc_score(scores["over_7_days"], scores["probability/over_7_days"]) > 0.65  # the others are chance
    assert {"accuracy/tfidf", "auroc_macro/note_length_low"} <= metrics.keys() and "auroc" not in metrics
    confusion = json.loads((folder / "confusion.json").read_text())
    assert confusion["labels"] == CLASSES and len(confusion["rows"]) == 3


def test_diagnoses_are_evaluated_over_those_that_can_be(learnt):
    metrics, folder = learnt("diagnoses")
    assert (metrics["labels"], metrics["labels_left_out"]) == (3, 1)  # 401 is in train alone
    scores = scores_of(folder)
    names = ["ICD-9 428", "ICD-9 250", "ICD-9 401"]
    labels, probabilities = scores[names].to_numpy(), scores[[f"probability/{name}" for name in names]].to_numpy()
    assert metrics["auroc_macro"] == pytest.approx(roc_auc_score(labels[:, :2], probabilities[:, :2], average="macro"))
    assert metrics["auroc_micro"] == pytest.approx(roc_auc_score(labels, probabilities, average="micro"))
    assert "accuracy" not in metrics
    assert roc_auc_score(scores["ICD-9 428"], scores["probability/ICD-9 428"]) > 0.65
    assert metrics["auroc_micro_low"] < metrics["auroc_micro"] < metrics["auroc_micro_high"]
    listed = json.loads((folder / "slices.json").read_text())["slices"]
    assert {part["group"] for part in listed} >= {None} and all("401" not in str(part["group"]) for part in listed)


# Scoring


@pytest.mark.parametrize("task", ["length-of-stay", "diagnoses"])
def test_scores_of_python_are_those_that_the_stage_wrote(learnt, task):
    _, folder = learnt(task)
    scores = scores_of(folder).set_index("hadm_id")
    table = stays().set_index("hadm_id").loc[scores.index].reset_index()
    scorer = OutcomeScorer.load(folder / "model")
    scored = scorer.score(table, cleaned=True, precision="fp32").set_index("hadm_id")
    columns = [name for name in scores if name.startswith("probability")]
    assert columns and scored[columns].to_numpy() == pytest.approx(scores[columns].to_numpy(), abs=1e-4)
    assert scored["n_chunks"].tolist() == scores["n_chunks"].tolist()
    likeliest = scores[columns].idxmax(axis=1).str.removeprefix("probability/")
    assert scored["label"].tolist() == likeliest.tolist() and "alarm" not in scored
    for score in scorer.score_texts(table["text"].tolist()[:12], precision="fp32"):
        assert score.probability == max(score.by_label) and score.calibrated is None
        assert sum(chunk.share for chunk in score.chunks) == pytest.approx(score.probability)
    assert scorer.score_texts([""]) == [OutcomeScore(reason="no text")]


def test_the_page_of_several_labels_shows_the_likeliest(learnt):
    scorer = OutcomeScorer.load(learnt("length-of-stay")[1] / "model")
    shown = admission_page(scorer.explain(stays(1)["text"][0]), scorer.model.description)
    assert "of how long the stay lasts" in shown and all(label.replace("_", " ") in shown for label in CLASSES)
    assert "No probability" in admission_page(scorer.explain(""), scorer.model.description)


def test_which_notes_a_model_was_trained_on_is_recorded_and_that_they_were_early_is_said(learnt, tmp_path, capsys):
    folder = learnt("diagnoses")[1] / "model"
    about = json.loads((folder / "outcome.json").read_text())
    assert about["input"] == "early"
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for changes, messages in (
        ({}, 1),
        ({"task": "readmission"}, 1),
        ({"task": "readmission", "input": "discharge"}, 0),
    ):
        (tmp_path / "outcome.json").write_text(json.dumps(about | changes))
        OutcomeScorer.load(tmp_path)
        assert capsys.readouterr().err.count("score early notes") == messages
