"""A cross-encoder beside a bi-encoder from the same start, all-MiniLM-L6-v2: Spearman on the STS benchmark's test part.

Claim: the cross-encoder is the better of the two. So it is for a BERT that is neither yet (Reimers & Gurevych 2019,
table 2); this start is a bi-encoder already, by a billion pairs, and has never read two sentences together.

    python -m benchmarks.cross_encoder --data DIR --runs RUNS         about an hour on 2 cores; goes on where it stopped

So the cross-encoder first learns the start's own cosines, which takes no gold score: of the pairs in the training parts
of the STS benchmark and SICK, and of each sentence there with three others, one of the nearest 4, one of the next 36
and one of the next 160. Then both learn the STS benchmark's training part and keep their best weights on its dev part.
A cross-encoder that learns from gold scores alone stands beside them. Settings are in `cross-encoder.toml`.
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
from bertrelay.records import read
from bertrelay.settings import InputFile
from bertrelay.similarity import unit
from bertrelay.tables import Table

RECIPE = Path(__file__).with_name("cross-encoder.toml")
STSB, SICK = "sts/stsb/stsb-en-train.csv.gz", "sts/sick/SICK_train.txt"
NEIGHBOURS = ((0, 4), (4, 40), (40, 200))
BLOCK = 1_024
FIGURES = {
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


def write_pairs(path: Path, data: Path, seed: int) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(scored_pairs(SentenceEncoder.load(MINILM), given_pairs(data), seed))


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.cross_encoder", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--runs", type=Path, required=True, help="where the trainings stand; the same one goes on")
    parser.add_argument("--seed", type=int, default=1, help="of the pairs and the trainings (default 1)")
    options = parser.parse_args()
    require(parser, options.data, STSB, SICK)
    print(machine(), flush=True)
    options.runs.mkdir(parents=True, exist_ok=True)
    pairs = options.runs / f"pairs-{options.seed}.csv"
    if not pairs.exists():
        write_pairs(pairs, options.data, options.seed)
    changes = f"vars.data={options.data.resolve()}", f"vars.pairs={pairs.resolve()}", f"seed={options.seed}"
    figures = run_recipe(RECIPE, options.runs, *changes)
    for stage, name in FIGURES.items():
        low, high = (figures[stage][f"{name}_{end}"] for end in ("low", "high"))
        print(f"{stage:12} {figures[stage][name]:.4f} ({low:.4f}–{high:.4f})")
    cross, bi = (figures[stage][FIGURES[stage]] for stage in ("cross", "bi-test"))
    sys.exit(0 if judge([Claim(f"above the bi-encoder's {bi:.4f}", f"{cross:.4f}", cross > bi)]) else 1)


if __name__ == "__main__":
    main()
