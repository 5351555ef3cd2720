"""The weights that a baseline keeps in a file of its own: read whole, or not at all."""

from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from bertrelay.errors import RequestError

SHOWN = 3


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises RequestError for a damaged one."""
    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise RequestError(f"model: expected weights in {file}, found what cannot be read; copy it again") from error


def fill(module: nn.Module, weights: Mapping[str, Tensor], file: Path, names: Collection[str] | None = None) -> None:
    """Gives `module`, or its parameters `names`, the `weights` of `file`.

    Raises RequestError, naming the file, where one is missing, more than asked for, or of another shape.
    """
    own = {name: each.shape for name, each in module.state_dict().items() if names is None or name in names}
    found = {name: each.shape for name, each in weights.items()}
    wrong = sorted({name for name, _ in own.items() ^ found.items()})
    if wrong:
        raise RequestError(
            f"model: expected the weights of this network in {file}, found {', '.join(wrong[:SHOWN])}"
            f"{', …' if len(wrong) > SHOWN else ''} missing or of another shape; the file is incomplete, or belongs to "
            "another model"
        )
    module.load_state_dict(dict(weights), strict=names is None, assign=names is None)
