"""A trained model on other notes: metrics, calibration, thresholds and the model of `domain.outcome-evaluate`."""

import json

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score
from synthetic_patients import stays, write_early_stays, write_stays

from bertrelay.cache import Cache
from bertrelay.errors import RequestError
from bertrelay.stage import StageContext
from domain.clinical.calibration import Recalibration, calibrated, fit_recalibration
from domain.clinical.evaluate import evaluate_outcome
from domain.clinical.outcomes import Resplit
from domain.clinical.predict import OutcomeScorer
from domain.clinical.settings import OutcomeEvaluateSettings, OutcomeSettings, ReadmissionSettings
from domain.clinical.train import run, run_outcome

TRAINING = {"epochs": 4, "batch_items": 16, "learning_rate": 3e-3, "precision": "fp32", "dropout": 0.0}
TRAINING |= {"chunking": {"max_tokens": 24}}


def folders(folder):
    return {"notes": str(folder / "notes"), "cohort": str(folder / "cohort")}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The hospital that the model is trained on."""
    return write_stays(tmp_path_factory.mktemp("home"), stays())


@pytest.fixture(scope="module")
def trained(home, bert, tmp_path_factory):
    """The metrics of a training, and the folder it wrote."""
    output = tmp_path_factory.mktemp("trained")
    values = {"base": str(bert), "alarm_precision": 0.6, "permutations": 0, **TRAINING, **folders(home)}
    return run(ReadmissionSettings.model_validate(values), StageContext(output, Cache(output / "cache"))), output


@pytest.fixture(scope="module")
def other_hospital(tmp_path_factory):
    """A hospital in which three of four returns did not happen, without splits, and with notes of several weeks."""
    table = stays(4_000, seed=9)
    table = table[~table["readmitted"] | (np.arange(len(table)) % 4 == 0)].reset_index(drop=True)
    folder = write_stays(tmp_path_factory.mktemp("other"), table)
    for file in (folder / "cohort/cohort.parquet", folder / "notes/notes.parquet"):
        pd.read_parquet(file).drop(columns="split").to_parquet(file)
    return folder


def evaluate(trained, hospital, output, **more):
    output.mkdir(exist_ok=True)
    values = {"model": str(trained[1] / "model"), "precision": "fp32", **folders(hospital), **more}
    return evaluate_outcome(OutcomeEvaluateSettings.model_validate(values), output)


@pytest.fixture(scope="module")
def evaluated(trained, other_hospital, tmp_path_factory):
    """The metrics of the model at the other hospital, its scores by split, and the folder written."""
    output = tmp_path_factory.mktemp("evaluated")
    metrics = evaluate(trained, other_hospital, output, save=True)
    return metrics, dict(tuple(pd.read_parquet(output / "scores.parquet").groupby("split"))), output


def test_metrics_are_those_of_scikit_learn_from_the_probabilities_that_are_written(evaluated):
    metrics, scores, _ = evaluated
    test = scores["test"]
    outcomes = test["readmitted"].to_numpy()
    expected = {
        "auroc": roc_auc_score(outcomes, test["probability"]),
        "auprc": average_precision_score(outcomes, test["probability"]),
        "prevalence": outcomes.mean(),
    }
    for ending, column in (("", "recalibrated"), ("_uncalibrated", "calibrated")):
        expected[f"brier{ending}"] = brier_score_loss(outcomes, test[column])
        expected[f"observed_expected{ending}"] = outcomes.sum() / test[column].sum()
        log_odds = logit(test[column].to_numpy())[:, None]
        fitted = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12).fit(log_odds, outcomes)
        expected[f"calibration_slope{ending}"] = fitted.coef_[0, 0]
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    for name in expected:
        assert metrics[f"{name}_low"] < metrics[name] < metrics[f"{name}_high"]


def test_recalibration_on_half_of_another_hospital_calibrates_the_other_half(trained, evaluated):
    metrics, scores, _ = evaluated
    assert metrics["prevalence"] == pytest.approx(0.2, abs=0.02)
    assert trained[0]["prevalence"] > 0.4
    assert metrics["observed_expected_uncalibrated_high"] < 0.6
    assert metrics["observed_expected"] == pytest.approx(1, abs=0.1)
    assert metrics["observed_expected_low"] < 1 < metrics["observed_expected_high"]
    assert metrics["brier"] < metrics["brier_uncalibrated"]
    assert metrics["admissions/test"] == len(scores["test"])
    assert len(scores["validation"]) == pytest.approx(len(scores["test"]), rel=0.15)
    assert "admissions/train" not in metrics


def test_alarms_are_those_of_the_trained_threshold_and_of_one_chosen_here(trained, evaluated):
    metrics, scores, output = evaluated
    assert metrics["threshold"] == trained[0]["threshold"]
    curves = json.loads((output / "curves.json").read_text())
    trained_with, chosen = curves["alarms"]
    assert trained_with["minimum"] is None and trained_with["alarms"] == trained[0]["threshold_alarms"]
    assert chosen["threshold"] == metrics["threshold/recalibrated"] > metrics["threshold"]
    for column, threshold in (("", trained_with["threshold"]), ("/recalibrated", chosen["threshold"])):
        test = scores["test"]
        raised = test["probability"] >= threshold
        assert metrics[f"alarms{column}"] == raised.sum()
        assert metrics[f"alarm_precision{column}"] == pytest.approx(test[raised]["readmitted"].mean())
        assert metrics[f"alarm_recall{column}"] == pytest.approx(
            test[test["readmitted"]]["probability"].ge(threshold).mean()
        )
    raised = scores["validation"]["probability"] >= chosen["threshold"]
    assert (raised.sum(), scores["validation"][raised]["readmitted"].sum()) == (chosen["alarms"], chosen["right"])


def test_the_model_that_is_saved_gives_the_recalibrated_probabilities(trained, evaluated, other_hospital):
    metrics, scores, output = evaluated
    of_both = [load_file(folder / "model/model.safetensors") for folder in (trained[1], output)]
    assert all((of_both[0][name] == of_both[1][name]).all() for name in of_both[0])
    scorer = OutcomeScorer.load(output / "model", device="cpu")
    notes = pd.read_parquet(other_hospital / "notes/notes.parquet")[:50]
    scores_again = scorer.score(notes, cleaned=True, precision="fp32").set_index("hadm_id")
    expected = pd.concat(scores.values()).set_index("hadm_id").loc[scores_again.index]
    assert scores_again["calibrated"].to_numpy() == pytest.approx(expected["recalibrated"].to_numpy(), abs=1e-5)
    assert scorer.model.description.prevalence == scores["validation"]["readmitted"].mean()
    assert scorer.model.description.threshold == metrics["threshold/recalibrated"]


def test_groups_have_calibration_before_and_after_the_recalibration(evaluated):
    slices = json.loads((evaluated[2] / "slices.json").read_text())["slices"]
    women = next(part["metrics"] for part in slices if part["group"] == "F")
    assert women["observed_expected_uncalibrated"] < 0.6 < women["observed_expected"]
    assert "QZX" not in json.dumps(slices)  # groups of one subject each


def test_on_the_notes_of_its_training_a_model_gets_the_metrics_that_its_training_reported(trained, home, tmp_path):
    metrics = evaluate(trained, home, tmp_path, split="cohort")
    of_training = trained[0]
    for name in ("auroc", "auprc", "rp80", "alarms", "alarm_precision", "brier", "calibration_slope", "lost_chunks"):
        names = [metric for metric in (name, f"{name}_low", f"{name}_high") if of_training.get(metric) is not None]
        expected = {metric: of_training[metric] for metric in names}
        assert {metric: metrics.get(metric) for metric in names} == pytest.approx(expected, rel=1e-5)
    assert metrics["brier_uncalibrated"] == metrics["brier"]  # there is nothing left to recalibrate
    assert metrics["threshold/recalibrated"] == pytest.approx(metrics["threshold"])
    scores, expected = (pd.read_parquet(folder / "scores.parquet") for folder in (tmp_path, trained[1]))
    pd.testing.assert_frame_equal(scores.drop(columns="recalibrated"), expected)
    assert not (tmp_path / "model").exists()


def test_without_validation_all_admissions_evaluate_the_model_as_it_is(trained, home, tmp_path):
    metrics = evaluate(trained, home, tmp_path, validation_share=0)
    scores = pd.read_parquet(tmp_path / "scores.parquet")
    assert metrics["admissions/test"] == len(scores) == 240
    assert metrics["brier"] == pytest.approx(brier_score_loss(scores["readmitted"], scores["calibrated"]))
    assert "recalibrated" not in scores and not [name for name in metrics if name.endswith("calibrated")]
    with pytest.raises(ValidationError, match="save: without effect, because validation_share is 0"):
        evaluate(trained, home, tmp_path, validation_share=0, save=True)


def test_a_split_by_subject_depends_on_subject_and_key_alone():
    subjects = pd.Series([f"{number // 2}" for number in range(4_000)])
    half = Resplit(0.5, "a").of_subjects(subjects)
    assert half[::2] == half[1::2]
    assert half.count("validation") == pytest.approx(2_000, rel=0.1)
    assert Resplit(0.5, "a").of_subjects(subjects[100:]) == half[100:]
    assert Resplit(0.5, "b").of_subjects(subjects) != half


@pytest.mark.parametrize(
    ("file", "facts", "message"),
    [
        ("notes/notes.json", {"input": "early"}, r"found in .* input 'early' \(the model's: 'discharge'\)"),
        ("notes/notes.json", {"input": "discharge", "cut": "b"}, r"cut 'b' \(the model's: 'a'\)"),
        ("cohort/cohort.json", {"window_days": 90.0}, r"window_days 90\.0 \(the model's: 30\.0\)"),
    ],
)
def test_notes_and_labels_of_another_kind_than_the_models_are_refused(trained, tmp_path, capsys, file, facts, message):
    described = tmp_path / "described"
    described.mkdir()
    for path in (trained[1] / "model").iterdir():
        (described / path.name).write_bytes(path.read_bytes())
    about = json.loads((described / "outcome.json").read_text())
    about |= {"input": "discharge", "cut": "a", "window_days": 30.0}
    (described / "outcome.json").write_text(json.dumps(about))
    hospital = write_stays(tmp_path / "hospital", stays())
    values = {"model": str(described)}
    evaluate(trained, hospital, tmp_path / "unnamed", **values)
    assert "as one of both does not name it: input, radiology, cut, window_days" in capsys.readouterr().err
    (hospital / file).write_text(json.dumps(facts))
    with pytest.raises(RequestError, match=message):
        evaluate(trained, hospital, tmp_path / "refused", **values)


def test_a_model_of_diagnoses_is_evaluated_on_its_own_labels_and_cannot_be_saved(bert, tmp_path):
    home = write_early_stays(tmp_path / "home", stays())
    output = tmp_path / "trained"
    output.mkdir()
    values = {"base": str(bert), "task": "diagnoses", "groups": 2, **TRAINING, **folders(home), "epochs": 1}
    run_outcome(OutcomeSettings.model_validate(values), StageContext(output, Cache(tmp_path / "cache")))
    labels = json.loads((output / "model/outcome.json").read_text())["labels"]
    elsewhere = write_early_stays(tmp_path / "elsewhere", stays(120, seed=3))
    metrics = evaluate((None, output), elsewhere, tmp_path / "evaluated")
    scores = pd.read_parquet(tmp_path / "evaluated/scores.parquet")
    assert {*labels, *(f"probability/{label}" for label in labels)} <= {*scores.columns}
    aurocs = [roc_auc_score(scores[label], scores[f"probability/{label}"]) for label in labels]
    assert metrics["auroc_macro"] == pytest.approx(np.mean(aurocs), abs=1e-9)
    assert metrics["admissions/test"] == 120
    with pytest.raises(RequestError, match="save: expected a model of a binary task"):
        evaluate((None, output), elsewhere, tmp_path / "evaluated", save=True)


def test_a_recalibration_follows_the_one_that_a_model_has():
    generator = np.random.default_rng(0)
    true = generator.normal(-1, 1.2, 4_000)
    outcomes = generator.random(4_000) < expit(true)
    probability, start = expit(2 * true + 1), Recalibration(0.25, 2.0)
    fitted = fit_recalibration(probability, outcomes, start=start)
    assert fitted == pytest.approx((0.5, -0.5), abs=0.1)  # whatever it was before
    assert fit_recalibration(probability, outcomes, start=fitted) == fitted  # and then nothing is left to do
    assert calibrated(probability, *fitted).mean() == pytest.approx(outcomes.mean(), abs=0.001)
    assert fit_recalibration(probability, outcomes, start=Recalibration(0.0, -1.0)) == pytest.approx(fitted, abs=1e-6)
