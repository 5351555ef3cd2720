"""The folder that runs share, and folders in it that are complete or absent."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from bertrelay.files import publish_folder, write_error
from bertrelay.locks import locked_output
from bertrelay.privacy import close_if_sensitive


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
    resume: `fill` gets the files that a killed call left; without it, an empty folder.
    Raises RequestError where the folder is missing and may not be made.
    """
    if not folder.is_dir():  # else it is read where nothing may be written, too
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder.parent, error) from error
        with locked_output(folder, wait=True):
            if not folder.is_dir():
                _fill(folder, fill, resume)
    close_if_sensitive(folder)
    return folder


def remove_abandoned(parent: Path) -> None:
    """Removes the unfinished folders in `parent` that killed calls of `cached_folder` left.

    For folders that no call resumes: under other names than those of later calls, they would stay for ever.
    """
    for building in parent.glob("*.partial"):
        try:
            with FileLock(building.with_suffix(".lock"), blocking=False):
                shutil.rmtree(building, ignore_errors=True)
        except Timeout:  # another process is writing it
            continue


def _fill(folder: Path, fill: Callable[[Path], None], resume: bool) -> None:
    building = folder.with_name(f"{folder.name}.partial")
    try:
        if not resume:
            shutil.rmtree(building, ignore_errors=True)
        try:
            building.mkdir(exist_ok=resume)
        except OSError as error:
            raise write_error(building, error) from error
        close_if_sensitive(building)
        fill(building)
        publish_folder(building, folder)
    except BaseException:
        if not resume:
            shutil.rmtree(building, ignore_errors=True)
        raise
