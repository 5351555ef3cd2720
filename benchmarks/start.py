"""How a student's projection should start when the teacher is not unit-norm or has another size.

Claim: started as the least-squares map of the student's vectors to the teacher's (`students.build.fitted_projection`),
it reaches a higher translation accuracy in the same steps than started from random or scaled.

    python -m benchmarks.start --data DIR                  some minutes on 2 cores
    python -m benchmarks.start --data DIR --teachers raw   one teacher alone

The teachers are all-MiniLM-L6-v2 without its normalisation (`raw`), that times ten (`tenfold`), and that through a
fixed random map to 256 dimensions (`small`); data and student are those of `benchmarks.distill`, without its
normalisation. Starts: `plain` (no projection, or a random one where sizes differ), `scaled` (to the teacher's mean
length), `fitted`.
"""

from argparse import Namespace
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from benchmarks.distill import (
    LEARNING_RATE,
    VOCABULARY,
    distill,
    multi30k,
    settings_of,
    translation_accuracy,
    write_rows,
)
from benchmarks.harness import Claim, main, timed
from benchmarks.machine import MINILM
from bertrelay.encoder import SentenceEncoder
from bertrelay.new_encoder import train_unigram
from bertrelay.pooling import Projection
from bertrelay.stage import StageContext
from students.build import copy_of, fitted_projection
from students.corpus import build_corpus
from students.settings import TeacherCopy
from students.targets import fill_targets

SMALL_DIM, FOLD, MAX_TOKENS, SAMPLE = 256, 10.0, 128, 2_000
STARTS, TEACHERS = ("plain", "scaled", "fitted"), ["raw", "tenfold", "small"]


def identity(dim: int, factor: float = 1.0) -> Projection:
    layer = Projection(dim, dim)
    with torch.no_grad():
        layer.linear.weight.copy_(factor * torch.eye(dim))
        layer.linear.bias.zero_()
    return layer


def teachers() -> dict[str, SentenceEncoder]:
    """On one backbone."""
    model = SentenceEncoder.load(MINILM)
    small = Projection(model.pooled_dim, SMALL_DIM, bias=False)
    torch.nn.init.normal_(small.linear.weight, 0, SMALL_DIM**-0.5, generator=torch.Generator().manual_seed(0))
    projections = {"raw": None, "tenfold": identity(model.pooled_dim, FOLD), "small": small}
    shared = {"pooling": model.pooling, "max_tokens": model.max_tokens}
    return {
        name: SentenceEncoder(model.backbone, model.tokenizer, projection=projection, **shared).eval()
        for name, projection in projections.items()
    }


def compare(options: Namespace, name: str, teacher: SentenceEncoder) -> Claim:
    """Trains a student for each start; the claim that `fitted` is best."""
    context = StageContext(options.scratch / name, options.scratch / name / "cache")
    base = TeacherCopy(layers_of="teacher", vocabulary=VOCABULARY)
    shared = {"base": base, "seed": options.seed, "learning_rate": LEARNING_RATE, "batch_tokens": 2_048}
    settings = settings_of(options.scratch / "rows", epochs=options.epochs, **shared)
    corpus = build_corpus(context.cache / "corpus", settings)
    targets = fill_targets(teacher, corpus, context, "teacher", settings.precision)
    bare = copy_of(teacher, train_unigram(corpus.texts(0, len(corpus)), VOCABULARY, MAX_TOKENS)).eval()
    rows, found = np.linspace(0, len(corpus) - 1, min(SAMPLE, len(corpus))).astype(np.int64), {}
    vectors = bare.encode([corpus.texts(row, row + 1)[0] for row in rows.tolist()])
    lengths = [np.linalg.norm(each, axis=1).mean() for each in (targets.vectors[corpus.targets[rows]], vectors)]
    for way in STARTS:
        student = deepcopy(bare)
        torch.manual_seed(options.seed)
        if way == "fitted":
            student.projection = fitted_projection(student, corpus, targets)
        elif student.dim != teacher.dim:
            student.projection = Projection(student.pooled_dim, teacher.dim)
        elif way == "scaled":
            student.projection = identity(student.dim, float(lengths[0] / lengths[1]))
        output = StageContext(context.output / way, context.cache)
        _, seconds = timed(distill, student, teacher, settings, output)
        found[way] = translation_accuracy(student.eval(), options.test)
        print(f"{name:8} {way:8} accuracy {found[way]:.3f}  {seconds:6.1f} s", flush=True)
    best = max(found, key=lambda way: found[way])
    return Claim(f"{name}: fitted is best", f"{best}, {found[best]:.3f}", best == "fitted")


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    options.languages = ["fr"]
    write_rows(options)
    options.test, known = multi30k(options, "test_2016_flickr"), teachers()
    return [compare(options, name, known[name]) for name in options.teachers], {}


if __name__ == "__main__":
    main(
        measure,
        __doc__,
        "parallel/multi30k",
        teachers={"default": TEACHERS, "choices": TEACHERS},
        rows=3_000,
        epochs=2,
        seed=1,
    )
