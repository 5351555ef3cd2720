"""Options that derive from settings: one declaration for recipes and the command line."""

from typing import Annotated, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from bertrelay.settings import ModelSource, Positive, Settings
from pipelines.cli.app import app
from pipelines.cli.options import command
from pipelines.settings_table import described, settings_rows


class Sizes(Settings):
    """What a test trains.

    layers: how many layers, of which
        each has heads.
    kind, name: two of one text.
    """

    layers: Positive = 3
    rate: Annotated[float, Field(ge=0, le=1)] | None = None
    kind: Literal["small", "large"] = "small"
    name: str = "model"
    cased: bool = False
    base: ModelSource
    sets: list[str] = Field(default=[])
    dim: int = Field(default=8, description="Size of a vector.")


@pytest.fixture
def given():
    """A command with all fields of `Sizes`: what its function gets for some arguments."""
    app, calls = typer.Typer(), []

    @command(app, names={"sets": "--set", "layers": "-l"})
    def train(source: str, options: Sizes) -> None:
        calls.append({"source": source, **dict(options)})

    def run(*arguments):
        result = CliRunner().invoke(app, [*map(str, arguments)])
        return calls.pop() if calls else result.output

    return run


def test_options_have_the_defaults_and_types_of_the_settings(given):
    numbers, texts = {"layers": 3, "rate": None, "dim": 8}, {"source": "in", "kind": "small", "name": "model"}
    assert given("in", "--base", "a/b") == {**numbers, **texts, "cased": False, "base": "a/b", "sets": []}
    found = given("in", "--base", "b", "-l", 2, "--rate", 0.5, "--kind", "large", "--cased", "--set", "x", "--set", "y")
    assert (found["layers"], found["rate"], found["kind"], found["cased"]) == (2, 0.5, "large", True)
    assert found["sets"] == ["x", "y"]


@pytest.mark.parametrize("wrong", ["--base b -l 0", "--base b --rate 1.5", "--base b --kind huge", ""])
def test_options_have_the_limits_choices_and_requirements_of_the_settings(given, wrong):
    assert "Usage" in given("in", *wrong.split())


def test_help_has_the_descriptions_of_the_settings(given):
    assert described(Sizes)["layers"] == "How many layers, of which each has heads."
    assert described(Sizes)["dim"] == "Size of a vector."
    assert "two of one text" in given("--help") or "Two of one text" in given("--help")
    assert list(settings_rows(Sizes))[2] == ("kind", "small or large", "small", "Two of one text.")


@pytest.mark.parametrize("command", [[], ["encode"], ["run"], ["recipes"], ["ner"], ["ner", "tag"], ["readmission"]])
def test_help_has_no_signs_that_nobody_types(command):
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "160"}).output
    assert "--help" in shown and "<bool>" not in shown
    assert "{" not in shown.partition("Usage:")[2].splitlines()[0]


def test_recipes_are_listed_with_whole_sentences():
    lines = CliRunner().invoke(app, ["recipes"]).output.splitlines()
    described = [line.split(maxsplit=1)[1] for line in lines if line and not line.startswith("stages,")]
    assert len(described) > 50 and [line for line in described if not line.endswith(".")] == []
