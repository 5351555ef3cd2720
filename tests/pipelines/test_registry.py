"""Stages of other installed packages."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from pipelines import registry
from pipelines.run.store import read_done

MODULES = {
    "lengths_stages.py": """
        from bertrelay.stage import Stage

        STAGES = [Stage("lengths.count", 1, "lengths_work:CountSettings", "lengths_work:run")]
        TAKEN = Stage("students.distill", 1, "lengths_work:CountSettings", "lengths_work:run")
        NONE = {"lengths.count": 1}
    """,
    "lengths_work.py": '''
        from pathlib import Path

        from pydantic import Field

        from bertrelay.settings import InputFile, Settings


        class CountSettings(Settings):
            """Characters of a file."""

            path: InputFile
            """The file."""
            longest: int = Field(default=80, gt=0)
            """The longest line."""


        def run(settings, context):
            lines = Path(settings.path).read_text().splitlines()
            (context.output / "lines.txt").write_text(str(len(lines)))
            return {"characters": sum(map(len, lines)), "too_long": sum(len(line) > settings.longest for line in lines)}
    ''',
}


@pytest.fixture
def install(tmp_path):
    """`install(value)`: a folder for sys.path with a package whose entry point has this value."""

    def install(value):
        folder = tmp_path / "site"
        (folder / "lengths-1.0.dist-info").mkdir(parents=True)
        for name, text in MODULES.items():
            (folder / name).write_text(dedent(text))
        (folder / "lengths-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: lengths\nVersion: 1.0\n")
        (folder / "lengths-1.0.dist-info/entry_points.txt").write_text(f"[bertrelay.stages]\nlengths = {value}\n")
        return folder

    return install


def bertrelay(site, *arguments):
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', Path.cwd())}"}
    command = [sys.executable, "-m", "pipelines", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_recipe_uses_a_stage_of_another_package(install, tmp_path):
    site = install("lengths_stages:STAGES")
    (tmp_path / "text.txt").write_text("one\ntwo words\n")
    recipe = tmp_path / "count.toml"
    recipe.write_text('[count]\nuses = "lengths.count"\npath = "text.txt"\nlongest = 5\n')
    done = bertrelay(site, "run", str(recipe), "--runs", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    output = tmp_path / "runs/count/count/latest"
    assert read_done(output).metrics == {"characters": 12, "too_long": 1}
    assert (output / "lines.txt").read_text() == "2"
    again = bertrelay(site, "plan", str(recipe), "--runs", str(tmp_path / "runs"))
    assert "SKIP" in again.stdout + again.stderr
    recipe.write_text('[count]\nuses = "lengths.count"\npath = "text.txt"\nlongest = 0\n')
    wrong = bertrelay(site, "plan", str(recipe))
    assert wrong.returncode == 2 and "longest" in wrong.stderr


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("lengths_stages:TAKEN", "students.distill"),
        ("lengths_stages:NONE", "dict"),
        ("no_such_module:STAGES", "No module"),
    ],
)
def test_a_package_whose_stages_cannot_be_used_is_named(install, monkeypatch, value, found):
    monkeypatch.syspath_prepend(install(value))
    with pytest.raises(registry.RequestError, match=f"package lengths.*{found}"):
        list(registry.stages_of_packages())


def test_a_package_that_cannot_be_used_is_an_error_of_each_command(install):
    done = bertrelay(install("no_such_module:STAGES"), "recipes")
    assert done.returncode == 2
    assert "package lengths" in done.stderr and "Traceback" not in done.stderr
