"""The recipe `clinic` from end to end: a model beside the known risk of the made-up patients it was trained on.

Claims: an AUROC within 0.05 of that of the true risk, which nobody can beat, and above that of TF-IDF and logistic
regression, the paired interval without 0, on at least 2,000 test admissions, within 6 minutes; TF-IDF fitted to
permuted labels 0.5 on average, within three standard errors. Over seeds: a mean test AUROC of at least 0.83, the worst
0.80.

    python -m benchmarks.clinic                                           some five minutes on 2 cores
    python -m benchmarks.clinic --seeds 7 8 9 10 11 --threads 1 2         some forty

Each seed is another hospital, split and training; each number of threads rounds differently.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Claim, main, threads_of, timed
from bertrelay.evaluation.similarity import METRICS

RECIPE, STAGE = "clinic", "readmission"
BELOW_BEST, STANDARD_ERRORS, ADMISSIONS, SECONDS = 0.05, 3, 2_000, 360
MEAN_AUROC, WORST_AUROC = 0.83, 0.80


def run_recipe(threads: int, *changes: str) -> dict[str, Any]:
    """The metrics of the last stage, in a process of its own."""
    sets = [word for change in changes for word in ("--set", change)]
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-P", "-m", "pipelines", "run", RECIPE, "--runs", runs, *sets]
        subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, **threads_of(threads)})
        found: dict[str, Any] = json.loads(Path(runs, RECIPE, METRICS).read_text(encoding="utf-8"))[STAGE]
    return found


def claims(found: dict[str, Any], seconds: float) -> list[Claim]:
    auroc, best, tested = (found[name] for name in ("auroc", "best_auroc", "admissions/test"))
    gap, low, high = (found[f"auroc_difference/tfidf{ending}"] for ending in ("", "_low", "_high"))
    count, mean, deviation = (
        found[f"{name}/tfidf"] for name in ("permutations", "auroc_permuted", "auroc_permuted_sd")
    )
    near, permuted = STANDARD_ERRORS * deviation / sqrt(count), f"{mean:.4f}, deviation {deviation:.4f}"
    within = f"AUROC at most {BELOW_BEST} below the true risk's, {best:.4f}"
    return [
        Claim(within, f"{auroc:.4f}", auroc >= best - BELOW_BEST),
        Claim("above that of TF-IDF, the interval without 0", f"{gap:+.4f} ({low:+.4f} to {high:+.4f})", low > 0),
        Claim(f"TF-IDF, mean of {count} label permutations: 0.5 ± {near:.4f}", permuted, abs(mean - 0.5) <= near),
        Claim(f"at least {ADMISSIONS:,} test admissions", f"{tested:,}", tested >= ADMISSIONS),
        Claim(f"at most {SECONDS} s", f"{seconds:.0f} s", seconds <= SECONDS),
    ]


def seed_claims(aurocs: list[float]) -> list[Claim]:
    mean, worst = statistics.mean(aurocs), min(aurocs)
    print(f"{len(aurocs)} runs: {worst:.4f} to {max(aurocs):.4f}, standard deviation {statistics.pstdev(aurocs):.4f}")
    return [
        Claim(f"mean AUROC at least {MEAN_AUROC}", f"{mean:.4f}", mean >= MEAN_AUROC),
        Claim(f"worst AUROC at least {WORST_AUROC}", f"{worst:.4f}", worst >= WORST_AUROC),
    ]


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    threads = options.threads or [torch.get_num_threads()]
    if options.seeds:
        runs = []
        for seed, count in product(options.seeds, threads):
            runs.append(run_recipe(count, f"seed={seed}"))
            shown = (f"{name} {runs[-1][name]:.4f}" for name in ("auroc", "auroc/tfidf", "best_auroc", "dev/auroc"))
            print(f"seed {seed}, {count} threads: {', '.join(shown)}", flush=True)
        return seed_claims([found["auroc"] for found in runs]), {"runs": runs}
    found, seconds = timed(run_recipe, threads[0])
    for name in [f"{metric}{reader}" for reader in ("", "/tfidf", "/note_length") for metric in ("auroc", "auprc")]:
        print(f"{name:18} {found[name]:.4f} ({found[f'{name}_low']:.4f}–{found[f'{name}_high']:.4f})")
    return claims(found, seconds), {"metrics": found, "seconds": seconds}


if __name__ == "__main__":
    numbers = {"type": int, "nargs": "+", "metavar": "N"}
    main(measure, __doc__, seeds=numbers, threads={**numbers, "help": "with --seeds (default: those of torch)"})
