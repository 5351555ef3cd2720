"""The learning curve of a student: its nearness to the teacher on held-out sentences, against the sentences seen."""

import json
from itertools import accumulate
from pathlib import Path

from bertrelay.training.batches import BatchSchedule
from students.evaluate.verdicts import MEAN
from students.parallel.settings import ENGLISH

FILE = "learning_curve.json"
PREFIX, MEASURES = "dev/nearness/", ("cosine", "agreement")
"""Of the metrics in the log, and the measures that the curve has."""


def learning_curve(log: Path, schedule: BatchSchedule) -> dict[str, list[dict[str, float]]]:
    """The content of `learning_curve.json` from the `metrics.jsonl` of a training that is finished.

    A row has `step`, `sentences`, the number of items of all steps before, and `<measure>/<language>`; of the languages
    English and the mean, where there is one, with `untrained/` before those of domains that are not trained.
    Example: `{"step": 40, "sentences": 4113, "cosine/en": 0.61, "cosine/mean": 0.52, "agreement/en": 0.7, …}`.
    """
    seen = [0, *accumulate(len(schedule.batch(step)[1]) for step in range(schedule.total_steps))]
    lines = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    rows = []
    for line in lines:
        measured = {name.removeprefix(PREFIX): value for name, value in line.items() if name.startswith(PREFIX)}
        shown = {name: value for name, value in measured.items() if value is not None and _is_shown(name, measured)}
        if shown:
            rows.append({"step": line["step"], "sentences": seen[line["step"]], **shown})
    return {"rows": rows}


def _is_shown(name: str, measured: dict[str, float | None]) -> bool:
    group, _, language = name.rpartition("/")
    languages = (ENGLISH, MEAN) if f"{group}/{MEAN}" in measured else (language,)
    return group.split("/")[0] in MEASURES and language in languages
