"""An output that is not whole yet: a file of lines for each block, in a folder beside it, which a kill leaves."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from bertrelay.errors import RequestError, WorkError
from bertrelay.files import atomic_write, read_json, refuse_symlink, write_error, write_json
from bertrelay.hardware import release_memory
from bertrelay.privacy import apply_umask, is_sensitive
from bertrelay.progress import log, progress
from bertrelay.stage import ProcessGroup

HOLDS = "holds.json"
Block = TypeVar("Block")
AnyRecord = TypeVar("AnyRecord")


class Parts(Generic[Block]):
    """The blocks of `output` that are done. A part is there whole or not at all."""

    def __init__(self, output: Path, blocks: Sequence[Block]) -> None:
        self.folder = output.with_name(output.name + ".partial")
        self.blocks = blocks

    def begin(self, holds: dict[str, object]) -> None:
        """Makes the folder, unless it is there and holds the same; what else it held is begun again, with a word.

        Raises RequestError where it is no such folder, so that nobody's files are lost.
        """
        refuse_symlink(self.folder)
        if self.folder.exists() and not _is_ours(self.folder):
            raise RequestError(
                f"{self.folder}: expected nothing, or what an earlier call left there, found something else. Move it "
                "away, or name another output."
            )
        try:
            if self.folder.is_dir() and read_json(self.folder / HOLDS) != holds:
                log(f"{self.folder} was begun for another model or input; it is begun again")
                shutil.rmtree(self.folder)
            self.folder.mkdir(exist_ok=True)
            if is_sensitive():  # what was begun before may be open to more people
                apply_umask(self.folder)
            write_json(self.folder / HOLDS, holds)
        except OSError as error:
            raise write_error(self.folder, error) from error

    def waiting(self) -> list[int]:
        """The blocks that are not done, in order."""
        there = set(self.folder.glob("*.jsonl"))  # a list is up to date on a network disk, where one name may not be
        return [number for number, path in enumerate(self.paths) if path not in there]

    @property
    def paths(self) -> list[Path]:
        """The file of each block."""
        return [self.folder / f"{number:06}.jsonl" for number in range(len(self.blocks))]

    def write(self, number: int, lines: Iterable[str]) -> None:
        """Writes the lines of a block, each with its end; it is done when its file is there."""
        part = self.paths[number]
        try:
            with atomic_write(part) as path, path.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(lines)
        except OSError as error:
            raise write_error(part, error) from error

    def remove(self) -> None:
        shutil.rmtree(self.folder)


def _is_ours(folder: Path) -> bool:
    """Whether a call has begun it; one that was killed before it wrote what it holds has left hidden files alone."""
    return folder.is_dir() and (
        (folder / HOLDS).is_file() or all(path.name.startswith(".") for path in folder.iterdir())
    )


class Stretch(NamedTuple):
    """A block of a source's records, [first, end). size: what its progress is counted in."""

    first: int
    end: int
    size: int


def taken(records: Iterator[AnyRecord], wanted: Sequence[Stretch], source: Path) -> Iterator[Iterator[AnyRecord]]:
    """The records of each of `wanted`, in one pass; a block is to be read before the next one.

    Raises WorkError where `source`, which they come from, holds fewer than it did.
    """
    place = 0
    for first, end, _ in wanted:
        records, place = islice(records, first - place, None), end
        yield _exactly(end - first, records, source)


def _exactly(count: int, records: Iterator[AnyRecord], source: Path) -> Iterator[AnyRecord]:
    found = 0
    for record in islice(records, count):
        found += 1
        yield record
    if found < count:
        raise WorkError(f"{source} became shorter while it was read; run the same command again")


def fill(
    parts: Parts[Stretch],
    lines: Callable[[Sequence[Stretch]], Iterator[Iterable[str]]],
    doing: str,
    unit: str,
    process_group: ProcessGroup,
) -> int:
    """Writes the blocks that are not done, process r of w those at r::w, and returns when all are on the disk.

    Raises RequestError when the processes do not share the folder. Returns the size of all blocks that were not done.
    lines: gives the lines of each of the blocks asked for.
    doing, unit: what the progress says, `tagging` and `words` for example.
    """
    from bertrelay.distributed import check_complete  # loads torch, which a wrong request need not wait for

    waiting, whole = parts.waiting(), sum(block.size for block in parts.blocks)
    mine = [number for number in waiting if number % process_group.size == process_group.rank]
    theirs = set(waiting).difference(mine)
    missing = sum(parts.blocks[number].size for number in waiting)
    if 0 < missing < whole:
        log(f"{doing}: going on after {whole - missing:,} of {whole:,} {unit}")
    with progress(doing, whole, unit, whole - missing) as bar:
        for number, block in zip(mine, lines([parts.blocks[number] for number in mine]), strict=True):
            parts.write(number, block)
            release_memory()
            done = theirs.difference(parts.waiting())  # by other processes, since the last block
            bar.advance(sum(parts.blocks[each].size for each in (number, *done)))
            theirs -= done
    check_complete(parts.folder, lambda: (len(parts.waiting()), len(parts.blocks)), process_group)
    return missing
