"""Records that readers of files give: texts, and those that are skipped for a reason."""

from typing import NamedTuple

from bertrelay.data.tables import Unusable

NO_TEXT = "without text"


class TextDocument(NamedTuple):
    """A text, paragraphs in lines, and what is known of where it comes from; unknown is empty.

    id: of the document, such as PubMed's number.
    group: whose it is, such as a patient's number.
    """

    text: str
    id: str = ""
    group: str = ""


class SkippedDocument(NamedTuple):
    """A document that is sound and is not read, for a reason to count by."""

    reason: str


TextItem = TextDocument | SkippedDocument | Unusable
"""What a source gives for each of its documents."""
