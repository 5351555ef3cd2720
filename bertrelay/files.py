"""Small files that are whole or not there: written beside, synced, renamed. Loads nothing heavy."""

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
"""In the name of a file, or folder, that is being written; one that a killed process left is of no use."""
NO_ROOM = {ENOSPC, EFBIG, EDQUOT}
"""Errors of a disk that is full, or of which one may use no more."""
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
    """Removes what processes that were killed were writing below `folder`, where no other is at work now."""
    for left in folder.rglob(f".*{WRITING}*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def make_readable(path: Path) -> None:
    """Lets others read a result as any other file: what mkstemp makes, for safetensors too, is private."""
    path.chmod(0o666 & ~current_umask())


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: dict[str, str] | None = None) -> None:
    """Writes `tensors`, from whatever device, as safetensors that others may read as any other file.

    Raises OSError with its number, where safetensors gives a text alone.
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
    """A file beside `path` to be written, which takes its place when the work is done, and goes when the work fails.

    Of a symbolic link it is the place of what the link leads to.
    writer: names who writes, where others may write the same file meanwhile.
    is_result: whether the inputs are compared first; not of what is assembled later.
    Raises RequestError when it may not be written, at once, WorkError when the disk is full or an input has changed.
    """
    path = path.resolve() if os.path.islink(path) else path  # noqa: PTH114 (which never raises)
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
        with suppress(PermissionError):  # of a folder that may not be written
            building.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None when there is none, or when it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def sync_contents(folder: Path) -> None:
    """Makes the files of `folder` durable, and their names, before a marker declares them complete."""
    for path in folder.iterdir():
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Makes a file durable; of a folder the names in it, which syncing the files alone does not."""
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
    overwrite: bool = True,
) -> None:
    """Raises RequestError for an output of no known kind, in no folder, or that is one of the `inputs`.

    overwrite: whether it may be there already.
    """
    check_name(output, option)
    if output.suffix not in suffixes:
        raise RequestError(f"{option}: expected a file that ends in {' or '.join(suffixes)}, found {output}")
    if output.is_dir():
        raise RequestError(f"{option}: expected a file, found the folder {output}; name a file in it")
    check_place(output, *inputs, option=option, overwrite=overwrite)


def is_utf8(name: str) -> bool:
    """Whether a name is text; Python has other bytes of it as halves of surrogate pairs."""
    try:
        return name.encode() is not None
    except UnicodeEncodeError:
        return False


def check_name(path: str | Path, option: str = "output") -> None:
    """Raises RequestError for a path that is not UTF-8, as logs and manifests are, or that no file can have."""
    if not is_utf8(str(path)):
        raise RequestError(f"{option}: {NOT_UTF8}, found {str(path)!r}; rename it")
    try:
        Path(path).stat()
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno == ENAMETOOLONG:
            why = error.strerror if isinstance(error, OSError) else error
            raise RequestError(f"{option}: expected a name that a file can have, found {why}: {path}") from None


def check_place(output: Path, *inputs: str | Path | None, option: str = "output", overwrite: bool = True) -> None:
    """Raises RequestError for an output, a file or a folder, in no folder, or that is one of the `inputs`.

    overwrite: whether a file may be there already.
    """
    check_name(output, option)
    if not output.parent.is_dir():
        raise RequestError(f"{option}: there is no folder {output.parent} to write {output.name} into; make it first")
    there = [Path(each) for each in inputs if each and output.exists() and Path(each).exists()]
    if any(map(output.samefile, there)):
        raise RequestError(f"{option}: {output} is the input itself; name another")
    if output.is_file() and not overwrite:
        raise RequestError(f"{option}: {output} is there already; name another, or replace it with --overwrite")


def refuse_packed(output: Path) -> None:
    """Raises RequestError for an output that a reader would take for packed by its name: none is packed."""
    if output.suffix.lower() == ".gz":
        raise RequestError(f"output: expected a name without .gz, as it is not packed, found {output}; leave .gz out")


def refuse_symlink(path: Path) -> None:
    """Raises RequestError for unfinished work behind a symbolic link: it is replaced and removed by its name."""
    if path.is_symlink():
        raise RequestError(
            f"{path}: expected nothing, or what an earlier call left there, found a symbolic link. Remove it, or name "
            "another output"
        )


@contextmanager
def writing_folder(path: Path) -> Iterator[None]:
    """Names `path` where one of the files below it cannot be written: a full disk, or one that may only be read."""
    try:
        yield
    except Exception as error:  # also one that names a part of it, which is written under another name
        number = error_number(error.__cause__ if isinstance(error, BertRelayError) else error)
        if number not in (*NO_ROOM, EROFS):
            raise
        raise write_error(path, OSError(number, os.strerror(number))) from error


def error_number(error: BaseException | None) -> int | None:
    """The system's number of an error; libraries in Rust and C++ hide it in their words or in a cause."""
    while error is not None:
        if isinstance(error, OSError) and error.errno:
            return error.errno
        found = re.search(r"os error (\d+)", str(error))
        if found:
            return int(found[1])
        error = error.__cause__ or error.__context__
    return None


def write_error(path: Path, error: OSError) -> RequestError | WorkError:
    """What to raise when `path` could not be written: a wrong request, or a disk that is full or broken."""
    if isinstance(error, PermissionError | FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return RequestError(f"expected a file that may be written, found {error.strerror} at {path}")
    return WorkError(f"could not write {path}: {error.strerror}; free space or choose another place, then run again")
