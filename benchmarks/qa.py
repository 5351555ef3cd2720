"""Learning to answer questions, here beside transformers' Trainer: F1 over some seeds, and seconds of training.

Claim: on COVID-QA, split by article, with XQuAD's English questions beside its own in training, from all-MiniLM-L6-v2
under the same fresh head, with the same windows in batches of as many and by the same schedule, mean F1 is at most
0.015 below that of Trainer as it comes (fp32), at twice its speed, and above twice that of the text's first sentence.

    python -m benchmarks.qa --data DIR                                              about two hours on 2 cores
    python -m benchmarks.qa --data DIR --questions 20 --epochs 1 --seeds 1          to try it out

Both learn from every window that holds an answer and from a few of the others, drawn for each epoch; Trainer is given
the windows of all epochs at once. Where a window holds several right answers, Trainer's network can learn the first
one alone. Trainer pads each batch to its longest window, in random order; with --peer-groups its batches are of like
lengths, as ours are. A time is that of the training steps alone. Both keep their last weights, and one decoding and one
scorer judge all of them on the test articles; no dev data is used. Sides train in turns, each in a process of its own;
ratios are of times in the same turn.
"""

import os
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Answer, Claim, Spread, at_least, in_turns, judge
from benchmarks.machine import MINILM, add_data, machine, require
from benchmarks.trainer import in_a_process_of_its_own, quiet, train_with_trainer
from bertrelay.rejects import Rejects
from bertrelay.stage import StageContext
from domain.biomedical.answers import qa_evaluation
from domain.biomedical.answers.learning import read_all
from domain.biomedical.answers.network import save_model, start_model
from domain.biomedical.answers.qa_settings import QaEvaluateSettings, QaSettings
from domain.biomedical.answers.qa_train import QaTask, run
from domain.biomedical.answers.question_files import read_questions, write_questions
from domain.biomedical.answers.questions_settings import QuestionsSettings
from domain.biomedical.answers.splitting import write_splits

XQUAD, COVID = "qa/xquad.en.json.gz", "qa/covidqa-200423.json.gz"
SEEDS = [1, 2, 3]
BELOW, TIMES_DEFAULT, TIMES_FIRST_SENTENCE = 0.015, 2, 2
OURS, DEFAULT, BF16 = "ours", "Trainer", "Trainer, bf16"


@dataclass(frozen=True)
class Bench:
    """What every training of one run of this script shares."""

    options: Namespace
    scratch: Path
    train: list[Path]
    test: Path

    def settings(self, seed: int) -> QaSettings:
        options = self.options
        return QaSettings.model_validate(
            {
                "base": MINILM,
                "train": [{"path": str(file)} for file in self.train],
                "seed": seed,
                "epochs": options.epochs,
                "batch_items": options.batch_items,
                "learning_rate": options.learning_rate,
                "max_tokens": options.max_tokens,
                "stride": options.stride,
                "max_answer_tokens": options.max_answer_tokens,
                "empty_windows": options.empty_windows,
                "max_rejects": 0.05,
            }
        )


def train_ours(bench: Bench, seed: int) -> Answer:
    settings, folder = bench.settings(seed), bench.scratch / f"ours-{seed}"
    folder.mkdir()
    metrics = run(settings, StageContext(folder, bench.scratch / "cache"))
    return {"seconds": metrics["train_seconds"], **scored(bench, folder / "model")}


def train_peer(bench: Bench, bf16: bool, seed: int) -> Answer:
    """Trains with Trainer from the very weights that ours starts from."""
    from datasets import Dataset
    from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding

    settings = bench.settings(seed)
    start = start_model(
        MINILM,
        max_tokens=settings.max_tokens,
        stride=settings.stride,
        max_answer_tokens=settings.max_answer_tokens,
        seed=seed,
    )
    rejects = Rejects(None, settings.max_rejects)
    task = QaTask(start, settings, read_all(settings.train, rejects), [], rejects)
    folder = bench.scratch / f"peer-{'bf16' if bf16 else 'fp32'}-{seed}"
    save_model(start, folder / "start")
    network = AutoModelForQuestionAnswering.from_pretrained(folder / "start")
    learnt = Dataset.from_list([row for epoch in range(settings.epochs) for row in rows(task, epoch)])
    once = settings.model_copy(update={"epochs": 1})  # over the windows of all epochs
    collator, groups = DataCollatorWithPadding(start.tokenizer), bench.options.peer_groups
    seconds = train_with_trainer(network, once, folder, learnt, collator, bf16=bf16, groups=groups)
    network.save_pretrained(folder / "start")  # beside what else the folder needs
    return {"seconds": seconds, **scored(bench, folder / "start")}


