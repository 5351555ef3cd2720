"""The STS figures of a published model beside scipy's on the vectors that sentence-transformers gives for it.

Claim: for all-MiniLM-L6-v2 in fp32, each Spearman of cosine of the protocol `sts`, of STSb, SICK-R and the subsets of
STS 2013, is to four digits that of scipy on sentence-transformers' vectors of the same pairs.

    python -m benchmarks.sts --data DIR
"""

import os
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.machine import MINILM, add_data, machine, require
from bertrelay.data.records import Rejects
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics, StageContext
from teachers.baselines.encoders import encoder_at
from teachers.evaluation.official import OfficialFiles
from teachers.evaluation.sts import Encode
from teachers.evaluation.sts_sets import StsSet, read_sets, set_metrics

SETS = ("STSb", "SICK-R", "STS13")
MAIN = "spearman_cosine"
DIGITS = 4


def read(data: Path, scratch: Path) -> dict[str, StsSet]:
    with Rejects(None) as rejects:
        found = read_sets(OfficialFiles(data), SETS, StageContext(scratch, scratch), rejects)
    return {name: each for name, each in found.items() if each is not None}


def by_scipy(sets: Mapping[str, StsSet], encode: Encode) -> dict[str, float]:
    """Spearman of each subset by scipy alone, named as `set_metrics` names it."""
    from scipy.spatial.distance import cosine
    from scipy.stats import spearmanr

    found = {}
    for name, each in sets.items():
        for subset, pairs in each.subsets.items():
            u, v = (encode(side).astype("float64") for side in (pairs.first, pairs.second))
            near = [-cosine(a, b) for a, b in zip(u, v, strict=True)]
            place = "/".join(filter(None, ["sts", name, subset, MAIN]))
            found[place] = float(spearmanr(near, pairs.scores).statistic)
    return found


def differing(ours: Metrics, theirs: Mapping[str, float]) -> Iterator[str]:
    """The names of the figures that are not the same to four digits; prints them all."""
    for name, expected in theirs.items():
        figure = ours[name]
        shown = "none" if figure is None else f"{figure:.6f}"
        print(f"{name:40} ours {shown}  scipy and sentence-transformers {expected:.6f}")
        if figure is None or abs(figure - expected) >= 0.5 * 10**-DIGITS:
            yield name


def peer(model: Path) -> Encode:
    from sentence_transformers import SentenceTransformer

    network = SentenceTransformer(str(model), device="cpu")
    return lambda sentences: network.encode(list(sentences), show_progress_bar=False)


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.sts", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    options = parser.parse_args()
    require(parser, options.data, "sts")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print(machine())
    folder = ModelSource.parse(MINILM).folder
    assert folder is not None
    with tempfile.TemporaryDirectory() as scratch:
        sets = read(options.data / "sts", Path(scratch))
    began = time.perf_counter()
    ours = set_metrics(sets, encoder_at(folder, "fp32"), intervals=False)
    between = time.perf_counter()
    others = list(differing(ours, by_scipy(sets, peer(folder))))
    print(f"ours {between - began:.1f} s, the peer {time.perf_counter() - between:.1f} s")
    print(f"all of {', '.join(SETS)} to {DIGITS} digits: {'no' if others or len(sets) < len(SETS) else 'yes'}")
    sys.exit(1 if others or len(sets) < len(SETS) else 0)


if __name__ == "__main__":
    main()
