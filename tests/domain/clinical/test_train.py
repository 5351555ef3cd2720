"""The stage `domain.readmission`: training, weights of labels, and the files that it writes."""

import json

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from scipy.special import expit
from sklearn.metrics import auc, average_precision_score, brier_score_loss, roc_auc_score
from synthetic_patients import stays, write_stays

from bertrelay.cache import Cache
from bertrelay.compute.engine import LOCAL_ENGINE, Engine
from bertrelay.errors import RequestError, WorkError
from bertrelay.process_group import ProcessGroup
from bertrelay.report import read_report
from bertrelay.stage import StageContext
from domain.clinical import chunks, train
from domain.clinical.aggregation import aggregate
from domain.clinical.calibration import fit_recalibration
from domain.clinical.chunks import Chunker, chunk_tokens, stored_chunk_tokens
from domain.clinical.metrics import while_reading
from domain.clinical.model import chunk_log_odds, load_model, start_model
from domain.clinical.outcomes import read_labelled_notes
from domain.clinical.settings import ModelDescription, ReadmissionSettings
from domain.clinical.train import chunk_weights, run

NOWHERE = Engine(engine="ray://127.0.0.1:9")  # a cluster that does not answer
CHUNKING = {"max_tokens": 24}
TRAINING = {"epochs": 4, "batch_items": 16, "learning_rate": 3e-3, "precision": "fp32", "dropout": 0.0}


@pytest.fixture(scope="module")
def clinic(tmp_path_factory):
    folder = write_stays(tmp_path_factory.mktemp("clinic"), stays())
    file = folder / "cohort/characteristics.parquet"  # ids of an own table may be numbers
    pd.read_parquet(file).astype({"hadm_id": int}).to_parquet(file)
    return folder


def settings(clinic, bert, **more):
    paths = {"base": str(bert), "notes": str(clinic / "notes"), "cohort": str(clinic / "cohort"), "chunking": CHUNKING}
    return ReadmissionSettings.model_validate({**paths, **TRAINING, **more})


@pytest.fixture(scope="module")
def trained(clinic, bert, tmp_path_factory):
    """The metrics of a training, and the folder it wrote."""
    folder = tmp_path_factory.mktemp("stage")
    more = {"c": "chosen", "risk": str(clinic / "risk.csv"), "alarm_precision": 0.6}
    return run(settings(clinic, bert, **more), StageContext(folder, Cache(folder / "cache"))), folder


def test_two_processes_that_share_an_evaluation_find_what_one_does(
    clinic, bert, tmp_path, evaluated_twice, monkeypatch
):
    metrics_of_both = evaluated_twice("domain.clinical.train")
    monkeypatch.setattr(train.Evaluation, "write", lambda *_: {})  # of test, which is another's
    run(settings(clinic, bert, epochs=1), StageContext(tmp_path, Cache(tmp_path / "cache")))
    [(alone, shared)] = metrics_of_both
    assert shared == pytest.approx(alone, abs=1e-5) and 0.5 < alone["validation/auprc"] < 1


def test_another_process_waits_for_the_chunks_of_the_main_one(clinic, bert, tmp_path, monkeypatch):
    class Waits(Exception):
        pass

    def wait(_):
        raise Waits

    monkeypatch.setattr("bertrelay.process_group.wait_for_all", wait)
    with pytest.raises(Waits):
        run(settings(clinic, bert), StageContext(tmp_path, Cache(tmp_path / "cache"), ProcessGroup(1, 2)))
    assert not (tmp_path / "cache/chunks").exists()


def test_it_learns_who_comes_back(trained):
    metrics, _ = trained
    assert metrics["auroc"] > 0.75
    assert metrics["auroc_low"] < metrics["auroc"] < metrics["auroc_high"]
    assert metrics["best_auroc"] == pytest.approx(0.9, abs=0.12)
    assert metrics["auroc/tfidf"] > 0.75
    assert metrics["auroc/note_length"] < 0.7
    assert metrics["brier"] < metrics["brier/note_length"]
    assert metrics["lost_chunks"] == 0 and metrics["admissions/test"] == 60


