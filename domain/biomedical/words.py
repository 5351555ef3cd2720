"""The words of a text, with their places: what becomes a token where a format wants tokens.

A word is a run of letters and digits with the marks that combine with them; every other character that is not white
space is a word of its own. So `COX-2` is three words, as BERT's own tokenizer has it, and `p53` is one.
"""

import re
import unicodedata
from bisect import bisect_left
from functools import cache
from itertools import accumulate

from domain.biomedical.annotations import Document, Span
from domain.sentences import sentence_spans

LAST_QUICK = 0xFFFF  # of a class of characters beyond it, `re` compares one after the other


def word_spans(text: str, start: int = 0, end: int | None = None) -> list[Span]:
    """(start, end) of each word between two places in `text`, in order; outside them there is only white space."""
    return [found.span() for found in _pattern().finditer(text, start, len(text) if end is None else end)]


def sentences_of(document: Document) -> list[list[Span]]:
    """The words of each sentence of a text. Sentences with an entity over their border become one."""
    spans = sorted((entity.start, entity.end) for entity in document.entities)
    reach = [0, *accumulate((end for _, end in spans), max)]  # how far those reach that begin before a place
    borders: list[Span] = []
    for start, end in sentence_spans(document.text):
        if borders and reach[bisect_left(spans, (start, 0))] > start:
            start = borders.pop()[0]
        borders.append((start, end))
    return [words for start, end in borders if (words := word_spans(document.text, start, end))]


@cache
def _pattern() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in range(LAST_QUICK + 1) if unicodedata.category(chr(code))[0] == "M")
    return re.compile(rf"[^\W_]+(?:[{marks}]+[^\W_]*)*|\S")
