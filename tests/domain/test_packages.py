"""The public names of the packages: all there, and nothing heavy is imported before one is used."""

import subprocess
import sys
from importlib import import_module

import pytest

PACKAGES = ["domain.clinical", "domain.pretraining", "domain.terms"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_no_other(package):
    module = import_module(package)
    assert {getattr(module, name).__name__ for name in module.__all__} == set(module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'chunk'"):
        module.chunk  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_alone_imports_nothing_heavy(package):
    heavy = {"torch", "numpy", "pandas", "pyarrow", "pydantic"}
    code = f"import sys, {package}; print(sorted({heavy} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
