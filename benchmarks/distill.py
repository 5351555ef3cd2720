"""Distillation beside sentence-transformers: seconds for the teacher's vectors and one epoch, and what was learnt.

Claims, on a CPU that computes in bf16: at most a sixth of the time of its default and a third of the fastest of its
settings, at a translation accuracy not below theirs; forced to fp32 at most 1/2.5 of the time of its default.

    python -m benchmarks.distill --data DIR                 half an hour on 2 cores
    python -m benchmarks.distill --data DIR --rows 500 --rounds 1

3,000 pairs of Multi30K teach a student all-MiniLM-L6-v2's vectors in one epoch: 1,000 English sentences, drawn with a
seed, with their translations into German, French and Czech, which is what a multilingual student is given. All begin
with the same student, made once by `students.build`: the teacher's layers under a vocabulary of 4,000 learnt from the
pairs, ending in a normalisation as the teacher does. All have the same learning rate (AdamW, linear, a tenth of the
steps warm-up), clipping at 1, dropout and no weight decay. Each contender is a process of its own with its libraries
loaded; it learns once from a few rows, unmeasured, and then they take turns (`benchmarks.contenders`), every round with
another seed. A time begins when the models are loaded and ends with the last step.

Contenders: BertRelay as it comes (`auto`) and forced to fp32; sentence-transformers after the example in its repository
(make_multilingual.py): fp32, 64 pairs a step, teacher's batches of 64; and at its best: the teacher's weights in bf16
with the batch size that is fastest for it, so many pairs a step (32, 48, 64 or 128) as are fastest, the student in bf16
by autocast or by its weights. None of its settings batches pairs of like length (`group_by_length` of its arguments has
no effect there), but its trainer takes a sampler: its bf16 weights with one of ours stand beside it, and are in no
claim.

Where the two designs differ: theirs learns from so many pairs a step, ours from as many sentences as make as many steps
of an epoch, and it has each distinct English sentence once, with the weight of its translations. Ours divides the
squared error by the variance of the teacher's vectors, theirs by the dimensions, which matters to clipping alone, as
AdamW knows no scale. The labels of theirs go into its data set at once, without the `map` of its example, which takes
longer.

More steps learn more and take longer, so that a time says nothing without its accuracy. Ours learns with 32, 48 and 64
pairs a step, and each of theirs stands beside the fastest of ours that is at least as accurate.

Translation accuracy is the mean of both directions and all languages on the 1,000 rows of test_2016_flickr, of the
weights after the last step, by one scorer in fp32. Figures are medians over rounds, ratios those of the ratio in a
round; in brackets the least and the most.

Tokens and the share of the matrix rate are as in `benchmarks.encode`, of what all have to do: each distinct sentence
once, an English one by the teacher, and all by the student, forwards and, at twice the work, backwards. What a
contender does beside it, padding or the same English sentence again, does not count for it.
"""

import json
import random
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.contenders import Answer, Claim, Contender, Spread, at_least, in_turns, judge
from benchmarks.distill_ours import settings_of
from benchmarks.encode import operations
from benchmarks.machine import MINILM, add_data, add_device, machine, matrix_rate, require
from bertrelay.data.records import Rejects
from bertrelay.encoder import SentenceEncoder
from bertrelay.settings import InputFile, ModelSource
from bertrelay.stage import Metrics, StageContext
from students.build import start_student
from students.evaluate import read_translations
from students.metrics import translation_metrics
from students.parallel.corpus import CorpusPlan, Translations, build_corpus
from students.settings import AlignedFiles, TeacherCopy
from students.targets import fill_targets

VOCABULARY, LEARNING_RATE = 4_000, 5e-4
PAIRS, PAIRS_TRIED, TRIED_ON = 64, (32, 48, 64, 128), 384
OF_DEFAULT, OF_BEST, FP32_OF_DEFAULT = 6.0, 3.0, 2.5
PASSES = 3
"""Of a training step, each as much work as the way forwards: there, and back to the inputs and to the weights."""


