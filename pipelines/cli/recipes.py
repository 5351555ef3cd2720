"""`bertrelay run`, `plan`, `recipes`, `card` and `samples`."""

import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from bertrelay.errors import RequestError
from bertrelay.settings import Seed, Settings
from bertrelay.stage import Stage
from pipelines import registry
from pipelines.cards.settings import CardSettings
from pipelines.cli.options import (
    Fields,
    JsonOption,
    ModelArgument,
    OutputOptions,
    ProcessesOption,
    argument,
    check_request,
    command,
    print_document,
    validated,
    write_out,
)
from pipelines.recipe.settings_table import settings_lines, settings_rows
from pipelines.recipe.steps import Recipe, read_recipe
from pipelines.recipe.text import built_in_names, find_recipe
from pipelines.recipe.validation import unknown
from pipelines.run.errors import disk_explained
from pipelines.run.plan import Action, Plan, RunOptions, left_behind, make_plan, plan_json, save_digests, short_path
from pipelines.run.store import REPORT, latest_name
from pipelines.samples.settings import EntitySettings, QuestionSettings, SampleSettings

if TYPE_CHECKING:
    from pipelines.run.runner import Outcome

PANEL = "Recipes"
NAMES = {"changes": "--set KEY=VALUE", "only": "--only STAGE", "force": "--force STAGE", "runs": "--runs DIR"}

recipe_commands = typer.Typer()

RecipeArgument = Annotated[
    str, argument("RECIPE", "A recipe file, or the name of a built-in one (`bertrelay recipes`).")
]


RunArguments = Annotated[Fields, RunOptions, "only", "force", "runs", "verify"]


class Changes(Settings):
    """Changes to a recipe."""

    changes: list[str] = Field(default=[])
    """Change a setting: student.epochs=2, vars.data=DIR, seed=3. May be repeated."""


class RunCommand(ProcessesOption, JsonOption):
    """Processes that share a run, and the form of what is printed."""


@command(recipe_commands, names=NAMES, rich_help_panel=PANEL)
def run(recipe: RecipeArgument, options: RunArguments, change: Changes, work: RunCommand) -> None:
    """Run a recipe: finished stages are skipped, stopped ones resume.

    For example:

      bertrelay run quickstart

      bertrelay run my-recipe.toml --set student.epochs=2 --set vars.data=../data

      bertrelay run multi30k --only student --processes 2

    Stop it with Ctrl-C at any time; the same command resumes.

    On several machines, which share the recipe, its inputs and --runs, start the same command on each:

      torchrun --nnodes 2 --nproc-per-node 8 --node-rank 0 --master-addr HOST --no-python bertrelay run RECIPE
    """
    from pipelines.run.launch import check_process_group, launch_again
    from pipelines.run.runner import run as run_recipe

    process_group = check_process_group(work.processes)
    read = read_recipe(recipe, registry.REGISTRY, change.changes)
    run_options = validated(RunOptions, {"process_group": process_group, **options}, NAMES)
    if process_group.size == 1 and work.processes not in (None, 1) and not _plan(read, run_options).idle:
        raise typer.Exit(launch_again(work.processes))
    outcome = run_recipe(read, run_options, _write_report)
    if process_group.is_main and work.as_json:
        print_document("run", outcome_json(outcome), outcome.plan.run_folder)
    elif process_group.is_main:
        _print(outcome_lines(outcome))


@command(recipe_commands, names=NAMES, rich_help_panel=PANEL)
def plan(recipe: RecipeArgument, options: RunArguments, change: Changes, shown: JsonOption) -> None:
    """Show what a run would do with each stage, and why. Nothing runs, and no hub is contacted.

    For example:

      bertrelay plan quickstart

      bertrelay plan quickstart --set student.epochs=8

      bertrelay plan my-recipe.toml --json
    """
    shown_plan = _plan(read_recipe(recipe, registry.REGISTRY, change.changes), validated(RunOptions, options, NAMES))
    if shown.as_json:
        print_document("plan", plan_json(shown_plan))
    else:
        _print(plan_lines(shown_plan))


def _write_report(run_folder: Path) -> None:
    from pipelines.report.page import write_report  # what draws it takes a second to load

    write_report(run_folder)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        write_out(line, coloured=True)


def _plan(recipe: Recipe, options: RunOptions) -> Plan:
    digests = options.digests()
    with disk_explained(options.runs):
        made = make_plan(recipe, options, digests)
    if options.runs.is_dir():
        with suppress(OSError):  # saved digests save time and nothing else
            save_digests(recipe, digests)
    return made


