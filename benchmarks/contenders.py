"""Contenders side by side: each is a process that holds its model ready and works when it is told to.

One works at a time, in turns over several rounds, so that heat and noise hit all alike. Both ends of the talk stand
here; it is one line of JSON each way, and nothing but the standard library, since a contender may live in an
environment of its own.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

Answer = dict[str, Any]
Work = Callable[..., Answer]

SECONDS_OF_REST = 0.5  # until the threads of the one before have ceased to wait for more work


class Contender:
    """A process of `module`, made ready by its `prepare(device, threads, **settings)`; `ask` has it work."""

    def __init__(
        self, module: str, device: str, threads: int, settings: dict[str, Any], python: Path | str = sys.executable
    ) -> None:
        self.module = module
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            [python, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
            cwd=Path(__file__).parent.parent,
            env=_environment(device, threads),
        )
        self.ask(device=device, threads=threads, **settings)

    def ask(self, **request: Any) -> Answer:
        """Sends a request and waits for the answer. Ends the program when the process ends instead."""
        assert self._process.stdin and self._process.stdout
        with suppress(BrokenPipeError):  # when it has ended, no line comes back either
            print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._words.seek(0)
            sys.exit(f"{self._words.read()}\n{self.module}: the process ended with {self._process.wait()}")
        answer: Answer = json.loads(line)
        return answer

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()  # it goes when nothing more can come
        self._process.wait()


def _environment(device: str, threads: int) -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    allowed = {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    unseen = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return {**os.environ, **quiet, **allowed, **unseen}


def serve(prepare: Callable[..., Work]) -> None:
    """The life of a contender's process: the first request is for `prepare`, the others are for what it returns."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints would be taken for an answer
    work: Work | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if work is None:
            work, answer = prepare(**request), {}
        else:
            answer = work(**request)
        print(json.dumps(answer), file=answers, flush=True)


def in_turns(works: dict[str, Callable[[int], Answer]], rounds: int) -> dict[str, list[Answer]]:
    """What each work answers in each round, called with the round's number; every other round goes backwards."""
    answers: dict[str, list[Answer]] = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works)[:: -1 if number % 2 else 1]:
            time.sleep(SECONDS_OF_REST)
            answers[name].append(works[name](number))
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return answers


class Spread(NamedTuple):
    """The middle and the ends of what several rounds gave."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        known = list(values)
        return cls(statistics.median(known), min(known), max(known))

    @classmethod
    def of_ratios(cls, above: Sequence[float], below: Sequence[float]) -> "Spread":
        """Of the ratios round by round: noise that lasts longer than a round is in both, and falls out."""
        return cls.of(a / b if b else math.inf for a, b in zip(above, below, strict=True))

    def __str__(self) -> str:
        return self.told()

    def told(self, digits: int = 2) -> str:
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}–{self.high:,.{digits}f})"


class Claim(NamedTuple):
    """What was claimed and what was found."""

    text: str
    found: str
    holds: bool


def at_least(times: float, what: str, found: Spread) -> Claim:
    """That something is so many times as fast as something else."""
    return Claim(f"at least {times} × {what}", str(found), found.median >= times)


def judge(claims: Sequence[Claim]) -> bool:
    """Prints each claim with what was found, and tells whether all hold."""
    for claim in claims:
        print(f"{claim.text}: {claim.found}, {'yes' if claim.holds else 'no'}")
    return all(claim.holds for claim in claims)
