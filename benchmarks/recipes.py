"""A recipe run from end to end in a process of its own, as its users run it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipelines.folders import METRICS


def run_recipe(recipe: Path | str, runs: Path, *changes: str) -> dict[str, dict[str, Any]]:
    """The figures of each stage by its name; progress goes to standard error.

    recipe: a shipped one's name, or a file that is called as its recipe is. changes: as they stand after `--set`.
    """
    sets = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "pipelines", "run", str(recipe), "--runs", str(runs), *sets]
    subprocess.run(command, check=True, stdout=sys.stderr)
    found: dict[str, dict[str, Any]] = json.loads((runs / Path(recipe).stem / METRICS).read_text(encoding="utf-8"))
    return found