@dataclass(frozen=True)
class Entrant:
    """Who takes part. pairs: in a step; of several, the fastest. claimed: whether the claims are about it."""

    title: str
    module: str
    settings: dict[str, str]
    pairs: tuple[int, ...] = (PAIRS,)
    claimed: bool = True


OURS_MODULE, PEER_MODULE, DEFAULT = "benchmarks.distill_ours", "benchmarks.distill_peer", "default"
ENTRANTS = {
    DEFAULT: Entrant("sentence-transformers", PEER_MODULE, {"way": "default"}),
    "bf16": Entrant("its bf16 autocast", PEER_MODULE, {"way": "bf16"}, PAIRS_TRIED),
    "weights": Entrant("its bf16 weights", PEER_MODULE, {"way": "bf16 weights"}, PAIRS_TRIED),
    "sorted": Entrant(
        "bf16 weights, our sampler", PEER_MODULE, {"way": "bf16 weights", "sampler": "ours"}, PAIRS_TRIED, claimed=False
    ),
    "auto-64": Entrant("BertRelay", OURS_MODULE, {"precision": "auto"}, (64,)),
    "auto-48": Entrant("BertRelay", OURS_MODULE, {"precision": "auto"}, (48,)),
    "auto-32": Entrant("BertRelay", OURS_MODULE, {"precision": "auto"}, (32,)),
    "fp32": Entrant("BertRelay, fp32", OURS_MODULE, {"precision": "fp32"}, (32,)),
}
FP32 = "fp32"
AUTO = ["auto-64", "auto-48", "auto-32"]
OURS = [*AUTO, FP32]


@dataclass(frozen=True)
class Result:
    """What a contender gave, by round."""

    title: str
    pairs: int
    seconds: list[float]
    accuracies: list[float]

    @property
    def time(self) -> float:
        return Spread.of(self.seconds).median

    @property
    def accuracy(self) -> float:
        return Spread.of(self.accuracies).median

    def slower_than(self, other: "Result") -> Spread:
        """How many times its time is the other's."""
        return Spread.of_ratios(self.seconds, other.seconds)


# What all share


