"""The scores of all admissions of a file, in shards that survive a kill, and the page of one of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertrelay.backbone import model_folder
from bertrelay.data.records import Rejects
from bertrelay.data.shards import Shards, Span, json_line, model_output
from bertrelay.errors import RequestError
from bertrelay.files import check_output, write_text
from bertrelay.privacy import sensitive_data
from bertrelay.progress import Bar, log
from domain.clinical.chunks import warn_of_unknown
from domain.clinical.classifier import read_description
from domain.clinical.outcomes import OutcomeModelSettings, OutcomeName
from domain.clinical.score_files import (
    BLOCK_ADMISSIONS,
    BLOCK_CHARACTERS,
    SUFFIXES,
    Admission,
    NotesTable,
    Row,
    SortedNotes,
    check_notes,
    sorted_notes,
    write_scores,
)
from domain.clinical.scorer import (
    NO_TEXT,
    UNKNOWN_TEXT,
    OutcomeScore,
    OutcomeScorer,
    admission_page,
    columns_of,
    flat,
    joined,
)

DIGITS = 6  # of a probability; those behind them depend on the threads of a machine
MAX_REJECTS = 0.01
VERSION = 4


class ScoredFile(NamedTuple):
    """What `score_file` did.

    without_text, unknown_text: admissions that have a row and no probability, without text or as the vocabulary knows
        no word of it. rejected: rows that could not be used.
    alarms: None where the model has no threshold, so that nothing is one.
    chunks_per_second: of what was computed now; None where that is nothing.
    """

    admissions: int
    without_text: int
    unknown_text: int
    chunks: int
    alarms: int | None
    rejected: int
    chunks_per_second: float | None


@sensitive_data()
def score_file(
    model: str | Path,
    notes: str | Path,
    output: str | Path,
    *,
    task: OutcomeName | None = None,
    id_column: str = "hadm_id",
    text_column: str = "text",
    cleaned: bool = False,
    with_text: bool = False,
    page: str | Path | None = None,
    admission: str | None = None,
    max_rejects: float = MAX_REJECTS,
    precision: str = "auto",
    batch_tokens: int | None = None,
    cache: Path | None = None,
) -> ScoredFile:
    """Writes a row for each admission of `notes`, as `OutcomeScorer.score` gives them.

    task: that the model must have been trained for; any when left out.
    notes: CSV, TSV, JSONL or Parquet with a row for each note; those of an admission may be anywhere in it.
    output: `.csv`, `.jsonl` or `.parquet`; the last two have all chunks with their shares. Text is in it only
        `with_text`, and offsets count characters of the notes as they are read, cleaned and joined.
    cleaned: the notes are cleaned already, as the stage `domain.notes` writes them.
    page: takes an HTML page of `admission`'s text, which is needed where there are several.
    max_rejects: the share of rows that may be unusable; they are listed in `OUTPUT.rejects.jsonl`.

    Killed and called again it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an input or output that cannot be what it should be, and
    WorkError when too many rows are unusable.
    """
    source, output = NotesTable(Path(notes), id_column, text_column), Path(output)
    check_output(output, SUFFIXES, source.path)
    if page is not None:
        check_output(Path(page), (".html",), option="page")
    check_notes(source)
    folder = model_folder(model, cache_dir=cache and cache / "hub")
    how = read_description(folder, task)
    rejects = Rejects(output.with_name(f"{output.name}.rejects.jsonl"), max_rejects, keep_empty=False)
    shown = None

    def read() -> SortedNotes:
        nonlocal shown
        with rejects:
            found = stack.enter_context(sorted_notes(source, output, rejects))
        shown = None if page is None else _admission(found, admission)
        return found

    with (
        ExitStack() as stack,
        model_output(
            output,
            folder,
            read,
            block=[BLOCK_CHARACTERS, BLOCK_ADMISSIONS],
            precision=precision,
            version=VERSION,
            with_text=with_text,
            cleaned=cleaned,
        ) as work,
    ):
        scorer = OutcomeScorer.load(work.folder)
        score = partial(_scored, scorer, with_text, cleaned, work.precision, batch_tokens)
        rate = _fill(work.scan, work.shards, score)
        if page is not None and shown is not None:
            explained = scorer.explain(joined(work.scan.one(shown), cleaned), precision=work.precision)
            write_text(Path(page), admission_page(explained, how))
        admissions, reasons, chunks, alarms = _written(work.shards, output, columns_of(how), with_text)
    raised, rejected = None if how.threshold is None else alarms, rejects.counts.total()
    return ScoredFile(admissions, reasons[NO_TEXT], reasons[UNKNOWN_TEXT], chunks, raised, rejected, rate)


def _fill(found: SortedNotes, shards: Shards, score: Callable[[list[Admission]], list[Row]]) -> float | None:
    """Scores the spans whose shards are missing; chunks per second, None where there were none."""
    chunks = 0

    def compute(spans: Sequence[Span], bar: Bar) -> Iterator[Iterator[str]]:
        nonlocal chunks
        for rows in map(score, map(found.of, spans)):
            chunks += sum(row["n_chunks"] for row in rows)
            yield map(json_line, rows)
            bar.advance(len(rows))

    filled = shards.fill(compute, "scoring", "admissions")
    return chunks / filled.seconds if chunks else None


def _admission(found: SortedNotes, wanted: str | None) -> str:
    """The admission to be shown. Raises RequestError, without its id, for one that is not there or not named."""
    name = found.only() if wanted is None else wanted
    if name is None:
        raise RequestError(
            f"page: expected the admission to show, as the file has {found.admissions:,}; name it with --admission"
        )
    if not found.one(name):
        raise RequestError("page: the file has no note of that admission; check its id")
    return name


def _scored(
    scorer: OutcomeScorer,
    with_text: bool,
    cleaned: bool,
    precision: str,
    batch_tokens: int | None,
    admissions: list[Admission],
) -> list[Row]:
    names, texts = [name for name, _ in admissions], [joined(notes, cleaned) for _, notes in admissions]
    scores = scorer.score_texts(texts, precision=precision, batch_tokens=batch_tokens)
    how = scorer.model.settings
    return [_row(*each, how, with_text) for each in zip(names, texts, scores, strict=True)]


def _row(name: str, text: str, score: OutcomeScore, how: OutcomeModelSettings, with_text: bool) -> Row:
    row = flat(name, score, how) | {"chunks": [chunk._asdict() for chunk in score.chunks]}
    if with_text:
        row["top_text"] = None if score.top is None else text[score.top.start : score.top.end]
    for part in (row, *row["chunks"]):
        part.update({key: round(value, DIGITS) for key, value in part.items() if isinstance(value, float)})
    return row


def _written(
    shards: Shards, output: Path, scores: list[str], with_text: bool
) -> tuple[int, Counter[str | None], int, int]:
    """Assembles the shards; how many admissions, those without a probability by reason, chunks, and alarms."""
    write_scores(shards.rows(), [*scores, *(["top_text"] if with_text else []), "chunks"], output)
    chunks = alarms = 0
    shares, reasons = list[float | None](), Counter[str | None]()
    for row in shards.rows():
        shares.append(row["unknown_share"])
        reasons[row["reason"]] += 1
        chunks += row["n_chunks"]
        alarms += row.get("alarm") is True
    for reason in (NO_TEXT, UNKNOWN_TEXT):
        if reasons[reason]:
            log(f"{reasons[reason]:,} of {len(shares):,} admissions have no probability: {reason}")
    warn_of_unknown(np.array(shares, np.float64))
    return len(shares), reasons, chunks, alarms
