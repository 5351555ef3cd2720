"""The verdict on a model, by arithmetic of its recorded metrics."""

import pytest

from bertrelay.evaluation.verdict import Gain, Verdict, judge
from domain.verdicts import of_answers, of_entities, of_evaluated_outcome, of_outcome


def interval(name, value, low, high):
    return {name: value, f"{name}_low": low, f"{name}_high": high}


SIZE = {"admissions/test": 1000, "prevalence": 0.3}
GOOD = {
    **SIZE,
    **interval("auroc", 0.87, 0.85, 0.89),
    "brier": 0.14,
    **interval("auroc_difference/tfidf", 0.1, 0.05, 0.15),
}


def test_a_good_model_gets_a_short_neutral_verdict():
    verdict = of_outcome(GOOD)
    assert verdict.level == "good"
    assert verdict.text == (
        "Better than chance, TF-IDF and the prevalence. "
        "AUROC 0.870 (0.850 – 0.890) on 1,000 test admissions, 300 with the outcome"
    )


@pytest.mark.parametrize(
    ("changed", "level", "words"),
    [
        (interval("auroc", 0.425, 0.38, 0.47), "fail", "Worse than chance"),
        (interval("auroc", 0.53, 0.49, 0.57), "fail", "No better than chance"),  # the low bound is what counts
        ({"auroc": 0.425, "auroc_low": None, "auroc_high": None}, "fail", "No better than chance"),
        (interval("auroc_difference/tfidf", -0.1, -0.15, -0.05), "fail", "Worse than TF-IDF"),
        (interval("auroc_difference/tfidf", -0.01, -0.05, 0.03), "fail", "No better than TF-IDF"),
        (interval("auroc_difference/tfidf", 0.01, -0.03, 0.05), "warn", "Not shown to be better than TF-IDF"),
        ({"brier": 0.22}, "fail", "No better than the prevalence"),  # .3 × .7 = .21
        ({"recalibration_slope": 0.0}, "fail", "No better than the prevalence"),
        ({"admissions/test": 100}, "warn", "Too few to be sure: 30 test admissions with the outcome"),
        ({"prevalence": 0.95, "brier": 0.01}, "warn", "Too few to be sure: 50 test admissions without the outcome"),
    ],
)
def test_each_way_to_fail_comes_first_in_its_verdict(changed, level, words):
    verdict = of_outcome(GOOD | changed)
    assert (verdict.level, verdict.text.split(". ")[0]) == (level, words)


def test_a_model_on_other_notes_is_judged_by_its_probabilities_before_the_recalibration():
    ratio, before = (
        interval("observed_expected", 1.0, 0.9, 1.1),
        interval("observed_expected_uncalibrated", 0.6, 0.5, 0.7),
    )
    shipped = GOOD | ratio | {"brier_uncalibrated": 0.15}
    assert of_evaluated_outcome(shipped | before | {"recalibration_slope": 0.0}).text.startswith(
        "Its probabilities are too high here (observed/expected 0.60). AUROC 0.870"
    )
    assert of_evaluated_outcome(shipped | interval("observed_expected_uncalibrated", 1.3, 1.2, 1.4)).level == "warn"
    assert of_evaluated_outcome(shipped | before | {"brier_uncalibrated": 0.3}).text.startswith(
        "No better than the prevalence; its probabilities are too high"
    )
    assert of_evaluated_outcome(GOOD | ratio).level == "good"  # of one that is not recalibrated


def test_an_outcome_with_several_labels_is_judged_by_its_macro_auroc():
    labels = {"labels": 50, "labels_left_out": 0, "admissions/test": 400, "auroc_macro/tfidf": 0.6}
    assert of_outcome(labels | interval("auroc_macro", 0.7, 0.65, 0.75)).level == "good"
    assert of_outcome(labels | interval("auroc_macro", 0.61, 0.58, 0.64)).level == "warn"
    assert of_outcome(labels | interval("auroc_macro", 0.5, 0.45, 0.55)).text.startswith(
        "No better than chance; worse than TF-IDF"
    )
    few = of_outcome(labels | {"admissions/test": 99} | interval("auroc_macro", 0.9, 0.8, 1.0))
    assert few.level == "warn" and few.text.startswith("Too few to be sure: 99 test admissions. Macro AUROC 0.900")
    assert of_outcome({"validation/auroc": 0.7}) is None


def test_a_tagger_that_finds_nothing_or_little_is_said_to():
    counts = {"gold_entities": 400, "precision": 0.8, "recall": 0.9}
    good = counts | interval("f1", 0.85, 0.83, 0.87)
    assert of_entities(good).level == "good"
    assert of_entities(counts | {"f1": 0.0, "precision": None, "recall": 0.0}).text.startswith(
        "No better than finding nothing"
    )
    assert of_entities(good | {"f1/Disease": 0.9, "f1/Gene": 0.0}).text.startswith("No Gene is found rightly.")
    assert of_entities(good | {"gold_entities": 37}).text.startswith("Too few to be sure: 37 gold entities")
    assert of_entities(good | {"recall": 0.2}).text.startswith("It misses more entities than it finds")
    assert of_entities({"dev/f1": 0.0, "dev/recall": 0.0}).level == "fail"  # of a training
    few = of_entities({"dev/f1": 0.9, "dev/gold_entities": 3.0})
    assert (few.level, few.text) == (
        "warn",
        "Too few to be sure: 3 gold entities. F1 0.900 on 3 gold entities of dev data",
    )
    assert of_entities({"train_words": 9.0}) is None


def test_an_answerer_is_compared_with_giving_no_answer_and_with_the_first_sentence():
    good = {"scored": 500, **interval("f1", 0.6, 0.55, 0.65), "first_sentence/f1": 0.2}
    assert of_answers(good).text.startswith(
        "Better than never giving an answer and the text's first sentence as answer. F1 0.600"
    )
    assert of_answers(good | {"first_sentence/f1": 0.7}).text.startswith(
        "Worse than the text's first sentence as answer"
    )
    silent = good | {"has_answer/f1": 0.0, "no_answer/f1": 1.0}  # three questions in five have no answer
    assert of_answers(silent).text.startswith("No better than never giving an answer")
    assert of_answers(good | {"scored": 12}).text.startswith("Too few to be sure: 12 questions")
    assert of_answers({"dev/f1": 0.9, "dev/scored": 12.0}).text == (
        "Too few to be sure: 12 questions. F1 0.900 on 12 questions of dev data"
    )


def test_what_was_not_measured_is_neither_good_nor_bad():
    assert judge("", [Gain("chance", None)]) == Verdict("good", "")
    assert of_outcome({**SIZE, "auroc": None}).text == "No AUROC on 1,000 test admissions, 300 with the outcome"
