import subprocess
import sys

import pytest

from domain import clinical


def test_every_name_of_the_package_is_there_and_no_other():
    assert {getattr(clinical, name).__name__ for name in clinical.__all__} == set(clinical.__all__)
    with pytest.raises(AttributeError, match="no attribute 'chunk'"):
        clinical.chunk  # noqa: B018


def test_the_package_alone_loads_nothing_heavy():
    loaded = "import sys, domain.clinical; print(sorted({'torch', 'numpy', 'pandas', 'pyarrow'} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True) == "[]\n"
