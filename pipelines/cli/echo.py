"""Standard output of all commands."""

import typer

from bertrelay.progress import printable

COLOURS = {
    "RUN": typer.colors.GREEN,
    "RESUME": typer.colors.YELLOW,
    "SKIP": typer.colors.BRIGHT_BLACK,
    "good": typer.colors.GREEN,
    "warn": typer.colors.YELLOW,
    "fail": typer.colors.RED,
}


def echo(message: str, nl: bool = True, coloured: bool = False) -> None:
    """Prints `message`, which may hold text of a corpus, without its control characters; JSON stays the same JSON.

    coloured: the first word, an action or a verdict, has its colour on a terminal.
    """
    word, space, rest = printable(message).partition(" ")
    if coloured and word in COLOURS:
        word = typer.style(word, fg=COLOURS[word])
    typer.echo(word + space + rest, nl=nl)
