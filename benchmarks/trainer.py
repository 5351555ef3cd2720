"""The frame of every training beside a peer's: contenders and seeds in turns, each training in a process of its own."""

import gzip
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, pstdev
from typing import Any, cast

import torch

from benchmarks.harness import (
    OURS,
    Answer,
    Claim,
    Result,
    at_least,
    in_fresh_process,
    in_turns,
    print_results,
    with_gpu_memory,
)
from bertrelay.training.settings import TrainingSettings

DEFAULT, BF16 = "Trainer", "Trainer-bf16"
QUIET: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no"}
Results = Mapping[str, Result]


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
    claims: Callable[[Results], list[Claim]],
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
        answer = in_fresh_process(with_gpu_memory, train, options, name, seed, folder)
        shown = ", ".join(f"{metric} {answer[metric]:.4f}" for metric in metrics)
        print(f"seed {seed}, {name}: {shown}, {answer['seconds']:,.0f} s", flush=True)
        return answer

    results = in_turns({name: partial(turn, name) for name in options.contenders}, len(options.seeds))
    columns = {metric: partial(mean_and_deviation, metric) for metric in metrics}
    print_results(results, {}, columns)
    try:
        judged = claims(results)
    except KeyError:  # a contender was left out
        judged = []
    return judged, {"trainings": results}


def mean_and_deviation(metric: str, result: Result) -> str:
    return f"{mean(result.values(metric)):.4f} ± {pstdev(result.values(metric)):.4f}"


def as_good(results: Results, peer: str, metric: str, most: float, *, low_is_good: bool = False) -> Claim:
    """That the mean of ours is worse by `most` at most."""
    difference = mean(results[peer].values(metric)) - mean(results[OURS].values(metric))
    worse = -difference if low_is_good else difference
    return Claim(f"mean {metric} at most {most} worse than {peer}'s", f"{worse:+.4f} worse", worse <= most)


def as_fast(results: Results, peer: str, times: float) -> Claim:
    return at_least(times, f"{peer}'s speed", results[OURS].speed_over(results[peer]))


def train_with_trainer(
    network: Any, settings: TrainingSettings, folder: Path, rows: list[dict[str, Any]], collator: Any, *, bf16: bool
) -> float:
    """Trains `model/` of the folder in place with transformers' Trainer and its defaults; the seconds of its steps.

    network: the class of transformers that reads and writes the weights.
    """
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    arguments = TrainingArguments(**arguments_of(settings, folder), weight_decay=settings.weight_decay, bf16=bf16)
    model = network.from_pretrained(folder / "model")
    trainer = Trainer(model=model, args=arguments, train_dataset=Dataset.from_list(rows), data_collator=collator)
    trainer.remove_callback(PrinterCallback)
    seconds = float(trainer.train().metrics["train_runtime"])
    model.save_pretrained(folder / "model")  # beside what else the folder needs
    return seconds


def train_with_sbert(model: Any, rows: Any, loss: Any, settings: TrainingSettings, folder: Path, bf16: bool) -> None:
    """Trains `model` in place with the trainer of sentence-transformers and its defaults."""
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from transformers.trainer_callback import PrinterCallback

    arguments = SentenceTransformerTrainingArguments(**arguments_of(settings, folder), bf16=bf16)
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=rows, loss=loss)
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def arguments_of(settings: TrainingSettings, folder: Path) -> dict[str, Any]:
    """Our schedule as the arguments of transformers' trainers."""
    return {
        **QUIET,
        "output_dir": str(folder),
        "seed": settings.seed,
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": cast(int, settings.batch_items),
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.schedule,
        "warmup_steps": settings.warmup,  # below 1 it is a share of all steps
        "max_grad_norm": settings.max_grad_norm,
        "use_cpu": not torch.cuda.is_available(),  # without it bf16 needs a GPU
    }
