"""The stage `domain.qa`: a BERT is trained to find the answer to a question in a text, and calibrated."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.hardware import default_device, resolve_precision
from bertrelay.inference import best_batch_tokens, pack_for
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.batches import Items
from bertrelay.training.loop import Batch, train
from domain.biomedical.qa.answerer import log_too_long, nbest_of
from domain.biomedical.qa.decoding import NBest, Pools, scores_at, with_temperature, with_threshold
from domain.biomedical.qa.metrics import squad_metrics
from domain.biomedical.qa.model import AnswerModel, save_model, start_model
from domain.biomedical.qa.questions import Question
from domain.biomedical.qa.settings import QaSettings
from domain.biomedical.qa.subwords import (
    Golds,
    Held,
    PairSplitter,
    count_long_answers,
    read_all,
    trainable_questions,
    training_faults,
)

CRITERION = "dev/f1"
UNCALIBRATED = "there is no dev data: the probabilities of this model are not calibrated; give some questions as `dev`"


def run(settings: QaSettings, context: StageContext) -> Metrics:
    """Trains a model, settles its threshold and temperature on the dev data, and writes `model/`."""
    model = start_model(
        settings.base,
        max_tokens=settings.max_tokens,
        stride=settings.stride,
        max_answer_tokens=settings.max_answer_tokens,
        whole_words=settings.whole_words,
        dropout=settings.dropout,
        seed=settings.seed,
        cache_dir=context.cache / "hub",
    )
    with Rejects(
        context.output / "rejects.jsonl" if context.process_group.is_main else None, settings.max_rejects
    ) as rejects:
        questions = read_all(settings.train, rejects)
        dev = read_all(settings.dev, rejects) if settings.dev else []
        task = QaTask(model, settings, questions, dev, rejects)
    if any(question.impossible for question in [*questions, *dev]):
        model = replace(model, threshold=0.0)
    model.network.to(default_device())
    metrics = train(task, settings, context.output, context.work)
    if context.process_group.is_main:
        if task.dev is not None:
            model = task.dev.tuned(model)
            metrics |= {"temperature": model.temperature, "threshold": model.threshold}
        else:
            log(UNCALIBRATED)
        save_model(model, context.output / "model")
    return {**metrics, **task.counts()}


class QaTask:
    """Answers in windows, as the training loop asks for them; an item is a window, and what an epoch has is drawn.

    A window trains on every right answer that it holds whole, and one without any on having none.
    """

    def __init__(
        self,
        model: AnswerModel,
        settings: QaSettings,
        questions: Sequence[Question],
        dev: Sequence[Question],
        rejects: Rejects,
    ) -> None:
        self.model, self.qa_model = model.network, model
        self.seed, self.empty_windows = settings.seed, settings.empty_windows
        self.splitter = PairSplitter(model.tokenizer)
        self.subwords = self.splitter([each.question for each in questions], [each.context for each in questions])
        windows = self.subwords.windows(model.max_tokens, model.stride)
        golds = Golds.of(questions, self.subwords)
        faults = training_faults(questions, self.subwords, golds, model.max_tokens, model.stride)
        is_trainable = trainable_questions(questions, faults, rejects)
        count_long_answers(questions, golds, model.max_answer_tokens)
        self.questions = int(is_trainable.sum())
        self.windows = windows.chosen(np.flatnonzero(is_trainable[windows.sequences]))
        self.held = Held.of(golds, self.windows)
        self.window_lengths = self.splitter.lengths(self.subwords, self.windows)
        self.lengths = self.padded_lengths = self._lengths
        self._drawn: tuple[int, Items] = (-1, np.zeros(0, np.int64))
        self.dev = QaDevSet(dev, model, self.splitter, settings.precision) if dev else None
        self.criterion = CRITERION if dev else None

    def counts(self) -> Metrics:
        """How many questions and windows there are to train on, and how many of these hold an answer."""
        return {
            "train_questions": self.questions,
            "train_windows": len(self.held.counts),
            "answered_windows": int(np.sum(self.held.counts > 0)),
        }

    def _items(self, epoch: int) -> Items:
        """The windows of an epoch: all that hold an answer, and of each question up to `empty_windows` others."""
        if self.empty_windows is None:
            return np.arange(len(self.held.counts))
        if self._drawn[0] != epoch:  # kept, as the loop asks for it again and again
            empty = np.flatnonzero(self.held.counts == 0)
            drawn = np.random.default_rng((self.seed, epoch, len(empty))).random(len(empty))
            empty = empty[np.lexsort((drawn, self.windows.sequences[empty]))]
            questions = self.windows.sequences[empty]
            is_first = np.arange(len(empty)) - np.searchsorted(questions, questions) < self.empty_windows
            items = np.sort(np.concatenate([np.flatnonzero(self.held.counts), empty[is_first]]))
            self._drawn = epoch, items
        return self._drawn[1]

    def _lengths(self, epoch: int) -> NDArray[np.int64]:
        return self.window_lengths[self._items(epoch)]

    def collate(self, items: Items, epoch: int) -> Batch:
        """The windows `items` of an epoch, and of each one the answers that it holds.

        is_answer, firsts, lasts: whether there is one, and the columns of its first and last subword, all (windows,
        answers). A window without any has one on column 0, which means no answer.
        """
        which = self._items(epoch)[items]
        windows = self.windows.chosen(which)
        inputs = self.splitter.batch(self.subwords, windows, int(self.window_lengths[which].max()), len(which))
        is_answer, firsts, ends = self.held.in_windows(which)
        moved = (self.splitter.begins(self.subwords, windows) - windows.starts)[:, None]  # from a subword to its column
        added = {
            "is_answer": is_answer | (np.arange(is_answer.shape[1]) == 0),
            "firsts": np.where(is_answer, firsts + moved, 0),
            "lasts": np.where(is_answer, ends - 1 + moved, 0),
        }
        return Batch(
            {**inputs, **{name: torch.from_numpy(each) for name, each in added.items()}}, {"answer": len(which)}
        )

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """−log P(any of the right answers), in nats, summed over windows.

        Their probabilities are added (Clark & Gardner 2018, section 2.2): a score takes any of them for right. Mean
        likelihoods would want the mass shared out among them, and so the first subword of one with the last of another.
        """
        inputs = dict(batch.inputs)
        is_answer, *places = (inputs.pop(name) for name in ("is_answer", "firsts", "lasts"))
        chances = log_softmax(model(**inputs), dim=1).unbind(-1)  # two of (windows, tokens)
        first, last = (each.gather(1, columns) for each, columns in zip(chances, places, strict=True))
        return {"answer": -(first + last).masked_fill(~is_answer, -torch.inf).logsumexp(dim=1).sum()}

    def evaluate(self) -> Metrics:
        return self.dev.metrics(self.qa_model) if self.dev else {}


class QaDevSet:
    """Dev questions, tokenized once, and what a model scores on them; logs those that are too long for it."""

    def __init__(
        self, questions: Sequence[Question], model: AnswerModel, splitter: PairSplitter, precision: str
    ) -> None:
        self.splitter, self.precision = splitter, precision
        self.pools = Pools.of(questions)
        self.subwords = splitter([each.question for each in questions], [each.context for each in questions])
        if not len(self.pools.known):
            raise RequestError("dev: expected questions with answers, found none of which it is known what is right")
        is_too_long = self.subwords.too_long(model.max_tokens, model.stride)
        log_too_long(model, [question.id for question in compress(questions, is_too_long)], "dev: ")

    def metrics(self, model: AnswerModel) -> Metrics:
        """Exact match and F1, where questions are impossible at the threshold that suits them best."""
        nbest = self._nbest(model)
        threshold = with_threshold(model, self.pools, nbest).threshold
        found = squad_metrics(scores_at(self.pools, nbest, threshold), self.pools.scored)
        return {f"dev/{name}": value for name, value in found.items()}

    def tuned(self, model: AnswerModel) -> AnswerModel:
        """The model with the threshold and the temperature that suit these questions."""
        nbest = self._nbest(model)
        return with_temperature(with_threshold(model, self.pools, nbest), self.pools, nbest)

    def _nbest(self, model: AnswerModel) -> NBest:
        base, device = model.network.backbone, model.network.device
        precision, size = resolve_precision(self.precision, device), best_batch_tokens(device)
        packed = pack_for(self.subwords.to_read, base, precision, size)  # anew, as the weights have changed
        return self.pools.nbest(nbest_of(model, self.subwords, self.splitter, precision, size, packed))
