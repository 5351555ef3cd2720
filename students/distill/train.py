"""Multilingual distillation: a student learns the teacher's vector of English, for English and its translations.

Reimers & Gurevych (2020), "Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import copyfile

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from bertrelay.checks import check_dimensions
from bertrelay.data.tokens import Tokens, prompt_tokenizer, store_tokens
from bertrelay.device import ComputePrecision, to_device
from bertrelay.evaluation.encode import Encode
from bertrelay.files import read_json, write_json
from bertrelay.fingerprint import Digests, content_parts, fingerprint
from bertrelay.inference.run_model import connect
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.families import Part, unlike_family
from bertrelay.model.tokenizer import count_subwords
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, broadcast_from_main, main_first
from bertrelay.progress import log, spinner
from bertrelay.report import model_name, write_report
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import BatchSchedule, Items, Lengths
from bertrelay.training.log import LOG
from bertrelay.training.loop import train
from bertrelay.training.task import Batch
from students.distill import learning_curve
from students.distill.epochs import EpochItems, EpochValues, draw_english
from students.distill.losses import compare_batches, create_losses
from students.distill.plan import plan_training
from students.distill.report import training_report
from students.distill.retention import (
    ACCURACY,
    average_with_start,
    freeze_layers,
    held_out_means,
    keep_directions,
    retained_targets,
)
from students.distill.settings import DistillSettings
from students.distill.start import START, start_student
from students.distill.targets import ItemTargets, Targets, fill_targets
from students.evaluate.diagnosis import gain_metrics
from students.evaluate.nearness import nearness_metrics
from students.evaluate.spread import spread_metrics
from students.evaluate.translation import encode_once, parallel_metrics, save_variance, translation_metrics
from students.evaluate.verdicts import of_failures
from students.parallel.corpus import ParallelCorpus, build_corpus
from students.parallel.general_sentences import GENERAL, general_sentences
from students.parallel.settings import ParallelSource
from students.parallel.soundness import soundness_metrics
from students.teacher import OpenedTeacher, open_teacher

EXPLAINED, CRITERION = "dev/explained_variance", "dev/score"
CORPUS_VERSION = 5
UNTRAINED = "untrained/"


def run(settings: DistillSettings, context: StageContext) -> Metrics:
    """Trains a student: corpus, teacher's vectors, start, training, average with the start, and `model/` is written."""
    settings.log_missing_languages()
    with connect(context.engine_before_training, context.process_group) as executor:
        precision = context.precision(settings.precision, executor)
        corpus = training_corpus(settings, context, precision)
        with main_first(context.process_group):
            teacher = open_teacher(settings.teacher, settings.teacher_prompt, context.cache)
        check_dimensions(settings.objectives.dimensions, teacher.dim)
        plan = plan_training(settings, corpus, teacher, context, precision, executor, partial(sample_task, precision))
        settings = plan.apply(settings) if plan else settings
        with main_first(context.process_group):
            translated = plan.translated if plan else None
            corpus, epoch_items = draw_english(corpus, settings, context.work / "drawn", translated)
        targets = fill_targets(teacher, corpus, context, precision, executor)
    student, sizes = start_student(settings, corpus, teacher, targets, context, precision)
    task = distillation_task(settings, corpus, epoch_items, teacher, targets, student, context, precision)
    facts = source_metrics(settings, corpus, teacher, student)
    del teacher  # its vectors are on the disk, and the student needs its memory
    with spinner("evaluating the start"):
        group = context.process_group
        start = broadcast_from_main(task.evaluate(group), group) if task.criterion else {}
    metrics = train(task, settings, context.output, context.work, precision)
    if context.process_group.is_main and task.criterion:
        schedule = BatchSchedule(task.lengths, settings, getattr(task, "groups", None))
        write_json(context.output / learning_curve.FILE, learning_curve.learning_curve(context.output / LOG, schedule))
    if settings.average_with_start:
        metrics |= average_with_start(student, start, task.evaluate, context)
    if settings.keep_directions:
        base_accuracy = held_out_means(task.base_accuracies(context)).get("untrained", 0.0)
        metrics |= keep_directions(student, corpus, targets, task.evaluate, base_accuracy, context, precision)
    metrics |= facts | gain_metrics(start, metrics)
    student.matryoshka_dimensions = tuple(settings.objectives.dimensions)
    if context.process_group.is_main:
        for level, text in of_failures(metrics):
            log(f"{level}: {text}")
        save_student(student, corpus, targets, context)
    items: Metrics = {"train_items": len(corpus)}
    if epoch_items:
        items |= {"epoch_items": len(epoch_items(0)), "english_items": len(corpus.english_sources)}
    planned = plan.metrics() if plan else {}
    if context.process_group.is_main:
        names = model_name(settings.teacher, "vectors of a file"), model_name(settings.base)
        curve = (read_json(context.output / learning_curve.FILE) or {}).get("rows", [])
        write_report(training_report(*names, corpus.facts, curve), context)
    return {**metrics, **sizes, "target_variance": targets.variance, **items, **planned}


