"""Learning to find entities, here beside transformers' Trainer: strict F1 over some seeds, and seconds an epoch.

Claim: on NCBI-disease, from all-MiniLM-L6-v2 under the same fresh head, in batches of as many sentences, by the same
schedule, mean strict F1 is at most 0.015 below that of Trainer as it comes (fp32), at 3 times its speed, and at twice
the speed of Trainer with bf16.

    python -m benchmarks.ner --data DIR                                             an hour and more on 2 cores
    python -m benchmarks.ner --data DIR --sentences 100 --epochs 1 --seeds 1        to try it out

All learn from the same training file alone and keep their last weights. Trainer cuts sentences at 256 pieces and pads
each batch to its longest sentence, in random order; with --peer-groups its batches are of like lengths, as ours are. A
time is that of the training steps alone. Every model is scored by one scorer on every gold entity of the test file,
decoded to legal tags; for Trainer's the score of the best tag of each word by itself stands beside it, as its users
compute it. Sides train in turns, each in a process of its own; ratios are of times of the same seed. In parts:
`benchmarks.trainer`; the claims are judged once all sides are there.
"""

import os
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Answer, Claim, Spread, at_least, judge
from benchmarks.machine import MINILM, add_data, machine, require
from benchmarks.trainer import BF16, DEFAULT, OURS, add_parts, quiet, train_in_turns, train_with_trainer
from bertrelay.stage import StageContext
from domain.biomedical.documents.tokens import TokenSpan, tags_of
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.examples import Example, read_examples, types_in
from domain.biomedical.ner.metrics import Tags, count_entities, entity_figures, strict_spans
from domain.biomedical.ner.model import EntityModel, load_model, save_model, start_model
from domain.biomedical.ner.settings import EntitySource, NerSettings
from domain.biomedical.ner.tagger import decode, predict_blocks
from domain.biomedical.ner.train import run, tag_numbers

TRAIN, TEST = "ner/ncbi-disease/train.tsv", "ner/ncbi-disease/test.tsv"
BELOW, TIMES_DEFAULT, TIMES_BF16 = 0.015, 3, 2
IGNORED = -100


@dataclass(frozen=True)
class Bench:
    """What every training of one run of this script shares."""

    options: Namespace
    scratch: Path
    train: Path
    test: Path

    def settings(self, seed: int) -> NerSettings:
        options = self.options
        return NerSettings.model_validate(
            {
                "base": MINILM,
                "train": [{"path": str(self.train)}],
                "seed": seed,
                "epochs": options.epochs,
                "batch_items": options.batch_items,
                "learning_rate": options.learning_rate,
            }
        )

    def examples(self, file: Path) -> list[Example]:
        return read_examples([EntitySource.model_validate({"path": str(file)})])


def train_ours(bench: Bench, seed: int) -> Answer:
    settings = bench.settings(seed)
    folder = bench.scratch / f"ours-{seed}"
    folder.mkdir()
    metrics = run(settings, StageContext(folder, bench.scratch / "cache"))
    return {"seconds": metrics["train_seconds"], **scored(bench, folder / "model")}


def train_peer(bench: Bench, bf16: bool, seed: int) -> Answer:
    """Trains with Trainer from the very weights that ours starts from."""
    from datasets import Dataset
    from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

    settings, examples = bench.settings(seed), bench.examples(bench.train)
    start = start_model(MINILM, LabelSet.of_types(types_in(examples)), seed=seed)
    folder = bench.scratch / f"peer-{'bf16' if bf16 else 'fp32'}-{seed}"
    save_model(start, folder / "start")
    network = AutoModelForTokenClassification.from_pretrained(folder / "start")
    learnt, collator = Dataset.from_list(rows(start, examples)), DataCollatorForTokenClassification(start.tokenizer)
    groups = bench.options.peer_groups
    seconds = train_with_trainer(network, settings, folder, learnt, collator, bf16=bf16, groups=groups)
    network.save_pretrained(folder / "start")  # beside what else the folder needs
    return {"seconds": seconds, **scored(bench, folder / "start")}


