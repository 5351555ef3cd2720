"""Plans of runs: the action for each step and its reasons, by one comparison of fingerprints.

Planning reads files and writes none, contacts no hub, and loads neither torch nor transformers.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from bertrelay.cache import Cache
from bertrelay.data.records import rows
from bertrelay.errors import RequestError
from bertrelay.fingerprint import Digests, Parts, fingerprint, stage_parts
from bertrelay.model.folder import ModelFolder
from bertrelay.privacy import sensitive_data
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.progress import spinner
from bertrelay.settings import DataSource, InputFile, ModelSource, Settings, absolute, nearest, no_model_folder
from pipelines.recipe.steps import Key, Recipe, Step
from pipelines.recipe.validation import Problems, did_you_mean, shown
from pipelines.run.errors import named
from pipelines.run.hub import name_of, revisions_of, unknown_ids
from pipelines.run.store import (
    DIGITS,
    damage,
    has_work,
    other_libraries,
    partial_of,
    parts_in,
    previous_parts,
    unfinished,
)

MODEL = "model"
ABSENT = object()
"""Stands for a fingerprint part that one of two results lacks."""


class Action(StrEnum):
    """Action of a run on a step."""

    RUN = "RUN"
    SKIP = "SKIP"
    RESUME = "RESUME"


@dataclass(frozen=True)
class PlannedStep:
    """A step with its action and the reasons for it.

    parts: of its fingerprint; empty as long as a hub revision is unknown.
    discard_first: remove its folder, finished or not, before it runs.
    reasons_since: fingerprint of an earlier result to the reasons why this one differs; a cache for the steps after it.
    """

    step: Step
    action: Action
    reasons: tuple[str, ...]
    parts: Parts
    stage_folder: Path
    discard_first: bool = False
    reasons_since: dict[str, list[str]] = field(default_factory=dict, compare=False)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.parts) if self.parts else "unknown"

    @property
    def folder(self) -> Path:
        return self.stage_folder / self.fingerprint[:DIGITS]


@dataclass(frozen=True)
class Plan:
    """The steps of a recipe in order, each with its action. revisions: of the hub ids that the recipe does not pin."""

    recipe: Recipe
    run_folder: Path
    steps: tuple[PlannedStep, ...]
    revisions: Mapping[str, str]

    @property
    def idle(self) -> bool:
        """True if every step is skipped."""
        return all(planned.action == Action.SKIP for planned in self.steps)


class RunOptions(Settings):
    """Options of a run besides its recipe."""

    runs: Annotated[Path, AfterValidator(lambda path: Path(absolute(str(path))).resolve())] = Path("runs")
    """Folder of the results."""
    only: list[str] = Field(default=[])
    """Run only this stage and what it needs that is not done. May be repeated."""
    force: list[str] = Field(default=[])
    """Run this stage from the beginning and remove what it has done so far. Leave this out to resume a stopped stage.
    May be repeated."""
    verify: bool = False
    """Read every input and output instead of trusting size and time."""
    process_group: ProcessGroup = SINGLE_PROCESS
    """Processes that share the run."""

    @property
    def cache(self) -> Cache:
        return Cache(self.runs / ".cache")

    def digests(self) -> Digests:
        """The digests of files that all runs in the folder share."""
        return Digests(self.cache.folder / "digests.json", self.verify)


def save_digests(recipe: Recipe, digests: Digests) -> None:
    """Saves the digests of files; only their owner can read them if a step is sensitive, as file names may be."""
    is_hidden = any(step.sensitive for step in recipe.steps)
    with sensitive_data(recipe.group_read) if is_hidden else nullcontext():
        digests.save()


def make_plan(recipe: Recipe, options: RunOptions, digests: Digests | None = None, ask: bool = False) -> Plan:
    """The plan of a run. Raises RequestError for unknown stages, and once for all inputs that are missing.

    ask: ask the hub for the revisions that the lock file lacks.
    """
    digests = digests or options.digests()
    steps = _chosen_steps(recipe, options)
    _check_inputs(recipe, steps)
    revisions, run_folder = revisions_of(recipe, steps, options.runs, ask), options.runs / recipe.name
    planned: dict[Key, PlannedStep] = {}
    with spinner("fingerprints of the inputs"):
        for step in steps:
            planned[step.key] = _plan_step(step, planned, run_folder / step.name, digests, revisions, options.force)
    return Plan(recipe, run_folder, tuple(planned.values()), revisions)


def _chosen_steps(recipe: Recipe, options: RunOptions) -> list[Step]:
    """All steps, or those that `only` names and the steps they need."""
    names = recipe.stage_names
    for option, requested in (("--only", options.only), ("--force", options.force)):
        for name in requested:
            if name not in names:
                raise RequestError(
                    f"{option} {name}: {recipe.name} has no such stage{did_you_mean(name, names) or '.'}"
                    f" Its stages: {', '.join(names)}"
                )
    chosen = {step.key for step in recipe.steps if not options.only or step.name in options.only}
    for step in reversed(recipe.steps):
        if step.key in chosen:
            chosen.update(step.needs)
    if idle := set(options.force) - {name for name, _ in chosen}:
        raise RequestError(f"--force {', '.join(sorted(idle))}: without effect, because --only leaves it out")
    return [step for step in recipe.steps if step.key in chosen]


def _check_inputs(recipe: Recipe, steps: Sequence[Step]) -> None:
    """Raises RequestError with every file and model folder that is missing or of the wrong kind."""
    problems = Problems(recipe.source.title)
    for step in steps:
        for key, text in (*step.settings.input_problems(), *_column_problems(step.settings)):
            problems.add(step.name, key, text)
        for key, source in step.sources:
            if isinstance(source, InputFile) and not source.stage_reference and not Path(source).exists():
                hint = f"{nearest(Path(source)) or 'check the path'}{_or_var(recipe, source)}"
                problems.add(step.name, key, f"expected a file or a folder, found neither at {source}; {hint}")
            elif isinstance(source, ModelSource) and source.folder and (fault := _model_fault(source)):
                problems.add(step.name, key, fault)
    problems.raise_if_any()


def _column_problems(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields (key, problem) of each table in `value` whose file lacks a column that is named, or cannot be read."""
    if isinstance(value, Settings):
        tables = value.tables_read() if isinstance(value, DataSource) else ()
        for table in tables:
            if table.path and not table.path.stage_reference and Path(table.path).is_file():
                try:
                    next(rows(table, ()))
                except RequestError as error:
                    yield key, str(error)
        for name in type(value).model_fields:
            yield from _column_problems(getattr(value, name), f"{key}.{name}" if key else name)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _column_problems(item, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _column_problems(item, f"{key}[{number}]")


def _model_fault(source: ModelSource) -> str:
    folder = Path(source)
    if not folder.is_dir():
        return no_model_folder(folder, source.written)
    try:
        return ModelFolder(folder).fault(source.kind)
    except RequestError as error:
        return str(error)


def _or_var(recipe: Recipe, path: str) -> str:
    """`, or --set vars.NAME=DIR` for a path in the folder that is the recipe's variable NAME, else ""."""
    variables = tomllib.loads(recipe.source.text).get("vars", {})
    for name, value in variables.items():
        folder = os.path.normpath(recipe.source.folder / value) if isinstance(value, str) and value else None
        if folder and Path(path).is_relative_to(folder):
            return f", or --set vars.{name}=DIR"
    return ""


def check_output_exists(stage: str, inner: str, folder: Path) -> None:
    """Raises RequestError if the stage, whose result is in `folder`, has not written `inner`."""
    if not (folder / inner).exists():
        written = sorted(path.name for path in folder.iterdir())
        raise RequestError(
            f"@{stage}/{inner}: expected an output of the stage {stage}, found none of that name"
            f"{did_you_mean(inner, written) or '.'} It wrote: {', '.join(written)}"
        )


def _check_model_reference(key: str, stage: str, inner: str) -> None:
    """Raises RequestError for a reference to a model outside the folder in which stages write theirs."""
    if Path(inner).parts[:1] != (MODEL,):
        raise RequestError(
            f"{key}: found @{stage}/{inner}; a stage writes its model into the folder {MODEL}: write @{stage}/{MODEL}"
        )


def _plan_step(
    step: Step,
    planned: Mapping[Key, PlannedStep],
    stage_folder: Path,
    digests: Digests,
    revisions: Mapping[str, str],
    force: Sequence[str],
) -> PlannedStep:
    needed = _needed(step, planned)
    for stage, inner in (source.stage_reference for _, source in step.sources if source.stage_reference):
        if needed[stage].action == Action.SKIP:
            with named(step.label):
                check_output_exists(stage, inner, needed[stage].folder)
    for key, source in step.sources:
        if isinstance(source, ModelSource) and (written := source.stage_reference):
            with named(step.label):
                _check_model_reference(key, *written)
    hub_names = dict.fromkeys(name_of(source) for source in unknown_ids(step, revisions))
    unknown = [f"{name}: its revision is not known before the first run" for name in hub_names]
    unknown += [f"upstream {name}: its inputs are not all known yet" for name in needed if not needed[name].parts]
    if unknown:
        return PlannedStep(step, Action.RUN, tuple(unknown), {}, stage_folder)

    upstream, revision = (lambda name: needed[name].fingerprint), (lambda source: revisions[name_of(source)])
    parts = stage_parts(step.stage.kind, step.stage.version, step.settings, digests, upstream, revision)
    return _decide(PlannedStep(step, Action.RUN, (), parts, stage_folder), planned, digests, forced=step.name in force)


def _needed(step: Step, planned: Mapping[Key, PlannedStep]) -> dict[str, PlannedStep]:
    """The steps that `step` refers to, by name; of a repeated stage the one with the same seed."""
    return {key[0]: planned[key] for key in step.needs}


def _decide(draft: PlannedStep, planned: Mapping[Key, PlannedStep], digests: Digests, forced: bool) -> PlannedStep:
    """Decides between RUN, SKIP and RESUME by the step's folder, finished or partial."""
    has_partial, discard_first = has_work(partial_of(draft.folder)), False
    action, reasons = Action.RUN, []
    if forced:
        lost = ["unfinished work is removed; without --force it would resume"] if has_partial else []
        reasons, discard_first = ["forced: it restarts", *lost], True
    elif not draft.folder.is_dir():
        before = previous_parts(draft.stage_folder, draft.step.seed)
        reasons = list(dict.fromkeys(changes(draft, before, planned))) if before is not None else []
        if has_partial:
            action, reasons = Action.RESUME, ["started and not finished", *reasons]
        reasons = reasons or ["first time"]
    elif wrong := damage(draft.folder, digests):
        reasons, discard_first = [wrong], True
    else:
        action, reasons = Action.SKIP, other_libraries(draft.folder)
    return replace(draft, action=action, reasons=tuple(reasons), discard_first=discard_first)


def changes(now: PlannedStep, before: Parts, planned: Mapping[Key, PlannedStep]) -> Iterator[str]:
    """Yields a sentence for every fingerprint part that differs from the one before."""
    sources = dict(now.step.sources)
    for key in dict.fromkeys([*now.parts, *before]):
        old, new = before.get(key, ABSENT), now.parts.get(key, ABSENT)
        if old == new:
            continue
        source = sources.get(key)
        if source is not None and source.stage_reference and _is(old, "output:"):
            upstream = _needed(now.step, planned)[source.stage_reference[0]]
            yield from _upstream_changes(upstream, str(old), str(new), planned)
        elif source is not None and _is(old, "file:", "folder:") and _is(new, "file:", "folder:"):
            yield f"file {short_path(source)} changed ({now.step.name}.{key})"
        elif key == "uses.version":
            yield f"{now.step.stage.kind} has a new version that gives other results: {old} → {new}"
        else:
            yield f"{now.step.name}.{key}: {_words(old)} → {_words(new)}"


def _upstream_changes(upstream: PlannedStep, old: str, new: str, planned: Mapping[Key, PlannedStep]) -> Iterator[str]:
    """Yields why an upstream stage's output is not the one of before."""
    name = upstream.step.name
    old_fingerprint, _, old_inner = old.removeprefix("output:").partition("/")
    new_fingerprint, _, new_inner = new.removeprefix("output:").partition("/")
    if old_fingerprint == new_fingerprint:
        yield f"upstream {name}: {old_inner} → {new_inner}"
        return
    if old_fingerprint not in upstream.reasons_since:
        before = parts_in(upstream.stage_folder / old_fingerprint[:DIGITS])
        otherwise = () if upstream.action == Action.SKIP else upstream.reasons
        upstream.reasons_since[old_fingerprint] = list(changes(upstream, before, planned) if before else otherwise)
    reasons = upstream.reasons_since[old_fingerprint]
    for reason in reasons or [f"another result, {old_fingerprint[:DIGITS]} → {new_fingerprint[:DIGITS]}"]:
        yield reason if reason.startswith("upstream ") else f"upstream {name}: {reason}"


def _is(part: Any, *prefixes: str) -> bool:
    return isinstance(part, str) and part.startswith(prefixes)


def _words(part: Any) -> str:
    if part is ABSENT:
        return "not set"
    if _is(part, "file:", "folder:"):
        return f"a {str(part).partition(':')[0]}"
    if _is(part, "output:"):
        return "the output of a stage"
    return str(part).removeprefix("hub:") if _is(part, "hub:") else shown(part)


def short_path(path: str | Path) -> str:
    """A path to show: relative if it is in the working directory."""
    working_directory = Path.cwd()
    is_inside = Path(path).is_relative_to(working_directory)
    return str(Path(path).relative_to(working_directory)) if is_inside else str(path)


def left_behind(plan: Plan) -> dict[Path, int]:
    """Unfinished results of the planned stages under other settings, and their bytes.

    They are never removed, as the same settings would resume them.
    """
    current = {partial_of(planned.folder) for planned in plan.steps}
    unknown = {planned.stage_folder for planned in plan.steps if not planned.parts}  # whose partials may be current
    folders = sorted({planned.stage_folder for planned in plan.steps} - unknown)
    return {
        partial: size for folder in folders for partial, size in unfinished(folder).items() if partial not in current
    }


def plan_json(plan: Plan) -> dict[str, Any]:
    """The JSON that `plan --json` prints."""
    stages = [
        {
            "name": planned.step.name,
            "seed": planned.step.seed,
            "uses": planned.step.stage.kind,
            "sensitive": planned.step.sensitive,
            "action": planned.action.value,
            "reasons": list(planned.reasons),
            "fingerprint": planned.fingerprint if planned.parts else None,
            "folder": str(planned.folder) if planned.parts else None,
        }
        for planned in plan.steps
    ]
    unfinished_folders = [{"folder": str(folder), "bytes": size} for folder, size in left_behind(plan).items()]
    return {
        "recipe": plan.recipe.name,
        "run_folder": str(plan.run_folder),
        "stages": stages,
        "left_behind": unfinished_folders,
    }
