"""`bertrelay serve`: models on a page and over HTTP."""

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from bertrelay.errors import RequestError
from bertrelay.privacy import sensitive_data
from bertrelay.progress import log, spinner
from pipelines.cli.options import (
    ColumnOptions,
    JsonOption,
    argument,
    check_request,
    command,
    print_document,
    write_out,
)
from pipelines.run.errors import stopping_at_once
from pipelines.serve.settings import AddressOptions, ServeSettings, is_local

PANEL = "Server"
PACKAGES = ("starlette", "uvicorn")

serving = typer.Typer()


class TableToServe(ColumnOptions):
    """Options of reading the tables that are indexed, and of showing hits."""

    show: list[str] = Field(default=[])
    """Column to show with each hit, by name, or by position from 0; of an index all that it has when absent. May be
    repeated."""


@command(serving, names={"show": "--show COLUMN"}, rich_help_panel=PANEL)
def serve(
    models: Annotated[
        list[str],
        argument(
            "MODEL",
            "Model folders, hub ids, folders of indexes, and tables, which are indexed first; NAME=FOLDER names one.",
        ),
    ],
    settings: ServeSettings,
    address: AddressOptions,
    table: TableToServe,
    shown: JsonOption,
) -> None:
    """Serve models on a page and over HTTP: embeddings, search, reranking, entities, answers, outcomes.

    The kind of each MODEL is read from its folder. An index or a table needs the encoder of its vectors beside it.
    The server listens on this machine only, keeps no text, and ends with Ctrl-C when it has answered all requests.

    For example:

      bertrelay serve runs/quickstart/student/latest/model

      bertrelay serve sentences=MODEL TAGGER ANSWERER CROSS-ENCODER

      bertrelay serve MODEL FAQ.csv --column question --show answer

      bertrelay serve MODEL --host 0.0.0.0 --key-file keys.txt
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise RequestError(f"serve needs {' and '.join(missing)}; pip install 'bertrelay[serve]'")
    named = [_named(written) for written in models]
    for _, source in named:
        if not Path(source).is_file():
            check_request(source)
    keys = [] if address.key_file is None else _keys(address.key_file)
    from pipelines.serve.server import answer_while_loading, listen, serve, url_of

    listening = listen(address.host, address.port)
    with ExitStack() as privacy:
        with stopping_at_once(), answer_while_loading(listening):
            with spinner("loading"):
                from pipelines.serve import models as served
                from pipelines.serve.application import app

            tables = {source: table.table(source, table.column) for _, source in named if Path(source).is_file()}
            sources = served.named_sources([(name, tables.get(source, source)) for name, source in named])
            if served.holds_patients(sources):
                privacy.enter_context(sensitive_data())
            show = [int(name) if name.isdecimal() else name for name in table.show]
            opened = served.open_models(sources, settings, show=show)
        if not is_local(address.host):
            log("warning: other machines reach this server; texts and keys travel to it without encryption")

        def say_ready() -> None:
            for model in opened:
                log(f"{model.name}: {model.kind}")
            url, key = url_of(listening), " -H 'Authorization: Bearer KEY'" if keys else ""
            if shown.as_json:
                kinds = {model.name: model.kind for model in opened}
                print_document("serve", {"url": url, "needs_key": bool(keys), "models": kinds})
                return
            write_out(f"ready: {url}\n  curl {url}/v1/models{key}")

        serve(app(opened, settings, keys=keys), listening, say_ready)


def _named(written: str) -> tuple[str, str]:
    """Name and source of an argument; no name where it has none."""
    name, equals, source = written.partition("=")
    if not equals or Path(written).exists():
        return "", written
    if not name or not source:
        raise RequestError(f"models: expected NAME=FOLDER, found {written}")
    return name, source


def _keys(path: Path) -> list[str]:
    """The keys in a file, one a line. Raises RequestError where it has none, or cannot be read."""
    try:
        keys = path.read_text("utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--key-file: expected a readable text file, found none at {path}") from error
    if not keys:
        raise RequestError(f"--key-file: expected a key on each line of {path}, found none")
    return keys
