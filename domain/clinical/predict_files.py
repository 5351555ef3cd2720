"""The scores of all admissions of a file, in shards that survive a kill, and the page of one of them.

Importing this loads neither torch nor transformers, so that an invalid request is refused at once.
"""

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertrelay.blocks import blocks_of
from bertrelay.cache import Cache
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.compute.work import Compute, Work
from bertrelay.data.records import Rejects, canonical_id, log_copies, rows
from bertrelay.data.shards import Span, cut_spans
from bertrelay.data.tables import Record, Table, table_format
from bertrelay.data.writing import json_line, write_table
from bertrelay.errors import RequestError
from bertrelay.files import check_output, write_text
from bertrelay.inference.run_model import BLOCK_CHARACTERS, DIGITS, ModelRun, open_run
from bertrelay.privacy import sensitive_data
from bertrelay.progress import Bar, log
from bertrelay.settings import PrecisionName, settings_of
from domain.clinical.note_selection import MARKS, NoteKinds, note_of_row, warn_of_mixed_ids
from domain.clinical.note_store import Note, NoteStore, open_note_store
from domain.clinical.settings import ModelDescription, OutcomeName, ScoreOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from bertrelay.data.parquet import Location, ParquetInput

Notes = dict[str, list[str]]
"""The notes of admissions by their names."""

SUFFIXES = (".csv", ".jsonl", ".parquet")
DATASET_CHARACTERS = 4_000_000
"""As much is a shard of a dataset, some 800 admissions."""
ROWS_AT_ONCE = 512
LEAST_CHARACTERS = 200
"""What an admission counts as at least when shards are cut, as one without text is a row too."""
DECISIVE = {"precision", "with_text", "cleaned"}
"""The options that decide what is written."""
SUMMARISED = ("unknown_share", "subwords_per_word", "reason", "n_chunks", "alarm")
VERSION = 8


class ScoredFile(NamedTuple):
    """Counts of a scored file or dataset.

    without_text, unknown_text: admissions that have a row and no probability, without text or as the vocabulary knows
        no word of it. rejected: rows that could not be used.
    left_out: rows of kinds of notes that the model was not trained on.
    alarms: None where the model has no threshold, so that nothing is one.
    chunks_per_second: of what was computed now; None where that is nothing.
    """

    admissions: int
    without_text: int
    unknown_text: int
    chunks: int
    alarms: int | None
    rejected: int = 0
    left_out: int = 0
    chunks_per_second: float | None = None


