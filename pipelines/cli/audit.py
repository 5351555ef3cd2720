"""`bertrelay data audit`: what the splits of a cohort or of its notes share and should not."""

import json
from pathlib import Path
from typing import Annotated

import typer

from domain.clinical.settings import LEAST_NEAR, NEAR
from pipelines.cli.echo import echo
from pipelines.cli.options import JsonOption


def audit(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="cohort.parquet, notes.parquet, or others with a column split."),
    ],
    near: Annotated[
        float,
        typer.Option(
            help="Texts that share so much of their runs of five words are near-duplicates.", min=LEAST_NEAR, max=1
        ),
    ] = NEAR,
    as_json: JsonOption = False,
) -> None:
    """Look for subjects, admissions and texts that train, validation and test share, in all files together.

    Tells counts and row numbers, and never a text or an identifier. Ends with exit code 1 at a leak.

    For example:

      bertrelay data audit runs/clinic/cohort/latest/cohort.parquet runs/clinic/notes/latest/notes.parquet
    """
    from domain.clinical.audit import finding_json, look_for_leaks
    from domain.findings import exit_code
    from pipelines.trouble import stopping_at_once

    with stopping_at_once():
        findings = look_for_leaks(files, near)
    if as_json:
        echo(json.dumps({"findings": [finding_json(finding) for finding in findings]}))
    else:
        for finding in findings:
            echo(f"{finding.severity}  {finding.summary}", coloured=True)
    raise typer.Exit(exit_code(findings))
