"""The workers of a Ray cluster on this machine beside one process, while nodes, callers and workers are killed.

A cluster of a head and two nodes of one core each writes vectors, entities and scores; a node and the calling process
are killed when a third and two thirds of the shards are there, and the same command runs again. Rows of a dataset on an
S3 server (moto's, in a process of its own) are encoded by a stand-in of one layer while random workers are killed.
pytest -s prints the times.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.machine import MINILM, save_stand_in, synthetic_sentences
from bertrelay.data.parquet import ROW, Location
from bertrelay.model.new import train_wordpiece

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).with_name("every_stage.toml")
SENTENCES, ABSTRACTS, ADMISSIONS, SENTENCES_OF_A_TEXT = 50_000, 3_000, 5_000, 10
TIMED_SENTENCES, MAX_SLOWDOWN, MIN_SCALING = 200_000, 1.1, 0.8
FEW_ROWS, ROWS, FILES, MAX_GROWTH_MB, MAX_TOKENS = 100_000, 2_000_000, 100, 50, 128
SECONDS_BETWEEN_CHECKS, SHARDS_BETWEEN_KILLS = 0.02, 8
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}


class Call:
    """Runs a command of `bertrelay` to its end in a process of its own, on the Ray cluster at `address` if any.

    words: the last is the output. kill_node: called when a third of `expected_shards` are there; at two thirds the
    process is killed. shards: the most that were there. killed_at: how many at each kill. peak_mb: private memory.
    """

    def __init__(self, words, threads=1, address="", kill_node=None, expected_shards=0):
        self.shards, self.peak_mb, self.killed_at, began = 0, 0.0, [], time.monotonic()
        command = [sys.executable, "-P", "-m", "pipelines", *words, *(["--engine", "ray"] if address else [])]
        counts = dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(threads))
        with tempfile.TemporaryFile("w+") as log:
            environment = {**os.environ, **counts, "RAY_ADDRESS": address}
            process = subprocess.Popen(list(map(str, command)), env=environment, stdout=log, stderr=log)
            kills = [(expected_shards / 3, kill_node), (2 * expected_shards / 3, process.kill)] if kill_node else []
            while process.poll() is None:
                self._sample(process.pid, Path(f"{words[-1]}.partial"))
                if kills and self.shards >= kills[0][0]:
                    self.killed_at.append(self.shards)
                    kills.pop(0)[1]()
                time.sleep(SECONDS_BETWEEN_CHECKS)
            self.seconds = time.monotonic() - began
            log.seek(0)
            assert process.returncode == 0 or len(self.killed_at) == 2, log.read()

    def _sample(self, process, folder):
        with suppress(OSError):
            self.shards = max(self.shards, sum(path.name[0] == "0" for path in folder.iterdir()))
        with suppress(OSError):
            status = Path(f"/proc/{process}/status").read_text()
            memory = [int(size) / 1024 for size in re.findall(r"^RssAnon:\s*(\d+) kB", status, re.MULTILINE)]
            self.peak_mb = max([self.peak_mb, *memory])  # a process that has ended has none


@contextmanager
def cluster(*cores):
    """The address of a cluster of nodes with so many cores each, the head first, and what kills its last node."""
    from ray.cluster_utils import Cluster

    os.environ.pop("OMP_NUM_THREADS", None)  # a worker has as many threads as cores
    os.environ["RAY_AUTH_MODE"] = "disabled"  # this cluster requires no token, and cannot call a process that does
    nodes = Cluster()
    try:
        added = [nodes.add_node(num_cpus=count, include_dashboard=False) for count in cores]
        nodes.wait_for_nodes()
        yield nodes.address, lambda: nodes.remove_node(added[-1], allow_graceful=False)
    finally:
        nodes.shutdown()


@pytest.fixture(autouse=True)
def restored_environment():
    """Undoes what a cluster and a server set for all that is started."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def write_sentences(path, count):
    with path.open("w") as file:
        file.writelines(f"{sentence}\n" for sentence in synthetic_sentences(count, seed=1))
    return path


