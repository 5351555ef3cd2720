"""sentence-transformers as a contender of `distill`, after its example make_multilingual.py."""

import tempfile
from pathlib import Path

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import MSELoss

from benchmarks.distill import rows_folder, settings_of
from benchmarks.harness import Answer, Work, timed
from benchmarks.trainer import train_with_sbert
from bertrelay.training.settings import TrainingSettings

TEACHER_BATCH, TEACHER_BATCHES, TRIED_ON = 64, [16, 32, 64, 128, 256], 1_000


def prepare(scratch: str, teacher: str, variant: str, seed: int) -> Work:
    """`default` is fp32, `bf16` trains by autocast, `weights` in bf16 weights."""
    known, teacher_batch = SentenceTransformer(teacher), TEACHER_BATCH
    if variant != "default":
        known = known.bfloat16()
        sample = lines(rows_folder(scratch, 0) / "en.txt")[:TRIED_ON]
        trials = {  # the first size is a warm-up, and overwritten
            size: timed(lambda size=size: known.encode(sample, batch_size=size, show_progress_bar=False))[1]
            for size in [TEACHER_BATCH, *TEACHER_BATCHES]
        }
        teacher_batch = min(trials, key=lambda size: trials[size])

    def work(batch_size: int, number: int | None) -> Answer:
        student, rows = SentenceTransformer(str(Path(scratch, "start"))), rows_folder(scratch, number)
        if variant == "weights":
            student = student.bfloat16()
        english, other = (lines(rows / name) for name in ("en.txt", "other.txt"))
        settings = settings_of(rows, Path(scratch, "start"), seed + (number or 0), batch_items=batch_size)

        is_bf16 = variant == "bf16"
        with tempfile.TemporaryDirectory() as folder:
            _, seconds = timed(
                train_pairs, student, known, english, other, settings, Path(folder), is_bf16, teacher_batch
            )
        student.save_pretrained(str(Path(scratch, f"{variant}-{number}")), create_model_card=False)
        return {"seconds": seconds}

    return work


def train_pairs(
    student: SentenceTransformer,
    teacher: SentenceTransformer,
    english: list[str],
    other: list[str],
    settings: TrainingSettings,
    folder: Path,
    bf16: bool,
    teacher_batch: int = TEACHER_BATCH,
) -> None:
    """Encodes the English of each pair and trains the student in place."""
    vectors = teacher.encode(english, batch_size=teacher_batch, show_progress_bar=False)
    pairs = Dataset.from_dict({"english": english, "non_english": other, "label": vectors})
    train_with_sbert(student, pairs, MSELoss(model=student), settings, folder, bf16=bf16)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
