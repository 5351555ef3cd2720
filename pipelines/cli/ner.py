"""`bertrelay ner tag`: documents to their entities."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertrelay.errors import RequestError
from domain.biomedical.documents import TITLE_LINE, FormatName
from pipelines.cli.echo import echo
from pipelines.cli.models import check_model
from pipelines.cli.options import (
    BatchOption,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    PrecisionOption,
    ProcessesOption,
    WithTextOption,
)
from pipelines.cli.stdin import DASH, first_bytes, input_file

if TYPE_CHECKING:
    from domain.biomedical.ner.tagging import TaggedFile

ner = typer.Typer(help="Find the entities of biomedical texts.", no_args_is_help=True)


@ner.callback()
def commands() -> None:
    """Keeps `tag` a command of its own while it is the only one."""


@ner.command()
def tag(
    model: ModelArgument,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="Raw text, JSONL, PubTator, BioC, CoNLL, or a folder of text or brat; .gz is unpacked. "
            "- is standard input, a document in each line unless --input-format says otherwise.",
        ),
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="Where to write; the suffix tells the format, no suffix is brat.")
    ],
    output_format: Annotated[
        FormatName | None, typer.Option("--format", help="What OUTPUT is.", show_default="by its suffix")
    ] = None,
    input_format: Annotated[
        FormatName | None, typer.Option(help="What INPUT is.", show_default="by its name and first line")
    ] = None,
    max_rejects: Annotated[
        float, typer.Option(min=0, max=1, help="The share of documents that may be left out as unusable.")
    ] = 0.01,
    with_text: WithTextOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    precision: PrecisionOption = "auto",
    batch_tokens: BatchOption = None,
    processes: ProcessesOption = None,
) -> None:
    """Find the entities of every document in INPUT and write them to OUTPUT, each with how sure the model is of it.

    Documents may be of any length and number; offsets count characters of the text as it was given. Stop it whenever
    you like: the same command goes on from there. What could not be read, or not be written in the format, is counted
    and listed beside OUTPUT.

    For example:

      bertrelay ner tag runs/laboratory/ner/latest/model abstracts.jsonl entities.jsonl

      bertrelay ner tag MODEL article.txt article.html

      bertrelay ner tag MODEL corpus.pubtator tagged.json --processes 2
    """
    from bertrelay.privacy import check_page
    from domain.biomedical.ner.tagging import Source, check_output, check_source
    from pipelines.cli.sharing import shared
    from pipelines.launch import check_process_group

    process_group = check_process_group(processes)
    check_model(model)
    if str(output) == DASH:
        raise RequestError(f"output: expected a file or a folder, found {DASH}; nothing is written to standard output")
    output_format = check_output(output, output_format, source, overwrite)
    if output_format == "html":
        check_page(with_text)
    with input_file(str(source), output) as name:
        if str(source) == DASH:
            input_format = input_format or _lines(name)
        check_source(Source(Path(name), input_format))
        with shared(process_group, processes):
            from domain.biomedical.ner.tagging import tag_file

            tagged = tag_file(
                model,
                name,
                output,
                source_format=input_format,
                output_format=output_format,
                max_rejects=max_rejects,
                precision=precision,
                batch_tokens=batch_tokens,
                with_text=with_text,
                process_group=process_group,
            )
    if process_group.is_main:
        echo(json.dumps({"output": str(output), **tagged._asdict()}) if as_json else _text(tagged, output))


def _lines(name: str) -> FormatName:
    """Of standard input: a document in each line. Raises RequestError where it begins as another format does."""
    found = first_bytes(name)
    if found.startswith(b"{") or TITLE_LINE.match(found):
        raise RequestError(
            "standard input: expected a document in each line, found what begins as JSON or PubTator. Say what it is: "
            "--input-format jsonl, bioc, pubtator, or lines if each line is a text"
        )
    return "lines"


def _text(tagged: "TaggedFile", output: Path) -> str:
    """How many entities of which type in how many documents, and what was left out."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in tagged.entities.items()) or "no entities"
    left_out = {"unreadable": tagged.rejected, "that the format cannot hold": tagged.refused}
    told = ", ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
    first = f"{kinds} in {tagged.documents:,} documents, in {output}"
    return f"{first}\nleft out: {told}, listed beside it" if told else first
