"""A cross-encoder beside a bi-encoder from the same start, all-MiniLM-L6-v2: Spearman on the STS benchmark's test part.

Claim: the cross-encoder is the better of the two. So it is for a BERT that is neither yet (Reimers & Gurevych 2019,
table 2); this start is a bi-encoder already, by a billion pairs, and has never read two sentences together.

    python -m benchmarks.cross_encoder --data DIR --runs RUNS         over an hour on 2 cores; goes on where it stopped

So the cross-encoder first learns the start's own cosines, which takes no gold score: of the pairs in the training parts
of the STS benchmark and SICK, and of each sentence there with three others, one of the nearest 4, one of the next 36
and one of the next 160. Then both learn the STS benchmark's training part and keep their best weights on its dev part:
`cross` and `bi`. They err in different pairs, so that the mean of both is better than either: the cross-encoder learns
that mean of 24,000 of the pairs without a gold score, and once more the gold scores: `taught`, one network as the
others are. No gold score but the STS benchmark's is in any. A cross-encoder that learns from gold scores alone stands
beside them. Settings are in `cross-encoder.toml` and `cross-encoder-taught.toml`.
"""

import csv
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.contenders import Claim, judge
from benchmarks.machine import MINILM, add_data, machine, require
from benchmarks.recipes import run_recipe
from bertrelay.encoder import SentenceEncoder
from bertrelay.files import whole_file
from bertrelay.records import read
from bertrelay.settings import InputFile
from bertrelay.similarity import pairwise, unit
from bertrelay.tables import Table
from teachers.baselines import CrossEncoder

RECIPE, TAUGHT = (Path(__file__).with_name(f"{name}.toml") for name in ("cross-encoder", "cross-encoder-taught"))
STSB, SICK = "sts/stsb/stsb-en-train.csv.gz", "sts/sick/SICK_train.txt"
NEIGHBOURS = ((0, 4), (4, 40), (40, 200))
BLOCK = 1_024
TAUGHT_PAIRS, HIGHEST = 24_000, 5  # the score of the STS benchmark
FIGURES = {
    "taught": "sts/STSb/spearman_score",
    "cross": "sts/STSb/spearman_score",
    "gold-alone": "sts/STSb/spearman_score",
    "bi-test": "sts/STSb/spearman_cosine",
}
Pair = tuple[str, str]


def given_pairs(data: Path) -> list[Pair]:
    """The distinct pairs of both training parts."""
    tables = [
        Table(path=InputFile(data / STSB), columns=[0, 1], header=False),
        Table(path=InputFile(data / SICK), columns=["sentence_A", "sentence_B"], format="tsv"),
    ]
    records = (record for table in tables for record in read(table, [0, 1]))
    return list(dict.fromkeys((first, second) for first, second in (record.values for record in records)))


def scored_pairs(encoder: SentenceEncoder, given: Sequence[Pair], seed: int) -> Iterator[tuple[str, str, float]]:
    """The pairs, and each of their sentences with three others, in random order; with their cosines, at least 0."""
    sentences = list(dict.fromkeys(sentence for pair in given for sentence in pair))
    vectors = unit(encoder.encode(sentences, precision="fp32"))  # (sentences, dim)
    rows = {sentence: row for row, sentence in enumerate(sentences)}
    generator = np.random.default_rng(seed)
    chosen = [(rows[first], rows[second]) for first, second in given]
    for begin in range(0, len(sentences), BLOCK):
        cosines = vectors[begin : begin + BLOCK] @ vectors.T  # (block, sentences)
        cosines[np.arange(len(cosines)), begin + np.arange(len(cosines))] = np.inf  # so that itself comes first
        order = (-cosines).argsort(axis=1)  # (block, sentences)
        ranks = np.stack([generator.integers(1 + low, 1 + high, len(order)) for low, high in NEIGHBOURS], axis=1)
        others = np.take_along_axis(order, ranks, axis=1)  # (block, 3)
        chosen += [(begin + row, other) for row, found in enumerate(others.tolist()) for other in found]
    distinct = list(dict.fromkeys(chosen))
    for number in generator.permutation(len(distinct)):
        first, second = distinct[number]
        yield sentences[first], sentences[second], max(0.0, min(1.0, float(vectors[first] @ vectors[second])))


def taught_pairs(given: Sequence[Pair], pairs: Path, run: Path, seed: int) -> Iterator[tuple[str, str, float]]:
    """Some of the `pairs` that are not `given` ones, with the mean of what both networks of `run` say, from 0 to 5."""
    cross = CrossEncoder.load(run / "cross/latest/model")
    bi = SentenceEncoder.load(run / "bi/latest/model")
    with pairs.open(encoding="utf-8", newline="") as file:
        others = sorted({(first, second) for first, second, _ in csv.reader(file)}.difference(given))
    chosen = [others[row] for row in np.random.default_rng(seed).permutation(len(others))[:TAUGHT_PAIRS]]
    first, second = (bi.encode(list(side)) for side in zip(*chosen, strict=True))
    both = (cross.score(chosen) + pairwise(first, second).clip(0, 1)) / 2  # (pairs,)
    for pair, score in zip(chosen, both.tolist(), strict=True):
        yield *pair, HIGHEST * score


def write(path: Path, rows: Iterator[tuple[str, str, float]]) -> None:
    with whole_file(path) as writing, writing.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.cross_encoder", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--runs", type=Path, required=True, help="where the trainings stand; the same one goes on")
    parser.add_argument("--seed", type=int, default=1, help="of the pairs and the trainings (default 1)")
    options = parser.parse_args()
    require(parser, options.data, STSB, SICK)
    print(machine(), flush=True)
    runs: Path = options.runs.resolve()
    runs.mkdir(parents=True, exist_ok=True)
    given = given_pairs(options.data)
    pairs, taught = (runs / f"{name}-{options.seed}.csv" for name in ("pairs", "taught"))
    if not pairs.exists():
        write(pairs, scored_pairs(SentenceEncoder.load(MINILM), given, options.seed))
    shared = f"vars.data={options.data.resolve()}", f"seed={options.seed}"
    figures = run_recipe(RECIPE, runs, *shared, f"vars.pairs={pairs}")
    run = runs / RECIPE.stem
    write(taught, taught_pairs(given, pairs, run, options.seed))
    model = f"vars.cross={run / 'cross/latest/model'}"
    figures |= run_recipe(TAUGHT, runs, *shared, f"vars.pairs={taught}", model)
    for stage, name in FIGURES.items():
        low, high = (figures[stage][f"{name}_{end}"] for end in ("low", "high"))
        print(f"{stage:12} {figures[stage][name]:.4f} ({low:.4f}–{high:.4f})")
    cross, bi = (figures[stage][FIGURES[stage]] for stage in ("taught", "bi-test"))
    sys.exit(0 if judge([Claim(f"above the bi-encoder's {bi:.4f}", f"{cross:.4f}", cross > bi)]) else 1)


if __name__ == "__main__":
    main()