@sensitive_data()
def score_file(
    model: str | Path,
    notes: str | Path,
    output: str | Path,
    *,
    task: OutcomeName | None = None,
    page: str | Path | None = None,
    admission: str | int | None = None,
    overwrite: bool = False,
    cache: Cache | None = None,
    engine: Engine | str = LOCAL,
    id_column: str = "hadm_id",
    text_column: str = "text",
    header: bool = True,
    cleaned: bool = False,
    max_rejects: float = 0.01,
    with_text: bool = False,
    precision: PrecisionName = "auto",
    batch_tokens: int | None = None,
) -> ScoredFile:
    """Writes a row for each admission of `notes`, as `OutcomeScorer.score` gives them.

    notes: CSV, TSV, JSONL or Parquet with a row for each note; those of an admission may be anywhere in it. Or a folder
        of Parquet files, or an address such as `s3://bucket/folder`.
    output: `.csv`, `.jsonl` or `.parquet`; the last two have all chunks with their shares. Offsets count characters of
        the notes as they are read, cleaned and joined.
    task: that the model must have been trained for; any when left out.
    page: takes an HTML page of the text of one admission: that of the id `admission`, the only one when None.
    engine: for a Ray cluster, `ray`, `ray://HOST:PORT` or an `Engine`. Its workers see the model and the folder of
        `output`; this process sends them the notes, in memory.
    overwrite: replace existing files, which are an error otherwise.
    The other arguments are described in `ScoreOptions`. Rows that cannot be used are listed in
    `OUTPUT.rejects.jsonl`.

    Killed and called again it resumes. Raises RequestError, before anything is computed, for an input or output that
    cannot be what it should be, and WorkError when too many rows are unusable.
    """
    settings, output = settings_of(ScoreOptions, locals()), Path(output)
    check_output(output, SUFFIXES, notes, overwrite=overwrite)
    _check_page(page, admission, overwrite)
    table = notes_source(str(notes), settings)

    from bertrelay.sources import model_folder
    from domain.clinical.model import read_description
    from domain.clinical.predict import OutcomeScorer, admission_page, clean_and_join

    folder = model_folder(model, cache=cache)
    description = read_description(folder, task)
    rejects = Rejects(output.with_name(f"{output.name}.rejects.jsonl"), settings.max_rejects, keep_empty=False)
    chosen = NoteKinds(description, table.name)
    with ExitStack() as stack:

        def sort() -> SortedNotes:
            with rejects:
                notes_by_stay = stack.enter_context(sorted_notes(table, output, rejects, BLOCK_CHARACTERS, chosen))
            if page is not None:
                notes_by_stay.of_one(admission)  # before any is scored
            return notes_by_stay

        opening = open_run(
            output,
            folder,
            sort,
            span_limit=[BLOCK_CHARACTERS, LEAST_CHARACTERS],
            precision=settings.precision,
            engine=engine,
            decisive={"version": VERSION, **settings.model_dump(include=DECISIVE - {"precision"})},
        )
        run = stack.enter_context(opening)
        rate = _fill(run, settings)
        if page is not None:
            text = clean_and_join(run.scan.of_one(admission), settings.cleaned)
            explanation = OutcomeScorer.load(run.folder).explain(text, cleaned=True, precision=run.precision)
            write_text(Path(page), admission_page(explanation, description))
        write_scores(run.shards.rows(), score_columns(description, settings.with_text), output)
        summary = _summary(run.shards.rows(), description)
    left_out = chosen.left_out.total()
    return summary._replace(rejected=rejects.counts.total(), left_out=left_out, chunks_per_second=rate)


def _check_page(page: str | Path | None, admission: str | int | None, overwrite: bool) -> None:
    if page is not None:
        check_output(Path(page), (".html",), option="page", overwrite=overwrite)
    elif admission is not None:
        raise RequestError("admission: without effect without page; give both, or neither")


@sensitive_data()
def score_dataset(
    model: str | Path,
    notes: str,
    output: str,
    *,
    task: OutcomeName | None = None,
    overwrite: bool = False,
    cache: Cache | None = None,
    engine: Engine | str = LOCAL,
    id_column: str = "hadm_id",
    text_column: str = "text",
    header: bool = True,
    cleaned: bool = False,
    max_rejects: float = 0.01,
    with_text: bool = False,
    precision: PrecisionName = "auto",
    batch_tokens: int | None = None,
) -> ScoredFile:
    """Writes a row for each admission of `notes` to the dataset `output`: `row`, and the columns of `score_file`.

    notes: as of `score_file`.
    output: a folder or an address, as of `bertrelay.encode_dataset`.
    task, engine: as of `score_file`; workers need to see the model and `output`. The other arguments are described in
        `ScoreOptions`. Rows that cannot be used are counted, and beside a folder listed in `OUTPUT.rejects.jsonl`.
    overwrite: replace a finished dataset of another model or input, which is an error otherwise.
    """
    settings, where = settings_of(ScoreOptions, locals()), Engine.of(engine)
    import pyarrow as pa

    from bertrelay.data.parquet import Location, check_outside
    from bertrelay.inference.run_model import OpenedModel, connect, fill_dataset, read_dataset
    from bertrelay.sources import model_folder
    from domain.clinical.model import read_description

    check_outside(output, notes)
    source, location = notes_source(notes, settings), Location(output)
    folder = model_folder(model, cache=cache)
    description = read_description(folder, task)
    types, chosen = score_types(score_columns(description, settings.with_text)), NoteKinds(description, source.name)
    columns = [pa.field(name, kind) for name, kind in types.items()]
    with connect(where) as executor, ExitStack() as stack:
        beside = _beside(location, stack)
        listed = beside.with_name(f"{beside.name}.rejects.jsonl") if location.is_local else None
        with Rejects(listed, settings.max_rejects, keep_empty=False) as rejects:
            by_admission = stack.enter_context(sorted_notes(source, beside, rejects, DATASET_CHARACTERS, chosen))
        opened = OpenedModel.find(folder, settings.precision, cache, executor)
        settings = settings.model_copy(update={"precision": opened.precision})
        manifest: dict[str, object] = {"model": opened.digest, "input": by_admission.digest, "version": VERSION}
        manifest |= settings.model_dump(include=DECISIVE)
        start = partial(_start_tables, folder, settings, columns)
        work = Work(lambda span: (span.first, by_admission.of(span)), start, "scoring", "admissions")
        written = fill_dataset(output, by_admission.spans, columns, manifest, work, executor, overwrite=overwrite)
    summarised = [name for name in SUMMARISED if name in types]
    summary = _summary(read_dataset(output, summarised), description)
    rate = written.rows_per_second and written.rows_per_second * summary.chunks / summary.admissions
    left_out = chosen.left_out.total()
    return summary._replace(rejected=rejects.counts.total(), left_out=left_out, chunks_per_second=rate)


