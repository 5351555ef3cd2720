"""The dev score of a student: how much of the teacher's space it explains, and whether translations meet in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from shutil import copyfile

import numpy as np
import torch
from torch import Tensor, nn

from bertrelay.data.tokens import Tokens, tokenizer_of, tokens_of
from bertrelay.encoder import SentenceEncoder
from bertrelay.files import write_json
from bertrelay.fingerprint import Digests, content_parts, fingerprint
from bertrelay.hardware import accelerator
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import Batch, train
from students.build import start_student
from students.metrics import Encoded, english_of, parallel_metrics
from students.parallel.corpus import ParallelCorpus, build_corpus
from students.parallel.pairs import Translations
from students.settings import DistillSettings
from students.targets import Targets, fill_targets, save_variance

CRITERION = "dev/explained_variance"


@dataclass(frozen=True)
class DevData:
    """Held-out pairs by language, and what the teacher says of their English sentences.

    variance: of the training targets, the unit of relative distances.
    """

    pairs: dict[str, Translations]
    teacher: Encoded
    variance: float


def dev_data(corpus: ParallelCorpus, teacher: SentenceEncoder, targets: Targets, precision: str) -> DevData:
    pairs = {language: sides for language, sides in corpus.dev.items() if sides.english}
    return DevData(pairs, Encoded.of(teacher, english_of(pairs), precision), targets.variance)


def dev_metrics(student: SentenceEncoder, dev: DevData, precision: str) -> Metrics:
    """Translation accuracy and distances by language; 1 − the mean relative distance is what chooses the weights."""
    others = [sentence for sides in dev.pairs.values() for sentence in sides.other]
    vectors = Encoded.of(student, [*dev.teacher.rows, *others], precision)
    metrics = parallel_metrics(dev.pairs, vectors, dev.teacher, dev.variance, intervals=False)
    distances = [value for name, value in metrics.items() if name.startswith("mse_relative/") and value is not None]
    named = {f"dev/{name}": value for name, value in metrics.items()}
    return {**named, CRITERION: 1 - float(np.mean(distances))}


CORPUS_VERSION = 1


def run(settings: DistillSettings, context: StageContext) -> Metrics:
    """Builds the corpus, computes the teacher's vectors, trains the student, and writes `model/`."""
    digests = Digests(context.cache / "digests.json")
    corpus_key = fingerprint({"version": CORPUS_VERSION, **content_parts(settings, _corpus_fields(settings), digests)})
    with accelerator().main_process_first():
        corpus = build_corpus(context.cache / "corpora" / corpus_key[:32], settings, context.cache)
    teacher = SentenceEncoder.load(settings.teacher, cache_dir=context.cache / "hub")
    teacher_digest = fingerprint(content_parts(settings, ["teacher"], digests))
    targets = fill_targets(teacher, corpus, context, teacher_digest, settings.precision)
    student, sizes = start_student(settings, corpus, teacher, targets, context)
    dev = dev_data(corpus, teacher, targets, settings.precision)
    del teacher  # its vectors are on the disk; its memory is the student's now
    with accelerator().main_process_first():
        tokens = tokens_of(corpus.texts, len(corpus), tokenizer_of(student), context.work / "tokens")
    metrics = train(
        DistillationTask(student, settings, corpus, targets, tokens, dev), settings, context.output, context.work
    )
    if context.process_group.is_main:
        write_json(context.output / "corpus.json", corpus.facts)
        copyfile(corpus.rejects, context.output / corpus.rejects.name)
        student.save(context.output / "model")
        save_variance(targets.variance, context.output / "model")
    return {**metrics, **sizes, "target_variance": targets.variance, "train_items": len(corpus)}


def _corpus_fields(settings: DistillSettings) -> tuple[str, ...]:
    """The settings that a corpus depends on; a dev split that is given is not drawn."""
    always = ("parallel", "filters", "dev")
    return always if settings.dev else (*always, "dev_sentences", "seed")


class DistillationTask:
    """Squared error of the student to the teacher's vector of the English, for the English and its translations.

    An item is one sentence; a distinct English sentence is one item with the weight of its translations. The error
    is divided by the targets' variance, so that 1 is what the mean vector scores and clipping means something.
    """

    def __init__(
        self,
        student: SentenceEncoder,
        settings: DistillSettings,
        corpus: ParallelCorpus,
        targets: Targets,
        tokens: Tokens,
        dev: DevData,
    ) -> None:
        self.model, self.settings = student, settings
        self.corpus, self.targets, self.tokens, self.dev = corpus, targets, tokens, dev
        self.lengths = self.padded_lengths = tokens.lengths
        self.criterion = CRITERION if dev.pairs else None

    def collate(self, items: Items, epoch: int) -> Batch:  # noqa: ARG002 (nothing is random here)
        ids, mask = self.tokens.padded(items, self.model.pad_id)
        weights = np.asarray(self.corpus.weights[items])
        inputs = {
            "input_ids": ids,  # (batch, tokens)
            "attention_mask": mask,  # (batch, tokens)
            "targets": torch.from_numpy(self.targets.vectors[self.corpus.targets[items]]),  # (batch, dim)
            "weights": torch.from_numpy(weights),  # (batch,)
        }
        return Batch(inputs, {"distance": int(weights.sum())})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        vectors = model(batch.inputs["input_ids"], batch.inputs["attention_mask"])  # (batch, dim)
        distances = (vectors - batch.inputs["targets"]).square().sum(dim=-1)  # (batch,)
        return {"distance": (batch.inputs["weights"] * distances).sum() / self.targets.variance}

    def evaluate(self) -> Metrics:
        return dev_metrics(self.model, self.dev, self.settings.precision)
