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
from argparse import Namespace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

from benchmarks.harness import Answer, Claim, Spread, at_least, main
from benchmarks.machine import MINILM
from benchmarks.trainer import OURS, behind, options_of, train_in_turns, train_with_trainer
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


def settings_of(options: Namespace, seed: int, base: str | Path, objectives: list[Objective]) -> PretrainSettings:
    documents = [{"path": str(path)} for path in options.files]
    given = {"base": str(base), "documents": documents, "objectives": objectives, "seed": seed}
    return PretrainSettings.model_validate({**SETTINGS, **given, "epochs": options.epochs})


def start_of(options: Namespace, seed: int) -> Path:
    """The folder that every training of this seed starts from: all-MiniLM-L6-v2 with fresh heads."""
    folder: Path = options.scratch / f"start-{seed}"
    if not folder.is_dir():
        settings = settings_of(options, seed, MINILM, ["mlm", "nsp"])
        save_network(*start_network(settings, options.scratch / "cache"), folder)
    return folder


def corpus_of(options: Namespace, settings: PretrainSettings) -> tuple[Corpus, Any]:
    cache = options.scratch / "cache"
    _, tokenizer = start_network(settings, cache)
    return build_corpus(settings.documents, tokenizer, cache, Digests(None), settings.held_out_share), tokenizer


def epochs_of(options: Namespace, settings: PretrainSettings) -> list[Items]:
    corpus, _ = corpus_of(options, settings)
    text = Text(corpus, ~corpus.held_out)
    return [draw_items(text, settings, settings.seed, epoch) for epoch in range(settings.epochs)]


def train_ours(options: Namespace, objectives: list[Objective], seed: int) -> Answer:
    settings = settings_of(options, seed, start_of(options, seed), objectives)
    folder = options.scratch / f"ours-{'-'.join(objectives)}-{seed}"
    folder.mkdir()
    metrics = run(settings, StageContext(folder, options.scratch / "cache"))
    tokens = sum(int(items.lengths.sum()) for items in epochs_of(options, settings))
    return scored(options, folder / "model", cast(float, metrics["train_seconds"]), tokens)


def train_peer(options: Namespace, seed: int) -> Answer:
    """Trains the same sequences with Trainer and its collator."""
    from datasets import Dataset
    from transformers import BertForMaskedLM, DataCollatorForLanguageModeling

    settings = settings_of(options, seed, start_of(options, seed), ["mlm"])
    corpus, tokenizer = corpus_of(options, settings)
    items, sequences = epochs_of(options, settings)[0], Sequences(corpus, tokenizer, settings)
    rows = [sequences.ids(begin, count).tolist() for begin, count in zip(items.starts, items.tokens, strict=True)]
    model = BertForMaskedLM.from_pretrained(start_of(options, seed))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=settings.masking.share)
    dataset, folder = Dataset.from_dict({"input_ids": rows}), options.scratch / f"peer-{seed}" / "model"
    peer = {"bf16": True, "groups": options.peer_groups}
    seconds = train_with_trainer(model, settings, folder.parent, dataset, collator, **peer)
    save_network(model, tokenizer, folder)
    return scored(options, folder, seconds, sum(map(len, rows)) * settings.epochs)


def scored(options: Namespace, model: Path, seconds: float, tokens: int) -> Answer:
    """MLM on the held-out sequences."""
    settings = settings_of(options, 0, model, ["mlm"])
    network, _ = start_network(settings, options.scratch / "cache")
    corpus, tokenizer = corpus_of(options, settings)
    items = draw_items(Text(corpus, corpus.held_out), settings, SEED, 0)
    metrics = HeldOut(items, Sequences(corpus, tokenizer, settings), settings).metrics(Pretraining(network, ["mlm"]))
    return {**metrics, "seconds": seconds, "tokens_per_second": tokens / seconds}


def documents_of(options: Namespace) -> list[Path]:
    """The files, or their first documents."""
    if options.documents is None:
        return [(options.data / name).resolve() for name in TEXTS]
    shorter = []
    for name in TEXTS:
        with gzip.open(options.data / name, "rt", encoding="utf-8") as lines:
            shorter.append(options.scratch / Path(name).with_suffix("").name)
            shorter[-1].write_text("".join(islice(lines, options.documents)), encoding="utf-8")
    return shorter


def claims(answers: dict[str, list[Answer]]) -> list[Claim]:
    above = -behind(answers[PEER], answers[OURS], "mlm_loss")
    rates = {name: [each["tokens_per_second"] for each in found] for name, found in answers.items()}
    return [
        Claim(f"MLM loss at most {WITHIN_NATS} nats above the peer's", f"{above:+.4f} nats", above <= WITHIN_NATS),
        at_least(TIMES_AS_FAST, "its tokens/s", Spread.of_ratios(rates[OURS], rates[PEER])),
    ]


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    options.files = documents_of(options)
    works = {
        OURS: partial(train_ours, options, ["mlm"]),
        PEER: partial(train_peer, options),
        WITH_NSP: partial(train_ours, options, ["mlm", "nsp"]),
    }
    answers = train_in_turns(works, options, ["mlm_loss", "tokens_per_second"])
    return claims(answers) if {OURS, PEER} <= answers.keys() else [], {"trainings": answers}


if __name__ == "__main__":
    main(measure, __doc__, *TEXTS, **options_of([OURS, PEER, WITH_NSP]), epochs=1, documents=int)
