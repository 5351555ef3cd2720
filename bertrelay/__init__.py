"""The core: sentence encoder, data, training loop, checkpoints, evaluation. Knows no task."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertrelay.cache import Cache
    from bertrelay.compute.engine import Engine
    from bertrelay.data.tables import Table
    from bertrelay.encode_files import encode_dataset, encode_file
    from bertrelay.inference.compare import compare_all, compare_pairs
    from bertrelay.inference.encode import encode
    from bertrelay.model.encoder import SentenceEncoder
    from bertrelay.plots import write_heatmap

__all__ = [
    "Cache",
    "Engine",
    "SentenceEncoder",
    "Table",
    "compare_all",
    "compare_pairs",
    "encode",
    "encode_dataset",
    "encode_file",
    "write_heatmap",
]


def loader(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package whose public names load their modules on first use, and torch only then.

    modules: the module of each name, relative to the package. Any other name raises AttributeError.
    """

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return load


__getattr__ = loader(
    __name__,
    {
        "Cache": "cache",
        "Engine": "compute.engine",
        "SentenceEncoder": "model.encoder",
        "Table": "data.tables",
        "compare_all": "inference.compare",
        "compare_pairs": "inference.compare",
        "encode": "inference.encode",
        "encode_dataset": "encode_files",
        "encode_file": "encode_files",
        "write_heatmap": "plots",
    },
)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
