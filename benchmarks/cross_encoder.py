"""A cross-encoder beside a bi-encoder from the same start, all-MiniLM-L6-v2: Spearman on the STS benchmark's test part.

Claim: the cross-encoder is the better of the two. So it is for BERT after NLI (Reimers & Gurevych 2019, table 2). This
start is a bi-encoder already, by a billion pairs, and has never read two sentences together.

    python -m benchmarks.cross_encoder --data DIR --runs RUNS             an hour on 2 cores; goes on where it stopped

So knowledge is handed on, in these stages; the STS benchmark's is the only gold score in any:

1. `imitation`: the cross-encoder learns the start's own cosines: of the pairs in the training parts of the STS
   benchmark and SICK, and of each sentence there with three others, one of the nearest 4, one of the next 36 and one
   of the next 160. Pairs of dev or test parts are left out.
2. `cross`: it learns the STS benchmark's training part.
3. `bi`: the start itself learns the same, as a bi-encoder.
4. `taught`: `cross` learns that part once more, and of 24,000 pairs without a gold score the mean of what `cross` and
   `bi` say. They err in different pairs, so that the mean of both is better than either.

`cross`, `bi` and `taught` keep the weights that are best on the dev part. `gold-alone` is a cross-encoder without
imitation, and `bi-taught` is `bi` after what `taught` has learnt. The interval of the difference is a bootstrap over
pairs. Settings are in `cross-encoder.toml` and `cross-encoder-taught.toml`.
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
from bertrelay.encoder import SentenceEncoder, as_encoder
from bertrelay.files import whole_file
from bertrelay.records import read
from bertrelay.settings import InputFile
from bertrelay.similarity import pairwise, unit
from bertrelay.statistics import Floats, spearman, with_interval
from bertrelay.tables import Table
from teachers.baselines import CrossEncoder
from teachers.evaluation.sts_sets import SCALES

RECIPE = Path(__file__).with_name("cross-encoder.toml")
RECIPE_TAUGHT = Path(__file__).with_name("cross-encoder-taught.toml")
STSB = {part: f"sts/stsb/stsb-en-{part}.csv.gz" for part in ("train", "dev", "test")}
SICK = {part: f"sts/sick/SICK_{part}.txt" for part in ("train", "trial", "test_annotated")}
NEIGHBOURS = ((0, 4), (4, 40), (40, 200))
BLOCK = 1_024
TAUGHT_PAIRS = 24_000
HIGHEST = SCALES["STSb"][1]
FIGURES = {
    "taught": "sts/STSb/spearman_score",
    "bi-test": "sts/STSb/spearman_cosine",
    "cross": "sts/STSb/spearman_score",
    "gold-alone": "sts/STSb/spearman_score",
    "bi-taught-test": "sts/STSb/spearman_cosine",
}
Pair = tuple[str, str]
Row = tuple[str, str, float]


def pairs_of(data: Path, *parts: str) -> list[Pair]:
    """The distinct pairs of these parts of the STS benchmark and SICK."""
    stsb, sick = ([data / files[part] for part in parts if part in files] for files in (STSB, SICK))
    tables = [Table(path=InputFile(path), columns=[0, 1], header=False) for path in stsb]
    tables += [Table(path=InputFile(path), columns=["sentence_A", "sentence_B"], format="tsv") for path in sick]
    records = (record for table in tables for record in read(table, [0, 1]))
    return list(dict.fromkeys((first, second) for first, second in (record.values for record in records)))


def scored_pairs(encoder: SentenceEncoder, given: Sequence[Pair], left_out: Sequence[Pair], seed: int) -> Iterator[Row]:
    """The pairs, and each of their sentences with three others, in random order; with their cosines, at least 0.

    Each pair stands in one order; none of `left_out` is there in either.
    """
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
    distinct = one_order([(sentences[a], sentences[b]) for a, b in chosen], left_out)
    for number in generator.permutation(len(distinct)):
        first, second = distinct[number]
        yield first, second, max(0.0, min(1.0, float(vectors[rows[first]] @ vectors[rows[second]])))


def one_order(pairs: Sequence[Pair], left_out: Sequence[Pair]) -> list[Pair]:
    """Each pair as it stands first, without those that are left out in either order."""
    unwanted, found = set(map(frozenset, left_out)), dict[frozenset[str], Pair]()
    for pair in pairs:
        if (key := frozenset(pair)) not in unwanted:
            found.setdefault(key, pair)
    return list(found.values())


def taught_pairs(cross: CrossEncoder, bi: SentenceEncoder, others: Sequence[Pair], seed: int) -> Iterator[Row]:
    """Some of the pairs, with the mean of what both networks say of them, from 0 to 5."""
    chosen = [others[row] for row in np.random.default_rng(seed).permutation(len(others))[:TAUGHT_PAIRS]]
    both = (cross.score(chosen) + cosines(bi, chosen).clip(0, 1)) / 2  # (pairs,)
    for pair, score in zip(chosen, both.tolist(), strict=True):
        yield *pair, HIGHEST * score


def cosines(encoder: SentenceEncoder, pairs: Sequence[Pair]) -> Floats:
    """(pairs,)"""
    first, second = (encoder.encode(list(side)) for side in zip(*pairs, strict=True))
    return pairwise(first, second)


def write_once(path: Path, rows: Iterator[Row]) -> None:
    """Another number of threads would round scores otherwise, and all that learns from them would begin again."""
    if not path.exists():
        with whole_file(path) as writing, writing.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)


def pairs_in(path: Path) -> list[Pair]:
    with path.open(encoding="utf-8", newline="") as file:
        return [(first, second) for first, second, _ in csv.reader(file)]


def ahead(cross: CrossEncoder, bi: SentenceEncoder, data: Path) -> str:
    """How far the cross-encoder's Spearman on the test part is above the bi-encoder's."""
    table = Table(path=InputFile(data / STSB["test"]), header=False)
    rows = [record.values for record in read(table, [0, 1, 2])]
    pairs, gold = [(first, second) for first, second, _ in rows], np.array([float(score) for *_, score in rows])

    def difference(scores: Floats, others: Floats, gold: Floats) -> float | None:
        one, other = spearman(scores, gold), spearman(others, gold)
        return None if one is None or other is None else one - other

    found = with_interval("difference", difference, cross.score(pairs), cosines(bi, pairs), gold)
    return "{difference:.4f} ({difference_low:.4f}–{difference_high:.4f})".format(**found)


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.cross_encoder", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--runs", type=Path, required=True, help="where the trainings stand; the same one goes on")
    parser.add_argument("--seed", type=int, default=1, help="of the pairs and the trainings (default 1)")
    options = parser.parse_args()
    require(parser, options.data, *STSB.values(), *SICK.values())
    print(machine(), flush=True)
    data, runs = options.data.resolve(), options.runs.resolve() / f"seed-{options.seed}"
    runs.mkdir(parents=True, exist_ok=True)
    shared = f"vars.data={data}", f"seed={options.seed}"

    given, held_out = pairs_of(data, "train"), pairs_of(data, "dev", "test", "trial", "test_annotated")
    pairs = runs / "pairs.csv"
    write_once(pairs, scored_pairs(as_encoder(MINILM), given, held_out, options.seed))
    figures = run_recipe(RECIPE, runs, *shared, f"vars.pairs={pairs}")

    cross, bi = ((runs / RECIPE.stem / stage / "latest").resolve() for stage in ("cross", "bi"))
    taught = runs / f"taught-{cross.name}-{bi.name}.csv"  # by their fingerprints
    others = one_order(pairs_in(pairs), given)
    networks = CrossEncoder.load(cross / "model"), as_encoder(bi / "model")
    write_once(taught, taught_pairs(*networks, others, options.seed))
    models = f"vars.cross={cross / 'model'}", f"vars.bi={bi / 'model'}"
    figures |= run_recipe(RECIPE_TAUGHT, runs, *shared, *models, f"vars.pairs={taught}")

    for stage, name in FIGURES.items():
        low, high = (figures[stage][f"{name}_{end}"] for end in ("low", "high"))
        print(f"{stage:15} {figures[stage][name]:.4f} ({low:.4f}–{high:.4f})")
    best = CrossEncoder.load(runs / RECIPE_TAUGHT.stem / "taught/latest/model")
    print(f"taught is above bi by {ahead(best, networks[1], data)}")
    above, below = (figures[stage][FIGURES[stage]] for stage in ("taught", "bi-test"))
    sys.exit(0 if judge([Claim(f"above the bi-encoder's {below:.4f}", f"{above:.4f}", above > below)]) else 1)


if __name__ == "__main__":
    main()
