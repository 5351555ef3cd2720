"""Distillation beside sentence-transformers: seconds for one epoch and the accuracy that it reaches.

Claims, on a CPU that computes in bf16: at most a sixth of the time of its default and a third of its fastest setting,
at a translation accuracy not below theirs; forced to fp32 at most 1/2.5 of the time of its default.

    python -m benchmarks.distill --data DIR                 half an hour on 2 cores
    python -m benchmarks.distill --data DIR --rows 500 --rounds 1

All start from the same student (the layers of all-MiniLM-L6-v2, a vocabulary of 4,000, unit-norm), with the same
learning rate, clipping, dropout and no weight decay. A time starts when the models are loaded and ends with the last
step; each round has another seed. Accuracy is the mean of both directions and all languages on test_2016_flickr.

The peer's default is fp32 with 64 pairs a step; its bf16 settings get the fastest of 32, 48, 64 and 128 pairs.
BertRelay trains each distinct English sentence once, with as many sentences a step as make equally many steps. More
steps reach more and take longer, so each peer is compared with the fastest BertRelay that is at least as accurate.
"""

import gzip
import math
import random
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.harness import Claim, Contender, Spread, Work, at_least, in_turns, main, timed
from benchmarks.machine import MINILM
from bertrelay.data.tokens import tokens_of
from bertrelay.encoder import SentenceEncoder
from bertrelay.settings import InputFile, ModelSource
from bertrelay.stage import StageContext
from bertrelay.training.loop import train
from students.build import start_student
from students.corpus import build_corpus
from students.distill import DistillationTask
from students.metrics import translation_metrics
from students.settings import AlignedFiles, DistillSettings, Filters, TeacherCopy
from students.targets import fill_targets

VOCABULARY, LEARNING_RATE, LANGUAGES = 4_000, 5e-4, ["de", "fr", "cs"]
PAIRS_TRIED, TRIED_ON = (32, 48, 64, 128), 384
OF_DEFAULT, OF_BEST, FP32_OF_DEFAULT = 6.0, 3.0, 2.5
EVERY_PAIR = Filters(max_length_ratio=1000, max_characters=100_000, drop_copies=False, drop_duplicates=False)

PEERS = {
    "default": ("sentence-transformers", (64,)),
    "bf16": ("its bf16 autocast", PAIRS_TRIED),
    "weights": ("its bf16 weights", PAIRS_TRIED),
}
OURS = {
    "auto-64": ("BertRelay", (64,)),
    "auto-48": ("BertRelay", (48,)),
    "auto-32": ("BertRelay", (32,)),
    "fp32": ("BertRelay, fp32", (32,)),
}
"""Title, and pairs a step to try."""
CONTENDERS, AUTO, FP32 = {**PEERS, **OURS}, ["auto-64", "auto-48", "auto-32"], "fp32"


@dataclass(frozen=True)
class Result:
    """What a contender reached, by round."""

    title: str
    pairs: int
    seconds: list[float]
    accuracies: list[float]

    @property
    def accuracy(self) -> float:
        return Spread.of(self.accuracies).median

    def slower_than(self, other: "Result") -> Spread:
        return Spread.of_ratios(self.seconds, other.seconds)


def settings_of(rows: Path, **training: Any) -> DistillSettings:
    """Every row is trained on and none held out."""
    source = AlignedFiles(english=InputFile(rows / "en.txt"), other=InputFile(rows / "other.txt"), language="xx")
    fixed: dict[str, Any] = {"parallel": [source], "filters": EVERY_PAIR, "dev_sentences": 0, "weight_decay": 0.0}
    fixed["learning_rate"] = LEARNING_RATE
    return DistillSettings(teacher=ModelSource.parse(MINILM), **fixed, **training)


def prepare(threads: int, scratch: str, teacher: str, variant: str) -> Work:
    torch.set_num_threads(threads)
    known, begin = SentenceEncoder.load(teacher), Path(scratch, "start")
    precision = "fp32" if variant == FP32 else "auto"

    def work(rows: str, seed: int, batch_size: int, keep: str | None = None) -> dict[str, Any]:
        folder, student = Path(scratch, rows), SentenceEncoder.load(begin)
        base, sentences = ModelSource.parse(str(begin)), sentences_for(folder, batch_size)
        settings = settings_of(folder, base=base, seed=seed, batch_items=sentences, precision=precision)
        with tempfile.TemporaryDirectory() as name:
            context = StageContext(Path(name, "output"), Path(name, "cache"))
            _, seconds = timed(distill, student, known, settings, context)
        if keep:
            student.save(Path(scratch, keep))
        return {"seconds": seconds}

    return work


def sentences_for(rows: Path, pairs: int) -> int:
    """Sentences a step that make as many steps as `pairs` a step: distinct English is trained on once."""
    english, other = ((rows / name).read_text(encoding="utf-8").splitlines() for name in ("en.txt", "other.txt"))
    return round((len(set(english)) + len(other)) / math.ceil(len(other) / pairs))


def distill(
    student: SentenceEncoder, teacher: SentenceEncoder, settings: DistillSettings, context: StageContext
) -> None:
    """The stage `students.distill` once its models are loaded."""
    corpus = build_corpus(context.cache / "corpus", settings)
    targets = fill_targets(teacher, corpus, context, "teacher", settings.precision)
    tokens = tokens_of(corpus.texts, len(corpus), student.tokenize, context.cache / "tokens")
    train(DistillationTask(student, settings, corpus, targets, tokens, teacher.encode), settings, context.output)


