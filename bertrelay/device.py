"""Devices and precision: where networks compute, and in which number format. Loads torch where a function needs it."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any, get_args

from bertrelay.checks import check_choice
from bertrelay.errors import RequestError, describe
from bertrelay.settings import PrecisionName

if TYPE_CHECKING:
    import torch

BF16_COMPUTE_CAPABILITY = 8  # Ampere; older GPUs take bf16 and compute it in fp32, and have no TF32

_tf32_lock = threading.Lock()
_replaced: list[str] = []
"""torch's setting when each open block of `matmul_precision` began: "tf32" for all but the first."""
CUBLAS_CONFIG = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"  # read once, at the first product; deterministic with it


class ComputePrecision(StrEnum):
    """A resolved precision; never `auto`."""

    BF16 = "bf16"
    FP16 = "fp16"
    TF32 = "tf32"
    FP32 = "fp32"


def default_device() -> "torch.device":
    """The accelerator of this machine, of several that of this process's local rank, else the CPU.

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
    """Copies a tensor to `device`; a GPU copies from pinned memory, and the host does not wait for it."""
    is_pinned = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if is_pinned else tensor).to(device, non_blocking=True)


def cpu_is_requested() -> bool:
    """True if ACCELERATE_USE_CPU has one of the values that Accelerate takes as true."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true", "yes", "y", "t", "on"}


def resolve_precision(precision: str | None, device: "torch.device | None" = None) -> ComputePrecision:
    """The precision of a network on `device`, by default `default_device()`: `auto` and None are bf16 or fp32.

    `float32` is sentence-transformers' name of fp32.
    Raises RequestError for an unknown precision, and for one that the device cannot compute in.
    """
    if precision in ("int8", "uint8", "binary", "ubinary"):
        raise RequestError(
            f"precision: expected that of the computation, found {precision!r}; for vectors in fewer bits give "
            "vectors= to encode_file, or take bertrelay.data.vectors.quantized of those you have"
        )
    device, name = device or default_device(), "fp32" if precision == "float32" else precision or "auto"
    check_choice("precision", name, get_args(PrecisionName))
    if name == "auto":
        return ComputePrecision.BF16 if computes_in_bf16(device) else ComputePrecision.FP32
    resolved = ComputePrecision(name)
    if not _is_supported(resolved, device):
        needs = "NVIDIA GPUs from Ampere on" if resolved == ComputePrecision.TF32 else "devices with autocast to it"
        raise RequestError(f"precision: {name} is for {needs}, and the network is on {device}; choose fp32 or auto")
    return resolved


def computes_in_bf16(device: "torch.device | None" = None) -> bool:
    """True for a GPU from Ampere on, a processor with AVX512-BF16 or AMX, and other devices that torch says have bf16.

    device: `default_device()` when None.
    """
    import torch

    device = device or default_device()
    if device.type == "cpu":
        # `torch.cpu.get_capabilities`, which is public, is not in torch 2.9.
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= BF16_COMPUTE_CAPABILITY
    has_bf16 = getattr(getattr(torch, device.type, None), "is_bf16_supported", None)
    return bool(has_bf16 and has_bf16())


def _is_supported(precision: ComputePrecision, device: "torch.device") -> bool:
    if precision == ComputePrecision.FP32:
        return True
    if precision == ComputePrecision.TF32:
        return device.type == "cuda" and computes_in_bf16(device)
    import torch

    try:
        with _torch_autocast(device, precision):
            return torch.is_autocast_enabled(device.type)  # torch turns off what the device lacks, with a warning
    except RuntimeError:
        return False


def _torch_autocast(device: "torch.device", precision: ComputePrecision) -> "torch.autocast":
    import torch

    return torch.autocast(device.type, torch.float16 if precision == ComputePrecision.FP16 else torch.bfloat16)


@contextmanager
def autocast(device: "torch.device", precision: ComputePrecision) -> Iterator[None]:
    """Computes in `precision` on `device`: autocast for bf16 and fp16, `matmul_precision` for fp32 and tf32.

    A GPU computes attention without cuDNN, which takes a quarter of a second to plan for each new shape of a batch.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if precision in (ComputePrecision.FP32, ComputePrecision.TF32):
        with matmul_precision(precision):
            yield
        return
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    attention = sdpa_kernel(kernels) if device.type == "cuda" else nullcontext()
    with _torch_autocast(device, precision), attention:
        yield


@contextmanager
def matmul_precision(precision: ComputePrecision) -> Iterator[None]:
    """Computes the matrix products of float32 tensors on GPUs in TF32, backward passes too, where `precision` is tf32.

    torch has one setting for the process. Blocks may overlap, in several threads: the last to end restores it, and
    until then another thread's float32 products are in TF32, too.
    """
    if precision != ComputePrecision.TF32:
        yield
        return
    import torch

    products: Any = torch.backends.cuda.matmul
    with _tf32_lock:
        _replaced.append(products.fp32_precision)
        products.fp32_precision = "tf32"
    try:
        yield
    finally:
        with _tf32_lock:
            before = _replaced.pop()
            if not _replaced:
                products.fp32_precision = before
