"""Abbreviations that a text defines, such as `ataxia-telangiectasia (A-T)`, and their long forms.

After Schwartz & Hearst (2003), "A simple algorithm for identifying abbreviation definitions in biomedical text".
"""

import re
from collections.abc import Iterator, Sequence

SHORT_LENGTHS = range(2, 11)  # characters
MOST_SHORT_WORDS = 2
BRACKETS = re.compile(r"\(([^()]*)\)")
END_OF_SHORT_FORM = re.compile(r"[;,]")
SENTENCE_END = re.compile(r"[.!?]\s")


def abbreviations(text: str) -> dict[str, str]:
    """The long form of each short form that `text` defines; the first definition counts.

    Both `long form (SF)` and `SF (long form)` define. In `the ataxia-telangiectasia (A-T) gene` the long form of `A-T`
    is `ataxia-telangiectasia`.
    """
    defined: dict[str, str] = {}
    for before, inside in _brackets(text):
        first = END_OF_SHORT_FORM.split(inside, maxsplit=1)[0].strip()
        last = before.split()[-1] if before.split() else ""
        if is_short_form(first):
            short, long = first, long_form(first, before)
        else:
            short, long = last, long_form(last, inside) if is_short_form(last) else None
        if long is not None:
            defined.setdefault(short, long)
    return defined


def _brackets(text: str) -> Iterator[tuple[str, str]]:
    """Yields the sentence before each pair of brackets, and the text in them."""
    for match in BRACKETS.finditer(text):
        before = text[: match.start()]
        ends = [end.end() for end in SENTENCE_END.finditer(before)]
        yield before[ends[-1] if ends else 0 :].rstrip(), match[1].strip()


def is_short_form(text: str) -> bool:
    """Returns true for 2 to 10 characters in one or two words, with a letter, of which the first is alphanumeric."""
    return (
        len(text) in SHORT_LENGTHS
        and len(text.split()) <= MOST_SHORT_WORDS
        and any(character.isalpha() for character in text)
        and text[0].isalnum()
    )


def long_form(short: str, before: str) -> str | None:
    """The shortest end of `before` that has the letters and digits of `short` in order; None without one.

    Its first letter begins a word of it. It has at most min(|short| + 5, 2 · |short|) words, more letters than `short`,
    and `short` is none of its words.
    """
    characters = [character.lower() for character in short if character.isalnum()]
    most = min(len(characters) + 5, 2 * len(characters))
    words = list(re.finditer(r"\S+", before))[-most:]
    if not words:
        return None
    start, at = words[0].start(), len(before)
    for number, character in reversed(list(enumerate(characters))):
        at = _last_with(character, before, start, at, begins_word=number == 0)
        if at < 0:
            return _permuted(characters, before, words)
    long = before[at:]
    if len(long) <= len(short) or short in long.split():
        return None
    return long


def _permuted(characters: Sequence[str], before: str, words: Sequence[re.Match[str]]) -> str | None:
    last = words[-len(characters) :]
    initials = [before[word.start()].lower() for word in last]
    return before[last[0].start() :] if sorted(initials) == sorted(characters) else None


def _last_with(character: str, text: str, start: int, end: int, *, begins_word: bool) -> int:
    """The last position in [start, end) with the character, in either case; -1 without one.

    begins_word: only where no letter or digit is before it.
    """
    for at in range(end - 1, start - 1, -1):
        if text[at].lower() == character and not (begins_word and at > 0 and text[at - 1].isalnum()):
            return at
    return -1