def texts(count):
    sentences = synthetic_sentences(count * SENTENCES_OF_A_TEXT, seed=2)
    return (" ".join(islice(sentences, SENTENCES_OF_A_TEXT)) for _ in range(count))


# The same bytes


def encode_words(folder):
    return ["encode", MINILM, write_sentences(folder / "sentences.txt", SENTENCES)]


def tag_words(folder):
    with (folder / "abstracts.jsonl").open("w") as file:
        file.writelines(json.dumps({"id": str(row), "text": text}) + "\n" for row, text in enumerate(texts(ABSTRACTS)))
    return ["ner", "tag", trained(folder, "ner", "ner.max_tokens=128"), folder / "abstracts.jsonl"]


def score_words(folder):
    with (folder / "notes.csv").open("w") as file:
        file.writelines(["hadm_id,text\n", *(f"{row},{text}\n" for row, text in enumerate(texts(ADMISSIONS)))])
    chunking = "readmission.chunking={max_tokens=128, max_chunks=4}"
    return ["readmission", "score", trained(folder, "readmission", chunking), folder / "notes.csv"]


def trained(folder, stage, change):
    """The model of a stage of the recipe that starts from MiniLM and is hardly trained."""
    changes = [f"{stage}.base={MINILM}", change]
    words = ["run", RECIPE, *(word for change in changes for word in ("--set", change)), "--only", stage]
    Call([*words, "--runs", folder / "runs"])
    return folder / "runs/every-stage" / stage / "latest/model"


@pytest.mark.promise("A file that killed nodes and callers wrote has the bytes of one process", about="cluster")
@pytest.mark.parametrize(
    ("write", "name"),
    [(encode_words, "vectors.npy"), (tag_words, "entities.jsonl"), (score_words, "scores.csv")],
)
def test_a_file_has_the_bytes_of_one_process_though_a_node_and_the_caller_were_killed(write, name, tmp_path):
    words = write(tmp_path)
    one = Call([*words, tmp_path / f"one-{name}"])
    output = tmp_path / f"cluster-{name}"
    with cluster(1, 1, 1) as (address, kill_node):
        killed = Call([*words, output], 1, address, kill_node, one.shards)
        resumed = Call([*words, output], 1, address)
    assert output.read_bytes() == (tmp_path / f"one-{name}").read_bytes()
    assert len(killed.killed_at) == 2 and all(0 < shards < one.shards for shards in killed.killed_at)
    print(f"{name}: killed at {killed.killed_at} of {one.shards} shards; {one.seconds:.0f} s in one process,", end=" ")
    print(f"{killed.seconds:.0f} s until the second kill and {resumed.seconds:.0f} s after it")


# Time


def seconds(folder, source, threads, *options):
    """Seconds of encoding; the cluster is there also where one process computes, and idle then."""
    with cluster(len(os.sched_getaffinity(0))) as (address, _):
        words = ["encode", MINILM, source, *options, folder / f"vectors{''.join(options)}.npy"]
        taken = Call(words, threads, address if options else "").seconds
    print(f"{threads} threads {' '.join(options)}: {taken:.1f} s")
    return taken


def test_one_worker_with_all_cores_takes_at_most_a_tenth_longer_than_one_process(tmp_path):
    source = write_sentences(tmp_path / "sentences.txt", TIMED_SENTENCES)
    in_process = seconds(tmp_path, source, len(os.sched_getaffinity(0)))
    assert seconds(tmp_path, source, 1, "--workers", "1") <= MAX_SLOWDOWN * in_process


