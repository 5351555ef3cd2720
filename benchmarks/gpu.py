"""Everything that needs a GPU, in one call of at most eight minutes: tests, a recipe, speed beside peers, memory.

    python -m benchmarks.gpu --data DIR --json gpu.json
    python -m benchmarks.gpu --data DIR --parts tests encode
    python -m benchmarks.gpu --data DIR --parts multilingual-files --set vars.teacher=DIR vars.base=DIR …

Every part is a process of its own whose output is printed as it comes. `tests` runs those that are skipped without a
GPU. `quickstart` runs the recipe from sample data to the report; `multilingual-files`, where --set says what it is made
of, trains the student of that recipe and evaluates it on Tatoeba, in the time that is left. The others run the
benchmarks of that name with --device cuda; `encode-base` encodes with a random network of BERT-base's size (12 layers
of 768). Peers are of the versions that are installed. A part that does not fit into the rest of --minutes is not begun,
or is ended; the table at the end has seconds, status and claims of all parts. Claims of `pretraining` and `ner` were
made for CPUs. Exits with 1 if the tests, a recipe or a claim of another part fails.
"""

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

from benchmarks.harness import Claim, main
from benchmarks.machine import MINILM, STSB
from benchmarks.ner import FILES
from benchmarks.pretraining import TEXTS
from bertrelay.model.encoder import SentenceEncoder

TESTS, RECIPE, FLAGSHIP = "tests", "quickstart", "multilingual-files"
TRAINING = 0.6
"""Fraction of the time that is left for `multilingual-files`: start, dev evaluations and Tatoeba take the rest."""
BENCHMARKS = {
    "encode": ("encode", "--rounds", "3", "--peers", "autocast"),
    "ner": ("ner", "--seeds", "1"),
    "pretraining": ("pretraining", "--seeds", "1"),
    "distill": ("distill", "--rounds", "1", "--rows", "9000"),
    "encode-base": ("encode", "--rounds", "2", "--peers", "autocast", "--sentences", "4000", "--model", "{base}"),
}
MADE_FOR_CPUS = ["pretraining", "ner"]
LEAST_SECONDS = 20  # with less left a part is not begun
NOT_BEGUN, ENDED = "not begun", "ended by --minutes"


def save_base_size(folder: Path) -> Path:
    """A sentence encoder of BERT-base's size with random weights and the tokenizer of all-MiniLM-L6-v2."""
    tokenizer = SentenceEncoder.load(MINILM).tokenizer
    torch.manual_seed(0)
    SentenceEncoder(BertModel(BertConfig(vocab_size=len(tokenizer))), tokenizer).save(folder)
    return folder


def command(part: str, options: Namespace, base: Path, seconds: float) -> list[str]:
    if part == TESTS:
        return ["pytest", "-q", "-p", "no:cacheprovider", "tests/students/test_gpu.py"]
    if part == RECIPE:
        return ["pipelines", "run", RECIPE, "--runs", str(options.scratch / "runs")]
    if part == FLAGSHIP:
        given = [f"vars.data={options.data}", f"vars.minutes={TRAINING * seconds / 60:.2f}", *options.set]
        changes = [word for change in given for word in ("--set", change)]
        return ["pipelines", "run", FLAGSHIP, "--only", "tatoeba", "--runs", str(options.scratch / "runs"), *changes]
    script, *given = (argument.format(base=base) for argument in BENCHMARKS[part])
    saved = ["--json", str(options.scratch / f"{part}.json")]
    return [f"benchmarks.{script}", "--data", str(options.data), "--device", options.device, *saved, *given]


def run_part(part: str, options: Namespace, base: Path, seconds: float) -> dict[str, Any]:
    """Runs a part for at most so many seconds; its status, its seconds, and what its benchmark saved."""
    if seconds < LEAST_SECONDS:
        return {"status": NOT_BEGUN, "seconds": 0.0}
    print(f"\n{part}", flush=True)
    began, status = time.monotonic(), ENDED
    process = subprocess.Popen([sys.executable, "-m", *command(part, options, base, seconds)], start_new_session=True)
    try:
        status = f"exit {process.wait(timeout=seconds)}"
    except subprocess.TimeoutExpired:
        end_group(process)
    saved = options.scratch / f"{part}.json"
    content = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else {}
    return {"status": status, "seconds": time.monotonic() - began, **content}


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Ends the process and all that it started, so that the next part has the GPU to itself."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def measure(options: Namespace) -> tuple[Sequence[Claim], dict[str, Any]]:
    began = time.monotonic()
    base = save_base_size(options.scratch / "base") if "encode-base" in options.parts else options.scratch
    results: dict[str, dict[str, Any]] = {}
    for part in options.parts:
        left = 60 * options.minutes - (time.monotonic() - began)
        results[part] = run_part(part, options, base, left)
    print_table(results)
    judged = [Claim(part, result["status"], holds(part, result)) for part, result in results.items()]
    return judged, {"parts": results}


def holds(part: str, result: dict[str, Any]) -> bool:
    """True for a part that ended well; claims that were made for CPUs fail no part."""
    return result["status"] == "exit 0" or (part in MADE_FOR_CPUS and "claims" in result)


def print_table(results: dict[str, dict[str, Any]]) -> None:
    print()
    for part, result in results.items():
        print(f"{part:12} {result['seconds']:5.0f} s  {result['status']}")
        for claim in result.get("claims", []):
            print(f"{'':12} {claim['text']}: {claim['measured']}, {'yes' if claim['holds'] else 'no'}")


if __name__ == "__main__":
    parts = {"nargs": "+", "choices": [TESTS, RECIPE, *BENCHMARKS, FLAGSHIP], "default": [TESTS, RECIPE, *BENCHMARKS]}
    changes = {"nargs": "+", "default": [], "metavar": "KEY=VALUE", "help": f"of the recipe {FLAGSHIP}"}
    needed = [*STSB, "parallel/multi30k", *FILES, *TEXTS]
    main(measure, __doc__, *needed, device="cuda", parts=parts, minutes=8.0, set=changes)
