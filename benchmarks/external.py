"""External validation: the model of the recipe `clinic`, trained on a small hospital, at one of another prevalence.

Claims: the metrics of `domain.outcome-evaluate` are within 1e-9 of scikit-learn's from the probabilities that it
writes, before the recalibration and after it; and recalibrated on half of the subjects, observed/expected of the other
half is 1 ± 0.1.

    python -m benchmarks.external --threads 1

The other hospital has another seed, and urgent admissions count as planned there, so that fewer are readmissions.
"""

from argparse import Namespace
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from benchmarks.clinic import RECIPE, run_recipe
from benchmarks.harness import Claim, main

STAGE = "external"
OTHER = """
[other]
uses = "samples.hospital"
words = 100

[other_cohort]
uses = "domain.cohort"
mimic = "@other/mimic"
planned_types = ["ELECTIVE", "URGENT"]

[other_notes]
uses = "domain.notes"
mimic = "@other/mimic"
cohort = "@other_cohort"

[external]
uses = "domain.outcome-evaluate"
model = "@readmission/model"
notes = "@other_notes"
cohort = "@other_cohort"
"""
EQUAL, BESIDE_1 = 1e-9, 0.1


def expected_metrics(test: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """The metrics of scikit-learn, by the names of ours; test: the scores of the test part."""
    outcomes = test["readmitted"].to_numpy()
    yield "auroc", roc_auc_score(outcomes, test["probability"])
    yield "auprc", average_precision_score(outcomes, test["probability"])
    for ending, column in (("", "recalibrated"), ("_uncalibrated", "calibrated")):
        yield f"brier{ending}", brier_score_loss(outcomes, test[column])
        yield f"observed_expected{ending}", outcomes.sum() / test[column].sum()
        regression = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12)
        yield f"calibration_slope{ending}", regression.fit(logit(test[[column]].to_numpy()), outcomes).coef_[0, 0]


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    recipe = options.scratch / "external.toml"
    recipe.write_text((files("pipelines") / f"recipes/{RECIPE}.toml").read_text("utf-8") + OTHER, encoding="utf-8")
    values = {"hospital.subjects": options.subjects, "readmission.epochs": options.epochs}
    values |= {"other.subjects": options.others, "other.seed": options.seed}
    metrics = run_recipe(str(recipe), STAGE, options.scratch / "runs", values)
    home, there = metrics["readmission"], metrics[STAGE]
    scores = pd.read_parquet(options.scratch / f"runs/{RECIPE}/{STAGE}/latest/scores.parquet")
    expected = dict(expected_metrics(scores[scores["split"] == "test"]))
    for name in expected:
        print(f"{name:32} {there[name]:.4f} ({there[f'{name}_low']:.4f}–{there[f'{name}_high']:.4f})")
    print(
        f"prevalence {home['prevalence']:.3f}, there {there['prevalence']:.3f}; {there['admissions/test']:,} admissions"
    )
    furthest = max(abs(there[name] - value) for name, value in expected.items())
    ratio = there["observed_expected"]
    claims = [
        Claim(f"metrics within {EQUAL} of scikit-learn's", f"{furthest:.1e}", furthest <= EQUAL),
        Claim(f"observed/expected 1 ± {BESIDE_1} after recalibration", f"{ratio:.3f}", abs(ratio - 1) <= BESIDE_1),
    ]
    return claims, {"home": home, "there": there}


if __name__ == "__main__":
    main(measure, __doc__, subjects=3_000, epochs=1, others=6_000, seed=8)
