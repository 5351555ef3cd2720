"""A training small enough to be killed a hundred times, in separate processes, and the faults that kill it."""

import copy
import hashlib
import json
import os
import shutil
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from forked import CONTEXT, finish
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from bertrelay.device import ComputePrecision
from bertrelay.errors import BertRelayError
from bertrelay.process_group import SINGLE_PROCESS
from bertrelay.training import checkpoint as checkpoints
from bertrelay.training import loop
from bertrelay.training.batches import plan_epoch
from bertrelay.training.loop import Training
from bertrelay.training.settings import TrainingSettings
from bertrelay.training.task import Batch

WORDS, DIM, PAD = 40, 12, 0
SETTINGS = {
    "seed": 3,
    "epochs": 3,
    "batch_tokens": 40,
    "device_tokens": 24,
    "learning_rate": 1e-2,
    "precision": "fp32",
    "checkpoint_every": 5,
    "evaluate_every": 4,
    "log_every": 1,
}
DROPOUT = {"task": {"dropout": 0.2}}


def training_settings(**changes):
    return TrainingSettings(**{**SETTINGS, **changes})


def train(task, settings, folder):
    """Trains in the precision of the settings, with the checkpoints in `folder` too."""
    return loop.train(task, settings, folder, folder, ComputePrecision(settings.precision))


