"""What the machine can do, found out without loading torch."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from accelerate.utils import DistributedType

from bertrelay import device as hardware
from bertrelay.errors import RequestError
from bertrelay.training import log as training_log


@pytest.fixture
def machine(monkeypatch):
    """Makes the machine one with this text in /proc/cpuinfo and a GPU of this compute capability."""

    def make(cpuinfo, capability=None):
        read = Path.read_text
        monkeypatch.setattr(
            Path, "read_text", lambda path, *a, **k: cpuinfo if str(path) == "/proc/cpuinfo" else read(path, *a, **k)
        )
        monkeypatch.setattr(hardware, "_cuda_compute_capability", lambda: capability)
        hardware._cpu_flags.cache_clear()

    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    yield make
    hardware._cpu_flags.cache_clear()


@pytest.mark.parametrize(
    ("flags", "capability", "expected"),
    [
        ("fpu avx512_bf16", None, "bf16"),
        ("fpu amx_bf16", None, "bf16"),
        ("fpu avx512f avx512_bf16x xavx512_bf16", None, "fp32"),  # whole words only
        ("", None, "fp32"),
        ("fpu avx2", 8, "bf16"),
        ("fpu avx512_bf16", 7, "fp32"),  # the GPU will do the work, and takes bf16 without computing in it
    ],
)
def test_auto_is_bf16_where_the_hardware_computes_in_it(machine, flags, capability, expected):
    machine(f"processor\t: 0\nflags\t\t: {flags}\nbogomips\t: 1\n", capability)
    assert hardware.resolve_precision("auto") == expected


def test_auto_is_what_the_device_of_the_network_computes_in_and_not_the_machine(machine, monkeypatch):
    machine("flags : fpu avx2\n", capability=9)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0) if device.index else (7, 5))
    monkeypatch.setattr(torch.xpu, "is_bf16_supported", lambda: True)
    expected = {"cpu": "fp32", "cuda:0": "fp32", "cuda:1": "bf16", "xpu": "bf16", "mps": "fp32", "meta": "fp32"}
    found = {name: hardware.resolve_precision("auto", torch.device(name)) for name in expected}
    assert found == expected
    machine("flags : fpu avx512_bf16\n", capability=7)
    assert hardware.resolve_precision("auto", torch.device("cpu")) == "bf16"
    assert hardware.resolve_precision("auto") == "fp32"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert hardware.resolve_precision("auto") == "bf16"


def test_tf32_is_for_the_gpus_that_have_it_and_ends_with_what_asks_for_it(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0) if device.index else (7, 5))
    monkeypatch.setattr(hardware, "_torch_is_built_for", lambda platform: platform == "cuda")
    machine("flags : fpu avx512_bf16\n", capability=9)
    assert hardware.resolve_precision("tf32") == hardware.resolve_precision("tf32", torch.device("cuda:1")) == "tf32"
    for device in ("cpu", "cuda:0", "mps"):
        with pytest.raises(RequestError, match=f"NVIDIA GPUs from Ampere on, and the network is on {device};"):
            hardware.resolve_precision("tf32", torch.device(device))
    machine("flags : fpu avx512_bf16\n")
    with pytest.raises(RequestError, match="choose fp32 or auto"):
        hardware.resolve_precision("tf32")
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    with hardware.autocast(torch.device("cpu"), hardware.ComputePrecision.TF32):
        assert products.fp32_precision == "tf32" != before
        assert not torch.is_autocast_enabled("cpu")
    assert products.fp32_precision == before
    one, other = (hardware.matmul_precision(hardware.ComputePrecision.TF32) for _ in range(2))  # of two threads
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert products.fp32_precision == "tf32"
    other.__exit__(None, None, None)
    assert products.fp32_precision == before


def accelerator_of(monkeypatch, name, count=1):
    found = None if name is None else torch.device(name)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


@pytest.mark.parametrize("name", ["cuda", "mps", "xpu", "privateuseone", None])  # the last of an extension
def test_the_default_device_is_the_accelerator_and_without_one_the_cpu(monkeypatch, name):
    for variable in ("LOCAL_RANK", "ACCELERATE_USE_CPU"):
        monkeypatch.delenv(variable, raising=False)
    accelerator_of(monkeypatch, name)
    assert hardware.default_device() == hardware.as_device(None) == torch.device(name or "cpu")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert hardware.default_device() == torch.device("cpu")


def test_each_process_of_a_machine_has_an_accelerator_of_its_own(monkeypatch):
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    accelerator_of(monkeypatch, "cuda", count=4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert hardware.default_device() == torch.device("cuda:3")
    accelerator_of(monkeypatch, None)
    assert hardware.default_device() == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is there")
@pytest.mark.parametrize("device", ["cuda", "gpu", "cpu:x", 3.5])
def test_a_device_that_is_not_there_is_an_error_that_names_those_that_are(device):
    with pytest.raises(RequestError, match=f"device: expected cpu, or an accelerator.*found {device!r}"):
        hardware.as_device(device)
    assert hardware.as_device("cpu") == hardware.as_device(torch.device("cpu")) == torch.device("cpu")


def test_the_driver_and_torch_agree_on_the_gpu():
    expected = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else None
    assert hardware._cuda_compute_capability() == expected


def test_a_way_that_splits_the_model_is_refused(monkeypatch):
    """A stand-in for Accelerate, which takes this way on GPUs only."""
    way = "DEEPSPEED"
    monkeypatch.setattr(training_log, "Accelerator", lambda **_: SimpleNamespace(distributed_type=DistributedType(way)))
    with pytest.raises(RequestError, match=f"expected data-parallel processes, found {way}.*accelerate config"):
        training_log.accelerator()


@pytest.fixture
def begun(monkeypatch):
    """What trackers are begun with; a stand-in for Accelerate, which calls them."""
    found = []

    class Stand:
        distributed_type = DistributedType.NO

        def __init__(self, **_):
            pass

        def init_trackers(self, _, init_kwargs):
            found.append((os.environ.get("MLFLOW_TRACKING_URI"), init_kwargs))

    monkeypatch.setattr(training_log, "Accelerator", Stand)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: "installed")
    monkeypatch.setenv(*hardware.CUBLAS_CONFIG)
    for name in ("WANDB_DIR", "WANDB_MODE", "MLFLOW_TRACKING_URI", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_each_training_of_a_process_has_a_tracker_below_its_own_folder(begun, tmp_path, tracker):
    before, folders = dict(os.environ), [tmp_path / "first.partial", tmp_path / "second.partial"]
    for folder in folders:
        with training_log.tracking(tracker, folder):
            training_log.accelerator(tracker, folder)
        assert dict(os.environ) == before
    if tracker == "mlflow":
        assert begun == [(f"sqlite:///{folder}/mlflow.db", {}) for folder in folders]
    else:
        given = {"mode": "offline", "reinit": "finish_previous"}
        assert begun == [(None, {"wandb": {"dir": str(folder), **given}}) for folder in folders]


def test_a_tracker_goes_where_the_environment_says(begun, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    monkeypatch.setenv("WANDB_DIR", "/elsewhere")
    for tracker in ("mlflow", "wandb"):
        with training_log.tracking(tracker, tmp_path):
            training_log.accelerator(tracker, tmp_path)
    assert [uri for uri, _ in begun] == ["http://server"] * 2 and begun[1][1]["wandb"]["dir"] == "/elsewhere"
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://server"


@pytest.mark.usefixtures("begun")
def test_a_run_of_a_training_that_fails_is_ended(tmp_path, monkeypatch):
    tracker = mock.Mock()
    monkeypatch.setitem(sys.modules, "mlflow", tracker)
    with pytest.raises(ZeroDivisionError), training_log.tracking("mlflow", tmp_path):
        1 / 0  # noqa: B018
    tracker.end_run.assert_called_once_with("FAILED")


@pytest.mark.parametrize(("mode", "logged"), [(None, True), ("offline", True), ("online", False)])
def test_wandb_is_logged_as_offline_unless_its_mode_says_otherwise(begun, monkeypatch, capsys, tmp_path, mode, logged):
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
    training_log.accelerator("wandb", tmp_path)
    expected = f"tracker: wandb writes offline, into {tmp_path}/wandb, and sends nothing"
    assert capsys.readouterr().err.startswith(expected) == logged
    assert begun[0][1]["wandb"]["mode"] == (mode or "offline")
