"""Texts that a caller passes, and the sentences of a table's one text column: checked, counted, read block by block."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bertrelay.data.records import Column, Record, Rejects, Table, read
from bertrelay.errors import RequestError, WorkError
from bertrelay.settings import InputFile


def texts_of(given: Iterable[str], name: str) -> list[str]:
    """`given` as a list. Raises RequestError, which begins with `name`, for what is no iterable of texts."""
    return list(each_text(given, name))


def each_text(given: Iterable[str], name: str) -> Iterator[str]:
    """Streams `given`, each checked; raises as `texts_of` does, at once for what is no iterable of texts."""
    texts = _iterator(given, name, "texts", "[text]")
    return (_checked(text, name, f"position {place}") for place, text in enumerate(texts))


def _checked(text: object, name: str, place: str) -> str:
    if not isinstance(text, str):
        raise RequestError(f"{name}: expected text, found {type(text).__name__} at {place}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name}: expected valid Unicode, found half of a surrogate pair at character {error.start:,} of the text "
            f"at {place}. Read it with the encoding it was written in, or leave it out"
        ) from None
    return text


def each_pair(given: Iterable[tuple[str, str]], name: str) -> Iterator[tuple[str, str]]:
    """Streams pairs of texts, each checked. Raises RequestError, which begins with `name`, for what is none."""
    for number, pair in enumerate(_iterator(given, name, "pairs of texts", "[(first, second)]")):
        place = f"position {number}"
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise RequestError(f"{name}: expected two texts, (first, second), found another thing at {place}")
        yield _checked(pair[0], name, place), _checked(pair[1], name, place)


def _iterator(given: Any, name: str, items: str, example: str) -> Iterator[Any]:
    kind = type(given).__name__
    if isinstance(given, str):
        kind = f"one string; write {example}"
    elif isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "column_names"):
        kind = f'a {kind}, which would give its keys or column names; pass one column of it, such as frame["text"]'
    elif not isinstance(given, bytes):
        with suppress(TypeError):  # of an array without dimensions too, which has the method
            return iter(given)
    raise RequestError(f"{name}: expected a list of {items}, found {kind}")


ReadBlock = Callable[[int, int], list[str]]
"""(first, end) -> the sentences of these rows; called in rising order, from one thread."""


class SentenceScan(NamedTuple):
    """What one pass over a table found: how many sentences, how many of them blank, and the sha256 of all."""

    sentences: int
    blank: int
    digest: str


def as_table(source: Table | str | Path) -> Table:
    """`source` itself, or the file of that name, read by its suffix. Raises RequestError for sentences."""
    if isinstance(source, Table):
        return source
    name = str(source)
    is_sentence = len(name.split()) > 1 and "/" not in name and not Path(name).suffix and not Path(name).exists()
    if not isinstance(source, str | Path) or is_sentence:  # an error may not show it
        kind = "a sentence" if isinstance(source, str) else type(source).__name__
        raise RequestError(f"expected a Table or the name of a file of sentences, found {kind}; write them to a file")
    return Table(path=InputFile.parse(name))


def sentences_of(table: Table, cache: Path | None = None) -> Iterator[str]:
    """The texts of `sentence_records`, as a stream."""
    return (record.values[0] for record in sentence_records(table, cache))


def sentence_records(table: Table, cache: Path | None = None, rejects: Rejects | None = None) -> Iterator[Record]:
    """Streams the sentences: of the one column that `table` names, else of `text`, or each line of plain lines.

    cache: where a data set of the hub is kept.
    rejects: as for `bertrelay.data.records.read`; the caller counts the used ones.
    Raises RequestError for a table that is not there, is empty, lacks the column, or has values that are no text.
    """
    for record in read(table, text_column(table), cache, rejects):
        if len(record.values) != 1:
            raise RequestError(f"{table.name}: expected one column of text, found {len(record.values)} columns named")
        if not isinstance(record.values[0], str):
            kind = type(record.values[0]).__name__
            if rejects is not None:
                rejects.add(record.file, record.line, "not text", detail=f"found {kind}")
                continue
            raise RequestError(
                f"{record.file}, line {record.line:,}: expected text, found {kind}; name a column of text"
            )
        yield record


def text_column(table: Table) -> list[Column]:
    """The column of the text: those that `table` names, else `text`, or each line of plain lines."""
    return table.columns or [0 if table.path and table.file_format == "lines" else "text"]


def check_first(table: Table, rejects: Rejects | None = None) -> None:
    """Reads one sentence, which finds most errors of a request. Raises as `sentence_records` does."""
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
    """Reads blocks of `table` in one pass, skipping those that are not wanted.

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