def test_scores_are_those_of_the_model_that_was_saved_and_metrics_and_alarms_are_of_them(trained):
    metrics, output = trained
    scores = pd.read_parquet(output / "scores.parquet")
    table = stays().query("split != 'train'").set_index("hadm_id")
    assert set(scores["hadm_id"]) == set(table.index) and scores["hadm_id"].is_unique
    table = table.loc[scores["hadm_id"]]
    assert scores["readmitted"].tolist() == table["readmitted"].tolist()
    model = load_model(output / "model")
    tokens = chunk_tokens(table["text"], Chunker(model.tokenizer, model.description.chunking))
    log_odds = chunk_log_odds(model, tokens, np.arange(len(tokens)), "fp32", batch_tokens=64)
    probabilities = aggregate(expit(log_odds[:, 0]), tokens.admissions, len(table), c=model.description.c)
    assert scores["probability"].to_numpy() == pytest.approx(probabilities, abs=1e-5)
    assert scores["n_chunks"].tolist() == np.bincount(tokens.admissions).tolist()
    ids = [np.array(model.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in table["text"]]
    assert scores["unknown_share"].tolist() == [(row == model.tokenizer.unk_token_id).mean() for row in ids]
    odds = (probabilities / (1 - probabilities)) ** model.description.slope * np.exp(model.description.intercept)
    assert scores["calibrated"].to_numpy() == pytest.approx(odds / (1 + odds), abs=1e-4)
    validation = scores[scores["split"] == "validation"]
    fitted = fit_recalibration(validation["probability"].to_numpy(), validation["readmitted"].to_numpy())
    assert (model.description.slope, model.description.intercept) == pytest.approx(fitted)
    assert (metrics["recalibration_slope"], metrics["recalibration_intercept"]) == pytest.approx(fitted)
    test = scores[scores["split"] == "test"]
    assert metrics["auroc"] == pytest.approx(roc_auc_score(test["readmitted"], test["probability"]))
    assert metrics["brier"] == pytest.approx(brier_score_loss(test["readmitted"], test["calibrated"]))
    assert metrics["brier_uncalibrated"] == pytest.approx(brier_score_loss(test["readmitted"], test["probability"]))
    description = model.description  # whose threshold is of validation
    assert description.threshold == metrics["threshold"] and description.alarm_precision == 0.6
    assert description.prevalence == validation["readmitted"].mean()
    alarms = validation[validation["probability"] >= description.threshold]["readmitted"]
    assert (description.alarms, description.alarms_right) == (len(alarms), alarms.sum())
    assert (metrics["threshold_alarms"], metrics["threshold_alarms_right"]) == (len(alarms), alarms.sum())
    raised = test["probability"] >= description.threshold
    assert metrics["alarms"] == raised.sum()
    assert metrics["alarm_recall"] == pytest.approx((raised & test["readmitted"]).sum() / test["readmitted"].sum())
    assert metrics["alarm_precision"] == pytest.approx(test[raised]["readmitted"].mean())


def test_the_headlines_of_the_report_follow_from_the_scores(trained):
    report = read_report(trained[1])
    test = pd.read_parquet(trained[1] / "scores.parquet").query("split == 'test'")
    auroc, ratio, auprc = (headline.measure.value for headline in report.headlines)
    assert auroc == pytest.approx(roc_auc_score(test["readmitted"], test["probability"]))
    assert ratio == pytest.approx(test["readmitted"].sum() / test["calibrated"].sum())
    assert auprc == pytest.approx(average_precision_score(test["readmitted"], test["probability"]))
    beside = [{measure.label: measure.value for measure in headline.beside} for headline in report.headlines]
    assert beside[1]["before the recalibration"] == pytest.approx(test["readmitted"].sum() / test["probability"].sum())
    assert beside[2]["chance, the prevalence"] == test["readmitted"].mean()
    curves = json.loads((trained[1] / "curves.json").read_text())["roc"]
    for name, label in (("tfidf", "TF-IDF, logistic regression"), ("note_length", "note length alone")):
        rates, recalls = zip(*curves[name], strict=True)
        assert beside[0][label] == pytest.approx(auc(rates, recalls), abs=0.01)  # of at most 200 points
    counts, _ = np.histogram(test["calibrated"], 20, (0, 1))
    bars = report.headlines[1].chart.bars
    assert [count for _, count in bars] == [count if count >= 10 else 0 for count in counts]
    assert f"tested on {len(test)} of other patients" in report.summary[1]
    assert f"{test['readmitted'].sum()} with the outcome" in report.headlines[0].data


def test_curves_and_slices_are_written_and_small_groups_are_not(trained):
    _, output = trained
    curves = json.loads((output / "curves.json").read_text())
    assert set(curves["roc"]) == {"model", "note_length", "tfidf"}
    assert curves["roc"]["model"][0] == [0, 0] and curves["roc"]["model"][-1] == [1, 1]
    assert curves["while_reading"][-1]["auroc"] > curves["while_reading"][0]["auroc"]
    scores = pd.read_parquet(output / "scores.parquet").query("split == 'test'")
    assert curves["read_in_parts"] == (scores["n_chunks"] > 1).sum() > 0
    assert {"note_length, calibrated", "tfidf, calibrated"} <= curves["calibration"].keys()
    points = curves["calibration"]["model, calibrated"]
    assert sum(count for _, _, count, _, _ in points) == 60
    assert all(low <= share <= high for _, share, _, low, high in points)
    slices = json.loads((output / "slices.json").read_text())["slices"]
    assert {part["characteristic"] for part in slices} >= {"sex", "age", "insurance", "note length"}
    assert "QZX" not in json.dumps(slices)
    about = json.loads((output / "model/outcome.json").read_text())
    assert about["subwords_per_word"] == 1  # the base knows all words of these notes
    assert "unknown" not in [part["group"] for part in slices if part["characteristic"] == "sex"]
    assert (output / "flow.csv").read_text().splitlines()[1] == "of the cohort,240,120,,"


def test_an_admission_weighs_as_much_as_any_other_where_it_is_shared():
    admissions = np.array([4, 4, 4, 7, 4, 9, 9])
    weights = chunk_weights(admissions, shared=True)
    assert weights.mean() == pytest.approx(1)
    assert np.bincount(admissions, weights)[[4, 7, 9]] == pytest.approx([7 / 3] * 3)
    assert chunk_weights(admissions, shared=False).tolist() == [1] * 7


@pytest.mark.parametrize("batch_tokens", [1, 100])
def test_no_batch_changes_a_chunk(bert, batch_tokens):
    model = start_model(bert, ModelDescription.model_validate({"chunking": CHUNKING}))
    tokens = chunk_tokens(stays(12)["text"], Chunker(model.tokenizer, model.description.chunking))
    computed = chunk_log_odds(model, tokens, np.arange(len(tokens)), "fp32", batch_tokens)
    alone = [chunk_log_odds(model, tokens, np.array([chunk]), "fp32")[0, 0] for chunk in range(len(tokens))]
    assert len(set(np.round(alone, 3))) > 3
    assert computed[:, 0] == pytest.approx(alone, abs=1e-4)


def test_stored_chunks_are_those_in_memory_and_a_failure_costs_a_shard(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "SHARD_CHARACTERS", 1000)
    model = start_model(bert, ModelDescription.model_validate({"chunking": {"max_tokens": 16, "max_chunks": 2}}))
    chunker, texts, cut = (
        Chunker(model.tokenizer, model.description.chunking),
        [*stays(40)["text"], "", "Slept well."],
        [],
    )
    inside = chunk_tokens(texts, chunker)
    assert inside.lost_chunks > 0
    assert np.bincount(inside.admissions, minlength=42)[-2:].tolist() == [0, 1]
    monkeypatch.setattr(chunks, "chunk_tokens", lambda some, chunker: cut.extend(some) or chunk_tokens(some, chunker))

    def store(source, engine=LOCAL_ENGINE):
        return stored_chunk_tokens(lambda: iter(source), list(map(len, texts)), chunker, tmp_path / "chunks", engine)

    with pytest.raises(WorkError, match="notes: the input became shorter while it was read; run the same command"):
        store(texts[:25])
    assert 18 < len(cut) <= 25
    for stored in (store(texts), store(["never read"], NOWHERE)):
        assert cut == texts  # each of them once
        for name in ("ids", "starts", "lengths", "admissions", "spans", "lost_chunks"):
            assert np.array_equal(getattr(stored, name), getattr(inside, name)), name
    assert {path.name for path in tmp_path.iterdir()} == {"chunks", "chunks.lock"}


def test_chunks_are_cut_on_the_engine_of_the_stage(clinic, bert, tmp_path):
    with pytest.raises(RequestError, match=r"engine: expected (a )?Ray"):
        run(settings(clinic, bert), StageContext(tmp_path, Cache(tmp_path / "cache"), engine=NOWHERE))


def test_the_score_while_reading_is_that_of_the_first_chunks():
    pairs = 2 * np.arange(10)[:, None]
    probabilities, admissions = np.tile([0.9, 0.2, 0.1, 0.4, 0.8], 10), (np.array([1, 0, 0, 1, 0]) + pairs).ravel()
    metrics = while_reading(probabilities, admissions, np.tile([True, False], 10), ModelDescription())
    curve = metrics["while_reading"]
    assert metrics["read_in_parts"] == 20
    assert curve[0]["readmitted"] == pytest.approx(0.2) and curve[0]["others"] == pytest.approx(0.9)
    assert curve[-1]["readmitted"] == pytest.approx((0.8 + (1.1 / 3) * 1.5) / 2.5)
    assert [point["auroc"] for point in curve] == [0.0] * 9 + [pytest.approx(0.0)]
    with_short_ones = np.append(probabilities, [0.99, 0.01]), np.append(admissions, [20, 21])
    outcomes = np.tile([True, False], 11)
    assert while_reading(*with_short_ones, outcomes, ModelDescription()) == metrics


@pytest.mark.parametrize("returned", [0, 9, 10, 20, 21, 30])
def test_of_fewer_than_ten_of_either_outcome_nothing_is_reported_while_reading(returned):
    outcomes = np.append(np.arange(30) < returned, [True] * 20)  # of the last ones all is read at once
    probabilities = np.random.default_rng(0).random(80)
    admissions = np.append(np.repeat(np.arange(30), 2), np.arange(30, 50))
    curve = while_reading(probabilities, admissions, outcomes, ModelDescription())
    if 10 <= returned <= 20:
        assert curve["read_in_parts"] == 30 and len(curve["while_reading"]) == 10
    else:
        assert curve == {"while_reading": None, "read_in_parts": None}


def test_wrong_folders_and_cohorts_are_reported(clinic, bert, tmp_path, context):
    table = stays()
    write_stays(tmp_path / "other", table.assign(hadm_id=[f"{n}" for n in range(len(table))]))
    twice = write_stays(tmp_path / "twice", pd.concat([table, table[2:3]]))
    write_stays(tmp_path / "half", table.assign(hadm_id=[n + 0.5 for n in range(len(table))]).astype({"hadm_id": str}))
    fractions = pd.read_parquet(tmp_path / "half/cohort/cohort.parquet").astype({"hadm_id": float})
    fractions.to_parquet(tmp_path / "half/cohort/cohort.parquet")
    for more, message in (
        ({"notes": str(clinic)}, r"notes: expected the folder that domain\.notes wrote, found no notes\.parquet"),
        ({"cohort": str(clinic)}, r"cohort: expected the folder that domain\.cohort wrote, found no cohort\.parquet"),
        ({"cohort": str(tmp_path / "other/cohort")}, r"of 240 stays in .*, 240 are not in the cohort"),
        ({"cohort": str(twice / "cohort")}, r"cohort\.parquet: .*found that of row 3 again in row 241"),
        ({"notes": str(twice / "notes")}, r"notes\.parquet: .*found that of row 3 again in row 241"),
        ({"cohort": str(tmp_path / "half/cohort")}, r"cohort\.parquet: .*found an id that is neither text nor a whole"),
        (
            {"chunking": {"max_tokens": 512}},
            r"chunking\.max_tokens: expected at most the 48 positions of the base, found 512",
        ),
    ):
        with pytest.raises(RequestError, match=message):
            run(settings(clinic, bert, **more), context)


def test_subjects_in_two_splits_are_refused_and_counted(bert, tmp_path, context):
    table = stays(464)  # of 232 subjects, two stays each
    moved = np.arange(104)[::2]  # the first stay of 52 subjects, to a split that the second is not in
    table.loc[moved, "split"] = np.where(table.loc[moved, "split"] == "test", "train", "test")
    write_stays(tmp_path, table)
    message = r"cohort: expected each subject in one split, found 52 of 232 in two or more .*`bertrelay data audit`"
    with pytest.raises(RequestError, match=message):
        run(settings(tmp_path, bert), context)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"split": "dev"}, r"expected train, validation, test in split, found 3 of 240 stays otherwise"),
        ({"subject_id": None}, r"expected a subject_id of every stay, found none of 3 of 240"),
    ],
)
def test_stays_of_no_split_or_no_subject_are_refused_and_counted(tmp_path, changed, message):
    write_stays(tmp_path, stays())
    for file in (tmp_path / "cohort/cohort.parquet", tmp_path / "notes/notes.parquet"):
        table = pd.read_parquet(file).astype(object)
        table.loc[:2, list(changed)] = list(changed.values())
        table.to_parquet(file)
    with pytest.raises(RequestError, match=message):
        read_labelled_notes(tmp_path / "notes", tmp_path / "cohort")


