"""A simulated accelerator: tensors have its device type, and the CPU stores and computes them.

As on a GPU, an operation on tensors of two devices is an error, and so is NumPy reading one before it is copied back.
Torch keeps it until the process ends, so tests use it in a separate process.
"""

from functools import partial
from types import SimpleNamespace

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "simulated"
OPERATIONS: list[str] = []
HELD: dict[int, torch.Tensor] = {}
"""Contents of the device's tensors, on the CPU, by the address of their storage, which aliases share."""
_libraries: list[torch.library.Library] = []  # what they register ends with them


def install():
    """Makes the simulated device the accelerator of this machine."""
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
    for name in ("arange", "arange.start", "arange.start_step"):  # torch would resize an empty tensor
        operation = getattr(torch.ops.aten.arange, name.partition(".")[2] or "default")
        factories.impl(name, partial(_computed, operation), "PrivateUse1")
    _libraries.extend([library, factories])
    copied = torch.Tensor.__deepcopy__  # which copies storages
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
