"""The clinic from end to end, and its control: a model beside the known risk of the made-up patients it was trained on.

Claims of `bertrelay run clinic`: an AUROC within 0.05 of that of the true risk, which nobody can beat, and above that
of TF-IDF and logistic regression, on at least 2,000 test admissions, within 6 minutes; with shuffled labels 0.5 ± 0.05.

    python -m benchmarks.clinic          some ten minutes on 2 cores

The control takes hospital, cohort, notes and pretraining from the first run, and trains a classifier of its own.
"""

import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from benchmarks.contenders import Claim, judge
from benchmarks.machine import machine
from benchmarks.recipes import run_recipe

RECIPE, STAGE = "clinic", "readmission"
SHUFFLED = "readmission.control=shuffled_labels"
BELOW_BEST, AROUND_CHANCE, ADMISSIONS, SECONDS = 0.05, 0.05, 2_000, 360
Figures = dict[str, Any]


def claims(found: Figures, control: Figures, seconds: float) -> list[Claim]:
    auroc, best, tfidf = (found[name] for name in ("auroc", "best_auroc", "auroc/tfidf"))
    shuffled, tested = control["auroc"], found["admissions/test"]
    return [
        Claim(
            f"AUROC at most {BELOW_BEST} below the true risk's, {best:.4f}", f"{auroc:.4f}", auroc >= best - BELOW_BEST
        ),
        Claim(f"above that of TF-IDF, {tfidf:.4f}", f"{auroc:.4f}", auroc > tfidf),
        Claim(f"with shuffled labels 0.5 ± {AROUND_CHANCE}", f"{shuffled:.4f}", abs(shuffled - 0.5) <= AROUND_CHANCE),
        Claim(f"at least {ADMISSIONS:,} test admissions", f"{tested:,}", tested >= ADMISSIONS),
        Claim(f"at most {SECONDS} s", f"{seconds:.0f} s", seconds <= SECONDS),
    ]


def tell(name: str, figures: Figures) -> None:
    print(f"{name:18} {figures[name]:.4f} ({figures[f'{name}_low']:.4f}–{figures[f'{name}_high']:.4f})")


def main() -> None:
    ArgumentParser(prog="python -m benchmarks.clinic", description=(__doc__ or "").partition("\n")[0]).parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        begin = time.perf_counter()
        found = run_recipe(RECIPE, Path(scratch))[STAGE]
        seconds = time.perf_counter() - begin
        control = run_recipe(RECIPE, Path(scratch), SHUFFLED)[STAGE]
    for reader in ("", "/tfidf", "/note_length"):
        tell(f"auroc{reader}", found)
        tell(f"auprc{reader}", found)
    tell("best_auroc", found)
    print("with shuffled labels:")
    tell("auroc", control)
    sys.exit(0 if judge(claims(found, control, seconds)) else 1)


if __name__ == "__main__":
    main()