def _beside(location: "Location", stack: ExitStack) -> Path:
    """The path beside which notes are sorted: the folder's; for a store one in a private folder, until `stack` ends."""
    if not location.is_local:
        return Path(stack.enter_context(tempfile.TemporaryDirectory()), "notes")
    beside = Path(location.path())
    with location.errors("written"):
        beside.parent.mkdir(parents=True, exist_ok=True)
    return beside


def notes_source(notes: str, settings: ScoreOptions) -> "Table | ParquetInput":
    """The dataset or file with the notes; a row of a file is read. Raises RequestError."""
    from bertrelay.data.parquet import ParquetInput, is_dataset

    if not is_dataset(notes):
        return notes_table(notes, settings)
    _refuse_header(notes, settings)
    columns = [settings.id_column, settings.text_column]
    dataset = ParquetInput(notes, [], columns)
    marks = [name for name in dataset.names if name.strip().lower() in MARKS]
    return ParquetInput(notes, [], [*columns, *marks]) if marks else dataset


def notes_table(notes: str | Path, settings: ScoreOptions) -> Table:
    """Reads one row, which shows most of what can be wrong with a request. Raises RequestError."""
    kind = table_format(str(notes))
    if kind == "lines":
        raise RequestError(f"notes: expected a file that ends in .csv, .tsv, .jsonl or .parquet, found {notes}")
    if kind not in ("csv", "tsv"):
        _refuse_header(notes, settings)
    names = (settings.id_column, settings.text_column)
    columns = [int(name) if name.isdecimal() and not settings.header else name for name in names]
    values = {"path": str(notes), "columns": columns} | ({} if settings.header else {"header": False})
    table = Table.model_validate(values)
    next(rows(table, []), None)
    return table


def _refuse_header(notes: str | Path, settings: ScoreOptions) -> None:
    if not settings.header:
        raise RequestError(f"header: only CSV and TSV may be without one, found {notes}; leave the option out")


class SortedNotes:
    """The notes of a file by admission, whatever the order of its rows.

    names: of the admissions, in the order in which the file first has them. digest: sha256 of all that a scorer sees.
    """

    def __init__(self, store: NoteStore, names: Sequence[str], digest: str, block: int) -> None:
        self._store, self.names, self.digest = store, names, digest
        self.spans = cut_spans(((max(LEAST_CHARACTERS, size), 1) for size in store.sort().values()), block)

    def of(self, span: Span) -> Notes:
        """The notes of the admissions of a span, in the order of the rows."""
        return {self.names[stay]: [note.text for note in notes] for stay, notes in self._store.read(span)}

    def of_one(self, identifier: str | int | None) -> list[str]:
        """The notes of one admission, the only one when None. Raises RequestError, without its id, where it is not."""
        if identifier is None and len(self.names) > 1:
            raise RequestError(
                f"page: expected the admission to show, as the file has {len(self.names):,}; name it with --admission"
            )
        try:
            name = self.names[0] if identifier is None else canonical_id(identifier)
        except ValueError as error:
            raise RequestError(f"page: expected the id of an admission, found {error}") from None
        if name not in self.names:
            raise RequestError("page: the file has no note of that admission; check its id")
        number = self.names.index(name)
        return self.of(Span(number, number + 1, 1))[name]


