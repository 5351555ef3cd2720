"""Continued pretraining here beside transformers' own: held-out loss and tokens a second, over some seeds.

Claim: from the same start (all-MiniLM-L6-v2 and the same fresh head), on the same token sequences in batches of the
same size, by the same schedule, in bf16, the mean held-out loss of masked words is within 0.02 nats of that of
transformers' Trainer with its DataCollatorForLanguageModeling or below it, at 1.5 times its tokens a second.

    python -m benchmarks.pretraining --data DIR
    python -m benchmarks.pretraining --data DIR --documents 60 --seeds 1        to try it out

Masked words alone are learnt, on abstracts and articles packed into sequences of up to 128 tokens. Both models are
scored by one scorer on the same held-out documents with the same masks. The peer has its own defaults for all that is
not said; with --peer-groups its batches are of like lengths, as ours are. A time is that of the training steps alone.
Masked words and next sentences together are trained here beside it, and scored on the same held-out sequences.
"""

import gzip
import os
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

from benchmarks.machine import MINILM, add_data, machine, require
from benchmarks.trainer import train_with_trainer
from bertrelay.fingerprint import Digests
from bertrelay.stage import Metrics, StageContext
from domain.pretraining.corpus import Corpus, build_corpus
from domain.pretraining.items import Items, Text
from domain.pretraining.network import Pretraining, save_network, start_network
from domain.pretraining.sequences import Sequences
from domain.pretraining.settings import Objective, PretrainSettings
from domain.pretraining.train import SEED, HeldOut, draw_items, run

TEXTS = ["text/pubmed-abstracts.jsonl.gz", "text/covid-articles.jsonl.gz"]
SEEDS = [1, 2, 3]
WITHIN_NATS, TIMES_AS_FAST = 0.02, 1.5
SETTINGS: dict[str, Any] = {
    "max_tokens": 128,
    "batch_items": 16,
    "learning_rate": 5e-4,
    "precision": "bf16",
    "keep": "last",
    "held_out_share": 0.1,
}


@dataclass(frozen=True)
class Trained:
    """A model, how long its steps took, how many real tokens they saw, and what the stage said of it."""

    folder: Path
    seconds: float
    tokens: int
    metrics: Metrics

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Bench:
    """What every training of one run of this script shares."""

    options: Namespace
    scratch: Path
    documents: list[Path]

    def settings(self, seed: int, base: str | Path, objectives: list[Objective]) -> PretrainSettings:
        given = {
            "base": str(base),
            "documents": [{"path": str(path)} for path in self.documents],
            "objectives": objectives,
            "seed": seed,
            "epochs": self.options.epochs,
        }
        return PretrainSettings.model_validate({**SETTINGS, **given})

    @property
    def cache(self) -> Path:
        return self.scratch / "cache"

    def start(self, seed: int) -> Path:
        """The folder that every training of this seed starts from: all-MiniLM-L6-v2 with fresh heads."""
        folder = self.scratch / f"start-{seed}"
        if not folder.is_dir():
            save_network(*start_network(self.settings(seed, MINILM, ["mlm", "nsp"]), self.cache), folder)
        return folder

    def corpus(self, settings: PretrainSettings) -> tuple[Corpus, Any]:
        _, tokenizer = start_network(settings, self.cache)
        digests = Digests(None)
        return build_corpus(settings.documents, tokenizer, self.cache, digests, settings.held_out_share), tokenizer


def train_ours(bench: Bench, objectives: list[Objective], seed: int) -> Trained:
    settings = bench.settings(seed, bench.start(seed), objectives)
    folder = bench.scratch / f"ours-{'-'.join(objectives)}-{seed}"
    folder.mkdir()
    metrics = run(settings, StageContext(folder, bench.cache))
    tokens = sum(int(items.lengths.sum()) for items in epochs_of(bench, settings))
    return Trained(folder / "model", cast(float, metrics["train_seconds"]), tokens, metrics)


def epochs_of(bench: Bench, settings: PretrainSettings) -> list[Items]:
    corpus, _ = bench.corpus(settings)
    text = Text(corpus, ~corpus.held_out)
    return [draw_items(text, settings, settings.seed, epoch) for epoch in range(settings.epochs)]


