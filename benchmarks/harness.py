"""The harness of every benchmark: contenders in turns, medians and ratios with their spread, claims, the machine, JSON.

A contender is a process of its own that prepares once and then works on request, one line of JSON each way. At import
this needs nothing but the standard library, because a contender may run in an environment without BertRelay.
"""

import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn, TypeVar

Answer = dict[str, Any]
Work = Callable[[int, int | None], Answer]
"""Of a contender: gets a batch size and the round's number, or None in a trial, which may work on less."""
T = TypeVar("T")

OURS, OURS_FP32 = "ours", "ours-fp32"
PRECISIONS = {OURS: "auto", OURS_FP32: "fp32"}
SECONDS_OF_REST = 0.5  # until the threads of the contender before have stopped spinning
TRIALS = 2
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}


class Contender:
    """A process of `function` ("module:name"), called once as `function(**settings)` for its `Work`.

    Its batch size is the one of `batch_sizes` with which a trial takes the least time.
    """

    def __init__(
        self, function: str, batch_sizes: Sequence[int], python: Path | str = sys.executable, **settings: Any
    ) -> None:
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
        )
        self._ask(**settings)
        trials = [  # with one size they are the warm-up
            (self._ask(batch_size=size, number=None)["seconds"], size) for _ in range(TRIALS) for size in batch_sizes
        ]
        self.batch_size = min(trials)[1]

    def __call__(self, number: int) -> Answer:
        return {"batch_size": self.batch_size, **self._ask(batch_size=self.batch_size, number=number)}

    def _ask(self, **request: Any) -> Answer:
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

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def serve(function: str) -> None:
    """A contender's process: the first request goes to `function`, the others to the work that it returns."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    module, _, name = function.partition(":")
    work, answer = None, Answer()
    for line in sys.stdin:
        request = json.loads(line)
        if work is None:
            work = getattr(import_module(module), name)(**request)
        else:
            answer = with_gpu_memory(work, **request)
        print(json.dumps(answer), file=answers, flush=True)


def with_gpu_memory(work: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
    """The answer, and where the work is done on a GPU, `gpu_mb`: the most that tensors took of its memory."""
    answer = work(*arguments, **named)
    import torch

    if torch.cuda.is_initialized():
        answer["gpu_mb"] = torch.cuda.max_memory_allocated() / 1e6
        torch.cuda.reset_peak_memory_stats()
    return answer


def in_turns(works: Mapping[str, Callable[[int], Answer]], rounds: int) -> dict[str, "Result"]:
    """The answers of each work by round, called with the round's number; every other round runs backwards."""
    results = {name: Result(name, []) for name in works}
    for number in range(rounds):
        for name in list(works)[:: -1 if number % 2 else 1]:
            time.sleep(SECONDS_OF_REST)
            results[name].answers.append(works[name](number))
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return results


def in_fresh_process(function: Callable[..., T], *arguments: Any) -> T:
    """Accelerate keeps one precision for a process, and no contender should share another's memory."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def latencies(function: Callable[[Any], object], queries: Sequence[Any]) -> Answer:
    """Median and 95th percentile of the milliseconds of a call, one query in each."""
    milliseconds = [1e3 * timed(function, query)[1] for query in queries]
    return {"p50": statistics.median(milliseconds), "p95": statistics.quantiles(milliseconds, n=20)[-1]}


def timed(function: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """The result, and the seconds until it is there, on a GPU too."""
    import torch

    began = time.perf_counter()
    result = function(*arguments)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return result, time.perf_counter() - began


@dataclass(frozen=True)
class Spread:
    """Median and extremes over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        numbers = list(values)
        return cls(statistics.median(numbers), min(numbers), max(numbers))

    @classmethod
    def of_ratios(cls, above: Sequence[float], below: Sequence[float]) -> "Spread":
        """Of the ratios round by round: noise that lasts longer than a round cancels."""
        return cls.of(a / b if b else math.inf for a, b in zip(above, below, strict=True))

    def __format__(self, digits: str) -> str:
        return "{} ({}–{})".format(*(format(value, digits or ",.2f") for value in (self.median, self.low, self.high)))

    def __str__(self) -> str:
        return format(self)


@dataclass(frozen=True)
class Result:
    """The answers of a contender by round."""

    name: str
    answers: list[Answer]

    def values(self, metric: str = "seconds") -> list[Any]:
        return [answer[metric] for answer in self.answers]

    def spread(self, metric: str = "seconds") -> Spread:
        return Spread.of(self.values(metric))

    def rate(self, count: float) -> Spread:
        """Of so many things, a second."""
        return Spread.of(count / seconds for seconds in self.values())

    def speed_over(self, other: "Result") -> Spread:
        """How many times as fast as the other it is."""
        return Spread.of_ratios(other.values(), self.values())


@dataclass(frozen=True)
class Claim:
    """A claim and what was measured."""

    text: str
    measured: str
    holds: bool


