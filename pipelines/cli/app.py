"""The commands of `bertrelay` and the options of all of them."""

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pipelines.cli.biomedical import data, ner, qa
from pipelines.cli.clinical import outcome, readmission, vocabularies
from pipelines.cli.encoders import encoders
from pipelines.cli.options import write_out
from pipelines.cli.recipes import recipe_commands
from pipelines.cli.search import searching
from pipelines.cli.similarity import comparing

HELP = """
Multilingual sentence encoders by distillation, and BERTs for clinical and biomedical text.

A recipe describes a whole run. Each of its stages can be stopped and resumed, and is skipped when nothing changed.

  bertrelay run quickstart          a first run, on sample data

  bertrelay plan quickstart         what another run would do, and why
"""
OF_PYDANTIC = "Value error, "


class Commands(TyperGroup):
    """The commands, with errors of options in plain words."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(OF_PYDANTIC)
            raise


app = typer.Typer(
    cls=Commands,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        write_out(f"bertrelay {version('bertrelay')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. Anywhere in the command.")] = (
        False
    ),
    sensitive: Annotated[
        bool,
        typer.Option(
            "--sensitive",
            help="Write files for their owner alone, and keep identifiers out of logs, errors and rejects; always so "
            "for clinical notes. Anywhere in the command.",
        ),
    ] = False,
    group_read: Annotated[
        bool,
        typer.Option("--group-read", help="Let the group read what is written of sensitive data. Anywhere, too."),
    ] = False,
) -> None:
    """Options of all commands; `main` takes the last three out of the arguments before Typer reads them."""


for commands in (recipe_commands, encoders, comparing, searching):
    app.add_typer(commands)
app.add_typer(data, name="data", rich_help_panel="Biomedical")
app.add_typer(ner, name="ner", rich_help_panel="Biomedical")
app.add_typer(qa, name="qa", rich_help_panel="Biomedical")
app.add_typer(vocabularies)
app.add_typer(readmission, name="readmission", rich_help_panel="Clinical")
app.add_typer(outcome, name="outcome", rich_help_panel="Clinical")
