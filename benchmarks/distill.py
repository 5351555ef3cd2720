"""Distillation beside sentence-transformers: seconds for one epoch and the accuracy that it reaches.

Claims, on a CPU that computes in bf16: at most a sixth of the time of its default and a third of its fastest setting,
at a translation accuracy not below theirs; forced to fp32 at most 1/2.5 of the time of its default; and 30 % of the
bf16 matrix rate. With --device cuda: at most a quarter, and 1/1.5 of the fastest.

    python -m benchmarks.distill --data DIR                 half an hour on 2 cores
    python -m benchmarks.distill --data DIR --rows 500 --rounds 1

All start from the same student (the layers of all-MiniLM-L6-v2, a vocabulary of 4,000, unit-norm), with the same
learning rate, clipping, dropout and no weight decay. A time starts when the models are loaded and ends with the last
step; each round has another seed. Accuracy is the mean of both directions and all languages on test_2016_flickr.

The peer's default is fp32 with 64 pairs a step; its bf16 settings get the fastest of 32, 48, 64 and 128 pairs, on a GPU
of 64 and 128. BertRelay trains each distinct English sentence once, with as many sentences a step as make equally many
steps. More steps reach more and take longer, so each peer is compared with the fastest BertRelay that is at least as
accurate.

The share of the matrix rate is as in `benchmarks.encode`, over the whole time of the fastest BertRelay.
"""

import gzip
import math
import random
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.encode import RATE, operations
from benchmarks.harness import (
    Answer,
    Claim,
    Contender,
    Result,
    Spread,
    Work,
    at_least,
    in_turns,
    main,
    print_results,
    timed,
)
from benchmarks.machine import MINILM, matrix_rate
from benchmarks.trainer import train_with_sbert
from bertrelay.cache import Cache
from bertrelay.data.tokens import store_tokens
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.settings import EncoderSource, InputFile, ModelSource
from bertrelay.stage import StageContext
from bertrelay.training.loop import train
from bertrelay.training.settings import TrainingSettings
from students.distill.settings import DistillSettings, TeacherCopy
from students.distill.start import start_student
from students.distill.targets import ItemTargets, fill_targets
from students.distill.train import DistillationTask
from students.evaluate.translation import translation_metrics
from students.parallel.corpus import build_corpus
from students.parallel.settings import AlignedFiles, Filters
from students.teacher import OpenedTeacher, open_teacher

VOCABULARY, LEARNING_RATE, LANGUAGES = 4_000, 5e-4, ["de", "fr", "cs"]
PAIRS_TRIED, PAIRS_TRIED_ON_GPUS, TRIED_ON = [32, 48, 64, 128], [64, 128], 384
OF_DEFAULT, OF_BEST, FP32_OF_DEFAULT = {"cpu": 6.0, "cuda": 4.0}, {"cpu": 3.0, "cuda": 1.5}, 2.5
MATRIX_SHARE = 0.3
EVERY_PAIR = Filters(max_length_ratio=1000, max_characters=100_000, drop_copies=False, drop_duplicates=False)

TEACHER_BATCH, TEACHER_BATCHES, TEACHER_TRIED_ON = 64, [16, 32, 64, 128, 256], 1_000

PEERS = {"default": [64], "bf16": PAIRS_TRIED, "weights": PAIRS_TRIED}
AUTO = {"ours-64": [64], "ours-48": [48], "ours-32": [32]}
FP32 = {"ours-fp32": [32]}
"""Pairs a step to try, by contender. The peer's `bf16` is autocast, `weights` has its weights in bf16."""


def settings_of(rows: Path, base: Path | TeacherCopy, seed: int, **training: Any) -> DistillSettings:
    """Every row is trained on and none held out."""
    source = AlignedFiles(english=InputFile(rows / "en.txt"), other=InputFile(rows / "other.txt"), language="qaa")
    return DistillSettings(
        teacher=EncoderSource.parse(MINILM),
        base=ModelSource.parse(str(base)) if isinstance(base, Path) else base,
        parallel=[source],
        filters=EVERY_PAIR,
        dev_sentences=0,
        weight_decay=0.0,
        learning_rate=LEARNING_RATE,
        seed=seed,
        **training,
    )


def rows_folder(scratch: str, number: int | None) -> Path:
    """The rows of a round, or those of a trial."""
    return Path(scratch, "few" if number is None else "rows")


def prepare(scratch: str, teacher: str, variant: str, seed: int) -> Work:
    known, begin = SentenceEncoder.load(teacher), Path(scratch, "start")
    precision = "fp32" if variant in FP32 else "auto"

    def work(batch_size: int, number: int | None) -> Answer:
        rows, student = rows_folder(scratch, number), SentenceEncoder.load(begin)
        sentences = sentences_for(rows, batch_size)
        settings = settings_of(rows, begin, seed + (number or 0), batch_items=sentences, precision=precision)
        with tempfile.TemporaryDirectory() as name:
            context = StageContext(Path(name, "output"), Cache(Path(name, "cache")))
            _, seconds = timed(distill, student, known, settings, context)
        student.save(Path(scratch, f"{variant}-{number}"))
        return {"seconds": seconds}

    return work


