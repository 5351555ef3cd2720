"""What stands in a note for what was removed from it to protect its subject: typed tokens, one word each.

MIMIC-III says what it removed (`[**Hospital1 18**]`), MIMIC-IV does not (`___`); there the words around it tell, or
nothing does. Pretraining keeps these tokens whole and never masks them (`protected_tokens`).
"""

import re

NAME, DATE, AGE, HOSPITAL, PLACE = "[NAME]", "[DATE]", "[AGE]", "[HOSPITAL]", "[PLACE]"
PHONE, ADDRESS, ID, REMOVED = "[PHONE]", "[ADDRESS]", "[ID]", "[REMOVED]"

TOKENS = (NAME, DATE, AGE, HOSPITAL, PLACE, PHONE, ADDRESS, ID, REMOVED)
"""All of them; `REMOVED` is what is not known to be one of the others, `ADDRESS` one of the web or of mail."""

LONGEST_MARK = 200  # characters; a mark that never ends swallows no text
MARK_OF_III = re.compile(rf"\[\*\*(.{{0,{LONGEST_MARK}}}?)\*\*\]", re.DOTALL)
MARK_OF_IV = re.compile(r"(?<!_)___(?!_)")

WORDS_OF_III = (
    (PHONE, r"telephone|fax|pager|beeper|phone"),
    (ADDRESS, r"e-?mail|url"),
    (HOSPITAL, r"hospital|ward ?name|clinic"),
    (ID, r"numeric identifier|number|job|serial|mrn|ssn"),
    (AGE, r"age over|age"),
    (DATE, r"date|month|year|day|holiday"),
    (NAME, r"name|initials?|(?:attending|dictator|contact) info|known|doctor|cc contact"),
    (PLACE, r"location|address|street|apartment|city|state|country|county|zip ?code|po box|university|company"),
)
"""In this order, as `Hospital Unit Name` is no name and `Telephone Number` no number."""
KINDS_OF_III = [(token, re.compile(rf"\b(?:{words})", re.IGNORECASE)) for token, words in WORDS_OF_III]
FULL_DATE = re.compile(r"\s*\d{0,4}(?:\s*[-/]\s*\d{0,4}){0,2}\s*")

BEFORE_IV = (
    (NAME, r"\b(?:mr|mrs|ms|miss|dr|drs|prof|attending|name|provider|pcp|wife|husband|daughter|son)\.?:?"),
    (PHONE, r"\b(?:phone|telephone|tel|fax|pager|beeper|call)(?: (?:number|no|#|at))?[.:#]*"),
    (ID, r"\b(?:unit no|mrn|record number|medical record|account)[.:#]*"),
    (DATE, r"\b(?:date|date of birth|dob|dated|since|until|on|as of|dictated|transcribed)\.?:?"),
    (AGE, r"\b(?:age|aged):?"),
    (HOSPITAL, r"\b(?:facility|hospital|transferred (?:from|to)|admitted to)[.:]?"),
    (PLACE, r"\b(?:lives in|resides in|moved (?:from|to)|born in|address|city)[.:]?"),
)
AFTER_IV = (
    (AGE, r"[- ]*(?:year|yr|y/?o\b|yo[mf]\b)"),
    (HOSPITAL, r" (?:hospital|medical center|clinic|rehab\w*|nursing home)\b"),
    (DATE, r" \d\d:\d\d ?(?:[ap]m)?\b"),
    (PHONE, r"[-. ]+(?:x|ext)\b"),
    (NAME, r",? (?:m\.?d|r\.?n|ph\.?d|d\.?o|n\.?p)\b"),
)
KINDS_AFTER_IV = [(token, re.compile(rule, re.IGNORECASE)) for token, rule in AFTER_IV]
KINDS_BEFORE_IV = [(token, re.compile(rule + r"\s{0,3}$", re.IGNORECASE)) for token, rule in BEFORE_IV]
REACH = 40  # characters before a mark that are looked at


def with_tokens(text: str) -> str:
    """`text` with a typed token for each mark of either MIMIC; other brackets and other rows of `_` stay."""
    text = MARK_OF_III.sub(lambda found: _token_of_iii(found[1]), text)
    return MARK_OF_IV.sub(lambda found: _token_of_iv(text, found), text)


def _token_of_iii(words: str) -> str:
    """The token for what a mark of MIMIC-III says of itself."""
    if any(each.isdigit() for each in words) and FULL_DATE.fullmatch(words):
        return DATE
    return next((token for token, kind in KINDS_OF_III if kind.search(words)), REMOVED)


def _token_of_iv(text: str, found: re.Match[str]) -> str:
    """The token for what the words after a mark of MIMIC-IV, else those before it, say of it."""
    before = text[max(0, found.start() - REACH) : found.start()]
    after = (token for token, kind in KINDS_AFTER_IV if kind.match(text, found.end()))
    told = (token for token, kind in KINDS_BEFORE_IV if kind.search(before))
    return next(after, None) or next(told, REMOVED)
