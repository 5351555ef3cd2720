"""Multilingual distillation: a student learns the teacher's vector of English, for English and its translations.

Reimers & Gurevych (2020), "Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from shutil import copyfile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertrelay.checks import check_dimensions
from bertrelay.data.tokens import Tokens, prompt_tokenizer, store_tokens
from bertrelay.device import ComputePrecision, to_device
from bertrelay.evaluation.encode import Encode
from bertrelay.files import write_json
from bertrelay.fingerprint import Digests, content_parts, fingerprint
from bertrelay.inference.run_model import connect
from bertrelay.model.encoder import SentenceEncoder, encoder_digest
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, main_first
from bertrelay.progress import spinner
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import train
from bertrelay.training.task import Batch
from students.distill.losses import BatchPairs, Candidates, pair_loss, ranking_divergence
from students.distill.retention import (
    ACCURACY,
    average_with_start,
    freeze_layers,
    mean_accuracies,
    retained_targets,
)
from students.distill.settings import DistillSettings
from students.distill.start import start_student
from students.distill.targets import Targets, fill_targets
from students.evaluate.translation import encoded_by, parallel_metrics, save_variance, translation_metrics
from students.parallel.corpus import NO_TARGET, ParallelCorpus, build_corpus
from students.parallel.general_sentences import general_sentences
from students.teacher import open_teacher, prompt_of
from teachers.objectives import matryoshka

TAUGHT = ("targets", "weights", "retained", "english")
TEACHER_LOSSES = ("mse", "cosine", "ranking")
EXPLAINED, CRITERION = "dev/explained_variance", "dev/score"
CORPUS_VERSION = 4


def run(settings: DistillSettings, context: StageContext) -> Metrics:
    """Builds the corpus, computes the teacher's vectors, trains the student, and writes `model/`."""
    with connect(context.engine_before_training, context.process_group) as executor:
        precision = context.precision(settings.precision, executor)
    digests = Digests(context.cache.folder / "digests.json")
    drawn = [] if settings.dev else ["dev_sentences", "seed"]  # a dev split that is given is not drawn
    if not settings.dev_untrained and (settings.has_dev or settings.average_with_start):
        trained = {language for source in settings.parallel for language in source.languages}
        general = general_sentences(None if isinstance(settings.base, ModelSource) else trained)
        settings = settings.model_copy(update={"dev_untrained": general})
    parts = content_parts(settings, ["parallel", "filters", "dev", "dev_untrained", "retained", *drawn], digests)
    decides = {"precision": precision} if settings.filters.margin else {}
    corpus_key = fingerprint({"version": CORPUS_VERSION, **parts, **decides})
    with main_first(context.process_group):
        corpus_folder = context.cache.folder / "corpora" / corpus_key[:32]
        corpus = build_corpus(corpus_folder, settings, context.cache, precision)
    with main_first(context.process_group):
        teacher = open_teacher(settings.teacher, context.cache)
    check_dimensions(settings.objectives.dimensions, teacher.dim)
    teacher_digest = fingerprint(content_parts(settings, ["teacher"], digests))
    prompt = prompt_of(settings.teacher_prompt, teacher)
    targets = fill_targets(teacher, corpus, context, teacher_digest, precision, prompt)
    student, sizes = start_student(settings, corpus, teacher, targets, context, precision)
    # Those of the teacher's teachers too; vectors that are given have none.
    student.spaces = (encoder_digest(teacher), *teacher.spaces) if isinstance(teacher, SentenceEncoder) else ()
    with spinner("the teacher's vectors of the held-out sentences"):
        dev_teacher = encoded_by(
            teacher, corpus.dev_texts, precision, prompt=prompt, process_group=context.process_group
        )
    retained = retained_targets(student, corpus, context)
    freeze_layers(student, settings.frozen_layers)
    del teacher  # its vectors are on the disk; its memory is the student's now
    with main_first(context.process_group):
        tokens = store_tokens(corpus.texts, len(corpus), prompt_tokenizer(student), context.work / "tokens")
    kind = ContrastiveTask if settings.objectives.contrastive else DistillationTask
    task = kind(student, settings, corpus, targets, retained, tokens, dev_teacher, precision)
    metrics = train(task, settings, context.output, context.work, precision)
    if settings.average_with_start:
        metrics |= average_with_start(student, task.evaluate, context)
    if context.process_group.is_main:
        write_json(context.output / "corpus.json", corpus.facts)
        copyfile(corpus.rejects, context.output / corpus.rejects.name)
        student.save(context.output / "model")
        save_variance(targets.variance, context.output / "model")
    return {**metrics, **sizes, "target_variance": targets.variance, "train_items": len(corpus)}


