"""`metrics.json` of a run: each stage's latest figures, and their mean and deviation where seeds repeat it."""

import statistics
from collections.abc import Collection, Sequence
from pathlib import Path

from bertrelay.files import read_json, write_json
from bertrelay.stage import Metrics
from pipelines.folders import DIGITS, METRICS, Done, latest_name, read_done
from pipelines.recipe import Recipe

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
