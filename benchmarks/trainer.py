"""transformers' Trainer as the peer of a training here: the same schedule, and its own defaults for all not said.

Trainings of several seeds take hours. So they are done in parts where one likes: `--contenders` and `--seeds` choose
some, and `--results` names a file that keeps what was found, so that no training in it is done again.
"""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

from benchmarks.contenders import Answer, in_turns
from bertrelay.training.settings import TrainingSettings

OURS, DEFAULT, BF16 = "ours", "Trainer", "Trainer-bf16"
SEEDS = [1, 2, 3]
Train = Callable[[int], Answer]


def train_with_trainer(
    model: Any, settings: TrainingSettings, folder: Path, rows: Any, collator: Any, *, bf16: bool, groups: bool
) -> float:
    """Trains `model` in place; the seconds of its steps. groups: batches of like lengths, as ours are."""
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    arguments = TrainingArguments(
        output_dir=str(folder),
        seed=settings.seed,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=cast(int, settings.batch_items),
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup,  # below 1 it is a share of all steps
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=bf16,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        train_sampling_strategy="group_by_length" if groups else "random",
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator)
    trainer.remove_callback(PrinterCallback)
    return float(trainer.train().metrics["train_runtime"])


def add_parts(parser: ArgumentParser, contenders: list[str]) -> None:
    """Options for the sides and seeds of one run, what was found before, and the peer's batches."""
    told = f"(default {' '.join(contenders)})"
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--contenders", nargs="+", choices=[OURS, DEFAULT, BF16], default=contenders, help=told)
    parser.add_argument("--results", type=Path, metavar="FILE", help="keeps what is found, and is looked into first")
    parser.add_argument("--peer-groups", action="store_true", help="the peer's batches are of like lengths, too")


def train_in_turns(
    sides: Mapping[str, Train], options: Namespace, about: Mapping[str, Any], told: Callable[[Answer], str]
) -> dict[str, list[Answer]]:
    """What the trainings of `options.contenders` found with each of `options.seeds`; each is told when it is known.

    about: what a training depends on beside its side and seed; one of which all is equal stands for it in the results.
    """

    def known_or_trained(name: str, turn: int) -> Answer:
        seed = options.seeds[turn]
        which = {**about, "contender": name, "seed": seed, "groups": options.peer_groups and name != OURS}
        answer = _known(options.results, which)
        if answer is None:
            answer = _in_a_process_of_its_own(sides[name], seed)
            _keep(options.results, which, answer)
        print(f"{name}, seed {seed}: {told(answer)}", flush=True)
        return answer

    works = {name: partial(known_or_trained, name) for name in options.contenders}
    return in_turns(works, len(options.seeds))


def _known(results: Path | None, which: Mapping[str, Any]) -> Answer | None:
    """The figures of a training that is among the results; of several the last ones."""
    if results is None or not results.exists():
        return None
    lines = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    found = [line["found"] for line in lines if line["of"] == which]
    return found[-1] if found else None


def _keep(results: Path | None, which: Mapping[str, Any], answer: Answer) -> None:
    if results is not None:
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"of": which, "found": answer}) + "\n")


def _in_a_process_of_its_own(train: Train, seed: int) -> Answer:
    """Accelerate keeps one precision for a process, and neither side finds the other's memory in its way."""
    with ProcessPoolExecutor(1, get_context("spawn"), quiet) as pool:
        return pool.submit(train, seed).result()


def quiet() -> None:
    """Keeps transformers' bars and warnings off the terminal."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
