"""The frame of every training beside a peer's: contenders and seeds in turns, each training in a process of its own."""

import gzip
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, pstdev
from typing import Any, cast

from benchmarks.harness import Answer, Claim, Spread, at_least, in_fresh_process, in_turns
from bertrelay.training.settings import TrainingSettings

OURS, DEFAULT, BF16 = "ours", "Trainer", "Trainer-bf16"
QUIET: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no"}
Answers = Mapping[str, Sequence[Answer]]


def options_of(names: Sequence[str]) -> dict[str, Any]:
    """The options that every training beside a peer has, for `harness.main`."""
    return {"seeds": [1, 2, 3], "contenders": {"default": list(names), "choices": names}}


def beginning(file: Path, count: int | None, folder: Path, end: str = "\n") -> Path:
    """The file, or one in `folder` of its first `count` records."""
    if count is None:
        return file.resolve()
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    records = content.decode().split(end)[:count]
    shorter = folder / file.name.removesuffix(".gz")
    shorter.write_text("".join(record + end for record in records), encoding="utf-8")
    return shorter


def train_in_turns(
    train: Callable[[Namespace, str, int, Path], Answer],
    claims: Callable[[Answers], list[Claim]],
    metrics: Sequence[str],
    options: Namespace,
) -> tuple[list[Claim], dict[str, Any]]:
    """What a script measures: trainings of `options.contenders` with each of `options.seeds`.

    train: gets the options, a contender, a seed and an empty folder. claims: none where a contender was left out.
    """

    def turn(name: str, number: int) -> Answer:
        seed = options.seeds[number]
        folder = options.scratch / f"{name}-{seed}"
        folder.mkdir()
        answer = in_fresh_process(train, options, name, seed, folder)
        shown = ", ".join(f"{metric} {answer[metric]:.4f}" for metric in metrics)
        print(f"seed {seed}  {name:14}  {shown}  {answer['seconds']:,.0f} s", flush=True)
        return answer

    answers = in_turns({name: partial(turn, name) for name in options.contenders}, len(options.seeds))
    for name, given in answers.items():
        values = {metric: [answer[metric] for answer in given] for metric in metrics}
        shown = ", ".join(f"{metric} {mean(figures):.4f} ± {pstdev(figures):.4f}" for metric, figures in values.items())
        seconds = Spread.of(answer["seconds"] for answer in given).shown(0)
        faster = f"  ours is {seconds_ratio(answers, name)} × as fast" if OURS in answers and name != OURS else ""
        print(f"mean    {name:14}  {shown}  {seconds} s{faster}", flush=True)
    try:
        judged = claims(answers)
    except KeyError:  # a contender was left out
        judged = []
    return judged, {"trainings": answers}


def as_good(answers: Answers, peer: str, metric: str, most: float, *, low_is_good: bool = False) -> Claim:
    """That the mean of ours is worse by `most` at most."""
    differences = [p[metric] - o[metric] for p, o in zip(answers[peer], answers[OURS], strict=True)]
    worse = -mean(differences) if low_is_good else mean(differences)
    return Claim(f"mean {metric} at most {most} worse than {peer}'s", f"{worse:+.4f} worse", worse <= most)


def as_fast(answers: Answers, peer: str, times: float) -> Claim:
    return at_least(times, f"{peer}'s speed", seconds_ratio(answers, peer))


def seconds_ratio(answers: Answers, peer: str) -> Spread:
    """Seed by seed."""
    return Spread.of_ratios(*([answer["seconds"] for answer in answers[name]] for name in (peer, OURS)))


def train_with_trainer(
    network: Any, settings: TrainingSettings, folder: Path, rows: list[dict[str, Any]], collator: Any, *, bf16: bool
) -> float:
    """Trains `model/` of the folder in place with transformers' Trainer and its defaults; the seconds of its steps.

    network: the class of transformers that reads and writes the weights.
    """
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    arguments = TrainingArguments(
        output_dir=str(folder),
        **arguments_of(settings),
        **QUIET,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=bf16,
        use_cpu=True,
    )
    model = network.from_pretrained(folder / "model")
    trainer = Trainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows), data_collator=collator)
    trainer.remove_callback(PrinterCallback)
    seconds = float(trainer.train().metrics["train_runtime"])
    model.save_pretrained(folder / "model")  # beside what else the folder needs
    return seconds


def arguments_of(settings: TrainingSettings) -> dict[str, Any]:
    """Our schedule as the arguments of transformers' trainers."""
    return {
        "seed": settings.seed,
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": cast(int, settings.batch_items),
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.schedule,
        "warmup_steps": settings.warmup,  # below 1 it is a share of all steps
    }


def train_with_sbert(model: Any, rows: Any, loss: Any, **arguments: Any) -> None:
    """Trains `model` in place with the trainer of sentence-transformers and its defaults."""
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from transformers.trainer_callback import PrinterCallback

    given = SentenceTransformerTrainingArguments(**QUIET, **arguments)
    trainer = SentenceTransformerTrainer(model=model, args=given, train_dataset=rows, loss=loss)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
