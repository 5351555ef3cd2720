"""The stage `domain.notes`: the notes of each stay of a cohort, cleaned, in order, as one text with its sections.

Tables of notes are streamed once, and the notes that are kept are written to the disk in blocks; then texts are put
together in shards. So memory depends on neither the table nor the cohort, and after a kill the work resumes.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bertrelay.data.records import RejectList, Rejects
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, read_json, write_json, write_text
from bertrelay.progress import log, progress
from bertrelay.stage import Metrics, StageContext, run_alone
from domain.clinical.cleaning import TOKENS, Note, text_of
from domain.clinical.cohort import COHORT, SPLITS, STAYS
from domain.clinical.mimic import NOTES, Block, note_version, read_blocks, tables_of
from domain.clinical.note_filter import (
    BY_DAY,
    COLUMNS,
    NO_TEXT,
    NOT_STORED,
    NOTE_SCHEMA,
    REASONS,
    UNKNOWN,
    Integers,
    NoteFilter,
    Stays,
    read_stays,
)
from domain.clinical.settings import NOT_IN_IV, NotesSettings


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
    with atomic_write(file) as building, pa.ipc.new_file(building, NOTE_SCHEMA) as writer:
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


PART_BYTES = 16 << 20
"""Of text that is put together at once."""

SECTION = pa.struct({"start": pa.int32(), "end": pa.int32(), "name": pa.string()})
TEXT_SCHEMA = pa.schema(
    {
        "hadm_id": pa.string(),
        "subject_id": pa.string(),
        "text": pa.string(),
        "sections": pa.list_(SECTION),
        "n_notes": pa.int32(),
        "split": pa.string(),
    }
)


def write_parts(blocks: Sequence[Path], stays: Stays, folder: Path, account: Account) -> list[Path]:
    """Writes the texts of runs of stays to a file each; killed, it goes on at the run it was at."""
    folder.mkdir(parents=True, exist_ok=True)
    borders = _borders(blocks, stays.table.num_rows)
    files = [folder / f"{number:06}.parquet" for number in range(len(borders) - 1)]
    done = sum(file.with_suffix(".json").exists() for file in files)
    with progress("putting notes together", stays.table.num_rows, "stays", int(borders[done])) as bar:
        for file, first, end in zip(files, borders[:-1], borders[1:], strict=True):
            facts = read_json(file.with_suffix(".json"))
            if facts is None:
                facts = _write_part(file, blocks, stays, int(first), int(end))
                bar.advance(int(end - first))
            account.counts[NO_TEXT] += facts["without_text"]
            account.kept -= facts["without_text"]
    return files


def _borders(blocks: Sequence[Path], stays: int) -> Integers:
    """The first stay of each run, and the number of stays; a run has about `PART_BYTES` of text."""
    bytes_of_stay = np.zeros(stays, np.int64)
    for file in blocks:
        block = open_block(file)
        np.add.at(bytes_of_stay, block["stay"].to_numpy(), pc.binary_length(block["text"]).to_numpy())
    filled = np.cumsum(bytes_of_stay)
    inner = np.searchsorted(filled, np.arange(PART_BYTES, filled[-1], PART_BYTES)) + 1
    return np.unique(np.concatenate([[0], inner, [stays]]))


def _write_part(file: Path, blocks: Sequence[Path], stays: Stays, first: int, end: int) -> dict[str, int]:
    rows = pa.concat_tables([_of_stays(open_block(block), first, end) for block in blocks])
    rows = rows.take(pc.sort_indices(rows, [("stay", "ascending")]))
    texts = [(stay, len(notes), text_of(notes)) for stay, notes in _by_stay(rows)]
    known = [(stay, text) for stay, _, text in texts if text["n_notes"]]
    cohort = stays.table.take(pa.array([stay for stay, _ in known], pa.int32()))
    columns = {name: cohort[name] for name in ("hadm_id", "subject_id", "split")}
    columns |= {name: [text[name] for _, text in known] for name in ("text", "sections", "n_notes")}
    with atomic_write(file) as building:
        pq.write_table(pa.table(columns, schema=TEXT_SCHEMA), building)
    facts = {"without_text": sum(count - text["n_notes"] for _, count, text in texts)}
    write_json(file.with_suffix(".json"), facts, compact=True)  # last: its presence means all is there
    return facts


def _of_stays(block: pa.Table, first: int, end: int) -> pa.Table:
    """The rows of stays `first` to `end`, the last one not included, of a block that is sorted by stay."""
    start, stop = np.searchsorted(block["stay"].to_numpy(), [first, end])
    return block.slice(start, stop - start)


def _by_stay(rows: pa.Table) -> Iterator[tuple[int, list[Note]]]:
    for stay, group in groupby(rows.to_pylist(), key=lambda row: int(row.pop("stay"))):
        yield stay, [Note(**row) for row in group]


NOTES_FILE, TOKENS_FILE, FLOW_FILE, ABOUT_FILE = "notes.parquet", "tokens.txt", "flow.csv", "notes.json"


def write_notes(settings: NotesSettings, folder: Path) -> Metrics:
    """The stage outside of a recipe: writes into `folder`; killed and called again, it goes on."""
    return run_alone(run, settings, folder, sensitive=True)


def run(settings: NotesSettings, context: StageContext) -> Metrics:
    """Writes `notes.parquet`, a row for each stay that has notes; `notes.json`, which notes of which stays these are;
    `flow.csv`; and `tokens.txt`, those of `marks`.

    Raises RequestError for missing or damaged tables, where no note belongs to the cohort, and for early notes of
    MIMIC-IV; WorkError for too many unusable rows.
    """
    if not context.process_group.is_main:
        return {}
    tables = tables_of(settings.mimic, NOTES)
    if settings.input == "early" and note_version(tables) == "IV":
        raise RequestError(NOT_IN_IV)
    file = STAYS if settings.stays == "all" else COHORT
    stays = read_stays(Path(settings.cohort), tables.get("admissions"), file)
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        notes_of = NoteFilter(stays, settings)
        read = {table: tables[table] for table in _tables_to_read(settings, tables)}
        blocks, account = write_note_blocks(read, notes_of, context.work / "notes", rejects)
    parts = write_parts(blocks, stays, context.work / "parts", account)
    _check_any(account, settings)
    written = _write_notes(parts, context.output / NOTES_FILE)
    open_stays = int(notes_of.open.sum()) if settings.input == "early" else None
    without = (stays.table.num_rows if open_stays is None else open_stays) - sum(written.values())
    if without:
        log(f"notes: {without:,} stays are left without text")
    _write_flow(context.output / FLOW_FILE, account, stays.table.num_rows, open_stays, written, without)
    write_text(context.output / TOKENS_FILE, "".join(token + "\n" for token in TOKENS))
    write_json(context.output / ABOUT_FILE, {"input": settings.input, "stays": settings.stays})
    return _metrics(account, written) | {"stays_without_text": without}


def _tables_to_read(settings: NotesSettings, tables: dict[str, Path]) -> list[str]:
    """The tables whose rows are asked for; MIMIC-III has all notes in one."""
    if note_version(tables) == "III":
        return ["noteevents"]
    if settings.radiology and "radiology" not in tables:
        raise RequestError("radiology: there is no table radiology.csv[.gz]. Fetch it, or leave it out.")
    return ["discharge", "radiology"] if settings.radiology else ["discharge"]


def _check_any(account: Account, settings: NotesSettings) -> None:
    if account.kept == 0:
        raise RequestError(
            f"no note belongs to the cohort. Of {account.rows:,} rows were left out: {_told(account)}. "
            f"Check that the cohort in {settings.cohort} was made of the same release as these notes, and that `input` "
            "asks for the notes you mean."
        )
    log(f"notes: kept {account.kept:,} of {account.rows:,} rows; left out {_told(account)}")
    if account.counts[UNKNOWN]:
        log(
            f"{account.counts[UNKNOWN]:,} notes are {UNKNOWN}: if they are many, see that both tables are whole and of "
            "one release"
        )


def _told(account: Account) -> str:
    found = [f"{account.counts[reason]:,} × {reason}" for reason in REASONS if account.counts[reason]]
    return ", ".join(found) or "none"


def _write_notes(parts: Sequence[Path], path: Path) -> dict[str, int]:
    """Puts the parts into one file; returns the number of stays in each split."""
    counts = dict.fromkeys(SPLITS, 0)
    with atomic_write(path) as building, pq.ParquetWriter(building, TEXT_SCHEMA) as writer:
        for part in parts:
            table = pq.read_table(part)
            writer.write_table(table)
            for found in pc.value_counts(table["split"]).to_pylist():
                counts[found["values"]] += found["counts"]
    return counts


def _write_flow(
    path: Path, account: Account, stays: int, open_stays: int | None, written: dict[str, int], without: int
) -> None:
    """Writes what was read, what was left out and why, and what is left: of notes, and of stays."""
    rows: list[tuple[object, ...]] = [("step", "notes", "stays"), ("of the cohort", "", stays)]
    if open_stays is not None:
        rows.append(("of the cohort, open at the cut-off", "", open_stays))
    rows.append(("rows that were read", account.rows, ""))
    rows += [(f"left out: {reason}", account.counts[reason], "") for reason in REASONS if account.counts[reason]]
    rejected = account.rows - account.kept - sum(account.counts[reason] for reason in REASONS)
    rows.append(("left out: cannot be used (rejects.jsonl)", rejected, ""))
    rows.append(("kept", account.kept, sum(written.values())))
    rows += [(f"kept, {what}", account.counts[what], "") for what in (BY_DAY, NOT_STORED)]
    rows.append(("left without text", "", without))
    rows += [(f"kept, {split}", "", count) for split, count in written.items()]
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def _metrics(account: Account, written: dict[str, int]) -> Metrics:
    found: Metrics = {"rows": account.rows, "notes": account.kept, "stays": sum(written.values())}
    found |= {f"stays/{split}": count for split, count in written.items()}
    return found | {f"left_out/{reason}": account.counts[reason] for reason in REASONS if account.counts[reason]}
