"""transformers' Trainer as the peer of a training here: the same schedule, and its own defaults for all not said."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

from benchmarks.contenders import Answer
from bertrelay.training_settings import TrainingSettings


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


def in_a_process_of_its_own(train: Callable[[int], Answer], seeds: Sequence[int], turn: int) -> Answer:
    """Accelerate keeps one precision for a process, and neither side finds the other's memory in its way."""
    with ProcessPoolExecutor(1, get_context("spawn"), quiet) as pool:
        return pool.submit(train, seeds[turn]).result()


def quiet() -> None:
    """Keeps transformers' bars and warnings off the terminal."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
