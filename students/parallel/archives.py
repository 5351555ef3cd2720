"""The files of a source of parallel text: one file, those of a folder, or those of a `.zip`."""

import gzip
import lzma
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, cast

from bertrelay.data.readers import open_input
from bertrelay.errors import RequestError
from bertrelay.fingerprint import note_folder, visible_files
from bertrelay.inputs import note_input
from bertrelay.settings import nearest

DAMAGED = (zipfile.BadZipFile, RuntimeError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, struct.error)
HIDDEN = re.compile(r"(^|/)\.(?!\.?/)")  # not ./ and ../

Opener = Callable[[], AbstractContextManager[IO[bytes]]]
Members = Mapping[str, Opener]
"""The files of a source by name, and the function that opens each, unpacked."""


@contextmanager
def open_members(path: Path) -> Iterator[Members]:
    """Lists the files of a source; hidden ones are left out. Raises RequestError if `path` is missing or damaged."""
    if not path.exists():
        near = nearest(path) or "Check the path"
        raise RequestError(f"there is no file or folder {path}. {near}; in a recipe it counts from its folder.")
    if path.is_dir():
        note_folder(path)
        names = sorted(str(inner) for inner in visible_files(path) if inner.is_file())
        yield {name: partial(open_input, name) for name in names}
    elif path.suffix.lower() == ".zip":
        note_input(path)
        try:
            with zipfile.ZipFile(path) as archive:
                names = sorted(name for name in archive.namelist() if not HIDDEN.search(name) and name[-1] != "/")
                _check_unique(path, names)
                yield {f"{path}/{name}": partial(_open_member, archive, name) for name in names}
        except RequestError:
            raise
        except DAMAGED as error:
            # cut off, damaged, packed by an unknown method, or with a password
            raise RequestError(f"{path} cannot be unpacked: {error}. Fetch or pack it again.") from None
    else:
        yield {str(path): partial(open_input, str(path))}


def _check_unique(path: Path, names: Sequence[str]) -> None:
    """Raises RequestError for two files of one name, of which only one could be read by it."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise RequestError(
            f"{path}: expected each name once, found {len(repeated)} that several files have, the first of them "
            f"{repeated[0]!r}. Pack it again without older ones, or under different names."
        )


def _open_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    member = archive.open(name)
    return cast(IO[bytes], gzip.GzipFile(fileobj=member)) if name.lower().endswith(".gz") else member
