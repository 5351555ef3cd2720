"""Continued pretraining beside transformers: held-out loss and tokens a second, over some seeds.

Claim: from the same start (all-MiniLM-L6-v2 with the same fresh head), on the same token sequences, batch size and
schedule, in bf16, the mean held-out MLM loss is within 0.02 nats of that of transformers' Trainer with its
DataCollatorForLanguageModeling or below it, at 1.5 times its tokens a second.

    python -m benchmarks.pretraining --data DIR
    python -m benchmarks.pretraining --data DIR --documents 60 --seeds 1        to try it out

Abstracts and articles are packed into sequences of up to 128 tokens. One scorer, the same held-out documents and masks.
The peer has its own defaults for all else. A time is that of the training steps.
"""

import shutil
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any, cast

from benchmarks import trainer
from benchmarks.harness import OURS, Answer, Claim, Spread, at_least, main
from benchmarks.machine import MINILM
from bertrelay.cache import Cache
from bertrelay.device import ComputePrecision
from bertrelay.fingerprint import Digests
from bertrelay.model.network import save_network
from bertrelay.stage import StageContext
from domain.pretraining.corpus import build_corpus
from domain.pretraining.masking import Sequences
from domain.pretraining.network import Pretraining, start_network
from domain.pretraining.pairs import Text
from domain.pretraining.settings import PretrainSettings
from domain.pretraining.train import SEED, HeldOut, draw_items, run

TEXTS = ["text/pubmed-abstracts.jsonl.gz", "text/covid-articles.jsonl.gz"]
PEER, RATE = "peer", "tokens_per_second"
SETTINGS: dict[str, Any] = {
    "max_tokens": 128,
    "batch_items": 16,
    "learning_rate": 5e-4,
    "precision": "bf16",
    "keep": "last",
    "held_out_share": 0.1,
    "objectives": ["mlm"],
}


def train(options: Namespace, name: str, seed: int, folder: Path) -> Answer:
    """Trains from all-MiniLM-L6-v2 with a fresh head, the same for both contenders of a seed."""
    documents = [{"path": str(trainer.beginning(options.data / text, options.documents, folder))} for text in TEXTS]
    given = {**SETTINGS, "documents": documents, "seed": seed, "epochs": options.epochs}
    head = PretrainSettings.model_validate({**given, "base": MINILM})
    network, tokenizer = start_network(head, Cache(folder / "cache"))
    save_network(network, tokenizer, folder / "start")

    settings = PretrainSettings.model_validate({**given, "base": str(folder / "start")})
    corpus = build_corpus(
        settings.documents, tokenizer, Cache(folder / "cache"), Digests(None), settings.held_out_share
    )
    sequences = Sequences(corpus, tokenizer, settings)
    epochs = [draw_items(Text(corpus, ~corpus.held_out), settings, seed, epoch) for epoch in range(options.epochs)]
    if name == PEER:
        epochs = epochs[:1] * options.epochs
        places = zip(epochs[0].starts, epochs[0].tokens, strict=True)
        rows = [{"input_ids": sequences.ids(begin, count).tolist()} for begin, count in places]
        seconds = train_peer(settings, folder, tokenizer, rows)
    else:
        seconds = cast(float, run(settings, StageContext(folder, Cache(folder / "cache")))["train_seconds"])

    tested = PretrainSettings.model_validate({**given, "base": str(folder / "model"), "seed": 0})
    items = draw_items(Text(corpus, corpus.held_out), tested, SEED, 0)
    trained = Pretraining(start_network(tested, Cache(folder / "cache"))[0], ["mlm"])
    metrics = HeldOut(items, sequences, tested, ComputePrecision(tested.precision)).metrics(trained)
    return {**metrics, "seconds": seconds, RATE: sum(int(drawn.lengths.sum()) for drawn in epochs) / seconds}


def train_peer(settings: PretrainSettings, folder: Path, tokenizer: Any, rows: list[dict[str, Any]]) -> float:
    """The same sequences with Trainer and its collator."""
    from transformers import BertForMaskedLM, DataCollatorForLanguageModeling

    shutil.copytree(folder / "start", folder / "model")
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=settings.masking.share)
    return trainer.train_with_trainer(BertForMaskedLM, settings, folder, rows, collator, bf16=True)


def claims(results: trainer.Results) -> list[Claim]:
    rates = Spread.of_ratios(results[OURS].values(RATE), results[PEER].values(RATE))
    return [
        trainer.as_good(results, PEER, "mlm_loss", 0.02, low_is_good=True),
        at_least(1.5, f"{PEER}'s tokens/s", rates),
    ]


if __name__ == "__main__":
    measure = partial(trainer.train_in_turns, train, claims, ["mlm_loss", RATE])
    main(measure, __doc__, *TEXTS, seeds=[1, 2, 3], contenders=[OURS, PEER], epochs=1, documents=int)
