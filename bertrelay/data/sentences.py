"""The sentences of a table's one text column, in their order: checked and counted, then read block by block.

This room loads neither torch nor transformers, so that a wrong file is told of at once.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bertrelay.data.records import Column, Record, Rejects, Table, read
from bertrelay.errors import RequestError, WorkError
from bertrelay.settings import InputFile

ReadBlock = Callable[[int, int], list[str]]
"""(first, end) -> the sentences of these rows; asked in rising order, from one thread."""


@dataclass(frozen=True)
class SentenceScan:
    """What one pass over a table found: how many sentences, how many of them blank, and the sha256 of all."""

    sentences: int
    blank: int
    digest: str


def as_table(source: Table | str | Path) -> Table:
    """`source` itself, or the file of that name, read as what its suffix says. Raises RequestError for sentences."""
    if isinstance(source, Table):
        return source
    if not isinstance(source, str | Path) or _is_sentence(str(source)):  # an error may not show it
        found = "a sentence" if isinstance(source, str) else type(source).__name__
        raise RequestError(f"expected a Table or the name of a file of sentences, found {found}; write them to a file")
    return Table(path=InputFile.parse(str(source)))


def _is_sentence(name: str) -> bool:
    """Whether `name` has several words, no folder and no suffix, and no file has this name."""
    return len(name.split()) > 1 and "/" not in name and not Path(name).suffix and not Path(name).exists()


def sentences_of(table: Table, cache: Path | None = None) -> Iterator[str]:
    """The texts of `sentence_records`, as a stream."""
    return (record.values[0] for record in sentence_records(table, cache))


def sentence_records(table: Table, cache: Path | None = None, rejects: Rejects | None = None) -> Iterator[Record]:
    """Streams the sentences: of the one column that `table` names, else of `text`, or each line of plain lines.

    cache: where a data set of the hub is kept.
    rejects: as for `bertrelay.data.records.read`; the caller counts the used ones.
    Raises RequestError for a table that is not there, is empty, lacks the column, or holds what is not text.
    """
    for record in read(table, text_column(table), cache, rejects):
        if len(record.values) != 1:
            raise RequestError(f"{table.name}: expected one column of text, found {len(record.values)} columns named")
        if not isinstance(record.values[0], str):
            found = type(record.values[0]).__name__
            if rejects is not None:
                rejects.add(record.file, record.line, "not text", detail=f"found {found}")
                continue
            raise RequestError(
                f"{record.file}, line {record.line:,}: expected text, found {found}; name a column of text"
            )
        yield record


def text_column(table: Table) -> list[Column]:
    """The column of the text: those that `table` names, else `text`, or each line of plain lines."""
    return table.columns or [0 if table.path and table.file_format == "lines" else "text"]


def check_first(table: Table, rejects: Rejects | None = None) -> None:
    """Reads one sentence, which tells most of what can be wrong with a request. Raises as `sentence_records` does."""
    next(sentence_records(table, rejects=rejects), None)


def scan(table: Table, cache: Path | None = None, rejects: Rejects | None = None) -> SentenceScan:
    """Reads `table` through; `rejects` takes records that cannot be used.

    Raises RequestError when there is none that can, and without `rejects` at the first that cannot, with file and line.
    """
    sentences, blank, digest = 0, 0, hashlib.sha256()
    for (text,), _, _ in sentence_records(table, cache, rejects):
        if rejects is not None:
            rejects.used()
        data = text.encode()
        sentences += 1
        blank += not text.strip()
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    if not sentences:
        raise RequestError(f"{table.name}: expected sentences, found no record that can be used")
    return SentenceScan(sentences, blank, digest.hexdigest())


def block_reader(table: Table, cache: Path | None = None, skip_invalid: bool = False) -> ReadBlock:
    """Reads blocks of `table` in one pass, stepping over those that nobody asks for.

    skip_invalid: whether records that cannot be used are left out, as `scan` with rejects does.
    """
    rejects = Rejects(None, limit=1.0) if skip_invalid else None
    texts, place = (record.values[0] for record in sentence_records(table, cache, rejects)), 0

    def read_block(first: int, end: int) -> list[str]:
        nonlocal place
        deque(islice(texts, first - place), maxlen=0)
        block, place = list(islice(texts, end - first)), end
        if len(block) != end - first:
            raise WorkError(f"{table.name} became shorter while it was read; run the same command again")
        return block

    return read_block
