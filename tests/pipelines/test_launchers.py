"""torchrun and accelerate launch as documented, in a working directory that has packages of our names."""

import os
import shlex
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bertrelay.model.encoder import SentenceEncoder

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


def started(words, folder, stdin=os.devnull):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    environment["PATH"] = f"{SCRIPTS}{os.pathsep}{environment['PATH']}"
    with Path(folder, stdin).open() as given:
        return subprocess.run(
            words, stdin=given, capture_output=True, text=True, cwd=folder, env=environment, timeout=300
        )


RECIPE = """
[student]
uses = "students.distill"
teacher = "model"
base = { layers = 1, dim = 16, heads = 2, vocabulary = 60 }
parallel = [{ path = "pairs.tsv", others = { de = "de" } }]
dev_sentences = 4
epochs = 2
dropout = 0  # whose masks are of a process
batch_tokens = 64
precision = "fp32"
"""


def on_two_nodes(folders):
    """What `bertrelay run` ends with on two nodes of one process each, which work in these folders."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launch = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
    run = ["--no-python", "bertrelay", "run", "student.toml"]
    words = [[*launch, "--node-rank", str(rank), *run] for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        nodes = list(pool.map(started, words, folders))
    return [node.returncode for node in nodes], [node.stderr for node in nodes]


@pytest.fixture
def node(tiny_encoder, tmp_path):
    """`node(name)`: a folder of its own with recipe, model and pairs."""

    def make(name):
        folder = tmp_path / name
        pairs = [(f"a dog sees {n} {who}", f"ein Hund sieht {n} {who}") for who in ("cats", "birds") for n in range(20)]
        tiny_encoder("bert", [english for english, _ in pairs]).save(folder / "model")
        (folder / "student.toml").write_text(RECIPE)
        (folder / "pairs.tsv").write_text("".join(f"{en}\t{de}\n" for en, de in [("en", "de"), *pairs]))
        return folder

    return make


def test_two_nodes_with_a_shared_disk_train_as_one_process_does(node, call):
    shared, alone = node("shared"), node("alone")
    codes, errors = on_two_nodes([shared, shared])
    assert codes == [0, 0], errors
    call("run", alone / "student.toml", "--runs", alone / "runs")
    together, single = (
        SentenceEncoder.load(folder / "runs/student/student/latest/model") for folder in (shared, alone)
    )
    texts = ["a dog sees cats 3", "ein Hund sieht birds 4"]
    expected = single.encode(texts, precision="fp32")
    np.testing.assert_allclose(together.encode(texts, precision="fp32"), expected, atol=1e-5)


def test_two_processes_of_torchrun_or_our_own_run_our_packages_and_write_the_bytes_of_one(
    own_packages, call, model, write_lines
):
    of_one_machine = next(each for each in documented("torchrun") if "--nnodes" not in each)
    torchrun = ["2" if word == "8" else word for word in of_one_machine[: of_one_machine.index("bertrelay")]]
    given = write_lines("sentences.txt", ["a dog", "a cat"] * 10)
    call("encode", model, given, own_packages / "one.npy", "--precision", "fp32")
    encode = ["bertrelay", "encode", model, "--precision", "fp32"]
    for name, words in {
        "torchrun.npy": [*torchrun, *encode, "sentences.txt", "torchrun.npy"],
        "ours.npy": [*encode, "-", "ours.npy", "--processes", "2"],
    }.items():
        done = started(words, own_packages, given)
        assert (done.returncode, done.stdout) == (0, f"{name}: 20 sentences, 8 dim, computed in fp32\n"), done.stderr
        assert (own_packages / name).read_bytes() == (own_packages / "one.npy").read_bytes()


def test_accelerate_launch_as_documented_runs_our_packages(own_packages):
    (words,) = documented("accelerate")
    words = [*words[: words.index("run")], "--version"]
    words[words.index("--multi_gpu")] = "--cpu"
    words[words.index("8")] = "1"
    done = started(words, own_packages)
    assert (done.returncode, done.stdout) == (0, "bertrelay 0.1.0\n"), done.stderr
