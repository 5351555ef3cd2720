import subprocess
import sys

import pytest

import students


def test_every_name_of_the_package_is_there_and_no_other() -> None:
    assert {getattr(students, name).__name__ for name in students.__all__} == set(students.__all__)
    with pytest.raises(AttributeError, match="no attribute 'mime'"):
        students.mime  # noqa: B018


def test_the_commands_stand_there_by_their_names() -> None:
    assert {"similarity", "search", "mine", "shrink"} <= set(students.__all__)


def test_the_package_alone_loads_nothing_heavy() -> None:
    loaded = "import sys, students; print(sorted({'torch', 'numpy', 'pydantic', 'faiss'} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True) == "[]\n"
