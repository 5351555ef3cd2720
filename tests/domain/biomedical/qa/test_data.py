"""Positions of right answers: from offsets, which are corrected by a few characters, and from the text."""

import pytest

from domain.biomedical.qa.data import MAX_SHIFT, Answer, align_answer, place_answer

FEVER = "." * 30 + "fever" + "." * 30


@pytest.mark.parametrize(
    ("context", "text", "start", "expected"),
    [
        ("ab ab ab", "ab", 3, 3),
        *((FEVER, "fever", 30 + shift, 30) for shift in (-MAX_SHIFT, -1, 0, 1, MAX_SHIFT)),
        *((FEVER, "fever", 30 + shift, None) for shift in (-MAX_SHIFT - 1, MAX_SHIFT + 1)),  # another mention
        ("ab..ab", "ab", 3, 4),  # the nearest one
        ("ab.ab", "ab", 2, 3),
        ("ab..ab", "ab", 2, 0),  # of two the earlier
        ("binding it in", "in", 3, 11),  # no part of a word
        ("binding", "in", 3, 4),
        ("xaaax", "aa", 3, 2),  # overlapping mentions
        *(("ab", "ab", start, 0) for start in (-1, 9)),
        *(("ab", "ab", start, None) for start in (90, -90)),
        ("", "ab", 0, None),
        ("🧬 Größe, then 🧬 Länge", "Länge", 13, 16),  # characters and not bytes
    ],
)
def test_an_answer_is_placed_at_its_offset_or_a_few_characters_off(context, text, start, expected):
    note = "nowhere" if expected is None else "in place" if expected == start else "corrected"
    assert place_answer(context, text, start) == (None if expected is None else Answer(text, expected), note)


RET = ("RET", "rearranged", "HSCR1")


@pytest.mark.parametrize(
    ("context", "wordings", "note", "mentions"),
    [
        ("RET and RET, ret", RET, "exactly", [("RET", 0), ("RET", 8)]),
        ("the ret gene, Ret", RET, "by case", [("ret", 4), ("Ret", 14)]),
        ("the proto-oncogene c-ret", RET, "by case", [("ret", 21)]),
        ("Rearranged it is", RET, "in a synonym", [("Rearranged", 0)]),
        ("HSCR1, rearranged", RET, "in a synonym", [("HSCR1", 0), ("rearranged", 7)]),
        ("retina, pRET, RET1", RET, "not found", []),
        ("", RET, "not found", []),
        ("ret, c-Ret", ("RET", "c-Ret"), "by case", [("ret", 0), ("Ret", 7)]),  # the name goes before a synonym
        ("RET, ret", ("RET",), "exactly", [("RET", 0)]),
        ("is it (+)-catechin?", ("(+)-catechin",), "exactly", [("(+)-catechin", 6)]),
        ("axb", ("a.b",), "not found", []),
        ("50% of all", ("50%",), "exactly", [("50%", 0)]),
        ("İİ STRASSE straße İ Fieber", ("FIEBER",), "by case", [("Fieber", 20)]),  # cases of other lengths before it
    ],
)
def test_an_answer_is_found_by_its_words(context, wordings, note, mentions):
    answers, kind = align_answer(context, wordings)
    assert (kind, [tuple(answer) for answer in answers]) == (note, mentions)
    assert all(context[answer.start : answer.end] == answer.text for answer in answers)
