"""Trainings killed by SIGKILL at random moments and resumed, against one that was never stopped.

Claim: the weights at the end are the same, bit for bit, with one process and with two.

    python -m benchmarks.kill --times 20

A small student (a BERT of 2 layers and 64 dimensions, with dropout) learns vectors of synthetic sentences on the CPU,
looks at dev data and keeps its best weights; a checkpoint is written every 3 steps. Its processes are killed from
outside, each time within a random while after the training went on, until it ends; then the next one begins, until
the number of kills is reached. Of two processes sometimes one dies first and the other a moment later, as a launcher
would end it.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from bertrelay.encoder import SentenceEncoder
from bertrelay.stage import Metrics
from bertrelay.training.batches import Items
from bertrelay.training.loop import Batch, train
from bertrelay.training.settings import TrainingSettings
from bertrelay.vocabulary import train_wordpiece
from pipelines.launch import PARENT, die_with_parent, worker_environments

WORDS = [first + second for first in ("ba", "ke", "li", "mo", "nu") for second in ("dar", "fen", "gis", "pol", "rut")]
SENTENCES, DEV_SENTENCES, DIM = 1500, 100, 64
SETTINGS = TrainingSettings(
    epochs=4,
    batch_tokens=256,
    device_tokens=160,
    learning_rate=1e-3,
    checkpoint_every=3,
    evaluate_every=25,
    log_every=1,
)
SHARE_BETWEEN_KILLS = 0.3  # of the time that a whole training takes, at most
SECONDS_BETWEEN_DEATHS = 0.3
SECONDS_BETWEEN_LOOKS = 0.002


@dataclass
class Tally:
    """What happened to the trainings with so many processes."""

    trainings: int = 0
    exact: int = 0
    steps: list[int] = field(default_factory=list)
    """The last logged step before each kill."""
    while_writing: int = 0
    """Kills that left a half-written checkpoint."""


class Student:
    """Sentences are drawn with a seed; a sentence's target is the mean of vectors drawn for its words."""

    criterion = "score"

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        count = SENTENCES + DEV_SENTENCES
        drawn = [generator.integers(0, len(WORDS), generator.integers(3, 14)) for _ in range(count)]
        sentences = [" ".join(WORDS[word] for word in words) for words in drawn]
        tokenizer = train_wordpiece(sentences, 80, 64)
        torch.manual_seed(0)
        sizes: dict[str, Any] = {
            "hidden_size": DIM,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
        }
        self.model = SentenceEncoder(BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)), tokenizer)
        self.ids = self.model.tokenize(sentences)
        self.lengths = self.padded_lengths = np.array([len(row) for row in self.ids[:SENTENCES]])
        vectors = generator.normal(size=(len(WORDS), DIM)).astype(np.float32)
        self.targets = torch.from_numpy(np.stack([vectors[words].mean(axis=0) for words in drawn]))  # (sentences, dim)

    def collate(self, items: Items, epoch: int) -> Batch:  # noqa: ARG002 (nothing is random here)
        rows = [torch.tensor(self.ids[item]) for item in items]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)  # (batch, tokens); [PAD] is 0
        targets = self.targets[torch.from_numpy(items)]  # (batch, dim)
        return Batch({"ids": ids, "attention_mask": (ids > 0).long(), "targets": targets}, {"distance": len(items)})

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        vectors = model(batch.inputs["ids"], batch.inputs["attention_mask"])  # (batch, dim)
        return {"distance": (vectors - batch.inputs["targets"]).square().sum()}

    def evaluate(self) -> Metrics:
        dev = self.collate(np.arange(SENTENCES, SENTENCES + DEV_SENTENCES), 0)
        return {"score": -float(self.loss(self.model, dev)["distance"])}


def work(folder: Path) -> None:
    """What each process does: trains in `folder` and writes the digest of its weights."""
    die_with_parent()
    torch.set_num_threads(1)
    student = Student()
    train(student, SETTINGS, folder)
    content = hashlib.sha256()
    for name, tensor in sorted(student.model.state_dict().items()):
        content.update(name.encode() + tensor.numpy().tobytes())
    building = folder / f"digest-{os.environ.get('RANK', '0')}.partial"
    building.write_text(content.hexdigest())
    building.rename(building.with_suffix(".txt"))


