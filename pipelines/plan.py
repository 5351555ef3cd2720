"""What a run would do with each step, and why: one comparison of fingerprints, and words for the difference.

Planning reads files and writes none, contacts no hub, and loads neither torch nor transformers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bertrelay.errors import RequestError
from bertrelay.fingerprint import Digests, Parts, fingerprint, parts_of
from bertrelay.hardware import resolve_precision
from bertrelay.settings import InputFile, ModelSource, is_auto_precision, leaves, no_model_folder
from pipelines.hub import name_of, unknown_ids
from pipelines.recipe import Key, Recipe, Step
from pipelines.run_store import (
    DIGITS,
    damage,
    has_work,
    partial_of,
    parts_of_result,
    previous_parts,
    size_of,
    unfinished,
)
from pipelines.validation import Problems, did_you_mean, shown

UNKNOWN = "unknown"


class Action(StrEnum):
    """What happens to a step."""

    RUN = "RUN"
    SKIP = "SKIP"
    RESUME = "RESUME"


@dataclass(frozen=True)
class PlannedStep:
    """A step, what happens to it and why.

    parts: what its result depends on; empty as long as a hub revision is unknown.
    afresh: what its folder holds is removed before it runs.
    """

    step: Step
    action: Action
    reasons: tuple[str, ...]
    parts: Parts
    stage_folder: Path
    afresh: bool = False

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.parts) if self.parts else UNKNOWN

    @property
    def folder(self) -> Path:
        return self.stage_folder / self.fingerprint[:DIGITS]


@dataclass(frozen=True)
class Plan:
    """What a run of a recipe would do, step by step."""

    recipe: Recipe
    run_folder: Path
    steps: tuple[PlannedStep, ...]

    @property
    def idle(self) -> bool:
        """Whether there is nothing to run."""
        return all(planned.action == Action.SKIP for planned in self.steps)


@dataclass(frozen=True)
class StageChoice:
    """What the command line asks beyond the recipe: stages to run alone, and stages to run again."""

    only: tuple[str, ...] = ()
    force: tuple[str, ...] = ()


ALL_STAGES = StageChoice()


def make_plan(
    recipe: Recipe, runs: Path, digests: Digests, revisions: Mapping[str, str], choice: StageChoice = ALL_STAGES
) -> Plan:
    """What a run would do. Raises RequestError for unknown stages, and for all inputs that are missing at once."""
    steps = chosen_steps(recipe, choice)
    check_inputs(recipe, steps)
    planned: dict[Key, PlannedStep] = {}
    for step in steps:
        planned[step.key] = _plan_step(step, planned, runs / recipe.name, digests, revisions, choice)
    return Plan(recipe, runs / recipe.name, tuple(planned.values()))


def chosen_steps(recipe: Recipe, choice: StageChoice) -> list[Step]:
    """All steps, or those that `only` names and what they need."""
    names = recipe.stage_names
    for option, asked in (("--only", choice.only), ("--force", choice.force)):
        for name in asked:
            if name not in names:
                raise RequestError(
                    f"{option} {name}: {recipe.name} has no such stage{did_you_mean(name, names) or '.'}"
                    f" Its stages: {', '.join(names)}"
                )
    wanted = {step.key for step in recipe.steps if not choice.only or step.name in choice.only}
    for step in reversed(recipe.steps):
        if step.key in wanted:
            wanted.update(step.needs)
    return [step for step in recipe.steps if step.key in wanted]


def check_inputs(recipe: Recipe, steps: Sequence[Step]) -> None:
    """Raises RequestError with every file and model folder that is not there."""
    problems = Problems(recipe.source.title)
    for step in steps:
        for key, source in step.sources:
            if isinstance(source, InputFile) and not source.stage_reference and not Path(source).exists():
                problems.add(step.name, key, f"expected a file or a folder, found neither at {source}; check the path")
            elif isinstance(source, ModelSource) and source.folder and not source.folder.is_dir():
                problems.add(step.name, key, no_model_folder(source.folder))
    problems.raise_if_any()


def _plan_step(
    step: Step,
    planned: Mapping[Key, PlannedStep],
    run_folder: Path,
    digests: Digests,
    revisions: Mapping[str, str],
    choice: StageChoice,
) -> PlannedStep:
    stage_folder = run_folder / step.name
    needed = _needed(step, planned)
    unknown = [*_unknown_revisions(step, revisions), *_unknown_upstream(needed)]
    if unknown:
        return PlannedStep(step, Action.RUN, tuple(unknown), {}, stage_folder)
    drafts = []
    for precision in _precisions(step):
        parts = parts_of(
            step.stage,
            step.settings,
            digests,
            upstream=lambda name: needed[name].fingerprint,
            revision=lambda source: revisions[name_of(source)],
            auto_precision=precision,
        )
        drafts.append(PlannedStep(step, Action.RUN, (), parts, stage_folder))
    forced = step.name in choice.force
    return _decide(drafts[0] if forced else _furthest(drafts), planned, digests, forced)


def _precisions(step: Step) -> list[str]:
    """What precision `auto` may stand for: what this machine computes in, then what another one may have."""
    if not any(is_auto_precision(leaf.key, leaf.value) for leaf in leaves(step.settings)):
        return ["auto"]  # which nothing asks for
    here = resolve_precision("auto")
    return [here, "fp32" if here == "bf16" else "bf16"]


def _furthest(drafts: Sequence[PlannedStep]) -> PlannedStep:
    """The draft whose result is there, else the unfinished one, else the first: another machine's work is kept."""
    whole = (draft for draft in drafts if draft.folder.is_dir())
    started = (draft for draft in drafts if has_work(draft.folder))
    return next(whole, None) or next(started, drafts[0])


