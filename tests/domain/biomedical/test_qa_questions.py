"""Where right answers stand: placed by offsets, mended ones too, and found by their words."""

import pytest

from domain.biomedical.qa.questions import MOST_SHIFT, Answer, aligned, placed


def test_an_answer_at_its_offset_stays_there():
    assert placed("ab ab ab", "ab", 3) == (Answer("ab", 3), "in place")
    assert placed("ab", "ab", 0) == (Answer("ab", 0), "in place")


@pytest.mark.parametrize("shift", [-MOST_SHIFT, -1, 1, MOST_SHIFT])
def test_an_offset_is_mended_by_a_shift_of_a_few_characters(shift):
    context = "." * 30 + "fever" + "." * 30
    assert placed(context, "fever", 30 + shift) == (Answer("fever", 30), "corrected")


@pytest.mark.parametrize("shift", [-MOST_SHIFT - 1, MOST_SHIFT + 1])
def test_what_stands_further_off_is_another_mention(shift):
    assert placed("." * 30 + "fever" + "." * 30, "fever", 30 + shift) == (None, "nowhere")


def test_the_nearest_mention_is_taken_and_of_two_the_earlier():
    assert placed("ab..ab", "ab", 3) == (Answer("ab", 4), "corrected")
    assert placed("ab.ab", "ab", 2)[0] == Answer("ab", 3)
    assert placed("binding it in", "in", 3)[0] == Answer("in", 11)
    assert placed("binding", "in", 3)[0] == Answer("in", 4)
    assert placed("ab..ab", "ab", 2)[0] == Answer("ab", 0)


def test_an_offset_may_lie_outside_of_the_context():
    assert placed("ab", "ab", -1) == (Answer("ab", 0), "corrected")
    assert placed("ab", "ab", 9)[0] == Answer("ab", 0)
    assert placed("ab", "ab", 90) == (None, "nowhere")
    assert placed("ab", "ab", -90) == (None, "nowhere")
    assert placed("", "ab", 0) == (None, "nowhere")


def test_a_shift_counts_characters_and_not_bytes():
    context = "🧬 Größe, then 🧬 Länge"
    assert placed(context, "Länge", 13) == (Answer("Länge", 16), "corrected")


def test_overlapping_mentions_are_seen():
    assert placed("xaaax", "aa", 3)[0] == Answer("aa", 2)


@pytest.mark.parametrize(
    ("context", "how", "found"),
    [
        ("RET and RET, ret", "exactly", [("RET", 0), ("RET", 8)]),
        ("the ret gene, Ret", "by case", [("ret", 4), ("Ret", 14)]),
        ("the proto-oncogene c-ret", "by case", [("ret", 21)]),
        ("Rearranged it is", "in a synonym", [("Rearranged", 0)]),
        ("HSCR1, rearranged", "in a synonym", [("HSCR1", 0), ("rearranged", 7)]),
        ("retina, pRET, RET1", "not found", []),
        ("", "not found", []),
    ],
)
def test_an_answer_is_found_by_its_words(context, how, found):
    answers, kind = aligned(context, ("RET", "rearranged", "HSCR1"))
    assert (kind, [tuple(answer) for answer in answers]) == (how, found)
    assert all(context[answer.start : answer.end] == answer.text for answer in answers)


def test_the_name_is_preferred_to_a_synonym_and_the_case_to_another():
    assert aligned("ret, c-Ret", ("RET", "c-Ret"))[1] == "by case"
    assert aligned("RET, ret", ("RET",)) == ((Answer("RET", 0),), "exactly")


def test_words_are_looked_for_as_they_are():
    assert aligned("is it (+)-catechin?", ("(+)-catechin",))[0] == (Answer("(+)-catechin", 6),)
    assert aligned("axb", ("a.b",)) == ((), "not found")
    assert aligned("50% of all", ("50%",))[0] == (Answer("50%", 0),)


def test_letters_whose_case_has_another_length_do_not_move_an_answer():
    context = "İİ STRASSE straße İ Fieber"
    answers, how = aligned(context, ("FIEBER",))
    assert how == "by case"
    assert context[answers[0].start : answers[0].end] == "Fieber"
