"""Which commands there are, and what the help says about the whole."""

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pipelines.cli.data import data
from pipelines.cli.echo import echo
from pipelines.cli.encode import encode
from pipelines.cli.evaluate import evaluate
from pipelines.cli.mine import mine
from pipelines.cli.ner import ner
from pipelines.cli.qa import qa
from pipelines.cli.readmission import outcome, readmission
from pipelines.cli.recipes import recipes
from pipelines.cli.rerank import rerank
from pipelines.cli.run import plan, run
from pipelines.cli.samples import samples
from pipelines.cli.search import search
from pipelines.cli.shrink import shrink
from pipelines.cli.similarity import similarity
from pipelines.cli.terms import terms

HELP = """
Hands knowledge on: from an English sentence encoder to students that speak many languages.

A recipe describes a whole run. Every stage of it can be stopped, resumed, and is skipped when nothing changed.

  bertrelay run quickstart          a first run, on sample data

  bertrelay plan quickstart         what another run would do, and why
"""

NOT_OURS = "Value error, "


class Commands(TyperGroup):
    """The commands, whose options are told to be wrong without a word of the library that sees it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(NOT_OURS)
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
        echo(f"bertrelay {version('bertrelay')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. May stand anywhere in the command.")
    ] = False,
    sensitive: Annotated[
        bool,
        typer.Option(
            "--sensitive",
            help="Write for the owner of the files alone, and keep identifiers out of logs, errors and rejects; always "
            "so of patients' notes. May stand anywhere in the command.",
        ),
    ] = False,
    group_read: Annotated[
        bool,
        typer.Option("--group-read", help="Let the group read what a command writes of sensitive data. Anywhere, too."),
    ] = False,
) -> None:
    """Options of the whole command; `main` takes the last three out of the arguments before this is asked."""


for command in (run, plan, recipes, samples, encode, evaluate, similarity, search, rerank, mine, shrink, terms):
    app.command()(command)
app.add_typer(readmission, name="readmission")
app.add_typer(outcome, name="outcome")
app.add_typer(ner, name="ner")
app.add_typer(qa, name="qa")
app.add_typer(data, name="data")
