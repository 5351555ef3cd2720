"""Learning to answer questions, here beside transformers' Trainer: F1 over some seeds, and seconds of training.

Claim: as the recipe `covid-qa` has it (XQuAD's English first, COVID-QA after it, split by article), all-MiniLM-L6-v2
under the same fresh head, with the same windows in batches of as many and by the same schedules, reaches a mean F1 at
most 0.015 below that of Trainer as it comes (fp32), at twice its speed, and above twice that of the first sentence of
each text.

    python -m benchmarks.qa --data DIR                                              some hours on 2 cores
    python -m benchmarks.qa --data DIR --questions 20 --epochs 1 --seeds 1          to try it out

Files, splits and settings are read from the recipe, but for its dev data, which nobody uses here: each side trains
twice, the second time from the weights of the first, and keeps its last weights; its time is that of the training steps
of both. Both learn from every window that holds an answer and from a few of the others, drawn for each epoch; Trainer
is given the windows of all epochs at once. Where a window holds several right answers, Trainer's network can learn the
first one alone. Trainer pads each batch to its longest window, in random order; with --peer-groups its batches are of
like lengths, as ours are. One decoding and one scorer judge all of them on the articles of COVID-QA's test split.

Sides train in turns, each in a process of its own; ratios are of times of the same seed. What each training found is
printed as soon as it is known. In parts: `benchmarks.trainer`; the claims are judged once both sides are there.
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
from typing import Any, cast

import numpy as np

from benchmarks.contenders import Answer, Claim, Spread, at_least, judge
from benchmarks.machine import MINILM, add_data, machine, require
from benchmarks.trainer import BF16, DEFAULT, OURS, add_parts, quiet, train_in_turns, train_with_trainer
from bertrelay.data.records import Rejects
from bertrelay.stage import StageContext
from domain.biomedical.qa import evaluate
from domain.biomedical.qa.model import save_model, start_model
from domain.biomedical.qa.question_files import read_questions, write_questions
from domain.biomedical.qa.settings import SPLITS, QaEvaluateSettings, QaSettings, QuestionsSettings
from domain.biomedical.qa.split import write_splits
from domain.biomedical.qa.subwords import read_all
from domain.biomedical.qa.train import QaTask, run
from pipelines.recipe import read_recipe
from pipelines.registry import REGISTRY

RECIPE, LESSONS = "covid-qa", {"xquad": "general", "covid": "qa"}
"""The stages of the recipe that split a file, and those that learn from what they write, in their order."""
XQUAD, COVID = "qa/xquad.en.json.gz", "qa/covidqa-200423.json.gz"
BELOW, TIMES_DEFAULT, TIMES_FIRST_SENTENCE = 0.015, 2, 2


@dataclass(frozen=True)
class Bench:
    """What every training of one run of this script shares.

    lessons: the settings of both trainings, in their order. test: the file that all are scored on.
    """

    options: Namespace
    scratch: Path
    lessons: list[QaSettings]
    test: Path


def train_ours(bench: Bench, seed: int) -> Answer:
    seconds = list[float]()
    base = str(bench.lessons[0].base)
    for number, lesson in enumerate(bench.lessons, 1):
        settings = lesson.model_copy(update={"base": base, "seed": seed})
        folder = bench.scratch / f"ours-{seed}-{number}"
        folder.mkdir()
        metrics = run(settings, StageContext(folder, bench.scratch / "cache"))
        seconds.append(cast(float, metrics["train_seconds"]))
        base = str(folder / "model")
    return {"seconds": sum(seconds), "each": seconds, **scored(bench, base)}


def train_peer(bench: Bench, seed: int, *, bf16: bool) -> Answer:
    """Trains with Trainer from the very weights that ours starts from."""
    seconds = list[float]()
    base = str(bench.lessons[0].base)
    for number, lesson in enumerate(bench.lessons, 1):
        settings = lesson.model_copy(update={"base": base, "seed": seed})
        folder = bench.scratch / f"peer-{'bf16' if bf16 else 'fp32'}-{seed}-{number}"
        seconds.append(lesson_of_peer(settings, folder, bf16=bf16, groups=bench.options.peer_groups))
        base = str(folder / "model")
    return {"seconds": sum(seconds), "each": seconds, **scored(bench, base)}


def lesson_of_peer(settings: QaSettings, folder: Path, *, bf16: bool, groups: bool) -> float:
    """One training with Trainer, which leaves `model/` in `folder`; the seconds of its steps."""
    from datasets import Dataset
    from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding

    start = start_model(
        settings.base,
        max_tokens=settings.max_tokens,
        stride=settings.stride,
        max_answer_tokens=settings.max_answer_tokens,
        seed=settings.seed,
    )
    rejects = Rejects(None, settings.max_rejects)
    task = QaTask(start, settings, read_all(settings.train, rejects), [], rejects)
    save_model(start, folder / "model")
    network = AutoModelForQuestionAnswering.from_pretrained(folder / "model")
    learnt = Dataset.from_list([row for epoch in range(settings.epochs) for row in rows(task, epoch)])
    once = settings.model_copy(update={"epochs": 1})  # over the windows of all epochs
    collator = DataCollatorWithPadding(start.tokenizer)
    seconds = train_with_trainer(network, once, folder, learnt, collator, bf16=bf16, groups=groups)
    network.save_pretrained(folder / "model")  # beside what else the folder needs
    return seconds


def rows(task: QaTask, epoch: int) -> list[dict[str, Any]]:
    """The windows of an epoch as transformers' networks take them, each with its first right answer."""
    made = []
    for item in range(len(task.lengths(epoch))):
        inputs = task.collate(np.array([item]), epoch).inputs
        texts = {name: inputs[name][0].tolist() for name in ("input_ids", "attention_mask", "token_type_ids")}
        first, last = (int(inputs[name][0, 0]) for name in ("firsts", "lasts"))
        made.append({**texts, "start_positions": first, "end_positions": last})
    return made


