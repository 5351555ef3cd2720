"""The workers of a Ray cluster on this machine beside one process, while nodes, callers and workers are killed.

Claims: files of vectors, entities and scores are those of one process, byte for byte, though a node and later the
caller were killed in the middle; one worker with all cores takes at most 1.1 times as long as one process; N workers of
a core are at least 0.8 N times as fast as one, on a fifth of the sentences; of 10,000,000 rows between two datasets of
a server that speaks S3, with workers killed, none is lost or there twice, and the caller takes at most 50 MB more than
for 100,000.

    python -m benchmarks.cluster --data DIR                                   about two hours
    python -m benchmarks.cluster --data DIR --parts bytes --sentences 20000

Sentences are encoded by all-MiniLM-L6-v2; a tagger and a scorer of notes start from it and are hardly trained; the
10,000,000 rows are encoded by a stand-in of one layer of 32 dimensions. The server is moto's. The cluster of the first
claim has a head and two nodes, of a core each; a node and the caller are killed when a third and two thirds of the
shards are there, and the same command runs again. Of the rows a worker is killed whenever eight more shards are there.
"""

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Answer, Claim, Spread, in_turns, main
from benchmarks.machine import MINILM, save_stand_in, synthetic_sentences
from bertrelay.data.parquet import ROW, Location
from bertrelay.model.new import train_wordpiece

ABSTRACTS, RECIPE = "text/pubmed-abstracts.jsonl.gz", Path(__file__).with_name("fuzz.toml")
MAX_TOKENS = 128
MAX_SLOWDOWN, MIN_SCALING, MAX_GROWTH_MB, FILES, FEW_ROWS, SENTENCES_OF_A_NOTE = 1.1, 0.8, 50, 100, 100_000, 25
SECONDS_BETWEEN_CHECKS, SHARDS_BETWEEN_KILLS = 0.02, 8
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}


Found = tuple[list[Claim], dict[str, Any]]


