"""Continued pretraining beside transformers: held-out loss and tokens a second, over some seeds.

Claim: from the same start (all-MiniLM-L6-v2 with the same fresh head), on the same token sequences, batch size and
schedule, in bf16, the mean held-out MLM loss is within 0.02 nats of that of transformers' Trainer with its
DataCollatorForLanguageModeling or below it, at 1.5 times its tokens a second.

    python -m benchmarks.pretraining --data DIR
    python -m benchmarks.pretraining --data DIR --documents 60 --seeds 1        to try it out

Abstracts and articles are packed into sequences of up to 128 tokens. One scorer, the same held-out documents and masks.
The peer has its own defaults for all else; with --peer-groups its batches are of like lengths, as ours are. A time is
that of the training steps. `ours-nsp` trains next sentences as well, and is in no claim.
"""

import gzip
import tempfile
from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

from benchmarks.harness import Answer, Claim, Spread, at_least, finish, parser_of, start
from benchmarks.machine import MINILM
from benchmarks.trainer import OURS, add_options, behind, train_in_turns, train_with_trainer
from bertrelay.fingerprint import Digests
from bertrelay.stage import StageContext
from domain.pretraining.corpus import Corpus, build_corpus
from domain.pretraining.items import Items, Text
from domain.pretraining.network import Pretraining, save_network, start_network
from domain.pretraining.sequences import Sequences
from domain.pretraining.settings import Objective, PretrainSettings
from domain.pretraining.train import SEED, HeldOut, draw_items, run

TEXTS = ["text/pubmed-abstracts.jsonl.gz", "text/covid-articles.jsonl.gz"]
PEER, WITH_NSP = "peer", "ours-nsp"
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
class Bench:
    """What every training of one run of this script shares."""

    options: Namespace
    scratch: Path
    documents: list[Path]

    def settings(self, seed: int, base: str | Path, objectives: list[Objective]) -> PretrainSettings:
        documents = [{"path": str(path)} for path in self.documents]
        given = {"base": str(base), "documents": documents, "objectives": objectives, "seed": seed}
        return PretrainSettings.model_validate({**SETTINGS, **given, "epochs": self.options.epochs})

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

    def epochs(self, settings: PretrainSettings) -> list[Items]:
        corpus, _ = self.corpus(settings)
        text = Text(corpus, ~corpus.held_out)
        return [draw_items(text, settings, settings.seed, epoch) for epoch in range(settings.epochs)]


def train_ours(bench: Bench, objectives: list[Objective], seed: int) -> Answer:
    settings = bench.settings(seed, bench.start(seed), objectives)
    folder = bench.scratch / f"ours-{'-'.join(objectives)}-{seed}"
    folder.mkdir()
    metrics = run(settings, StageContext(folder, bench.cache))
    tokens = sum(int(items.lengths.sum()) for items in bench.epochs(settings))
    return scored(bench, folder / "model", cast(float, metrics["train_seconds"]), tokens)


def train_peer(bench: Bench, seed: int) -> Answer:
    """Trains the same sequences with Trainer and its collator."""
    from datasets import Dataset
    from transformers import BertForMaskedLM, DataCollatorForLanguageModeling

    settings = bench.settings(seed, bench.start(seed), ["mlm"])
    corpus, tokenizer = bench.corpus(settings)
    items, sequences = bench.epochs(settings)[0], Sequences(corpus, tokenizer, settings)
    rows = [sequences.ids(begin, count).tolist() for begin, count in zip(items.starts, items.tokens, strict=True)]
    model = BertForMaskedLM.from_pretrained(bench.start(seed))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=settings.masking.share)
    dataset, folder = Dataset.from_dict({"input_ids": rows}), bench.scratch / f"peer-{seed}" / "model"
    groups = bench.options.peer_groups
    seconds = train_with_trainer(model, settings, folder.parent, dataset, collator, bf16=True, groups=groups)
    save_network(model, tokenizer, folder)
    return scored(bench, folder, seconds, sum(map(len, rows)) * settings.epochs)


def scored(bench: Bench, model: Path, seconds: float, tokens: int) -> Answer:
    """MLM on the held-out sequences."""
    settings = bench.settings(0, model, ["mlm"])
    network, _ = start_network(settings, bench.cache)
    corpus, tokenizer = bench.corpus(settings)
    items = draw_items(Text(corpus, corpus.held_out), settings, SEED, 0)
    metrics = HeldOut(items, Sequences(corpus, tokenizer, settings), settings).metrics(Pretraining(network, ["mlm"]))
    return {**metrics, "seconds": seconds, "tokens_per_second": tokens / seconds}


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


def claims(answers: dict[str, list[Answer]]) -> list[Claim]:
    above = -behind(answers[PEER], answers[OURS], "mlm_loss")
    rates = {name: [each["tokens_per_second"] for each in found] for name, found in answers.items()}
    return [
        Claim(f"MLM loss at most {WITHIN_NATS} nats above the peer's", f"{above:+.4f} nats", above <= WITHIN_NATS),
        at_least(TIMES_AS_FAST, "its tokens/s", Spread.of_ratios(rates[OURS], rates[PEER])),
    ]


def main() -> None:
    parser = parser_of(__doc__, "pretraining")
    names = [OURS, PEER, WITH_NSP]
    add_options(parser, names, names)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--documents", type=int, metavar="N", help="only the first N of each file, to try it out")
    options = start(parser, *TEXTS)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(options, Path(scratch), documents_of(options, Path(scratch)))
        works = {
            OURS: partial(train_ours, bench, ["mlm"]),
            PEER: partial(train_peer, bench),
            WITH_NSP: partial(train_ours, bench, ["mlm", "nsp"]),
        }
        answers = train_in_turns(works, options, ["mlm_loss", "tokens_per_second"])
    finish(options, claims(answers) if {OURS, PEER} <= answers.keys() else [], trainings=answers)


if __name__ == "__main__":
    main()
