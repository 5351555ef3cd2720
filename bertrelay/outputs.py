"""The file that a user asks for: checked before any work, held by one process, and what to say when it cannot be."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from bertrelay.errors import RequestError, WorkError


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
    if output.suffix not in suffixes:
        raise RequestError(f"{option}: expected a file that ends in {' or '.join(suffixes)}, found {output}")
    if output.is_dir():
        raise RequestError(f"{option}: expected a file, found the folder {output}; name a file in it")
    check_place(output, *inputs, option=option, overwrite=overwrite)


def check_place(output: Path, *inputs: str | Path | None, option: str = "output", overwrite: bool = True) -> None:
    """Raises RequestError for an output, a file or a folder, in no folder, or that is one of the `inputs`.

    overwrite: whether a file may be there already.
    """
    if not output.parent.is_dir():
        raise RequestError(f"{option}: there is no folder {output.parent} to write {output.name} into; make it first")
    there = [Path(each) for each in inputs if each and output.exists() and Path(each).exists()]
    if any(map(output.samefile, there)):
        raise RequestError(f"{option}: {output} is the input itself; name another")
    if output.is_file() and not overwrite:
        raise RequestError(f"{option}: {output} is there already; name another, or replace it with --overwrite")


def check_is_no_link(path: Path) -> None:
    """Raises RequestError for unfinished work behind a symbolic link: it is replaced and removed by its name."""
    if path.is_symlink():
        raise RequestError(
            f"{path}: expected nothing, or what an earlier call left there, found a symbolic link. Remove it, or name "
            "another output"
        )


@contextmanager
def held(output: Path) -> Iterator[None]:
    """Keeps `output` to this process; the system lets go of it even when the process is killed.

    Raises RequestError when another process writes it, or nobody may.
    """
    lock = FileLock(output.with_name(output.name + ".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise RequestError(f"output: another process is writing {output}; wait for it, or name another file") from error
    except OSError as error:
        raise not_written(output, error) from error
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def not_written(path: Path, error: OSError) -> RequestError | WorkError:
    """What to raise when `path` could not be written: a wrong request, or a disk that is full or broken."""
    if isinstance(error, PermissionError | FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return RequestError(f"expected a file that may be written, found {error.strerror} at {path}")
    return WorkError(f"could not write {path}: {error.strerror}; free space or choose another place, then run again")