def source_metrics(
    settings: DistillSettings, corpus: ParallelCorpus, teacher: OpenedTeacher, student: SentenceEncoder
) -> Metrics:
    """Looks for failures before the training: in the corpus, and in models used unlike their family."""
    encoder, used = teacher.model, dict[str, dict[Part, str]]()
    if not isinstance(encoder, SentenceEncoder):
        metrics = soundness_metrics(corpus, None)
    else:
        metrics = soundness_metrics(corpus, partial(count_subwords, encoder.tokenizer))
        used["teacher"] = unlike_family(str(settings.teacher), encoder, teacher.text_before)
    if isinstance(settings.base, ModelSource):
        used["base"] = unlike_family(str(settings.base), student)
    for model, differences in used.items():
        for part, words in differences.items():
            log(f"{model}: warning: {words}")
            metrics[f"family/{model}_{part}"] = 1
    return metrics


def training_corpus(settings: DistillSettings, context: StageContext, precision: ComputePrecision) -> ParallelCorpus:
    """The corpus of the settings, from the cache or written to it by the main process."""
    digests = Digests(context.cache.folder / "digests.json")
    drawn = [] if settings.dev else ["dev_sentences"]
    limits = [settings.filters.max_pairs, *(source.max_pairs for source in settings.parallel)]
    limits += [source.max_sentences for source in settings.english]
    if drawn or any(limits):  # the seed decides nothing else
        drawn.append("seed")
    fields = ["parallel", "filters", "english", "dev", "dev_untrained", "retained", *drawn]
    parts = content_parts(settings, fields, digests)
    if general := general_sources(settings):
        languages = [language for source in general for language in source.languages]
        parts["general"] = [digests.of_file(GENERAL), *languages]
    if settings.filters.margin:
        parts["precision"] = precision  # the margins of pairs, which decide about them, differ with it
    folder = context.cache.folder / "corpora" / fingerprint({"version": CORPUS_VERSION, **parts})[:32]
    with main_first(context.process_group):
        return build_corpus(folder, settings, precision, context.cache, dev_untrained=settings.dev_untrained or general)


def general_sources(settings: DistillSettings) -> Sequence[ParallelSource]:
    """The sentences that come with the project, where there is dev data and the settings name no `dev_untrained`.

    A pretrained base is measured in all their languages, any other in those that are trained.
    """
    if settings.dev_untrained or not (settings.has_dev or settings.average_with_start or settings.keep_directions):
        return []
    trained = {language for source in settings.parallel for language in source.languages}
    return general_sentences(None if isinstance(settings.base, ModelSource) else trained)


