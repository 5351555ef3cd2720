"""Runs the steps of a recipe: finished ones are skipped, unfinished ones resume, and `done.json` is written last.

Every process of a run executes this. Only the main one locks, plans, renames and links; the others follow its plan.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from bertrelay.compute.engine import Engine
from bertrelay.errors import BertRelayError, WorkError
from bertrelay.files import make_readable, read_json, write_json
from bertrelay.fingerprint import Digests, Parts, content_parts, with_stage_paths, with_values
from bertrelay.inputs import unchanged_inputs
from bertrelay.privacy import apply_umask, sensitive_data, temporary_files_in
from bertrelay.process_group import broadcast_from_main, check_shared, join_processes, wait_for_all
from bertrelay.progress import log, spinner
from bertrelay.settings import Settings, Source
from bertrelay.stage import Metrics, StageContext
from pipelines.recipe.steps import Key, Recipe, Step
from pipelines.run.errors import disk_explained, force_explained, named, stopping_at_once
from pipelines.run.hub import hub_ids, name_of, set_hub_access
from pipelines.run.plan import Action, Plan, PlannedStep, RunOptions, check_output_exists, make_plan, save_digests
from pipelines.run.store import (
    METRICS,
    REPORT,
    RUN,
    Done,
    begin,
    discard,
    finish,
    latest_name,
    link_latest,
    partial_of,
    read_done,
    run_lock,
    settle,
    unlink_other_seeds,
)
from pipelines.run.summary import run_facts, summarise

Shared = tuple[Mapping[str, str], dict[Key, tuple[Action, tuple[()], Parts]]]
"""The revisions of a plan, and the action and fingerprint parts of its steps: sent to the other processes."""

WriteReport = Callable[[Path], None]
"""Writes `report.html` into the run's folder, from the files that are there."""


@dataclass(frozen=True)
class Outcome:
    """The plan that a run followed, and by step the seconds it took now and the facts in its `done.json`.

    summary: as in `metrics.json`; empty in all processes but the main one.
    """

    plan: Plan
    seconds: dict[Key, float]
    results: dict[Key, Done]
    summary: dict[str, Metrics]


def run(recipe: Recipe, options: RunOptions, write_report: WriteReport | None = None) -> Outcome:
    """Runs the steps of `recipe` that are not done; after a stop or an error, the next run resumes.

    write_report: of a run whose report is not up to date; no report when absent.
    Raises RequestError for wrong input and for a second runner, WorkError when a stage fails, Stopped on a signal.
    """
    set_hub_access(names_hub=any(hub_ids(step) for step in recipe.steps))
    run_folder = options.runs / recipe.name
    with force_explained(options.force), stopping_at_once(), disk_explained(run_folder), ExitStack() as stack:
        stack.enter_context(join_processes(options.process_group))
        digests = options.digests()
        plan = _agree_on_plan(recipe, options, digests, stack)
        seconds = {planned.step.key: _finish_step(planned, plan, options, digests) for planned in plan.steps}
        summary = _write_summary_and_report(plan, digests, write_report) if options.process_group.is_main else {}
    results = {planned.step.key: done for planned in plan.steps if (done := read_done(planned.folder))}
    return Outcome(plan, seconds, results, summary)


def _agree_on_plan(recipe: Recipe, options: RunOptions, digests: Digests, stack: ExitStack) -> Plan:
    """The main process's plan, in every process; the main one locks the run's folder first, until `stack` is closed.

    Where planning fails, the others end with the same exit code.
    """
    process_group, run_folder = options.process_group, options.runs / recipe.name
    if not process_group.is_main:
        shared: Shared | int = broadcast_from_main(None, process_group) or 1
        if isinstance(shared, int):
            sys.exit(shared)
        revisions, decided = shared
        steps = [step for step in recipe.steps if step.key in decided]
        planned = [PlannedStep(step, *decided[step.key], run_folder / step.name) for step in steps]
        return Plan(recipe, run_folder, tuple(planned), revisions)
    try:
        stack.enter_context(run_lock(run_folder))
        settle(run_folder, digests)
        plan = make_plan(recipe, options, digests, ask=True)
        # Stages need not read their inputs again then, to name what they keep in the cache.
        save_digests(recipe, digests)
    except BertRelayError as error:
        broadcast_from_main(error.exit_code, process_group)
        raise
    shared = plan.revisions, {planned.step.key: (planned.action, (), planned.parts) for planned in plan.steps}
    broadcast_from_main(shared, process_group)
    return plan


