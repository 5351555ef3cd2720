"""Fingerprints: what the result of a stage depends on, flat, and its hash. Loads neither torch nor transformers.

A file counts by its content and suffix, never by its path; another stage's output by the fingerprint of that stage; a
hub id by its revision. Run-only settings do not count.
"""

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from errno import EINVAL
from pathlib import Path
from typing import Any, NamedTuple

from bertrelay.errors import RequestError
from bertrelay.files import NOT_UTF8, is_utf8, read_json, write_json
from bertrelay.inputs import note_input, state_of
from bertrelay.privacy import current_umask
from bertrelay.progress import spinner
from bertrelay.settings import RUN_ONLY, AnySettings, Settings, Source

Parts = dict[str, Any]
"""Key of a setting (`train[0].path`), or `uses` and `uses.version`, to the value that counts: of a file its digest."""

CLOCK_GRAIN_NS = 100_000_000
COMPRESSED = {".gz", ".bz2", ".xz", ".zst"}


def fingerprint(parts: Parts) -> str:
    """sha256, in hex, of the canonical JSON of `parts`: the order of the keys does not count."""
    canonical = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def stage_parts(
    kind: str,
    version: int,
    settings: Settings,
    digests: "Digests",
    upstream: Callable[[str], str],
    revision: Callable[[Source], str],
) -> Parts:
    """Everything that the result of a stage of this kind and version with `settings` depends on.

    upstream: name of another stage to its fingerprint.
    revision: the revision of a hub id that the recipe does not pin.
    """

    def part(value: Any) -> Any:
        return _source_part(value, digests, upstream, revision) if isinstance(value, Source) else value

    counted = {leaf.key: part(leaf.value) for leaf in leaves(settings) if not leaf.run_only}
    return {"uses": kind, "uses.version": version, **counted}


def content_parts(settings: Settings, fields: Iterable[str], digests: "Digests") -> Parts:
    """The parts of the fingerprint that names, in the cache, a result of only these `fields` of a stage's settings.

    References to other stages must be resolved to paths. A hub id without a revision counts by its name.
    """
    names = set(fields)
    counted = [leaf for leaf in leaves(settings) if re.split(r"[.\[]", leaf.key)[0] in names and not leaf.run_only]
    for leaf in counted:  # before its digest, so that a file added later is noticed
        if isinstance(leaf.value, Source) and leaf.value.folder and leaf.value.folder.is_dir():
            note_folder(leaf.value.folder)
    return {
        leaf.key: _source_part(leaf.value, digests, str, lambda _: "") if isinstance(leaf.value, Source) else leaf.value
        for leaf in counted
    }


def _source_part(
    source: Source, digests: "Digests", upstream: Callable[[str], str], revision: Callable[[Source], str]
) -> str:
    if source.stage_reference:
        stage, inner = source.stage_reference
        return f"output:{upstream(stage)}/{inner}"
    if path := source.folder:
        if path.is_dir():
            return f"folder:{digests.of_folder(path)}"
        note_input(path)
        # The suffix by which a file is read counts: `.tsv`, `.tsv.gz`.
        inner = Path(path.stem).suffix if path.suffix.lower() in COMPRESSED else ""
        return f"file:{f'{inner}{path.suffix}'.lower()}:{digests.of_file(path)}"
    return f"hub:{source.hub_id}@{source.revision or revision(source)}"


class Leaf(NamedTuple):
    """One value of a settings model with its dotted key (`train[0].path`).

    run_only: true if the result does not depend on it.
    """

    key: str
    value: Any
    run_only: bool


def leaves(settings: Settings) -> Iterator[Leaf]:
    """Yields every value of `settings`, flat, in the order of the fields."""
    for name, field in type(settings).model_fields.items():
        for key, value in flatten(name, getattr(settings, name)):
            yield Leaf(key, value, RUN_ONLY in field.metadata)


