"""Our side of benchmarks.distill."""

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import Work, serve
from bertrelay.data.tokens import tokens_of
from bertrelay.encoder import SentenceEncoder
from bertrelay.settings import InputFile, ModelSource
from bertrelay.stage import StageContext
from bertrelay.training.loop import train
from students.distill import DistillationTask, dev_data
from students.parallel.corpus import CorpusPlan, build_corpus
from students.settings import AlignedFiles, DistillSettings, Filters
from students.targets import fill_targets

EVERY_PAIR = Filters(max_length_ratio=1000, max_characters=100_000, drop_copies=False, drop_duplicates=False)


def settings_of(rows: Path, teacher: str, **training: Any) -> DistillSettings:
    """Every row is learnt from and none held out."""
    source = AlignedFiles(english=InputFile(rows / "en.txt"), other=InputFile(rows / "other.txt"), language="xx")
    return DistillSettings(
        teacher=ModelSource.parse(teacher),
        parallel=[source],
        filters=EVERY_PAIR,
        dev_sentences=0,
        weight_decay=0.0,
        **training,
    )


def prepare(device: str, threads: int, scratch: str, teacher: str, learning_rate: float, precision: str) -> Work:
    torch.set_num_threads(threads)
    known, start = SentenceEncoder.load(teacher).to(device), Path(scratch, "start")

    def work(rows: str, seed: int, batch_size: int, keep: str | None = None) -> dict[str, Any]:
        settings = settings_of(
            Path(scratch, rows),
            teacher,
            base=ModelSource.parse(str(start)),
            seed=seed,
            batch_items=sentences_for(Path(scratch, rows), batch_size),
            learning_rate=learning_rate,
            precision=precision,
        )
        student = SentenceEncoder.load(start).to(device)
        with tempfile.TemporaryDirectory() as name:
            began = time.perf_counter()
            distil(student, known, settings, StageContext(Path(name, "output"), Path(name, "cache")))
            seconds = time.perf_counter() - began
        if keep:
            student.save(Path(scratch, keep))
        return {"seconds": seconds}

    return work


def sentences_for(rows: Path, pairs: int) -> int:
    """Sentences a step, so that there are as many steps as with `pairs` a step: English is learnt from once."""
    english, other = ((rows / name).read_text(encoding="utf-8").splitlines() for name in ("en.txt", "other.txt"))
    return round((len(set(english)) + len(other)) / math.ceil(len(other) / pairs))


def distil(
    student: SentenceEncoder, teacher: SentenceEncoder, settings: DistillSettings, context: StageContext
) -> None:
    """What the stage `students.distill` does once its models are loaded."""
    corpus = build_corpus(context.cache, "corpus", CorpusPlan(settings.parallel, settings.seed, settings.filters))
    targets = fill_targets(teacher, corpus, context, "teacher", settings.precision)
    dev = dev_data(corpus, teacher, targets, settings.precision)
    tokens = tokens_of(corpus.texts, len(corpus), student.tokenize, context.cache / "tokens")
    train(DistillationTask(student, settings, corpus, targets, tokens, dev), settings, context.output)


if __name__ == "__main__":
    serve(prepare)
