"""Packages whose names load their module when somebody asks for them, so that torch is loaded only where it is used."""

from collections.abc import Callable, Mapping
from importlib import import_module


def loader(package: str, rooms: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package.

    rooms: the module, below the package, that each name stands in. Any other name raises AttributeError.
    """

    def load(name: str) -> object:
        if name not in rooms:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{rooms[name]}"), name)

    return load