def _finish_step(planned: PlannedStep, plan: Plan, options: RunOptions, digests: Digests) -> float:
    """Runs a step unless it is skipped, and links its result as the latest; returns the seconds that took."""
    started, step, is_main = time.monotonic(), planned.step, options.process_group.is_main
    log("  ".join([f"{planned.action.value:6}", step.label, "; ".join(planned.reasons)]).rstrip())
    with named(step.label), _protected(plan.recipe, [step]), disk_explained(planned.folder):
        if planned.action != Action.SKIP:
            _work(planned, _resolved_settings(planned, plan), options, digests, plan.recipe.engine)
        elif is_main:
            _correct_permissions(step, planned.folder)
    if is_main:
        link_latest(planned.folder, latest_name(step.seed))
        if step.seed is not None and step.seed == plan.recipe.seeds[0]:
            link_latest(planned.folder, latest_name(None))
    return time.monotonic() - started


def _protected(recipe: Recipe, steps: Sequence[Step]) -> AbstractContextManager[None]:
    """Protects what is written in the block, for its owner or group alone, if one of `steps` is sensitive."""
    return sensitive_data(recipe.group_read) if any(step.sensitive for step in steps) else nullcontext()


def _correct_permissions(step: Step, folder: Path) -> None:
    """Takes others' permissions from a sensitive stage's files: it may have been marked later, or moved files in."""
    if step.sensitive:
        apply_umask(folder)


def _work(planned: PlannedStep, settings: Settings, options: RunOptions, digests: Digests, engine: Engine) -> None:
    """Calls the stage in every process, on the partial folder that the main one makes and completes."""
    step, process_group = planned.step, options.process_group
    with spinner("loading"):
        run_stage = step.stage.load_run()  # which takes seconds, in which an input may change
    if process_group.is_main:
        _check_unchanged(planned, digests)
        if planned.discard_first:
            discard(planned.folder)
        begin(planned.folder, planned.parts, planned.reasons)
        _correct_permissions(step, partial_of(planned.folder))
    context = StageContext(partial_of(planned.folder), options.cache, process_group, step.reads_sensitive, engine)
    check_shared(context.work, process_group)
    with unchanged_inputs(separate=True), temporary_files_in(context.work) if step.sensitive else nullcontext():
        metrics = run_stage(settings, context)
    wait_for_all(process_group)
    if process_group.is_main:
        _check_unchanged(planned, digests)  # while it ran
        _correct_permissions(step, context.output)
        finish(planned.folder, planned.parts, metrics, digests)
        digests.save()
    wait_for_all(process_group)


def _check_unchanged(planned: PlannedStep, digests: Digests) -> None:
    """Raises WorkError for a file or folder of the step that is no longer what its fingerprint was computed from.

    A folder with the runs in it changes with every stage, and is not compared.
    """
    settings = planned.step.settings
    with unchanged_inputs(separate=True):  # a folder with the runs in it may change
        now = content_parts(settings, type(settings).model_fields, digests)
    for key, source in planned.step.sources:
        has_runs = source.folder is not None and planned.folder.is_relative_to(source.folder)
        if source.folder and not has_runs and key in now and now[key] != planned.parts[key]:
            raise WorkError(f"{source} changed while the run was under way; run again")


def _resolved_settings(planned: PlannedStep, plan: Plan) -> Settings:
    """A step's settings with the paths of its upstream outputs and the revisions of its hub ids."""
    seeds = dict(planned.step.needs)
    folders = {step.step.key: step.folder for step in plan.steps}

    def locate(stage: str, inner: str) -> Path:
        folder = folders[stage, seeds[stage]]
        check_output_exists(stage, inner, folder)
        return folder / inner

    def resolve(_: str, value: object) -> object:
        if isinstance(value, Source) and value.hub_id and not value.revision:
            return type(value)(f"{value.hub_id}@{plan.revisions[name_of(value)]}")
        return value

    return with_values(with_stage_paths(planned.step.settings, locate), resolve)


def _write_summary_and_report(plan: Plan, digests: Digests, write_report: WriteReport | None) -> dict[str, Metrics]:
    save_digests(plan.recipe, digests)
    recipe, run_folder, report = plan.recipe, plan.run_folder, plan.run_folder / REPORT
    for name in recipe.stage_names:
        unlink_other_seeds(run_folder / name, recipe.seeds)
    summary, facts = summarise(recipe, run_folder), run_facts(recipe)
    with _protected(recipe, recipe.steps):
        is_same = read_json(run_folder / METRICS) == summary and read_json(run_folder / RUN) == facts
        write_json(run_folder / METRICS, summary)
        write_json(run_folder / RUN, facts)
        if write_report and not (plan.idle and is_same and report.exists()):
            with spinner("writing the report"):
                write_report(run_folder)
        if report.exists():
            make_readable(report)
    return summary
