"""A command whose work several processes share."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from bertrelay.distributed import ProcessGroup, joined
from pipelines.launch import launch_again
from pipelines.trouble import stopping_at_once


@contextmanager
def shared(process_group: ProcessGroup, processes: int | None) -> Iterator[None]:
    """The work itself, in each connected process; a single process starts `processes` workers to do it instead.

    A request is checked before this, once and by the process that got it; what loads torch comes within.
    """
    if process_group.size == 1 and processes is not None and processes > 1:
        raise typer.Exit(launch_again(processes))
    with stopping_at_once(), joined(process_group):
        yield