@contextmanager
def sorted_notes(
    notes: "Table | ParquetInput", beside: Path, rejects: Rejects, span_characters: int, chosen: NoteKinds
) -> Iterator[SortedNotes]:
    """Reads `notes` once. Rows without an admission, or that cannot be read, go to `rejects`; equal notes of one
    admission count once.

    beside: where there is space for as much text again. span_characters: of a span. chosen: which rows are read.
    Raises RequestError when nothing is left, WorkError where that is because too many rows are unusable.
    """
    numbers, kinds, digest = dict[str, int](), set[type](), hashlib.sha256()

    def numbered() -> Iterator[Note]:
        names = MARKS if isinstance(notes, Table) else [name.strip().lower() for name in notes.columns[2:]]
        for row in rows(notes, [], optional=MARKS) if isinstance(notes, Table) else notes.records():
            identifier, value, *marks = row.values if isinstance(row, Record) else (None, None)
            if marks and not chosen.reads(dict(zip(names, marks, strict=True)), identifier):
                continue
            try:
                if not isinstance(row, Record):
                    raise ValueError(row.reason)
                name, text = note_of_row(identifier, value)
            except ValueError as error:
                rejects.add(row.file, row.line, str(error))
                continue
            kinds.add(type(identifier))
            rejects.used()
            digest.update(json.dumps([name, text]).encode())
            # in the order in which they are read: in a dataset each of its files begins with line 1
            yield Note(numbers.setdefault(name, len(numbers)), None, 0, None, 0, text)

    with open_note_store(beside.with_name(f".{beside.name}.notes")) as store:
        for block in blocks_of(numbered(), ROWS_AT_ONCE):
            store.add(block)
        chosen.check(rejects.records - rejects.counts.total(), numbers)
        if not numbers:
            rejects.check()  # which may be why
            raise RequestError(f"{notes.name} holds no note of an admission. Check the file and its columns.")
        warn_of_mixed_ids(str((notes.columns or [""])[0]), kinds)
        by_admission = SortedNotes(store, list(numbers), digest.hexdigest(), block=span_characters)
        read = rejects.records - rejects.counts.total()
        log_copies(read - len(store), read, "notes", "of one admission")
        yield by_admission


def _fill(run: ModelRun[SortedNotes], settings: ScoreOptions) -> float | None:
    """Scores the spans whose shards are missing; chunks per second, None where there were none."""
    start = partial(_start_lines, run.folder, settings.model_copy(update={"precision": run.precision}))
    missing = run.shards.missing()
    seconds = run.fill(Work(run.scan.of, start, "scoring", "admissions")).seconds
    chunks = sum(row["n_chunks"] for row in run.shards.rows(missing))
    return chunks / seconds if chunks else None


def _start(folder: Path, settings: ScoreOptions) -> Callable[[Notes], Iterator[dict[str, Any]]]:
    """Loads the model, and returns what gives a row for each admission."""
    from domain.clinical.predict import OutcomeScore, OutcomeScorer, clean_and_join, flat

    scorer = OutcomeScorer.load(folder)

    def scored(name: str, text: str, score: OutcomeScore) -> dict[str, Any]:
        row = flat(name, score, scorer.model.description) | {"chunks": [chunk._asdict() for chunk in score.chunks]}
        if settings.with_text:
            row["top_text"] = None if score.top is None else text[score.top.start : score.top.end]
        for part in (row, *row["chunks"]):
            part.update({key: round(value, DIGITS) for key, value in part.items() if isinstance(value, float)})
        return row

    def rows_of(admissions: Notes) -> Iterator[dict[str, Any]]:
        texts = [clean_and_join(notes, settings.cleaned) for notes in admissions.values()]
        scores = scorer.score_texts(texts, precision=settings.precision, batch_tokens=settings.batch_tokens)
        return map(scored, admissions, texts, scores)

    return rows_of


