"""Digests of files and folders, and the hash of what a result depends on. Loads neither torch nor transformers."""

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from errno import EINVAL
from pathlib import Path
from typing import Any

from bertrelay.errors import RequestError
from bertrelay.files import NOT_UTF8, is_utf8, read_json, write_json
from bertrelay.inputs import note_input, state_of
from bertrelay.privacy import current_umask
from bertrelay.progress import working

Parts = dict[str, Any]
"""Key of a setting (`train[0].path`), or `uses` and `uses.version`, to what of it changes the result."""

CLOCK_GRAIN_NS = 100_000_000


class Digests:
    """sha256 of files, remembered by (path, size, mtime, ctime, inode) so that a large file is read once.

    memory: where they are remembered, None for nowhere; a damaged memory is replaced.
    verify: read every file again, whatever is remembered.
    """

    def __init__(self, memory: Path | None = None, verify: bool = False) -> None:
        self.memory = memory
        self.verify = verify
        self._known: dict[str, list[Any]] = (read_json(memory) or {}) if memory else {}
        self._read: set[str] = set()

    def of_file(self, path: Path) -> str:
        """The sha256 of the file's content, in hex. Raises RequestError for what is no file that can be read."""
        try:
            name, stamp = str(path), _stamp(path)
            entry = self._known.get(name)
            is_known = isinstance(entry, list) and entry[:-1] == stamp and isinstance(entry[-1], str)
            if is_known and (name in self._read or not self.verify):
                return str(self._known[name][-1])
            started = time.time_ns()
            with path.open("rb") as file, working(f"reading {path.name} for its fingerprint"):
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise RequestError(
                f"expected a file that can be read, found {error.strerror or error} at {path}; remove or replace it"
            ) from error
        # Changed again within the clock's grain, a file could keep its stamp: such a fresh one is not remembered.
        if started - max(stamp[1], stamp[2]) > CLOCK_GRAIN_NS:
            self._known[name] = [*stamp, digest]
            self._read.add(name)
        return digest

    def of_folder(self, folder: Path) -> str:
        """The sha256 of the names and contents in `folder`; hidden files (`.git`, `.cache`) are no part of a model.

        Raises RequestError for a file in it that cannot be read, and for a link to a folder that it lies in.
        """
        inner = {path.relative_to(folder).as_posix(): path for path in visible_files(folder)}
        return fingerprint({name: self.of_file(path) for name, path in sorted(inner.items())})

    def of(self, path: Path) -> str:
        """The sha256 of a file or a folder."""
        return self.of_folder(path) if path.is_dir() else self.of_file(path)

    def moved(self, old: Path, new: Path) -> None:
        """Carries over what is remembered of the files in `old`, which has been renamed to `new`."""
        for name in [name for name in self._known if Path(name).is_relative_to(old)]:
            self._known[str(new / Path(name).relative_to(old))] = self._known.pop(name)

    def save(self) -> None:
        """Writes the memory where it is kept, files that are gone left out.

        It names files: once it was written in a run of sensitive data, it stays as hidden as that run is.
        """
        if self.memory is None:
            return
        self.memory.parent.mkdir(parents=True, exist_ok=True)
        there = {name: entry for name, entry in self._known.items() if Path(name).exists()}
        hidden = ~self.memory.stat().st_mode & 0o777 if self.memory.is_file() else 0
        umask = os.umask(current_umask() | hidden)
        try:
            write_json(self.memory, there, True)
        finally:
            os.umask(umask)


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its other end
        raise OSError(EINVAL, "something else")
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def visible_files(folder: Path) -> Iterator[Path]:
    """The files below `folder` that are not hidden, links among them, also to nothing; folders' links are followed.

    Raises RequestError for a link to a folder that it lies in.
    """
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            link = Path(root, name)
            if link.is_symlink() and Path(root).resolve().is_relative_to(link.resolve()):
                raise RequestError(
                    f"expected a folder with an end, found a link to its own parent at {link}; remove it"
                )
        for name in names:
            if not name.startswith("."):
                if not is_utf8(name):
                    raise RequestError(f"{NOT_UTF8}, found {name!r} in {root}; rename or remove it")
                yield Path(root, name)


def note_folder(folder: Path) -> None:
    """Notes that the files in `folder` are read now, as `note_input` does: none may be added or go, either."""
    note_input(folder, lambda: {str(path): state_of(path) for path in visible_files(folder)})


def fingerprint(parts: Parts) -> str:
    """sha256, in hex, of the canonical JSON of `parts`: the order of the keys does not count."""
    canonical = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()
