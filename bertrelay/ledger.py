"""Which blocks of a large file are done: a small file beside it, so that a kill costs no more than one block.

The first line says what the file holds, the rest has one character per block. Processes mark their own blocks in
place, so they need no messages, and a resumed run may have another number of them.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from bertrelay.files import refuse_symlink, write_error
from bertrelay.progress import log

WAITING, DONE = b".", b"#"


@dataclass(frozen=True)
class Ledger:
    """Blocks `first_byte`, `first_byte + 1`, … of the file at `path`."""

    path: Path
    first_byte: int
    blocks: int

    def waiting(self) -> list[int]:
        """The blocks that are not done, in order."""
        marks = self.path.read_bytes()[self.first_byte :]
        return [block for block in range(self.blocks) if marks[block : block + 1] != DONE]

    def mark(self, block: int) -> None:
        """Says that `block` is done; call it when the block is on the disk."""
        try:
            with self.path.open("r+b") as file:
                file.seek(self.first_byte + block)
                file.write(DONE)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise write_error(self.path, error) from error


def blocks_in(path: Path) -> tuple[int, int]:
    """How many blocks of the file at `path` are not done, and how many it has; a file without a ledger is one block."""
    try:
        marks = ledger_path(path).read_bytes().partition(b"\n")[2]
    except FileNotFoundError:
        return 1, 1
    return len(marks) - marks.count(DONE), len(marks)


def ledger_path(path: Path) -> Path:
    """Where the ledger of the file at `path` stands."""
    return path.with_name(path.name + ".progress")


def open_ledger(path: Path, holds: dict[str, object], blocks: int, create: Callable[[], None]) -> Ledger:
    """The ledger of the file at `path`; `create` makes that file when there is none that holds the same.

    holds: what decides the file's content; another one than was begun is begun again, with a word.
    """
    refuse_symlink(path)
    try:
        path.parent.stat()  # the lock would make a folder that is not there
        with FileLock(path.with_name(path.name + ".lock")):
            return _open(path, holds, blocks, create)
    except OSError as error:
        raise write_error(path, error) from error


def _open(path: Path, holds: dict[str, object], blocks: int, create: Callable[[], None]) -> Ledger:
    ledger = ledger_path(path)
    head = json.dumps(holds, sort_keys=True).encode() + b"\n"
    if path.is_file() and ledger.is_file():
        written = ledger.read_bytes()
        if written.startswith(head) and len(written) == len(head) + blocks:
            return Ledger(ledger, len(head), blocks)
        log(f"{path} was begun for another model or input; it is begun again")
    ledger.unlink(missing_ok=True)
    create()
    fresh = ledger.with_name(ledger.name + ".new")
    fresh.write_bytes(head + WAITING * blocks)
    fresh.replace(ledger)
    return Ledger(ledger, len(head), blocks)


def forget(path: Path) -> None:
    """Removes what stands beside the file at `path`, when the file is done and nobody will go on with it."""
    ledger_path(path).unlink(missing_ok=True)
    path.with_name(path.name + ".lock").unlink(missing_ok=True)