def _start_lines(folder: Path, settings: ScoreOptions) -> Compute[Notes, Iterator[str]]:
    """Loads the model, for the shards of a file."""
    rows_of = _start(folder, settings)

    def lines(spans: Iterable[Notes], bar: Bar) -> Iterator[Iterator[str]]:
        for admissions in spans:
            yield map(json_line, rows_of(admissions))
            bar.advance(len(admissions))

    return lines


def _start_tables(
    folder: Path, settings: ScoreOptions, columns: "Sequence[pa.Field]"
) -> "Compute[tuple[int, Notes], list[pa.Table]]":
    """Loads the model, for the shards of a dataset; spans come with the number of their first admission."""
    import pyarrow as pa

    from bertrelay.data.parquet import ROW

    rows_of, schema = _start(folder, settings), pa.schema([pa.field(ROW, pa.int64()), *columns])

    def tables(spans: Iterable[tuple[int, Notes]], bar: Bar) -> Iterator[list[pa.Table]]:
        for first, admissions in spans:
            numbered = ({ROW: number, **row} for number, row in enumerate(rows_of(admissions), first))
            yield [pa.Table.from_pylist(list(numbered), schema)]
            bar.advance(len(admissions))

    return tables


def score_columns(description: ModelDescription, with_text: bool) -> list[str]:
    """The columns of what is written. with_text: of the text of the top chunk too."""
    from domain.clinical.predict import columns_of

    return [*columns_of(description), *["top_text"] * with_text, "chunks"]


def score_types(columns: Sequence[str]) -> "dict[str, pa.DataType]":
    """The Arrow types of the columns of scores."""
    import pyarrow as pa

    chunk = {"start": pa.int32(), "end": pa.int32(), "probability": pa.float64(), "share": pa.float64()}
    kinds = {
        **dict.fromkeys(("hadm_id", "label", "top_section", "top_text", "reason"), pa.string()),
        **dict.fromkeys(("n_chunks", "top_start", "top_end"), pa.int32()),
        "alarm": pa.bool_(),
        "chunks": pa.list_(pa.struct(list(chunk.items()))),
    }
    return {name: kinds.get(name, pa.float64()) for name in columns}


def write_scores(scores: Iterator[dict[str, Any]], columns: Sequence[str], output: Path) -> None:
    """Writes rows as JSONL, Parquet or CSV, by the suffix; CSV has no place for the list of chunks."""
    typed = score_types([name for name in columns if name != "chunks" or output.suffix != ".csv"])
    write_table(output, typed, ([row[name] for name in typed] for row in scores))


def _summary(scores: Iterator[dict[str, Any]], description: ModelDescription) -> ScoredFile:
    """Counts admissions, chunks and alarms; logs how many admissions were not read, or not to the end, and why."""
    import numpy as np

    from domain.clinical.chunks import warn_of_cut, warn_of_unknown
    from domain.clinical.predict import NO_TEXT, UNKNOWN_TEXT

    alarms, chunks = 0, list[int]()
    shares, subwords, reasons = list[float | None](), list[float | None](), Counter[str | None]()
    for row in scores:
        shares.append(row["unknown_share"])
        subwords.append(row["subwords_per_word"])
        reasons[row["reason"]] += 1
        chunks.append(row["n_chunks"])
        alarms += row.get("alarm") is True
    for reason in (NO_TEXT, UNKNOWN_TEXT):
        if reasons[reason]:
            log(f"{reasons[reason]:,} of {len(shares):,} admissions have no probability: {reason}")
    warn_of_unknown(np.array(shares, np.float64), np.array(subwords, np.float64), description.subwords_per_word)
    warn_of_cut(np.array(chunks), description.chunking.max_chunks)
    of_alarms = None if description.threshold is None else alarms
    return ScoredFile(len(shares), reasons[NO_TEXT], reasons[UNKNOWN_TEXT], sum(chunks), of_alarms)
