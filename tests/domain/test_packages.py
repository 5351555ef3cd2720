"""The public names of the packages exist, and nothing heavy is imported before one is used."""

import subprocess
import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize("package", ["domain.clinical", "domain.pretraining", "domain.biomedical"])
def test_every_public_name_is_there_and_importing_the_package_loads_nothing_heavy(package):
    module = import_module(package)
    assert {getattr(module, name).__name__ for name in module.__all__} == set(module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'chunk'"):
        module.chunk  # noqa: B018
    code = f"import sys, {package}; print({{'torch', 'numpy', 'pandas', 'pyarrow', 'pydantic'}} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
