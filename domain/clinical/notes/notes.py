"""The stage `domain.notes`: the notes of each stay of a cohort, cleaned, in order, as one text with its sections.

Tables of notes are streamed once, and what is kept of them lies on the disk in blocks; then texts are put together in
parts. So memory depends on neither the table nor the cohort, and after a kill the work goes on where it was.
"""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_json, write_text
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext, run_alone
from domain.clinical.cohorts.cohort import COHORT, STAYS
from domain.clinical.cohorts.splits import SPLITS
from domain.clinical.cohorts.tables import NOTES, note_version, tables_of
from domain.clinical.notes import marks
from domain.clinical.notes.note_blocks import Account, write_note_blocks
from domain.clinical.notes.note_parts import SCHEMA, write_parts
from domain.clinical.notes.note_rows import BY_DAY, NOT_STORED, REASONS, UNKNOWN, NoteFilter, read_stays
from domain.clinical.notes.notes_settings import NOT_IN_IV, NotesSettings

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
    write_text(context.output / TOKENS_FILE, "".join(token + "\n" for token in marks.TOKENS))
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
    with atomic_write(path) as building, pq.ParquetWriter(building, SCHEMA) as writer:
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
