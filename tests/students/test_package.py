"""The public names of the packages, which load nothing before they are used."""

import subprocess
import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["students", "teachers"])
def test_every_public_name_exists_and_importing_the_package_loads_nothing_heavy(name):
    package = import_module(name)
    assert {getattr(package, public).__name__ for public in package.__all__} == set(package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'mime'"):
        package.mime  # noqa: B018
    loaded = f"import sys, {name}; print(sorted({{'torch', 'numpy', 'pydantic', 'faiss'}} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True) == "[]\n"