def prepare_peer(scratch: str, teacher: str, variant: str, seed: int) -> Work:
    """sentence-transformers after its example make_multilingual.py."""
    import datasets  # noqa: F401  # as the clock runs over its first use
    from sentence_transformers import SentenceTransformer, losses  # noqa: F401

    known, teacher_batch = SentenceTransformer(teacher), TEACHER_BATCH
    if variant != "default":
        known = known.bfloat16()
        sample = read_rows(rows_folder(scratch, 0))[0][:TEACHER_TRIED_ON]
        trials = {  # the first size is a warm-up, and overwritten
            size: timed(lambda size=size: known.encode(sample, batch_size=size, show_progress_bar=False))[1]
            for size in [TEACHER_BATCH, *TEACHER_BATCHES]
        }
        teacher_batch = min(trials, key=lambda size: trials[size])

    def work(batch_size: int, number: int | None) -> Answer:
        begin, rows = Path(scratch, "start"), rows_folder(scratch, number)
        student = SentenceTransformer(str(begin))
        if variant == "weights":
            student = student.bfloat16()
        pairs, settings = read_rows(rows), settings_of(rows, begin, seed + (number or 0), batch_items=batch_size)
        with tempfile.TemporaryDirectory() as folder:
            given = (student, known, *pairs, settings, Path(folder), variant == "bf16", teacher_batch)
            _, seconds = timed(train_pairs, *given)
        student.save_pretrained(str(Path(scratch, f"{variant}-{number}")), create_model_card=False)
        return {"seconds": seconds}

    return work


def train_pairs(
    student: Any,
    teacher: Any,
    english: list[str],
    other: list[str],
    settings: TrainingSettings,
    folder: Path,
    bf16: bool,
    teacher_batch: int = TEACHER_BATCH,
) -> None:
    """Encodes the English of each pair and trains the student in place."""
    from datasets import Dataset
    from sentence_transformers.losses import MSELoss

    vectors = teacher.encode(english, batch_size=teacher_batch, show_progress_bar=False)
    pairs = Dataset.from_dict({"english": english, "non_english": other, "label": vectors})
    train_with_sbert(student, pairs, MSELoss(model=student), settings, folder, bf16=bf16)


def read_rows(rows: Path) -> tuple[list[str], list[str]]:
    english, other = ((rows / name).read_text(encoding="utf-8").splitlines() for name in ("en.txt", "other.txt"))
    return english, other


def operations_of(scratch: Path) -> float:
    """Of all matrix products of an epoch: the teacher's over the distinct English, and the student's over that and the
    translations, three times, as each has two in the backward pass.
    """
    english, other = read_rows(rows_folder(str(scratch), 0))
    total = 0.0
    for model, sentences, times in ((MINILM, {*english}, 1), (scratch / "start", [*{*english}, *other], 3)):
        encoder = SentenceEncoder.load(model)
        lengths = np.array([len(ids) for ids in encoder.tokenize(list(sentences))])
        total += times * operations(lengths, encoder.backbone.config)
    return total


def sentences_for(rows: Path, pairs: int) -> int:
    """Sentences a step that make as many steps as `pairs` a step: distinct English is trained on once."""
    english, other = read_rows(rows)
    return round((len(set(english)) + len(other)) / math.ceil(len(other) / pairs))


def distill(
    student: SentenceEncoder, teacher: SentenceEncoder, settings: DistillSettings, context: StageContext
) -> None:
    """The stage `students.distill` once its models are loaded."""
    precision = context.precision(settings.precision)
    corpus = build_corpus(context.cache.folder / "corpus", settings, precision)
    targets = fill_targets(OpenedTeacher(teacher), corpus, context, precision)
    tokens = store_tokens(corpus.texts, len(corpus), student.tokenize, context.cache.folder / "tokens")
    task = DistillationTask(student, settings, ItemTargets(corpus, targets), tokens, teacher.encode, precision)
    train(task, settings, context.output, context.work, precision)


def multi30k(options: Namespace, part: str) -> dict[str, list[str]]:
    """Lines by language; line n of each is a translation of the others."""
    lines = {}
    for code in ["en", *LANGUAGES]:
        with gzip.open(options.data / f"parallel/multi30k/{part}.{code}.gz", "rt", encoding="utf-8") as file:
            lines[code] = [line.strip() for line in file]
    return lines


