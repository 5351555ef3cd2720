"""An output that is not whole yet: a file of lines for each block, in a folder beside it, which a kill leaves."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from bertrelay.files import read_json, whole_file, write_json
from bertrelay.progress import say
from bertrelay.vectors import not_written

HOLDS = "holds.json"
Block = TypeVar("Block")


class Parts(Generic[Block]):
    """The blocks of `output` that are done. A part is there whole or not at all."""

    def __init__(self, output: Path, blocks: Sequence[Block]) -> None:
        self.folder = output.with_name(output.name + ".partial")
        self.blocks = blocks

    def begin(self, holds: dict[str, object]) -> None:
        """Makes the folder, unless it is there and holds the same; what else it held is begun again, with a word."""
        try:
            if self.folder.is_dir() and read_json(self.folder / HOLDS) != holds:
                say(f"{self.folder} was begun for another model or input; it is begun again")
                shutil.rmtree(self.folder)
            self.folder.mkdir(exist_ok=True)
            write_json(self.folder / HOLDS, holds)
        except OSError as error:
            raise not_written(self.folder, error) from error

    def waiting(self) -> list[int]:
        """The blocks that are not done, in order."""
        return [number for number, path in enumerate(self.paths) if not path.is_file()]

    @property
    def paths(self) -> list[Path]:
        """The file of each block."""
        return [self.folder / f"{number:06}.jsonl" for number in range(len(self.blocks))]

    def write(self, number: int, lines: Iterable[str]) -> None:
        """Writes the lines of a block, each with its end; it is done when its file is there."""
        part = self.paths[number]
        try:
            with whole_file(part) as path, path.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(lines)
        except OSError as error:
            raise not_written(part, error) from error

    def remove(self) -> None:
        shutil.rmtree(self.folder)
