"""QA training beside transformers' Trainer: F1 over some seeds, and seconds of training.

Claim: as the recipe `covid-qa` trains (XQuAD's English, then COVID-QA, split by article), from all-MiniLM-L6-v2 with
the same fresh head, windows, batch size and schedules, mean F1 is at most 0.015 below that of Trainer's default (fp32),
at twice its speed, and above twice that of the first sentence of each text.

    python -m benchmarks.qa --data DIR                                              some hours on 2 cores
    python -m benchmarks.qa --data DIR --questions 20 --epochs 1 --seeds 1          to try it out

Files, splits and settings are the recipe's, without dev data: each trains twice, the second time from the weights of
the first, and keeps its last weights; a time is that of the training steps of both. Both train on every window with an
answer and on a few of the others, drawn for each epoch; Trainer gets the windows of all epochs at once, and of several
right answers in a window it can use the first alone. It pads each batch to its longest window, in random order
(--peer-groups: of like lengths, as ours). One decoder and one scorer.
"""

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.harness import Answer, Claim, Spread, at_least, main
from benchmarks.machine import MINILM
from benchmarks.trainer import BF16, DEFAULT, OURS, behind, faster, options_of, train_in_turns, train_with_trainer
from bertrelay.data.records import Rejects
from bertrelay.stage import StageContext, run_alone
from domain.biomedical.qa import evaluate
from domain.biomedical.qa.model import save_model, start_model
from domain.biomedical.qa.question_files import read_all
from domain.biomedical.qa.settings import SPLITS, QaEvaluateSettings, QaSettings, QuestionsSettings
from domain.biomedical.qa.split import run as split_questions
from domain.biomedical.qa.train import QaTask, run
from pipelines.recipe import read_recipe
from pipelines.registry import REGISTRY

STAGES = {"xquad": "general", "covid": "qa"}
"""The stages of the recipe that split a file, and those that train on what they write, in their order."""
XQUAD, COVID = "qa/xquad.en.json.gz", "qa/covidqa-200423.json.gz"
BELOW, TIMES_DEFAULT, TIMES_FIRST_SENTENCE = 0.015, 2, 2


def train(options: Namespace, name: str, seed: int) -> Answer:
    """Both trainings, each from the weights of the one before."""
    seconds = list[float]()
    base = str(options.trainings[0].base)
    for number, training in enumerate(options.trainings, 1):
        settings = training.model_copy(update={"base": base, "seed": seed})
        folder = options.scratch / f"{name}-{seed}-{number}"
        folder.mkdir()
        if name == OURS:
            metrics = run(settings, StageContext(folder, options.scratch / "cache"))
            seconds.append(cast(float, metrics["train_seconds"]))
        else:
            seconds.append(train_peer(settings, folder, bf16=name == BF16, groups=options.peer_groups))
        base = str(folder / "model")
    settings = QaEvaluateSettings.model_validate({"model": base, "test": [{"path": str(options.test)}]})
    found = evaluate.run(settings, StageContext(Path(base), options.scratch / "cache"))
    metrics = {metric: found[metric] for metric in ("questions", "f1", "exact_match", "first_sentence/f1")}
    return {"seconds": sum(seconds), "each": seconds, **metrics}


def train_peer(settings: QaSettings, folder: Path, *, bf16: bool, groups: bool) -> float:
    """One training with Trainer from the very weights that ours starts from; leaves `model/` in `folder`."""
    from datasets import Dataset
    from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding

    model = start_model(settings)
    rejects = Rejects(None, settings.max_rejects)
    task = QaTask(model, settings, read_all(settings.train, rejects), [], rejects)
    save_model(model, folder / "model")
    network = AutoModelForQuestionAnswering.from_pretrained(folder / "model")
    dataset = Dataset.from_list([row for epoch in range(settings.epochs) for row in rows(task, epoch)])
    once = settings.model_copy(update={"epochs": 1})  # over the windows of all epochs
    collator = DataCollatorWithPadding(model.tokenizer)
    seconds = train_with_trainer(network, once, folder, dataset, collator, bf16=bf16, groups=groups)
    network.save_pretrained(folder / "model")  # beside what else the folder needs
    return seconds


def rows(task: QaTask, epoch: int) -> list[dict[str, Any]]:
    """The windows of an epoch as transformers' networks take them, each with its first right answer."""
    made = []
    for item in range(len(task.lengths(epoch))):
        inputs = task.collate(np.array([item]), epoch).inputs
        texts = {name: inputs[name][0].tolist() for name in ("input_ids", "attention_mask", "token_type_ids")}
        first, last = inputs["answers"][0, 0].tolist()
        made.append({**texts, "start_positions": first, "end_positions": last})
    return made


def claims(answers: dict[str, list[Answer]]) -> list[Claim]:
    """Beside Trainer's default; the speed beside its bf16 is printed alone."""
    ours = answers[OURS]
    if BF16 in answers:
        print(f"times the speed of {BF16}: {faster(answers[BF16], ours)}")
    below = behind(answers[DEFAULT], ours, "f1")
    above = Spread.of_ratios([each["f1"] for each in ours], [each["first_sentence/f1"] for each in ours])
    return [
        Claim(f"mean F1 at most {BELOW} below {DEFAULT}'s", f"{below:+.4f} below", below <= BELOW),
        at_least(TIMES_DEFAULT, f"{DEFAULT}'s speed", faster(answers[DEFAULT], ours)),
        at_least(TIMES_FIRST_SENTENCE, "the first sentence's F1", above),
    ]


def trainings_of(options: Namespace) -> tuple[list[QaSettings], Path]:
    """The recipe's trainings on files split as it says, without dev data; and the test file."""
    recipe = read_recipe("covid-qa", REGISTRY, [f"vars.data={options.data.resolve()}"])
    settings = {step.name: step.settings for step in recipe.steps}
    trainings = list[QaSettings]()
    for split, stage in STAGES.items():
        run_alone(split_questions, cast(QuestionsSettings, settings[split]), options.scratch / split)
        if options.questions is not None:
            shorten(options.scratch / split, options.questions)
        given = cast(QaSettings, settings[stage]).model_dump(exclude={"base", "train", "dev"}, exclude_unset=True)
        given |= {"base": MINILM, "train": [{"path": str(options.scratch / split / "train.jsonl")}]}
        given |= {"epochs": options.epochs} if options.epochs else {}
        trainings.append(QaSettings.model_validate(given))
    return trainings, options.scratch / split / "test.jsonl"


def shorten(folder: Path, questions: int) -> None:
    """Leaves the first questions alone in each split of a folder."""
    for name in SPLITS:
        file = folder / f"{name}.jsonl"
        file.write_text("".join(file.read_text(encoding="utf-8").splitlines(keepends=True)[:questions]))


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    options.trainings, options.test = trainings_of(options)
    works = {name: partial(train, options, name) for name in (OURS, DEFAULT, BF16)}
    answers = train_in_turns(works, options, ["f1", "exact_match"])
    first = next(iter(answers.values()))[0]
    print(f"the first sentence of each text: F1 {first['first_sentence/f1']:.4f}, {first['questions']:,.0f} questions")
    return claims(answers) if {OURS, DEFAULT} <= answers.keys() else [], {"trainings": answers}


if __name__ == "__main__":
    main(
        measure, __doc__, XQUAD, COVID, **options_of([OURS, DEFAULT, BF16], [OURS, DEFAULT]), epochs=int, questions=int
    )
