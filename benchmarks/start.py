"""How a student should begin: what its length at the start costs, for a unit-norm teacher and for others.

Claims. For a unit-norm teacher, an error divided by the targets' variance and a student that ends in a normalisation
learn most in the same steps. For a teacher with vectors of other lengths, or of another size than the student's, it is
a linear layer that begins as the least-squares map (`students.build.fitted_projection`).

    python -m benchmarks.start --data DIR                  about 25 minutes on 2 cores
    python -m benchmarks.start --data DIR --teachers raw   one teacher alone

The teachers are all-MiniLM-L6-v2 (`unit`), the same without its normalisation (`raw`), that times ten (`tenfold`), and
that through a fixed random map to 256 dimensions (`small`). The student has the teacher's layers and a vocabulary of
16,000 learnt from Multi30K's English and French; it learns from the same 250 batches of 2,048 tokens in every way, at a
learning rate of 5e-4 with 10 % warm-up and linear decay, gradients clipped at 1, by the project's own task and loop.

Ways for the unit-norm teacher:

    plain        the mean squared error over dimensions
    divided      the squared error divided by the targets' variance
    normalised   plain, and the student ends in a normalisation
    both         divided, and the student ends in a normalisation

Ways for the others, all divided:

    plain        the student as it is; where sizes differ, behind a random linear layer
    scaled       the same behind one factor, so that its mean length at the start is the teacher's (a learnt layer)
    fitted       behind the least-squares map

Printed are, on the 1,000 pairs of test_2016_flickr: translation accuracy English–French, the mean of both directions;
and the distance of the French to the teacher's English relative to the targets' variance (0 is the teacher, 1 what the
mean vector scores), before the first step and after the last.
"""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.machine import MINILM, add_data, machine, require
from bertrelay.data.records import Rejects
from bertrelay.data.tokens import Tokens, tokens_of
from bertrelay.encoder import Projection, SentenceEncoder
from bertrelay.hardware import accelerator
from bertrelay.settings import InputFile, ModelSource
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import Batch, train
from bertrelay.vocabulary import train_unigram
from students.build import copy_of, fitted_projection
from students.distill import DevData, DistillationTask
from students.evaluate import read_translations
from students.metrics import Encoded, mse_metrics, translation_metrics
from students.parallel.corpus import CorpusPlan, ParallelCorpus, Translations, build_corpus
from students.settings import AlignedFiles, DistillSettings, TeacherCopy
from students.targets import Targets, fill_targets

LANGUAGE, VOCABULARY, MAX_TOKENS, BATCH_TOKENS = "fr", 16_000, 128, 2_048
SMALL_DIM, FOLD = 256, 10.0
LENGTH_SAMPLE = 2_000


@dataclass(frozen=True)
class Ground:
    """What all ways share. bare: the student before anyone chose what comes after its pooling."""

    settings: DistillSettings
    corpus: ParallelCorpus
    tokens: Tokens
    bare: SentenceEncoder
    test: Translations
    steps: int


@dataclass(frozen=True)
class Way:
    """How a student begins, and whether its error is divided by the targets' variance."""

    name: str
    start: Callable[[Ground, Targets], SentenceEncoder]
    divided: bool = True


class FewSteps:
    """A task with only as many items, drawn with a seed, as fill so many batches."""

    criterion = None

    def __init__(self, task: DistillationTask, steps: int, seed: int) -> None:
        self.task, self.model = task, task.model
        drawn = np.random.default_rng(seed).permutation(len(task.lengths))
        enough = int(np.searchsorted(np.cumsum(task.lengths[drawn]), steps * BATCH_TOKENS))
        self.items = drawn[:enough]
        self.lengths = self.padded_lengths = task.lengths[self.items]

    def collate(self, items: Items, epoch: int) -> Batch:
        return self.task.collate(self.items[items], epoch)

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return self.task.loss(model, batch)

    def evaluate(self) -> Metrics:
        return {}


# How a student begins


def plain(ground: Ground, targets: Targets) -> SentenceEncoder:
    student, dim = deepcopy(ground.bare), targets.vectors.shape[1]
    if student.dim != dim:
        torch.manual_seed(ground.settings.seed)
        student.projection = Projection(student.pooled_dim, dim)
    return student


def scaled(ground: Ground, targets: Targets) -> SentenceEncoder:
    student = plain(ground, targets)
    places = np.linspace(0, len(ground.corpus) - 1, LENGTH_SAMPLE).astype(np.int64)
    vectors = student.encode([ground.corpus.texts(place, place + 1)[0] for place in places.tolist()])
    wanted = targets.vectors[ground.corpus.targets[places]]
    factor = float(np.linalg.norm(wanted, axis=1).mean() / np.linalg.norm(vectors, axis=1).mean())
    if student.projection is None:
        student.projection = same(student.dim)
    with torch.no_grad():
        for parameter in student.projection.parameters():
            parameter.mul_(factor)
    return student


def fitted(ground: Ground, targets: Targets) -> SentenceEncoder:
    student = deepcopy(ground.bare)
    student.projection = fitted_projection(student, ground.corpus, targets)
    return student


def normalised(ground: Ground, targets: Targets) -> SentenceEncoder:
    student = plain(ground, targets)
    student.normalize = True
    return student


def same(dim: int) -> Projection:
    """A linear layer that changes nothing yet."""
    layer = Projection(dim, dim)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.eye(dim))
        layer.linear.bias.zero_()
    return layer


OF_UNIT = [
    Way("plain", plain, divided=False),
    Way("divided", plain),
    Way("normalised", normalised, divided=False),
    Way("both", normalised),
]
OF_OTHERS = [Way("plain", plain), Way("scaled", scaled), Way("fitted", fitted)]


