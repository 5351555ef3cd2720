"""Batches of the requests to one model: a bounded queue and one worker thread, which never waits for a batch to fill.

While the network computes, the queue fills; the next batch is made of what waits:

1. The most urgent input leads. An input is due at the arrival of its request, plus a delay for the inputs of the same
   request before it: a batch's worth of them costs BATCH_DELAY seconds, all together at most LONGEST_DELAY. So a
   single sentence passes a request of thousands, and no input is overtaken by one that arrives more than
   LONGEST_DELAY seconds after it.
2. Inputs of like length, or of the same fixed shape, join it, out of the next WINDOW batches' worth.
"""

import heapq
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from bertrelay.inference.batches import round_up, sorted_batches

BATCH_DELAY, LONGEST_DELAY = 0.02, 1.0  # seconds
WINDOW = 4
SLOWEST_RATE = 1_000.0  # tokens a second, of a worker that has not computed yet

SHORTEST, WIDTH_BITS = 8, 2  # fixed shapes have 8, 12, 16, 24, 32, 48 … tokens in a row
SHAPES_IN_BATCH = 32  # so that a fixed shape of one text costs hardly more than the text

Compute = Callable[[Sequence[Any]], Sequence[Any]]
"""The inputs of a batch to a result for each."""
Choose = Callable[[Sequence[int], int, int], list[int]]
"""The tokens of inputs, most urgent first, `batch_tokens` and `max_tokens` to the rows of a batch with row 0."""


def like_lengths(tokens: Sequence[int], batch_tokens: int, max_tokens: int) -> list[int]:
    """The rows of the batch that row 0 is in when inputs of like length share batches."""
    batches = sorted_batches(np.array(tokens, np.int64), batch_tokens, max_tokens)
    return next(rows.tolist() for rows, _, _ in batches if 0 in rows)


def first_only(tokens: Sequence[int], batch_tokens: int, max_tokens: int) -> list[int]:  # noqa: ARG001
    """Row 0: every input is a batch of its own, and its result never depends on another."""
    return [0]