def _needed(step: Step, planned: Mapping[Key, PlannedStep]) -> dict[str, PlannedStep]:
    """By name, the steps that `step` refers to; of a repeated stage the one with the same seed."""
    return {key[0]: planned[key] for key in step.needs}


def _unknown_revisions(step: Step, revisions: Mapping[str, str]) -> list[str]:
    names = dict.fromkeys(name_of(source) for source in unknown_ids(step, revisions))
    return [f"{name}: its revision is not known before the first run" for name in names]


def _unknown_upstream(needed: Mapping[str, PlannedStep]) -> list[str]:
    return [f"upstream {name}: its inputs are not all known yet" for name, other in needed.items() if not other.parts]


def _decide(draft: PlannedStep, planned: Mapping[Key, PlannedStep], digests: Digests, forced: bool) -> PlannedStep:
    """Whether the result in the step's folder is complete and current."""

    def decided(action: Action, *reasons: str, afresh: bool = False) -> PlannedStep:
        return PlannedStep(draft.step, action, tuple(dict.fromkeys(reasons)), draft.parts, draft.stage_folder, afresh)

    if forced:
        removed = ["unfinished work is removed; without --force it would resume"] if has_work(draft.folder) else []
        return decided(Action.RUN, "forced: it restarts", *removed, afresh=True)
    if draft.folder.is_dir():
        wrong = damage(draft.folder, digests)
        return decided(Action.RUN, wrong, afresh=True) if wrong else decided(Action.SKIP)
    before = previous_parts(draft.stage_folder, draft.step.seed)
    why = list(changes(draft, before, planned)) if before is not None else []
    if has_work(draft.folder):
        return decided(Action.RESUME, "started and not finished", *why)
    return decided(Action.RUN, *(why or ["first time"]))


def changes(now: PlannedStep, before: Parts, planned: Mapping[Key, PlannedStep]) -> Iterator[str]:
    """In plain words, every part that differs from the one before."""
    sources = dict(now.step.sources)
    for key in dict.fromkeys([*now.parts, *before]):
        old, new = before.get(key, _Absent), now.parts.get(key, _Absent)
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
    """Why an upstream stage's output is another one than before."""
    name = upstream.step.name
    old_fingerprint, _, old_inner = old.removeprefix("output:").partition("/")
    new_fingerprint, _, new_inner = new.removeprefix("output:").partition("/")
    if old_fingerprint == new_fingerprint:
        yield f"upstream {name}: {old_inner} → {new_inner}"
        return
    before = parts_of_result(upstream.stage_folder, old_fingerprint)
    reasons = list(changes(upstream, before, planned)) if before else list(upstream.reasons)
    for reason in reasons or [f"another result, {old_fingerprint[:DIGITS]} → {new_fingerprint[:DIGITS]}"]:
        yield reason if reason.startswith("upstream ") else f"upstream {name}: {reason}"


class _Absent:
    """Stands for a part that is not there."""


def _is(part: Any, *prefixes: str) -> bool:
    return isinstance(part, str) and part.startswith(prefixes)


def _words(part: Any) -> str:
    if part is _Absent:
        return "not set"
    if _is(part, "file:", "folder:"):
        return f"a {str(part).partition(':')[0]}"
    if _is(part, "output:"):
        return "the output of a stage"
    return str(part).removeprefix("hub:") if _is(part, "hub:") else shown(part)


def short_path(path: str | Path) -> str:
    """A path as one reads it: from the working directory where it lies below."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else str(path)


def left_behind(plan: Plan) -> dict[Path, int]:
    """Unfinished results of the planned stages under other settings, and their bytes.

    They are never removed, as the same settings would resume them.
    """
    current = {partial_of(planned.folder) for planned in plan.steps}
    unknown = {planned.stage_folder for planned in plan.steps if not planned.parts}  # any of theirs may be current
    folders = {planned.stage_folder for planned in plan.steps} - unknown
    found = [partial for folder in sorted(folders) for partial in unfinished(folder)]
    return {partial: size_of(partial) for partial in found if partial not in current}


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as `plan --json` prints it."""
    return {
        "recipe": plan.recipe.name,
        "run_folder": str(plan.run_folder),
        "stages": [
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
        ],
        "left_behind": [{"folder": str(folder), "bytes": size} for folder, size in left_behind(plan).items()],
    }