def test_a_cohort_without_a_column_is_named_so(tmp_path):
    write_stays(tmp_path, stays())
    file = tmp_path / "cohort/cohort.parquet"
    pd.read_parquet(file).drop(columns="subject_id").to_parquet(file)
    with pytest.raises(RequestError, match=r"expected columns hadm_id, .* found none named subject_id"):
        read_labelled_notes(tmp_path / "notes", tmp_path / "cohort")


def test_texts_in_two_splits_and_stays_without_notes_are_counted_before_training(tmp_path, capsys):
    table = stays(240)
    text = table["text"][0]
    write_stays(
        tmp_path, table.assign(text=table["text"].where(~table.index.isin([5, 7]), f"{text} "))
    )  # of another split
    cohort = pd.read_parquet(tmp_path / "cohort/cohort.parquet")
    more = cohort[:3].assign(hadm_id=["1", "2", "3"], readmitted=[True, True, False])
    pd.concat([cohort, more]).to_parquet(tmp_path / "cohort/cohort.parquet")
    labelled = read_labelled_notes(tmp_path / "notes", tmp_path / "cohort")
    with_notes = labelled.flow.steps[1]
    assert (with_notes.step, with_notes.left_out, with_notes.with_outcome) == ("with notes", 3, 2)
    logged = capsys.readouterr().err
    assert 'readmission: 240 of 243 stays; left out by each step: "with notes" 3 (2 readmitted)' in logged
    assert "1 texts of the notes stand in two splits" in logged