def rows(task: QaTask, epoch: int) -> list[dict[str, Any]]:
    """The windows of an epoch as transformers' networks take them, each with its first right answer."""
    made = []
    for item in range(len(task.lengths(epoch))):
        inputs = task.collate(np.array([item]), epoch).inputs
        texts = {name: inputs[name][0].tolist() for name in ("input_ids", "attention_mask", "token_type_ids")}
        first, last = (int(inputs[name][0, 0]) for name in ("firsts", "lasts"))
        made.append({**texts, "start_positions": first, "end_positions": last})
    return made


def scored(bench: Bench, folder: Path) -> Answer:
    """F1 and exact match on the test file, and of the first sentence of each text."""
    settings = {"model": str(folder), "test": [{"path": str(bench.test)}], "max_rejects": 0.05}
    context = StageContext(folder, bench.scratch / "cache")
    found = qa_evaluation.run(QaEvaluateSettings.model_validate(settings), context)
    return {name: found[name] for name in ("f1", "exact_match", "first_sentence/f1")}


def compare(bench: Bench) -> bool:
    """Trains in turns, prints all figures, and tells whether the claims hold."""
    seeds = bench.options.seeds
    sides: dict[str, Callable[[int], Answer]] = {
        OURS: partial(train_ours, bench),
        DEFAULT: partial(train_peer, bench, False),
    }
    if bench.options.bf16:
        sides[BF16] = partial(train_peer, bench, True)
    works: dict[str, Callable[[int], Answer]] = {
        name: partial(in_a_process_of_its_own, train, seeds) for name, train in sides.items()
    }
    answers = in_turns(works, len(seeds))
    for name, told in answers.items():
        f1, exact = (statistics.mean(each[key] for each in told) for key in ("f1", "exact_match"))
        spread, pace = statistics.pstdev(each["f1"] for each in told), Spread.of(each["seconds"] for each in told)
        print(f"{name:14}  F1 {f1:.4f} ± {spread:.4f}, exact match {exact:.4f}  {pace.told(0)} s")
    seconds = {name: [each["seconds"] for each in told] for name, told in answers.items()}
    pairs = list(zip(answers[DEFAULT], answers[OURS], strict=True))
    behind = statistics.mean(peer["f1"] - ours["f1"] for peer, ours in pairs)
    first = answers[OURS][0]["first_sentence/f1"]
    print(f"the first sentence of each text: F1 {first:.4f}")
    for name in seconds.keys() - {OURS, DEFAULT}:
        print(f"times the speed of {name}: {Spread.of_ratios(seconds[name], seconds[OURS])}")
    return judge(
        [
            Claim(f"mean F1 at most {BELOW} below {DEFAULT}'s", f"{behind:+.4f} below", behind <= BELOW),
            at_least(TIMES_DEFAULT, f"{DEFAULT}'s speed", Spread.of_ratios(seconds[DEFAULT], seconds[OURS])),
            at_least(
                TIMES_FIRST_SENTENCE,
                "the first sentence's F1",
                Spread.of_ratios([ours["f1"] for _, ours in pairs], [first] * len(pairs)),
            ),
        ]
    )


def files_for(options: Namespace, scratch: Path) -> tuple[list[Path], Path]:
    """The files to learn from, and the one to be tested on: the articles of COVID-QA's test split."""
    covid = {"files": [{"path": str((options.data / COVID).resolve())}], "max_rejects": 0.05}
    write_splits(QuestionsSettings.model_validate(covid), scratch / "covid")
    files = [(options.data / XQUAD).resolve(), *(scratch / "covid" / f"{name}.jsonl" for name in ("train", "test"))]
    if options.questions is not None:
        files = [shortened(file, options.questions, scratch / f"{number}.jsonl") for number, file in enumerate(files)]
    return files[:2], files[2]


def shortened(file: Path, questions: int, shorter: Path) -> Path:
    """A file of the first questions of another."""
    write_questions(shorter, islice(read_questions(file), questions))
    return shorter


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(prog="python -m benchmarks.qa", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-items", type=int, default=16, metavar="N", help="windows in a batch (default 16)")
    parser.add_argument("--learning-rate", type=float, default=2e-4, metavar="RATE")
    parser.add_argument("--max-tokens", type=int, default=384, metavar="N", help="of a window (default 384)")
    parser.add_argument("--stride", type=int, default=128, metavar="N", help="from window to window (default 128)")
    parser.add_argument("--max-answer-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--empty-windows", type=int, default=2, metavar="N", help="of a question and epoch (default 2)")
    parser.add_argument("--bf16", action="store_true", help="Trainer with bf16 beside them")
    parser.add_argument("--peer-groups", action="store_true", help="the peer's batches are of like lengths, too")
    parser.add_argument("--questions", type=int, metavar="N", help="only the first N of each file, to try it out")
    options = parser.parse_args(arguments)
    require(parser, options.data, XQUAD, COVID)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    quiet()
    print(machine())
    print(f"BertRelay beside transformers {version('transformers')}: answers in COVID-QA, from all-MiniLM-L6-v2")
    with tempfile.TemporaryDirectory() as name:
        train, test = files_for(options, Path(name))
        holds = compare(Bench(options, Path(name), train, test))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
