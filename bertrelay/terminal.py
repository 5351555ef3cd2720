"""What is printed: a control character of a corpus or of a file's name may not reach the terminal as one."""

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""`text` with control characters as escapes, as JSON writes them (`\u001b`); line breaks and tabs stay.

    Halves of surrogate pairs, which stand for undecodable bytes of a file's name, are escaped too.
    """
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
