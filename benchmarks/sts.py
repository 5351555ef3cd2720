"""The STS metrics of a published model beside scipy's on the vectors that sentence-transformers gives for it.

Claim: for all-MiniLM-L6-v2 in fp32, each Spearman of cosine of the protocol `sts`, of STSb, SICK-R and the subsets of
STS 2013, is to four digits that of scipy on sentence-transformers' vectors of the same pairs.

    python -m benchmarks.sts --data DIR
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.harness import Claim, main
from benchmarks.machine import MINILM
from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.evaluation.encode import Encode
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics, StageContext
from teachers.evaluation.encoders import encoder_at
from teachers.evaluation.sts import StsPairs
from teachers.sbert_paper.official import OfficialFiles
from teachers.sbert_paper.sts_sets import read_sets, set_metrics

SETS = ("STSb", "SICK-R", "STS13")
DIGITS = 4


def by_scipy(sets: Mapping[str, StsPairs], encode: Encode) -> dict[str, float]:
    """Spearman of each subset by scipy alone, named as `set_metrics` names it."""
    from scipy.spatial.distance import cosine
    from scipy.stats import spearmanr

    found = {}
    for name, each in sets.items():
        for subset, pairs in each.by_part().items():
            u, v = (encode(sentences).astype("float64") for sentences in (pairs.first, pairs.second))
            near = [-cosine(a, b) for a, b in zip(u, v, strict=True)]
            metric = "/".join(filter(None, ["sts", name, subset, "spearman_cosine"]))
            found[metric] = float(spearmanr(near, pairs.scores).statistic)
    return found


def claims(ours: Metrics, theirs: Mapping[str, float]) -> Iterator[Claim]:
    for name, expected in theirs.items():
        figure = ours[name]
        holds = figure is not None and abs(figure - expected) < 0.5 * 10**-DIGITS
        shown = "none" if figure is None else f"{figure:.6f}"
        yield Claim(f"{name} to {DIGITS} digits: {expected:.6f}", shown, holds)


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    from sentence_transformers import SentenceTransformer

    folder = ModelSource.parse(MINILM).folder
    assert folder is not None
    with Rejects(None) as rejects:
        context = StageContext(options.scratch, Cache(options.scratch))
        sets = read_sets(OfficialFiles(options.data / "sts"), SETS, context, rejects)
    known = {name: each for name, each in sets.items() if each is not None}
    peer = SentenceTransformer(str(folder))
    theirs = by_scipy(known, lambda sentences: peer.encode(list(sentences), show_progress_bar=False))
    ours = set_metrics(known, encoder_at(folder, "fp32"), intervals=False)
    complete = Claim("sets found", ", ".join(known), len(known) == len(SETS))
    return [*claims(ours, theirs), complete], {"ours": ours, "theirs": theirs}


if __name__ == "__main__":
    main(measure, __doc__, *(f"sts/{name}" for name in ("stsb", "sick", "semeval2013")))