def multi30k(options: Namespace, part: str) -> dict[str, list[str]]:
    """Lines by language; line n of each is a translation of the others."""
    found = {}
    for code in ["en", *LANGUAGES]:
        with gzip.open(options.data / f"parallel/multi30k/{part}.{code}.gz", "rt", encoding="utf-8") as file:
            found[code] = [line.strip() for line in file]
    return found


def write_rows(options: Namespace) -> None:
    """The drawn pairs in `rows`, and a few of them in `few`: each drawn English sentence in every language."""
    lines = multi30k(options, "train")
    count = min(options.rows // len(LANGUAGES), len(lines["en"]))
    chosen = random.Random(options.seed).sample(range(len(lines["en"])), count)
    drawn = [(lines["en"][row], lines[code][row]) for row in chosen for code in LANGUAGES]
    random.Random(options.seed).shuffle(drawn)
    for folder, pairs in (("rows", drawn), ("few", drawn[:TRIED_ON])):
        (options.scratch / folder).mkdir()
        for name, column in zip(("en.txt", "other.txt"), zip(*pairs, strict=True), strict=True):
            (options.scratch / folder / name).write_text("\n".join(column) + "\n", encoding="utf-8")


def save_start(options: Namespace) -> None:
    """The student that all start from."""
    base = TeacherCopy(layers_of="teacher", vocabulary=VOCABULARY)
    settings = settings_of(options.scratch / "rows", base=base, seed=options.seed, precision="fp32")
    context = StageContext(options.scratch / "output", options.scratch / "cache")
    corpus = build_corpus(context.cache / "corpus", settings)
    teacher = SentenceEncoder.load(MINILM)
    targets = fill_targets(teacher, corpus, context, "teacher", settings.precision)
    start_student(settings, corpus, teacher, targets, context)[0].save(options.scratch / "start")


def translation_accuracy(student: SentenceEncoder, test: dict[str, list[str]]) -> float:
    """The mean of both directions over all languages, in fp32."""
    vectors = {code: student.encode(sentences, precision="fp32") for code, sentences in test.items()}
    found: list[float] = []
    for code in test.keys() - {"en"}:
        found += cast(Any, translation_metrics(code, vectors["en"], vectors[code]).values())
    return statistics.mean(found)


def compete(options: Namespace) -> dict[str, Result]:
    shared = {"scratch": str(options.scratch), "teacher": str(ModelSource.parse(MINILM))}
    works, pairs = {}, {}
    for name, (_, sizes) in CONTENDERS.items():
        function = f"benchmarks.{'distill' if name in OURS else 'distill_peer'}:prepare"
        contender = Contender(function, options.threads, **shared, variant=name)
        pairs[name] = contender.fastest(sizes, rows="few", seed=0)
        works[name] = lambda number, name=name, ask=contender.ask: ask(
            rows="rows", seed=options.seed + number, batch_size=pairs[name], keep=f"{name}-{number}"
        )
    answers = in_turns(works, options.rounds)
    test, results = multi30k(options, "test_2016_flickr"), {}
    for name, (title, _) in CONTENDERS.items():
        saved = [SentenceEncoder.load(options.scratch / f"{name}-{number}") for number in range(options.rounds)]
        accuracies = [translation_accuracy(student, test) for student in saved]
        results[name] = Result(title, pairs[name], [answer["seconds"] for answer in answers[name]], accuracies)
    return results


def as_accurate(peer: Result, ours: Sequence[Result]) -> Result | None:
    """The fastest of ours that is at least as accurate."""
    able = [result for result in ours if result.accuracy >= peer.accuracy]
    return min(able, key=lambda result: Spread.of(result.seconds).median, default=None)


def claims(results: dict[str, Result]) -> list[Claim]:
    default, auto = results["default"], [results[name] for name in AUTO]
    fastest = min((results[name] for name in PEERS), key=lambda peer: Spread.of(peer.seconds).median)
    return [
        as_fast(OF_DEFAULT, "its default", default, auto),
        as_fast(OF_BEST, f"the fastest of its settings ({fastest.title})", fastest, auto),
        as_fast(FP32_OF_DEFAULT, "its default in fp32", default, [results[FP32]]),
    ]


def as_fast(times: float, what: str, peer: Result, ours: Sequence[Result]) -> Claim:
    text = f"as fast as {what}, at an accuracy not below its {peer.accuracy:.4f}"
    able = as_accurate(peer, ours)
    if able is None:
        return Claim(f"at least {times} × {text}", "none of ours is as accurate", False)
    return at_least(times, text, peer.slower_than(able))


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    write_rows(options)
    save_start(options)
    begin = SentenceEncoder.load(options.scratch / "start")
    at_start = translation_accuracy(begin, multi30k(options, "test_2016_flickr"))
    results = compete(options)
    print(f"{options.rows:,} pairs; translation accuracy of the start: {at_start:.4f}")
    print(f"{'':25} {'pairs':>5} {'seconds':>22} {'accuracy':>24}   ours is × as fast, pairs; fp32 ×")
    for name, result in results.items():
        beside = ""
        if name in PEERS:
            ours = as_accurate(result, [results[name] for name in AUTO])
            faster = f"{result.slower_than(ours)}, {ours.pairs}" if ours else "none as accurate"
            beside = f"{faster}; {result.slower_than(results[FP32])}"
        pace, accuracy = Spread.of(result.seconds), Spread.of(result.accuracies).shown(4)
        print(f"{result.title:25} {result.pairs:>5} {pace!s:>22} {accuracy:>24}   {beside}")
    found = {name: vars(result) for name, result in results.items()}
    return claims(results), {"accuracy_at_start": at_start, "contenders": found}


if __name__ == "__main__":
    main(measure, __doc__, "parallel/multi30k", threads=True, rows=3_000, rounds=3, seed=0)
