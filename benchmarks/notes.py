"""Private memory and speed of reading the notes of a hospital: 2 million rows of NOTEEVENTS, killed once on the way.

Claim: notes of a table of any size are read and put together under 2 GB of private memory, and a kill costs one block.

    python -m benchmarks.notes                       some four minutes, and 3 GB of disk in --scratch
    python -m benchmarks.notes --rows 50000          a look at it

The table is MIMIC-III's, written as a stream: quoted texts of many lines with marks of de-identification, doubled
quotes and decimals, in all of MIMIC's categories, for 50,000 stays, in random order. The stage `domain.notes` asks for
early notes. It runs in a process of its own, is killed (SIGKILL) when half of the table is read, and is started again.

The figure is `RssAnon` of that process, read from /proc every 50 ms by another one, as in `benchmarks.memory`.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.private import SECONDS_BETWEEN_LOOKS, private_memory_mb
from bertrelay.stage import StageContext
from domain.clinical import notes
from domain.clinical.mimic import BLOCK_BYTES
from domain.clinical.note_filter import COLUMNS
from domain.clinical.settings import NotesSettings

STAYS, TEXTS, MEDIAN_LINES = 50_000, 3_000, 9
BEGIN = datetime(2101, 1, 1)
CATEGORIES = ["Nursing/other", "Radiology", "Nursing", "ECG", "Physician ", "Discharge summary", "Respiratory "]
SHARES = [0.40, 0.25, 0.11, 0.10, 0.07, 0.03, 0.04]
WITHOUT_TIME = {CATEGORIES.index("ECG"), CATEGORIES.index("Discharge summary")}
PHRASES = [
    "Mr. [**Known lastname 4412**] was seen by Dr. [**Last Name (STitle) 88**] on [**2101-3-4**]",
    "T 98.6, P 104, BP 92/58, R 24, O2 sat 89% on room air",
    'he says that he ""cannot lie flat"" and sleeps on four pillows',
    "furosemide 40 mg p.o. b.i.d., metoprolol 12.5 mg q.h.s.",
    "chest film: no pneumothorax, small effusion on the left",
    "transferred from [**Hospital1 18**], family is at the bedside",
    "[ ] aspirin [x] statin, creatinine 1.6 to 2.1 mg/dL",
    "denies pain, alert and oriented x3, follows commands",
]
HEADERS = ["HISTORY OF PRESENT ILLNESS:", "Assessment and Plan:", "LUNGS: clear.", "Response:", ""]
WRAPPED_AT = 76


@dataclass(frozen=True)
class Seen:
    """What was seen of the process: its peak private memory in MB, how long it lived, and how it ended."""

    peak: float
    seconds: float
    exit_code: int | None


def write_hospital(folder: Path, rows: int) -> None:
    """The table of notes, and the cohort whose notes they are."""
    draw = np.random.default_rng(0)
    texts = [_text(draw) for _ in range(TEXTS)]
    hours = (draw.exponential(120, STAYS) + 6).tolist()
    kinds, stays_drawn = draw.choice(len(CATEGORIES), rows, p=SHARES).tolist(), draw.integers(STAYS, size=rows).tolist()
    texts_drawn, places = draw.integers(TEXTS, size=rows).tolist(), draw.random(rows).tolist()
    with (folder / "NOTEEVENTS.csv").open("w") as file:
        file.write("ROW_ID," + ",".join(COLUMNS["noteevents"]).upper() + "\n")
        for row, (kind, stay, text, place) in enumerate(zip(kinds, stays_drawn, texts_drawn, places, strict=True)):
            charted = BEGIN + timedelta(seconds=int(place * hours[stay] * 3600))
            day, at = str(charted).split()
            at = "" if kind in WITHOUT_TIME else f"{day} {at}"
            error = "1" if row % 2000 == 0 else ""
            file.write(f'{row},{stay // 2},{stay},{day},{at},{at},{CATEGORIES[kind]},Report,{error},"{texts[text]}"\n')
    stays = [f"{number}" for number in range(STAYS)]
    times = {
        "admitted_at": pa.array([BEGIN] * STAYS, pa.timestamp("ms")),
        "next_stay_at": pa.nulls(STAYS, pa.timestamp("ms")),
        "discharged_at": pa.array([BEGIN + timedelta(hours=each) for each in hours], pa.timestamp("ms")),
    }
    subjects = [f"{number // 2}" for number in range(STAYS)]
    cohort = {"subject_id": subjects, "hadm_id": stays, **times, "split": ["train"] * STAYS}
    pq.write_table(pa.table(cohort), folder / "cohort.parquet")
    pq.write_table(pa.table({"hadm_id": stays, "stay_hadm_id": stays}), folder / "members.parquet")


def _text(draw: np.random.Generator) -> str:
    lines, line = [], ""
    for _ in range(int(draw.lognormal(np.log(MEDIAN_LINES), 0.7)) + 2):
        phrase = PHRASES[draw.integers(len(PHRASES))]
        if draw.random() < 0.2:
            lines += [line, HEADERS[draw.integers(len(HEADERS))]]
            line = ""
        if len(line) + len(phrase) > WRAPPED_AT:
            lines.append(line)
            line = ""
        line += phrase + ". "
    return "\n".join([*lines, line])


def read_notes(folder: Path) -> None:
    """The stage, as a run would do it."""
    settings = NotesSettings.model_validate({"mimic": str(folder), "cohort": str(folder), "input": "early"})
    output = folder / "output"
    output.mkdir(exist_ok=True)
    metrics = notes.run(settings, StageContext(output, folder / "cache"))
    print("  " + ", ".join(f"{name} {value:,.0f}" for name, value in metrics.items() if value is not None), flush=True)


def watch(folder: Path, is_time_to_kill: Callable[[], bool]) -> Seen:
    """Runs the stage in a process of its own, looks at its memory until it ends, and kills it when it is time."""
    process = multiprocessing.get_context("spawn").Process(target=read_notes, args=(folder,))
    began = time.monotonic()
    process.start()
    looks = [0.0]
    while process.is_alive():
        looks += private_memory_mb(process.pid)
        if is_time_to_kill() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return Seen(max(looks), time.monotonic() - began, process.exitcode)


def main() -> None:
    from benchmarks.machine import machine  # loads torch, which the watched process shall not

    parser = ArgumentParser(prog="python -m benchmarks.notes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--scratch", type=Path, help="a folder of a disk with room for the table")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        write_hospital(folder, options.rows)
        size = (folder / "NOTEEVENTS.csv").stat().st_size
        print(f"{options.rows:,} rows of NOTEEVENTS, {size / 1e9:.2f} GB", flush=True)
        killed = watch(folder, lambda: blocks_done(folder) >= size // BLOCK_BYTES // 2)
        before = blocks_done(folder)
        print(f"killed after {before} blocks: {killed.seconds:.0f} s, {killed.peak:.0f} MB", flush=True)
        resumed = watch(folder, lambda: False)
        if resumed.exit_code != 0:
            sys.exit("the stage failed; its own words stand above")
        print(f"went on with {blocks_done(folder) - before} blocks: {resumed.seconds:.0f} s, {resumed.peak:.0f} MB")
    rate = options.rows / (killed.seconds + resumed.seconds)
    print(f"peak {max(killed.peak, resumed.peak):.0f} MB of private memory; {rate:,.0f} rows/s, both together")


def blocks_done(folder: Path) -> int:
    return len(list((folder / "output" / "work" / "notes").glob("*.json")))


if __name__ == "__main__":
    main()
