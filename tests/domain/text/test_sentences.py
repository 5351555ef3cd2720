import random
import textwrap
import time
import tracemalloc
from pathlib import Path

import pytest

from domain.text.sentences import iterate_sentences, sentence_spans

SAMPLES = Path(__file__).parent / "sentence_samples"


def sentences(text):
    return [text[start:end] for start, end in sentence_spans(text)]


def marked(file):
    """The text of each document of a sample, and its sentences by hand."""
    documents = []
    for document in file.read_text(encoding="utf-8").split("== ")[1:]:
        lines = [line.replace("⏎", "\n") for line in document.strip("\n").split("\n")[1:]]
        text = "".join(line if line.endswith("\n") else f"{line} " for line in lines)
        documents.append((text, [line.rstrip("\n") for line in lines]))
    return documents


@pytest.mark.parametrize("name", ["clinical", "clinical_unseen", "scientific", "scientific_unseen"])
def test_sentences_marked_by_hand_are_found(name):
    right = predicted = gold = 0
    for text, by_hand in marked(SAMPLES / f"{name}.txt"):
        ours = sentences(text)
        right, predicted, gold = right + len({*ours} & {*by_hand}), predicted + len({*ours}), gold + len({*by_hand})
    assert right / predicted > 0.9
    assert right / gold > 0.9


@pytest.mark.parametrize(
    "text",
    [
        "Dr. A. B. Osei saw Mr. Lund vs. Mrs. Lund.",
        "E. coli and S. aureus, e.g. O157:H7, grew (Fig. 2A; see Ref. 3 and Eq. 4).",
        "Moreno et al. [12, 13] and Ito et al. (2011) found 1.5 mg p.o. b.i.d. to be safe.",
        "He was seen at St. Agatha's at 7:30 a.m. on Jan. 4 by J. Moreau, M.D., for pain.",
        "Seen by Dr. [**Last Name (STitle) 88**] and Dr. [NAME] on ___.",
        "O2 sat. 89%, approx. 6 mm, No. 10 blade, i.v. furosemide, Norvig Labs Inc. of Leeds.",
        "Temp 100.4... cultures sent, ?transfer, ? pneumonia.",
        "4. Hepatitis C.",
        'The answer, "Nothing. or all." they say, is at https://example.org/a.b/v1.2.',
    ],
)
def test_marks_inside_a_sentence_do_not_end_it(text):
    assert sentences(text) == [text]


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("He has hepatitis C. The liver is large.", "The liver is large."),
        ("Rates fell in the U.S. They rose in Brazil.", "They rose in Brazil."),
        ("It slows nothing.[2,3] Yet trials go on.", "Yet trials go on."),
        ("Trials gave mixed results.5,6 Some argue.", "Some argue."),
        ("Growth was restored. mRNA was measured.", "mRNA was measured."),
        ("Were there deaths? [NAME] said no.", "[NAME] said no."),
        ('She says "it hurts." Was it so?', "Was it so?"),
        ("There were no deaths. 42 patients were lost.", "42 patients were lost."),
        ("They fell by 4.2%. ___ was seen.", "___ was seen."),
        ("Given at 9 p.m. She slept.", "She slept."),
        ("(A table is below.) We go on.", "We go on."),
        ("Sepsis. 2. Kidney failure.", "2. Kidney failure."),
        ("The work took years... It was worth it.", "It was worth it."),
        ("Two aims: (i) to see. (ii) To learn.", "(ii) To learn."),
    ],
)
def test_a_sentence_ends_where_another_begins(text, second):
    assert sentences(text)[-1] == second
    assert len(sentences(text)) == 2


@pytest.mark.parametrize(
    "expected",
    [
        ["患者有发热。", "体温38.5℃！", "是肺炎吗？", "是……。"],
        ["医生说：“多休息。”然后离开。", "（见图1。）", "“好。”", "“是。”"],
        ["「はい。」と言った。", "３．５ mgを投与した．", "便のＥ．ｃｏｌｉは陰性｡"],
        ["रोगी को बुखार है।", "उसे दवा दी गई॥"],
        ["អ្នកជំងឺមានគ្រុនក្តៅ។", "គាត់លេបថ្នាំ៕"],
        ["လူနာဖျားသည်။", "ဆေးသောက်သည်။"],
        ["ผู้ป่วยมีไข้ ไอ\n", "เจ็บคอ"],  # Thai has no mark: a line is a sentence
    ],
)
def test_a_full_stop_of_other_scripts_ends_a_sentence_without_white_space(expected):
    assert sentences("".join(expected)) == [sentence.strip() for sentence in expected]


def test_a_header_an_item_and_a_short_line_stand_alone():
    text = "HOSPITAL COURSE\nPLAN:\n1. Rest\n2) No salt\n- aspirin\n[x] heparin\n# Sepsis\nWBC 14.2, Hgb 9.8\nNa 131"
    assert sentences(text) == text.split("\n")


WRAPPED = (
    "This is a 67-year-old man with chronic heart failure (LVEF 25%), seen by Dr. Osei of St. Agatha's Clinic and by "
    "Neurology. He sleeps on four pillows, and could not climb one flight of stairs. He denies chest pain, fever, etc. "
    "The dose was 1.5 mg p.o. b.i.d. until Monday. Was it raised? Nobody knows."
)


@pytest.mark.parametrize("width", range(60, 110, 7))
def test_sentences_do_not_depend_on_the_width_of_wrapped_lines(width):
    wrapped = sentences("\n".join(textwrap.wrap(WRAPPED, width)))
    assert [" ".join(sentence.split()) for sentence in wrapped] == sentences(WRAPPED)
    assert len(wrapped) == 6


def test_lines_of_a_text_that_is_not_wrapped_are_sentences():
    lines = ["A first line that says much more than the second one does, " * 3, "Two"]
    assert sentences("\n".join(lines)) == [line.strip() for line in lines]


def test_only_white_space_is_outside_the_spans_of_any_text():
    rng = random.Random(3)
    marks = ["1.", "12", "[1]", *'."?!()µ', "..", " ", "\n", "\n\n", "\t"]
    pieces = ["Dr", "E", "coli", "- ", *marks]
    for _ in range(2000):
        text = "".join(rng.choices(pieces, k=rng.randrange(30)))
        last_end = 0
        for start, end in sentence_spans(text):
            assert last_end <= start < end
            assert text[last_end:start].strip() == "" and text[start:end] == text[start:end].strip()
            last_end = end
        assert text[last_end:].strip() == ""


@pytest.mark.parametrize(
    "piece", [".", "? ", "x. ", ".[1,", "1,", "x\n", ".)", "(", "a.1", "。", "。）", "。”a", "．", "।”"]
)
def test_time_grows_with_the_text_and_not_with_its_square(piece):
    assert sentence_spans(piece * 50_000)  # minutes, if a rule went back to the beginning each time


def test_a_long_text_is_read_a_paragraph_at_a_time():
    paragraph = "The patient was seen.\nHe was given aspirin. No fever\nwas found after two days.\n\n"
    text = paragraph * 8_000
    tracemalloc.start()
    try:
        count = sum(1 for _ in iterate_sentences(text))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 8_000 * len(sentences(paragraph))
    assert peak < len(text) / 20


@pytest.mark.parametrize("text", [" " * 200_000 + "e.g. " * 20_000, "iv" * 50_000 + " e.g. " * 20_000, "\n" * 200_000])
def test_hostile_text_takes_no_longer_than_its_length(text):
    started = time.monotonic()
    assert len(sentence_spans(text)) == bool(text.strip())
    assert time.monotonic() - started < 5
