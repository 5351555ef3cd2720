"""The files of published data sets: found by their official names, wherever below a folder, and read line by line."""

import re
from pathlib import Path

from bertrelay.errors import RequestError
from bertrelay.text_tables import opened


class OfficialFiles:
    """The files below the folder `data`, subfolders included.

    Raises RequestError when there is no such folder.
    """

    def __init__(self, data: Path) -> None:
        if not data.is_dir():
            raise RequestError(f"data: expected a folder with the official files, found none at {data}")
        self.data = data
        self._paths = sorted(path for path in data.rglob("*") if path.is_file())

    def find(self, *names: str, within: str = "") -> Path | None:
        """The first file of one of these names, or of one with `.gz` behind it; None without any.

        within: a pattern that the folder's path, from `data` on, has somewhere, in any case.
        """
        wanted = {*names, *(f"{name}.gz" for name in names)}
        folder = re.compile(within, re.IGNORECASE)
        return next((path for path in self._paths if path.name in wanted and folder.search(self._place(path))), None)

    def _place(self, path: Path) -> str:
        """The folder of `path` as seen from the one that `data` stands in."""
        return str(Path(self.data.resolve().name) / path.parent.relative_to(self.data))


def read_lines(path: Path) -> list[str]:
    r"""The lines of `path`, split at \n alone: in UTF-8, else in Latin-1, as several of these sets are older.

    Raises RequestError when there are none.
    """
    with opened(str(path)) as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    lines = lines[:-1] if lines[-1] == "" else lines
    if not lines:
        raise RequestError(f"{path} is empty. Copy the file again.")
    return lines


def fields_of(path: Path, lines: list[str], separator: str, least: int, form: str) -> list[list[str]]:
    """Each line's fields; raises RequestError with file and line for one that has fewer than `least`.

    form: how a line should look, for the error.
    """
    rows = [line.split(separator) for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) < least:
            raise RequestError(f"{path}, line {number:,}: expected {form}, found {len(row)} of {least} fields")
    return rows
