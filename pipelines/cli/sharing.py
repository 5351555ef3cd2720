"""A command whose work several processes share."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from bertrelay.stage import ProcessGroup
from pipelines.launch import launch_again
from pipelines.team import Team
from pipelines.trouble import stopping_at_once


@contextmanager
def shared(process_group: ProcessGroup, processes: int | None) -> Iterator[None]:
    """The work itself, in each process of the team; asked for in one alone, it is done by `processes` new ones instead.

    A request is checked before this, once and by whoever was asked; what loads torch comes within.
    """
    if process_group.size == 1 and processes is not None and processes > 1:
        raise typer.Exit(launch_again(processes))
    with stopping_at_once():
        team = Team.gather(process_group)
        yield
        team.part()
