"""sentence-transformers as a contender of `distill`, after its example make_multilingual.py."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import MSELoss

from benchmarks.distill import LEARNING_RATE
from benchmarks.harness import Work, timed
from benchmarks.trainer import train_with_sbert

TEACHER_BATCH, TEACHER_BATCHES, TRIED_ON = 64, [16, 32, 64, 128, 256], 1_000


def prepare(threads: int, scratch: str, teacher: str, variant: str) -> Work:
    """`default` is fp32, `bf16` trains by autocast, `weights` in bf16 weights."""
    torch.set_num_threads(threads)
    known, teacher_batch = SentenceTransformer(teacher), TEACHER_BATCH
    if variant != "default":
        known = known.bfloat16()
        sample = lines(Path(scratch, "rows/en.txt"))[:TRIED_ON]
        trials = {  # the first size is a warm-up, and overwritten
            size: timed(lambda size=size: known.encode(sample, batch_size=size, show_progress_bar=False))[1]
            for size in [TEACHER_BATCH, *TEACHER_BATCHES]
        }
        teacher_batch = min(trials, key=lambda size: trials[size])

    def work(rows: str, seed: int, batch_size: int, keep: str | None = None) -> dict[str, Any]:
        student = SentenceTransformer(str(Path(scratch, "start")))
        if variant == "weights":
            student = student.bfloat16()
        english, other = (lines(Path(scratch, rows, name)) for name in ("en.txt", "other.txt"))
        with tempfile.TemporaryDirectory() as folder:
            arguments = {
                "output_dir": folder,
                "seed": seed,
                "num_train_epochs": 1,
                "per_device_train_batch_size": batch_size,
                "learning_rate": LEARNING_RATE,
                "warmup_steps": 0.1,
                "bf16": variant == "bf16",
                "use_cpu": True,
            }

            def train() -> None:
                vectors = known.encode(english, batch_size=teacher_batch, show_progress_bar=False)
                pairs = Dataset.from_dict({"english": english, "non_english": other, "label": vectors})
                train_with_sbert(student, pairs, MSELoss(model=student), **arguments)

            _, seconds = timed(train)
        if keep:
            student.save_pretrained(str(Path(scratch, keep)), create_model_card=False)
        return {"seconds": seconds}

    return work


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
