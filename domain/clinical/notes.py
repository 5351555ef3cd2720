"""The stage `domain.notes`: the notes of each stay of a cohort, cleaned, in order, as one text with its sections.

Tables of notes are streamed once, and the notes that are kept are written to the disk in blocks, each sorted by stay;
then texts are put together in shards of stays. So memory depends on neither the table nor the cohort, and a killed run
resumes at the block or shard it was at.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bertrelay.data.records import RejectList, Rejects
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, read_json, write_json, write_text
from bertrelay.progress import log, progress
from bertrelay.stage import Metrics, StageContext, run_alone
from domain.clinical.cleaning import BETWEEN, TOKENS, clean, find_sections
from domain.clinical.cohort import COHORT, SPLITS, STAYS
from domain.clinical.mimic import NOTES, TableBlock, note_version, read_blocks, tables_of
from domain.clinical.note_filter import (
    BY_DAY,
    COLUMNS,
    NO_TEXT,
    NOT_STORED,
    NOTE_SCHEMA,
    OTHER,
    REASONS,
    REPORT,
    UNKNOWN,
    Integers,
    NoteFilter,
    Stays,
    read_stays,
)
from domain.clinical.settings import NOT_IN_IV, NotesSettings

NOTES_FILE, TOKENS_FILE, FLOW_FILE, ABOUT_FILE = "notes.parquet", "tokens.txt", "flow.csv", "notes.json"
SHARD_BYTES = 16 << 20
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


def write_notes(settings: NotesSettings, folder: Path) -> Metrics:
    """The stage outside of a recipe: writes into `folder`; killed and called again, it resumes."""
    return run_alone(run, settings, folder, sensitive=True)


def run(settings: NotesSettings, context: StageContext) -> Metrics:
    """Writes `notes.parquet`, a row for each stay that has notes; `notes.json`, which notes of which stays these are;
    `flow.csv`; and `tokens.txt`, the typed tokens.

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
        keep = NoteFilter(stays, settings)
        read = {table: tables[table] for table in _tables_to_read(settings, tables)}
        blocks, counts = write_blocks(read, keep, context.work / "notes", rejects)
    shards = write_shards(blocks, stays, context.work / "parts", counts)
    _check_any(counts, settings)
    written = _write_notes(shards, context.output / NOTES_FILE)
    open_stays = int(keep.open.sum()) if settings.input == "early" else None
    without = (stays.table.num_rows if open_stays is None else open_stays) - sum(written.values())
    if without:
        log(f"notes: {without:,} stays are left without text")
    _write_flow(context.output / FLOW_FILE, counts, stays.table.num_rows, open_stays, written, without)
    write_text(context.output / TOKENS_FILE, "".join(token + "\n" for token in TOKENS))
    write_json(context.output / ABOUT_FILE, {"input": settings.input, "stays": settings.stays})
    return _metrics(counts, written) | {"stays_without_text": without}


def _tables_to_read(settings: NotesSettings, tables: dict[str, Path]) -> list[str]:
    """The tables whose rows are wanted; MIMIC-III has all notes in one."""
    if note_version(tables) == "III":
        return ["noteevents"]
    if settings.radiology and "radiology" not in tables:
        raise RequestError("radiology: there is no table radiology.csv[.gz]. Fetch it, or leave it out.")
    return ["discharge", "radiology"] if settings.radiology else ["discharge"]


# Blocks: the rows that are kept of each block of a table


@dataclass
class NoteCounts:
    """Rows that were read, rows that were kept, and those that were dropped by reason."""

    rows: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, facts: Mapping[str, Any], rejects: Rejects) -> None:
        """Counts a block."""
        rejects.used(facts["rows"])
        for reject in facts["rejects"]:
            rejects.add(*reject)
        self.rows += facts["rows"] + len(facts["rejects"])
        self.kept += facts["kept"]
        self.dropped.update(facts["counts"])

    @property
    def reasons(self) -> dict[str, int]:
        """Those that were met, in the order in which they are checked."""
        return {reason: self.dropped[reason] for reason in REASONS if self.dropped[reason]}

    def summary(self) -> str:
        return ", ".join(f"{count:,} × {reason}" for reason, count in self.reasons.items()) or "none"


