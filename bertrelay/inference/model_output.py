"""The frame of every command that runs a model over a file: its lock, the scan of the input, its shards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from bertrelay.cache import Cache
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.data.shards import Shards, Span, locked_output
from bertrelay.device import ComputePrecision, default_device
from bertrelay.fingerprint import Digests, fingerprint, note_folder
from bertrelay.inputs import check_inputs, unchanged_inputs
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, on_main, wait_for_all
from bertrelay.sources import model_folder

BLOCK_CHARACTERS = 400_000
"""So much text is computed before it is on the disk, some 60,000 words: the most that a kill costs."""
DIGITS = 6
"""Of a probability that is written; those behind them depend on the threads of a machine."""


class Scan(NamedTuple):
    """What one pass over an input found.

    digest: sha256 of all that decides the output. rejected: records that cannot be used. size: of all spans.
    """

    spans: list[Span]
    digest: str
    rejected: int = 0

    @property
    def items(self) -> int:
        return self.spans[-1].end

    @property
    def size(self) -> int:
        return sum(span.size for span in self.spans)


class Scanned(Protocol):
    @property
    def spans(self) -> list[Span]: ...

    @property
    def digest(self) -> str: ...


AnyScan = TypeVar("AnyScan", bound=Scanned)


@dataclass(frozen=True)
class ModelOutput(Generic[AnyScan]):
    """An output to be filled by the model of `folder`, from the input that `scan` describes."""

    folder: Path
    precision: ComputePrecision
    scan: AnyScan
    shards: Shards

    @property
    def is_main(self) -> bool:
        return self.shards.process_group.is_main


@contextmanager
def model_output(
    output: Path,
    model: str | Path,
    scan: Callable[[], AnyScan],
    *,
    block: object,
    precision: str,
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    **options: object,
) -> Iterator[ModelOutput[AnyScan]]:
    """Opens the shards of `output`, which this call keeps to itself; removes them when the block that writes it ends.

    scan: reads the input through, in the main process alone.
    block: what spans are cut by; with the model's files, the scan's digest, precision and `options` it decides what
        the shards hold, so that shards of anything else are not resumed.
    engine: where they are computed; this process is connected to it until the block ends.
    Raises RequestError when another process writes `output`.
    """
    where = Engine.of(engine, process_group)
    with unchanged_inputs(), locked_output(output, process_group), where.connected():
        folder = on_main(lambda: model_folder(model, cache=cache), process_group)
        note_folder(folder)
        resolved = where.precision(precision, default_device(), process_group)
        scanned = on_main(scan, process_group)
        shards = Shards(output, scanned.spans, process_group, engine=where)
        key = fingerprint({"model": Digests().of_folder(folder), "input": scanned.digest, **options})
        shards.begin({"key": key, "precision": resolved, "block": block})
        yield ModelOutput(folder, resolved, scanned, shards)
        if process_group.is_main:
            check_inputs()
            shards.remove()
        wait_for_all(process_group)
