"""Runs the steps of a recipe: finished ones are skipped, unfinished ones resume, and `done.json` is written last.

Every process of a run walks through here. The main one alone locks, plans, names and links; the others follow its plan.
"""

import statistics
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bertrelay.distributed import SINGLE_PROCESS, ProcessGroup, check_shared, from_main, joined, wait_for_all
from bertrelay.errors import BertRelayError, RequestError
from bertrelay.files import make_readable, read_json, write_json
from bertrelay.fingerprint import Digests, Parts
from bertrelay.privacy import apply_umask, sensitive_data, temporary_files_in
from bertrelay.progress import log
from bertrelay.settings import Settings, is_auto_precision, leaves, with_precision, with_stage_paths
from bertrelay.stage import Metrics, StageContext
from pipelines.error_handling import disk_explained, force_explained, named, stopping_at_once
from pipelines.hub import (
    Ask,
    Revisions,
    ask_hub,
    hub_ids,
    learn_revisions,
    lock_path,
    set_hub_access,
    with_revisions,
)
from pipelines.plan import ALL_STAGES, Action, Plan, PlannedStep, StageChoice, check_inputs, chosen_steps, make_plan
from pipelines.recipe import Key, Recipe, Step
from pipelines.run_store import (
    DIGITS,
    METRICS,
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
from pipelines.validation import did_you_mean

CACHE = ".cache"
REPORT = "report.html"

Shared = tuple[Revisions, dict[Key, tuple[Action, Parts]]]


@dataclass(frozen=True)
class RunOptions:
    """What a run needs besides its recipe.

    runs: the folder of all runs.
    verify: hash every file again.
    write_report: writes the report of a run's folder, without text of the stages named.
    ask: asks the hub for a revision.
    """

    runs: Path
    choice: StageChoice = ALL_STAGES
    verify: bool = False
    process_group: ProcessGroup = SINGLE_PROCESS
    write_report: Callable[[Path, Collection[str]], Path] | None = None
    ask: Ask = ask_hub

    @property
    def cache(self) -> Path:
        return self.runs / CACHE

    def digests(self) -> Digests:
        """The digests that all runs in the folder remember."""
        return Digests(self.cache / "digests.json", self.verify)


@dataclass(frozen=True)
class Outcome:
    """What a run did: the plan it followed, and of each step the seconds now and the metrics."""

    plan: Plan
    seconds: dict[Key, float]
    metrics: dict[Key, Metrics]


def run(recipe: Recipe, options: RunOptions) -> Outcome:
    """Runs what is not done of `recipe`; what was done is kept, and the next run resumes from it.

    Raises RequestError for wrong input and for a second runner, WorkError when a stage fails, Stopped on a signal.
    """
    set_hub_access(names_hub=any(hub_ids(step) for step in recipe.steps))
    run_folder = options.runs / recipe.name
    forced = options.choice.force
    with force_explained(forced), stopping_at_once(), disk_explained(run_folder), ExitStack() as held:
        held.enter_context(joined(options.process_group))
        digests = options.digests()
        plan, revisions = _agree_on_plan(recipe, options, digests, held)
        seconds = {step.step.key: _bring_to_end(step, plan, revisions, options, digests) for step in plan.steps}
        if options.process_group.is_main:
            _round_off(plan, options, digests)
    return Outcome(plan, seconds, _metrics(plan))


def _agree_on_plan(recipe: Recipe, options: RunOptions, digests: Digests, held: ExitStack) -> tuple[Plan, Revisions]:
    """The main process's plan, in every process; the main one locks the run's folder first, and `held` keeps that."""
    process_group = options.process_group
    if not process_group.is_main:
        return _plan_of(recipe, options, from_main(None, process_group))
    try:
        held.enter_context(run_lock(options.runs / recipe.name))
        plan, revisions = _plan(recipe, options, digests)
    except BertRelayError as error:
        from_main(error.exit_code, process_group)
        raise
    from_main((revisions, {each.step.key: (each.action, each.parts) for each in plan.steps}), process_group)
    return plan, revisions


def _plan(recipe: Recipe, options: RunOptions, digests: Digests) -> tuple[Plan, Revisions]:
    steps = chosen_steps(recipe, options.choice)
    check_inputs(recipe, steps)  # before a hub is asked
    settle(options.runs / recipe.name, digests)
    revisions = learn_revisions(steps, lock_path(recipe, options.runs), options.ask)
    plan = make_plan(recipe, options.runs, digests, revisions, options.choice)
    digests.save()  # so that stages need not read their inputs again to name what they keep in the cache
    return plan, revisions


def _plan_of(recipe: Recipe, options: RunOptions, shared: Shared | int | None) -> tuple[Plan, Revisions]:
    """The plan that the main process shared; where it shared an exit code, this process ends with it too."""
    if shared is None or isinstance(shared, int):
        sys.exit(shared or 1)
    revisions, decided = shared
    run_folder = options.runs / recipe.name
    steps = []
    for step in recipe.steps:
        if step.key in decided:
            action, parts = decided[step.key]
            steps.append(PlannedStep(step, action, (), parts, run_folder / step.name))
    return Plan(recipe, run_folder, tuple(steps)), revisions


def _bring_to_end(
    planned: PlannedStep, plan: Plan, revisions: Revisions, options: RunOptions, digests: Digests
) -> float:
    """Runs a step that is not done, and links it as the latest; the seconds that took."""
    started = datetime.now(UTC)
    log("  ".join([f"{planned.action.value:6}", planned.step.label, "; ".join(planned.reasons)]).rstrip())
    with named(planned.step.label), _protected(plan.recipe, [planned.step]), disk_explained(planned.folder):
        if planned.action != Action.SKIP:
            _work(planned, settings_of(planned, plan, revisions), options, digests)
        elif options.process_group.is_main:
            _apply_umask(planned.step, planned.folder)
    if options.process_group.is_main:
        _link(planned, plan.recipe)
    return (datetime.now(UTC) - started).total_seconds()


def _protected(recipe: Recipe, steps: Sequence[Step]) -> AbstractContextManager[None]:
    """Keeps what is written to its owner, or his group, where one of `steps` is sensitive."""
    return sensitive_data(recipe.group_read) if any(step.sensitive for step in steps) else nullcontext()


def _apply_umask(step: Step, folder: Path) -> None:
    """Corrects the permissions of what a sensitive stage wrote: as it was marked later, or by a temporary file."""
    if step.sensitive:
        apply_umask(folder)


def _work(planned: PlannedStep, settings: Settings, options: RunOptions, digests: Digests) -> None:
    """Calls the stage in every process, on the folder that the main one opens and closes."""
    step = planned.step
    if options.process_group.is_main:
        if planned.afresh:
            discard(planned.folder)
        begin(planned.folder, planned.parts)
        _apply_umask(step, partial_of(planned.folder))
    context = StageContext(partial_of(planned.folder), options.cache, options.process_group, step.reads_sensitive)
    check_shared(context.work, options.process_group)
    with temporary_files_in(context.work) if step.sensitive else nullcontext():
        metrics = step.stage.load_run()(settings, context)
    wait_for_all(options.process_group)
    if options.process_group.is_main:
        _apply_umask(step, context.output)
        finish(planned.folder, planned.parts, metrics, digests)
        digests.save()
    wait_for_all(options.process_group)


def settings_of(planned: PlannedStep, plan: Plan, revisions: Revisions) -> Settings:
    """A step's settings with the places of its upstream outputs, the revisions of its hub ids and the precision.

    The precision is the planned one: a stage that another machine began resumes in its precision.
    """
    seeds = dict(planned.step.needs)
    folders = {each.step.key: each.folder for each in plan.steps}

    def locate(stage: str, inner: str) -> Path:
        return _existing(folders[stage, seeds[stage]], stage, inner)

    settings = with_revisions(with_stage_paths(planned.step.settings, locate), revisions)
    left_open = (leaf.key for leaf in leaves(settings) if is_auto_precision(leaf.key, leaf.value))
    return next((with_precision(settings, planned.parts[key]) for key in left_open), settings)


def _existing(folder: Path, stage: str, inner: str) -> Path:
    if not (folder / inner).exists():
        written = sorted(path.name for path in folder.iterdir())
        raise RequestError(
            f"@{stage}/{inner}: the stage {stage} wrote nothing of that name{did_you_mean(inner, written) or '.'} "
            f"It wrote: {', '.join(written)}"
        )
    return folder / inner


def _link(planned: PlannedStep, recipe: Recipe) -> None:
    """Links the result as the latest: of a repeated stage each seed's, the first seed's under the plain name too."""
    link_latest(planned.folder, latest_name(planned.step.seed))
    if planned.step.seed is not None and planned.step.seed == recipe.seeds[0]:
        link_latest(planned.folder, latest_name(None))


def _round_off(plan: Plan, options: RunOptions, digests: Digests) -> None:
    """Writes the summary and the report of the run."""
    digests.save()
    for step in plan.recipe.steps:
        unlink_other_seeds(plan.run_folder / step.name, plan.recipe.seeds)
    steps, report = plan.recipe.steps, plan.run_folder / REPORT
    withheld = {step.name for step in steps if step.reads_sensitive and not getattr(step.settings, "with_text", False)}
    with _protected(plan.recipe, steps):
        changed = write_summary(plan.recipe, plan.run_folder)
        if options.write_report and (changed or not plan.idle or not _is_up_to_date(report, withheld)):
            options.write_report(plan.run_folder, withheld)
        if report.exists():
            make_readable(report)


def _is_up_to_date(report: Path, withheld: Collection[str]) -> bool:
    """Whether the report exists and leaves out the text of the same stages."""
    return report.exists() and without_text(withheld) in report.read_text(encoding="utf-8")


def _metrics(plan: Plan) -> dict[Key, Metrics]:
    return {each.step.key: done.metrics for each in plan.steps if (done := read_done(each.folder))}


OUTPUT = "output:"


def write_summary(recipe: Recipe, run_folder: Path) -> bool:
    """Writes `metrics.json` of the run, stage to its metrics; whether it differs from what stood there."""
    found = summary(recipe, run_folder)
    differs = read_json(run_folder / METRICS) != found
    write_json(run_folder / METRICS, found)
    return differs


def summary(recipe: Recipe, run_folder: Path) -> dict[str, Metrics]:
    """Stage to the metrics of its latest result; of a repeated one the mean over seeds and `<name>_deviation`.

    A result that came from an upstream result which is no longer the latest is left out: it says nothing of this one.
    """
    latest = {(run_folder / step.name / latest_name(step.seed)).resolve().name for step in recipe.steps}
    found: dict[str, Metrics] = {}
    for name in recipe.stage_names:
        seeds = [step.seed for step in recipe.steps if step.name == name]
        done = [read_done(run_folder / name / latest_name(seed)) for seed in seeds]
        metrics = [each.metrics for each in done if each and _upstream_results(each) <= latest]
        if metrics:
            found[name] = metrics[0] if seeds == [None] else over_seeds(metrics)
    return found


def without_text(withheld: Collection[str]) -> str:
    """What a report says of the stages whose text is left out; empty where there are none."""
    names = ", ".join(sorted(withheld))
    return f"Text is left out of what is sensitive: {names}." if names else ""


def _upstream_results(done: Done) -> set[str]:
    """The folder names of the results that this one came from."""
    parts = [part for part in done.parts.values() if isinstance(part, str) and part.startswith(OUTPUT)]
    return {part.removeprefix(OUTPUT)[:DIGITS] for part in parts}


def over_seeds(metrics: Sequence[Metrics]) -> Metrics:
    """The mean of each figure and its sample standard deviation; null where a seed lacks it."""
    found: Metrics = {}
    for name in dict.fromkeys(name for each in metrics for name in each):
        values = [value for each in metrics if (value := each.get(name)) is not None]
        whole = len(values) == len(metrics)
        found[name] = statistics.fmean(values) if whole else None
        if len(values) > 1:
            found[f"{name}_deviation"] = statistics.stdev(values) if whole else None
    return found
