"""`bertrelay index add`, `delete` and `compact`: an index that grows while others search it."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from bertrelay.errors import RequestError
from bertrelay.settings import options_of
from pipelines.cli.options import (
    FILE_HELP,
    ColumnOptions,
    Fields,
    JsonOption,
    ModelArgument,
    PlainGroup,
    ProcessesOption,
    TableOptions,
    argument,
    check_idle,
    check_request,
    command,
    distributed,
    print_result,
)
from pipelines.cli.stdin import input_file
from students.searching.settings import IndexKind, IndexSettings

index = typer.Typer(
    help="Add texts to an index, delete some, and compact it, while others search it.",
    no_args_is_help=True,
    cls=PlainGroup,
)
IndexArgument = Annotated[Path, argument("INDEX", "The folder of an index.")]


class AddOptions(ColumnOptions, ProcessesOption, JsonOption):
    """Options of reading texts and adding them."""

    replace: bool = False
    """Replace texts of the same ids, which is an error otherwise."""


@command(index, names={"show": "--show COLUMN", "id_column": "--id COLUMN"})
def add(
    model: ModelArgument,
    folder: Annotated[Path, argument("INDEX", "The folder of an index; it is built where there is none.")],
    corpus: Annotated[str, argument("CORPUS", FILE_HELP)],
    settings: Annotated[
        Fields, IndexSettings, "id_column", "show", "lexical", "kind", "prompt", "precision", "batch_tokens"
    ],
    options: AddOptions,
) -> None:
    """Add the texts of CORPUS to INDEX, with their ids and the columns that it keeps.

    Only they are encoded, as the other texts were. Others search the index as it was until all are in it. Stop it at
    any time: the same command resumes.

    For example:

      bertrelay index add MODEL faq.index faq.jsonl --id id --show answer --show language --lexical

      bertrelay index add MODEL faq.index more.jsonl --replace
    """
    from bertrelay.data.sentences import check_first
    from students.searching.index_folder import read_manifest

    check_request(model, options.processes)
    with input_file(corpus, folder) as name:
        table = options.table(name, options.column)
        check_first(table)
        settings["show"] = [_column(name) for name in settings["show"]]
        settings["id_column"] = settings["id_column"] and _column(settings["id_column"])
        is_new = read_manifest(folder) is None
        batch_tokens = settings.pop("batch_tokens")
        if not is_new:
            values = {f"--{name.replace('_', '-').removesuffix('-column')}": settings[name] for name in settings}
            values = {name: value for name, value in values.items() if value != "auto"}
            check_idle(values, f"{folder} has its own since it was built")
        elif options.replace:
            raise RequestError(f"--replace: expected an index whose texts are replaced, found none in {folder}")
        with distributed(options.processes) as process_group:
            from students.searching.grow import Added, add_to_index
            from students.searching.index import find_index
            from students.searching.settings import IndexOptions

            work = {"batch_tokens": batch_tokens, "process_group": process_group}
            if is_new:
                prompt = settings.pop("prompt")
                built = options_of(IndexOptions, {**settings, "prompt_name": prompt, **work})
                manifest = find_index(model, table, folder, built).manifest
                added = Added(manifest.sentences, 0, manifest.blank, manifest.sentences)
            else:
                added = add_to_index(model, table, folder, overwrite=options.replace, **work)
    print_result("index add", added, folder, options.as_json)


def _column(name: str) -> str | int:
    """A column by its name, or by its position in digits."""
    return int(name) if name.isdecimal() else name


class DeleteOptions(TableOptions, JsonOption):
    """The texts to delete."""

    id: list[str] = Field(default=[])
    """Id of a text. May be repeated."""
    ids: str | None = None
    """Delete the texts of the ids of a file: lines, or the column that the index has them from."""
    where: str | None = None
    """Delete the texts that fulfil a condition on columns, such as language = "de" and year < 2020."""


@command(index, names={"ids": "--ids FILE", "where": "--where CONDITION", "id": "--id ID"})
def delete(folder: IndexArgument, options: DeleteOptions) -> None:
    """Delete texts from INDEX: those of some ids, or those that fulfil a condition.

    They are left out of every search from then on. Their vectors stay in the files until `index compact`.

    For example:

      bertrelay index delete news.index --id 4711 --id 4712

      bertrelay index delete news.index --where "language = 'de' and year between 1990 and 2019"
    """
    from students.searching.grow import delete_from_index
    from students.searching.index_folder import require_manifest

    ids = list[object](options.id)
    if options.ids is not None:
        from bertrelay.data.records import read

        table = options.table(options.ids)
        is_plain = table.file_format == "lines"
        column = None if is_plain else require_manifest(folder).id_column
        ids += (record.values[0] for record in read(table, [0 if column is None else column]))
    if bool(ids) == (options.where is not None):
        raise RequestError("expected ids (--id, --ids) or --where CONDITION, found neither or both")
    print_result("index delete", delete_from_index(folder, ids=ids, where=options.where), folder, options.as_json)


class CompactOptions(JsonOption):
    """The kind of the index."""

    kind: IndexKind = "auto"
    """A kind to build beside those that INDEX has, and to search by; auto is these."""


@command(index)
def compact(folder: IndexArgument, options: CompactOptions) -> None:
    """Write INDEX anew without deleted texts, and build its graph or codes over all texts; nothing is encoded again.

    Others search the index as it was until the new one is complete.

    For example:

      bertrelay index compact news.index

      bertrelay index compact news.index --kind int8
    """
    from students.searching.grow import compact_index

    print_result("index compact", compact_index(folder, kind=options.kind), folder, options.as_json)
