"""`bertrelay recipes`."""

from typing import Annotated

import typer

from pipelines.cli.echo import echo


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this one.", show_default=False)] = None,
) -> None:
    """List the built-in recipes and the stages a recipe can use, or print one recipe, as a beginning for your own.

    For example:

      bertrelay recipes

      bertrelay recipes quickstart > my-recipe.toml
    """
    from bertrelay.errors import RequestError
    from pipelines.mistakes import unknown
    from pipelines.registry import REGISTRY
    from pipelines.source import built_in_names, find_recipe

    names = built_in_names()
    if name is None:
        _echo({each: _description(find_recipe(each).text) for each in names})
        echo("\nstages, for `uses` in a recipe:")
        _echo({stage.kind: stage.summary for stage in REGISTRY})
    elif name in names:
        echo(find_recipe(name).text, nl=False)
    else:
        raise RequestError(f"{name}: {unknown(name, names, 'recipe')}")


def _echo(described: dict[str, str]) -> None:
    width = max(map(len, described), default=0)
    for name, description in described.items():
        echo(f"{name:{width}}  {description}".rstrip())


def _description(text: str) -> str:
    """The first comment line of a recipe."""
    comments = (line.lstrip("# ").rstrip() for line in text.splitlines() if line.startswith("#"))
    return next((line for line in comments if line), "")
