"""The clinic from end to end: a model beside the known risk of the made-up patients it was trained on.

Claims of `bertrelay run clinic`: an AUROC within 0.05 of that of the true risk, which nobody can beat, and above that
of TF-IDF and logistic regression, the paired interval without 0, on at least 2,000 test admissions, within 6 minutes;
TF-IDF fitted to permuted labels 0.5 on average, within three standard errors of its permutations.

    python -m benchmarks.clinic          some five minutes on 2 cores
"""

import sys
import tempfile
import time
from argparse import ArgumentParser
from math import sqrt
from pathlib import Path
from typing import Any

from benchmarks.contenders import Claim, judge
from benchmarks.machine import machine
from benchmarks.recipes import run_recipe

RECIPE, STAGE = "clinic", "readmission"
BELOW_BEST, STANDARD_ERRORS, ADMISSIONS, SECONDS = 0.05, 3, 2_000, 360
Figures = dict[str, Any]


def claims(found: Figures, seconds: float) -> list[Claim]:
    auroc, best, tested = (found[name] for name in ("auroc", "best_auroc", "admissions/test"))
    gap, low, high = (found[f"auroc_difference/tfidf{ending}"] for ending in ("", "_low", "_high"))
    count, mean, deviation = (
        found[f"{name}/tfidf"] for name in ("permutations", "auroc_permuted", "auroc_permuted_sd")
    )
    around = STANDARD_ERRORS * deviation / sqrt(count)
    return [
        Claim(
            f"AUROC at most {BELOW_BEST} below the true risk's, {best:.4f}", f"{auroc:.4f}", auroc >= best - BELOW_BEST
        ),
        Claim("above that of TF-IDF, the interval without 0", f"{gap:+.4f} ({low:+.4f} to {high:+.4f})", low > 0),
        Claim(
            f"TF-IDF, mean of {count} permutations of the labels: 0.5 ± {around:.4f}",
            f"{mean:.4f}, deviation {deviation:.4f}",
            abs(mean - 0.5) <= around,
        ),
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
    for reader in ("", "/tfidf", "/note_length"):
        tell(f"auroc{reader}", found)
        tell(f"auprc{reader}", found)
    tell("best_auroc", found)
    sys.exit(0 if judge(claims(found, seconds)) else 1)


if __name__ == "__main__":
    main()
