"""QA training beside transformers' Trainer: F1 over some seeds, and seconds of training.

Claim: as the recipe `covid-qa` trains (XQuAD's English, then COVID-QA, split by article), from all-MiniLM-L6-v2 with
the same fresh head, windows, batch size and schedules, mean F1 is at most 0.015 below that of Trainer's default (fp32),
at twice its speed, and above twice that of the first sentence of each text.

    python -m benchmarks.qa --data DIR                                              some hours on 2 cores
    python -m benchmarks.qa --data DIR --questions 20 --epochs 1 --seeds 1          to try it out

Files, splits and settings are the recipe's, without dev data: each trains twice, the second time from the weights of
the first, and keeps its last weights; a time is that of the training steps of both. Both train on every window with an
answer and on a few of the others, drawn for each epoch; Trainer gets the windows of all epochs at once, and of several
right answers in a window it can use the first alone. It pads each batch to its longest window, in random order. One
decoder and one scorer.
"""

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks import trainer
from benchmarks.harness import OURS, Answer, Claim, Spread, at_least, main
from benchmarks.machine import MINILM
from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision
from bertrelay.stage import StageContext, run_alone
from bertrelay.training.batches import lengths_in
from domain.biomedical.qa import evaluate
from domain.biomedical.qa.model import save_model, start_model
from domain.biomedical.qa.question_files import read_all
from domain.biomedical.qa.settings import QaEvaluateSettings, QaSettings
from domain.biomedical.qa.split import run as split_questions
from domain.biomedical.qa.train import QaTask, run
from pipelines.recipe.steps import read_recipe
from pipelines.registry import REGISTRY

STAGES = {"xquad": "general", "covid": "qa"}
"""The stages of the recipe that split a file, and those that train on what they write, in their order."""
FIRST_SENTENCE = "first_sentence/f1"


def train(options: Namespace, name: str, seed: int, folder: Path) -> Answer:
    """Both trainings, each from the weights of the one before."""
    recipe = read_recipe("covid-qa", REGISTRY, [f"vars.data={options.data.resolve()}"])
    of_stage: dict[str, Any] = {step.name: step.settings for step in recipe.steps}
    seconds, base = list[float](), MINILM
    for split, stage in STAGES.items():
        run_alone(split_questions, of_stage[split], folder / split)
        files = (folder / split / f"{part}.jsonl" for part in ("train", "test"))
        file, test = (trainer.beginning(file, options.questions, folder / split) for file in files)
        given = of_stage[stage].model_dump(exclude={"base", "train", "dev"}, exclude_unset=True)
        given |= {"base": base, "train": [{"path": str(file)}], "seed": seed}
        settings = QaSettings.model_validate(given | ({"epochs": options.epochs} if options.epochs else {}))
        context = StageContext(folder / stage, Cache(options.scratch / "cache"))
        context.output.mkdir()
        if name == OURS:
            seconds.append(cast(float, run(settings, context)["train_seconds"]))
        else:
            seconds.append(train_peer(settings, context.output))
        base = str(context.output / "model")
    tested = QaEvaluateSettings.model_validate({"model": base, "test": [{"path": str(test)}]})
    found = evaluate.run(tested, context)
    metrics = {metric: found[metric] for metric in ("questions", "f1", "exact_match", FIRST_SENTENCE)}
    return {"seconds": sum(seconds), "each": seconds, **metrics}


def train_peer(settings: QaSettings, folder: Path) -> float:
    """One training with Trainer from the very weights that ours starts from; leaves `model/` in `folder`."""
    from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding

    model = start_model(settings)
    rejects = Rejects(None, settings.max_rejects)
    task = QaTask(model, settings, read_all(settings.train, rejects), [], rejects, ComputePrecision.FP32)
    save_model(model, folder / "model")
    made = [row for epoch in range(settings.epochs) for row in rows(task, epoch)]
    once = settings.model_copy(update={"epochs": 1})  # over the windows of all epochs
    collator = DataCollatorWithPadding(model.tokenizer)
    return trainer.train_with_trainer(AutoModelForQuestionAnswering, once, folder, made, collator, bf16=False)


def rows(task: QaTask, epoch: int) -> list[dict[str, Any]]:
    """The windows of an epoch as transformers' networks take them, each with its first right answer."""
    made = []
    for item in range(len(lengths_in(epoch, task.lengths))):
        inputs: dict[str, Any] = dict(task.collate(np.array([item]), epoch).inputs)
        texts = {name: inputs[name][0].tolist() for name in ("input_ids", "attention_mask", "token_type_ids")}
        first, last = inputs["answers"][0, 0].tolist()
        made.append({**texts, "start_positions": first, "end_positions": last})
    return made


def claims(results: trainer.Results) -> list[Claim]:
    ours = results[OURS]
    return [
        trainer.as_good(results, trainer.DEFAULT, "f1", 0.015),
        trainer.as_fast(results, trainer.DEFAULT, 2),
        at_least(2, "the first sentence's F1", Spread.of_ratios(ours.values("f1"), ours.values(FIRST_SENTENCE))),
    ]


if __name__ == "__main__":
    measure = partial(trainer.train_in_turns, train, claims, ["f1", "exact_match", FIRST_SENTENCE])
    files = ("qa/xquad.en.json.gz", "qa/covidqa-200423.json.gz")
    names = [OURS, trainer.DEFAULT]
    main(measure, __doc__, *files, seeds=[1, 2, 3], contenders=names, epochs=int, questions=int)
