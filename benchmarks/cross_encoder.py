"""A cross-encoder beside a bi-encoder from the same start, all-MiniLM-L6-v2: Spearman on the STS benchmark's test part.

Claim: the cross-encoder is the better of the two. So it is for BERT after NLI (Reimers & Gurevych 2019, table 2). This
start is a bi-encoder already, by a billion pairs, and has never read two sentences together.

    python -m benchmarks.cross_encoder --data DIR --runs RUNS          half an hour on 2 cores; goes on where it stopped

Both learn the STS benchmark's training part and nothing else, keep the weights that are best on its dev part, and have
the rate that was the better of those tried there:

- `bi`: a bi-encoder.
- `gated`: a cross-encoder that begins as the bi-encoder, with gates that open while it learns.

Each is trained with three seeds; a figure is the mean over them, and the interval of the difference is a bootstrap over
pairs. Settings are in `cross-encoder.toml`.
"""

import statistics
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Claim, judge
from benchmarks.machine import add_data, machine, require
from benchmarks.recipes import run_recipe
from bertrelay.data.records import read
from bertrelay.data.tables import Table
from bertrelay.encoder import SentenceEncoder
from bertrelay.evaluation.similarity import pairwise
from bertrelay.evaluation.statistics import Floats, spearman, with_interval
from bertrelay.settings import InputFile
from teachers.baselines import GatedCrossEncoder

RECIPE = Path(__file__).with_name("cross-encoder.toml")
STSB = {part: f"sts/stsb/stsb-en-{part}.csv.gz" for part in ("train", "dev", "test")}
SEEDS = [1, 2, 3]
DEV = {"bi": ("bi", "dev/spearman_cosine"), "gated": ("gated", "dev/spearman_score")}
TEST = {"bi": ("bi-test", "sts/STSb/spearman_cosine"), "gated": ("gated", "sts/STSb/spearman_score")}
"""The stage and the name of a figure."""


def tested_pairs(data: Path) -> tuple[list[tuple[str, str]], Floats]:
    """The pairs of the test part, and their gold scores."""
    table = Table(path=InputFile(data / STSB["test"]), header=False)
    rows = [record.values for record in read(table, [0, 1, 2])]
    return [(first, second) for first, second, _ in rows], np.array([float(score) for *_, score in rows])


def ahead(cross: Sequence[Floats], bi: Sequence[Floats], gold: Floats) -> dict[str, Any]:
    """By how much Spearman of the scores `cross` is above that of `bi`, (pairs,) for each seed; the mean over seeds."""

    def difference(gold: Floats, *scores: Floats) -> float | None:
        found = [spearman(each, gold) for each in scores]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        return statistics.mean(known[: len(cross)]) - statistics.mean(known[len(cross) :])

    return with_interval("difference", difference, gold, *cross, *bi)


def cosines(encoder: SentenceEncoder, pairs: Sequence[tuple[str, str]]) -> Floats:
    """(pairs,)"""
    return pairwise(*(encoder.encode(list(side)) for side in zip(*pairs, strict=True)))


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.cross_encoder", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--runs", type=Path, required=True, help="where the trainings stand; the same one goes on")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="of the trainings (default 1 2 3)")
    options = parser.parse_args()
    require(parser, options.data, *STSB.values())
    print(machine(), flush=True)
    data, runs = options.data.resolve(), [options.runs.resolve() / f"seed-{seed}" for seed in options.seeds]
    found = [
        run_recipe(RECIPE, folder, f"vars.data={data}", f"seed={seed}")
        for folder, seed in zip(runs, options.seeds, strict=True)
    ]
    for name in DEV:
        dev, test = ([figures[stage][figure] for figures in found] for stage, figure in (DEV[name], TEST[name]))
        each = ", ".join(f"{figure:.4f}" for figure in test)
        print(f"{name:6} dev {statistics.mean(dev):.4f}   test {statistics.mean(test):.4f} ({each})")

    pairs, gold = tested_pairs(data)
    stages = [folder / RECIPE.stem for folder in runs]
    above = ahead(
        [GatedCrossEncoder.load(each / "gated/latest/model").score(pairs) for each in stages],
        [cosines(SentenceEncoder.load(each / "bi/latest/model"), pairs) for each in stages],
        gold,
    )
    told = "{difference:.4f} ({difference_low:.4f} to {difference_high:.4f})".format(**above)
    holds = above["difference"] > 0
    sys.exit(0 if judge([Claim("on average over seeds gated is above bi", told, holds)]) else 1)


if __name__ == "__main__":
    main()
