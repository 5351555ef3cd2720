"""The clinic from end to end, and its control: a model beside the known risk of the made-up patients it was trained on.

Claims of `bertrelay run clinic`: an AUROC within 0.05 of that of the true risk, which nobody can beat, and above that
of TF-IDF and logistic regression, on at least 2,000 test admissions, within 6 minutes; with shuffled labels 0.5 ± 0.05.

    python -m benchmarks.clinic          some ten minutes on 2 cores

The control takes hospital, cohort, notes and pretraining from the first run, and trains a classifier of its own.
"""

import json
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

from benchmarks.contenders import Claim, judge
from benchmarks.machine import machine
from bertrelay.stage import Metrics

RECIPE, STAGE = "clinic", "readmission"
SHUFFLED = "readmission.control=shuffled_labels"
BELOW_BEST, AROUND_CHANCE, ADMISSIONS, SECONDS = 0.05, 0.05, 2_000, 360


def run(runs: Path, *changes: str) -> Metrics:
    """The figures of the classifier of a run with `changes` to the recipe; progress goes to standard error."""
    sets = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "pipelines", "run", RECIPE, "--runs", str(runs), *sets]
    subprocess.run(command, check=True, stdout=sys.stderr)
    figures: Metrics = json.loads((runs / RECIPE / STAGE / "latest" / "metrics.json").read_text(encoding="utf-8"))
    return figures


def claims(found: Metrics, control: Metrics, seconds: float) -> list[Claim]:
    auroc, best, tfidf, shuffled = (
        float(figures[name] or 0)
        for figures, name in ((found, "auroc"), (found, "best_auroc"), (found, "auroc/tfidf"), (control, "auroc"))
    )
    tested = int(found["admissions/test"] or 0)
    return [
        Claim(
            f"AUROC at most {BELOW_BEST} below the true risk's, {best:.4f}", f"{auroc:.4f}", auroc >= best - BELOW_BEST
        ),
        Claim(f"above that of TF-IDF, {tfidf:.4f}", f"{auroc:.4f}", auroc > tfidf),
        Claim(f"with shuffled labels 0.5 ± {AROUND_CHANCE}", f"{shuffled:.4f}", abs(shuffled - 0.5) <= AROUND_CHANCE),
        Claim(f"at least {ADMISSIONS:,} test admissions", f"{tested:,}", tested >= ADMISSIONS),
        Claim(f"at most {SECONDS} s", f"{seconds:.0f} s", seconds <= SECONDS),
    ]


def main() -> None:
    ArgumentParser(prog="python -m benchmarks.clinic", description=(__doc__ or "").partition("\n")[0]).parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        begin = time.perf_counter()
        found = run(Path(scratch))
        seconds = time.perf_counter() - begin
        control = run(Path(scratch), SHUFFLED)
    for name in (
        "auroc",
        "auprc",
        "auroc/tfidf",
        "auprc/tfidf",
        "auroc/note_length",
        "auprc/note_length",
        "best_auroc",
    ):
        print(f"{name:18} {found[name]:.4f} ({found[f'{name}_low']:.4f}–{found[f'{name}_high']:.4f})")
    print(f"{'shuffled labels':18} {control['auroc']:.4f} ({control['auroc_low']:.4f}–{control['auroc_high']:.4f})")
    sys.exit(0 if judge(claims(found, control, seconds)) else 1)


if __name__ == "__main__":
    main()
