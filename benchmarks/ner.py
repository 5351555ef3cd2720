"""NER training beside transformers' Trainer: strict F1 over some seeds, and seconds of training.

Claim: on NCBI-disease, from all-MiniLM-L6-v2 with the same fresh head, the same batch size and schedule, mean strict F1
is at most 0.015 below that of Trainer's default (fp32), at 3 times its speed, and at twice that of Trainer with bf16.

    python -m benchmarks.ner --data DIR                                             an hour and more on 2 cores
    python -m benchmarks.ner --data DIR --sentences 100 --epochs 1 --seeds 1        to try it out

All train on the same file alone and keep their last weights. Trainer truncates sentences at 256 tokens and pads each
batch to its longest, in random order (--peer-groups: of like lengths, as ours). A time is that of the training steps.
One scorer counts every gold entity of the test file, tags decoded to legal ones.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.harness import Answer, Claim, at_least, main
from benchmarks.machine import MINILM
from benchmarks.trainer import BF16, DEFAULT, OURS, behind, faster, options_of, train_in_turns, train_with_trainer
from bertrelay.stage import StageContext
from domain.biomedical.ner import evaluate
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.examples import Example, read_examples, types_in
from domain.biomedical.ner.model import EntityModel, save_model, start_model
from domain.biomedical.ner.settings import EntitySource, NerEvaluateSettings, NerSettings
from domain.biomedical.ner.train import run, tag_numbers

TRAIN, TEST = "ner/ncbi-disease/train.tsv", "ner/ncbi-disease/test.tsv"
BELOW, TIMES_DEFAULT, TIMES_BF16 = 0.015, 3, 2
IGNORED = -100


def settings_of(options: Namespace, seed: int) -> NerSettings:
    given = {name: getattr(options, name) for name in ("epochs", "batch_items", "learning_rate")}
    return NerSettings.model_validate({**given, "base": MINILM, "train": [{"path": str(options.train)}], "seed": seed})


def train_ours(options: Namespace, seed: int) -> Answer:
    folder = options.scratch / f"ours-{seed}"
    folder.mkdir()
    metrics = run(settings_of(options, seed), StageContext(folder, options.scratch / "cache"))
    return {"seconds": metrics["train_seconds"], **scored(options, folder / "model")}


def train_peer(options: Namespace, bf16: bool, seed: int) -> Answer:
    """Trains with Trainer from the very weights that ours starts from."""
    from datasets import Dataset
    from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

    settings = settings_of(options, seed)
    examples = read_examples([EntitySource.model_validate({"path": str(options.train)})])
    model = start_model(settings, LabelSet.of_types(types_in(examples)))
    folder = options.scratch / f"peer-{'bf16' if bf16 else 'fp32'}-{seed}"
    save_model(model, folder / "model")
    network = AutoModelForTokenClassification.from_pretrained(folder / "model")
    dataset, collator = Dataset.from_list(rows(model, examples)), DataCollatorForTokenClassification(model.tokenizer)
    groups = options.peer_groups
    seconds = train_with_trainer(network, settings, folder, dataset, collator, bf16=bf16, groups=groups)
    network.save_pretrained(folder / "model")  # beside what else the folder needs
    return {"seconds": seconds, **scored(options, folder / "model")}


def rows(model: EntityModel, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Ids, and tags at the first token of each word, as the examples of transformers make them."""
    made = []
    for example in examples:
        encoded = model.tokenizer(
            list(example.tokens), is_split_into_words=True, truncation=True, max_length=model.max_tokens
        )
        numbers, words = tag_numbers([example], model.labels).tolist(), encoded.word_ids()
        is_first = [word is not None and word != before for word, before in zip(words, [None, *words], strict=False)]
        labels = [numbers[word] if first else IGNORED for word, first in zip(words, is_first, strict=True)]
        made.append({"input_ids": encoded["input_ids"], "labels": labels})
    return made


def scored(options: Namespace, folder: Path) -> Answer:
    settings = NerEvaluateSettings.model_validate({"model": str(folder), "test": [{"path": str(options.test)}]})
    found = evaluate.run(settings, StageContext(folder, options.scratch / "cache"))
    if found["f1"] is None:
        sys.exit("f1: expected entities in the test file or predicted, there are none; raise --sentences")
    return {name: found[name] for name in ("f1", "precision", "recall")}


def claims(answers: dict[str, list[Answer]]) -> list[Claim]:
    below = behind(answers[DEFAULT], answers[OURS], "f1")
    return [
        Claim(f"mean strict F1 at most {BELOW} below {DEFAULT}'s", f"{below:+.4f} below", below <= BELOW),
        at_least(TIMES_DEFAULT, f"{DEFAULT}'s speed", faster(answers[DEFAULT], answers[OURS])),
        at_least(TIMES_BF16, f"that of {BF16}", faster(answers[BF16], answers[OURS])),
    ]


def shortened(file: Path, sentences: int | None, scratch: Path) -> Path:
    """The file, or a file of its first sentences."""
    if sentences is None:
        return file.resolve()
    blocks = file.read_text(encoding="utf-8").split("\n\n")
    (scratch / file.name).write_text("".join(f"{block}\n\n" for block in islice(blocks, sentences)), encoding="utf-8")
    return scratch / file.name


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    files = (options.data / TRAIN, options.data / TEST)
    options.train, options.test = (shortened(file, options.sentences, options.scratch) for file in files)
    works = {
        OURS: partial(train_ours, options),
        DEFAULT: partial(train_peer, options, False),
        BF16: partial(train_peer, options, True),
    }
    answers = train_in_turns(works, options, ["f1"])
    return claims(answers) if len(answers) == len(works) else [], {"trainings": answers}


if __name__ == "__main__":
    main(
        measure,
        __doc__,
        TRAIN,
        TEST,
        **options_of([OURS, DEFAULT, BF16]),
        epochs=3,
        batch_items=32,
        learning_rate=3e-4,
        sentences=int,
    )
