"""The metrics of a run: those of each stage's latest result, over seeds their mean and standard deviation."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertrelay.progress import log
from bertrelay.stage import Metrics
from pipelines.recipe.steps import Recipe
from pipelines.run.store import DIGITS, Done, latest_name, read_done

OUTPUT = "output:"
"""Prefix of a fingerprint part that is the output of another stage."""


def summarise(recipe: Recipe, run_folder: Path) -> dict[str, Metrics]:
    """The metrics of each stage's latest result; of a repeated one the mean over seeds and `<name>_deviation`.

    A result of an upstream result that is no longer the latest is left out, and so is the mean if a seed has no
    result, or one of other settings or another precision.
    """
    latest = {(run_folder / step.name / latest_name(step.seed)).resolve().name for step in recipe.steps}
    summary: dict[str, Metrics] = {}
    for name in recipe.stage_names:
        seeds = [step.seed for step in recipe.steps if step.name == name]
        results = [read_done(run_folder / name / latest_name(seed)) for seed in seeds]
        current = [done for done in results if done and _upstream_results(done) <= latest]
        if current and seeds == [None]:
            summary[name] = current[0].metrics
        elif current and (missing := len(seeds) - len(current)):
            log(f"{name}: no mean over seeds, because {missing} of {len(seeds)} have no current result")
        elif differing := _differing(current):
            log(f"{name}: no mean over seeds, because their results differ in {', '.join(sorted(differing))}")
        elif current:
            summary[name] = _over_seeds([done.metrics for done in current])
    return summary


def _differing(results: Sequence[Done]) -> set[str]:
    """The keys of settings and inputs that differ between seeds, besides the seed and upstream results."""

    def facts(done: Done) -> dict[str, object]:
        parts = {key: OUTPUT if str(part).startswith(OUTPUT) else part for key, part in done.parts.items()}
        return {**parts, "seed": None, "precision": done.precision}

    compared = list(map(facts, results))
    keys = {key for parts in compared for key in parts}
    return {key for key in keys if any(parts.get(key) != compared[0].get(key) for parts in compared)}


def run_facts(recipe: Recipe) -> dict[str, Any]:
    """The content of `run.json`, by which a report finds the results of a run: its recipe and stages, in order.

    withheld: the stages that read sensitive data, of which a report quotes no text.
    """
    reading = [step for step in recipe.steps if step.reads_sensitive]
    return {
        "recipe": recipe.name,
        "stages": [{"name": step.name, "seed": step.seed} for step in recipe.steps],
        "withheld": sorted({step.name for step in reading if not getattr(step.settings, "with_text", False)}),
    }


def _upstream_results(done: Done) -> set[str]:
    """The folder names of the results from which this one was made."""
    parts = [part for part in done.parts.values() if isinstance(part, str) and part.startswith(OUTPUT)]
    return {part.removeprefix(OUTPUT)[:DIGITS] for part in parts}


def _over_seeds(metrics: Sequence[Metrics]) -> Metrics:
    """The mean of each metric and its sample standard deviation; null if a seed lacks the metric."""
    summary: Metrics = {}
    for name in dict.fromkeys(name for of_seed in metrics for name in of_seed):
        values = [value for of_seed in metrics if (value := of_seed.get(name)) is not None]
        is_complete = len(values) == len(metrics)
        summary[name] = statistics.fmean(values) if is_complete else None
        if len(values) > 1:
            summary[f"{name}_deviation"] = statistics.stdev(values) if is_complete else None
    return summary
