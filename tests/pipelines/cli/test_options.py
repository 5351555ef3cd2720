"""Options that derive from settings: one declaration for recipes and the command line."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from bertrelay.encode_stage import EncodeSettings
from bertrelay.settings import ModelSource, Positive, Settings, UsedWith, descriptions
from domain.terms import TermsSettings
from pipelines.cli.app import app
from pipelines.cli.options import command
from pipelines.recipe.settings_table import help_texts, settings_rows
from students.mining.settings import MineSettings

PACKAGES = ("bertrelay", "teachers", "students", "domain", "pipelines")


class Sizes(Settings):
    """A model to train in a test."""

    layers: Positive = 3
    """Layers, of which
    all have heads."""
    rate: Annotated[Annotated[float, Field(ge=0, le=1)] | None, UsedWith("cased"), UsedWith(kind="large")] = None
    """Rate of dropout."""
    kind: Literal["small", "large"] = "small"
    name: str = "model"
    cased: bool = False
    base: ModelSource
    sets: list[str] = Field(default=[])
    dim: int = Field(default=8, description="Size of a vector.")


@pytest.fixture
def call():
    """A command with all fields of `Sizes`: what its function gets for some arguments."""
    app, calls = typer.Typer(), []

    @command(app, names={"sets": "--set", "layers": "-l"})
    def train(source: str, options: Sizes) -> None:
        calls.append({"source": source, **dict(options)})

    def run(*arguments):
        result = CliRunner().invoke(app, [*map(str, arguments)])
        return calls.pop() if calls else result.output

    return run


def test_options_have_the_defaults_and_types_of_the_settings(call):
    numbers, texts = {"layers": 3, "rate": None, "dim": 8}, {"source": "in", "kind": "small", "name": "model"}
    assert call("in", "--base", "a/b") == {**numbers, **texts, "cased": False, "base": "a/b", "sets": []}
    values = call("in", "--base", "b", "-l", 2, "--rate", 0.5, "--kind", "large", "--cased", "--set", "x", "--set", "y")
    assert (values["layers"], values["rate"], values["kind"], values["cased"]) == (2, 0.5, "large", True)
    assert values["sets"] == ["x", "y"]


@pytest.mark.parametrize("wrong", ["--base b -l 0", "--base b --rate 1.5", "--base b --kind huge", ""])
def test_options_have_the_limits_choices_and_requirements_of_the_settings(call, wrong):
    assert "Usage" in call("in", *wrong.split())


def test_help_has_the_descriptions_of_the_settings(call):
    assert "Layers, of which all" in call("--help")
    rows = {name: rest for name, *rest in settings_rows(Sizes)}
    assert rows["layers"] == ["integer", "3", "Layers, of which all have heads."]
    assert rows["dim"] == ["integer", "8", "Size of a vector."]
    assert rows["rate"] == ["number", "", "Rate of dropout. Only with `cased` and only with `kind` large."]


def _settings_classes():
    """Every settings class of the packages."""
    for package in PACKAGES:
        for path in Path(import_module(package).__file__).parent.rglob("*.py"):
            if "Settings" in path.read_text("utf-8") and path.name != "__main__.py":
                inner = path.relative_to(Path(import_module(package).__file__).parents[1]).with_suffix("")
                import_module(".".join(inner.parts).removesuffix(".__init__"))
    classes = [Settings]
    for kind in classes:
        classes += kind.__subclasses__()
    return [kind for kind in classes if kind.__module__.partition(".")[0] in PACKAGES]


def test_every_setting_has_a_description_and_conditions_on_settings_that_exist():
    kinds = _settings_classes()
    assert len(kinds) > 90
    fields = [(kind, name, field) for kind in kinds for name, field in kind.model_fields.items()]
    assert [f"{kind.__name__}.{name}" for kind, name, _ in fields if not descriptions(kind)[name]] == []
    marks = [(kind, mark) for kind, _, field in fields for mark in field.metadata if isinstance(mark, UsedWith)]
    assert [(kind, str(mark)) for kind, mark in marks if not set(mark.values) <= set(kind.model_fields)] == []


@pytest.mark.parametrize(
    ("name", "settings"), [("encode", EncodeSettings), ("mine", MineSettings), ("terms", TermsSettings)]
)
def test_options_that_are_settings_of_a_stage_have_their_descriptions(name, settings):
    command = typer.main.get_command(app).commands[name]
    command.format_help(typer.Context(command), None)
    shared = [option for option in command.params if option.name in settings.model_fields and option.help]
    texts = help_texts(settings)
    assert {option.name for option in shared if option.help == texts[option.name]} >= {"precision", "batch_tokens"}


@pytest.mark.parametrize("command", [[], ["encode"], ["run"], ["recipes"], ["ner"], ["ner", "tag"], ["readmission"]])
def test_help_has_no_signs_that_nobody_types(command):
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "160"}).output
    assert "--help" in shown and "<bool>" not in shown
    assert "{" not in shown.partition("Usage:")[2].splitlines()[0]


def test_recipes_are_listed_with_whole_sentences():
    lines = CliRunner().invoke(app, ["recipes"]).output.splitlines()
    described = [line.split(maxsplit=1)[1] for line in lines if line and not line.startswith("stages,")]
    assert len(described) > 50 and [line for line in described if not line.endswith(".")] == []