def test_a_model_keeps_which_notes_it_reads_and_within_how_many_days_a_return_counts(tmp_path):
    write_stays(tmp_path, stays())
    read = read_labelled_notes(tmp_path / "notes", tmp_path / "cohort")
    assert read.about == {}
    assert "within the days that its cohort counts of" in ModelDescription().meaning
    (tmp_path / "notes/notes.json").write_text(
        '{"input": "discharge", "stays": "cohort", "radiology": true, "cut": "c"}'
    )
    (tmp_path / "cohort/cohort.json").write_text('{"window_days": 90.0}')
    read = read_labelled_notes(tmp_path / "notes", tmp_path / "cohort")
    assert read.about == {"input": "discharge", "radiology": True, "cut": "c", "window_days": 90.0}
    assert "within 90 days of" in ModelDescription.model_validate(read.about).meaning
    assert "or the patient dies" in ModelDescription.model_validate(read.about | {"deaths_counted": True}).meaning


def test_permutations_are_none_or_twenty_at_least(clinic, bert):
    assert settings(clinic, bert, permutations=0).permutations == 0
    with pytest.raises(ValidationError, match="permutations"):
        settings(clinic, bert, permutations=5)


@pytest.mark.parametrize("unreadable", ["\u200b\n", "患者. 退院."], ids=ascii)
def test_a_stay_with_nothing_to_read_is_reported_before_training(bert, tmp_path, context, unreadable):
    table = stays(40)
    write_stays(tmp_path, table.assign(text=table["text"].where(table.index != 7, unreadable)))
    with pytest.raises(
        RequestError,
        match=r"a text that the model can read for every stay, found .* for 1 of 40 in .*, the first in row 8",
    ):
        run(settings(tmp_path, bert), context)
    assert not list(context.output.iterdir())


def test_a_folder_that_predicts_no_outcome_is_reported(bert):
    with pytest.raises(RequestError, match=r"that predicts an outcome of patients, found no outcome\.json"):
        load_model(bert)
