"""Devices and precision: where networks compute, and whether that device really computes in bf16.

Without a device, precision is resolved without torch, because `plan` needs it for a fingerprint and must stay fast.
"""

import ctypes
import importlib.util
import os
import platform
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from bertrelay.checks import check_choice
from bertrelay.errors import RequestError, describe
from bertrelay.settings import PrecisionName

if TYPE_CHECKING:
    import torch

BF16_CPU_FLAGS = {"avx512_bf16", "amx_bf16"}
BF16_COMPUTE_CAPABILITY = 8  # Ampere; older GPUs take bf16 and compute it in fp32, and have no TF32

_tf32_lock = threading.Lock()
_before_tf32: list[str] = []
"""What the precision of products was when each of those that are in TF32 now asked for it."""
CUBLAS_CONFIG = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"  # read once, at the first product; deterministic with it


class ComputePrecision(StrEnum):
    """The precision that networks compute in: what `resolve_precision` makes of a setting, which may be `auto`."""

    BF16 = "bf16"
    FP16 = "fp16"
    TF32 = "tf32"
    FP32 = "fp32"


def default_device() -> "torch.device":
    """The accelerator of this machine, of several the one of this process, else the CPU.

    ACCELERATE_USE_CPU=true in the environment chooses the CPU.
    """
    import torch

    os.environ.setdefault(*CUBLAS_CONFIG)
    accelerator = None if cpu_is_requested() else torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    local_rank = os.environ.get("LOCAL_RANK")
    if local_rank is None:
        return accelerator
    return torch.device(accelerator.type, int(local_rank) % max(1, torch.accelerator.device_count()))


def as_device(device: "str | torch.device | None") -> "torch.device":
    """`device`, or `default_device()` for None. Raises RequestError for one that this machine does not have."""
    import torch

    if device is None:
        return default_device()
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise RequestError(
            f"device: expected cpu, or an accelerator of this machine such as cuda or cuda:1, found "
            f"{describe(device)}; without one it is {default_device()}"
        ) from error


def to_device(tensor: "torch.Tensor", device: "torch.device") -> "torch.Tensor":
    """A tensor on `device`; a GPU reads one of the host by itself, and the host does not wait for it."""
    is_pinned = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if is_pinned else tensor).to(device, non_blocking=True)


def cpu_is_requested() -> bool:
    """Whether ACCELERATE_USE_CPU is set to one of the values that Accelerate takes as true."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true", "yes", "y", "t", "on"}


def resolve_precision(precision: str | None, device: "torch.device | None" = None) -> ComputePrecision:
    """`auto`, or none, becomes bf16 where the device really computes in it, else fp32; the others stay.

    device: of the network; the default one when there is no network yet.
    Raises RequestError for tf32 where the device has none. `float32` is sentence-transformers' name of fp32.
    """
    if precision in ("int8", "uint8", "binary", "ubinary"):
        raise RequestError(
            f"precision: expected that of the computation, found {precision!r}; for vectors in fewer bits give "
            "vectors= to encode_file, or take bertrelay.data.vectors.quantized of those you have"
        )
    precision = "auto" if precision is None else {"float32": "fp32"}.get(precision, precision)
    check_choice("precision", precision, get_args(PrecisionName))
    if precision == "auto":
        return ComputePrecision.BF16 if computes_in_bf16(device) else ComputePrecision.FP32
    if precision == "tf32" and not _has_tf32(device):
        raise RequestError(
            "precision: tf32 is for NVIDIA GPUs from Ampere on, and the network is on "
            f"{'another device' if device is None else device}; choose fp32 or auto"
        )
    return ComputePrecision(precision)


def _has_tf32(device: "torch.device | None") -> bool:
    if device is None:
        return not cpu_is_requested() and (_cuda_compute_capability() or 0) >= BF16_COMPUTE_CAPABILITY
    return device.type == "cuda" and _torch_is_built_for("cuda") and computes_in_bf16(device)


def computes_in_bf16(device: "torch.device | None" = None) -> bool:
    """True for a GPU from Ampere on, a processor with AVX512-BF16 or AMX, and what else torch reports to have bf16.

    Without a device it is the default one's answer, and torch is loaded only if it was built, or extended, for an
    accelerator other than CUDA.
    """
    if device is None and not cpu_is_requested():
        capability = _cuda_compute_capability()
        if capability is not None:
            return capability >= BF16_COMPUTE_CAPABILITY
        if _torch_is_built_for("hip|xpu") or _torch_is_extended():
            device = default_device()
    if device is None or device.type == "cpu":
        return bool(BF16_CPU_FLAGS & _cpu_flags())
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= BF16_COMPUTE_CAPABILITY
    has_bf16 = getattr(getattr(torch, device.type, None), "is_bf16_supported", None)
    return bool(has_bf16 and has_bf16())


@cache
def _torch_is_extended() -> bool:
    """Whether a package brings a backend of its own, which takes reading the metadata of all that are installed."""
    return bool(entry_points(group="torch.backends"))


@cache
def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return set()
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return set(flags[1].split()) if flags else set()


def _cuda_compute_capability() -> int | None:
    """Major compute capability of the first visible GPU, from the driver; None without a GPU that torch can use."""
    if not _torch_is_built_for("cuda"):
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return None
    driver.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), 0)
    return major.value


def _torch_is_built_for(platform: str) -> bool:
    """Whether the installed torch was built for `platform`, a pattern, by its version file and without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).parent / "version.py"
    return version.is_file() and bool(re.search(rf"^({platform})\b.*=\s*['\"]", version.read_text(), re.MULTILINE))


@contextmanager
def autocast(device: "torch.device", precision: ComputePrecision) -> Iterator[None]:
    """Autocast to bf16 or fp16 on `device`, or nothing for fp32; TF32 products for tf32.

    A GPU computes attention without cuDNN, which takes a quarter of a second to plan for each new shape of a batch.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if precision in (ComputePrecision.FP32, ComputePrecision.TF32):
        with matmul_precision(precision):
            yield
        return
    dtype = torch.float16 if precision == ComputePrecision.FP16 else torch.bfloat16
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    attention = sdpa_kernel(kernels) if device.type == "cuda" else nullcontext()
    with torch.autocast(device.type, dtype=dtype), attention:
        yield


@contextmanager
def matmul_precision(precision: ComputePrecision) -> Iterator[None]:
    """Has GPUs compute all matrix products of float32 tensors in TF32 where `precision` is tf32, backward passes too.

    The setting is of the whole process: it ends with the last of those that ask for it at the same time, and until then
    another thread's float32 products are in TF32, too.
    """
    if precision != ComputePrecision.TF32:
        yield
        return
    import torch

    products: Any = torch.backends.cuda.matmul
    with _tf32_lock:
        _before_tf32.append(products.fp32_precision)
        products.fp32_precision = "tf32"
    try:
        yield
    finally:
        with _tf32_lock:
            before = _before_tf32.pop()
            if not _before_tf32:
                products.fp32_precision = before


def private_memory_mb() -> float | None:
    """Private memory of this process in MB (`RssAnon`: memory-mapped files do not count); None where unknown."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # not Linux
        return None
    size = re.search(r"^RssAnon:\s*(\d+) kB", status, re.MULTILINE)
    return int(size[1]) / 1024 if size else None


def release_memory() -> None:
    """Returns free heap memory of the C library to the system; it keeps each thread's peak otherwise."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
