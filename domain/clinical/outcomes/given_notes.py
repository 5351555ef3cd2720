"""A row of the notes that are given to be scored, of a file or a frame: whose it is, and what it says."""

from bertrelay.data.readers import is_unicode
from domain.clinical.ids import canonical_id, is_missing


def given_note(identifier: object, text: object) -> tuple[str, str]:
    """The admission, by its id in the one form, and the text, empty where it is missing.

    Raises ValueError, which tells nothing of the row but why it cannot be used.
    """
    name = canonical_id(identifier)
    if not name:
        raise ValueError("no id of an admission")
    if not isinstance(text, str) and not is_missing(text):
        raise ValueError("a note that is something other than text")
    given = text if isinstance(text, str) else ""
    if not is_unicode((name, given)):
        raise ValueError("text that is not valid Unicode (half of a surrogate pair)")
    return name, given