def train_peer(bench: Bench, seed: int) -> Trained:
    """Trains the same sequences with Trainer and its collator."""
    from datasets import Dataset
    from transformers import BertForMaskedLM, DataCollatorForLanguageModeling

    settings = bench.settings(seed, bench.start(seed), ["mlm"])
    corpus, tokenizer = bench.corpus(settings)
    items = epochs_of(bench, settings)[0]
    sequences = Sequences(corpus, tokenizer, settings)
    rows = [sequences.ids(start, count).tolist() for start, count in zip(items.starts, items.tokens, strict=True)]
    model = BertForMaskedLM.from_pretrained(bench.start(seed))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=settings.masking.share)
    learnt, folder = Dataset.from_dict({"input_ids": rows}), bench.scratch / f"peer-{seed}" / "model"
    groups = bench.options.peer_groups
    seconds = train_with_trainer(model, settings, folder.parent, learnt, collator, bf16=True, groups=groups)
    save_network(model, tokenizer, folder)
    return Trained(folder, seconds, sum(map(len, rows)) * settings.epochs, {})


def score(bench: Bench, model: Path) -> Metrics:
    """Masked words on the held-out sequences."""
    settings = bench.settings(0, model, ["mlm"])
    network, _ = start_network(settings, bench.cache)
    corpus, tokenizer = bench.corpus(settings)
    items = draw_items(Text(corpus, corpus.held_out), settings, SEED, 0)
    return HeldOut(items, Sequences(corpus, tokenizer, settings), settings).figures(Pretraining(network, ["mlm"]))


def in_a_process_of_its_own(train: Callable[[int], Trained], seed: int) -> Trained:
    """Accelerate keeps one precision for a process, and neither side finds the other's memory in its way."""
    with ProcessPoolExecutor(1, get_context("spawn"), quiet) as pool:
        return pool.submit(train, seed).result()


def quiet() -> None:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def compare(bench: Bench) -> bool:
    """Trains and scores in turns, prints it all, and tells whether the claim holds."""
    sides = {
        "ours": partial(train_ours, bench, ["mlm"]),
        "peer": partial(train_peer, bench),
        "ours, and next sentences": partial(train_ours, bench, ["mlm", "nsp"]),
    }
    losses: dict[str, list[float]] = {side: [] for side in sides}
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for seed in bench.options.seeds:
        for side, train in sides.items():
            trained = in_a_process_of_its_own(train, seed)
            figures = score(bench, trained.folder)
            losses[side].append(cast(float, figures["mlm_loss"]))
            speeds[side].append(trained.tokens_per_second)
            speed = f"{trained.tokens_per_second:8,.0f} tokens/s  {trained.seconds:6.0f} s"
            print(f"seed {seed}  {side:24}  {_told(figures, trained.metrics)}  {speed}", flush=True)
    for side in sides:
        mean, spread = statistics.mean(losses[side]), statistics.pstdev(losses[side])
        print(f"mean    {side:24}  mlm_loss {mean:.4f} ± {spread:.4f}  {statistics.mean(speeds[side]):8,.0f} tokens/s")
    behind = statistics.mean(losses["ours"]) - statistics.mean(losses["peer"])
    ratio = statistics.mean(speeds["ours"]) / statistics.mean(speeds["peer"])
    print(f"ours − peer: {behind:+.4f} nats; {ratio:.2f} times its tokens/s")
    return behind <= WITHIN_NATS and ratio >= TIMES_AS_FAST


def _told(figures: Metrics, own: Metrics) -> str:
    """The loss on the sequences that all share, and next sentences as the stage itself scored them."""
    loss = f"mlm_loss {_between('mlm_loss', figures)}"
    return f"{loss}  nsp_accuracy {_between('nsp_accuracy', own)}" if "nsp_accuracy" in own else loss


def _between(name: str, figures: Metrics) -> str:
    value, low, high = (figures[f"{name}{ending}"] for ending in ("", "_low", "_high"))
    return f"{value:.4f} ({low:.4f} – {high:.4f})"


def documents_of(options: Namespace, scratch: Path) -> list[Path]:
    """The files, or their first documents."""
    if options.documents is None:
        return [(options.data / name).resolve() for name in TEXTS]
    shorter = []
    for name in TEXTS:
        with gzip.open(options.data / name, "rt", encoding="utf-8") as lines:
            shorter.append(scratch / Path(name).with_suffix("").name)
            shorter[-1].write_text("".join(islice(lines, options.documents)), encoding="utf-8")
    return shorter


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.pretraining", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--peer-groups", action="store_true", help="the peer's batches are of like lengths, too")
    parser.add_argument(
        "--documents", type=int, metavar="N", help="only the first N of each file, to try the script out"
    )
    options = parser.parse_args()
    require(parser, options.data, *TEXTS)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    quiet()
    print(machine())
    print(f"BertRelay beside transformers {version('transformers')}: masked words, from all-MiniLM-L6-v2")
    with tempfile.TemporaryDirectory() as name:
        holds = compare(Bench(options, Path(name), documents_of(options, Path(name))))
    claim = f"within {WITHIN_NATS} nats of the peer or below it, at {TIMES_AS_FAST} times its tokens/s"
    print(f"{claim}: {'yes' if holds else 'no'}")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
