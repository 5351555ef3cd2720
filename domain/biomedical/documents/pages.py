"""HTML: a page of documents with their entities in colour, to look at; it is not read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertrelay.files import atomic_write
from domain.biomedical.documents.document import Document, Write, in_one_piece
from domain.biomedical.ner.page import check_apart, page


@contextmanager
def writing(path: Path) -> Iterator[Write]:
    """A page of documents, named after its file; it is drawn when all are there."""
    documents: list[Document] = []

    def write(document: Document) -> None:
        check(document)
        documents.append(document)

    with atomic_write(path) as building:
        yield write
        building.write_text(page(documents, path.stem), encoding="utf-8")


def check(document: Document) -> None:
    """Raises Unfit for entities that a page cannot mark."""
    in_one_piece(document, "a page")
    check_apart(document.entities)