def flatten(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields (dotted key, value) of each plain value in `value`; settings, tables and lists are entered."""
    if isinstance(value, Settings):
        for leaf in leaves(value):
            if not leaf.run_only:
                yield f"{key}.{leaf.key}", leaf.value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from flatten(f"{key}.{name}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from flatten(f"{key}[{index}]", item)
    else:
        yield key, value


def with_values(settings: AnySettings, replace: Callable[[str, Any], Any]) -> AnySettings:
    """A copy of `settings` with `replace(key, value)` for every value, keys as in `leaves`."""

    def walk(key: str, value: Any) -> Any:
        if isinstance(value, Settings):
            prefix = f"{key}." if key else ""
            return value.model_copy(
                update={name: walk(f"{prefix}{name}", getattr(value, name)) for name in type(value).model_fields}
            )
        if isinstance(value, dict):
            return {name: walk(f"{key}.{name}", item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(walk(f"{key}[{index}]", item) for index, item in enumerate(value))
        return replace(key, value)

    replaced: AnySettings = walk("", settings)
    return replaced


def with_stage_paths(settings: AnySettings, locate: Callable[[str, str], Path]) -> AnySettings:
    """A copy of `settings` with `locate(stage, path)` for every `@stage/path`."""

    def replace(_: str, value: Any) -> Any:
        reference = value.stage_reference if isinstance(value, Source) else None
        return type(value)(locate(*reference)) if reference else value

    return with_values(settings, replace)


class Digests:
    """sha256 of files, remembered by path and `file_stamp` so that a large file is read once.

    memory: the JSON file in which they are remembered; None remembers nothing, and a damaged one is replaced.
    verify: read every file again, once, even if its digest is remembered.
    """

    def __init__(self, memory: Path | None = None, verify: bool = False) -> None:
        self.memory = memory
        self.verify = verify
        self._entries: dict[str, list[Any]] = (read_json(memory) or {}) if memory else {}  # path → [*stamp, digest]
        self._read: set[str] = set()

    def of_file(self, path: Path) -> str:
        """The sha256 of the file's content, in hex. Raises RequestError for anything but a file that can be read."""
        try:
            name, stamp = str(path), file_stamp(path)
            entry = self._entries.get(name)
            is_remembered = isinstance(entry, list) and entry[:-1] == stamp and isinstance(entry[-1], str)
            if is_remembered and (name in self._read or not self.verify):
                return str(self._entries[name][-1])
            read_at = time.time_ns()
            with path.open("rb") as file, spinner(f"reading {path.name} for its fingerprint"):
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise RequestError(
                f"expected a file that can be read, found {error.strerror or error} at {path}; remove or replace it"
            ) from error
        if shows_changes(stamp, read_at):
            self._entries[name] = [*stamp, digest]
            self._read.add(name)
        return digest

    def of_folder(self, folder: Path) -> str:
        """The sha256 of the names and contents in `folder`; hidden files (`.git`, `.cache`) are no part of a model.

        Raises RequestError for a file in it that cannot be read, and for a link to a folder that contains the link.
        """
        inner = {path.relative_to(folder).as_posix(): path for path in visible_files(folder)}
        return fingerprint({name: self.of_file(path) for name, path in sorted(inner.items())})

    def of(self, path: Path) -> str:
        """The sha256 of a file or a folder."""
        return self.of_folder(path) if path.is_dir() else self.of_file(path)

    def moved(self, old: Path, new: Path) -> None:
        """Remembers the files in the folder `old` under `new`, its new name."""
        for name in [name for name in self._entries if Path(name).is_relative_to(old)]:
            self._entries[str(new / Path(name).relative_to(old))] = self._entries.pop(name)

    def save(self) -> None:
        """Writes the memory, without files that no longer exist.

        It names files: once a run on sensitive data wrote it, it stays as hidden as that run is.
        """
        if self.memory is None:
            return
        self.memory.parent.mkdir(parents=True, exist_ok=True)
        existing = {name: entry for name, entry in self._entries.items() if Path(name).exists()}
        hidden = ~self.memory.stat().st_mode & 0o777 if self.memory.is_file() else 0
        umask = os.umask(current_umask() | hidden)
        try:
            write_json(self.memory, existing, True)
        finally:
            os.umask(umask)


def file_stamp(path: Path) -> list[int]:
    """Size, mtime, ctime and inode of a file, by which an untouched one is recognised without reading it.

    Raises OSError for a pipe, a device or a folder: opening a pipe would wait for its other end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(EINVAL, "something else")
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def shows_changes(stamp: list[int], read_at: int) -> bool:
    """True if a change after `read_at` (time.time_ns) is sure to change the `file_stamp`.

    Changed again within the clock's grain, a file that was just written could keep its stamp.
    """
    _, modified, changed, _ = stamp
    return read_at - max(modified, changed) > CLOCK_GRAIN_NS


def visible_files(folder: Path) -> Iterator[Path]:
    """Yields the files below `folder` that are not hidden, broken links among them; links to folders are followed.

    Raises RequestError for a link to a folder that contains the link.
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
    """Notes the files in `folder` as inputs, as `note_input` does: none may be added or removed, either."""
    note_input(folder, lambda: {str(path): state_of(path) for path in visible_files(folder)})
