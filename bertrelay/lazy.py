"""Lazy packages: a public name loads its module on first use, so that torch is loaded only where it is used."""

from collections.abc import Callable, Mapping
from importlib import import_module


def loader(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package.

    modules: the module of each name, relative to the package. Any other name raises AttributeError.
    """

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return load
