"""The stage `domain.ner`: trains a BERT to find entities, and calibrates it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

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
from domain.biomedical.documents.tags import OUTSIDE, join_tag, prefixes, split_tag
from domain.biomedical.ner.data import (
    Example,
    divided_summary,
    divided_tokens,
    of_types,
    read_examples,
    shared_documents,
    types_in,
    without_held_out,
)
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.metrics import (
    count_entities,
    entity_metrics,
    metrics_of_corpora,
    which_are_right,
    which_are_scored,
)
from domain.biomedical.ner.model import EntityModel, WordSequences, save_model, start_model
from domain.biomedical.ner.predict import Decoded, decode
from domain.biomedical.ner.report import training_report
from domain.biomedical.ner.settings import NerSettings
from domain.sampling import draw_by_group, uniform_draws
from domain.text.windows import Flags, Integers, ranges


def run(settings: NerSettings, context: StageContext) -> Metrics:
    """Trains a model, calibrates it on the dev data, and writes `model/`."""
    rejects_file = context.output / "rejects.jsonl" if context.process_group.is_main else None
    with Rejects(rejects_file, settings.max_rejects) as rejects, spinner("reading documents"):
        read = partial(read_examples, rejects=rejects, drop_misplaced=settings.drop_misplaced)
        examples = of_types(read(settings.train, once=True), settings.types)
        if settings.held_out:
            examples = without_held_out(examples, read(settings.held_out))
        dev = of_types(read(settings.dev), settings.types) if settings.dev else []
    shared = _shared_with_dev(examples, dev)
    if summary := divided_summary(divided_tokens(examples), sum(len(example.entity_tokens) for example in examples)):
        log(f"train: {summary}")
    _warn_of_absent_types(examples)
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


def _warn_of_absent_types(examples: Sequence[Example]) -> None:
    """Logs the types of other corpora that one whose `types` are not given has no entity of."""
    types, corpora = types_in(examples), dict[str, list[Example]]()
    for example in examples:
        if example.annotated is None:
            corpora.setdefault(example.corpus, []).append(example)
    for corpus, sentences in corpora.items():
        if absent := sorted(set(types) - set(types_in(sentences))):
            log(
                f"train: {corpus} has no entity of the types {', '.join(absent)}, and is trained on as text without "
                "any. If it does not annotate them, name its own in its `types`."
            )


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
    """The task of the training loop: the tags of words; an item is a window of an epoch.

    A sentence of a corpus that does not annotate a type says nothing about it: a word outside its entities may be in
    one of that type. The loss is then of all tags that the word may have together (Tsuboi et al. 2008: marginal
    likelihood of partial labels).
    """

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
        self.unannotated, self.annotations = unannotated_tags(examples, model.labels)
        corpora = np.unique([example.corpus for example in examples], return_inverse=True)[1]
        self.corpora, self.sampling_temperature = corpora[self.windows.sequences], settings.sampling_temperature
        self.window_lengths = self.subwords.window_lengths(self.windows)
        self._items = lru_cache(maxsize=1)(self._draw_items)  # the loop asks for those of an epoch again and again
        self.lengths = self.padded_lengths = lambda epoch: self.window_lengths[self._items(epoch)]
        self.dev, self.dev_corpora = dev, [source.corpus for source in settings.dev if source.corpus]
        self.gold = [example.entities for example in dev]
        self.criterion = "dev/f1" if dev else None

    def rate_factors(self) -> dict[str, float]:
        """Factors by which the learning rate of the CRF's scores differs from the network's."""
        if self.model.crf is None or self.crf_learning_rate is None:
            return {}
        factor = self.crf_learning_rate / self.learning_rate
        return {f"crf.{name}": factor for name, _ in self.model.crf.named_parameters()}

    def _draw_items(self, epoch: int) -> Items:
        """The windows of an epoch."""
        return draw_by_group(self.corpora, self.sampling_temperature, self.seed, epoch)

    def collate(self, items: Items, epoch: int) -> Batch:
        """A batch of the windows `items` of an epoch: inputs, tags of their own words, and for a CRF `WordSequences`.

        possible: of data that lack some types, the tags that each word may have, (words, tags).
        """
        which = self._items(epoch)[items]
        windows, lengths = self.windows.chosen(which), self.window_lengths[which]
        inputs = self.entity_model.splitter.batch(self.subwords, windows, int(lengths.max()), len(which))
        if self.mask_share:
            inputs["input_ids"] = self._masked(inputs["input_ids"], items, lengths, epoch)
        first_words, counts = self.subwords.owned_words(windows)
        ends = np.cumsum(self.subwords.words)[windows.sequences]  # (windows,)
        begins = ends - self.subwords.words[windows.sequences]
        tags = self.tags[ranges(first_words, counts)]
        inputs["tags"] = torch.from_numpy(tags)
        if self.unannotated.any():
            of_words = np.repeat(self.annotations[windows.sequences], counts)
            is_tag = np.arange(len(self.entity_model.labels)) == tags[:, None]
            outside = tags == self.entity_model.labels.number[OUTSIDE]
            inputs["possible"] = torch.from_numpy(is_tag | (self.unannotated[of_words] & outside[:, None]))
        if self.model.crf is not None:
            inputs |= WordSequences.of(counts, first_words == begins, first_words + counts == ends)._asdict()
        return Batch(inputs, {"tags": len(tags)})

    def _masked(self, ids: Tensor, items: Items, lengths: Integers, epoch: int) -> Tensor:
        """The ids of windows, (windows, tokens), with some subwords replaced by the mask. lengths: (windows,)."""
        rows, columns = np.indices(ids.shape)
        draws = uniform_draws(self.seed, epoch, items[rows.ravel()], columns.ravel())[:, 0].reshape(ids.shape)
        is_subword = (columns > 0) & (columns < lengths[:, None] - 1)  # not [CLS], not [SEP]
        return ids.masked_fill(torch.from_numpy(is_subword & (draws < self.mask_share)), self.mask_id)

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The negative log-likelihood of the tags, or of all possible ones together, in nats, summed over words."""
        inputs = dict(batch.inputs)
        tags, possible = inputs.pop("tags"), inputs.pop("possible", None)
        sequences = [inputs.pop(name) for name in WordSequences._fields if name in inputs]
        emissions = model(**inputs)  # (words, tags)
        if self.model.crf is not None:
            return {"tags": -self.model.crf.log_likelihood(emissions, tags, WordSequences(*sequences), possible).sum()}
        if possible is None:
            return {"tags": cross_entropy(emissions, tags, reduction="sum")}
        return {"tags": -log_softmax(emissions, 1).masked_fill(~possible, -torch.inf).logsumexp(1).sum()}

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        """Strict precision, recall and F1 on the dev data; the F1 of each of several types, and named corpus."""
        if not self.dev:
            return {}
        types = self.entity_model.labels.types
        decoded = map_over_processes(lambda examples: self._decoded(examples).token_spans(), self.dev, process_group)
        predicted = [example.scored(spans) for example, spans in zip(self.dev, decoded, strict=True)]
        untaggable, units = [example.untaggable for example in self.dev], np.arange(len(self.gold))
        counts = count_entities(self.gold, untaggable, predicted, units, types)
        metrics = entity_metrics(counts, types)
        reported = ["precision", "recall", "f1", *([f"f1/{name}" for name in types] if types[1:] else [])]
        corpora = [example.corpus for example in self.dev]
        of_corpora = metrics_of_corpora(self.dev_corpora, corpora, self.gold, untaggable, predicted, units)
        of_corpora = {name: value for name, value in of_corpora.items() if name.endswith("/f1")}
        return {f"dev/{name}": metrics[name] for name in reported if name in metrics} | {
            f"dev/{name}": value for name, value in of_corpora.items()
        }

    def temperature(self) -> float:
        """The temperature that calibrates confidences best on the dev data."""
        decoded = self._decoded(self.dev)
        spans = decoded.token_spans()
        is_scored = which_are_scored(self.dev, spans)
        is_right = which_are_right(self.gold, spans)[is_scored]
        return fit_temperature(lambda temperature: decoded.confidences(temperature)[is_scored], is_right)

    def _decoded(self, examples: Sequence[Example]) -> Decoded:
        subwords = self.entity_model.splitter([example.tokens for example in examples])
        decoding = partial(decode, self.entity_model)
        (decoded,) = compute_blocks(self.model, [subwords], lambda block: len(block.ids), decoding, self.precision)
        return decoded


def unannotated_tags(examples: Sequence[Example], labels: LabelSet) -> tuple[Flags, Integers]:
    """Flags of the tags of types that a corpus does not annotate, (kinds, tags), and each sentence's kind of corpus."""
    kinds = list(dict.fromkeys(example.annotated for example in examples))
    types = [split_tag(tag)[1] for tag in labels.tags]
    flags = [[kind is not None and bool(name) and name not in kind for name in types] for kind in kinds]
    numbers = {kind: number for number, kind in enumerate(kinds)}
    of_sentences = np.array([numbers[example.annotated] for example in examples], np.int64)
    return np.array(flags, bool).reshape(len(kinds), len(labels)), of_sentences


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