def plan_lines(plan: Plan) -> Iterator[str]:
    """Each step with its action and reasons; then the unfinished results of other settings."""
    labels = _width(planned.step.label for planned in plan.steps)
    for planned in plan.steps:
        first, *rest = planned.reasons or ("",)
        yield f"{planned.action.value:6}  {planned.step.label:{labels}}  {first}".rstrip()
        yield from (f"{'':6}  {'':{labels}}  {reason}" for reason in rest)
    unfinished = left_behind(plan)
    if unfinished:
        yield "unfinished results of other settings, with which they would resume (delete what you no longer need):"
        yield from (f"{size / 1e6:>8,.1f} MB  {short_path(folder)}" for folder, size in unfinished.items())


def outcome_json(outcome: "Outcome") -> dict[str, Any]:
    """The result of `run --json`: its stages, each with action, seconds of work and metrics."""
    stages = [
        {
            "name": planned.step.name,
            "seed": planned.step.seed,
            "action": planned.action.value,
            "folder": str(planned.folder),
            "seconds": done.seconds if done else None,
            "metrics": done.metrics if done else {},
        }
        for planned in outcome.plan.steps
        for done in [outcome.results.get(planned.step.key)]
    ]
    return {"recipe": outcome.plan.recipe.name, "stages": stages, "report": str(outcome.plan.run_folder / REPORT)}


def outcome_lines(outcome: "Outcome") -> Iterator[str]:
    """The verdicts on a run's models, the table of its stages, its metrics, and the paths of models and report."""
    from pipelines.report.tables import main_metrics, score_lines
    from pipelines.report.verdicts import StageResult, verdicts

    steps = outcome.plan.steps
    results = (
        StageResult(planned.step.label, planned.step.stage.kind, done.metrics if done else {})
        for planned in steps
        for done in [outcome.results.get(planned.step.key)]
    )
    yield from (f"{verdict.level:6}  {label}: {verdict.text}" for label, verdict in verdicts(results))
    labels = _width(planned.step.label for planned in steps)
    for planned in steps:
        key = planned.step.key
        seconds = "" if planned.action == Action.SKIP else f"{outcome.seconds[key]:.1f} s"
        done = outcome.results.get(key)
        facts = f"{main_metrics(done.metrics)}  {done.precision or ''}" if done else ""
        yield f"{planned.action.value:6}  {planned.step.label:{labels}}  {seconds:>9}  {facts}".rstrip()
    kinds = {step.name: step.stage.kind for step in outcome.plan.recipe.steps}
    yield from score_lines(outcome.summary, kinds)
    models = [planned.stage_folder / latest_name(planned.step.seed) / "model" for planned in steps]
    yield from (f"model   {short_path(model)}" for model in models if model.is_dir())
    yield f"report  {short_path(outcome.plan.run_folder / REPORT)}"


def _width(labels: Iterable[str]) -> int:
    return max(map(len, labels), default=0)


@command(recipe_commands, rich_help_panel=PANEL)
def recipes(
    shown: JsonOption,
    name: Annotated[str | None, argument("[NAME]", "Print this recipe, or this stage.", show_default=False)] = None,
) -> None:
    """List the built-in recipes and the kinds of stages, or print a recipe, or the settings of a stage.

    For example:

      bertrelay recipes

      bertrelay recipes quickstart > my-recipe.toml

      bertrelay recipes students.distill
    """
    names, stages = built_in_names(), {stage.kind: stage for stage in registry.REGISTRY}
    if name is None:
        recipes = {recipe: _first_sentence(find_recipe(recipe).text) for recipe in names}
        summaries = {kind: stage.summary for kind, stage in stages.items()}
        if shown.as_json:
            print_document("recipes", {"recipes": recipes, "stages": summaries})
            return
        _print(_columns(recipes))
        write_out("\nstages, for `uses` in a recipe:")
        _print(_columns(summaries))
    elif name in names:
        text = find_recipe(name).text
        if shown.as_json:
            print_document("recipes", {"recipe": name, "text": text})
        else:
            write_out(text, nl=False)
    elif name in stages:
        if shown.as_json:
            print_document("recipes", {"stage": name, "settings": _settings_json(stages[name])})
        else:
            _print(settings_lines(stages[name]))
    else:
        raise RequestError(f"{name}: {unknown(name, [*names, *stages] if '.' in name else names, 'recipe')}")


