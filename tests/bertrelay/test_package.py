import subprocess
import sys

import pytest

import bertrelay


def test_every_name_of_the_package_is_there_and_no_other():
    assert {getattr(bertrelay, name).__name__ for name in bertrelay.__all__} == set(bertrelay.__all__)
    assert set(bertrelay.__all__) <= set(dir(bertrelay))
    with pytest.raises(AttributeError, match="no attribute 'encode_fyle'"):
        bertrelay.encode_fyle  # noqa: B018


def test_the_package_alone_loads_nothing_heavy():
    loaded = "import sys, bertrelay; print(sorted({'torch', 'numpy', 'pydantic'} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True) == "[]\n"
