"""The folder that runs share."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cache:
    """A folder of results under the digests of their inputs, and in `hub` of what was downloaded."""

    folder: Path

    @property
    def hub(self) -> Path:
        """The folder of models and data sets of the hub."""
        return self.folder / "hub"