def write_rows(options: Namespace) -> None:
    """The drawn pairs in `rows`, and a few of them in `few`, as lines: each English sentence in every language."""
    sides = multi30k(options, "train")
    sentences = len(next(iter(sides.values())).english)
    chosen_rows = random.Random(options.seed).sample(range(sentences), min(options.rows // len(sides), sentences))
    drawn = [(side.english[row], side.other[row]) for row in chosen_rows for side in sides.values()]
    random.Random(options.seed).shuffle(drawn)
    for folder, chosen in (("rows", drawn), ("few", drawn[:TRIED_ON])):
        (options.scratch / folder).mkdir()
        for name, side in zip(("en.txt", "other.txt"), zip(*chosen, strict=True), strict=True):
            (options.scratch / folder / name).write_text("\n".join(side) + "\n", encoding="utf-8")


def multi30k(options: Namespace, part: str) -> dict[str, Translations]:
    """By language; row n of each is the same English sentence."""
    file = {
        code: InputFile(options.data / f"parallel/multi30k/{part}.{code}.gz") for code in ["en", *options.languages]
    }
    sources = [AlignedFiles(english=file["en"], other=file[code], language=code) for code in options.languages]
    with Rejects(None) as rejects:
        return read_translations(sources, StageContext(options.scratch, options.scratch), rejects)


def save_start(options: Namespace) -> None:
    """The student that all begin with."""
    base = TeacherCopy(layers_of="teacher", vocabulary=VOCABULARY)
    settings = settings_of(options.scratch / "rows", MINILM, base=base, seed=options.seed, precision="fp32")
    context = StageContext(options.scratch / "output", options.scratch / "cache")
    corpus = build_corpus(context.cache, "corpus", CorpusPlan(settings.parallel, settings.seed, settings.filters))
    teacher = SentenceEncoder.load(MINILM)
    targets = fill_targets(teacher, corpus, context, "teacher", settings.precision)
    start_student(settings, corpus, teacher, targets, context).student.save(options.scratch / "start")


class Load(NamedTuple):
    """What all have to do. tokens: the student's. operations: floating-point ones of all matrix products."""

    tokens: int
    operations: float


def load(options: Namespace) -> Load:
    english, other = (
        (options.scratch / "rows" / name).read_text(encoding="utf-8").splitlines() for name in ("en.txt", "other.txt")
    )
    teacher, student = SentenceEncoder.load(MINILM), SentenceEncoder.load(options.scratch / "start")
    taught, learnt = lengths(teacher, english), lengths(student, [*english, *other])
    work = operations(taught, teacher.backbone.config) + PASSES * operations(learnt, student.backbone.config)
    return Load(int(learnt.sum()), work)


def lengths(encoder: SentenceEncoder, sentences: list[str]) -> NDArray[np.int64]:
    """Tokens of each distinct sentence."""
    return np.array([len(ids) for ids in encoder.tokenize(list(dict.fromkeys(sentences)))])


# The measurement


def measure(options: Namespace) -> tuple[dict[str, Result], list[float]]:
    """The result of each contender, and the matrix rate in each round."""
    contenders = {name: started(ENTRANTS[name], options) for name in ENTRANTS if name in options.contenders}
    pairs = {name: fastest(contender, ENTRANTS[name].pairs) for name, contender in contenders.items()}
    works = {name: turn(name, contender, pairs[name], options.seed) for name, contender in contenders.items()}
    answers = in_turns({"rate": lambda _: {"rate": matrix_rate(options.device)}, **works}, options.rounds)
    for contender in contenders.values():
        contender.end()
    test = multi30k(options, "test_2016_flickr")
    results = {name: result(name, pairs[name], answers[name], test, options) for name in contenders}
    return results, [answer["rate"] for answer in answers["rate"]]


def started(entrant: Entrant, options: Namespace) -> Contender:
    print(f"making ready: {entrant.title}", file=sys.stderr, flush=True)
    shared = {"scratch": str(options.scratch), "teacher": str(ModelSource.parse(MINILM))}
    settings = {**shared, **entrant.settings, "learning_rate": options.learning_rate}
    return Contender(entrant.module, options.device, options.threads, settings)


def fastest(contender: Contender, sizes: Sequence[int]) -> int:
    """The pairs a step, of `sizes`, with which a few rows are learnt fastest; a warm-up alone where there is one."""
    seconds = {size: contender.ask(rows="few", seed=0, batch_size=size)["seconds"] for size in [*sizes, *sizes]}
    return min(sizes, key=lambda size: seconds[size])


def turn(name: str, contender: Contender, pairs: int, seed: int) -> Callable[[int], Answer]:
    return lambda number: contender.ask(rows="rows", seed=seed + number, batch_size=pairs, keep=f"{name}-{number}")


def result(name: str, pairs: int, answers: list[Answer], test: dict[str, Translations], options: Namespace) -> Result:
    students = [SentenceEncoder.load(options.scratch / f"{name}-{number}") for number in range(options.rounds)]
    return Result(
        title=ENTRANTS[name].title,
        pairs=pairs,
        seconds=[answer["seconds"] for answer in answers],
        accuracies=[translation_accuracy(student, test) for student in students],
    )


def translation_accuracy(student: SentenceEncoder, test: dict[str, Translations]) -> float:
    """The mean of both directions over all languages."""
    found: Metrics = {}
    for language, side in test.items():
        vectors = student.encode([*side.english, *side.other], precision="fp32")
        english, other = vectors[: len(side.english)], vectors[len(side.english) :]
        found |= translation_metrics(language, english, other, intervals=False)
    return statistics.mean(cast(float, value) for value in found.values())


# What is told


def print_table(results: dict[str, Result], job: Load) -> None:
    print(f"{'':25} {'pairs':>5} {'seconds':>22} {'tokens/s':>9} {'accuracy':>24}   ours is × as fast, pairs; fp32 ×")
    for name, result in results.items():
        seconds, accuracy = Spread.of(result.seconds), Spread.of(result.accuracies).told(4)
        pace = f"{job.tokens / seconds.median:>9,.0f}"
        ratios = "" if name in OURS else "; ".join(ours_beside(result, results))
        print(f"{result.title:25} {result.pairs:>5} {seconds!s:>22} {pace} {accuracy:>24}   {ratios}")


def ours_beside(peer: Result, results: dict[str, Result]) -> Iterator[str]:
    ours = as_accurate(peer, [results[name] for name in AUTO if name in results])
    yield f"{peer.slower_than(ours)}, {ours.pairs}" if ours else "none as accurate"
    if FP32 in results:
        yield str(peer.slower_than(results[FP32]))


def as_accurate(peer: Result, ours: Sequence[Result]) -> Result | None:
    """The fastest of ours that is at least as accurate."""
    able = [result for result in ours if result.accuracy >= peer.accuracy]
    return min(able, key=lambda result: result.time, default=None)


def claims(results: dict[str, Result]) -> list[Claim]:
    default, auto = results[DEFAULT], [results[name] for name in AUTO]
    peers = [result for name, result in results.items() if name not in OURS and ENTRANTS[name].claimed]
    fastest = min(peers, key=lambda peer: peer.time)
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


def figures(result: Result, results: dict[str, Result], job: Load) -> dict[str, Any]:
    """All that was measured of one contender."""
    faster = {f"{name}_faster": result.slower_than(results[name])._asdict() for name in OURS if name in results}
    return {
        "title": result.title,
        "pairs_a_step": result.pairs,
        "seconds": result.seconds,
        "tokens_per_second": job.tokens / Spread.of(result.seconds).median,
        "accuracies": result.accuracies,
        **faster,
    }


def parsed() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.distill", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    add_device(parser)
    parser.add_argument("--rows", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=3)
    languages = ["de", "fr", "cs"]
    parser.add_argument("--languages", nargs="+", choices=languages, default=languages)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--seed", type=int, default=0, help="of the rows, and of the first round's training")
    parser.add_argument("--contenders", nargs="+", choices=list(ENTRANTS), default=list(ENTRANTS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there too")
    options = parser.parse_args()
    parts = [f"{part}.{code}.gz" for part in ("train", "test_2016_flickr") for code in ["en", *options.languages]]
    require(parser, options.data, *(f"parallel/multi30k/{part}" for part in parts))
    return options


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    print(machine())
    print(
        f"{options.rows:,} pairs of English with {', '.join(options.languages)}, one epoch, "
        f"learning rate {options.learning_rate:g}, {options.rounds} rounds, on {options.device}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        options.scratch = Path(scratch)
        write_rows(options)
        save_start(options)
        start = SentenceEncoder.load(options.scratch / "start")
        at_start = translation_accuracy(start, multi30k(options, "test_2016_flickr"))
        job = load(options)
        results, rates = measure(options)
    print(f"translation accuracy of the student that all begin with: {at_start:.4f}")
    print_table(results, job)
    rate = Spread.of(rate / 1e12 for rate in rates)
    print(f"bf16 matrix rate {rate} TFLOP/s; of it the networks on real tokens reach:")
    for name in OURS:
        if name in results:
            share = Spread.of_ratios([job.operations / seconds for seconds in results[name].seconds], rates)
            print(f"{results[name].title}, {results[name].pairs} pairs a step: {share}")
    judged = claims(results) if options.device == "cpu" and len(results) == len(ENTRANTS) else []
    holds = judge(judged)
    if options.json:
        told = {
            "machine": machine(),
            "device": options.device,
            "threads": options.threads,
            "rows": options.rows,
            "languages": options.languages,
            "learning_rate": options.learning_rate,
            "accuracy_at_start": at_start,
            "contenders": {name: figures(result, results, job) for name, result in results.items()},
            "tokens": job.tokens,
            "operations": job.operations,
            "matrix_rate": rates,
            "claims": [claim._asdict() for claim in judged],
        }
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
