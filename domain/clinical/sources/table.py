"""The source of a hospital's own tables: stays and notes in any columns, named in the recipe."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from bertrelay.data.records import rows
from domain.clinical.sources.form import ESSENTIAL, Reject
from domain.clinical.sources.reading import frames
from domain.clinical.sources.settings import NoteTable, OwnTable, StayTable


def _blocks(source: OwnTable, essential: tuple[str, ...] | None, reject: Reject) -> Iterator[pd.DataFrame]:
    return frames(rows(source.table, []), source.path, list(source.read_columns()), essential, reject)


class TableStays:
    """A table with a row for each stay."""

    def __init__(self, source: StayTable) -> None:
        self._source, self.file = source, Path(source.path)

    def blocks(self, reject: Reject) -> Iterator[pd.DataFrame]:
        """Streams the stays."""
        return _blocks(self._source, ESSENTIAL, reject)


class TableNotes:
    """A table with a row for each note."""

    def __init__(self, source: NoteTable) -> None:
        self._source = source
        self.files: Mapping[str, Path] = {"source": Path(source.path)}

    def blocks(self, table: str, reject: Reject) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Streams the notes."""
        return _blocks(self._source, None, reject)
