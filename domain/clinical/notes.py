"""The stage `domain.notes`: the notes of each stay of a cohort, cleaned, in order, as one text with its sections.

Tables of notes are streamed once, and the notes that are kept go block by block into a database in the stage's folder;
then texts are put together in shards of stays. So memory depends on neither the table nor the cohort, and a killed run
resumes at the block or shard it was at.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bertrelay.compute.work import Work, whole_span
from bertrelay.data.records import Rejects
from bertrelay.data.shards import Span, cut_spans
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, read_json, write_json, write_text
from bertrelay.fingerprint import Digests, fingerprint
from bertrelay.inference.run_model import fill_shards
from bertrelay.progress import Bar, log
from bertrelay.stage import Metrics, StageContext, run_alone
from domain.clinical import note_selection
from domain.clinical.cleaning import BETWEEN, TOKENS, clean, find_sections
from domain.clinical.cohort import SPLITS
from domain.clinical.mimic import NOTES, note_version, read_blocks, tables_of
from domain.clinical.note_selection import (
    BY_DAY,
    FAR,
    KEPT_FAR,
    NO_ID,
    NO_TEXT,
    NOT_STORED,
    ON_RETURN,
    OUTSIDE,
    UNKNOWN,
    WITH_OUTCOME,
    Stays,
    choose_notes,
)
from domain.clinical.records import digest_of, log_copies, note_database, sort_notes, stays_of
from domain.clinical.settings import FLOW, NOT_IN_IV, NOTES_ABOUT, NotesSettings, in_words

NOTES_FILE, ABOUT_FILE, INPUTS = "notes.parquet", NOTES_ABOUT, "inputs.json"
READ, KEPT, COPIES = "rows that were read", "kept", "a copy of another note"
FACTS = (READ, KEPT, BY_DAY, NOT_STORED, ON_RETURN, FAR, KEPT_FAR)
"""Counts that are no reasons to leave a note out."""
OF_NO_STAY = (NO_ID, UNKNOWN, OUTSIDE, COPIES)
"""Reasons whose notes are of no stay of the cohort, or of one whose text keeps them."""
BY_DAY_WHOLE = " (of notes dated by their day alone, until that day ends)"
SHARD_CHARACTERS = 16 << 20
"""Of text that is put together at once."""
BLOCKS_SHOWN = 50
"""Between two lines of progress."""
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
    version, is_early = note_version(tables), settings.input == "early"
    if is_early and version == "IV":
        raise RequestError(NOT_IN_IV)
    if settings.radiology and version == "IV" and "radiology" not in tables:
        raise RequestError("radiology: there is no table radiology.csv[.gz]. Fetch it, or leave it out.")
    wanted = ["noteevents"] if version == "III" else ["discharge", *["radiology"] * settings.radiology]
    stays = note_selection.read_stays(settings, tables.get("admissions"))
    _begin(settings, tables, context)
    counts = Counter[str]()
    columns = "digest BLOB, hadm_id TEXT, kind INT, at TEXT, place INT,"
    with note_database(context.work / "notes.sqlite", columns) as store:
        store.execute("PRAGMA temp_store = MEMORY")  # nothing lies outside the stage's folder
        store.execute("CREATE UNIQUE INDEX IF NOT EXISTS once ON notes (hadm_id, kind, IFNULL(at, ''), digest)")
        store.execute("CREATE TABLE IF NOT EXISTS blocks (source TEXT, number INT, facts TEXT)")
        with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
            for name in wanted:
                counts.update(store_notes(store, name, tables[name], stays, settings, rejects))
        written = _write_texts(store, stays.table, context)
    in_texts = int(written["n_notes"].sum())
    counts[NO_TEXT] += counts[KEPT] - in_texts
    counts[KEPT] = in_texts
    reasons = {reason: count for reason, count in counts.items() if count and _is_reason(reason)}
    _log_counts(counts, reasons, settings)
    table = stays.table[stays.table["ends"] > stays.table["cut_off"]] if is_early else stays.table
    without = table[~table["hadm_id"].isin(written["hadm_id"])]
    cost = _cost(table, without, stays.outcome, "left without text")
    if is_early:
        cost = f"{_cost(stays.table, stays.table.drop(table.index), stays.outcome, 'over before that')}; {cost}"
    about: dict[str, object] = {"input": settings.input, "stays": settings.stays, "radiology": settings.radiology}
    about |= {"cut": _cut(settings), "cost": cost}
    log(f"notes: {about['cut']}; {cost}")
    flow = _flow(counts, reasons, stays, table, without, is_early=is_early)
    write_text(context.output / FLOW, flow.to_csv(index=False))
    write_text(context.output / "tokens.txt", "".join(token + "\n" for token in TOKENS))
    write_json(context.output / ABOUT_FILE, about)
    metrics: Metrics = {"rows": counts[READ], "notes": in_texts, "stays": len(written)}
    metrics |= {f"stays/{split}": int((written["split"] == split).sum()) for split in SPLITS}
    metrics |= {f"left_out/{reason}": count for reason, count in reasons.items()}
    return metrics | {"stays_without_text": len(without)}


def _is_reason(name: str) -> bool:
    return name not in FACTS and not name.startswith(WITH_OUTCOME)


def _cut(settings: NotesSettings) -> str:
    """Says where the texts end, and whether that depends on what happens later."""
    if settings.input == "early":
        return f"text of the first {settings.hours} hours, the same cut for all stays"
    if settings.cut == "discharge":
        return f"text until the discharge{BY_DAY_WHOLE}, the same cut for all stays, whatever happens later"
    return (
        f"text until {settings.after_discharge_hours:g} hours after the discharge{BY_DAY_WHOLE}, or until the next "
        "admission where that begins sooner, so that who has a text depends on the outcome"
    )


def _cost(stays: pd.DataFrame, without: pd.DataFrame, outcome: str | None, what: str) -> str:
    """Says how many stays are `without` text and why, and how many of them have the outcome, beside all."""
    cost = f"{len(without):,} of {len(stays):,} stays are {what}"
    if outcome is None or without.empty:
        return cost
    shares = [(each[outcome].eq(True).sum(), each[outcome].eq(True).mean()) for each in (without, stays)]
    (count, share), (_, of_all) = shares
    return f"{cost}, {count:,} of them {in_words(outcome)} ({share:.1%}, of all stays {of_all:.1%})"


def _flow(
    counts: Counter[str],
    reasons: Mapping[str, int],
    stays: Stays,
    table: pd.DataFrame,
    without: pd.DataFrame,
    *,
    is_early: bool,
) -> pd.DataFrame:
    """The rows of `flow.csv`.

    table: the stays whose text is asked for; without: those of them that have none.
    """

    def of_stays(step: str, some: pd.DataFrame, notes: int | None = None) -> tuple[object, ...]:
        known = None if stays.outcome is None else int(some[stays.outcome].eq(True).sum())
        return step, notes, None, len(some), known

    def of_notes(step: str, count: int, reason: str = "") -> tuple[object, ...]:
        is_registered = reason in reasons and reason not in OF_NO_STAY and stays.outcome is not None
        return step, count, counts[WITH_OUTCOME + reason] if is_registered else None, None, None

    kept = table.drop(without.index)
    unusable = counts[READ] - counts[KEPT] - sum(reasons.values())
    rows: list[tuple[object, ...]] = [
        of_stays("of the cohort", stays.table),
        *([of_stays("left out: not open at the cut-off", stays.table.drop(table.index))] if is_early else []),
        *([of_stays("of the cohort, open at the cut-off", table)] if is_early else []),
        of_notes(READ, counts[READ]),
        *(of_notes(f"left out: {reason}", count, reason) for reason, count in reasons.items()),
        of_notes("left out: cannot be used (rejects.jsonl)", unusable),
        of_stays(KEPT, kept, counts[KEPT]),
        *(of_notes(f"kept, {what}", counts[what]) for what in (BY_DAY, NOT_STORED, ON_RETURN)),
        *(of_notes(what, counts[what]) for what in (FAR, KEPT_FAR)),
        of_stays("left without text", without),
    ]
    for step, some in {"left without text": without, "kept": kept}.items():
        rows += [of_stays(f"{step}, {split}", some[some["split"] == split]) for split in SPLITS]
    outcome = stays.outcome or "with_outcome"
    return pd.DataFrame(rows, columns=["step", "notes", f"notes_{outcome}", "stays", f"stays_{outcome}"], dtype=object)


def _begin(settings: NotesSettings, tables: Mapping[str, Path], context: StageContext) -> None:
    """Keeps the work of a killed run of these settings and files, and no other: its notes were chosen otherwise."""
    digests = Digests(context.cache.folder / "digests.json")
    files = {name: digests.of(path) for name, path in {**tables, "cohort": Path(settings.cohort)}.items()}
    chosen_by = {"inputs": fingerprint(settings.model_dump(exclude={"mimic", "cohort"}) | files)}
    context.work.mkdir(parents=True, exist_ok=True)
    if read_json(context.work / INPUTS) != chosen_by:
        for path in context.work.glob("notes.*"):  # database, its journal, shards
            rmtree(path) if path.is_dir() else path.unlink()
        write_json(context.work / INPUTS, chosen_by)


def store_notes(
    store: sqlite3.Connection, table: str, file: Path, stays: Stays, settings: NotesSettings, rejects: Rejects
) -> Counter[str]:
    """Stores the notes of a table that are kept; its rows, those kept, and those left out by reason.

    A block is written in one transaction, with its counts, so that a kill leaves it whole or not there.
    """
    counts, unusable = Counter[str](), list[tuple[str, int, str]]()

    def count(about: Mapping[str, Any]) -> None:
        known = {READ: about["rows"] + len(about["rejects"]), KEPT: about["kept"], COPIES: about["copies"]}
        counts.update(known | about["counts"])
        rejects.used(about["rows"])
        for reject in about["rejects"]:
            rejects.add(*reject)

    done = store.execute("SELECT facts FROM blocks WHERE source = ? ORDER BY number", [table]).fetchall()
    for (facts,) in done:
        count(json.loads(facts))

    def reject(file: str, line: int, reason: str) -> None:
        unusable.append((file, line, reason))

    blocks = read_blocks(file, note_selection.COLUMNS[table], reject, len(done))
    for number, block in enumerate(blocks, len(done)):
        kept, dropped = choose_notes(block, table, stays, settings)
        kept.insert(1, "digest", kept["text"].map(digest_of))
        rows = kept.itertuples(index=False, name=None)
        with store:
            stored = store.executemany("INSERT OR IGNORE INTO notes VALUES (?, ?, ?, ?, ?, ?, ?)", rows).rowcount
            stored = max(stored, 0)  # of a block without any
            about = {"rows": len(block), "kept": stored, "copies": len(kept) - stored, "counts": dropped}
            about["rejects"] = unusable
            store.execute("INSERT INTO blocks VALUES (?, ?, ?)", [table, number, json.dumps(about)])
        count(about)
        unusable.clear()
        if (number + 1) % BLOCKS_SHOWN == 0:
            log(f"reading {table}: {counts[READ]:,} rows, {counts[KEPT]:,} kept")
    log(f"read {table}: {counts[READ]:,} rows, {counts[KEPT]:,} kept")
    return counts


def _write_texts(store: sqlite3.Connection, stays: pd.DataFrame, context: StageContext) -> pd.DataFrame:
    """Writes the texts of all stays that have one; their ids, splits and numbers of notes."""
    sizes = sort_notes(store)
    spans = cut_spans(((sizes.get(stay, 0), 1) for stay in stays["stay"]), SHARD_CHARACTERS)

    def compute(spans: Iterable[Span], bar: Bar) -> Iterator[pa.Table]:
        for span in spans:
            known = stays.loc[span.first : span.end, ["hadm_id", "subject_id", "split"]].to_dict("index")
            notes_of_stays = stays_of(store, span)
            texts = [known[stay] | text_of([StayNote(*note[2:]) for note in found]) for stay, found in notes_of_stays]
            yield pa.Table.from_pylist([text for text in texts if text["n_notes"]], TEXT_SCHEMA)
            bar.advance(span.size)

    manifest: dict[str, object] = {"stays": len(stays), "notes": sum(sizes.values())}
    work = Work(whole_span, lambda: compute, "putting notes together", "stays")
    shards = fill_shards(context.work / NOTES_FILE, spans, manifest, work, suffix=".parquet", write=_write_shard)
    with atomic_write(context.output / NOTES_FILE) as building, pq.ParquetWriter(building, TEXT_SCHEMA) as writer:
        for shard in shards.complete():
            writer.write_table(pq.read_table(shard))
    return pd.read_parquet(context.output / NOTES_FILE, columns=["hadm_id", "split", "n_notes"])


def _write_shard(path: Path, texts: pa.Table) -> None:
    pq.write_table(texts, path)


# The text of a stay


class StayNote(NamedTuple):
    """A note of a stay. `at` sorts by time; `order` is the place of its row in its table."""

    hadm_id: str
    kind: int
    at: str | None
    order: int
    text: str

    @property
    def written(self) -> tuple[bool, str, int]:
        """Sorts notes by time; those without one come last, in the order of their rows."""
        return self.at is None, self.at or "", self.order


def in_order(notes: Sequence[StayNote]) -> list[StayNote]:
    """The notes of a stay: reports in time order, each followed by its addenda; before them all else, in time order.

    An addendum belongs to the last report of its admission that was written before it, else to the first one; where
    the admission has no report, to one of the stay.
    """
    by_time = sorted(notes, key=lambda note: note.written)
    reports = [note for note in by_time if note.kind == note_selection.REPORT]

    def key(note: StayNote) -> tuple[int, int]:
        if note.kind == note_selection.OTHER:
            return -1, note.kind
        if note.kind == note_selection.REPORT:
            return reports.index(note), note.kind
        places = range(len(reports))
        own = [place for place in places if reports[place].hadm_id == note.hadm_id] or [*places]
        before = [place for place in own if reports[place].written[:2] <= note.written[:2]]
        return (before or own[:1] or [0])[-1], note.kind

    return sorted(by_time, key=key)


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


def _log_counts(counts: Counter[str], reasons: Mapping[str, int], settings: NotesSettings) -> None:
    """Raises RequestError where nothing is left."""
    left_out = ", ".join(f"{count:,} × {reason}" for reason, count in reasons.items()) or "none"
    if not counts[KEPT]:
        raise RequestError(
            f"no note belongs to the cohort. Of {counts[READ]:,} rows were left out: {left_out}. "
            f"Check that the cohort in {settings.cohort} was made of the same release as these notes, and that `input` "
            "names the notes you mean."
        )
    log(f"notes: kept {counts[KEPT]:,} of {counts[READ]:,} rows; left out {left_out}")
    log_copies(counts[COPIES], counts[KEPT] + counts[COPIES], "notes", "of one admission, kind and time")
    if counts[FAR]:
        log(f"{counts[FAR]:,} notes are {FAR}, {counts[KEPT_FAR]:,} of them kept: check dates and ids")
    if counts[UNKNOWN]:
        log(
            f"{counts[UNKNOWN]:,} notes are {UNKNOWN}: if they are many, check that both tables are whole and of one "
            "release"
        )
