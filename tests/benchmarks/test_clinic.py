import os
from collections.abc import Callable

import pytest

from benchmarks import clinic
from benchmarks.clinic import run_seeds


@pytest.fixture
def recipe_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[tuple[str, str], float]], None]:
    """Has a run of the recipe give the AUROC of its seed and number of threads."""

    def give(aurocs: dict[tuple[str, str], float]) -> None:
        def run(_recipe: str, _runs: object, change: str) -> dict[str, dict[str, float]]:
            auroc = aurocs[change, os.environ["OMP_NUM_THREADS"]]
            return {"readmission": {"auroc": auroc, "auroc/tfidf": 0.78, "best_auroc": 0.87, "dev/auroc": 0.85}}

        monkeypatch.setattr(clinic, "run_recipe", run)

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    return give


def test_every_seed_runs_with_every_number_of_threads(
    recipe_of: Callable[[dict[tuple[str, str], float]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe_of({("seed=7", "1"): 0.82, ("seed=7", "2"): 0.86, ("seed=8", "1"): 0.84, ("seed=8", "2"): 0.88})
    mean, worst = run_seeds([7, 8], [1, 2])
    assert (mean.found, mean.holds) == ("0.8500", True)
    assert (worst.found, worst.holds) == ("0.8200", True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("seed 7, 2 threads: auroc 0.8600, auroc/tfidf 0.7800") and len(lines) == 5


def test_one_bad_seed_fails_whatever_the_mean(recipe_of: Callable[[dict[tuple[str, str], float]], None]) -> None:
    recipe_of({("seed=7", "1"): 0.752, ("seed=8", "1"): 0.86, ("seed=9", "1"): 0.89})
    mean, worst = run_seeds([7, 8, 9], [1])
    assert mean.holds and not worst.holds
