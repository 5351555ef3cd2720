"""The notes of a cohort's stays as they are read, in blocks on the disk, each sorted by stay; a kill costs one block.

Beside each block lies an account of what was left out of it, so that a run that goes on counts all of the table.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from bertrelay.data.records import RejectList, Rejects
from bertrelay.files import atomic_write, read_json, write_json
from bertrelay.progress import progress
from domain.clinical.cohorts.mimic import Block, read_blocks
from domain.clinical.notes.note_rows import COLUMNS, SCHEMA, NoteFilter


@dataclass
class Account:
    """What became of all rows that were read."""

    rows: int = 0
    kept: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, facts: Mapping[str, Any], rejects: Rejects) -> None:
        rejects.used(facts["rows"])
        for reject in facts["rejects"]:
            rejects.add(*reject)
        self.rows += facts["rows"] + len(facts["rejects"])
        self.kept += facts["kept"]
        self.counts.update(facts["counts"])


def write_note_blocks(
    tables: Mapping[str, Path], notes_of: NoteFilter, folder: Path, rejects: Rejects
) -> tuple[list[Path], Account]:
    """Writes what is kept of each block of the tables to `folder`; killed, it goes on at the block it was at.

    Returns the files of blocks, in the order of the tables and their rows, and the account of all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    account = Account()
    for table, source in tables.items():
        done = _done_before(folder, table)
        for file, facts in done:
            account.add(facts, rejects)
            files.append(file)
        read = done[-1][1]["bytes_read"] if done else 0
        with progress(f"reading {table}", source.stat().st_size, "bytes", read) as bar:
            found = RejectList()
            for block in read_blocks(source, COLUMNS[table], found, len(done)):
                file = folder / _name(table, block.number)
                kept, counts = notes_of(block.rows, table)
                account.add(_write_block(file, block, kept, counts, found), rejects)
                files.append(file)
                found.listed.clear()
                bar.advance(block.bytes_read - read, f"{account.rows:,} rows, {account.kept:,} kept")
                read = block.bytes_read
    return files, account


def _done_before(folder: Path, table: str) -> list[tuple[Path, dict[str, Any]]]:
    done: list[tuple[Path, dict[str, Any]]] = []
    while (facts := read_json((file := folder / _name(table, len(done))).with_suffix(".json"))) is not None:
        done.append((file, facts))
    return done


def _write_block(file: Path, block: Block, kept: pa.Table, counts: Counter[str], found: RejectList) -> dict[str, Any]:
    with atomic_write(file) as building, pa.ipc.new_file(building, SCHEMA) as writer:
        writer.write_table(kept)
    facts = {
        "rows": block.rows.num_rows,
        "kept": kept.num_rows,
        "bytes_read": block.bytes_read,
        "counts": dict(counts),
        "rejects": list(found.listed),
    }
    write_json(file.with_suffix(".json"), facts, compact=True)  # last: its presence means all is there
    return facts


def open_block(file: Path) -> pa.Table:
    """A block, mapped into memory."""
    return pa.ipc.open_file(pa.memory_map(str(file))).read_all()


def _name(table: str, block: int) -> str:
    return f"{table}-{block:06}.arrow"
