"""A toy language in which sentences about one animal mean the same, and trainings on it."""

import json

import numpy as np

from bertrelay.cache import Cache
from bertrelay.stage import StageContext
from teachers.settings import TrainSettings
from teachers.train import run

ANIMALS = ["dog", "cat", "bird", "fish", "horse", "mouse"]
VERBS = ["runs", "sleeps", "eats", "waits", "sings"]
PLACES = ["here", "there", "in the park", "near the old station", "at home"]
NEW = {"layers": 1, "dim": 32, "heads": 2, "vocabulary": 120, "max_tokens": 24, "dropout": 0.0}
SETTINGS = {
    "base": NEW,
    "seed": 2,
    "epochs": 6,
    "batch_items": 8,
    "learning_rate": 5e-3,
    "precision": "fp32",
    "log_every": 5,
}
QUICK = {"base": NEW, "batch_items": 16, "learning_rate": 5e-3, "precision": "fp32"}


def sentence(animal, generator):
    return f"a {animal} {generator.choice(VERBS)} {generator.choice(PLACES)}"


def records(objective, count, seed):
    """Pairs are similar when they share their animal, and as near as their animals are in the list."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        first, second = generator.choice(len(ANIMALS), 2, replace=False)
        if objective not in ("triplet", "contrastive") and generator.random() < 0.5:
            second = first
        u, v = (sentence(ANIMALS[animal], generator) for animal in (first, second))
        if objective == "softmax":
            yield f"{u}\t{v}\t{'similar' if first == second else 'dissimilar'}"
        elif objective == "cosine":
            yield f"{u}\t{v}\t{5 - abs(first - second)}"
        else:
            yield f"{u}\t{sentence(ANIMALS[first], generator)}\t{v}"


def write_toy(folder, objective, train=240):
    """Writes tables for training and validation; returns the settings of a training on them."""
    names = {"softmax": "premise hypothesis label", "cosine": "sentence1 sentence2 score"}
    columns = names.get(objective, "anchor positive negative").split()
    tables = {}
    for part, count, seed in (("train", train, 1), ("dev", 80, 2)):
        path = folder / f"{objective}.{part}.tsv"
        path.write_text("\n".join(["\t".join(columns), *records(objective, count, seed)]) + "\n")
        tables[part] = [{"path": str(path), "columns": columns}]
    return {**SETTINGS, "objective": objective, **tables}


def teach(context, fields):
    return run(TrainSettings.model_validate(fields), context)


def context_in(folder):
    for name in ("output", "cache"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return StageContext(folder / "output", Cache(folder / "cache"))


def log_lines(context, key):
    log = (context.output / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, log) if key in line]


def scored_pairs(count, seed):
    """Pairs of sentences with a score from 0 to 5, as near as their animals are in the list."""
    generator = np.random.default_rng(seed)
    return [
        (sentence(ANIMALS[a], generator), sentence(ANIMALS[b], generator), 5.0 - abs(a - b))
        for a, b in generator.integers(6, size=(count, 2)).tolist()
    ]


def write_scored(path, count, seed):
    """Writes pairs of animals with scores from 0 to 5; returns them."""
    drawn = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        a, b = drawn.integers(6, size=2)
        rows.append((f"the {ANIMALS[a]} runs", f"the {ANIMALS[b]} sleeps", int(2 * (a < 3) + 3 * (b < 3))))
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [("sentence1", "sentence2", "score"), *rows]))
    return rows