def write_blocks(
    tables: Mapping[str, Path], keep: NoteFilter, folder: Path, rejects: Rejects
) -> tuple[list[Path], NoteCounts]:
    """Writes what is kept of each block of the tables to `folder`, with its counts beside it.

    Returns the files, in the order of the tables and their rows, and the counts of all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    counts = NoteCounts()
    for table, source in tables.items():
        done = _done_before(folder, table)
        for file, facts in done:
            counts.add(facts, rejects)
            files.append(file)
        read = done[-1][1]["bytes_read"] if done else 0
        with progress(f"reading {table}", source.stat().st_size, "bytes", read) as bar:
            found = RejectList()
            for block in read_blocks(source, COLUMNS[table], found, len(done)):
                file = folder / _block_name(table, block.number)
                kept, dropped = keep(block.rows, table)
                counts.add(_write_block(file, block, kept, dropped, found), rejects)
                files.append(file)
                found.listed.clear()
                bar.advance(block.bytes_read - read, f"{counts.rows:,} rows, {counts.kept:,} kept")
                read = block.bytes_read
    return files, counts


def _done_before(folder: Path, table: str) -> list[tuple[Path, dict[str, Any]]]:
    done: list[tuple[Path, dict[str, Any]]] = []
    while (facts := read_json((file := folder / _block_name(table, len(done))).with_suffix(".json"))) is not None:
        done.append((file, facts))
    return done


def _write_block(
    file: Path, block: TableBlock, kept: pa.Table, dropped: Counter[str], found: RejectList
) -> dict[str, Any]:
    with atomic_write(file) as building, pa.ipc.new_file(building, NOTE_SCHEMA) as writer:
        writer.write_table(kept)
    facts = {
        "rows": block.rows.num_rows,
        "kept": kept.num_rows,
        "bytes_read": block.bytes_read,
        "counts": dict(dropped),
        "rejects": list(found.listed),
    }
    write_json(file.with_suffix(".json"), facts, compact=True)  # last: its presence means all is there
    return facts


def _open_block(file: Path) -> pa.Table:
    """A block, mapped into memory."""
    return pa.ipc.open_file(pa.memory_map(str(file))).read_all()


def _block_name(table: str, block: int) -> str:
    return f"{table}-{block:06}.arrow"


# Shards: the texts of runs of stays


def write_shards(blocks: Sequence[Path], stays: Stays, folder: Path, counts: NoteCounts) -> list[Path]:
    """Writes the texts of runs of stays to a file each."""
    folder.mkdir(parents=True, exist_ok=True)
    borders = _borders(blocks, stays.table.num_rows)
    files = [folder / f"{number:06}.parquet" for number in range(len(borders) - 1)]
    done = sum(file.with_suffix(".json").exists() for file in files)
    with progress("putting notes together", stays.table.num_rows, "stays", int(borders[done])) as bar:
        for file, first, end in zip(files, borders[:-1], borders[1:], strict=True):
            facts = read_json(file.with_suffix(".json"))
            if facts is None:
                facts = _write_shard(file, blocks, stays, int(first), int(end))
                bar.advance(int(end - first))
            counts.dropped[NO_TEXT] += facts["without_text"]
            counts.kept -= facts["without_text"]
    return files


def _borders(blocks: Sequence[Path], stays: int) -> Integers:
    """The first stay of each shard, and the number of stays; a shard has about `SHARD_BYTES` of text."""
    bytes_of_stay = np.zeros(stays, np.int64)
    for file in blocks:
        block = _open_block(file)
        np.add.at(bytes_of_stay, block["stay"].to_numpy(), pc.binary_length(block["text"]).to_numpy())
    filled = np.cumsum(bytes_of_stay)
    inner = np.searchsorted(filled, np.arange(SHARD_BYTES, filled[-1], SHARD_BYTES)) + 1
    return np.unique(np.concatenate([[0], inner, [stays]]))


def _write_shard(file: Path, blocks: Sequence[Path], stays: Stays, first: int, end: int) -> dict[str, int]:
    rows = pa.concat_tables([_of_stays(_open_block(block), first, end) for block in blocks])
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


def _by_stay(rows: pa.Table) -> Iterator[tuple[int, "list[StayNote]"]]:
    for stay, group in groupby(rows.to_pylist(), key=lambda row: int(row.pop("stay"))):
        yield stay, [StayNote(**row) for row in group]


# The text of a stay


class StayNote(NamedTuple):
    """A note of a stay, as the blocks hold it. `order` is the place of its row in its table."""

    hadm_id: str
    kind: int
    at: datetime | None
    order: int
    text: str

    @property
    def written(self) -> tuple[bool, Any, int]:
        """Sorts notes by time; those without one come last, in the order of their rows."""
        return self.at is None, self.at or 0, self.order


def in_order(notes: Sequence[StayNote]) -> list[StayNote]:
    """The notes of a stay: reports in time order, each followed by its addenda; before them all else, in time order.

    An addendum belongs to the last report of its admission that was written before it, else to the first one; where
    the admission has no report, to one of the stay.
    """
    by_time = sorted(notes, key=lambda note: note.written)
    reports = [note for note in by_time if note.kind == REPORT]
    return sorted(by_time, key=lambda note: (-1 if note.kind == OTHER else _report_of(note, reports), note.kind))


def _report_of(note: StayNote, reports: Sequence[StayNote]) -> int:
    """The place of a report, or of the report that an addendum belongs to; 0 where there is none."""
    if note.kind == REPORT:
        return reports.index(note)
    places = range(len(reports))
    own = [place for place in places if reports[place].hadm_id == note.hadm_id] or [*places]
    before = [place for place in own if reports[place].written[:2] <= note.written[:2]]
    return (before or own[:1] or [0])[-1]


def text_of(notes: Sequence[StayNote]) -> dict[str, Any]:
    """The cleaned notes of a stay as one text, in order, with its sections and the number of notes that are in it."""
    texts = [text for note in in_order(notes) if (text := clean(note.text))]
    sections, start = [], 0
    for text in texts:
        sections += [
            {"start": start + each.start, "end": start + each.end, "name": each.name} for each in find_sections(text)
        ]
        start += len(text) + len(BETWEEN)
    return {"text": BETWEEN.join(texts), "sections": sections, "n_notes": len(texts)}


# The output of the stage


def _check_any(counts: NoteCounts, settings: NotesSettings) -> None:
    if counts.kept == 0:
        raise RequestError(
            f"no note belongs to the cohort. Of {counts.rows:,} rows were left out: {counts.summary()}. "
            f"Check that the cohort in {settings.cohort} was made of the same release as these notes, and that `input` "
            "names the notes you mean."
        )
    log(f"notes: kept {counts.kept:,} of {counts.rows:,} rows; left out {counts.summary()}")
    if counts.dropped[UNKNOWN]:
        log(
            f"{counts.dropped[UNKNOWN]:,} notes are {UNKNOWN}: if they are many, check that both tables are whole and "
            "of one release"
        )


def _write_notes(shards: Sequence[Path], path: Path) -> dict[str, int]:
    """Puts the shards into one file; returns the number of stays in each split."""
    counts = dict.fromkeys(SPLITS, 0)
    with atomic_write(path) as building, pq.ParquetWriter(building, TEXT_SCHEMA) as writer:
        for shard in shards:
            table = pq.read_table(shard)
            writer.write_table(table)
            for found in pc.value_counts(table["split"]).to_pylist():
                counts[found["values"]] += found["counts"]
    return counts


def _write_flow(
    path: Path, counts: NoteCounts, stays: int, open_stays: int | None, written: dict[str, int], without: int
) -> None:
    """Writes what was read, what was left out and why, and what is left: of notes, and of stays."""
    rows: list[tuple[object, ...]] = [("step", "notes", "stays"), ("of the cohort", "", stays)]
    if open_stays is not None:
        rows.append(("of the cohort, open at the cut-off", "", open_stays))
    rows.append(("rows that were read", counts.rows, ""))
    rows += [(f"left out: {reason}", count, "") for reason, count in counts.reasons.items()]
    rejected = counts.rows - counts.kept - sum(counts.reasons.values())
    rows.append(("left out: cannot be used (rejects.jsonl)", rejected, ""))
    rows.append(("kept", counts.kept, sum(written.values())))
    rows += [(f"kept, {what}", counts.dropped[what], "") for what in (BY_DAY, NOT_STORED)]
    rows.append(("left without text", "", without))
    rows += [(f"kept, {split}", "", count) for split, count in written.items()]
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def _metrics(counts: NoteCounts, written: dict[str, int]) -> Metrics:
    found: Metrics = {"rows": counts.rows, "notes": counts.kept, "stays": sum(written.values())}
    found |= {f"stays/{split}": count for split, count in written.items()}
    return found | {f"left_out/{reason}": count for reason, count in counts.reasons.items()}
