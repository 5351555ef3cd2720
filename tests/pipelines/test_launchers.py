"""torchrun and accelerate launch as documented, in a working directory that has packages of our names."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(sys.executable).parent
NAMES = ("bertrelay", "teachers", "students", "domain", "pipelines")


@pytest.fixture
def own_packages(tmp_path):
    """A working directory whose packages of our names end a process that imports them."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        for module in ("__init__.py", "__main__.py"):
            (tmp_path / name / module).write_text("raise SystemExit('a package of the working directory')")
    return tmp_path


def documented(launcher):
    """The commands of README and docs that start with `launcher`, as lists of words."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    lines = [line.strip() for page in pages for line in page.read_text("utf-8").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(f"{launcher} ")]


def started(words, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    environment["PATH"] = f"{SCRIPTS}{os.pathsep}{environment['PATH']}"
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)


@pytest.mark.parametrize("launched", [["torchrun"], ["--processes", "2"]])
def test_two_processes_run_our_packages(own_packages, model, write_lines, launched):
    write_lines("sentences.txt", ["a dog", "a cat"] * 10)
    words = ["bertrelay", "encode", model, "sentences.txt", "vectors.npy"]
    if launched == ["torchrun"]:
        of_one_machine = next(each for each in documented("torchrun") if "--nnodes" not in each)
        launcher = of_one_machine[: of_one_machine.index("bertrelay")]
        words, launched = ["2" if word == "8" else word for word in launcher] + words, []
    done = started([*words, *launched], own_packages)
    assert (done.returncode, done.stdout) == (0, "vectors.npy: 20 sentences, 8 dim\n"), done.stderr


def test_accelerate_launch_as_documented_runs_our_packages(own_packages):
    (words,) = documented("accelerate")
    words = [*words[: words.index("run")], "--version"]
    words[words.index("--multi_gpu")] = "--cpu"
    words[words.index("8")] = "1"
    done = started(words, own_packages)
    assert (done.returncode, done.stdout) == (0, "bertrelay 0.1.0\n"), done.stderr
