"""Files of published data sets: found by their official names, at any depth of a folder, and read line by line."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bertrelay.data.readers import LONGEST_LINE, open_input, refuse_damaged
from bertrelay.errors import RequestError
from teachers.data import number

Scale = tuple[float, float]
"""The lowest and the highest gold score."""


class OfficialFiles:
    """The files below the folder `data`, subfolders and linked folders included.

    Raises RequestError when there is no such folder.
    """

    def __init__(self, data: Path) -> None:
        if not data.is_dir():
            raise RequestError(f"data: expected a folder with the official files, found none at {data}")
        self.data = data
        self._paths = sorted(_files_below(data))

    def named(self, *names: str) -> list[Path]:
        """Lists the files of one of these names, also with `.gz` behind it."""
        return [path for path in self._paths if path.name.removesuffix(".gz") in names]

    def find(self, *names: str, within: str = "") -> Path | None:
        """Finds the file of one of these names, also with `.gz` behind it; None without any.

        within: a pattern to find in the folder's path, from `data` on, in any case.
        Raises RequestError for several files.
        """
        parent = Path(self.data.resolve().name)
        folders = {path: str(parent / path.parent.relative_to(self.data)) for path in self.named(*names)}
        paths = distinct(path for path, folder in folders.items() if re.search(within, folder, re.IGNORECASE))
        refuse_several(paths, " or ".join(names))
        return paths[0] if paths else None

    def all_or_none(self, what: str, *names: str, within: str = "") -> list[Path] | None:
        """Finds the files of all these names; None without any. Raises RequestError when only some exist.

        what: the set or protocol, for the error.
        """
        paths = [self.find(name, within=within) for name in names]
        missing = [name for name, path in zip(names, paths, strict=True) if path is None]
        if missing and len(missing) < len(names):
            raise RequestError(
                f"{what}: expected {' and '.join(names)}, found no {', '.join(missing)} below {self.data}"
            )
        return None if missing else [path for path in paths if path]


def _files_below(data: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(data, followlinks=True):
        above = {folder.resolve() for folder in (Path(root), *Path(root).parents) if folder.is_relative_to(data)}
        # A link to a folder that it lies in would be followed without end.
        folders[:] = [name for name in folders if Path(root, name).resolve() not in above]
        yield from (path for name in names if (path := Path(root, name)).is_file())


def distinct(paths: Iterable[Path]) -> list[Path]:
    """Drops paths that lead to the same file through links."""
    return list({path.resolve(): path for path in paths}.values())


def refuse_several(files: Sequence[object], what: str) -> None:
    """Raises RequestError, naming the files, for more than one, as any choice would be a guess."""
    if len(files) > 1:
        raise RequestError(
            f"data: expected one {what}, found {len(files)}: {', '.join(map(str, files))}. Move the others away, or "
            "name a folder with one of them."
        )


def read_lines(path: Path) -> list[str]:
    r"""Reads the lines of `path`, split only at \n: in UTF-8, else in Latin-1, as several of these sets are older.

    Raises RequestError for an empty file.
    """
    with refuse_damaged(str(path)), open_input(str(path)) as file:
        content = file.read(LONGEST_LINE + 1)
    if len(content) > LONGEST_LINE:
        raise RequestError(f"{path}: expected at most {LONGEST_LINE >> 20} MiB, found more. Is it the right file?")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    if not text:
        raise RequestError(f"{path} is empty. Copy the file again.")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_fields(path: Path, separator: str, least: int, form: str) -> list[list[str]]:
    """Reads the fields of each line; raises RequestError with file and line for fewer than `least` fields.

    form: the expected form of a line, for the error.
    """
    rows = [line.split(separator) for line in read_lines(path)]
    for line, row in enumerate(rows, 1):
        if len(row) < least:
            raise RequestError(f"{path}, line {line:,}: expected {form}, found {len(row)} of {least} fields")
    return rows


def gold_score(text: str, path: Path | str, line: int, scale: Scale = (0, 5)) -> float:
    """Parses a number on `scale`; raises RequestError with file and line, and without the text, for other text."""
    lowest, highest = scale
    expected = f"{path}, line {line:,}: expected a gold score from {lowest:g} to {highest:g}"
    score = number(text)
    if score is None:
        raise RequestError(f"{expected}, found no number. Is it a header, or another column?")
    if not lowest <= score <= highest:
        raise RequestError(f"{expected}, found one outside. Is it another column, or another file?")
    return score
