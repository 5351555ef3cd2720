"""The plan of a training within a budget of minutes: how many sentences get the teacher's vectors, and how many epochs.

Made once, before the work begins, from rates that are measured on a sample; a resumed run keeps it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

import numpy as np

from bertrelay.compute.work import Executor
from bertrelay.data.arrow import Mask, mask_of
from bertrelay.data.tokens import prompt_tokenizer
from bertrelay.device import ComputePrecision, matmul_precision
from bertrelay.errors import plural
from bertrelay.files import read_json, write_json
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.process_group import broadcast_from_main, main_first, on_main
from bertrelay.progress import log, spinner
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import lengths_in
from bertrelay.training.cuda_graphs import replay_networks
from bertrelay.training.loop import Training
from bertrelay.training.task import Task
from students.distill.retention import freeze_layers
from students.distill.settings import DistillSettings
from students.distill.start import create_base, fit_to_teacher, shrink_base
from students.distill.targets import ItemTargets, fill_targets, missing_vectors
from students.parallel.corpus import ParallelCorpus, restrict_corpus
from students.teacher import OpenedTeacher

FILE = "plan.json"
SAMPLE = 512
"""English sentences that teacher and student are timed on, with their translations; their vectors stay in the store."""
WARMED = 64
"""Sentences that the teacher encodes before it is timed."""
WARM_UP, TIMED = 2, 6
"""Steps of the student before and while it is timed."""
MOST_EPOCHS = 4
"""Up to four passes over a text are nearly worth as much new text (Muennighoff et al. 2023)."""

CreateTask = Callable[[DistillSettings, SentenceEncoder, ItemTargets, Path], Task]
"""(settings, student, targets, folder of tokens) → the training of a sample."""


class Costs(NamedTuple):
    """Seconds that a budget is spent on.

    encode_pairs: for the teacher's vectors of the parallel text. pass_pairs: to train on it once, retained texts too.
    encode_english, pass_english: the same of one sentence without translations. english: the number of these.
    """

    encode_pairs: float
    pass_pairs: float
    encode_english: float = 0.0
    pass_english: float = 0.0
    english: int = 0


class Sizes(NamedTuple):
    """Sizes within a budget: the fraction of the parallel text, sentences without translations an epoch, and epochs."""

    pairs: float
    english: int
    epochs: int


def sizes_within(seconds: float, costs: Costs) -> Sizes:
    """The most text that can be encoded and trained on once in `seconds`; where all of it can, the most epochs.

    The parallel text comes first, but where sentences without translations have no time left, it gets half of the time.

    For 1,000 seconds, with 200 seconds for the pairs, and 5,000 sentences of 0.3 seconds each, all pairs and 2,666
    sentences are used once; of 1,000 sentences all are, in 500 seconds. If a pass takes 300 of these, there is time for
    another one.
    """
    sentence, pairs = costs.encode_english + costs.pass_english, costs.encode_pairs + costs.pass_pairs
    for_pairs = max(seconds / 2, seconds - costs.english * sentence)
    fraction = min(1.0, for_pairs / pairs)
    english = min(costs.english, int((seconds - fraction * pairs) / sentence + 1e-6)) if costs.english else 0
    rest = seconds - fraction * pairs - english * sentence
    one_pass = fraction * costs.pass_pairs + english * costs.pass_english
    return Sizes(fraction, english, min(MOST_EPOCHS, 1 + int(rest / one_pass + 1e-6)))


class Plan(NamedTuple):
    """A plan as `plan.json` and the metrics have it; rates are those that were measured.

    translated: English sentences of the parallel text that are trained on. english: sentences without translations in
    an epoch. new_vectors: sentences that the teacher encodes, at most.
    """

    teacher_sentences_per_second: float | None
    student_tokens_per_second: float
    translated: int
    english: int
    epochs: int
    new_vectors: int
    steps: int
    teacher_minutes: float
    training_minutes: float

    def apply(self, settings: DistillSettings) -> DistillSettings:
        """The settings of the training that is planned."""
        planned = {"epochs": self.epochs, "english_per_epoch": self.english, "budget_minutes": None}
        return settings.model_copy(update=planned)

    def metrics(self) -> Metrics:
        return {f"plan/{name}": value for name, value in self._asdict().items()}

    def describe(self, settings: DistillSettings, corpus: ParallelCorpus) -> str:
        """A line for the log, with rates, sizes and times."""
        by_teacher = self.teacher_sentences_per_second
        rate = f"{by_teacher:,.0f} sentences/s of the teacher and " if by_teacher else ""
        without = f" and {self.english:,} of {len(corpus.english_sources):,} without" if self.english else ""
        return (
            f"plan for {settings.budget_minutes:g} minutes, by {rate}{self.student_tokens_per_second:,.0f} tokens/s of "
            f"the student: {self.translated:,} of {corpus.translated:,} English sentences with translations{without}; "
            f"{self.new_vectors:,} vectors of the teacher ({self.teacher_minutes:.1f} minutes), then {self.steps:,} "
            f"steps in {self.epochs} {plural(self.epochs, 'epoch', 'epochs')} ({self.training_minutes:.1f} minutes)"
        )


def plan_training(
    settings: DistillSettings,
    corpus: ParallelCorpus,
    teacher: OpenedTeacher,
    context: StageContext,
    precision: ComputePrecision,
    executor: Executor,
    create_task: CreateTask,
) -> Plan | None:
    """The plan for the budget of the settings, made or, in a resumed run, read; None without a budget.

    Every process calls it.
    """
    if settings.budget_minutes is None:
        return None
    path, group = context.output / FILE, context.process_group
    if (made := on_main(lambda: read_json(path), group)) is not None:
        return Plan(**made)
    missing = missing_vectors(teacher, corpus, context, precision, executor)
    rates = _measure(settings, corpus, missing, teacher, context, precision, executor, create_task)
    plan = plan_by(broadcast_from_main(rates, group), settings, corpus, missing)
    if group.is_main:
        write_json(path, plan._asdict())
    log(plan.describe(settings, corpus))
    return plan


def plan_by(rates: "Rates", settings: DistillSettings, corpus: ParallelCorpus, missing: Mask) -> Plan:
    """The plan for the budget of the settings. missing: marks the vectors that are to be computed."""
    assert settings.budget_minutes is not None
    without, count = slice(corpus.translated, len(corpus.english)), len(corpus.english_sources)
    others = len(corpus) - count
    per_vector = 1 / rates.sentences_per_second if rates.sentences_per_second else 0.0
    costs = Costs(
        encode_pairs=float(missing.sum() - missing[without].sum()) * per_vector,
        pass_pairs=others * rates.pair_tokens / rates.tokens_per_second,
        encode_english=float(missing[without].mean()) * per_vector if count else 0.0,
        pass_english=rates.english_tokens / rates.tokens_per_second,
        english=count,
    )
    sizes = sizes_within(settings.budget_minutes * 60, costs)
    training = sizes.epochs * (sizes.pairs * costs.pass_pairs + sizes.english * costs.pass_english)  # seconds
    encoding = sizes.pairs * costs.encode_pairs + sizes.english * costs.encode_english
    steps = (
        training * rates.tokens_per_second / settings.batch_tokens
        if settings.batch_tokens
        else sizes.epochs * (sizes.pairs * others + sizes.english) / (settings.batch_items or 1)
    )
    return Plan(
        teacher_sentences_per_second=rates.sentences_per_second,
        student_tokens_per_second=rates.tokens_per_second,
        translated=max(1, round(sizes.pairs * corpus.translated)),
        english=sizes.english,
        epochs=sizes.epochs,
        new_vectors=round(encoding / per_vector) if per_vector else 0,
        steps=round(steps),
        teacher_minutes=encoding / 60,
        training_minutes=training / 60,
    )


class Rates(NamedTuple):
    """Rates on a sample. sentences_per_second: of the teacher, None where it has nothing to encode.

    tokens_per_second: of the student in training. pair_tokens, english_tokens: of an item of the parallel text, and of
    an English sentence without translations, on average.
    """

    sentences_per_second: float | None
    tokens_per_second: float
    pair_tokens: float
    english_tokens: float


def _measure(
    settings: DistillSettings,
    corpus: ParallelCorpus,
    missing: Mask,
    teacher: OpenedTeacher,
    context: StageContext,
    precision: ComputePrecision,
    executor: Executor,
    create_task: CreateTask,
) -> Rates:
    with _sample(corpus, missing, context) as (sample, folder), spinner("timing teacher and student"):
        if missing_vectors(teacher, sample, context, precision, executor).any():
            teacher.encode(sample.english.read(0, WARMED), precision)  # the first batches compile kernels
        targets = fill_targets(teacher, sample, context, precision, executor)
        base, _ = shrink_base(create_base(settings, sample, teacher, context.cache), settings, sample, precision)
        student = fit_to_teacher(base, settings, sample, teacher, targets, precision)
        freeze_layers(student, settings.frozen_layers)
        timed = settings.model_copy(update={"epochs": WARM_UP + TIMED, "tracker": None, "patience": None})
        with main_first(context.process_group):
            task = create_task(timed, student, ItemTargets(sample, targets), folder / "tokens")
        tokens_per_second = _time_steps(task, timed, folder, precision)
        return Rates(targets.sentences_per_second, tokens_per_second, *_mean_tokens(corpus, student))


@contextmanager
def _sample(corpus: ParallelCorpus, missing: Mask, context: StageContext) -> Iterator[tuple[ParallelCorpus, Path]]:
    """SAMPLE English sentences of the corpus, evenly spread, with their translations; and a folder for them.

    They are of those whose vectors are missing, if these are as many: else there is hardly anything to encode.
    """
    folder, group = context.work / "sample", context.process_group
    rows = np.flatnonzero(missing[: len(corpus.english)])
    rows = rows if len(rows) >= SAMPLE else np.arange(len(corpus.english))
    english = mask_of(rows[np.unique(np.linspace(0, len(rows) - 1, SAMPLE).astype(np.int64))], len(corpus.english))
    if group.is_main:
        rmtree(folder, ignore_errors=True)  # of a killed run: the store has its vectors, so there is nothing to time
    with main_first(group):
        sample = restrict_corpus(corpus, english, folder / "corpus", with_retained=False)
    try:
        yield sample, folder
    finally:
        if group.is_main:
            rmtree(folder, ignore_errors=True)


def _mean_tokens(corpus: ParallelCorpus, student: SentenceEncoder) -> tuple[float, float]:
    """Tokens of an item of the parallel text, and of an English sentence without translations, on average."""
    tokenize, means = prompt_tokenizer(student), []
    items = np.arange(len(corpus))
    is_without = (items >= corpus.translated) & (items < len(corpus.english))
    for part in (items[~is_without], items[is_without]):
        drawn = part[np.unique(np.linspace(0, len(part) - 1, SAMPLE).astype(np.int64))] if len(part) else part
        ids = tokenize([corpus.texts(item, item + 1)[0] for item in drawn.tolist()]) if len(drawn) else []
        means.append(sum(map(len, ids)) / max(1, len(ids)))
    return means[0], means[1]


def _time_steps(task: Task, settings: DistillSettings, folder: Path, precision: ComputePrecision) -> float:
    """Trains a few steps, which are forgotten; returns tokens a second, of all processes together."""
    training = Training(task, settings, folder, folder, precision)
    steps = min(training.schedule.total_steps, WARM_UP + TIMED)
    tokens, started = 0, time.monotonic()
    with (
        matmul_precision(training.gradients.precision),
        replay_networks(task.model, capture=settings.cuda_graphs) if training.is_replayed else nullcontext(),
        closing(training.rank_batches()) as batches,
    ):
        for step in range(steps):
            training.step(batches)
            float(training.unread[-1].norm)  # waits for the device
            if step < min(WARM_UP, steps - 1):
                tokens, started = 0, time.monotonic()
            else:
                epoch, items = training.schedule.batch(step)
                tokens += int(lengths_in(epoch, task.lengths)[items].sum())
    return tokens / (time.monotonic() - started)
