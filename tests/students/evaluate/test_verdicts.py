"""The verdict on a student."""

from students.evaluate.verdicts import of_student

GOOD = {
    "mse_relative/en": 0.2,
    "mse_relative/de": 0.4,
    "translation_accuracy/en-de": 0.9,
    "translation_accuracy/de-en": 0.8,
    "sentences/de": 500,
}


def test_a_student_farther_from_its_teacher_than_the_mean_vector_is_in_doubt_and_without_translations_fails():
    assert of_student(GOOD)[:2] == (
        "good",
        "Better than the mean vector of the teacher and chance at finding translations. "
        "Translation accuracy 0.850; squared distance to the teacher (1 is its mean vector's) 0.200 to 0.400",
    )
    for worst in (1.0, 1.1, 1.4):
        verdict = of_student(GOOD | {"mse_relative/de": worst})
        assert verdict.level == "warn" and "than the mean vector of the teacher in de." in verdict.text
        failed = of_student({"mse_relative/en": 0.2, "mse_relative/de": worst})
        assert failed.level == "fail"
        assert failed.text.startswith("No better than the mean vector of the teacher in de.")
    trained = {f"dev/{name}": value for name, value in GOOD.items()} | {"dev/mse_relative/de": 1.2}
    assert of_student(trained).level == "warn" and of_student(trained).text.endswith("on dev data")
    by_chance = {"dev/mse_relative/de": 0.9, "dev/translation_accuracy/en-de": 0.01, "dev/sentences/de": 100}
    assert of_student(by_chance).text.startswith("No better than chance at finding translations in de.")


def test_translations_found_no_more_often_than_by_chance_or_lookup_are_said_to_be():
    by_chance = GOOD | {"translation_accuracy/de-en": 0.004, "translation_accuracy/de-en_low": 0.0}
    assert of_student(by_chance).text.startswith("No better than chance at finding translations in de.")
    by_lookup = GOOD | {"lookup_accuracy/en-de": 0.95}
    assert of_student(by_lookup).text.startswith("No better than word-for-word lookup in de.")
    few = of_student(GOOD | {"sentences/de": 12})
    assert few.level == "warn" and few.text.startswith("Too few to be sure: 12 pairs in de.")
    lost = GOOD | {"queries/en": 100, "recall_at_10/en": 0.9, "recall_at_10/de": 0.09, "recall_at_10_ratio/de": 0.1}
    assert of_student(lost).text.startswith("No better than chance at search in de.")  # 10 of 100
    assert of_student({"parameters": 3}) is None