def _settings_json(stage: Stage) -> list[dict[str, str]]:
    keys = ("name", "type", "default", "description")
    return [dict(zip(keys, row, strict=True)) for row in settings_rows(stage.load_settings())]


def _first_sentence(recipe: str) -> str:
    """The first sentence of the comment that a recipe begins with, which may be on several lines."""
    lines = takewhile(lambda line: re.match("# ?[^ ]", line), recipe.splitlines())
    comment = " ".join(line.removeprefix("#").strip() for line in lines)
    sentence = re.match(r".+?\.(?= |$)", comment)
    return sentence[0] if sentence else comment


def _columns(described: dict[str, str]) -> Iterator[str]:
    return (f"{name:{_width(described)}}  {description}".rstrip() for name, description in described.items())


CARD_NAMES = {"results": "--results DIR", "languages": "--language", "base_model": "--base-model"}
CARD_NAMES |= {"datasets": "--dataset", "limits": "--limit"}


class CardOptions(JsonOption):
    """Name of the model, and the form of what is printed."""

    name: str | None = None
    """Name of the model on the hub, owner/name; that of OUT when absent."""


@command(recipe_commands, names=CARD_NAMES, rich_help_panel=PANEL)
def card(
    model: ModelArgument,
    output: Annotated[Path, argument("OUT", "Folder of the copy, which must not exist.")],
    settings: Annotated[
        Fields,
        CardSettings,
        *("license", "results", "languages", "base_model", "teacher", "datasets"),
        *("description", "limits", "license_name", "license_link"),
    ],
    options: CardOptions,
) -> None:
    """Copy MODEL to OUT with a model card, README.md, in the form of Hugging Face's hub.

    MODEL may be an encoder, a tagger, a question answerer, a scorer of pairs or an outcome model. The card has
    settings, counts and metrics of finished stages, and code that loads the model. Read it before you publish it.

    For example:

      bertrelay card runs/quickstart/student/latest/model my-card --license mit --results runs/quickstart/student/latest
    """
    check_request(model)
    from pipelines.cards.card import write_card

    values = {name: value for name, value in settings.items() if value} | (
        {"name": options.name} if options.name else {}
    )
    with disk_explained(output, "OUT"):
        path = write_card(model, output, **values)
    if options.as_json:
        print_document("card", {"card": str(path)}, output)
    else:
        write_out(f"{path}: model card; the model is beside it")


class SamplesOptions(OutputOptions):
    """Options of writing sample data."""

    seed: Seed = 1
    """Seed of the papers, entities, questions and hospitals; sentences are always the same."""


@command(recipe_commands, rich_help_panel=PANEL)
def samples(folder: Annotated[Path, argument("DIR", "Folder to write into.")], options: SamplesOptions) -> None:
    """Write sample data of every kind, all the project's own; nothing is downloaded.

    Parallel sentences, NLI, STS and triplets, and sentences line by line; papers, annotated entities and questions;
    two small hospitals in MIMIC's format; every data set of the SBERT paper, in its official format.

    For example:

      bertrelay samples my-samples
    """
    from pipelines.samples.hospital import write_hospitals
    from pipelines.samples.papers import draw_documents, write_entities, write_papers, write_questions
    from pipelines.samples.sentence_files import FOLDER, write_plain_files, write_samples, write_sbert_paper

    seed = options.seed
    with disk_explained(folder, "DIR"), _moved_into(folder, options.overwrite) as building:
        counts = write_samples(building, SampleSettings())
        counts |= write_plain_files(building)
        counts |= write_papers(building, seed) | write_hospitals(building, seed)
        counts |= write_entities(building, draw_documents(EntitySettings(seed=seed)))
        counts |= write_questions(building, QuestionSettings(seed=seed))
        counts[f"{FOLDER}/"] = sum(write_sbert_paper(building / FOLDER).values())
    if options.as_json:
        print_document("samples", {"counts": counts}, folder)
        return
    for name, count in counts.items():
        write_out(f"{count:>9,}  {name}")
    write_out(f"written to {folder}")


@contextmanager
def _moved_into(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A new folder, whose files move into `folder` at the end. Raises RequestError for files that are there already."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".samples.", dir=folder) as name:
        building = Path(name)
        yield building
        targets = {path: folder / path.relative_to(building) for path in building.rglob("*") if path.is_file()}
        existing = sorted(str(target) for target in targets.values() if target.exists())
        if existing and not overwrite:
            raise RequestError(
                f"DIR: {len(existing)} of the files are there already, such as {existing[0]}; name another folder, or "
                "replace them with --overwrite"
            )
        for path, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
