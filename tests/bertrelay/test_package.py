import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

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


def test_a_script_beside_the_clone_imports_the_package(tmp_path):
    """The folder of the clone, `bertrelay`, would pass for an empty namespace package."""
    pytest.importorskip("setuptools")
    root, clone = Path(__file__).parents[2], tmp_path / "bertrelay"
    described = tomllib.loads((root / "pyproject.toml").read_text())
    for package in described["tool"]["setuptools"]["packages"]:
        (clone / package.replace(".", "/")).mkdir(parents=True)
        (clone / package.replace(".", "/") / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, clone)
    build = f"from setuptools.build_meta import build_editable as b; b({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    (tmp_path / "script.py").write_text(
        f"import site; site.addsitedir({str(tmp_path / 'installed')!r}); import bertrelay; print(bertrelay.__file__)"
    )
    printed = subprocess.run(
        [sys.executable, "-S", "script.py"], cwd=tmp_path, capture_output=True, text=True, env={}, check=False
    )
    assert printed.stdout.strip() == str(clone / "bertrelay/__init__.py"), printed.stderr
