"""`bertrelay run` and `bertrelay plan`."""

import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertrelay.distributed import SINGLE_PROCESS, ProcessGroup
from pipelines.cli.echo import echo

if TYPE_CHECKING:
    from pipelines.plan import Plan
    from pipelines.recipe import Recipe
    from pipelines.runner import RunOptions

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a built-in one (`bertrelay recipes`).")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting: student.epochs=2, vars.data=DIR, seed=3. May be repeated."
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="STAGE", help="This stage and what it needs that is not done. May be repeated."),
]
ForceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--force",
        metavar="STAGE",
        help="Run this stage anew: what is done or begun of it is removed. To go on with one that was stopped, "
        "leave this out. May be repeated.",
    ),
]
RunsOption = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where the results stand.")]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="Read every input and output again, instead of trusting size and time.")
]


def run(
    recipe: RecipeArgument,
    settings: SetOption = None,
    only: OnlyOption = None,
    force: ForceOption = None,
    runs: RunsOption = Path("runs"),
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes", metavar="N", min=1, help="Work in N processes: one for each GPU, or for some cores."
        ),
    ] = None,
    verify: VerifyOption = False,
) -> None:
    """Run a recipe: what is done is skipped, what was stopped goes on.

    For example:

      bertrelay run quickstart

      bertrelay run my-recipe.toml --set student.epochs=2 --set vars.data=../data

      bertrelay run multi30k --only student --processes 2

    Stop it with Ctrl-C whenever you like; the same command goes on from there.

    On several machines, which share the recipe, its inputs and --runs, start the same command on each:

      torchrun --nnodes 2 --nproc-per-node 8 --node-rank 0 --master-addr HOST --no-python bertrelay run RECIPE
    """
    from pipelines.cli.tables import outcome_lines
    from pipelines.launch import check_process_group, launch_again
    from pipelines.runner import REPORT
    from pipelines.runner import run as run_recipe

    process_group = check_process_group(processes)
    read, options = _read(recipe, settings), _options(runs, only, force, verify, process_group)
    if process_group.size == 1 and processes is not None and processes > 1 and not _plan(read, options).idle:
        raise typer.Exit(launch_again(processes))
    outcome = run_recipe(read, options)
    if process_group.is_main:
        _echo(outcome_lines(outcome, outcome.plan.run_folder / REPORT))


def plan(
    recipe: RecipeArgument,
    settings: SetOption = None,
    only: OnlyOption = None,
    force: ForceOption = None,
    runs: RunsOption = Path("runs"),
    verify: VerifyOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what a run would do with each stage, and why. Nothing is run, and no hub is asked.

    For example:

      bertrelay plan quickstart

      bertrelay plan quickstart --set student.epochs=8

      bertrelay plan my-recipe.toml --json
    """
    from pipelines.cli.tables import plan_lines
    from pipelines.plan import as_json as plan_as_json

    found = _plan(_read(recipe, settings), _options(runs, only, force, verify))
    _echo([json.dumps(plan_as_json(found), ensure_ascii=False, indent=2)] if as_json else plan_lines(found))


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        echo(line, coloured=True)


def _read(recipe: str, settings: list[str] | None) -> "Recipe":
    from pipelines.recipe import read_recipe
    from pipelines.registry import REGISTRY

    return read_recipe(recipe, REGISTRY, settings or [])


def _options(
    runs: Path,
    only: list[str] | None,
    force: list[str] | None,
    verify: bool,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> "RunOptions":
    from pipelines.plan import StageChoice
    from pipelines.runner import RunOptions

    choice = StageChoice(tuple(only or ()), tuple(force or ()))
    return RunOptions(runs.expanduser().resolve(), choice, verify, process_group, _write_report)


def _plan(recipe: "Recipe", options: "RunOptions") -> "Plan":
    from pipelines.plan import make_plan
    from pipelines.revisions import lock_path, read_revisions
    from pipelines.trouble import disk_explained

    digests = options.digests()
    with disk_explained(options.runs):
        found = make_plan(
            recipe, options.runs, digests, read_revisions(lock_path(recipe, options.runs)), options.choice
        )
    if options.runs.is_dir():
        with suppress(OSError):  # what is remembered saves time and nothing else
            digests.save()
    return found


def _write_report(run_folder: Path, withheld: Collection[str]) -> Path:
    from pipelines.report import write_report

    return write_report(run_folder, withheld)
