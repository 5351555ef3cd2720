"""The side of sentence-transformers in benchmarks.distill."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.losses import MSELoss
from transformers.trainer_callback import PrinterCallback

from benchmarks.contenders import Work, serve

TEACHER_BATCH, TEACHER_BATCHES, TRIED_ON = 64, [16, 32, 64, 128, 256], 1_000


class ByLength(DefaultBatchSampler):
    """Batches of pairs of like length, in a random order. Its trainer takes such a sampler; none comes with it."""

    def __init__(self, dataset: Dataset, batch_size: int, drop_last: bool, seed: int = 0, **rest: Any) -> None:
        super().__init__(dataset, batch_size, drop_last, seed=seed, **rest)
        order = np.argsort([len(text) for text in dataset["non_english"]], kind="stable")
        self.batches = np.split(order, range(batch_size, len(order), batch_size))

    def __iter__(self) -> Iterator[list[int]]:
        for number in np.random.default_rng((self.seed, self.epoch)).permutation(len(self.batches)):
            yield self.batches[number].tolist()

    def __len__(self) -> int:
        return len(self.batches)


def prepare(
    device: str, threads: int, scratch: str, teacher: str, learning_rate: float, way: str, sampler: str = "its own"
) -> Work:
    torch.set_num_threads(threads)
    known, teacher_batch = SentenceTransformer(teacher, device=device), TEACHER_BATCH
    if way != "default":
        known = known.bfloat16()
        teacher_batch = best_teacher_batch(known, Path(scratch, "rows"))

    def work(rows: str, seed: int, batch_size: int, keep: str | None = None) -> dict[str, Any]:
        student = SentenceTransformer(str(Path(scratch, "start")), device=device)
        if way == "bf16 weights":
            student = student.bfloat16()
        english, other = (lines(Path(scratch, rows, name)) for name in ("en.txt", "other.txt"))
        with tempfile.TemporaryDirectory() as folder:
            arguments = SentenceTransformerTrainingArguments(
                output_dir=folder,
                seed=seed,
                num_train_epochs=1,
                per_device_train_batch_size=batch_size,
                learning_rate=learning_rate,
                warmup_steps=0.1,
                bf16=way == "bf16",
                batch_sampler=ByLength if sampler == "ours" else "batch_sampler",
                use_cpu=device == "cpu",
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
            )
            began = time.perf_counter()
            vectors = known.encode(english, batch_size=teacher_batch, show_progress_bar=False)
            pairs = Dataset.from_dict({"english": english, "non_english": other, "label": vectors})
            trainer = SentenceTransformerTrainer(
                model=student, args=arguments, train_dataset=pairs, loss=MSELoss(model=student)
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
            seconds = time.perf_counter() - began
        if keep:
            student.save_pretrained(str(Path(scratch, keep)), create_model_card=False)
        return {"seconds": seconds}

    return work


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def best_teacher_batch(teacher: SentenceTransformer, rows: Path) -> int:
    sentences = lines(rows / "en.txt")[:TRIED_ON]
    seconds = {}
    for size in [TEACHER_BATCH, *TEACHER_BATCHES]:  # the first time is a warm-up, and overwritten
        began = time.perf_counter()
        teacher.encode(sentences, batch_size=size, show_progress_bar=False)
        seconds[size] = time.perf_counter() - began
    return min(seconds, key=lambda size: seconds[size])


if __name__ == "__main__":
    serve(prepare)
