"""What the machine can do, found out without loading torch."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType

from bertrelay import hardware
from bertrelay.errors import RequestError

INTEL = "processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_tile\nbogomips\t: 1\n\nprocessor\t: 1\nflags\t\t: fpu\n"


@pytest.fixture
def machine(monkeypatch):
    """Makes the machine one with this text in /proc/cpuinfo and a GPU of this compute capability."""

    def make(cpuinfo, capability=None):
        read = Path.read_text
        monkeypatch.setattr(
            Path, "read_text", lambda path, *a: cpuinfo if str(path) == "/proc/cpuinfo" else read(path, *a)
        )
        monkeypatch.setattr(hardware, "_cuda_compute_capability", lambda: capability)
        hardware.computes_in_bf16.cache_clear()

    yield make
    hardware.computes_in_bf16.cache_clear()


@pytest.mark.parametrize(
    ("flags", "capability", "expected"),
    [
        ("fpu avx512_bf16", None, "bf16"),
        ("fpu amx_bf16", None, "bf16"),
        ("fpu avx512f avx512_bf16x xavx512_bf16", None, "fp32"),  # whole words only
        ("fpu avx2", None, "fp32"),
        ("", None, "fp32"),
        ("fpu avx2", 8, "bf16"),
        ("fpu avx2", 9, "bf16"),
        ("fpu avx512_bf16", 7, "fp32"),  # the GPU will do the work, and takes bf16 without computing in it
    ],
)
def test_auto_is_bf16_where_the_hardware_computes_in_it(machine, flags, capability, expected):
    machine(f"processor\t: 0\nflags\t\t: {flags}\nbogomips\t: 1\n", capability)
    assert hardware.resolve_precision("auto") == expected


def test_flags_are_those_of_the_flags_line(machine):
    machine(INTEL)
    assert hardware._cpu_flags() == {"fpu", "avx512f", "avx512_bf16", "amx_tile"}
    machine("processor : 0\nFeatures : bf16\n")
    assert hardware._cpu_flags() == set()


def test_a_chosen_precision_stays(machine):
    machine(INTEL)
    assert [hardware.resolve_precision(chosen) for chosen in ("fp32", "bf16")] == ["fp32", "bf16"]


def test_another_precision_is_refused():
    with pytest.raises(RequestError, match="expected auto, bf16 or fp32, found 'fp16'"):
        hardware.resolve_precision("fp16")


def test_precision_is_settled_without_loading_torch():
    code = (
        "import sys; from bertrelay.hardware import resolve_precision; resolve_precision('auto');"
        "print(sorted({'torch', 'accelerate', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_torch_is_asked_for_cuda_by_its_version_file():
    assert hardware._torch_has_cuda() == (torch.version.cuda is not None)


def test_the_driver_and_torch_agree_on_the_gpu():
    expected = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else None
    assert hardware._cuda_compute_capability() == expected


def test_autocast_computes_in_the_precision_asked_for():
    matrix = torch.ones(2, 2)
    with hardware.autocast(torch.device("cpu"), "bf16"):
        assert (matrix @ matrix).dtype == torch.bfloat16
    with hardware.autocast(torch.device("cpu"), "fp32"):
        assert (matrix @ matrix).dtype == torch.float32


def test_private_memory_grows_by_what_is_written():
    before = hardware.private_memory_mb()
    if before is None:
        pytest.skip("only Linux tells")
    held = np.ones(50_000_000, np.uint8)
    assert hardware.private_memory_mb() - before == pytest.approx(len(held) / 2**20, abs=5)


@pytest.mark.parametrize("way", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_a_way_that_splits_the_model_is_refused(monkeypatch, way):
    """A stand-in for Accelerate, which takes these ways on GPUs only."""
    monkeypatch.setattr("accelerate.Accelerator", lambda **_: SimpleNamespace(distributed_type=DistributedType(way)))
    with pytest.raises(RequestError, match=f"expected data-parallel processes, found {way}.*accelerate config"):
        hardware.accelerator()
