"""Documents of files: tables (JSONL, CSV, TSV, Parquet), blocks of plain text, and XML (`pubmed.py`)."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from itertools import groupby, islice
from pathlib import Path

from bertrelay.data.readers import open_input
from bertrelay.data.records import canonical_id, rows
from bertrelay.data.tables import ABSENT, Column, Record, Rejected, Table
from bertrelay.errors import RequestError
from bertrelay.fingerprint import visible_files
from bertrelay.progress import progress
from domain.pretraining.pubmed import read_papers
from domain.pretraining.settings import FORMATS, DocumentSource, Files, format_of
from domain.reading import NO_TEXT, TextDocument, TextItem

SPLIT, TRAIN = "split", "train"
PARQUET = b"PAR1"
NOT_TRAIN, COPY = "not of the train split", "a copy of an earlier one"


def files_of(source: DocumentSource) -> list[Path]:
    """The file of `source`, or those in its folder that can be read, by name. Raises RequestError for none."""
    path = Path(source.path)
    if not path.exists():
        raise RequestError(f"documents: there is no file or folder {path}. Check the path.")
    if not path.is_dir():
        return [path]
    inner = sorted(visible_files(path), key=lambda file: file.relative_to(path).as_posix())
    formats = {source.format} if source.format else set(FORMATS.values())
    readable = [file for file in inner if file.is_file() and format_of(file) in formats]
    if not readable:
        raise RequestError(
            f"documents: the folder {path} has no file to read; expected names that end in "
            f"{', '.join(FORMATS)}, .gz or not. Check the path, or give each file and its format."
        )
    return readable


def read_all(files: Files, reasons: Mapping[tuple[int, int], str], shown: bool = False) -> Iterator[TextItem]:
    """Streams the documents of all files.

    Of equal texts of one group, a patient's for example, only the first is read; memory has 70 bytes of each text.

    reasons: of records to leave out, by file and number, as `outdated` gives them. shown: show the progress.
    """
    seen = set[int]()
    with progress("reading documents", len(files), "files", shown=shown) as bar:
        for file_number, (source, path) in enumerate(files):
            for number, item in enumerate(read_documents(source, path), 1):
                reason = reasons.get((file_number, number))
                if not reason and isinstance(item, TextDocument):
                    content = blake2b(f"{item.group}\0{item.text}".encode(), digest_size=8).digest()
                    reason = COPY if (key := int.from_bytes(content)) in seen else None
                    seen.add(key)
                yield Rejected(reason, is_fault=False) if reason else item
            bar.advance()


def read_documents(source: DocumentSource, file: Path) -> Iterator[TextItem]:
    """Streams the documents of one file of `source`.

    Raises RequestError for a whole file that is missing, cut off, or of another format.
    """
    match source.format or format_of(file):
        case None:
            raise RequestError(
                f"documents: how is {file} to be read? Its name ends in none of {', '.join(FORMATS)} (.gz or not); "
                f"give its `format`: {', '.join(sorted({*FORMATS.values()}))}."
            )
        case "blocks":
            return read_blocks(file)
        case "xml":
            return read_papers(file)
        case _:
            return read_table(source, file)


def read_table(source: DocumentSource, file: Path) -> Iterator[TextItem]:
    """Streams the rows of a table; those of another split than `train` are left out.

    The column `split` of a table, as clinical notes have it, is read whatever the source names and whatever the format:
    notes of validation and test patients are never trained on, nor records without a split beside others with one.
    Raises RequestError at the end where a group, such as a patient, is in train and in another split.
    """
    table = Table.model_validate({"path": str(file), "format": source.format})
    sources = {"text": source.text, "id": source.id, "group": source.group, "split": source.split}
    columns = {name: column for name, column in sources.items() if column is not None}
    without_split = None if _has_splits(table, source.text) else TRAIN
    in_train, elsewhere = set[str](), set[str]()  # groups
    for row in rows(table, list(columns.values()), optional=[SPLIT]):
        if isinstance(row, Rejected):
            yield row
            continue
        *named, split = row.values
        values = dict(zip(columns, named, strict=True))
        text, *names = (values.get(column) for column in ("text", "id", "group"))
        is_train = values.get("split", TRAIN) == (without_split if split is ABSENT else split) == TRAIN
        with suppress(ValueError):  # of what is no id, which is reported below
            (in_train if is_train else elsewhere).add(canonical_id(values.get("group")))
        if not is_train:
            yield Rejected(NOT_TRAIN, is_fault=False)
        elif text is not None and not isinstance(text, str):
            yield Rejected("not text", file=row.file, line=row.line)
        elif not text or text.isspace():
            yield Rejected(NO_TEXT, is_fault=False)
        else:
            try:
                yield TextDocument(text, *map(canonical_id, names))
            except ValueError as error:
                yield Rejected(str(error), file=row.file, line=row.line)
    if shared := in_train & elsewhere - {""}:
        raise RequestError(
            f"documents: expected the rows of each {source.group} in one split, found {len(shared):,} in train and in "
            f"another one in {file}. Split by {source.group}."
        )


def _has_splits(table: Table, text: Column) -> bool:
    """True where a record has a split: any one of JSON lines, the first one of other formats."""
    records = (row for row in rows(table, [text], optional=[SPLIT]) if isinstance(row, Record))
    return any(row.values[-1] is not ABSENT for row in islice(records, None if table.file_format == "jsonl" else 1))


def read_blocks(file: Path) -> Iterator[TextItem]:
    """Streams documents with blank lines between them; one that has a line that cannot be read is unusable."""
    with open_input(str(file)) as stream:
        if stream.read(len(PARQUET)) == PARQUET:  # as plain text its splits would not be seen
            raise RequestError(f"documents: {file} is Parquet and is to be read as blocks; give format = 'parquet'.")
    table = Table.model_validate({"path": str(file), "format": "lines"})
    for has_text, block in groupby(
        rows(table, [0]), lambda row: isinstance(row, Rejected) or bool(row.values[0].strip())
    ):
        if has_text:
            lines = list(block)
            fault = next((line for line in lines if isinstance(line, Rejected)), None)
            yield fault or TextDocument("\n".join(line.values[0] for line in lines if isinstance(line, Record)))
