"""The stage `domain.qa`: trains a BERT to find the answer to a question in a text, and calibrates it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import compress
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax
from torch.nn.utils.rnn import pad_sequence

from bertrelay.data.records import Rejects
from bertrelay.data.sanity import count_leaked
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
from domain.biomedical.qa.bioasq import best_list_margin, yes_no_answer
from domain.biomedical.qa.data import Question
from domain.biomedical.qa.metrics import Pools, best_threshold, scores, squad_metrics
from domain.biomedical.qa.model import AnswerModel, save_model, start_model
from domain.biomedical.qa.predict import find_spans, log_too_long
from domain.biomedical.qa.question_files import read_all
from domain.biomedical.qa.report import training_report
from domain.biomedical.qa.settings import QaSettings
from domain.biomedical.qa.spans import Spans, probabilities
from domain.biomedical.qa.subwords import (
    PairSplitter,
    count_long_answers,
    gold_spans,
    golds_in_windows,
    training_faults,
)
from domain.reading import shown_id
from domain.text.windows import Flags


def run(settings: QaSettings, context: StageContext) -> Metrics:
    """Trains a model, fits its threshold and temperature to the dev data, and writes `model/`."""
    model, precision = start_model(settings, context.cache), context.precision(settings.precision)
    listed = context.output / "rejects.jsonl" if context.process_group.is_main else None
    with Rejects(listed, settings.max_rejects) as rejects, spinner("reading questions"):
        questions = read_all(settings.train, rejects, once=True, max_swapped=settings.max_swapped)
        dev = read_all(settings.dev, rejects, max_swapped=settings.max_swapped) if settings.dev else []
        shared = _shared_with_dev(questions, dev)
        if any(question.yes is not None for question in questions):
            model.network.add_yesno(settings.seed)
        elif model.network.yesno is None and any(question.yes is not None for question in dev):
            raise RequestError("dev: expected no yes/no questions, as train and base know none; leave out type yesno")
        task = QaTask(model, settings, questions, dev, rejects, precision)
    if any(question.impossible for question in [*questions, *dev]):
        model = replace(model, threshold=0.0)
    model.network.to(default_device())
    metrics = train(task, settings, context.output, context.work, precision)
    if context.process_group.is_main:
        if task.dev is not None:
            with spinner("calibrating"):
                model = task.dev.tuned(model)
            scored = len(task.dev.pools.scored)
            metrics |= {"temperature": model.temperature, "threshold": model.threshold, "dev/scored": scored}
            if any(question.answer_type == "list" for question in dev):
                metrics["list_margin"] = model.list_margin
        else:
            log("there is no dev data: the probabilities of this model are not calibrated; add questions as `dev`")
        save_model(model, context.output / "model")
        write_report(training_report(model_name(settings.base), task.questions), context)
    counts = {"train_questions": task.questions, "train_windows": len(task.golds)}
    return {**metrics, **counts, "answered_windows": int(task.is_answered.sum()), **shared}


def _shared_with_dev(questions: Sequence[Question], dev: Sequence[Question]) -> Metrics:
    """Counts and logs contexts and articles of dev that are in train. Raises RequestError for questions that are."""
    if not dev:
        return {}
    pairs = {(question.question, question.context) for question in questions}
    pools = {question.pool for question in questions if question.pool}
    if shared := sum((question.question, question.context) in pairs or question.pool in pools for question in dev):
        raise RequestError(
            f"dev: expected questions that are not in train, found {shared:,} of {len(dev):,} that are. Leave them out "
            "of one of the two, or split by article with domain.questions."
        )
    metrics: Metrics = {}
    for what, name in {"contexts": "context", "articles": "document"}.items():
        in_train, in_dev = ([getattr(question, name) for question in split] for split in (questions, dev))
        metrics[f"dev_{what}_in_train"] = count_leaked(in_train, in_dev, "dev", what)
    return metrics


class QaTask:
    """The task of finding answers in windows, for the training loop; an item is a window of an epoch.

    A window trains on every gold answer that is whole in it, one of a yes/no question on yes or no, and another one
    without any on having none.
    """

    def __init__(
        self,
        model: AnswerModel,
        settings: QaSettings,
        questions: Sequence[Question],
        dev: Sequence[Question],
        rejects: Rejects,
        precision: ComputePrecision,
    ) -> None:
        self.model, self.qa_model = model.network, model
        self.seed, self.empty_windows = settings.seed, settings.empty_windows
        self.splitter = PairSplitter(model.tokenizer)
        self.subwords = self.splitter(questions)
        golds = gold_spans(questions, self.subwords)
        faults = training_faults(questions, self.subwords, golds, model.max_tokens, model.overlap)
        is_trainable = _trainable(questions, faults, rejects)
        count_long_answers(questions, golds, model.max_answer_tokens)
        self.questions = int(is_trainable.sum())
        windows = self.subwords.windows(model.max_tokens, model.overlap)
        self.windows = windows.chosen(np.flatnonzero(is_trainable[windows.sequences]))
        self.golds = golds_in_windows(golds, self.windows)
        window_questions = [questions[number] for number in self.windows.sequences.tolist()]  # in each window
        self.yes = [-1.0 if question.yes is None else float(question.yes) for question in window_questions]
        self.has_all = [question.answer_type == "list" for question in window_questions]
        is_yesno = np.array(self.yes) >= 0
        self.is_answered = np.array([bool(spans) for spans in self.golds], bool) | is_yesno  # (windows,)
        self.window_lengths = self.subwords.window_lengths(self.windows)
        self._items = lru_cache(maxsize=1)(self._draw_items)  # the loop asks for those of an epoch again and again
        self.lengths = self.padded_lengths = lambda epoch: self.window_lengths[self._items(epoch)]
        self.dev = QaDevSet(dev, model, self.splitter, precision) if dev else None
        self.criterion = self.dev.criterion if self.dev else None

    def _draw_items(self, epoch: int) -> Items:
        """The windows of an epoch: all that have an answer, and up to `empty_windows` others of each question."""
        if self.empty_windows is None:
            return np.arange(len(self.golds))
        empty = np.flatnonzero(~self.is_answered)
        drawn = np.random.default_rng((self.seed, epoch, len(empty))).random(len(empty))
        empty = empty[np.lexsort((drawn, self.windows.sequences[empty]))]
        questions = self.windows.sequences[empty]
        is_first = np.arange(len(empty)) - np.searchsorted(questions, questions) < self.empty_windows
        return np.sort(np.concatenate([np.flatnonzero(self.is_answered), empty[is_first]]))

    def collate(self, items: Items, epoch: int) -> Batch:
        """The windows `items` of an epoch, with their answers.

        answers: the columns of their first and last subwords, (windows, answers, 2), −1 where a window has fewer. A
        window without any has one on column 0, which means no answer.
        yes: 1 for yes, 0 for no, −1 in a window of another question. has_all: true for list questions, (windows,).
        """
        which = self._items(epoch)[items]
        windows = self.windows.chosen(which)
        inputs = self.splitter.batch(self.subwords, windows, int(self.window_lengths[which].max()), len(which))
        moved = (self.subwords.begins(windows) - windows.starts).tolist()  # from a subword to its column
        spans = [
            torch.tensor([(first + by, end - 1 + by) for first, end in self.golds[window]] or [(0, 0)])
            for window, by in zip(which.tolist(), moved, strict=True)
        ]
        inputs["answers"] = pad_sequence(spans, True, -1)
        inputs["yes"] = torch.tensor([self.yes[window] for window in which.tolist()])
        inputs["has_all"] = torch.tensor([self.has_all[window] for window in which.tolist()])
        return Batch(inputs, {"answer": len(which)})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """−log P(any of the gold answers), or of yes or no, in nats, summed over windows.

        Their probabilities are added (Clark & Gardner 2018, section 2.2), as a score counts any of them as right. The
        mean of their likelihoods would be best if all were equally likely, and so also spans from one to another: it is
        the loss of list questions, whose answers all are to be found.
        """
        inputs = dict(batch.inputs)
        answers, yes, has_all = (inputs.pop(name) for name in ("answers", "yes", "has_all"))
        scores = model(**inputs)
        chances = log_softmax(scores[..., :2], dim=1).gather(1, answers.clamp(min=0)).sum(-1)  # (windows, answers)
        is_absent = answers[..., 0] < 0
        likelihood = chances.masked_fill(is_absent, -torch.inf).logsumexp(dim=1)  # (windows,)
        mean = chances.masked_fill(is_absent, 0).sum(1) / (~is_absent).sum(1)
        likelihood = torch.where(has_all, mean, likelihood)
        if scores.shape[-1] == 3:
            verdicts = binary_cross_entropy_with_logits(scores[:, 0, 2], yes.clamp(min=0), reduction="none")
            likelihood = torch.where(yes >= 0, -verdicts, likelihood)
        return {"answer": -likelihood.sum()}

    def evaluate(self, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        return self.dev.metrics(self.qa_model, process_group) if self.dev else {}


def _trainable(questions: Sequence[Question], faults: Sequence[str | None], rejects: Rejects) -> Flags:
    """Flags questions that can be trained on, (questions,).

    Others become rejects, with their fault as reason; those without a gold answer in their text are logged.
    """
    for reason in dict.fromkeys(filter(None, faults)):
        for question in compress(questions, [fault == reason for fault in faults]):
            rejects.used(-1)  # reading has counted it as used
            rejects.add(question.file, question.line, reason, shown_id(question.id))
    if unlabelled := [question for question in questions if not question.is_registered]:
        log(
            f"nothing to train on in {len(unlabelled):,} of {len(questions):,} questions, {shown_id(unlabelled[0].id)} "
            "the first: no answer is in their text. Mark those impossible that have none."
        )
    pairs = zip(questions, faults, strict=True)
    return np.array([question.is_registered and fault is None for question, fault in pairs], bool)


class QaDevSet:
    """Dev questions and the metrics of a model on them; logs those that are too long for it."""

    def __init__(
        self, questions: Sequence[Question], model: AnswerModel, splitter: PairSplitter, precision: ComputePrecision
    ) -> None:
        self.questions, self.splitter, self.precision = questions, splitter, precision
        self.pools = Pools.of(questions)
        self.has_yesno = any(question.yes is not None for question in questions)
        self.criterion = "dev/score" if self.has_yesno else "dev/f1"
        if not len(self.pools.with_gold) and not self.has_yesno:
            raise RequestError("dev: expected questions with answers, found none that has any or is impossible")
        is_too_long = splitter(questions).too_long(model.max_tokens, model.overlap)
        log_too_long(model, list(compress(questions, is_too_long)), "dev: ")

    def metrics(self, model: AnswerModel, process_group: ProcessGroup = SINGLE_PROCESS) -> Metrics:
        """Exact match and F1; where some questions are impossible, at the best threshold for all.

        With yes/no questions also the accuracy on these, and as `score` the mean over all questions of F1, or of being
        right.
        """
        spans = self.pools.spans(self._spans(model, process_group))
        score_of = self.pools.scores_at(spans, self._threshold(model, spans))
        metrics = squad_metrics(score_of, self.pools.scored)
        if self.has_yesno:
            is_right = [
                float(yes_no_answer([candidates.yes]) == ("yes" if question.yes else "no"))
                for question, candidates in zip(self.pools.scored, spans, strict=True)
                if question.yes is not None
            ]
            metrics["yesno/accuracy"] = sum(is_right) / len(is_right)
            metrics["score"] = fmean([*is_right, *(score.f1 for score in score_of.values())])
        return {f"dev/{name}": value for name, value in metrics.items()}

    def tuned(self, model: AnswerModel) -> AnswerModel:
        """The model with the best threshold, margin of lists and temperature for these questions."""
        context_spans = self._spans(model)
        spans = self.pools.spans(context_spans)
        margin = best_list_margin(self.pools.grouped(zip(self.questions, context_spans, strict=True)))
        threshold = self._threshold(model, spans)
        scored = self.pools.scores_at(spans, threshold).values()
        is_right = np.array([score.exact_match == 1 for score in scored], bool)
        ranked = [spans[number].with_no_answer(threshold) for number in self.pools.with_gold]
        temperature = fit_temperature(lambda temperature: probabilities(ranked, temperature)[:, 0], is_right)
        margin = model.list_margin if margin is None else margin
        return replace(model, threshold=threshold, temperature=temperature, list_margin=margin)

    def _threshold(self, model: AnswerModel, spans: Sequence[Spans]) -> float | None:
        """The threshold at which the mean F1 is highest; the model's where no question is impossible."""
        pools = self.pools
        if not any(question.impossible for question in pools.scored):
            return model.threshold
        with_answer = pools.scores_at(spans, None)
        without = scores(dict.fromkeys(with_answer, ""), pools.scored)
        answerable = [
            (candidates.gap, with_answer[question.id].f1 - without[question.id].f1)
            for question, candidates in zip(pools.scored, spans, strict=True)
            if question.has_gold and candidates.is_answerable
        ]
        gaps, gains = np.array(answerable, np.float64).reshape(-1, 2).T
        return best_threshold(gaps, gains)

    def _spans(self, model: AnswerModel, process_group: ProcessGroup = SINGLE_PROCESS) -> list[Spans]:
        """The spans of each question in its context."""

        def find(questions: Sequence[Question]) -> list[Spans]:
            compute, subwords = partial(find_spans, model, self.splitter), self.splitter(questions)
            (spans,) = compute_blocks(model.network, [subwords], lambda cut: cut.to_read, compute, self.precision)
            return spans

        all_spans: list[Spans] = map_over_processes(find, self.questions, process_group)
        return all_spans