def fixed_shape(tokens: int, batch_tokens: int, max_tokens: int) -> tuple[int, int]:
    """Tokens in a row and rows of the batch of an input; both depend on the input's own length only."""
    width = min(round_up(max(tokens, SHORTEST), WIDTH_BITS), max_tokens)
    return width, max(1, batch_tokens // SHAPES_IN_BATCH // width)


def one_shape(tokens: Sequence[int], batch_tokens: int, max_tokens: int) -> list[int]:
    """The first rows that have the fixed shape of row 0, as many as it holds."""
    shapes = [fixed_shape(size, batch_tokens, max_tokens) for size in tokens]
    _, height = shapes[0]
    return [row for row, shape in enumerate(shapes) if shape == shapes[0]][:height]


class QueueFullError(Exception):
    """The queue is full; `retry_seconds` is the time after which it will have been computed."""

    def __init__(self, retry_seconds: int) -> None:
        super().__init__(f"too many requests are waiting; retry in {retry_seconds} s")
        self.retry_seconds = retry_seconds


class Computed(NamedTuple):
    """The results of a request in the order of its inputs, and the seconds that it waited and was computed."""

    results: list[Any]
    queue_seconds: float
    compute_seconds: float


@dataclass(eq=False)
class Job:
    """The inputs of a request, whose future has their results when all are computed."""

    results: list[Any]
    missing: int
    arrived: float
    started: float = math.inf
    future: "Future[Computed]" = field(default_factory=Future)

    def put(self, position: int, result: Any) -> None:
        """Takes the result of an input; with the last one the future is done."""
        self.results[position] = result
        self.missing -= 1
        if not self.missing:
            waited, computed = self.started - self.arrived, time.monotonic() - self.started
            self._finish(lambda: self.future.set_result(Computed(self.results, waited, computed)))

    def fail(self, error: Exception) -> None:
        self._finish(lambda: self.future.set_exception(error))

    def _finish(self, act: Callable[[], None]) -> None:
        try:
            act()
        except InvalidStateError:  # cancelled meanwhile, or failed by another of its inputs
            return


class Waiting(NamedTuple):
    """An input in the queue; `number` orders inputs of one due time. Only inputs of one group share a batch."""

    due: float
    number: int
    job: Job
    position: int
    value: Any
    tokens: int
    group: int


@dataclass
class Counts:
    """Totals of an engine since its start."""

    batches: int = 0
    inputs: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cancelled: int = 0
    refused: int = 0


class Engine:
    """Computes the inputs of many requests for one model.

    batch_tokens: most tokens of a batch, padding included; one longer input is a batch of its own.
    max_tokens: the longest input. queue_tokens: most tokens in the queue; an empty one takes any request.
    choose: which of the most urgent inputs share a batch.
    """

    def __init__(
        self, compute: Compute, batch_tokens: int, max_tokens: int, queue_tokens: int, choose: Choose = like_lengths
    ) -> None:
        self.batch_tokens, self.max_tokens, self.queue_tokens = batch_tokens, max_tokens, queue_tokens
        self.counts = Counts()
        self.waiting_tokens = 0
        self._compute, self._choose = compute, choose
        self._queue: list[Waiting] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._is_closing = False
        self._worker: threading.Thread | None = None

    def submit(self, values: Sequence[Any], tokens: Sequence[int], group: int = 0) -> "Future[Computed]":
        """Queues the inputs of a request, each with its number of tokens. Cancelling the future drops them.

        Raises QueueFullError where the queue has no space for all of them.
        """
        job = Job([None] * len(values), len(values), time.monotonic())
        if not values:
            job.future.set_result(Computed([], 0.0, 0.0))
            return job.future
        total, before = sum(tokens), 0
        with self._changed:
            if self._is_closing:
                raise QueueFullError(1)
            if self._queue and self.waiting_tokens + total > self.queue_tokens:
                self.counts.refused += 1
                raise QueueFullError(self._seconds_of(self.waiting_tokens))
            for position, (value, size) in enumerate(zip(values, tokens, strict=True)):
                due = job.arrived + min(LONGEST_DELAY, BATCH_DELAY * before / self.batch_tokens)
                heapq.heappush(self._queue, Waiting(due, next(self._numbers), job, position, value, size, group))
                before += size
            self.waiting_tokens += total
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="engine", daemon=True)
                self._worker.start()
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """Computes what waits, and ends the worker. Requests after it are refused."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._worker is not None:
            self._worker.join()

    def _seconds_of(self, tokens: int) -> int:
        rate = self.counts.tokens / self.counts.seconds if self.counts.seconds else SLOWEST_RATE
        return max(1, math.ceil(tokens / rate))

    def _work(self) -> None:
        while batch := self._next_batch():
            started = time.monotonic()
            for waiting in batch:
                waiting.job.started = min(waiting.job.started, started)
            self.counts.batches += 1
            self.counts.inputs += len(batch)
            self.counts.tokens += sum(waiting.tokens for waiting in batch)
            self._compute_batch(batch)
            self.counts.seconds += time.monotonic() - started

    def _compute_batch(self, batch: Sequence[Waiting]) -> None:
        """Gives every job of a batch its results. An input that fails fails its own request only."""
        try:
            results = self._compute([waiting.value for waiting in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0].job.fail(error)
            else:
                for waiting in batch:
                    self._compute_batch([waiting])
            return
        for waiting, result in zip(batch, results, strict=True):
            waiting.job.put(waiting.position, result)

    def _next_batch(self) -> list[Waiting]:
        """Takes the next batch out of the queue, and waits for a request if it is empty; empty at the end of all."""
        with self._changed:
            while True:
                window = self._take_window()
                if window:
                    break
                if self._is_closing:
                    return []
                self._changed.wait()
            chosen = self._choose([waiting.tokens for waiting in window], self.batch_tokens, self.max_tokens)
            batch = [window[row] for row in chosen]
            for row in set(range(len(window))) - set(chosen):
                heapq.heappush(self._queue, window[row])
            self.waiting_tokens -= sum(waiting.tokens for waiting in batch)
            return batch

    def _take_window(self) -> list[Waiting]:
        """Takes the most urgent inputs, of the first one's group, out of the queue, and drops cancelled ones."""
        window, others, tokens = list[Waiting](), list[Waiting](), 0
        while self._queue and tokens < WINDOW * self.batch_tokens:
            waiting = heapq.heappop(self._queue)
            if waiting.job.future.done():  # cancelled, or failed
                self.waiting_tokens -= waiting.tokens
                self.counts.cancelled += 1
                continue
            is_other = window and waiting.group != window[0].group
            (others if is_other else window).append(waiting)
            tokens += waiting.tokens
        for waiting in others:
            heapq.heappush(self._queue, waiting)
        return window
