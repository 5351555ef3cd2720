"""The stage `domain.notes`: the notes of each stay of a cohort, cleaned, in order, as one text.

Tables of notes are streamed once; what is kept goes into a store in the stage's folder, which sorts it. Then texts are
put together in shards of stays, so that memory does not grow with tables or cohort. A killed run reads the tables
again, and keeps the shards that were complete.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bertrelay.compute.work import Work, whole_span
from bertrelay.data.records import Rejects, log_copies
from bertrelay.data.shards import Span, cut_spans
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, write_json, write_text
from bertrelay.fingerprint import Digests, fingerprint
from bertrelay.inference.run_model import fill_shards
from bertrelay.progress import Bar, log
from bertrelay.report import write_report
from bertrelay.stage import Metrics, StageContext, run_alone
from domain.clinical import note_selection
from domain.clinical.cleaning import BETWEEN, TOKENS, clean
from domain.clinical.note_selection import (
    BY_DAY,
    BY_TIME,
    FAR,
    KEPT_FAR,
    NO_ID,
    NO_TEXT,
    NOT_STORED,
    ON_RETURN,
    OUTSIDE,
    UNKNOWN,
    UNMAPPED,
    WITH_OUTCOME,
    Stays,
    choose_notes,
)
from domain.clinical.note_store import Note, NoteStore, open_note_store
from domain.clinical.report import flow_report
from domain.clinical.settings import FLOW, NOT_IN_IV, NOTES_ABOUT, NotesSettings, in_words
from domain.clinical.sources.form import OTHER, REPORT, NoteSource
from domain.clinical.sources.opening import open_notes
from domain.clinical.stage_files import FEWEST, NOTES_FILE, SPLITS, marked, shown_count

READ, KEPT, COPIES = "rows that were read", "kept", "a copy of another note"
FACTS = (READ, KEPT, BY_DAY, NOT_STORED, ON_RETURN, BY_TIME, FAR, KEPT_FAR)
"""Counts that are no reasons to leave a note out."""
OF_NO_STAY = (NO_ID, UNKNOWN, OUTSIDE, COPIES)
"""Reasons whose notes are of no stay of the cohort, or are in its text already."""
BY_DAY_WHOLE = " (of notes dated by their day alone, until that day ends)"
SHARD_CHARACTERS = 16 << 20
"""Characters of a shard of texts."""
BLOCKS_SHOWN = 50
"""Blocks between two lines of progress."""
TEXT_SCHEMA = marked(
    pa.schema(
        {
            "hadm_id": pa.string(),
            "subject_id": pa.string(),
            "text": pa.string(),
            "n_notes": pa.int32(),
            "split": pa.string(),
        }
    )
)


def write_notes(settings: NotesSettings, folder: Path) -> Metrics:
    """Runs the stage outside of a recipe: writes into `folder`; killed and called again, it resumes."""
    return run_alone(run, settings, folder, sensitive=True)


def run(settings: NotesSettings, context: StageContext) -> Metrics:
    """Writes `notes.parquet`, a row for each stay that has notes; `notes.json`, which notes of which stays these are;
    `flow.csv`; and `tokens.txt`, the typed tokens.

    Raises RequestError for missing or damaged tables, where no note belongs to the cohort, and for early notes of
    MIMIC-IV; WorkError for too many unusable rows.
    """
    if not context.process_group.is_main:
        return {}
    source = open_notes(settings.mimic, settings.source, radiology=settings.radiology)
    is_early = settings.input == "early"
    if is_early and not source.has_early:
        raise RequestError(NOT_IN_IV)
    names = source.tables()
    stays = note_selection.read_stays(settings, source.registered())
    counts = Counter[str]({READ: 0, KEPT: 0, COPIES: 0})
    with open_note_store(context.work / "sorting") as store:
        with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
            for name in names:
                counts.update(store_notes(store, name, source, stays, settings, rejects))
        sizes = store.sort()
        counts[COPIES] = counts[KEPT] - len(store)
        counts[KEPT] = len(store)
        written = _write_texts(store, sizes, stays.table, _inputs(settings, source.files, context), context)
    in_texts = int(written["n_notes"].sum())
    counts[NO_TEXT] += counts[KEPT] - in_texts
    counts[KEPT] = in_texts
    reasons = {reason: count for reason, count in counts.items() if count and _is_reason(reason)}
    _log_counts(counts, reasons, settings)
    table = stays.table[stays.table["ends"] > stays.table["cut_off"]] if is_early else stays.table
    without = table[~table["hadm_id"].isin(written["hadm_id"])]
    costs = {"left without text": (table, without)}
    if is_early:
        costs = {"over before that": (stays.table, stays.table.drop(table.index)), **costs}
    exact, shown = (
        "; ".join(_cost(*pair, stays.outcome, what, is_shown) for what, pair in costs.items())
        for is_shown in (False, True)
    )
    about: dict[str, object] = {"input": settings.input, "stays": settings.stays, "radiology": settings.radiology}
    about |= {"cut": _cut(settings), "cost": shown}
    log(f"notes: {about['cut']}; {exact}")
    flow = _flow(counts, reasons, stays, table, without, source, is_early=is_early)
    write_text(context.output / FLOW, flow.to_csv(index=False))
    write_text(context.output / "tokens.txt", "".join(token + "\n" for token in TOKENS))
    write_json(context.output / NOTES_ABOUT, about)
    write_report(flow_report(context.output), context)
    metrics: Metrics = {"rows": counts[READ], "notes": in_texts, "stays": len(written)}
    metrics |= {f"stays/{split}": int((written["split"] == split).sum()) for split in SPLITS}
    metrics |= {f"left_out/{reason}": count for reason, count in reasons.items()}
    return metrics | {"stays_without_text": len(without)}


def _is_reason(name: str) -> bool:
    return name not in FACTS and not name.startswith(WITH_OUTCOME)


def _cut(settings: NotesSettings) -> str:
    """Describes the end of the texts, and its dependence on later events."""
    if settings.input == "early":
        return f"text of the first {settings.hours} hours, the same cut for all stays"
    if settings.cut == "discharge":
        return f"text until the discharge{BY_DAY_WHOLE}, the same cut for all stays, whatever happens later"
    return (
        f"text until {settings.after_discharge_hours:g} hours after the discharge{BY_DAY_WHOLE}, or until the next "
        "admission where that begins sooner, so that who has a text depends on the outcome"
    )


def _cost(stays: pd.DataFrame, without: pd.DataFrame, outcome: str | None, what: str, is_shown: bool) -> str:
    """Describes the stays that are `without` text, `what` they are, and the fraction of them with the outcome.

    is_shown: in a report, with no count below FEWEST, nor a fraction that tells one.
    """
    number = shown_count if is_shown else "{:,}".format
    cost = f"{number(len(without))} of {number(len(stays))} stays are {what}"
    if outcome is None or without.empty:
        return cost
    shares = [(table[outcome].eq(True).sum(), table[outcome].eq(True).mean()) for table in (without, stays)]
    (count, share), (_, of_all) = shares
    if is_shown and any(0 < admissions < FEWEST for admissions in (len(without), count, len(without) - count)):
        return cost
    return f"{cost}, {count:,} of them {in_words(outcome)} ({share:.1%}, of all stays {of_all:.1%})"


def _flow(
    counts: Counter[str],
    reasons: Mapping[str, int],
    stays: Stays,
    table: pd.DataFrame,
    without: pd.DataFrame,
    source: NoteSource,
    *,
    is_early: bool,
) -> pd.DataFrame:
    """Makes the rows of `flow.csv`.

    table: the stays that may have a text; without: those of them that have none. source: of the notes.
    """

    def of_stays(step: str, part: pd.DataFrame, notes: int | None = None) -> tuple[object, ...]:
        with_outcome = None if stays.outcome is None else int(part[stays.outcome].eq(True).sum())
        return step, notes, None, len(part), with_outcome

    def of_notes(step: str, count: int, reason: str = "") -> tuple[object, ...]:
        is_registered = reason in reasons and reason not in OF_NO_STAY and stays.outcome is not None
        return step, count, counts[WITH_OUTCOME + reason] if is_registered else None, None, None

    with_text = table.drop(without.index)
    unusable = counts[READ] - counts[KEPT] - sum(reasons.values())
    rows: list[tuple[object, ...]] = [
        of_stays("of the cohort", stays.table),
        *([of_stays("left out: not open at the cut-off", stays.table.drop(table.index))] if is_early else []),
        *([of_stays("of the cohort, open at the cut-off", table)] if is_early else []),
        of_notes(READ, counts[READ]),
        *(of_notes(f"of these, {line}", counts[READ]) for line in source.not_carried()),
        *(of_notes(f"left out: {reason}", count, reason) for reason, count in reasons.items()),
        *(of_notes(f"left out: {UNMAPPED}: {value}", count) for value, count in source.unmapped_types()),
        of_notes("left out: cannot be used (rejects.jsonl)", unusable),
        of_stays(KEPT, with_text, counts[KEPT]),
        *(of_notes(f"kept, {what}", counts[what]) for what in (BY_DAY, NOT_STORED, ON_RETURN)),
        *([of_notes(f"kept, {BY_TIME}", counts[BY_TIME])] if BY_TIME in counts else []),
        *(of_notes(what, counts[what]) for what in (FAR, KEPT_FAR)),
        of_stays("left without text", without),
    ]
    for step, part in {"left without text": without, "kept": with_text}.items():
        rows += [of_stays(f"{step}, {split}", part[part["split"] == split]) for split in SPLITS]
    outcome = stays.outcome or "with_outcome"
    return pd.DataFrame(rows, columns=["step", "notes", f"notes_{outcome}", "stays", f"stays_{outcome}"], dtype=object)


def _inputs(settings: NotesSettings, tables: Mapping[str, Path], context: StageContext) -> str:
    """Returns a fingerprint of the settings and files that decide the texts."""
    digests = Digests(context.cache.folder / "digests.json")
    files = {name: digests.of(path) for name, path in {**tables, "cohort": Path(settings.cohort)}.items()}
    return fingerprint(settings.model_dump(exclude={"mimic": True, "cohort": True, "source": {"path"}}) | files)


def store_notes(
    store: NoteStore, table: str, source: NoteSource, stays: Stays, settings: NotesSettings, rejects: Rejects
) -> Counter[str]:
    """Stores the notes of a table that are kept; returns the counts of rows, of those kept, and of others by reason."""
    counts, unusable = Counter[str](), 0

    def reject(file: str, row: int, reason: str) -> None:
        nonlocal unusable
        unusable += 1
        rejects.add(file, row, reason)

    for number, block in enumerate(source.blocks(table, reject), 1):
        notes, left_out = choose_notes(block, stays, settings)
        store.add([Note(*row) for row in notes.itertuples(index=False, name=None)])
        rejects.used(len(block))
        counts.update({READ: len(block), KEPT: len(notes)} | left_out)
        if number % BLOCKS_SHOWN == 0:
            log(f"reading {table}: {counts[READ] + unusable:,} rows, {counts[KEPT]:,} kept")
    counts[READ] += unusable
    log(f"read {table}: {counts[READ]:,} rows, {counts[KEPT]:,} kept")
    return counts


def _write_texts(
    store: NoteStore, sizes: Mapping[int, int], stays: pd.DataFrame, inputs: str, context: StageContext
) -> pd.DataFrame:
    """Writes the texts of all stays that have one; returns their ids, splits and numbers of notes.

    sizes: characters of each stay with notes. inputs: fingerprint of what the shards of a killed run were made from.
    """
    spans = cut_spans(((sizes.get(stay, 0), 1) for stay in stays["stay"]), SHARD_CHARACTERS)

    def compute(spans: Iterable[Span], bar: Bar) -> Iterator[pa.Table]:
        for span in spans:
            ids = stays.loc[span.first : span.end, ["hadm_id", "subject_id", "split"]].to_dict("index")
            texts = [ids[stay] | text_of(notes) for stay, notes in store.read(span)]
            yield pa.Table.from_pylist([text for text in texts if text["n_notes"]], TEXT_SCHEMA)
            bar.advance(span.size)

    work = Work(whole_span, lambda: compute, "putting notes together", "stays")
    manifest: dict[str, object] = {"inputs": inputs}
    shards = fill_shards(context.work / NOTES_FILE, spans, manifest, work, suffix=".parquet", write=_write_shard)
    with atomic_write(context.output / NOTES_FILE) as building, pq.ParquetWriter(building, TEXT_SCHEMA) as writer:
        for shard in shards.complete():
            writer.write_table(pq.read_table(shard))
    return pd.read_parquet(context.output / NOTES_FILE, columns=["hadm_id", "split", "n_notes"])


def _write_shard(path: Path, texts: pa.Table) -> None:
    pq.write_table(texts, path)


def in_order(notes: Sequence[Note]) -> list[Note]:
    """Orders the notes of a stay, which come by time: reports with their addenda behind them, before them all others.

    An addendum belongs to the last report of its admission that was charted before it, else to the first one; where
    the admission has no report, to one of the stay. A note without a time comes last.

        radiology day 3, addendum day 9, report day 5, report day 8  →  radiology, report 5, report 8, addendum 9
    """
    reports = [note for note in notes if note.kind == REPORT]

    def position(note: Note) -> tuple[int, int]:
        if note.kind == OTHER:
            return -1, note.kind
        if note.kind == REPORT:
            return reports.index(note), note.kind
        of_admission = [n for n, report in enumerate(reports) if report.hadm_id == note.hadm_id] or range(len(reports))
        before = [n for n in of_admission if _time(reports[n]) <= _time(note)]
        return (before or [*of_admission[:1]] or [0])[-1], note.kind

    return sorted(notes, key=position)


def _time(note: Note) -> tuple[bool, str]:
    """Sorts by time; what has none comes last."""
    return note.charted is None, note.charted or ""


def text_of(notes: Sequence[Note]) -> dict[str, Any]:
    """Joins the cleaned notes of a stay, in order; returns the text and the number of notes in it."""
    texts = [text for note in in_order(notes) if (text := clean(note.text))]
    return {"text": BETWEEN.join(texts), "n_notes": len(texts)}


def _log_counts(counts: Counter[str], reasons: Mapping[str, int], settings: NotesSettings) -> None:
    """Logs the counts. Raises RequestError where no note is left."""
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
