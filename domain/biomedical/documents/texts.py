"""Raw text, without entities: a file or a folder of `.txt` files, each a document; or a document in each line."""

import re
from collections.abc import Iterator
from pathlib import Path

from bertrelay.data.tables import Unusable
from domain.biomedical.documents.document import Document, Item, Unfit, numbered_lines, whole_text

SUFFIX = re.compile(r"(\.txt)?(\.gz)?\Z", re.IGNORECASE)


def text_files(folder: Path) -> list[Path]:
    """The files of raw text in a folder, packed with gzip or not, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.name.lower().endswith((".txt", ".txt.gz")))


def read_files(path: Path) -> Iterator[Item]:
    """A document for each file, named after it; to the character, line ends included."""
    for file in text_files(path) if path.is_dir() else [path]:
        try:
            yield Document(SUFFIX.sub("", file.name, count=1), whole_text(file), file=str(file), line=1)
        except Unfit as fault:
            yield Unusable(str(file), 1, fault.reason, fault.detail)


def read_lines(path: Path) -> Iterator[Item]:
    """A document for each line that is not blank, named by its number."""
    for row in numbered_lines(path):
        if isinstance(row, Unusable):
            yield row
        elif row.values[0].strip():
            yield Document(str(row.line), row.values[0], file=row.file, line=row.line)
