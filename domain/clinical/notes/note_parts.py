"""The texts of stays, put together from the blocks of their notes; a part is a run of stays with some megabytes."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bertrelay.files import atomic_write, read_json, write_json
from bertrelay.progress import progress
from domain.clinical.notes.note_blocks import Account, open_block
from domain.clinical.notes.note_rows import NO_TEXT, Integers, Stays
from domain.clinical.notes.stay_text import Note, text_of

PART_BYTES = 16 << 20
"""Of text that is put together at once."""

SECTION = pa.struct({"start": pa.int32(), "end": pa.int32(), "name": pa.string()})
SCHEMA = pa.schema(
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
        pq.write_table(pa.table(columns, schema=SCHEMA), building)
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
