"""Small files that are whole or not there: written beside, synced, renamed. Loads nothing heavy."""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertrelay.privacy import current_umask

if TYPE_CHECKING:
    from torch import Tensor


def write_json(path: Path, value: Any, compact: bool = False) -> None:
    """Writes `value` to `path` in one step: a reader sees the old file or the new one, also after a crash."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=None if compact else 2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path` in one step, as `write_json` does."""
    descriptor, building = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        share(Path(building))
        Path(building).replace(path)
    except BaseException:
        Path(building).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def share(path: Path) -> None:
    """Lets others read a result as any other file: what mkstemp makes, for safetensors too, is private."""
    path.chmod(0o666 & ~current_umask())


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: dict[str, str] | None = None) -> None:
    """Writes `tensors`, from whatever device, as safetensors that others may read as any other file.

    Raises OSError with its number, which safetensors puts into words alone.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    share(path)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file beside `path` to be written, which takes its place when the work is done, and goes when the work fails.

    Raises OSError at once when it may not be written.
    """
    building = path.with_name(f".{path.name}.writing")
    building.touch()
    try:
        yield building
        _sync(building)
        building.replace(path)
        sync_folder(path.parent)
    finally:
        building.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None when there is none, or when it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def sync_contents(folder: Path) -> None:
    """Makes the files of `folder` durable, and their names: done before a word that says that they are there."""
    for path in folder.iterdir():
        _sync(path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Makes the names in `folder` durable, which syncing the files alone does not."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
