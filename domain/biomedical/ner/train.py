"""The stage `domain.ner`: trains a BERT to find entities, and calibrates it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bertrelay.data.records import Rejects
from bertrelay.data.sanity import MIN_RECORDS, check_labels, count_leaked
from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.inference.batches import compute_blocks
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, map_over_processes
from bertrelay.progress import log, spinner
from bertrelay.report import model_name, write_report
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import train
from bertrelay.training.task import Batch
from domain.biomedical.calibration import fit_temperature
from domain.biomedical.documents.tags import OUTSIDE, join_tag, prefixes
from domain.biomedical.ner.data import (
    Example,
    divided_summary,
    divided_tokens,
    of_types,
    read_examples,
    shared_documents,
    types_in,
)
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.metrics import count_entities, entity_metrics, which_are_right
from domain.biomedical.ner.model import EntityModel, WordSequences, save_model, start_model
from domain.biomedical.ner.predict import Decoded, decode
from domain.biomedical.ner.report import training_report
from domain.biomedical.ner.settings import NerSettings
from domain.sampling import uniform_draws
from domain.text.windows import Integers, ranges


def run(settings: NerSettings, context: StageContext) -> Metrics:
    """Trains a model, calibrates it on the dev data, and writes `model/`."""
    rejects_file = context.output / "rejects.jsonl" if context.process_group.is_main else None
    with Rejects(rejects_file, settings.max_rejects) as rejects, spinner("reading documents"):
        read = partial(read_examples, rejects=rejects, drop_misplaced=settings.drop_misplaced)
        examples = of_types(read(settings.train, once=True), settings.types)
        dev = of_types(read(settings.dev), settings.types) if settings.dev else []
    shared = _shared_with_dev(examples, dev)
    if summary := divided_summary(divided_tokens(examples), sum(len(example.entity_tokens) for example in examples)):
        log(f"train: {summary}")
    labels = LabelSet.of_types(_types(examples, dev, settings), settings.scheme)
    model = start_model(settings, labels, context.cache)
    model.network.to(default_device())
    precision = context.precision(settings.precision)
    task = NerTask(model, settings, examples, dev, precision)
    metrics = train(task, settings, context.output, context.work, precision)
    if context.process_group.is_main:
        if dev:
            with spinner("calibrating"):
                model = replace(model, temperature=task.temperature())
            gold = sum(len(example.entities) + len(example.untaggable) for example in dev)
            metrics |= {"temperature": model.temperature, "dev/gold_entities": gold}
        save_model(model, context.output / "model")
        write_report(training_report(model_name(settings.base), labels.types, len(examples)), context)
    return {**metrics, "train_sentences": len(examples), "train_words": len(task.tags), **shared}


def _shared_with_dev(examples: Sequence[Example], dev: Sequence[Example]) -> Metrics:
    """The number of distinct sentences of dev that are in train, which is logged.

    Raises RequestError for whole documents in both, and for a dev most of whose sentences are in train.
    """
    if not dev:
        return {}
    if documents := shared_documents(examples, dev):
        raise RequestError(
            f"dev: expected documents that are not in train, found {documents:,} that share more than half of their "
            "sentences with one of train. Leave them out of one of the two."
        )
    in_train, in_dev = ([example.tokens for example in split] for split in (examples, dev))
    shared, distinct = count_leaked(in_train, in_dev, "dev", "sentences"), len(set(in_dev))
    if distinct >= MIN_RECORDS and shared > distinct / 2:
        raise RequestError(
            f"dev: expected sentences that are not in train, found {shared:,} of {distinct:,} that are. Leave them out "
            "of one of the two."
        )
    return {"dev_sentences_in_train": shared}


def _types(examples: Sequence[Example], dev: Sequence[Example], settings: NerSettings) -> list[str]:
    """The types to train on. Raises RequestError if there are none, or dev data have others, or no entity to score."""
    types = types_in(examples)
    entities = sum(len(example.entities) for example in examples)
    check_labels("train: types of entities", len(types), entities, settings.max_swapped)
    absent = sorted({*settings.types, *types_in(dev)} - set(types))
    if not types or absent:
        files = ", ".join(str(source.path) for source in settings.train)
        raise RequestError(
            f"train: expected entities of the types {', '.join(absent) or 'to train on'}, found "
            f"{', '.join(types) or 'none'} in {files}. Set `types` to those that train and dev have in common."
        )
    if settings.dev and not any(example.entities for example in dev):
        files = ", ".join(str(source.path) for source in settings.dev)
        raise RequestError(
            f"dev: expected entities, found none in {files}, so that no evaluation could choose the best weights. Give "
            "another file as `dev`, or leave it out."
        )
    return types


class NerTask:
    """The task of the training loop: the tags of words; an item is a window."""

    def __init__(
        self,
        model: EntityModel,
        settings: NerSettings,
        examples: Sequence[Example],
        dev: Sequence[Example],
        precision: ComputePrecision,
    ) -> None:
        self.model, self.entity_model, self.precision = model.network, model, precision
        self.learning_rate, self.crf_learning_rate = settings.learning_rate, settings.crf_learning_rate
        self.seed, self.mask_share, self.mask_id = settings.seed, settings.mask_share, model.tokenizer.mask_token_id
        if self.mask_share and self.mask_id is None:
            raise RequestError(
                "mask_share: expected a tokenizer with a mask token, found none in the base; leave mask_share out"
            )
        self.subwords = model.splitter([example.tokens for example in examples])
        self.windows = self.subwords.windows(model.max_tokens, model.overlap)
        self.tags = tag_numbers(examples, model.labels)  # (words,)
        self.lengths = self.padded_lengths = self.subwords.window_lengths(self.windows)
        self.dev = dev
        self.gold = [example.entities for example in dev]
        self.criterion = "dev/f1" if dev else None

    def rate_factors(self) -> dict[str, float]:
        """Factors by which the learning rate of the CRF's scores differs from the network's."""
        if self.model.crf is None or self.crf_learning_rate is None:
            return {}
        factor = self.crf_learning_rate / self.learning_rate
        return {f"crf.{name}": factor for name, _ in self.model.crf.named_parameters()}

    def collate(self, items: Items, epoch: int) -> Batch:
        """A batch of the windows `items`: inputs, tags of the words that they own, and for a CRF `WordSequences`."""
        windows = self.windows.chosen(items)
        inputs = self.entity_model.splitter.batch(self.subwords, windows, int(self.lengths[items].max()), len(items))
        if self.mask_share:
            inputs["input_ids"] = self._masked(inputs["input_ids"], items, epoch)
        first_words, counts = self.subwords.owned_words(windows)
        ends = np.cumsum(self.subwords.words)[windows.sequences]  # (windows,)
        begins = ends - self.subwords.words[windows.sequences]
        inputs["tags"] = torch.from_numpy(self.tags[ranges(first_words, counts)])
        if self.model.crf is not None:
            inputs |= WordSequences.of(counts, first_words == begins, first_words + counts == ends)._asdict()
        return Batch(inputs, {"tags": len(inputs["tags"])})

    def _masked(self, ids: Tensor, items: Items, epoch: int) -> Tensor:
        """The ids of the windows `items`, (windows, tokens), with some subwords replaced by the mask."""
        rows, columns = np.indices(ids.shape)
        draws = uniform_draws(self.seed, epoch, items[rows.ravel()], columns.ravel())[:, 0].reshape(ids.shape)
        is_subword = (columns > 0) & (columns < self.lengths[items][:, None] - 1)  # not [CLS], not [SEP]
        return ids.masked_fill(torch.from_numpy(is_subword & (draws < self.mask_share)), self.mask_id)

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The negative log-likelihood of the tags, in nats, summed over words."""
        inputs = dict(batch.inputs)
        tags = inputs.pop("tags")
        sequences = [inputs.pop(name) for name in WordSequences._fields if name in inputs]
        emissions = model(**inputs)  # (words, tags)
        if self.model.crf is None:
            return {"tags": cross_entropy(emissions, tags, reduction="sum")}
        return {"tags": -self.model.crf.log_likelihood(emissions, tags, WordSequences(*sequences)).sum()}

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        """Strict precision, recall and F1 on the dev data; with several types also the F1 of each."""
        if not self.dev:
            return {}
        types = self.entity_model.labels.types
        predicted = map_over_processes(lambda examples: self._decoded(examples).token_spans(), self.dev, process_group)
        untaggable = [example.untaggable for example in self.dev]
        counts = count_entities(self.gold, untaggable, predicted, np.arange(len(self.gold)), types)
        metrics = entity_metrics(counts, types)
        reported = ["precision", "recall", "f1", *([f"f1/{name}" for name in types] if types[1:] else [])]
        return {f"dev/{name}": metrics[name] for name in reported if name in metrics}

    def temperature(self) -> float:
        """The temperature that calibrates confidences best on the dev data."""
        decoded = self._decoded(self.dev)
        return fit_temperature(decoded.confidences, which_are_right(self.gold, decoded.token_spans()))

    def _decoded(self, examples: Sequence[Example]) -> Decoded:
        subwords = self.entity_model.splitter([example.tokens for example in examples])
        decoding = partial(decode, self.entity_model)
        (decoded,) = compute_blocks(self.model, [subwords], lambda block: len(block.ids), decoding, self.precision)
        return decoded


def tag_numbers(examples: Sequence[Example], labels: LabelSet) -> Integers:
    """The numbers of the tags of all words, in the scheme of `labels`, (words,).

    `acute gout seen` with a disease of words 0 to 2 gives [1, 2, 0] where the tags are O, B-Disease and I-Disease.
    """
    numbers, words = labels.number, sum(len(example.tokens) for example in examples)
    tags, first = np.full(words, numbers[OUTSIDE], np.int64), 0
    for example in examples:
        for start, end, kind in example.entities:
            names = (join_tag(prefix, kind) for prefix in prefixes(end - start, labels.scheme))
            tags[first + start : first + end] = [numbers[name] for name in names]
        first += len(example.tokens)
    return tags