class TwoHeads(nn.Module):
    """Words and sentences predicted from an embedding that is tied to the output, through a frozen layer."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, DIM)
        self.frozen = nn.Linear(DIM, DIM).requires_grad_(False)
        self.mix = nn.Linear(DIM, DIM)
        self.norm = nn.LayerNorm(DIM)
        self.dropout = nn.Dropout(dropout)
        self.words = nn.Linear(DIM, WORDS)
        self.words.weight = self.embedding.weight
        self.is_next = nn.Linear(DIM, 2)

    def forward(self, ids, mask):
        hidden = self.norm(self.mix(self.dropout(torch.tanh(self.frozen(self.embedding(ids))))))  # (batch, tokens, dim)
        weights = mask[:, :, None].to(hidden.dtype)
        pooled = (hidden * weights).sum(dim=1) / weights.sum(dim=1)  # (batch, dim)
        return self.words(hidden), self.is_next(pooled)


class TwoLosses:
    """Two losses, as in BERT: `mlm` is a mean over masked words, `nsp` one over items.

    poisoned, poison: the loss of this item is multiplied by a number; or it is infinite with a finite gradient.
    """

    def __init__(self, items=48, dropout=0.0, criterion="score", poisoned=None, poison=torch.inf):
        generator = np.random.default_rng(1)
        self.model = TwoHeads(dropout)
        self.lengths = self.padded_lengths = generator.integers(2, 15, items)
        self.ids = [generator.integers(1, WORDS, length) for length in self.lengths]
        self.is_next = generator.integers(0, 2, items)
        self.criterion = criterion
        self.poisoned, self.poison = poisoned, poison
        self.seeds = []

    def collate(self, items, epoch):
        ids = np.full((len(items), self.lengths[items].max()), PAD)  # (batch, tokens)
        masked = np.zeros(ids.shape, dtype=bool)
        for row, item in enumerate(items):
            length = self.lengths[item]
            ids[row, :length] = self.ids[item]
            masked[row, :length] = np.random.default_rng((epoch, item)).random(length) < 0.3
        inputs = {
            "ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy((ids != PAD).astype(np.int64)),
            "masked": torch.from_numpy(masked),
            "is_next": torch.from_numpy(self.is_next[items]),
            "poisoned": torch.from_numpy(items == (-1 if self.poisoned is None else self.poisoned)),
        }
        return Batch(inputs, {"mlm": int(masked.sum()), "nsp": len(items)})

    def loss(self, model, batch):
        self.seeds.append(torch.initial_seed())
        words, is_next = model(batch.inputs["ids"], batch.inputs["attention_mask"])
        masked = batch.inputs["masked"]
        mlm = functional.cross_entropy(words[masked], batch.inputs["ids"][masked], reduction="sum")
        nsp = functional.cross_entropy(is_next, batch.inputs["is_next"], reduction="sum")
        if batch.inputs["poisoned"].any():
            nsp = nsp * self.poison if isinstance(self.poison, float) else nsp + torch.inf
        return {"mlm": mlm, "nsp": nsp}

    def evaluate(self, process_group=SINGLE_PROCESS):  # noqa: ARG002 (a sum is not worth sharing)
        """A score that depends on every bit of the weights, and goes up and down during a training."""
        total = sum(float(value.double().sum()) for value in self.model.state_dict().values())
        return {"score": float(np.sin(1e4 * total)), "unmeasured": None}


class InBatch(TwoLosses):
    """Items in groups of three; each must be nearer to the next one of its group than to others, whole and cut."""

    def __init__(self, **options):
        super().__init__(**options)
        self.groups = np.arange(len(self.lengths)) // 3

    def collate(self, items, epoch):
        return Batch(super().collate(items, epoch).inputs, {"contrastive": len(items)})

    def vectors(self, model, batch):
        words, is_next = model(batch.inputs["ids"], batch.inputs["attention_mask"])
        mask = batch.inputs["attention_mask"][:, :, None]
        return torch.cat([(words * mask).sum(dim=1), is_next], dim=-1)

    def batch_losses(self, vectors, items, epoch):  # noqa: ARG002
        groups, rows = torch.from_numpy(self.groups[items]), {item: row for row, item in enumerate(items)}
        following = torch.tensor([rows[item // 3 * 3 + (item + 1) % 3] for item in items])
        excluded = (groups[:, None] == groups[None, :]).scatter(1, following[:, None], value=False)

        def loss(vectors):
            scores = functional.normalize(vectors, dim=-1) @ functional.normalize(vectors, dim=-1).mT * 5
            scores = scores.masked_fill(excluded, -torch.inf)
            return functional.cross_entropy(scores, following, reduction="sum")

        return {"contrastive": torch.stack([loss(vectors[:, :dim]) for dim in (8, vectors.shape[1])]).mean()}


@dataclass(frozen=True)
class Fault:
    """Signals that a process sends itself at its `call`-th call of `function`: before, within or after it."""

    function: str
    call: int
    when: str = "before"
    sent: tuple[int, ...] = (signal.SIGKILL,)
    rank: int = 0


def worker(folder, rank, environment, settings, task, faults):
    """Trains in one process; writes the digest of the weights, the seeds and the gradients into the folder."""
    os.environ.update(environment)
    with (folder / f"stderr-{rank}").open("ab") as file:
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    for fault in faults:
        if fault.rank == rank:
            arm(fault)
    if settings.pop("asynchronous", False):  # as on a GPU, a checkpoint is written while training continues
        loop.is_asynchronous = lambda _: True
    task = InBatch(**task) if settings.pop("in_batch", False) else TwoLosses(**task)
    gradients = capture_gradients(Training)
    try:
        metrics = train(task, training_settings(**settings), folder)
    except BertRelayError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    save_file(gradients, folder / f"gradients-{rank}.safetensors")
    result = {
        "weights": digest(task.model),
        "metrics": {name: value for name, value in metrics.items() if name != "train_seconds"},
        "seeds": task.seeds,
    }
    (folder / f"result-{rank}.json").write_text(json.dumps(result))
    os._exit(0)  # without the clean-up of a launcher's worker


def reference(task, epoch, items, weights):
    """Losses and gradient of Σ sum/count over `items`, as one batch in float64."""
    model = copy.deepcopy(task.model).double().train()
    model.load_state_dict({name: tensor.double() for name, tensor in weights.items()}, strict=False)
    batch = task.collate(np.asarray(items), epoch)
    if isinstance(task, InBatch):
        sums = task.batch_losses(task.vectors(model, batch), np.asarray(items), epoch)
    else:
        sums = task.loss(model, batch)
    losses = {name: total / max(1, batch.counts[name]) for name, total in sums.items()}
    sum(losses.values()).backward()
    gradient = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: loss.item() for name, loss in losses.items()}, gradient


def digest(model):
    state = sorted(model.state_dict().items())
    return hashlib.sha256(b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in state)).hexdigest()


def capture_gradients(owner):
    """Captures the gradient of every step and its weights before it, by `<step> <grad or weight> <name>`."""
    captured, update = {}, owner._update

    def capture_and_update(self):
        for name, parameter in self.task.model.named_parameters():
            if parameter.grad is not None:
                captured[f"{self.state.step} grad {name}"] = parameter.grad.clone()
            captured[f"{self.state.step} weight {name}"] = parameter.detach().clone()
        update(self)

    owner._update = capture_and_update
    return captured


FUNCTIONS = {
    "write_tensors": (checkpoints, "write_tensors"),
    "fsync": (os, "fsync"),
    "rename": (Path, "rename"),
    "rmtree": (shutil, "rmtree"),
    "update": (Training, "_update"),
    "evaluate": (Training, "_evaluate"),
    "progress": (loop, "progress"),
    "save": (checkpoints, "save_checkpoint"),
}


def arm(fault):
    owner, name = FUNCTIONS[fault.function]
    original, calls = getattr(owner, name), 0

    def faulty(*arguments, **named):
        nonlocal calls
        calls += 1
        if calls != fault.call:
            return original(*arguments, **named)
        if fault.when == "within" and fault.function == "write_tensors":  # half the bytes of a file are written
            original(*arguments)
            os.truncate(arguments[0], arguments[0].stat().st_size // 2)
        elif fault.when == "within":  # one file of a folder is removed
            sorted(arguments[0].iterdir())[0].unlink()
        result = original(*arguments, **named) if fault.when == "after" else None
        for number in fault.sent:
            os.kill(os.getpid(), number)
        return result if fault.when == "after" else original(*arguments, **named)

    setattr(owner, name, faulty)


def start(folder, processes=1, settings=None, task=None, faults=()):
    """Starts the processes of a training in `folder`. task: the arguments of `TwoLosses`."""
    folder.mkdir(exist_ok=True)
    started, port = [], free_port()
    for rank in range(processes):
        values = {"ACCELERATE_USE_CPU": "true"}
        if processes > 1:
            values |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {name: str(value) for name, value in values.items()}
        arguments = (folder, rank, environment, settings or {}, task or {}, faults)
        started.append(CONTEXT.Process(target=worker, args=arguments))
        started[-1].start()
    return started


def run(folder, processes=1, **options):
    return finish(start(folder, processes, **options))


def result(folder, rank=0):
    return json.loads((folder / f"result-{rank}.json").read_text())


def stderr_of(folder, rank=0):
    return (folder / f"stderr-{rank}").read_text()


def logged(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def planned(task, epochs=SETTINGS["epochs"], seed=SETTINGS["seed"], tokens=SETTINGS["batch_tokens"]):
    """The items of every step, in order."""
    return [batch for epoch in range(epochs) for batch in plan_epoch(task.lengths, seed, epoch, tokens)]


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]
