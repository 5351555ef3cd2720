"""Devices and precision of this machine, and of machines that it simulates."""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from accelerate.utils import DistributedType

from bertrelay import device
from bertrelay.errors import RequestError
from bertrelay.training import log as training_log


@pytest.fixture
def machine(monkeypatch):
    """Makes the machine one whose processor computes in bf16 or not, with these CUDA GPUs, by compute capability."""
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)

    def make(*, avx512=False, amx=False, gpus=()):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (gpus[device.index or 0], 0))
        accelerator_of(monkeypatch, "cuda" if gpus else None, len(gpus))

    return make


def accelerator_of(monkeypatch, name, count=1):
    accelerator = None if name is None else torch.device(name)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: accelerator)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("processor", "gpus", "expected"),
    [
        ({"avx512": True}, [], "bf16"),
        ({"amx": True}, [], "bf16"),
        ({}, [], "fp32"),
        ({}, [8], "bf16"),
        ({"avx512": True}, [7], "fp32"),  # the GPU will do the work, and takes bf16 without computing in it
    ],
)
def test_auto_is_bf16_where_the_hardware_computes_in_it(machine, processor, gpus, expected):
    machine(**processor, gpus=gpus)
    assert device.resolve_precision("auto") == device.resolve_precision(None) == expected


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the system has no list of what its processor can do")
def test_a_processor_computes_in_bf16_where_the_system_lists_an_instruction_for_it():
    line = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = set(line[1].split()) if line else set()
    assert device.computes_in_bf16(torch.device("cpu")) == bool(flags & {"avx512_bf16", "amx_bf16"})


def test_auto_depends_on_the_device_of_the_network(machine, monkeypatch):
    machine(gpus=[7, 9])
    monkeypatch.setattr(torch.xpu, "is_bf16_supported", lambda: True)
    expected = {"cpu": "fp32", "cuda:0": "fp32", "cuda:1": "bf16", "xpu": "bf16", "mps": "fp32", "meta": "fp32"}
    assert {name: device.resolve_precision("auto", torch.device(name)) for name in expected} == expected
    machine(avx512=True, gpus=[7])
    assert device.resolve_precision("auto", torch.device("cpu")) == "bf16"
    assert device.resolve_precision("auto") == "fp32"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert device.resolve_precision("auto") == "bf16"


def test_a_resolved_precision_stays_and_what_the_device_lacks_is_refused(machine, monkeypatch):
    machine()
    for precision in (device.ComputePrecision.BF16, device.ComputePrecision.FP16, device.ComputePrecision.FP32):
        assert device.resolve_precision(precision) is precision
    assert device.resolve_precision("float32") is device.ComputePrecision.FP32
    with pytest.raises(RequestError, match=r"fp16 is for devices with autocast to it.* on meta; choose fp32"):
        device.resolve_precision("fp16", torch.device("meta"))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)  # as after torch's warning that it has none
    with pytest.raises(RequestError, match=r"bf16 is for devices with autocast to it, .* on cpu"):
        device.resolve_precision("bf16")


def test_tf32_is_for_nvidia_gpus_from_ampere_on(machine):
    machine(avx512=True, gpus=[7, 9])
    assert device.resolve_precision("tf32", torch.device("cuda:1")) == "tf32"
    for name in ("cpu", "cuda:0", "mps"):
        with pytest.raises(RequestError, match=f"NVIDIA GPUs from Ampere on, and the network is on {name};"):
            device.resolve_precision("tf32", torch.device(name))


def test_products_are_in_tf32_until_the_last_block_that_asks_for_it_ends():
    products, tf32 = torch.backends.cuda.matmul, device.ComputePrecision.TF32
    before = products.fp32_precision
    with device.autocast(torch.device("cpu"), tf32):
        assert products.fp32_precision == "tf32" != before
        assert not torch.is_autocast_enabled("cpu")
    assert products.fp32_precision == before
    one, other = (device.matmul_precision(tf32) for _ in range(2))  # of two threads
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert products.fp32_precision == "tf32"
    other.__exit__(None, None, None)
    assert products.fp32_precision == before


@pytest.mark.parametrize("name", ["cuda", "mps", "xpu", "privateuseone", None])  # the last of an extension
def test_the_default_device_is_the_accelerator_and_without_one_the_cpu(monkeypatch, name):
    for variable in ("LOCAL_RANK", "ACCELERATE_USE_CPU"):
        monkeypatch.delenv(variable, raising=False)
    accelerator_of(monkeypatch, name)
    assert device.default_device() == device.as_device(None) == torch.device(name or "cpu")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert device.default_device() == torch.device("cpu")


def test_each_process_of_a_machine_has_an_accelerator_of_its_own(monkeypatch):
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    accelerator_of(monkeypatch, "cuda", count=4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device.default_device() == torch.device("cuda:3")
    accelerator_of(monkeypatch, None)
    assert device.default_device() == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is there")
@pytest.mark.parametrize("name", ["cuda", "gpu", "cpu:x", 3.5])
def test_a_device_that_is_not_there_is_an_error_that_names_those_that_are(name):
    with pytest.raises(RequestError, match=f"device: expected cpu, or an accelerator.*found {name!r}"):
        device.as_device(name)
    assert device.as_device("cpu") == device.as_device(torch.device("cpu")) == torch.device("cpu")


def test_a_strategy_that_splits_the_model_is_refused(monkeypatch):
    """Accelerate is replaced, because it chooses such a strategy on GPUs only."""
    strategy = "DEEPSPEED"
    monkeypatch.setattr(
        training_log, "Accelerator", lambda **_: SimpleNamespace(distributed_type=DistributedType(strategy))
    )
    with pytest.raises(RequestError, match=f"expected data-parallel processes, found {strategy}.*accelerate config"):
        training_log.accelerator()


@pytest.fixture
def begun(monkeypatch):
    """The address and options with which each tracker starts; a stand-in takes the place of Accelerate."""
    starts = []

    class Stand:
        distributed_type = DistributedType.NO

        def __init__(self, **_):
            pass

        def init_trackers(self, _, init_kwargs):
            starts.append((os.environ.get("MLFLOW_TRACKING_URI"), init_kwargs))

    monkeypatch.setattr(training_log, "Accelerator", Stand)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: "installed")
    monkeypatch.setenv(*device.CUBLAS_CONFIG)
    for name in ("WANDB_DIR", "WANDB_MODE", "MLFLOW_TRACKING_URI", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    return starts


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
        offline = {"mode": "offline", "reinit": "finish_previous"}
        assert begun == [(None, {"wandb": {"dir": str(folder), **offline}}) for folder in folders]


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


@pytest.mark.promise("wandb logs offline unless its mode says otherwise", about="privacy")
@pytest.mark.parametrize(("mode", "logged"), [(None, True), ("offline", True), ("online", False)])
def test_wandb_is_logged_as_offline_unless_its_mode_says_otherwise(begun, monkeypatch, capsys, tmp_path, mode, logged):
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
    training_log.accelerator("wandb", tmp_path)
    expected = f"tracker: wandb writes offline, into {tmp_path}/wandb, and sends nothing"
    assert capsys.readouterr().err.startswith(expected) == logged
    assert begun[0][1]["wandb"]["mode"] == (mode or "offline")
