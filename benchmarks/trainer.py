"""Trainings of several seeds in turns beside a peer's trainer, each in a process of its own."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, pstdev
from typing import Any, cast

from benchmarks.harness import Answer, Spread, in_fresh_process, in_turns
from bertrelay.training.settings import TrainingSettings

OURS, DEFAULT, BF16 = "ours", "Trainer", "Trainer-bf16"
QUIET: dict[str, Any] = {
    "report_to": "none",
    "disable_tqdm": True,
    "logging_strategy": "no",
    "save_strategy": "no",
}
Train = Callable[[int], Answer]


def train_with_trainer(
    model: Any, settings: TrainingSettings, folder: Path, rows: Any, collator: Any, *, bf16: bool, groups: bool
) -> float:
    """Trains `model` in place with transformers' Trainer and its defaults; the seconds of its steps.

    groups: batches of like lengths, as ours are.
    """
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
        train_sampling_strategy="group_by_length" if groups else "random",
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator)
    trainer.remove_callback(PrinterCallback)
    return float(trainer.train().metrics["train_runtime"])


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


def options_of(names: Sequence[str], default: Sequence[str] | None = None) -> dict[str, Any]:
    """The options that every training beside a peer has, for `harness.main`."""
    chosen = list(default or names)
    return {
        "seeds": [1, 2, 3],
        "contenders": {"default": chosen, "choices": names, "help": f"(default {' '.join(chosen)})"},
        "peer_groups": {"default": False, "help": "the peer's batches are of like lengths, too"},
    }


def train_in_turns(works: Mapping[str, Train], options: Namespace, metrics: Sequence[str]) -> dict[str, list[Answer]]:
    """The answers of `options.contenders` with each of `options.seeds`, printed as they come and on average."""

    def turn(name: str, number: int) -> Answer:
        answer = in_fresh_process(works[name], options.seeds[number])
        shown = ", ".join(f"{metric} {answer[metric]:.4f}" for metric in metrics)
        print(f"seed {options.seeds[number]}  {name:14}  {shown}  {answer['seconds']:,.0f} s", flush=True)
        return answer

    answers = in_turns({name: partial(turn, name) for name in options.contenders}, len(options.seeds))
    for name, found in answers.items():
        values = {metric: [each[metric] for each in found] for metric in metrics}
        shown = ", ".join(f"{metric} {mean(each):.4f} ± {pstdev(each):.4f}" for metric, each in values.items())
        print(f"mean    {name:14}  {shown}  {Spread.of(each['seconds'] for each in found).shown(0)} s", flush=True)
    return answers


def behind(peer: Sequence[Answer], ours: Sequence[Answer], metric: str) -> float:
    """How far ours is below the peer, mean over seeds."""
    return mean(p[metric] - o[metric] for p, o in zip(peer, ours, strict=True))


def faster(peer: Sequence[Answer], ours: Sequence[Answer]) -> Spread:
    """The ratio of the seconds, seed by seed."""
    return Spread.of_ratios([each["seconds"] for each in peer], [each["seconds"] for each in ours])