class Call:
    """Runs a command of `bertrelay` to its end in a process of its own, on the Ray cluster at `address` if given.

    words: the last is the output. kill_node: called when a third of `expected_shards` are there; at two thirds the
    process is killed. seen_shards: the most that were there. killed_at: how many at each kill. peak_mb: private memory.
    """

    def __init__(
        self,
        words: list[str],
        threads: int,
        address: str = "",
        kill_node: Callable[[], None] | None = None,
        expected_shards: int = 0,
    ) -> None:
        self.seen_shards, self.peak_mb, self.killed_at, began = 0, 0.0, list[int](), time.monotonic()
        command = [sys.executable, "-P", "-m", "pipelines", *words, *(["--engine", "ray"] if address else [])]
        counts = dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(threads))
        environment = {**os.environ, **counts, "RAY_ADDRESS": address}
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            kills = [(expected_shards / 3, kill_node), (2 * expected_shards / 3, process.kill)] if kill_node else []
            while process.poll() is None:
                self._sample(process.pid, Path(f"{words[-1]}.partial"))
                if kills and self.seen_shards >= kills[0][0]:
                    self.killed_at.append(self.seen_shards)
                    kills.pop(0)[1]()
                time.sleep(SECONDS_BETWEEN_CHECKS)
            self.seconds = time.monotonic() - began
            was_killed = kill_node is not None and not kills
            if process.returncode and not was_killed:
                log.seek(0)
                sys.exit(f"{' '.join(command)}\n{log.read()}")

    def _sample(self, process: int, folder: Path) -> None:
        with suppress(OSError):
            self.seen_shards = max(self.seen_shards, sum(path.name[0] == "0" for path in folder.iterdir()))
        with suppress(OSError):
            status = Path(f"/proc/{process}/status").read_text().splitlines()
            memory = [int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon")]
            self.peak_mb = max([self.peak_mb, *memory])  # a process that has ended has none


@contextmanager
def cluster(*cores: int) -> Iterator[tuple[str, Callable[[], None]]]:
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


# The same bytes


def write_sentences(options: Namespace) -> None:
    with (options.scratch / "sentences.txt").open("w") as file:
        file.writelines(f"{sentence}\n" for sentence in synthetic_sentences(options.sentences, seed=1))


def write_inputs(options: Namespace) -> None:
    """Abstracts and notes; and a tagger and a scorer that start from MiniLM, in `runs`."""
    folder = options.scratch
    with gzip.open(options.data / ABSTRACTS, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    with (folder / "abstracts.jsonl").open("w") as file:
        rows = ({"id": str(row), "text": texts[row % len(texts)]} for row in range(options.abstracts))
        file.writelines(f"{json.dumps(row)}\n" for row in rows)
    drawn = synthetic_sentences(options.admissions * SENTENCES_OF_A_NOTE, seed=2)
    with (folder / "notes.csv").open("w") as file:
        notes = (" ".join(islice(drawn, SENTENCES_OF_A_NOTE)) for _ in range(options.admissions))
        file.writelines(["hadm_id,text\n", *(f"{number},{note}\n" for number, note in enumerate(notes))])
    changes = [f"ner.base={MINILM}", "ner.max_tokens=128", f"readmission.base={MINILM}"]
    changes += ["readmission.chunking={max_tokens=128, max_chunks=4}"]
    words = ["run", str(RECIPE), *(word for change in changes for word in ("--set", change))]
    Call([*words, "--only", "ner", "--only", "readmission", "--runs", str(folder / "runs")], options.threads)


def commands(folder: Path) -> dict[str, list[str]]:
    """The output file's name to the command that writes it, without the output."""
    models = {stage: str(folder / "runs/fuzz" / stage / "latest/model") for stage in ("ner", "readmission")}
    return {
        "vectors.npy": ["encode", MINILM, str(folder / "sentences.txt")],
        "entities.jsonl": ["ner", "tag", models["ner"], str(folder / "abstracts.jsonl")],
        "scores.csv": ["readmission", "score", models["readmission"], str(folder / "notes.csv")],
    }


def bytes_claims(options: Namespace) -> Found:
    """Whether each file is that of one process, though a node and the caller were killed."""
    write_inputs(options)
    claims, folder = list[Claim](), options.scratch
    for name, words in commands(folder).items():
        alone = Call([*words, str(folder / f"alone-{name}")], 1)
        output = [*words, str(folder / f"cluster-{name}")]
        with cluster(1, 1, 1) as (address, kill_node):
            killed = Call(output, 1, address, kill_node, alone.seen_shards)
            again = Call(output, 1, address)
        same = Path(output[-1]).read_bytes() == (folder / f"alone-{name}").read_bytes()
        when = " and ".join(map(str, killed.killed_at))
        found = f"{same}, killed at {when} of {alone.seen_shards} shards; {alone.seconds:.0f} s alone, with faults "
        found += f"{killed.seconds:.0f} and {again.seconds:.0f} s"
        in_the_middle = len(killed.killed_at) == 2 and all(0 < at < alone.seen_shards for at in killed.killed_at)
        claims.append(Claim(f"{name}: the same bytes", found, same and in_the_middle))
        print(found, flush=True)
    return claims, {}


# Overhead and scaling


def in_turns_encoded(options: Namespace, source: Path, contenders: dict[str, tuple[int, list[str]]]) -> dict[str, Any]:
    """The seconds of each contender, by its name: its threads, and the options of a cluster if it runs on one.

    The cluster is there for each, idle where one process computes alone.
    """

    def work(threads: int, how: list[str]) -> Callable[[int], Answer]:
        def call(number: int) -> Answer:
            output = options.scratch / f"{number}.npy"
            with cluster(options.threads) as (address, _):
                words = ["encode", MINILM, str(source), *how, str(output)]
                seconds = Call(words, threads, address if how else "").seconds
            output.unlink()
            print(f"{threads} threads {' '.join(how)}: {seconds:.1f} s", flush=True)
            return {"seconds": seconds}

        return call

    return dict(in_turns({name: work(*each) for name, each in contenders.items()}, options.rounds))


def overhead_claims(options: Namespace) -> Found:
    """One process with all threads beside one worker with as many."""
    contenders = {"alone": (options.threads, list[str]()), "one worker": (1, ["--workers", "1"])}
    results = in_turns_encoded(options, options.scratch / "sentences.txt", contenders)
    times = Spread.of_ratios(results["one worker"].values(), results["alone"].values())
    text = f"one worker takes at most {MAX_SLOWDOWN} × as long as one process"
    return [Claim(text, str(times), times.median <= MAX_SLOWDOWN)], {"overhead": results}


def scaling_claims(options: Namespace) -> Found:
    """As many workers of a core as there are cores, beside one of them."""
    source, cores = options.scratch / "fewer.txt", options.threads
    with (options.scratch / "sentences.txt").open() as file, source.open("w") as fewer:
        fewer.writelines(islice(file, options.sentences // 5))
    each = ["--cpus-per-worker", "1", "--workers"]
    contenders = {"one core": (1, [*each, "1"]), "all cores": (1, [*each, str(cores)])}
    results = in_turns_encoded(options, source, contenders)
    speed = Spread.of_ratios(results["one core"].values(), results["all cores"].values())
    text = f"{cores} workers of a core are at least {MIN_SCALING * cores:.1f} × as fast as one"
    return [Claim(text, str(speed), speed.median >= MIN_SCALING * cores)], {"scaling": results}


# An object store


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The URL of a new S3 server in a process of its own; `.format(name)` puts in the bucket."""
    os.environ |= KEYS
    output = folder / "server.txt"
    with output.open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", "0"], stdout=log, stderr=log)
    try:
        while not (found := re.search(r"http://(127\.0\.0\.1:\d+)", output.read_text())):
            if process.poll() is not None:
                sys.exit(
                    f"expected a server that speaks S3, found none: pip install 'bertrelay[dev]'\n{output.read_text()}"
                )
            time.sleep(SECONDS_BETWEEN_CHECKS)
        yield f"s3://{{}}?endpoint_override={found[1]}&scheme=http&region=us-east-1&allow_bucket_creation=true"
    finally:
        process.kill()


def write_rows(address: str, rows: int) -> None:
    """`rows` rows in FILES files: the same sentences in each, numbered through in the column `id`."""
    place, each = Location(address), rows // FILES
    place.filesystem.create_dir(place.path())
    texts = pa.array(synthetic_sentences(each, seed=1))
    for number in range(FILES):
        ids = pa.array(range(number * each, (number + 1) * each), pa.int64())
        with place.filesystem.open_output_stream(place.path(f"{number:03}.parquet")) as file:
            pq.write_table(pa.table({"id": ids, "text": texts}), file)


def fault_of_rows(address: str, rows: int) -> str:
    """What is wrong with the dataset of `write_rows`, encoded; nothing where each row is there once and has its vector.

    As all files have the same texts, their vectors are those of the first one.
    """
    place, first, seen = Location(address), None, 0
    names = sorted(name for name in place.names() if name.endswith(".parquet"))
    for name in names:
        table = pq.read_table(place.path(name), filesystem=place.filesystem)
        expected = np.arange(seen, seen + len(table))
        if not all((table[column].to_numpy() == expected).all() for column in ("id", ROW)):
            return f"{name} has other rows than {seen:,} to {seen + len(table):,}"
        vectors = table["vector"].combine_chunks()
        first = vectors if first is None else first
        if not vectors.equals(first):
            return f"{name} has other vectors than {names[0]}"
        seen += len(table)
    return "" if seen == rows else f"{seen:,} of {rows:,} rows"


def kill_workers(output: Location, stopped: threading.Event, killed: list[int]) -> None:
    """Kills a random worker whenever SHARDS_BETWEEN_KILLS more shards are there, until `stopped` is set."""
    chance = random.Random(0)
    while not stopped.wait(1):
        workers = [process for process in descendants(os.getpid()) if b"_Worker" in _command(process)]
        if workers and len(output.names("_shards")) >= SHARDS_BETWEEN_KILLS * (len(killed) + 1):
            victim = chance.choice(workers)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)


def descendants(process: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    processes = []
    with suppress(OSError):
        for file in Path(f"/proc/{process}/task").glob("*/children"):
            for child in map(int, file.read_text().split()):
                processes += [child, *descendants(child)]
    return processes


def _command(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def store_claims(options: Namespace) -> Found:
    """Few rows, then all of them with workers killed."""
    model, peaks, faults = options.scratch / "stand-in", list[float](), list[str]()
    save_stand_in(model, train_wordpiece(synthetic_sentences(2_000, seed=0), 600, MAX_TOKENS), MAX_TOKENS)
    killed, stopped = list[int](), threading.Event()
    with server(options.scratch) as store, cluster(*[1] * options.threads) as (address, _):
        for rows in (FEW_ROWS, options.rows):
            source, output = (store.format(f"{part}-{rows}") for part in ("in", "out"))
            write_rows(source, rows)
            killer = threading.Thread(target=kill_workers, args=(Location(output), stopped, killed), daemon=True)
            if rows == options.rows:
                killer.start()
            call = Call(["encode", str(model), source, "--keep", "id", output], 1, address)
            peaks.append(call.peak_mb)
            print(f"{rows:,} rows: {call.seconds:.0f} s, the caller {call.peak_mb:.0f} MB", flush=True)
            faults.append(fault_of_rows(output, rows))
        stopped.set()
        killer.join()
    fault, growth = next(filter(None, faults), "none lost or twice"), peaks[1] - peaks[0]
    whole = not any(faults) and len(killed) > 0
    claims = [
        Claim("each row is there once, with its vector", f"{fault}, {len(killed)} workers killed", whole),
        Claim(f"the caller takes at most {MAX_GROWTH_MB} MB more", f"{growth:+.0f} MB", growth <= MAX_GROWTH_MB),
    ]
    return claims, {}


PARTS = {"bytes": bytes_claims, "overhead": overhead_claims, "scaling": scaling_claims, "store": store_claims}


def measure(options: Namespace) -> Found:
    claims, results = list[Claim](), dict[str, Any]()
    write_sentences(options)
    for part in options.parts:
        found, more = PARTS[part](options)
        claims, results = claims + found, results | more
    return claims, results


if __name__ == "__main__":
    sizes: dict[str, Any] = {"sentences": 200_000, "abstracts": 3_000, "admissions": 5_000, "rows": 10_000_000}
    main(measure, __doc__, ABSTRACTS, parts=list(PARTS), rounds=3, **sizes)
