"""`bertrelay report`."""

from functools import reduce
from operator import and_
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from pipelines.cli.options import OutputOptions, argument, command, print_document, write_out
from pipelines.cli.recipes import PANEL
from pipelines.run.errors import disk_explained
from pipelines.run.store import REPORT, RUN

reporting = typer.Typer()

NAMES = {"compare": "--compare", "output": "--output FILE"}


class ReportOptions(OutputOptions):
    """Options of writing reports."""

    compare: bool = False
    """Set the runs side by side on one page, instead of a page for each."""
    output: Path = Field(default=Path("comparison.html"))
    """Page of the comparison."""


@command(reporting, names=NAMES, rich_help_panel=PANEL)
def report(
    runs: Annotated[list[Path], argument("RUN...", "Folders of runs, such as runs/quickstart.")],
    options: ReportOptions,
) -> None:
    """Write the report of each RUN again from its folder, or compare runs. Nothing is trained or evaluated.

    For example:

      bertrelay report runs/quickstart

      bertrelay report runs/quickstart other/quickstart --compare --output both.html
    """
    from pipelines.report.compare import write_comparison
    from pipelines.report.page import write_report

    pages = {options.output: runs} if options.compare else {run / REPORT: [run] for run in runs}
    with disk_explained(options.output if options.compare else runs[0]):
        if options.compare:
            write_comparison(runs, options.output, overwrite=options.overwrite)
        else:
            for run in runs:
                write_report(run)
        for page, shown in pages.items():  # for nobody who may not read the runs
            page.chmod(reduce(and_, ((run / RUN).stat().st_mode & 0o777 for run in shown)))
    if options.as_json:
        print_document("report", {"pages": [str(page) for page in pages]}, options.output if options.compare else None)
    else:
        for page in pages:
            write_out(f"report  {page}")
