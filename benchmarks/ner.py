"""NER training beside transformers' Trainer: strict F1 over some seeds, and seconds of training.

Claim: on NCBI-disease, from all-MiniLM-L6-v2 with the same fresh head, the same batch size and schedule, mean strict F1
is at most 0.015 below that of Trainer's default (fp32), at 3 times its speed, and at twice that of Trainer with bf16.

    python -m benchmarks.ner --data DIR                                             an hour and more on 2 cores
    python -m benchmarks.ner --data DIR --sentences 100 --epochs 1 --seeds 1        to try it out

All train on the same file alone and keep their last weights. Trainer truncates sentences at 256 tokens and pads each
batch to its longest, in random order. A time is that of the training steps. One scorer counts every gold entity of the
test file, tags decoded to legal ones.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import trainer
from benchmarks.harness import OURS, Answer, Claim, main
from benchmarks.machine import MINILM
from bertrelay.cache import Cache
from bertrelay.stage import StageContext
from domain.biomedical.ner import evaluate
from domain.biomedical.ner.data import Example, read_examples, types_in
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.model import EntityModel, save_model, start_model
from domain.biomedical.ner.settings import NerEvaluateSettings, NerSettings
from domain.biomedical.ner.train import run, tag_numbers

SETTINGS = {"base": MINILM, "batch_items": 32, "learning_rate": 3e-4}
FILES = ("ner/ncbi-disease/train.tsv", "ner/ncbi-disease/test.tsv")


def train(options: Namespace, name: str, seed: int, folder: Path) -> Answer:
    file, test = (trainer.beginning(options.data / path, options.sentences, folder, end="\n\n") for path in FILES)
    given = {**SETTINGS, "train": [{"path": str(file)}], "seed": seed, "epochs": options.epochs}
    settings = NerSettings.model_validate(given)
    context = StageContext(folder, Cache(options.scratch / "cache"))
    if name == OURS:
        seconds = run(settings, context)["train_seconds"]
    else:
        seconds = train_peer(settings, folder, name == trainer.BF16)
    tested = {"model": str(folder / "model"), "test": [{"path": str(test)}]}
    metrics = evaluate.run(NerEvaluateSettings.model_validate(tested), context)
    if metrics["f1"] is None:
        sys.exit("f1: expected entities in the test file or predicted, there are none; raise --sentences")
    return {"seconds": seconds, **{metric: metrics[metric] for metric in ("f1", "precision", "recall")}}


def train_peer(settings: NerSettings, folder: Path, bf16: bool) -> float:
    """Trains with Trainer from the very weights that ours starts from."""
    from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

    examples = read_examples(settings.train)
    model = start_model(settings, LabelSet.of_types(types_in(examples)))
    save_model(model, folder / "model")
    made, collator = rows(model, examples), DataCollatorForTokenClassification(model.tokenizer)
    return trainer.train_with_trainer(AutoModelForTokenClassification, settings, folder, made, collator, bf16=bf16)


def rows(model: EntityModel, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Ids, and tags at the first token of each word, as the examples of transformers make them."""
    made = []
    for example in examples:
        encoded = model.tokenizer(
            list(example.tokens), is_split_into_words=True, truncation=True, max_length=model.max_tokens
        )
        numbers, words = tag_numbers([example], model.labels).tolist(), encoded.word_ids()
        is_first = [word is not None and word != before for word, before in zip(words, [None, *words], strict=False)]
        labels = [numbers[word] if first else -100 for word, first in zip(words, is_first, strict=True)]  # -100: none
        made.append({"input_ids": encoded["input_ids"], "labels": labels})
    return made


def claims(results: trainer.Results) -> list[Claim]:
    return [
        trainer.as_good(results, trainer.DEFAULT, "f1", 0.015),
        trainer.as_fast(results, trainer.DEFAULT, 3),
        trainer.as_fast(results, trainer.BF16, 2),
    ]


if __name__ == "__main__":
    measure = partial(trainer.train_in_turns, train, claims, ["f1"])
    names = [OURS, trainer.DEFAULT, trainer.BF16]
    main(measure, __doc__, *FILES, seeds=[1, 2, 3], contenders=names, epochs=3, sentences=int)