def test_workers_of_a_core_are_nearly_as_many_times_as_fast_as_one(tmp_path):
    source = write_sentences(tmp_path / "sentences.txt", TIMED_SENTENCES // 5)
    cores, workers = len(os.sched_getaffinity(0)), ("--cpus-per-worker", "1", "--workers")
    one, all_cores = (seconds(tmp_path, source, 1, *workers, str(count)) for count in (1, cores))
    assert one >= MIN_SCALING * cores * all_cores


# An object store


@contextmanager
def server(folder):
    """The URL of a new S3 server in a process of its own; `.format(name)` puts in the bucket."""
    os.environ |= KEYS
    output = folder / "server.txt"
    with output.open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", "0"], stdout=log, stderr=log)
    try:
        while not (address := re.search(r"http://(127\.0\.0\.1:\d+)", output.read_text())):
            assert process.poll() is None, output.read_text()
            time.sleep(SECONDS_BETWEEN_CHECKS)
        yield f"s3://{{}}?endpoint_override={address[1]}&scheme=http&region=us-east-1&allow_bucket_creation=true"
    finally:
        process.kill()


def write_rows(address, rows):
    """Writes rows into FILES files: the same sentences in each, and in the column `id` the number of the row."""
    folder, in_a_file = Location(address), rows // FILES
    folder.filesystem.create_dir(folder.path())
    sentences = pa.array(synthetic_sentences(in_a_file, seed=1))
    for number in range(FILES):
        ids = pa.array(range(number * in_a_file, (number + 1) * in_a_file), pa.int64())
        with folder.filesystem.open_output_stream(folder.path(f"{number:03}.parquet")) as file:
            pq.write_table(pa.table({"id": ids, "text": sentences}), file)


def check_rows(address, rows):
    """Checks that each row of `write_rows` is there once with its vector; all files have the vectors of the first."""
    folder, first, seen = Location(address), None, 0
    for name in sorted(name for name in folder.names() if name.endswith(".parquet")):
        table = pq.read_table(folder.path(name), filesystem=folder.filesystem)
        for column in ("id", ROW):
            np.testing.assert_array_equal(table[column].to_numpy(), np.arange(seen, seen + len(table)), err_msg=name)
        vectors = table["vector"].combine_chunks()
        first = vectors if first is None else first
        assert vectors.equals(first), f"{name} has other vectors than the first file"
        seen += len(table)
    assert seen == rows


def kill_workers(output, stopped, killed):
    """Kills a random worker whenever SHARDS_BETWEEN_KILLS more shards are there, until `stopped` is set."""
    chance = random.Random(0)
    while not stopped.wait(1):
        with suppress(psutil.NoSuchProcess):
            processes = psutil.Process().children(recursive=True)
            workers = [process for process in processes if "_Worker" in " ".join(process.cmdline())]
            if workers and len(output.names("_shards")) >= SHARDS_BETWEEN_KILLS * (len(killed) + 1):
                victim = chance.choice(workers)
                victim.kill()
                killed.append(victim.pid)


@pytest.mark.promise(
    "Each row of a dataset is written once, with its vector, while workers are killed", about="cluster"
)
def test_each_row_is_there_once_while_workers_are_killed_and_the_caller_needs_little_more_memory(tmp_path):
    model, peaks, killed, stopped = tmp_path / "stand-in", [], [], threading.Event()
    save_stand_in(model, train_wordpiece(synthetic_sentences(2_000, seed=0), 600, MAX_TOKENS), MAX_TOKENS)
    with server(tmp_path) as store, cluster(*[1] * len(os.sched_getaffinity(0))) as (address, _):
        for rows in (FEW_ROWS, ROWS):
            source, output = (store.format(f"{part}-{rows}") for part in ("in", "out"))
            write_rows(source, rows)
            killer = threading.Thread(target=kill_workers, args=(Location(output), stopped, killed), daemon=True)
            if rows == ROWS:
                killer.start()
            call = Call(["encode", model, source, "--keep", "id", output], 1, address)
            peaks.append(call.peak_mb)
            print(
                f"{rows:,} rows: {call.seconds:.0f} s, the caller {call.peak_mb:.0f} MB, {len(killed)} workers killed"
            )
            check_rows(output, rows)
        stopped.set()
        killer.join()
    assert killed
    assert peaks[1] - peaks[0] <= MAX_GROWTH_MB
