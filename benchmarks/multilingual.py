"""Students of recipe `multilingual-files` beside sentence-transformers' own recipe, each objective alone, and the base.

Claims: no figure of the recipe is below that of the peer's default by more than its 95 % interval, in at most a quarter
of its time; nor below that of the peer's best settings.

    python -m benchmarks.multilingual --data DIR --teacher DIR --base DIR --max-pairs 600
    python -m benchmarks.multilingual … --contenders ours default                     these two alone

All learn the same text for as many epochs and start from the same student: the base with its fitted head. The peer
follows its example make_multilingual.py: MSELoss, 64 pairs a step, a learning rate of 2e-5, fp32, every pair with its
English; an English sentence without translations is a pair with itself. `best` is bf16 autocast and the recipe's
learning rate. A time is that of the teacher's vectors, the training and, of ours, the choice between start and end.
`--max-pairs` is of a source and language, where the recipe has more; `--pairs DIR` adds tables en-de.tsv, en-ko.tsv, …
and `--set vars.english=[…]` English text. Figures are means over languages, and of the ends of their 95 % intervals: on
Tatoeba the accuracy in both directions, the cosine of English and of its translations to the teacher's vectors of the
English, and the agreement of their pair similarities; on captions the accuracy; STSb's test parts (Spearman).
"""

import re
import statistics
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.distill import save_start, train_pairs
from benchmarks.harness import (
    OURS,
    Answer,
    Claim,
    Result,
    at_least,
    in_fresh_process,
    in_turns,
    main,
    print_results,
    timed,
)
from bertrelay.cache import Cache
from bertrelay.stage import StageContext
from pipelines.recipe.steps import read_recipe
from pipelines.registry import REGISTRY
from students.distill.settings import DistillSettings
from students.distill.train import run as distill
from students.evaluate.settings import EvaluateSettings
from students.evaluate.stage import run as evaluate
from students.parallel.corpus import ParallelCorpus

RECIPE, TESTS, OF_DEFAULT = "multilingual-files", ["tatoeba", "trained-domains"], 4.0
PAIRS_A_STEP, LEARNING_RATE = 64, 2e-5
PLAIN = {"frozen_layers": None, "average_with_start": False, "keep_directions": False}
STUDENTS: dict[str, dict[str, Any]] = {
    OURS: {},
    "ours, whole way": {"average_with_start": False},
    "ours, head only": {"keep_directions": False},
    "mse": {"objectives": {}},
    "cosine": {"objectives": {"mse": 0, "cosine": 1}},
    "contrastive": {"objectives": {"mse": 0, "contrastive": 1}},
    "ranking": {"objectives": {"mse": 0, "ranking": 1}},
    "mse, plain": {"objectives": {}, **PLAIN},
}
"""The recipe's settings that each replaces."""
PEERS = {"default": False, "best": True}
"""Whether by bf16 autocast, at the recipe's learning rate."""
UNTRAINED = ["base", "start"]
MEANS = {
    "Tatoeba": ("tatoeba", r"translation_accuracy/(en-..|..-en)"),
    "cosine en": ("tatoeba", r"nearness/cosine/en"),
    "cosine X": ("tatoeba", r"nearness/cosine/(?!en)[a-z]{2}"),
    "agreement en": ("tatoeba", r"nearness/agreement/en"),
    "agreement X": ("tatoeba", r"nearness/agreement/(?!en)[a-z]{2}"),
    "captions": ("trained-domains", r"translation_accuracy/(en-..|..-en)"),
    "STS within": ("trained-domains", r"sts/STSb-(?!en)../spearman_cosine"),
    "STS en-X": ("trained-domains", r"sts/STSb-en-../spearman_cosine"),
    "STS en": ("trained-domains", r"sts/STSb-en/spearman_cosine"),
}
"""Of which test, and of which of its metrics, a figure is the mean."""


def settings_of(options: Namespace) -> dict[str, Any]:
    """The settings of each stage of the recipe."""
    paths = {name: getattr(options, name).resolve() for name in ("teacher", "base", "data")}
    overrides = [f"vars.{name}={str(path)!r}" for name, path in paths.items()]
    own = [(options.catalogues / "locale", 1000), *([(options.pairs, 3000)] if options.pairs else [])]
    sources = (f"{{path={str(path.resolve())!r}, languages='${{languages}}', max_pairs={most}}}" for path, most in own)
    overrides.append(f"vars.own=[{', '.join(sources)}]")
    steps = read_recipe(RECIPE, REGISTRY, [*overrides, *options.set]).steps
    settings: dict[str, Any] = {step.name: step.settings for step in steps}
    if most := options.max_pairs:
        sources = settings["student"].parallel
        fewer = [source.model_copy(update={"max_pairs": min(source.max_pairs or most, most)}) for source in sources]
        settings["student"] = settings["student"].model_copy(update={"parallel": fewer})
    same = {"budget_minutes": None, "epochs": options.epochs}
    settings["student"] = settings["student"].model_copy(update=same)
    return settings


def train(options: Namespace, name: str, folder: Path) -> float:
    """Trains into `folder`/model; the seconds of it."""
    settings = settings_of(options)["student"]
    if name in PEERS:
        return train_peer(options.scratch, settings, folder, is_best=PEERS[name])
    given, replaced = settings.model_dump(exclude_unset=True), STUDENTS[name]
    if {"contrastive", "ranking"} & replaced.get("objectives", {}).keys():
        objectives = {**replaced["objectives"], "temperature": settings.objectives.temperature}
        replaced = {**replaced, "objectives": objectives}
    settings = DistillSettings.model_validate({**given, **replaced})
    return timed(distill, settings, StageContext(folder, Cache(folder / "cache")))[1]


