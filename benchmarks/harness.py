"""The harness of every benchmark: contenders in turns, medians and ratios with their spread, claims, JSON.

A contender is a process of its own that prepares once and then works on request, one line of JSON each way. At import
this needs nothing but the standard library, because a contender may run in an environment without BertRelay.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

Answer = dict[str, Any]
Work = Callable[..., Answer]
T = TypeVar("T")

SECONDS_OF_REST = 0.5  # until the threads of the contender before have stopped spinning
TRIALS = 2
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
DATA = Path("../shared/data")


class Contender:
    """A process of `function` ("module:name"), called once as `function(threads, **settings)` for its work."""

    def __init__(self, function: str, threads: int, python: Path | str = sys.executable, **settings: Any) -> None:
        self.function = function
        print(f"preparing {function} {settings.get('variant', '')}", file=sys.stderr, flush=True)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.harness", function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, **QUIET, **threads_of(threads)},
        )
        self.ask(threads=threads, **settings)

    def ask(self, **request: Any) -> Answer:
        """Sends a request and waits for the answer; exits with the process's errors when it has ended."""
        assert self._process.stdin and self._process.stdout
        with suppress(BrokenPipeError):  # when it has ended, no line comes back either
            print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            sys.exit(f"{self._errors.read()}\n{self.function}: the process ended with {self._process.wait()}")
        answer: Answer = json.loads(line)
        return answer

    def fastest(self, sizes: Sequence[int], **request: Any) -> int:
        """The `batch_size` of `sizes` with which a request takes the least time; one size alone is a warm-up."""
        tried = [(size, self.ask(batch_size=size, **request)["seconds"]) for _ in range(TRIALS) for size in sizes]
        return min(tried, key=lambda trial: trial[1])[0]

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def threads_of(count: int) -> dict[str, str]:
    """The environment of a process with so many threads."""
    return {"OMP_NUM_THREADS": str(count), "RAYON_NUM_THREADS": str(count)}


def serve(function: str) -> None:
    """A contender's process: the first request goes to `function`, the others to the work that it returns."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    module, _, name = function.partition(":")
    work: Work | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if work is None:
            work, answer = getattr(import_module(module), name)(**request), {}
        else:
            answer = work(**request)
        print(json.dumps(answer), file=answers, flush=True)


def in_turns(works: dict[str, Callable[[int], Answer]], rounds: int) -> dict[str, list[Answer]]:
    """The answers of each work by round, called with the round's number; every other round runs backwards."""
    answers: dict[str, list[Answer]] = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works)[:: -1 if number % 2 else 1]:
            time.sleep(SECONDS_OF_REST)
            answers[name].append(works[name](number))
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return answers


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> T:
    """Accelerate keeps one precision for a process, and no contender should share another's memory."""
    with ProcessPoolExecutor(1, get_context("spawn"), _quiet) as pool:
        return pool.submit(function, *arguments).result()


def _quiet() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def timed(function: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    began = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - began


# Metrics and claims


class Spread(NamedTuple):
    """Median and extremes over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        known = list(values)
        return cls(statistics.median(known), min(known), max(known))

    @classmethod
    def of_ratios(cls, above: Sequence[float], below: Sequence[float]) -> "Spread":
        """Of the ratios round by round: noise that lasts longer than a round cancels."""
        return cls.of(a / b if b else math.inf for a, b in zip(above, below, strict=True))

    def __str__(self) -> str:
        return self.shown()

    def shown(self, digits: int = 2) -> str:
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}–{self.high:,.{digits}f})"


class Claim(NamedTuple):
    """A claim and what was measured."""

    text: str
    found: str
    holds: bool


def at_least(times: float, what: str, found: Spread) -> Claim:
    return Claim(f"at least {times} × {what}", str(found), found.median >= times)


# The command line


def main(
    measure: Callable[[Namespace], tuple[Sequence[Claim], dict[str, Any]]],
    doc: str | None,
    *needed: str,
    threads: bool = False,
    arguments: Sequence[str] | None = None,
    **options: Any,
) -> NoReturn:
    """A script: parses, prints the machine, gets claims and metrics from `measure`, exits with 0 if all claims hold.

    needed: files below --data. threads: whether there is --threads. options: name to default, or to a
    type, or to what argparse takes. `measure` gets them, and `scratch`, a folder that is removed at the end.
    """
    given = _parsed(doc, needed, threads, options, arguments)
    os.environ |= {"CUDA_VISIBLE_DEVICES": ""}  # every figure is of a CPU
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    from benchmarks.machine import machine

    if threads:
        torch.set_num_threads(given.threads)
    _quiet()
    print(machine(), flush=True)
    options = dict(vars(given))
    with tempfile.TemporaryDirectory() as scratch:
        given.scratch = Path(scratch)
        claims, metrics = measure(given)
    for claim in claims:
        print(f"{claim.text}: {claim.found}, {'yes' if claim.holds else 'no'}")
    if path := options.pop("json"):
        content = {"machine": machine(), "options": options, **metrics, "claims": [claim._asdict() for claim in claims]}
        path.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    sys.exit(0 if all(claim.holds for claim in claims) else 1)


def _parsed(
    doc: str | None, needed: Sequence[str], threads: bool, options: dict[str, Any], arguments: Sequence[str] | None
) -> Namespace:
    name = Path(sys.argv[0]).stem
    parser = ArgumentParser(
        f"python -m benchmarks.{name}", description=doc, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="save machine, options, metrics and claims there")
    if needed:
        parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help=f"the real data (default {DATA})")
    if threads:
        cores = len(os.sched_getaffinity(0))
        parser.add_argument("--threads", type=int, default=cores, help="of each contender (default: as many as cores)")
    for name, given in options.items():
        known = given if isinstance(given, dict) else {"type": given} if isinstance(given, type) else {"default": given}
        default = known.get("default")
        if default and isinstance(default, list):
            known = {"nargs": "+", "type": type(default[0]), **known}
        elif default is False:
            known = {"action": "store_true", **known}
        elif not isinstance(default, list | None):
            known = {"type": type(default), **known}
        if default:
            known = {"help": f"(default: {default})", **known}
        parser.add_argument(f"--{name.replace('_', '-')}", **known)
    found = parser.parse_args(arguments)
    if missing := [name for name in needed if not (found.data / name).exists()]:
        parser.error(
            f"expected {', '.join(missing)} below {found.data.absolute()}, found none; give the folder of the real "
            "data with --data DIR (docs/benchmarks.md lists what it contains)"
        )
    return found


if __name__ == "__main__":
    serve(sys.argv[1])