def distillation_task(
    settings: DistillSettings,
    corpus: ParallelCorpus,
    epoch_items: EpochItems | None,
    teacher: OpenedTeacher,
    targets: Targets,
    student: SentenceEncoder,
    context: StageContext,
    precision: ComputePrecision,
) -> "DistillationTask":
    """The training of `student` from its start, with tokens, retained vectors and the teacher's of the dev data."""
    with spinner("the teacher's vectors of the held-out sentences"):
        untrained = corpus.dev_untrained_texts
        has_untrained = teacher.can_encode(untrained)
        texts = [*corpus.dev_texts, *(untrained if has_untrained else ())]
        dev_teacher = encode_once(teacher, texts, precision, process_group=context.process_group)
    if not has_untrained:
        log("the teacher's file has no vectors of the untrained held-out sentences: their nearness is not measured")
    retained = retained_targets(student, corpus, context)
    freeze_layers(student, settings.frozen_layers)
    with main_first(context.process_group):
        tokens = store_tokens(corpus.texts, len(corpus), prompt_tokenizer(student), context.work / "tokens")
    kind = task_class(settings)
    item_targets = ItemTargets(corpus, targets, retained)
    return kind(student, settings, item_targets, tokens, dev_teacher, precision, has_untrained, epoch_items)


def task_class(settings: DistillSettings) -> type["DistillationTask"]:
    return InBatchDistillationTask if compare_batches(settings.objectives) else DistillationTask


def sample_task(
    precision: ComputePrecision, settings: DistillSettings, student: SentenceEncoder, targets: ItemTargets, folder: Path
) -> "DistillationTask":
    """The training of a sample by which a plan is made; it is not evaluated. folder: takes its tokens."""
    corpus = targets.corpus
    tokens = store_tokens(corpus.texts, len(corpus), prompt_tokenizer(student), folder)
    return task_class(settings)(student, settings, targets, tokens, student.encode, precision)


def save_student(student: SentenceEncoder, corpus: ParallelCorpus, targets: Targets, context: StageContext) -> None:
    """Writes the student with the unit of its distances, and the counts and rejects of its corpus, to the output."""
    write_json(context.output / "corpus.json", corpus.facts)
    copyfile(corpus.rejects, context.output / corpus.rejects.name)
    student.save(context.output / "model")
    save_variance(targets.variance, context.output / "model")


