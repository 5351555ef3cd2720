import sys

import numpy as np
import torch
import transformers

from benchmarks.machine import machine


def test_a_figure_comes_with_the_machine_and_the_versions_it_was_measured_with() -> None:
    told = machine()
    assert told.startswith("machine: ")
    for word in (
        f"Python {sys.version.split()[0]}",
        f"transformers {transformers.__version__}",
        f"numpy {np.__version__}",
        f"torch {torch.__version__.partition('+')[0]}",
    ):
        assert word in told