@dataclass
class DistillationTask:
    """Squared error of the student to the teacher's vector of the English, for the English and its translations; or of
    each sentence itself (`own_vectors`).

    An item is one sentence; a distinct English sentence is one item with the weight of its translations. The error
    is divided by the targets' variance, so that 1 is what the mean vector scores and clipping means something.
    Texts that are retained are items too; what they learn is the start's vector.

    retained: the start's vectors of the retained texts, if there are any.
    dev_teacher: gives the teacher's vectors of the held-out sentences, without own vectors of the English alone.
    """

    model: SentenceEncoder
    settings: DistillSettings
    corpus: ParallelCorpus
    targets: Targets
    retained: Targets | None
    tokens: Tokens
    dev_teacher: Encode
    precision: ComputePrecision
    candidates: Candidates | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.lengths = self.padded_lengths = self.tokens.lengths
        self.criterion = CRITERION if self.corpus.dev else None
        if self.settings.objectives.ranking:
            self.candidates = Candidates.draw(self.targets, self.settings)

    def collate(self, items: Items, epoch: int) -> Batch:  # noqa: ARG002 (nothing is random here)
        ids, mask = self.tokens.padded(items, self.model.pad_id)
        inputs = {"input_ids": ids, "attention_mask": mask, **self._taught(items)}
        counts = {name: "weights" for name in TEACHER_LOSSES if getattr(self.settings.objectives, name)}
        if self.retained:
            counts["retention"] = "retained"
        return Batch(inputs, {name: int(inputs[weights].sum()) for name, weights in counts.items()})

    def _taught(self, items: Items) -> dict[str, Tensor]:
        """The vectors (items, dim) that `items` learn, the weights of the teacher's and of the start's, and the number
        of the English sentence of each, (items,).
        """
        rows, weights = self.corpus.rows(items), self.corpus.weights_of(items)
        targets, is_retained = np.array(self.targets.vectors[rows]), rows == NO_TARGET
        taught = {"targets": torch.from_numpy(targets), "weights": torch.from_numpy(weights * ~is_retained)}
        if self.retained:
            targets[is_retained] = self.retained.vectors[items[is_retained] - self.corpus.taught]
            taught["retained"] = torch.from_numpy(weights * is_retained)
        if self.candidates:
            taught["english"] = torch.from_numpy(rows)
        return taught

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        vectors = model(batch.inputs["input_ids"], batch.inputs["attention_mask"])  # (batch, dim)
        return self._distances(vectors, **{name: batch.inputs[name] for name in TAUGHT if name in batch.inputs})

    def _distances(
        self,
        vectors: Tensor,
        targets: Tensor,
        weights: Tensor,
        retained: Tensor | None = None,
        english: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The weighted losses of vectors (items, dim) to the targets beside them."""
        objectives, losses = self.settings.objectives, {}
        distances = (vectors - targets).square().sum(dim=-1)  # (items,)
        if self.retained and retained is not None:
            losses["retention"] = objectives.retention * ((retained * distances).sum() / self.retained.variance)
        if objectives.mse:
            losses["mse"] = objectives.mse * ((weights * distances).sum() / self.targets.variance)
        if objectives.cosine:
            losses["cosine"] = objectives.cosine * (weights * (1 - torch.cosine_similarity(vectors, targets))).sum()
        if self.candidates and english is not None:
            self.candidates = candidates = self.candidates.to(vectors.device)
            is_target = english[:, None] == candidates.english
            divergences = ranking_divergence(vectors, targets, candidates.vectors, is_target, objectives.temperature)
            losses["ranking"] = objectives.ranking * (weights * divergences).sum()
        return losses

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        """Translation accuracy and distances by language, and accuracy on the domains and languages not trained.

        The mean of both kinds chooses the weights: of 1 − the relative distance, and of accuracy where none is trained.
        """
        pairs, untrained = self.corpus.dev, self.corpus.dev_untrained
        kinds = (pairs.values(), untrained.values())
        sentences = [sentence for of in kinds for translations in of for side in translations for sentence in side]
        encode = encoded_by(self.model, sentences, self.precision, process_group=process_group)
        metrics = parallel_metrics(
            pairs, encode, self.dev_teacher, self.targets.variance, own_vectors=self.corpus.own_vectors
        )
        distances = [value for name, value in metrics.items() if name.startswith("mse_relative/") and value is not None]
        sizes = {f"sentences/{language}": len(translations.other) for language, translations in pairs.items()}
        metrics = {f"dev/{name}": value for name, value in {**metrics, **sizes}.items()}
        for language, sides in untrained.items():
            vectors = encode(sides.english), encode(sides.other)
            metrics |= translation_metrics(language, vectors, f"dev/{ACCURACY}/untrained")
            metrics[f"dev/sentences/untrained/{language}"] = len(sides.other)
        if distances:
            metrics[EXPLAINED] = 1 - float(np.mean(distances))
            accuracy = mean_accuracies(metrics).get("untrained", metrics[EXPLAINED])
            metrics[CRITERION] = float(np.mean([metrics[EXPLAINED], accuracy]))
        return metrics


class ContrastiveTask(DistillationTask):
    """The same, and each sentence is nearer to its own translation than to the other sentences of the batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        taught, items = self.corpus.taught, np.arange(len(self.corpus))
        self.groups = np.where(items < taught, self.corpus.targets, items)  # a retained text is a group of its own

    def collate(self, items: Items, epoch: int) -> Batch:
        batch = super().collate(items, epoch)
        return Batch(batch.inputs, {**batch.counts, "contrastive": int(self._is_translation(items).sum())})

    def _is_translation(self, items: Items) -> NDArray[np.bool_]:
        return (items >= len(self.corpus.english)) & (items < self.corpus.taught)

    def vectors(self, model: nn.Module, batch: Batch) -> Tensor:
        vectors: Tensor = model(batch.inputs["input_ids"], batch.inputs["attention_mask"])  # (batch, dim)
        return vectors

    def batch_losses(self, vectors: Tensor, items: Items, epoch: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        taught = {name: to_device(tensor, vectors.device) for name, tensor in self._taught(items).items()}
        objectives = self.settings.objectives
        is_english, is_other = items < len(self.corpus.english), self._is_translation(items)
        numbers = self.corpus.targets[items]
        english_texts = self.corpus.english.at(items[is_english])
        texts = self.corpus.translations.at(items[is_other] - len(self.corpus.english))
        pairs = BatchPairs.find(numbers[is_english], english_texts, numbers[is_other], texts)
        rows = (to_device(torch.from_numpy(np.flatnonzero(each)), vectors.device) for each in (is_english, is_other))
        english, other = (vectors[each] for each in rows)  # by rows, as a mask would wait for the device
        loss = partial(pair_loss, pairs=pairs, temperature=objectives.temperature)
        contrasted = objectives.contrastive * matryoshka(loss, objectives.dimensions, english, other)
        return {**self._distances(vectors, **taught), "contrastive": contrasted}
