"""Bitext mining by a student, between two corpora with a list of the pairs that translate each other."""

from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.stage import Metrics, StageContext
from students.mining.bitext import mine_files
from students.mining.settings import MiningTest


def mining_metrics(
    name: str,
    test: MiningTest,
    model: SentenceEncoder,
    context: StageContext,
    precision: ComputePrecision,
    max_rejects: float,
) -> Metrics:
    """`mining_f1/<name>/train` and `/test` with 95 % intervals, precision, recall, `mining_sentences` (the number of
    sources) and `mining_threshold/<name>`.

    The pairs go to `mined/<name>.train.tsv` and `.test.tsv`. The threshold is chosen on train, and used on test.
    """
    folder = context.output / "mined"
    folder.mkdir(exist_ok=True)
    metrics: Metrics = {}
    threshold = None
    for part, files in (("train", test.train), ("test", test.test)):
        output = folder / f"{name}.{part}.tsv"
        mining = mine_files(
            model,
            files.source,
            files.target,
            output,
            gold=files.gold,
            id_column=test.id_column,
            work=context.work / f"mining-{name}-{part}",
            cache=context.cache,
            rejects=Rejects(output.with_suffix(".rejects.jsonl"), max_rejects, keep_empty=False),
            threshold=threshold,
            precision=precision,
            overwrite=True,
        )
        threshold = mining.threshold
        f1 = f"mining_f1/{name}/{part}"
        metrics[f"mining_sentences/{name}/{part}"] = mining.sources
        metrics |= {f1: mining.f1, f"{f1}_low": mining.f1_low, f"{f1}_high": mining.f1_high}
        metrics |= {f"mining_precision/{name}/{part}": mining.precision, f"mining_recall/{name}/{part}": mining.recall}
    return {**metrics, f"mining_threshold/{name}": threshold}
