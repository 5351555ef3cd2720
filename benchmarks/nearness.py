"""How near the flagship comes to its teacher, by the number of sentences, and by the teacher.

Each student of the recipe `multilingual-files` learns so many English sentences, once: with translations and without
them in the proportion in which the recipe's text has them. The teacher's vectors are kept for the next student, so that
its time is that of training. The line through the points of a teacher, against the logarithm of the number of
sentences, foresees larger ones: a forecast, not a measurement.

    python -m benchmarks.nearness --data DIR --teachers DIR --base DIR --sentences 10000 30000 --seeds 2
    python -m benchmarks.nearness … --pairs DIR --set 'vars.english=[{path="articles.txt"}]'
    python -m benchmarks.nearness … --teachers DIR DIR --sentences 30000                teachers side by side

Figures are those of benchmarks.multilingual on Tatoeba and STSb, which no student is trained on.
"""

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Answer, Claim, Result, in_fresh_process, in_turns, main, print_results, timed
from benchmarks.multilingual import MEANS, figure, mean_of, metrics_of, settings_of
from bertrelay.cache import Cache
from bertrelay.files import write_json
from bertrelay.stage import StageContext
from students.distill.plan import FILE, Plan
from students.distill.settings import DistillSettings
from students.distill.train import run as distill
from students.distill.train import training_corpus

FORESEEN = [10**6, 10**7]
COLUMNS = [title for title in MEANS if title != "captions"]


def train(options: Namespace, sentences: int, seed: int, folder: Path) -> dict[str, Any]:
    """Trains a student on so many English sentences into `folder`/model."""
    settings: DistillSettings = settings_of(options)["student"]
    settings = settings.model_copy(update={"seed": seed, "budget_minutes": 1.0})  # what is planned is written below
    context = StageContext(folder, Cache(options.cache or options.scratch / "cache"))
    corpus = training_corpus(settings, context, context.precision(settings.precision))
    fraction = min(1.0, sentences / len(corpus.english))
    without = round(fraction * len(corpus.english_sources))
    plan = Plan(None, 0.0, max(1, round(fraction * corpus.translated)), without, 1, 0, 0, 0.0, 0.0)
    write_json(folder / FILE, plan._asdict())  # as a resumed run finds it
    metrics, seconds = timed(distill, settings, context)
    return {"seconds": seconds, "english": plan.translated + plan.english, "kept": metrics.get("kept_weight")}


def contend(options: Namespace, teacher: Path, sentences: int, seed: int, number: int) -> Answer:  # noqa: ARG001
    folder = options.scratch / f"{teacher.name}-{sentences}-{seed}"
    folder.mkdir()
    options = Namespace(**{**vars(options), "teacher": teacher})
    trained = in_fresh_process(train, options, sentences, seed, folder)
    metrics = in_fresh_process(metrics_of, options, folder / "model")
    means = {title: mean for title in MEANS if (mean := mean_of(metrics, title)) is not None}
    print(f"{folder.name}: {', '.join(f'{title} {mean:.4f}' for title, mean in means.items())}", flush=True)
    return {**trained, **means, "metrics": metrics}


def forecast(points: Sequence[tuple[int, float]], sentences: int) -> float:
    """The value at `sentences` on the least-squares line through (number of sentences, value), by the logarithm.

    Points (100, .4) and (1,000, .5) give .6 for 10,000.
    """
    slope, start = np.polyfit([math.log10(count) for count, _ in points], [value for _, value in points], 1)
    return float(start + slope * math.log10(sentences))


def print_forecasts(results: Mapping[str, Result], teacher: Path) -> None:
    answers = [result.answers[0] for name, result in results.items() if name.startswith(f"{teacher.name} ")]
    if len({answer["english"] for answer in answers}) < 2:
        return
    for title in COLUMNS:
        points = [(answer["english"], answer[title]) for answer in answers if title in answer]
        foreseen = ", ".join(f"{count:,}: {forecast(points, count):.3f}" for count in FORESEEN)
        print(f"forecast of {teacher.name}, {title}: {foreseen}", flush=True)


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    works = {
        f"{teacher.name} {sentences:,} seed {seed}": partial(contend, options, teacher.resolve(), sentences, seed)
        for teacher, sentences, seed in product(options.teachers, options.sentences, range(1, options.seeds + 1))
    }
    results = in_turns(works, 1)
    print_results(results, {}, {title: partial(figure, title) for title in COLUMNS})
    for teacher in options.teachers:
        print_forecasts(results, teacher.resolve())
    return [], {"contenders": results}


if __name__ == "__main__":
    folder = {"type": Path, "required": True, "metavar": "DIR"}
    main(
        measure,
        __doc__,
        "parallel/tatoeba",
        "sts/stsb",
        teachers={**folder, "nargs": "+"},
        base=folder,
        catalogues=Path("/usr/share"),
        max_pairs={"type": int, "metavar": "N", "help": "of a source and language (default: the recipe's)"},
        pairs={"type": Path, "metavar": "DIR", "help": "with en-de.tsv, en-ko.tsv, …"},
        set={"nargs": "+", "default": [], "metavar": "KEY=VALUE", "help": "of the recipe"},
        epochs={"type": int, "default": 1, "metavar": "N", "help": "(default: 1)"},
        sentences={"type": int, "nargs": "+", "default": [10_000, 30_000], "metavar": "N"},
        seeds=1,
        cache={"type": Path, "metavar": "DIR", "help": "keeps corpora and the teacher's vectors, such as runs/.cache"},
    )