def rows(model: EntityModel, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Ids, and tags at the first piece of each word, as the examples of transformers make them."""
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


def scored(bench: Bench, folder: Path) -> Answer:
    """Strict F1 on the test file: of the best legal tags, and of each word's best tag by itself."""
    model, examples = load_model(folder), bench.examples(bench.test)
    legal: list[Tags] = []
    alone: list[Tags] = []
    for block, emissions in predict_blocks(model, [example.tokens for example in examples]):
        lengths = np.array([len(words) for words in block])
        spans = decode(model, emissions, lengths).token_spans()
        legal += [tags_of(found, len(words)) for found, words in zip(spans, block, strict=True)]
        names = [model.labels.tags[number] for number in emissions.argmax(axis=1)]
        ends = np.cumsum(lengths)
        alone += [names[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return {"f1": f1(examples, legal, model), "f1_alone": f1(examples, alone, model)}


def f1(examples: Sequence[Example], tags: Sequence[Tags], model: EntityModel) -> float:
    gold = [strict_spans(example.tags) for example in examples]
    found: list[list[TokenSpan]] = [strict_spans(each) for each in tags]
    types = model.labels.types
    counts = count_entities(gold, [each.beyond for each in examples], found, np.arange(len(gold)), types)
    found_f1 = entity_figures(counts, types, intervals=False)["f1"]
    if found_f1 is None:
        sys.exit("f1: expected entities in the test file or found in it, there are none; raise --sentences")
    return found_f1


def compare(bench: Bench) -> bool:
    """Trains in turns, prints all figures, and tells whether the claims hold; without all sides there are none."""
    options, epochs = bench.options, bench.options.epochs
    sides = {
        OURS: partial(train_ours, bench),
        DEFAULT: partial(train_peer, bench, False),
        BF16: partial(train_peer, bench, True),
    }
    about = {name: getattr(options, name) for name in ("epochs", "batch_items", "learning_rate", "sentences")}
    answers = train_in_turns(
        sides, options, about, lambda answer: f"strict F1 {answer['f1']:.4f}, {answer['seconds']:,.0f} s"
    )
    for name, told in answers.items():
        mean, alone = (statistics.mean(each[key] for each in told) for key in ("f1", "f1_alone"))
        spread = statistics.pstdev(each["f1"] for each in told)
        pace = Spread.of(each["seconds"] / epochs for each in told).told(0)
        print(f"{name:14}  strict F1 {mean:.4f} ± {spread:.4f}, not decoded {alone:.4f}  {pace} s an epoch")
    return judge(claims(answers)) if len(answers) == len(sides) else True


def claims(answers: dict[str, list[Answer]]) -> list[Claim]:
    """What is claimed of ours beside Trainer as it comes, and with bf16."""
    seconds = {name: [each["seconds"] for each in told] for name, told in answers.items()}
    pairs = list(zip(answers[DEFAULT], answers[OURS], strict=True))
    behind = statistics.mean(peer["f1"] - ours["f1"] for peer, ours in pairs)
    return [
        Claim(f"mean strict F1 at most {BELOW} below {DEFAULT}'s", f"{behind:+.4f} below", behind <= BELOW),
        at_least(TIMES_DEFAULT, f"{DEFAULT}'s speed", Spread.of_ratios(seconds[DEFAULT], seconds[OURS])),
        at_least(TIMES_BF16, f"that of {BF16}", Spread.of_ratios(seconds[BF16], seconds[OURS])),
    ]


def shortened(file: Path, sentences: int | None, scratch: Path) -> Path:
    """The file, or a file of its first sentences."""
    if sentences is None:
        return file.resolve()
    shorter = scratch / file.name
    blocks = file.read_text(encoding="utf-8").split("\n\n")
    shorter.write_text("".join(f"{block}\n\n" for block in islice(blocks, sentences)), encoding="utf-8")
    return shorter


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.ner", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    add_parts(parser, [OURS, DEFAULT, BF16])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-items", type=int, default=32, metavar="N", help="sentences in a batch (default 32)")
    parser.add_argument("--learning-rate", type=float, default=3e-4, metavar="RATE")
    parser.add_argument("--sentences", type=int, metavar="N", help="only the first N of each file, to try it out")
    options = parser.parse_args()
    require(parser, options.data, TRAIN, TEST)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    quiet()
    print(machine())
    print(f"BertRelay beside transformers {version('transformers')}: diseases in NCBI-disease, from all-MiniLM-L6-v2")
    with tempfile.TemporaryDirectory() as name:
        files = [shortened(options.data / file, options.sentences, Path(name)) for file in (TRAIN, TEST)]
        holds = compare(Bench(options, Path(name), *files))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