@dataclass
class DistillationTask:
    """A student that learns the vectors of `targets` by losses that are sums over items.

    An item is one sentence. A distinct English sentence is one item, which counts as often as it has translations.

    dev_teacher: gives the teacher's vectors of the held-out sentences: of English, and of translations only where these
        learn vectors of their own.
    has_untrained: it gives those of other domains and languages than the trained ones, too.
    epoch_items: gives the items of an epoch, by whose positions the loop knows them; None where it is all of them.
    """

    model: SentenceEncoder
    settings: DistillSettings
    targets: ItemTargets
    tokens: Tokens
    dev_teacher: Encode
    precision: ComputePrecision
    has_untrained: bool = True
    epoch_items: EpochItems | None = None

    def __post_init__(self) -> None:
        self.corpus = self.targets.corpus
        self.lengths = self.padded_lengths = self._by_epoch(self.tokens.lengths)
        self.criterion = CRITERION if self.corpus.dev else None
        self.losses = create_losses(self.targets, self.settings)

    def _by_epoch(self, values: NDArray[np.integer]) -> Lengths:
        """The values of the items of an epoch, from those of all items."""
        return values if self.epoch_items is None else EpochValues(values, self.epoch_items)

    def _items(self, positions: Items, epoch: int) -> Items:
        """The items at these positions among those of an epoch."""
        return positions if self.epoch_items is None else self.epoch_items(epoch)[positions]

    def collate(self, items: Items, epoch: int) -> Batch:
        items = self._items(items, epoch)
        batch = self._token_batch(items)
        return Batch({**batch.inputs, **self._loss_inputs(items)}, batch.counts)

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        vectors = model(batch.inputs["input_ids"], batch.inputs["attention_mask"])  # (batch, dim)
        return self._weighted_losses(vectors, batch.inputs)

    def _token_batch(self, items: Items) -> Batch:
        """The tokens of `items`, and the denominators of their losses."""
        ids, mask = self.tokens.padded(items, self.model.pad_id)
        counts = {name: loss.count(items) for name, loss in self.losses.items()}
        return Batch({"input_ids": ids, "attention_mask": mask}, counts)

    def _loss_inputs(self, items: Items) -> dict[str, Tensor]:
        inputs = self.targets.tensors(items)
        for loss in self.losses.values():
            inputs |= loss.inputs(items)
        return inputs

    def _weighted_losses(self, vectors: Tensor, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        weights = self.settings.objectives
        return {name: getattr(weights, name) * loss.sum(vectors, inputs) for name, loss in self.losses.items()}

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        """Translation accuracy and nearness to the teacher by language, on trained domains and on untrained ones.

        `dev/score`, which chooses the weights, is the mean of 1 − the relative distance and of the accuracy on those.
        """
        pairs, untrained = self.corpus.dev, self.corpus.dev_untrained
        sets = [*pairs.values(), *untrained.values()]
        sentences = [sentence for translations in sets for texts in translations for sentence in texts]
        encode = encode_once(self.model, sentences, self.precision, process_group=process_group)
        own_vectors = self.corpus.own_vectors
        metrics = parallel_metrics(
            pairs, encode, self.dev_teacher, self.targets.teacher.variance, own_vectors=own_vectors
        )
        metrics |= nearness_metrics(pairs, encode, self.dev_teacher, own_vectors=own_vectors)
        metrics |= spread_metrics(pairs, encode, self.dev_teacher)
        distances = [value for name, value in metrics.items() if name.startswith("mse_relative/") and value is not None]
        sizes = {f"sentences/{language}": len(translations.other) for language, translations in pairs.items()}
        if self.has_untrained:
            metrics |= nearness_metrics(untrained, encode, self.dev_teacher, own_vectors=own_vectors, kind=UNTRAINED)
        metrics = {f"dev/{name}": value for name, value in {**metrics, **sizes}.items()}
        metrics |= self._untrained_accuracies(encode)
        for language, translations in untrained.items():
            metrics[f"dev/sentences/{UNTRAINED}{language}"] = len(translations.other)
        if distances:
            metrics[EXPLAINED] = 1 - float(np.mean(distances))
            accuracy = held_out_means(metrics).get("untrained", metrics[EXPLAINED])
            metrics[CRITERION] = float(np.mean([metrics[EXPLAINED], accuracy]))
        return metrics

    def base_accuracies(self, context: StageContext) -> Metrics:
        """The translation accuracies of the base's own vectors on the untrained domains; every process calls it."""
        base = SentenceEncoder.load(context.work / START, self.model.device).with_parts(projection=None)
        texts = [text for pair in self.corpus.dev_untrained.values() for texts in pair for text in texts]
        return self._untrained_accuracies(encode_once(base, texts, self.precision, process_group=context.process_group))

    def _untrained_accuracies(self, encode: Encode) -> Metrics:
        metrics: Metrics = {}
        for language, translations in self.corpus.dev_untrained.items():
            vectors = encode(translations.english), encode(translations.other)
            metrics |= translation_metrics(language, vectors, f"dev/{ACCURACY}/untrained")
        return metrics


class InBatchDistillationTask(DistillationTask):
    """A training in which a loss compares the items of a batch: an English sentence comes with its translations.

    groups: the row of the English sentence of each item; a retained text is a group of its own, and so is each time
        that an English sentence without translations is drawn.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        items = np.arange(len(self.corpus))
        groups = np.where(items < self.corpus.taught, self.corpus.targets, items)
        self.groups: Lengths = groups if self.epoch_items is None else partial(self._groups_in, groups)

    def _groups_in(self, groups: NDArray[np.integer], epoch: int) -> NDArray[np.integer]:
        assert self.epoch_items is not None
        items = self.epoch_items(epoch)
        is_drawn = (items >= self.corpus.translated) & (items < len(self.corpus.english))
        return np.where(is_drawn, len(groups) + np.arange(len(items)), groups[items])

    def collate(self, items: Items, epoch: int) -> Batch:
        return self._token_batch(self._items(items, epoch))

    def vectors(self, model: nn.Module, batch: Batch) -> Tensor:
        vectors: Tensor = model(batch.inputs["input_ids"], batch.inputs["attention_mask"])  # (batch, dim)
        return vectors

    def batch_losses(self, vectors: Tensor, items: Items, epoch: int) -> Mapping[str, Tensor]:
        inputs = self._loss_inputs(self._items(items, epoch))
        on_device = {name: to_device(tensor, vectors.device) for name, tensor in inputs.items()}
        return self._weighted_losses(vectors, on_device)
