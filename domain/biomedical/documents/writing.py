"""Writing that formats share: text files that appear only when complete, and refusals of documents."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bertrelay.data.records import Rejects
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write
from bertrelay.privacy import is_sensitive
from domain.biomedical.documents.document import Document
from domain.biomedical.documents.losses import Counts
from domain.biomedical.documents.soundness import check_document
from domain.reading import shown_id

Write = Callable[[Document], None]
"""Appends a document to an open file or folder, or raises Rejected."""


@contextmanager
def open_text_file(
    path: Path, rendered: Callable[[Document], str], head: str = "", between: str = "", tail: str = ""
) -> Iterator[Write]:
    """Opens a new text file of rendered documents, with `between` two of them; it appears only when complete."""
    with atomic_write(path) as building, building.open("w", encoding="utf-8", newline="\n") as file:
        file.write(head)
        separators = iter([""])

        def write(document: Document) -> None:
            text = rendered(document)
            file.write(next(separators, between) + text)

        yield write
        file.write(tail)


def everything(document: Document, left_out: Counts) -> Document:  # noqa: ARG001 (nothing is left out)
    """The document as it is, for a format that holds everything."""
    return document


class Writer(NamedTuple):
    """The writer of a format.

    rendered: gives the text of a document; raises Rejected for one that the format cannot hold.
    opened: opens a new file of the format with `rendered`, and gives the function that appends a document.
    fit: gives a document without what the format cannot hold, which it adds to the counts; reading what was written
        of it gives it again.
    head, tail: what a text file has before its documents and after them.
    """

    rendered: Callable[[Document], Any]
    opened: Callable[..., AbstractContextManager[Write]] = open_text_file
    fit: Callable[[Document, Counts], Document] = everything
    head: str = ""
    tail: str = ""

    def file_text(self, document: Document) -> str:
        """The text of a file with one document. Raises Rejected for one that the format cannot hold."""
        return f"{self.head}{self.rendered(document)}{self.tail}"


def append(document: Document, write: Callable[[Document], object], name: str, rejects: Rejects | None) -> None:
    """Passes a document to `write`; `rejects` counts it.

    Without `rejects` a document that format `name` cannot hold raises RequestError.
    """
    try:
        check_document(document)
        write(document)
    except Rejected as fault:
        if rejects is None:
            source = f"{document.file}, line {document.line:,}" if document.file else "documents"
            raise RequestError(
                f"{source}: {name} cannot hold document {shown_id(document.id)!r}: {fault.reason}{fault.note}. "
                "Write it in a format that can, JSONL for example."
            ) from None
        file, record = document.file, shown_id(document.id)
        if not file:
            file, record = f"document {f'number {rejects.records + 1:,}' if is_sensitive() else document.id}", ""
        detail = "; ".join(filter(None, [fault.detail, f"{name} cannot hold it; JSONL, for example, can"]))
        rejects.add(file, document.line, fault.reason, record, detail)
    else:
        if rejects is not None:
            rejects.used()
