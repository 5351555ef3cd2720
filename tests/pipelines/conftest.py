import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # light_stages are imported by name, as real stages are


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """A run sets variables of the hub's client; they end with the test."""
    monkeypatch.setattr(os, "environ", os.environ)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def write_recipe(tmp_path):
    def write(text, name="relay.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def start(tmp_path):
    """Starts `bertrelay` with the light stages; nothing started lives on."""
    started = []

    def start_one(*arguments, **environment):
        process = subprocess.Popen(
            [sys.executable, str(HERE / "light_bertrelay.py"), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def bertrelay(start):
    """Runs `bertrelay` with the light stages to its end: (exit code, standard output, standard error)."""

    def run(*arguments, **environment):
        process = start(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    return run