# Teachers


def teachers() -> dict[str, SentenceEncoder]:
    """Four teachers on one backbone."""
    unit = SentenceEncoder.load(MINILM).to(accelerator().device)
    tenfold, small = same(unit.pooled_dim), Projection(unit.pooled_dim, SMALL_DIM, bias=False)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        tenfold.linear.weight.mul_(FOLD)
        small.linear.weight.normal_(0, SMALL_DIM**-0.5, generator=generator)
    return {
        "unit": unit,
        "raw": _with_end(unit, None),
        "tenfold": _with_end(unit, tenfold),
        "small": _with_end(unit, small),
    }


def _with_end(encoder: SentenceEncoder, projection: Projection | None) -> SentenceEncoder:
    ended = SentenceEncoder(
        encoder.backbone,
        encoder.tokenizer,
        pooling=encoder.pooling,
        projection=projection,
        max_tokens=encoder.max_tokens,
    )
    return ended.to(encoder.device)


# The measurement


def lay_ground(options: Namespace, teacher: SentenceEncoder, context: StageContext) -> Ground:
    """Corpus, vocabulary, bare student and test pairs."""
    settings = DistillSettings(
        teacher=ModelSource.parse(MINILM),
        base=TeacherCopy(layers_of="teacher", vocabulary=VOCABULARY),
        parallel=[_multi30k(options.data, "train")],
        seed=options.seed,
        learning_rate=5e-4,
        batch_tokens=BATCH_TOKENS,
    )
    corpus = build_corpus(context.cache, "corpus", CorpusPlan(settings.parallel, seed=0))
    tokenizer = train_unigram(corpus.texts(0, len(corpus)), VOCABULARY, MAX_TOKENS)
    bare = copy_of(teacher, tokenizer).to(accelerator().device)
    tokens = tokens_of(corpus.texts, len(corpus), bare.tokenize, context.cache / "tokens")
    with Rejects(None) as rejects:
        test = read_translations([_multi30k(options.data, "test_2016_flickr")], context, rejects)[LANGUAGE]
    return Ground(settings, corpus, tokens, bare, test, options.steps)


def _multi30k(data: Path, part: str) -> AlignedFiles:
    english, other = (InputFile(data / f"parallel/multi30k/{part}.{code}.gz") for code in ("en", LANGUAGE))
    return AlignedFiles(english=english, other=other, language=LANGUAGE)


def learn(way: Way, ground: Ground, targets: Targets, folder: Path) -> SentenceEncoder:
    """Trains a student that begins in this way; returns it as it is after the last step."""
    student = way.start(ground, targets).to(accelerator().device)
    # The task divides a sum over dimensions: by their number it is the plain mean.
    divisor = targets.variance if way.divided else float(student.dim)
    no_dev = DevData({}, Encoded({}, np.empty((0, student.dim), np.float32)), divisor)
    task = DistillationTask(
        student, ground.settings, ground.corpus, replace(targets, variance=divisor), ground.tokens, no_dev
    )
    train(FewSteps(task, ground.steps, ground.settings.seed), ground.settings, folder)
    return student


def measure(
    student: SentenceEncoder, test: Translations, wanted: NDArray[np.float32], variance: float
) -> tuple[float, float]:
    """Translation accuracy, and relative distance to the teacher's vectors `wanted` (pairs, dim)."""
    vectors = student.encode([*test.english, *test.other])
    english, other = vectors[: len(wanted)], vectors[len(wanted) :]
    hits = translation_metrics(LANGUAGE, english, other, intervals=False).values()
    distance = mse_metrics(LANGUAGE, other, wanted, variance)[f"mse_relative/{LANGUAGE}"]
    return float(np.mean([hit for hit in hits if hit is not None])), cast(float, distance)


def compare(name: str, teacher: SentenceEncoder, ground: Ground, context: StageContext) -> None:
    """All ways for one teacher, a line for each."""
    targets = fill_targets(teacher, ground.corpus, context, name, "auto")
    wanted = teacher.encode(ground.test.english)
    length = float(np.linalg.norm(wanted, axis=1).mean())
    print(f"teacher {name}: {teacher.dim} dimensions, mean length {length:.2f}, variance {targets.variance:.3f}")
    for way in OF_UNIT if targets.is_unit else OF_OTHERS:
        _, at_start = measure(way.start(ground, targets), ground.test, wanted, targets.variance)
        began = time.perf_counter()
        student = learn(way, ground, targets, context.output / name / way.name)
        seconds = time.perf_counter() - began
        accuracy, distance = measure(student, ground.test, wanted, targets.variance)
        print(
            f"  {way.name:12} accuracy {accuracy:.3f}   distance {at_start:8.3f} → {distance:.3f}   {seconds:6.1f} s",
            flush=True,
        )


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.start", description=(__doc__ or "").partition("\n")[0])
    add_data(parser)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    names = ["unit", "raw", "tenfold", "small"]
    parser.add_argument("--teachers", nargs="+", default=names, choices=names)
    options = parser.parse_args()
    require(parser, options.data, "parallel/multi30k")
    print(machine())
    print(f"{options.steps} steps of {BATCH_TOKENS:,} tokens, seed {options.seed}; test_2016_flickr English–French")
    with tempfile.TemporaryDirectory() as scratch:
        context = StageContext(Path(scratch, "students"), Path(scratch, "cache"))
        known = teachers()
        ground = lay_ground(options, known["raw"], context)
        for name in options.teachers:
            compare(name, known[name], ground, context)


if __name__ == "__main__":
    main()
