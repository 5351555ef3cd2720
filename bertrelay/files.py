"""Small files that are complete or absent: written beside, synced, renamed. Loads nothing heavy."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENAMETOOLONG, ENOSPC, EROFS
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertrelay.errors import BertRelayError, RequestError, WorkError
from bertrelay.inputs import check_inputs
from bertrelay.privacy import current_umask

if TYPE_CHECKING:
    from torch import Tensor


WRITING = ".writing"
"""Part of the name of a file or folder that is being written; what a killed process left is of no use."""
NO_SPACE = {ENOSPC, EFBIG, EDQUOT}
"""Error numbers of a full disk or an exhausted quota."""
NOT_UTF8 = "expected names of files and folders in UTF-8"


def write_json(path: Path, value: Any, compact: bool = False) -> None:
    """Writes `value` to `path` in one step: a reader sees the old file or the new one, also after a crash."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=None if compact else 2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path` in one step, as `write_json` does."""
    descriptor, building = tempfile.mkstemp(prefix=f".{path.name}.", suffix=WRITING, dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        make_readable(Path(building))
        Path(building).replace(path)
    except BaseException:
        Path(building).unlink(missing_ok=True)
        raise
    sync(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Removes the unfinished files of killed processes below `folder`, where no process writes now."""
    for left in folder.rglob(f".*{WRITING}*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def make_readable(path: Path) -> None:
    """Gives a result the usual permissions: a file of mkstemp, and of safetensors, is private."""
    path.chmod(0o666 & ~current_umask())


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: dict[str, str] | None = None) -> None:
    """Writes `tensors`, from any device, as safetensors with the usual permissions.

    Raises OSError with its number, where safetensors has it only in a text.
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
    make_readable(path)


@contextmanager
def atomic_write(path: Path, writer: str = "", is_result: bool = True) -> Iterator[Path]:
    """Yields a file beside `path` to write, which replaces `path` at the end and is removed when the work fails.

    Of a symbolic link, the file that it points to is replaced.
    writer: a name for this process, where others may write the same file at the same time.
    is_result: check first that the inputs have not changed; false for parts that are assembled later.
    Raises RequestError at once when it may not be written, WorkError when the disk is full or an input has changed.
    """
    path = path.resolve() if os.path.islink(path) else path  # noqa: PTH114 (it never raises)
    building = path.with_name(f".{path.name}{WRITING}{writer}")
    try:
        building.touch()
        yield building
        if is_result:
            check_inputs()
        sync(building)
        building.replace(path)
        sync(path.parent)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with suppress(PermissionError):  # a folder that may not be written
            building.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None when it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def sync_contents(folder: Path) -> None:
    """Makes the files of `folder` and their names durable, before a marker declares them complete."""
    for path in folder.iterdir():
        sync(path)
    sync(folder)


def publish_folder(building: Path, folder: Path) -> None:
    """Renames a complete folder of files to `folder`, absent or empty; raises WorkError if an input has changed."""
    check_inputs()
    sync_contents(building)
    building.replace(folder)
    sync(folder.parent)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder beside `folder`, to which it is renamed at the end. Raises RequestError where that exists."""
    if folder.exists():
        raise RequestError(f"folder: expected a folder that does not exist yet, found {folder}; name another")
    with explain_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
            building = Path(name, folder.name)
            building.mkdir()
            yield building
            building.rename(folder)


def sync(path: Path) -> None:
    """Makes a file durable, or the names in a folder, which syncing its files does not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_output(
    output: Path,
    suffixes: Sequence[str],
    *inputs: str | Path | None,
    option: str = "output",
    overwrite: bool = False,
) -> None:
    """Raises RequestError for an output of another kind, in no folder, or that is one of the `inputs`.

    overwrite: the file may exist.
    """
    check_name(output, option)
    if output.suffix not in suffixes:
        raise RequestError(f"{option}: expected a file that ends in {' or '.join(suffixes)}, found {output}")
    if output.is_dir():
        raise RequestError(f"{option}: expected a file, found the folder {output}; name a file in it")
    check_location(output, *inputs, option=option, overwrite=overwrite)


def is_utf8(name: str) -> bool:
    """Returns true for a name that is text; Python represents other bytes as halves of surrogate pairs."""
    try:
        return name.encode() is not None
    except UnicodeEncodeError:
        return False


def check_name(path: str | Path, option: str = "output") -> None:
    """Raises RequestError for a path that is not UTF-8, as logs and manifests are, or that is no valid one."""
    if not is_utf8(str(path)):
        raise RequestError(f"{option}: {NOT_UTF8}, found {str(path)!r}; rename it")
    try:
        Path(path).stat()
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno == ENAMETOOLONG:
            why = error.strerror if isinstance(error, OSError) else error
            raise RequestError(f"{option}: expected a valid file name, found {why}: {path}") from None


def check_location(output: Path, *inputs: str | Path | None, option: str = "output", overwrite: bool = False) -> None:
    """Raises RequestError for an output, a file or a folder, in no folder, or that is one of the `inputs`.

    overwrite: a file may exist.
    """
    check_name(output, option)
    if not output.parent.is_dir():
        raise RequestError(f"{option}: there is no folder {output.parent} to write {output.name} into; make it first")
    existing = [Path(path) for path in inputs if path and output.exists() and Path(path).exists()]
    if any(map(output.samefile, existing)):
        raise RequestError(f"{option}: {output} is the input itself; name another")
    if output.is_file() and not overwrite:
        raise RequestError(
            f"{option}: {output} exists already; name another, or replace it with --overwrite, in Python overwrite=True"
        )


def refuse_packed(output: Path) -> None:
    """Raises RequestError for an output whose name ends in .gz, as no output is packed."""
    if output.suffix.lower() == ".gz":
        raise RequestError(f"output: expected a name without .gz, as it is not packed, found {output}; leave .gz out")


def refuse_symlink(path: Path) -> None:
    """Raises RequestError for unfinished work behind a symbolic link, as it is replaced and removed by its name."""
    if path.is_symlink():
        raise RequestError(
            f"{path}: expected no file, or unfinished work of an earlier call, found a symbolic link. Remove it, or "
            "name another output"
        )


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Raises an error that names `path` when a file below it cannot be written: a full or a read-only disk."""
    try:
        yield
    except Exception as error:  # also an error that names a file below it by a temporary name
        number = error_number(error.__cause__ if isinstance(error, BertRelayError) else error)
        if number not in (*NO_SPACE, EROFS):
            raise
        raise write_error(path, OSError(number, os.strerror(number))) from error


def error_number(error: BaseException | None) -> int | None:
    """The system's number of an error, which libraries in Rust and C++ have only in a text or a cause."""
    while error is not None:
        if isinstance(error, OSError) and error.errno:
            return error.errno
        number = re.search(r"os error (\d+)", str(error))
        if number:
            return int(number[1])
        error = error.__cause__ or error.__context__
    return None


def write_error(path: Path, error: OSError) -> RequestError | WorkError:
    """The error to raise when `path` could not be written: a wrong request, or a full or broken disk."""
    if isinstance(error, PermissionError | FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return RequestError(f"expected a file that may be written, found {error.strerror} at {path}")
    return WorkError(f"could not write {path}: {error.strerror}; free space or choose another place, then run again")
