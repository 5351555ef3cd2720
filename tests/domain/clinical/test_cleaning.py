import re

import pytest

from domain.clinical import cleaning
from domain.clinical.cleaning import clean, find_sections

OF_III = {
    "[NAME]": "First Name8 (NamePattern2) 123|Known lastname 4412|Doctor Last Name |Initials (NamePattern4) |"
    "Attending Info |Last Name (STitle) 88|Last Name\n(un) 3",
    "[DATE]": "2101-10-20|10-20|2101|6-/2304|Month/Day (2) 33|Year (4 digits) |Date range (1) 12|Holiday ",
    "[AGE]": "Age over 90 ",
    "[HOSPITAL]": "Hospital1 18|Hospital Unit Name 10|Wardname 5",
    "[PLACE]": "Location (un) 620|Street Address(2) 7|State 350|Country 31|University/College ",
    "[PHONE]": "Telephone/Fax (1) 253|Pager number 3",
    "[ADDRESS]": "E-mail address 3",
    "[ID]": "Numeric Identifier 123|Medical Record Number 9|MD Number(1) 5|Clip Number (Radiology) 5",
    "[REMOVED]": "Ethnicity 5| ",
}
OF_IV = {
    "[NAME]": "Mr. ___|Name:  ___|Attending: ___.|___, MD",
    "[DATE]": "Admission Date:  ___|seen on ___|___ 06:30AM BLOOD WBC-5.4",
    "[AGE]": "a ___ year old man|a ___-year-old woman|___ yo F",
    "[ID]": "Unit No:   ___",
    "[PHONE]": "Phone: ___|call ___",
    "[HOSPITAL]": "Facility:\n___|at ___ Hospital|transferred from ___",
    "[PLACE]": "lives in ___",
    "[REMOVED]": "with ___ and",
}
MARKS = [(f"[**{words}**]", token) for token, listed in OF_III.items() for words in listed.split("|")]
MARKS += [(words, token) for token, listed in OF_IV.items() for words in listed.split("|")]


@pytest.mark.parametrize(("mark", "token"), MARKS)
def test_a_mark_becomes_the_token_of_what_it_hides(mark, token):
    cleaned = clean(mark)
    assert re.findall(r"\[[A-Z]+\]", cleaned) == [token]
    assert "**" not in cleaned and "_" not in cleaned


def test_every_token_is_one_of_those_that_pretraining_protects():
    assert {*OF_III, *OF_IV} == set(cleaning.TOKENS)
    assert len(set(cleaning.TOKENS)) == len(cleaning.TOKENS)


@pytest.mark.parametrize(
    "text",
    [
        "T 98.6, INR 2.5, 0.5 mg, .25, 1. Aspirin 81 mg",
        "[ ] aspirin [x] statin [X] ACE inhibitor [] none",
        "WBC-5.4 RBC-3.21* Hgb-10.1* [HIGH] (see below) [1] ** note **",
        "a_b, __init__, ____ and [** never closed",
        "Ketones:\n++++\nOedema:\n+++++ ++++",  # findings, not rules
        "Temp 38.5 °C, µg/mL, naïve, 患者",
    ],
)
def test_numbers_boxes_and_other_brackets_stay(text):
    assert clean(text) == text


def test_wrapped_lines_are_joined_and_others_stay():
    text = (
        "Mr. [**Known lastname 4412**] is a 67-year-old man with chronic heart\n"
        "failure (LVEF 25%), hypertension and type 2 diabetes who presents with\n"
        "three days of dyspnea.\n"
        "1. Aspirin 81 mg\n"
        "2. Metoprolol 12.5 mg\n"
    )
    assert clean(text) == (
        "Mr. [NAME] is a 67-year-old man with chronic heart failure (LVEF 25%), hypertension and type 2 diabetes who "
        "presents with three days of dyspnea.\n1. Aspirin 81 mg\n2. Metoprolol 12.5 mg"
    )


def test_a_header_is_never_joined_to_the_line_before_it():
    text = "The patient was taken to the operating room on the day after her admis\nDISCHARGE MEDICATIONS: aspirin."
    assert "\nDISCHARGE MEDICATIONS: aspirin." in clean(text)


@pytest.mark.parametrize("date", ["___", "[**2101-1-2**]"])
def test_values_of_another_hour_are_never_joined_to_the_line_before_them(date):
    line = f"{date} 06:51AM BLOOD Glucose-103* UreaN-37* Creat-2.3* Na-138 K-4.1 Cl-101"
    assert clean(f"{line}\n{line}\nHCO3-24") == f"{line}\n{line} HCO3-24".replace(date, "[DATE]")


def test_rules_line_breaks_of_all_kinds_and_empty_lines_are_made_plain():
    assert clean("one\r\n\r\n\r\n\r\ntwo\rthree \t four\u00a0five\x07\n ______\n------ ======\n\nsix\x0b") == (
        "one\n\ntwo\nthree four five\n\nsix"
    )


@pytest.mark.parametrize("text", ["", " \n\t", "\x00\x01", "-----\n_____\n", "\ufeff".strip("\ufeff")])
def test_what_has_no_words_is_empty(text):
    assert clean(text) == ""


def test_no_word_is_lost():
    text = "\n".join(f"word{n} alpha{n}. Beta{n}: {n}.{n}" + " filler" * (n % 13) for n in range(200))
    assert clean(text).split() == text.split()


NOTE = """Admission Date: [DATE] Discharge Date: [DATE]

Allergies:
Penicillins

HISTORY OF PRESENT ILLNESS: Dyspnea. He said: no pain.
BP: 120/80
Exam is below:
Skin: warm
Brief Hospital Course:
Better.
MEDICATIONS ON ADMISSION
aspirin
CARDIAC SUPPORT: none
"""


def test_sections_are_found_with_their_offsets():
    sections = find_sections(NOTE)
    assert [section.name for section in sections] == [
        "admission date",
        "allergies",
        "history of present illness",
        "exam is below",
        "brief hospital course",
        "medications on admission",
        "cardiac support",
    ]
    assert [NOTE[section.start :].split("\n")[0].lower().startswith(section.name) for section in sections] == [True] * 7
    assert [one.end for one in sections] == [other.start for other in sections[1:]] + [len(NOTE)]


def test_text_without_headers_has_no_sections():
    assert find_sections("Pt alert and oriented x3.\nMAE, follows commands.\nu/o 30-40: amber.") == []
    assert find_sections("") == []
    assert find_sections(f"Plan{' ' * 200_000}!") == []  # at once
    assert [section.name for section in find_sections(f"Plan{' ' * 90}\n")] == ["plan"]