def start(folder: Path, processes: int) -> list[subprocess.Popen[bytes]]:
    environments = worker_environments(processes) if processes > 1 else [{**os.environ, PARENT: str(os.getpid())}]
    command = [sys.executable, "-m", "benchmarks.kill", "--work", str(folder)]
    with (folder / "stderr.txt").open("ab") as stderr:
        return [
            subprocess.Popen(command, env={**environment, "OMP_NUM_THREADS": "1"}, stderr=stderr)
            for environment in environments
        ]


def digests(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("digest-*.txt"))]


def never_stopped(folder: Path, processes: int) -> tuple[list[str], float]:
    """The digests of every process's weights, and the seconds of the training without loading."""
    folder.mkdir()
    workers = start(folder, processes)
    codes = [worker.wait() for worker in workers]
    if any(codes):
        raise SystemExit(f"a training that nobody killed failed:\n{(folder / 'stderr.txt').read_text()}")
    return digests(folder), float(last_line(folder)["seconds"])


def last_line(folder: Path) -> dict[str, float]:
    """The newest whole line of the log about steps; step 0 before there is one."""
    log = folder / "metrics.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.is_file() else []
    found = [line for line in map(json.loads, lines) if "seconds" in line]
    return found[-1] if found else {"step": 0}


def killed(folder: Path, processes: int, longest_seconds: float, chance: random.Random) -> bool:
    """Starts or goes on, and kills within `longest_seconds` of training; False when it ended or failed before."""
    before = written(folder)
    workers = start(folder, processes)
    while written(folder) == before and all(worker.poll() is None for worker in workers):
        time.sleep(SECONDS_BETWEEN_LOOKS)
    time.sleep(chance.uniform(0, longest_seconds))
    was_running = all(worker.poll() is None for worker in workers)
    together = chance.random() < 0.5
    for worker in chance.sample(workers, len(workers)) if was_running else []:
        worker.kill()
        if not together and processes > 1:
            time.sleep(chance.uniform(0, SECONDS_BETWEEN_DEATHS))
    codes = [worker.wait() for worker in workers]
    if not was_running and any(codes):
        raise SystemExit(f"a resumed training failed:\n{(folder / 'stderr.txt').read_text()}")
    return was_running


def written(folder: Path) -> int:
    log = folder / "metrics.jsonl"
    return log.stat().st_mtime_ns if log.is_file() else 0


def kill_and_compare(root: Path, processes: int, times: int, seed: int) -> Tally:
    expected, seconds = never_stopped(root / f"whole-{processes}", processes)
    tally, chance = Tally(), random.Random(seed)
    while len(tally.steps) < times:
        folder = root / f"killed-{processes}-{tally.trainings}"
        folder.mkdir()
        while len(tally.steps) < times and killed(folder, processes, seconds * SHARE_BETWEEN_KILLS, chance):
            tally.steps.append(int(last_line(folder)["step"]))
            tally.while_writing += any(folder.glob("checkpoint-*.partial"))
        for worker in start(folder, processes) if len(digests(folder)) < processes else []:
            worker.wait()
        tally.trainings += 1
        tally.exact += digests(folder) == expected
    return tally


def main() -> int:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=20, help="kills for each number of processes")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--work", type=Path, help="be one of the processes (used by the program itself)")
    given = parser.parse_args()
    if given.work:
        work(given.work)
        return 0
    all_exact = True
    with tempfile.TemporaryDirectory() as root:
        for processes in (1, 2):
            began = time.monotonic()
            tally = kill_and_compare(Path(root), processes, given.times, given.seed)
            exact = tally.exact == tally.trainings
            all_exact &= exact
            print(
                f"{processes} process{'es' if processes > 1 else ''}: {len(tally.steps)} kills in {tally.trainings} "
                f"trainings, {tally.while_writing} of them in the writing of a checkpoint; after steps "
                f"{', '.join(map(str, tally.steps))}; {time.monotonic() - began:.0f} s\n"
                f"    exact: {'yes' if exact else 'no'} ({tally.exact} of {tally.trainings})",
                flush=True,
            )
    return 0 if all_exact else 1


if __name__ == "__main__":
    sys.exit(main())
