"""JSONL: a document in each line, `{"id", "text", "entities": [{"start", "end", "type", "text", "confidence"}]}`.

It holds everything of a document; `identifier`, `fragments` (of a discontinuous entity), `passages` and `sentences`
are written where there are any. Other keys are ignored. A document without `id` is named by its line.

Raw text is read here too: a file or a folder of `.txt` files, each a document; or a document in each line.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from bertrelay.data.tables import Unusable
from domain.biomedical.documents import text_files
from domain.biomedical.documents.document import Document, Entity, Item, Passage, Span, Unfit, numbered_lines
from domain.biomedical.documents.json_stream import Shape, parsed
from domain.biomedical.documents.soundness import check_document, whole_text

SUFFIX = re.compile(r"(\.txt)?(\.gz)?\Z", re.IGNORECASE)


class _JsonEntity(Shape):
    start: int
    end: int
    type: str
    text: str | None = None
    confidence: float | None = None
    identifier: str | None = None
    fragments: tuple[Span, ...] = ()


class _JsonDocument(Shape):
    id: str | int | None = None
    text: str
    entities: tuple[_JsonEntity, ...] | None = None
    passages: tuple[Passage, ...] = ()
    sentences: tuple[tuple[Span, ...], ...] = ()


def read(path: Path) -> Iterator[Item]:
    """Streams the documents of a file, one in each line that is not blank."""
    for row in numbered_lines(path):
        if isinstance(row, Unusable):
            yield row
        elif row.values[0].strip():
            try:
                found = parsed(_JsonDocument, row.values[0])
                given = found.entities or ()
                entities = tuple(Entity(**each.model_dump(exclude={"text"})) for each in given)
                name = str(row.line if found.id is None else found.id)
                document = Document(name, found.text, entities, found.passages, found.sentences, row.file, row.line)
                check_document(document, [each.text for each in given])
                yield document
            except Unfit as fault:
                yield Unusable(row.file, row.line, fault.reason, fault.detail)


def read_text_files(path: Path) -> Iterator[Item]:
    """A document for each file, named after it; to the character, line ends included."""
    for file in text_files(path) if path.is_dir() else [path]:
        try:
            yield Document(SUFFIX.sub("", file.name, count=1), whole_text(file), file=str(file), line=1)
        except Unfit as fault:
            yield Unusable(str(file), 1, fault.reason, fault.detail)


def read_text_lines(path: Path) -> Iterator[Item]:
    """A document for each line that is not blank, named by its number."""
    for row in numbered_lines(path):
        if isinstance(row, Unusable):
            yield row
        elif row.values[0].strip():
            yield Document(str(row.line), row.values[0], file=row.file, line=row.line)
