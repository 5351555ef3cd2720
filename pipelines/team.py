"""The processes that run a recipe together: the main one plans and writes, the others follow.

torch is loaded only where there is more than one process.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertrelay.errors import WorkError
from bertrelay.hardware import LONGEST_WAIT
from bertrelay.stage import ProcessGroup


@dataclass(frozen=True)
class Team:
    """All processes of a run, seen from one of them."""

    process_group: ProcessGroup

    @classmethod
    def gather(cls, process_group: ProcessGroup) -> "Team":
        """Joins the other processes. Raises WorkError when there are not as many as were asked for."""
        if process_group.size > 1:
            _connect(process_group)
        return cls(process_group)

    @property
    def is_main(self) -> bool:
        return self.process_group.is_main

    def share(self, value: Any) -> Any:
        """The main process's `value`, in every process."""
        if self.process_group.size == 1:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def wait(self) -> None:
        """Waits until every process is here."""
        if self.process_group.size > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()

    def check_shared(self, folder: Path) -> None:
        """Waits as `wait` does, and raises RequestError unless every process sees the main one's `folder`."""
        if self.process_group.size > 1:
            from bertrelay.distributed import check_shared

            check_shared(folder, self.process_group)

    def part(self) -> None:
        """Leaves the others in peace at the end of the work."""
        if self.process_group.size > 1:
            from accelerate import PartialState

            PartialState().destroy_process_group()


def _connect(process_group: ProcessGroup) -> None:
    import torch
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    if not torch.cuda.is_available():  # else Accelerate on CPU leaves every process alone with itself
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    found = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=LONGEST_WAIT).num_processes
    if found != process_group.size:
        raise WorkError(
            f"expected {process_group.size} processes, found {found} that know of one another; "
            "start them with `bertrelay run … --processes N`, torchrun or accelerate launch"
        )
