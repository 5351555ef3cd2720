"""What is printed: a control character of a corpus or of a file's name may not reach the terminal as one."""

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


NAMES: dict[str, str] = {}
"""What the user calls a file that stands for another, by its path: a copy of standard input."""


def renamed(text: str) -> str:
    """`text` with the user's words for the files of `NAMES`."""
    for path, name in NAMES.items():
        text = text.replace(path, name)
    return text


def printable(text: str) -> str:
    r"""`text` with control characters as escapes, as JSON writes them (`\u001b`); line breaks and tabs stay.

    Halves of surrogate pairs, which stand for undecodable bytes of a file's name, are escaped too. Files are called
    by the names in `NAMES`.
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", renamed(text))
