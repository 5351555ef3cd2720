"""The commands of `bertrelay` and the options of all of them."""

from importlib.metadata import version
from typing import Annotated

import typer

from bertrelay.settings import Settings
from pipelines.cli.biomedical import ner, qa
from pipelines.cli.clinical import outcome, readmission, term_commands
from pipelines.cli.data import data
from pipelines.cli.encoders import encoders
from pipelines.cli.index import index
from pipelines.cli.options import PlainGroup, with_options, write_out
from pipelines.cli.recipes import recipe_commands
from pipelines.cli.report import reporting
from pipelines.cli.search import searching
from pipelines.cli.serve import serving
from pipelines.cli.similarity import comparing

HELP = """
Multilingual sentence encoders by distillation, and BERTs for clinical and biomedical text.

A recipe describes a whole run. Each of its stages can be stopped and resumed, and is skipped when nothing changed.

  bertrelay run quickstart          a first run, on sample data

  bertrelay plan quickstart         what another run would do, and why
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    cls=PlainGroup,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        write_out(f"bertrelay {version('bertrelay')}")
        raise typer.Exit


class GlobalOptions(Settings):
    """Options of all commands, at any position in one; `main` takes them out before Typer reads the others."""

    debug: bool = False
    """Show the traceback of an error. Anywhere in the command."""
    sensitive: bool = False
    """Write files for their owner only, and keep identifiers out of logs, errors and rejects; always so for clinical
    notes. Anywhere in the command."""
    group_read: bool = False
    """Let the group read what is written of sensitive data. Anywhere, too."""


def options(
    anywhere: GlobalOptions,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Takes the options of all commands."""


app.callback()(with_options(options))
for commands in (recipe_commands, reporting, encoders, comparing, searching, serving):
    app.add_typer(commands)
app.add_typer(index, name="index", rich_help_panel="Sentences")
app.add_typer(data, name="data", rich_help_panel="Data")
app.add_typer(ner, name="ner", rich_help_panel="Biomedical")
app.add_typer(qa, name="qa", rich_help_panel="Biomedical")
app.add_typer(term_commands)
app.add_typer(readmission, name="readmission", rich_help_panel="Clinical")
app.add_typer(outcome, name="outcome", rich_help_panel="Clinical")
