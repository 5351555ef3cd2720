"""The report of a student's training."""

from students.distill.report import training_report

FACTS = {"train": {"de": 1200, "ko": 300}}


def test_a_learning_curve_is_a_table_of_at_most_twenty_rows_and_the_last_among_them():
    curve = [{"step": step, "sentences": 100 * step, "cosine/en": step / 50} for step in range(1, 46)]
    [section] = training_report("mpnet", "e5", FACTS, curve).sections
    [table] = section.blocks
    assert table.columns == ["Step", "Sentences", "cosine/en"] and table.texts == 0
    assert [row[0] for row in table.rows] == [str(step) for step in range(3, 46, 3)]
    assert (table.rows[-1][1], table.rows[-1][2].value) == ("4,500", 0.9)
    assert training_report("mpnet", "e5", FACTS).sections == []


def test_the_summary_names_base_teacher_languages_and_pairs():
    first, second = training_report("mpnet", "e5", FACTS).summary
    assert "started from e5" in first and "2 languages (de and ko)" in first
    assert second == "Its teacher is mpnet; it was trained on 1,500 pairs of translations."
    *_, second = training_report("mpnet", "e5", {**FACTS, "english_without_translations": 4000}).summary
    assert second.endswith("and 4,000 English sentences without a translation.")
