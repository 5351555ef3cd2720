"""The folder that runs share, and folders in it that are complete or absent."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from bertrelay.files import publish_folder


@dataclass(frozen=True)
class Cache:
    """A folder of results under the digests of their inputs, and in `hub` of what was downloaded."""

    folder: Path

    @property
    def hub(self) -> Path:
        """The folder of models and data sets of the hub."""
        return self.folder / "hub"


def cached_folder(folder: Path, fill: Callable[[Path], None], resume: bool = False) -> Path:
    """Returns `folder`, filled unless it exists: by one of the processes that call this, while the others wait.

    folder: its name stands for all that decides its content.
    fill: writes the content to `FOLDER.partial`, which is renamed when it is complete.
    resume: that folder has what a killed call left in it; it is emptied first otherwise.
    """
    building = folder.with_name(f"{folder.name}.partial")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            if not resume:
                shutil.rmtree(building, ignore_errors=True)
            building.mkdir(exist_ok=resume)
            fill(building)
            publish_folder(building, folder)
    return folder