def train_peer(scratch: Path, settings: DistillSettings, folder: Path, *, is_best: bool) -> float:
    from sentence_transformers import SentenceTransformer

    corpus, student = ParallelCorpus.open(scratch / "cache" / "corpus"), SentenceTransformer(str(scratch / "start"))
    english = corpus.english.read(0, len(corpus.english))
    rows = [english[row] for row in corpus.targets[len(english) : corpus.taught].tolist()]
    alone = english[corpus.translated :]
    pairs = [*rows, *alone], [*corpus.translations.read(0, len(corpus.translations)), *alone]
    rate = settings.learning_rate if is_best else LEARNING_RATE
    peers = settings.model_copy(update={"batch_tokens": None, "batch_items": PAIRS_A_STEP, "learning_rate": rate})
    teacher = SentenceTransformer(str(settings.teacher))
    if is_best:
        teacher = teacher.bfloat16()
    _, seconds = timed(train_pairs, student, teacher, *pairs, peers, folder, is_best)
    student.save_pretrained(str(folder / "model"), create_model_card=False)
    return seconds


def metrics_of(options: Namespace, model: Path) -> dict[str, dict[str, Any]]:
    """The metrics of each test by its name."""
    found = {}
    for name in TESTS:
        tests = settings_of(options)[name].model_dump(exclude_unset=True)
        settings = EvaluateSettings.model_validate({**tests, "model": str(model)})
        folder = options.scratch / "evaluated"
        folder.mkdir(exist_ok=True)
        found[name] = dict(evaluate(settings, StageContext(folder, Cache(folder))))
    return found


def contend(options: Namespace, name: str, number: int) -> Answer:  # noqa: ARG001 (there is one round)
    folder, seconds = options.scratch / name.replace(", ", "-").replace(" ", "-"), 0.0
    folder.mkdir(exist_ok=True)  # the start is in its own already
    if name not in UNTRAINED:
        seconds = in_fresh_process(train, options, name, folder)
    models = {"base": options.base, "start": options.scratch / "start"}
    metrics = in_fresh_process(metrics_of, options, models.get(name, folder / "model"))
    means = {title: mean for title in MEANS if (mean := mean_of(metrics, title)) is not None}
    print(f"{name}: {', '.join(f'{title} {mean:.4f}' for title, mean in means.items())}, {seconds:,.0f} s", flush=True)
    return {"seconds": seconds, **means, "metrics": metrics}


def names_of(metrics: Mapping[str, Any], title: str) -> list[str]:
    return [name for name in metrics if re.fullmatch(MEANS[title][1], name)]


def mean_of(metrics: Mapping[str, dict[str, Any]], title: str, bound: str = "") -> float | None:
    """The mean of a metric over languages, or of the `_low` or `_high` of its 95 % intervals; None without any."""
    found = metrics[MEANS[title][0]]
    values = [found[name + bound] for name in names_of(found, title)]
    return float(statistics.mean(values)) if values else None


def not_below(results: Mapping[str, Result], peer: str) -> Claim:
    """That no figure of ours is below the interval of the peer's."""
    ours, theirs = (results[name].answers[0]["metrics"] for name in (OURS, peer))
    lower, count = [], 0
    for title, (test, _) in MEANS.items():
        for name in names_of(theirs[test], title):
            count += 1
            if ours[test][name] < theirs[test][f"{name}_low"]:
                lower.append(f"{test} {name} {ours[test][name]:.4f} of {theirs[test][name]:.4f}")
    return Claim(f"no figure below the interval of {peer}", ", ".join(lower) or f"none of {count}", not lower)


def claims(results: Mapping[str, Result]) -> list[Claim]:
    judged = [not_below(results, peer) for peer in PEERS if {OURS, peer} <= results.keys()]
    if {OURS, "default"} <= results.keys():
        judged.append(at_least(OF_DEFAULT, "as fast as default", results[OURS].speed_over(results["default"])))
    return judged


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    save_start(settings_of(options)["student"], options.scratch)
    results = in_turns({name: partial(contend, options, name) for name in options.contenders}, 1)
    columns = {title: partial(figure, title) for title in MEANS}
    print_results(results, {}, columns)
    return claims(results), {"contenders": results}


def figure(title: str, result: Result) -> str:
    mean, low, high = (mean_of(result.answers[0]["metrics"], title, bound) for bound in ("", "_low", "_high"))
    return "" if mean is None else f"{mean:.4f} ({low:.3f}–{high:.3f})"


if __name__ == "__main__":
    folder = {"type": Path, "required": True, "metavar": "DIR"}
    main(
        measure,
        __doc__,
        "parallel/tatoeba",
        "sts/stsb",
        teacher=folder,
        base=folder,
        catalogues=Path("/usr/share"),
        max_pairs={"type": int, "default": 600, "metavar": "N", "help": "(default: 600)"},
        pairs={"type": Path, "metavar": "DIR", "help": "with en-de.tsv, en-ko.tsv, …"},
        set={"nargs": "+", "default": [], "metavar": "KEY=VALUE", "help": "of the recipe"},
        epochs={"type": int, "default": 1, "metavar": "N", "help": "(default: 1)"},
        contenders=[*UNTRAINED, *STUDENTS, *PEERS],
    )