def write_rows(options: Namespace) -> None:
    """The drawn pairs, and a few of them for trials: each drawn English sentence in every language."""
    lines = multi30k(options, "train")
    count = min(options.rows // len(LANGUAGES), len(lines["en"]))
    chosen = random.Random(options.seed).sample(range(len(lines["en"])), count)
    drawn = [(lines["en"][row], lines[code][row]) for row in chosen for code in LANGUAGES]
    random.Random(options.seed).shuffle(drawn)
    for number, pairs in ((0, drawn), (None, drawn[:TRIED_ON])):
        folder = rows_folder(options.scratch, number)
        folder.mkdir()
        for name, column in zip(("en.txt", "other.txt"), zip(*pairs, strict=True), strict=True):
            (folder / name).write_text("\n".join(column) + "\n", encoding="utf-8")


def save_start(settings: DistillSettings, scratch: Path) -> None:
    """The student before its first step, from which all start."""
    context = StageContext(scratch / "output", Cache(scratch / "cache"))
    teacher, precision = open_teacher(settings.teacher, None, context.cache), context.precision(settings.precision)
    corpus = build_corpus(context.cache.folder / "corpus", settings, precision)
    targets = fill_targets(teacher, corpus, context, precision)
    start_student(settings, corpus, teacher, targets, context, precision)[0].save(scratch / "start")


def translation_accuracy(student: Path, test: dict[str, list[str]]) -> float:
    """The mean of both directions over all languages, in fp32."""
    encoder = SentenceEncoder.load(student)
    vectors = {code: encoder.encode(sentences, precision="fp32") for code, sentences in test.items()}
    accuracies: list[float] = []
    for code in LANGUAGES:
        accuracies += cast(Any, translation_metrics(code, (vectors["en"], vectors[code])).values())
    return statistics.mean(accuracies)


def compete(options: Namespace, test: dict[str, list[str]]) -> dict[str, Result]:
    settings = {"scratch": str(options.scratch), "teacher": str(EncoderSource.parse(MINILM)), "seed": options.seed}

    def turn(name: str, contender: Contender, number: int) -> Answer:
        answer = contender(number)
        return {**answer, "accuracy": translation_accuracy(options.scratch / f"{name}-{number}", test)}

    works: dict[str, Any] = {RATE: lambda _: {RATE: matrix_rate()}}
    for name, sizes in {**PEERS, **AUTO, **(FP32 if options.device == "cpu" else {})}.items():
        if options.device == "cuda" and sizes == PAIRS_TRIED:
            sizes = PAIRS_TRIED_ON_GPUS
        function = f"benchmarks.distill:{'prepare_peer' if name in PEERS else 'prepare'}"
        works[name] = partial(turn, name, Contender(function, sizes, **settings, variant=name))
    return in_turns(works, options.rounds)


def accuracy(result: Result) -> float:
    return result.spread("accuracy").median


def as_accurate(peer: Result, results: Mapping[str, Result], names: Sequence[str]) -> Result | None:
    """The fastest of ours that is at least as accurate."""
    able = [results[name] for name in names if accuracy(results[name]) >= accuracy(peer)]
    return min(able, key=lambda result: result.spread().median, default=None)


def claims(results: Mapping[str, Result], device: str) -> list[Claim]:
    fastest = min(PEERS, key=lambda name: results[name].spread().median)
    claimed = [
        (OF_DEFAULT[device], "its default", "default", AUTO),
        (OF_BEST[device], f"the fastest of its settings ({fastest})", fastest, AUTO),
        *([(FP32_OF_DEFAULT, "its default in fp32", "default", FP32)] if device == "cpu" else []),
    ]
    judged = []
    for times, what, peer, names in claimed:
        text = f"as fast as {what}, at an accuracy not below its {accuracy(results[peer]):.4f}"
        if able := as_accurate(results[peer], results, list(names)):
            judged.append(at_least(times, text, able.speed_over(results[peer])))
        else:
            judged.append(Claim(f"at least {times} × {text}", "none of ours is as accurate", False))
    return judged


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    write_rows(options)
    base = TeacherCopy(layers_of="teacher", vocabulary=VOCABULARY)
    rows = rows_folder(options.scratch, 0)
    save_start(settings_of(rows, base, options.seed, precision="fp32"), options.scratch)
    test = multi30k(options, "test_2016_flickr")
    at_start = translation_accuracy(options.scratch / "start", test)
    results = compete(options, test)
    rates = results.pop(RATE).values(RATE)
    print(f"{options.rows:,} pairs; translation accuracy of the start: {at_start:.4f}")

    def faster(peer: Result) -> str:
        ours = as_accurate(peer, results, list(AUTO)) if peer.name in PEERS else None
        return f"{ours.name} {ours.speed_over(peer)}" if ours else ""

    columns = {"accuracy": lambda result: f"{result.spread('accuracy'):.4f}", "ours × as fast": faster}
    print_results(results, {}, columns)
    ours = min((results[name] for name in AUTO), key=lambda result: result.spread().median)
    work = operations_of(options.scratch)
    share = Spread.of_ratios([work / seconds for seconds in ours.values()], rates)
    print(f"bf16 matrix rate {Spread.of(rate / 1e12 for rate in rates)} TFLOP/s; {ours.name} reaches {share} of it")
    judged = claims(results, options.device)
    if options.device == "cpu":
        judged.append(at_least(MATRIX_SHARE, "the bf16 matrix rate", share))
    return judged, {"accuracy_at_start": at_start, "contenders": results, "operations": work, "matrix_rate": rates}


if __name__ == "__main__":
    main(measure, __doc__, "parallel/multi30k", rows=3_000, rounds=3, seed=0)