def scored(bench: Bench, folder: str) -> Answer:
    """F1 and exact match on the test file, and of the first sentence of each text."""
    settings = QaEvaluateSettings.model_validate({"model": folder, "test": [{"path": str(bench.test)}]})
    found = evaluate.run(settings, StageContext(Path(folder), bench.scratch / "cache"))
    return {name: found[name] for name in ("questions", "f1", "exact_match", "first_sentence/f1")}


def compare(bench: Bench) -> bool:
    """Trains in turns, prints all figures, and tells whether the claims hold; without both sides there are none."""
    sides = {
        OURS: partial(train_ours, bench),
        DEFAULT: partial(train_peer, bench, bf16=False),
        BF16: partial(train_peer, bench, bf16=True),
    }
    learnt = [lesson.model_dump(mode="json", exclude={"base", "train", "seed"}) for lesson in bench.lessons]
    answers = train_in_turns(sides, bench.options, {"lessons": learnt, "questions": bench.options.questions}, told_of)
    for name, told in answers.items():
        f1, exact = (statistics.mean(each[key] for each in told) for key in ("f1", "exact_match"))
        spread, pace = statistics.pstdev(each["f1"] for each in told), Spread.of(each["seconds"] for each in told)
        print(f"{name:14}  F1 {f1:.4f} ± {spread:.4f}, exact match {exact:.4f}  {pace.told(0)} s")
    first = next(iter(answers.values()))[0]
    print(f"the first sentence of each text: F1 {first['first_sentence/f1']:.4f}, {first['questions']:,.0f} questions")
    return judge(claims(answers)) if {OURS, DEFAULT} <= answers.keys() else True


def told_of(answer: Answer) -> str:
    seconds = f"{answer['seconds']:,.0f} s ({' + '.join(f'{each:,.0f}' for each in answer['each'])})"
    return f"F1 {answer['f1']:.4f}, exact match {answer['exact_match']:.4f}, {seconds}"


def claims(answers: dict[str, list[Answer]]) -> list[Claim]:
    """What is claimed of ours beside Trainer as it comes; the speed beside its bf16 is printed alone."""
    seconds = {name: [each["seconds"] for each in told] for name, told in answers.items()}
    if BF16 in seconds:
        print(f"times the speed of {BF16}: {Spread.of_ratios(seconds[BF16], seconds[OURS])}")
    pairs = list(zip(answers[DEFAULT], answers[OURS], strict=True))
    behind = statistics.mean(peer["f1"] - ours["f1"] for peer, ours in pairs)
    f1, first = zip(*((each["f1"], each["first_sentence/f1"]) for each in answers[OURS]), strict=True)
    return [
        Claim(f"mean F1 at most {BELOW} below {DEFAULT}'s", f"{behind:+.4f} below", behind <= BELOW),
        at_least(TIMES_DEFAULT, f"{DEFAULT}'s speed", Spread.of_ratios(seconds[DEFAULT], seconds[OURS])),
        at_least(TIMES_FIRST_SENTENCE, "the first sentence's F1", Spread.of_ratios(f1, first)),
    ]


def lessons_for(options: Namespace, scratch: Path) -> tuple[list[QaSettings], Path]:
    """The recipe's trainings on files that are split as it says, without dev data; and the file to be scored on."""
    recipe = read_recipe(RECIPE, REGISTRY, [f"vars.data={options.data.resolve()}"])
    settings = {step.name: step.settings for step in recipe.steps}
    lessons = list[QaSettings]()
    for split, stage in LESSONS.items():
        write_splits(cast(QuestionsSettings, settings[split]), scratch / split)
        if options.questions is not None:
            shorten(scratch / split, options.questions)
        given = cast(QaSettings, settings[stage]).model_dump(exclude={"base", "train", "dev"}, exclude_unset=True)
        given |= {"base": MINILM, "train": [{"path": str(scratch / split / "train.jsonl")}]}
        given |= {"epochs": options.epochs} if options.epochs else {}
        lessons.append(QaSettings.model_validate(given))
    return lessons, scratch / split / "test.jsonl"


def shorten(folder: Path, questions: int) -> None:
    """Leaves the first questions alone in each split of a folder."""
    for name in SPLITS:
        file, whole = folder / f"{name}.jsonl", folder / f"{name}.whole.jsonl"
        if file.stat().st_size:
            file.rename(whole)
            write_questions(file, islice(read_questions(whole), questions))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(prog="python -m benchmarks.qa", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    add_parts(parser, [OURS, DEFAULT])
    parser.add_argument("--epochs", type=int, metavar="N", help="of each training (default: as the recipe has it)")
    parser.add_argument("--questions", type=int, metavar="N", help="only the first N of each split, to try it out")
    options = parser.parse_args(arguments)
    require(parser, options.data, XQUAD, COVID)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    quiet()
    print(machine())
    print(f"BertRelay beside transformers {version('transformers')}: answers in COVID-QA, from all-MiniLM-L6-v2")
    with tempfile.TemporaryDirectory() as name:
        lessons, test = lessons_for(options, Path(name))
        holds = compare(Bench(options, Path(name), lessons, test))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
