"""The scores of all admissions of a file, in shards that survive a kill, and the page of one of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertrelay.backbone import model_folder
from bertrelay.data.records import Rejects
from bertrelay.data.shards import ModelOutput, Span, json_line, model_output
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
    rejected: int = 0
    chunks_per_second: float | None = None


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

    Killed and called again it resumes. Raises RequestError, before anything is computed, for an input or output that
    cannot be what it should be, and WorkError when too many rows are unusable.
    """
    source, output = NotesTable(Path(notes), id_column, text_column), Path(output)
    check_output(output, SUFFIXES, source.path)
    if page is not None:
        check_output(Path(page), (".html",), option="page")
    check_notes(source)
    folder = model_folder(model, cache_dir=cache and cache / "hub")
    how = read_description(folder, task)
    rejects = Rejects(output.with_name(f"{output.name}.rejects.jsonl"), max_rejects, keep_empty=False)
    with (
        ExitStack() as stack,
        model_output(
            output,
            folder,
            partial(_read, source, output, rejects, stack, page is not None, admission),
            block=[BLOCK_CHARACTERS, BLOCK_ADMISSIONS],
            precision=precision,
            version=VERSION,
            with_text=with_text,
            cleaned=cleaned,
        ) as work,
    ):
        scorer = OutcomeScorer.load(work.folder)
        rate = _fill(scorer, work, cleaned, with_text, batch_tokens)
        if page is not None:
            shown = _admission(work.scan, admission)
            explained = scorer.explain(joined(work.scan.one(shown), cleaned), precision=work.precision)
            write_text(Path(page), admission_page(explained, how))
        write_scores(work.shards.rows(), [*columns_of(how), *(["top_text"] if with_text else []), "chunks"], output)
        found = _summary(work.shards.rows(), has_alarms=how.threshold is not None)
    return found._replace(rejected=rejects.counts.total(), chunks_per_second=rate)


def _read(
    source: NotesTable, output: Path, rejects: Rejects, stack: ExitStack, is_shown: bool, admission: str | None
) -> SortedNotes:
    """The notes by admission, for as long as `stack` is; an admission to be shown is looked up before any is scored."""
    with rejects:
        found = stack.enter_context(sorted_notes(source, output, rejects))
    if is_shown:
        _admission(found, admission)
    return found


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


def _fill(
    scorer: OutcomeScorer, work: ModelOutput[SortedNotes], cleaned: bool, with_text: bool, batch_tokens: int | None
) -> float | None:
    """Scores the spans whose shards are missing; chunks per second, None where there were none."""
    how, chunks = scorer.model.settings, 0

    def compute(spans: Sequence[Span], bar: Bar) -> Iterator[Iterator[str]]:
        nonlocal chunks
        for admissions in map(work.scan.of, spans):
            texts = [joined(notes, cleaned) for _, notes in admissions]
            scores = scorer.score_texts(texts, precision=work.precision, batch_tokens=batch_tokens)
            chunks += sum(len(score.chunks) for score in scores)
            names = [name for name, _ in admissions]
            yield (json_line(_row(*each, how, with_text)) for each in zip(names, texts, scores, strict=True))
            bar.advance(len(names))

    filled = work.shards.fill(compute, "scoring", "admissions")
    return chunks / filled.seconds if chunks else None


def _row(name: str, text: str, score: OutcomeScore, how: OutcomeModelSettings, with_text: bool) -> Row:
    row = flat(name, score, how) | {"chunks": [chunk._asdict() for chunk in score.chunks]}
    if with_text:
        row["top_text"] = None if score.top is None else text[score.top.start : score.top.end]
    for part in (row, *row["chunks"]):
        part.update({key: round(value, DIGITS) for key, value in part.items() if isinstance(value, float)})
    return row


def _summary(rows: Iterator[Row], has_alarms: bool) -> ScoredFile:
    """Counts admissions, chunks and alarms, and logs how many admissions have no probability, and why."""
    chunks = alarms = 0
    shares, reasons = list[float | None](), Counter[str | None]()
    for row in rows:
        shares.append(row["unknown_share"])
        reasons[row["reason"]] += 1
        chunks += row["n_chunks"]
        alarms += row.get("alarm") is True
    for reason in (NO_TEXT, UNKNOWN_TEXT):
        if reasons[reason]:
            log(f"{reasons[reason]:,} of {len(shares):,} admissions have no probability: {reason}")
    warn_of_unknown(np.array(shares, np.float64))
    return ScoredFile(len(shares), reasons[NO_TEXT], reasons[UNKNOWN_TEXT], chunks, alarms if has_alarms else None)