def at_least(times: float, what: str, measured: Spread) -> Claim:
    return Claim(f"at least {times} × {what}", str(measured), measured.median >= times)


def print_results(
    results: Mapping[str, Result], counts: Mapping[str, int], columns: Mapping[str, Callable[[Result], object]]
) -> None:
    """A table with a row for each contender.

    counts: of the things that a contender does in a round, shown by second; without any its seconds are shown.
    columns: title to what it shows of a result.
    """
    from pandas import DataFrame

    shown: dict[str, Callable[[Result], object]] = {}
    if any("batch_size" in result.answers[0] for result in results.values()):
        shown["batch"] = lambda result: result.answers[0].get("batch_size", "")
    shown |= {f"{name}/s": _rate(count) for name, count in counts.items()}
    shown |= columns if counts else {"seconds": Result.spread, **columns}
    shown |= {f"{ours} × as fast": results[ours].speed_over for ours in PRECISIONS if ours in results}
    if any("gpu_mb" in result.answers[0] for result in results.values()):
        shown["GPU MB"] = lambda result: f"{max(answer.get('gpu_mb', 0) for answer in result.answers):,.0f}"
    table = {title: [str(value(result)) for result in results.values()] for title, value in shown.items()}
    print(DataFrame(table, index=list(results)).to_string(), flush=True)


def main(
    measure: Callable[[Namespace], tuple[Sequence[Claim], dict[str, Any]]],
    doc: str | None,
    *needed: str,
    arguments: Sequence[str] | None = None,
    **options: Any,
) -> NoReturn:
    """A script: parses, prints the machine, gets claims and metrics from `measure`, exits with 0 if all claims hold.

    needed: files below --data. options: name to default (a list of strings is its choices too), to a type, or to what
    argparse takes. `measure` gets them, and `scratch`, a folder that is removed at the end.
    --threads and --device hold for every process that is started too, whose libraries take a GPU that they see.
    """
    parsed = _parsed(doc, needed, options, arguments)
    shown = {name: value for name, value in vars(parsed).items() if name != "json"}
    os.environ |= QUIET | dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(parsed.threads))
    if parsed.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch
    from transformers.utils import logging

    if parsed.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: expected a GPU that torch can use, found none")
    torch.set_num_threads(parsed.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        parsed.scratch = Path(scratch)
        claims, metrics = measure(parsed)
    for claim in claims:
        print(f"{claim.text}: {claim.measured}, {'yes' if claim.holds else 'no'}")
    if parsed.json:
        content = {"machine": machine(), "options": shown, **metrics, "claims": claims}
        text = json.dumps(content, indent=1, default=_as_json)
        parsed.json.write_text(text + "\n", encoding="utf-8")
    sys.exit(0 if all(claim.holds for claim in claims) else 1)


def machine() -> str:
    """One line: processor, cores, torch's threads, whether it computes in bf16, and versions."""
    import torch

    from bertrelay.device import computes_in_bf16

    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    processor = model[1] if model else platform.processor() or platform.machine()
    cores = f"{len(os.sched_getaffinity(0))} cores, threads of torch: {torch.get_num_threads()}"
    gpus = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    bf16 = "bf16 in hardware" if computes_in_bf16() else "no bf16 in hardware"
    versions = [f"Python {platform.python_version()}"]
    for name in ("torch", "transformers", "sentence-transformers", "faiss-cpu", "numpy"):
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return f"machine: {', '.join([processor, cores, *gpus, bf16])}; {', '.join(versions)}"


def _parsed(
    doc: str | None, needed: Sequence[str], options: dict[str, Any], arguments: Sequence[str] | None
) -> Namespace:
    name = f"python -m benchmarks.{Path(sys.argv[0]).stem}"
    parser = ArgumentParser(name, description=doc, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="save machine, options, metrics and claims there")
    if needed:
        parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the real data")
    device = {"choices": ["cpu", "cuda"], "default": "cpu", "help": "(default: cpu)"}
    for name, option in {"threads": len(os.sched_getaffinity(0)), "device": device, **options}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **_argument(option))
    parsed = parser.parse_args(arguments)
    if missing := [name for name in needed if not (parsed.data / name).exists()]:
        parser.error(
            f"expected {', '.join(missing)} below {parsed.data.absolute()}, found none; give the folder of the real "
            "data with --data DIR (docs/benchmarks.md lists what it contains)"
        )
    return parsed


def _argument(option: Any) -> dict[str, Any]:
    if isinstance(option, dict):
        return option
    if isinstance(option, type):
        return {"type": option}
    if option is False:
        return {"action": "store_true"}
    argument = {"default": option, "help": f"(default: {option})"}
    if not isinstance(option, list):
        return {**argument, "type": type(option)}
    kind = type(option[0])
    return {**argument, "type": kind, "nargs": "*", "choices": option if kind is str else None}


def _rate(count: int) -> Callable[[Result], str]:
    return lambda result: f"{result.rate(count):,.1f}"


def _as_json(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


if __name__ == "__main__":
    serve(sys.argv[1])
