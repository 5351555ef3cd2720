"""A stand-in for an accelerator: its tensors are kept on the CPU and do not say so.

As on a GPU, an operation on tensors of two devices is an error, and so is NumPy's look at one that was not copied back.
It is torch's for as long as the process lives, so tests use it in a process of their own.
"""

from functools import partial
from types import SimpleNamespace

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "simulated"
OPERATIONS: list[str] = []
HELD: dict[int, torch.Tensor] = {}
"""What tensors of the device hold, on the CPU, by the place of their storage, which aliases share."""
_libraries: list[torch.library.Library] = []  # what they register lasts as long as they do


def install():
    """Makes it the accelerator of this machine."""
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        is_bf16_supported=lambda: False,
        get_amp_supported_dtype=lambda: [torch.bfloat16],
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,  # noqa: ARG005
    )
    _setup_privateuseone_for_python_backend(NAME, backend_module=module)
    library = torch.library.Library("_", "IMPL")
    library.fallback(_computed, "PrivateUse1")
    factories = torch.library.Library("aten", "IMPL")
    for name in ("arange", "arange.start", "arange.start_step"):  # which torch would have grow an empty tensor
        operation = getattr(torch.ops.aten.arange, name.partition(".")[2] or "default")
        factories.impl(name, partial(_computed, operation), "PrivateUse1")
    _libraries.extend([library, factories])
    copied = torch.Tensor.__deepcopy__  # which looks into storages
    torch.Tensor.__deepcopy__ = lambda tensor, memo: (
        tensor.clone() if tensor.device.type == NAME else copied(tensor, memo)
    )
    return torch.device(NAME, 0)


@torch.inference_mode(False)  # views of what is no inference tensor must be none either
@torch.no_grad()
def _computed(operation, *arguments, **options):
    OPERATIONS.append(str(operation))
    if operation.name() == "aten::_copy_from":  # between devices
        _held(arguments[1]).copy_(_held(arguments[0]))
        return arguments[1]
    tensors = [tensor for tensor in tree_leaves((arguments, options)) if isinstance(tensor, torch.Tensor)]
    others = [tensor.device for tensor in tensors if tensor.device.type != NAME and tensor.dim()]
    if others:
        raise RuntimeError(f"{operation}: expected all tensors on {NAME}, found one on {others[0]}")
    if "device" in options:
        options["device"] = torch.device("cpu")
    held = {id(tensor): _held(tensor) for tensor in tensors}
    owners = {id(held[id(tensor)]): tensor for tensor in tensors}
    arguments, options = tree_map(lambda value: held.get(id(value), value), (arguments, options))
    return tree_map(lambda value: _wrapped(value, owners), operation(*arguments, **options))


def _held(value):
    is_ours = isinstance(value, torch.Tensor) and value.device.type == NAME
    # torch itself makes some aliases, of another shape
    return HELD[value.untyped_storage()._cdata].view(value.shape) if is_ours else value


def _wrapped(value, owners):
    if not isinstance(value, torch.Tensor):
        return value
    if id(value) in owners:  # changed in place
        assert owners[id(value)].shape == value.shape
        return owners[id(value)]
    wrapped = torch._C._acc.create_empty_tensor(value.shape, value.dtype)
    HELD[wrapped.untyped_storage()._cdata] = value.contiguous()
    return wrapped
