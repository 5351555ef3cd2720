"""Which files a source of documents has, and who reads each."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from bertrelay.errors import RequestError
from domain.pretraining.documents import Item, LeftOut, read_blocks, read_table
from domain.pretraining.papers import read_papers
from domain.pretraining.revisions import outdated
from domain.pretraining.sources import FORMATS, DocumentSource, format_of

Files = Sequence[tuple[DocumentSource, Path]]
"""Files, each with the source that says how to read it."""


def files_of(source: DocumentSource) -> list[Path]:
    """The file of `source`, or those in its folder that can be read, by name.

    Raises RequestError when there is none.
    """
    path = Path(source.path)
    if not path.exists():
        raise RequestError(f"documents: there is no file or folder {path}. Check the path.")
    if not path.is_dir():
        return [path]
    inner = sorted(path.rglob("*"), key=lambda file: file.relative_to(path).as_posix())
    wanted = {source.format} if source.format else set(FORMATS.values())
    found = [file for file in inner if file.is_file() and file.name[0] != "." and format_of(file) in wanted]
    if not found:
        raise RequestError(
            f"documents: the folder {path} holds no file to read; expected names that end in "
            f"{', '.join(FORMATS)}, .gz or not. Check the path, or give each file and its format."
        )
    return found


def read_all(files: Files, file: int = 0, item: int = 0) -> Iterator[tuple[int, int, Item]]:
    """Streams the documents of all files, each with the place of its file and, from 1, its own in it.

    file, item: where to resume; files before it are not read. Records that PubMed has revised or deleted are left out.
    """
    papers = [place for place, (source, path) in enumerate(files) if _is_xml(source, path)]
    reasons = outdated([files[place][1] for place in papers]) if papers else {}
    left_out = {(papers[place], number): LeftOut(reason) for (place, number), reason in reasons.items()}
    for place, (source, path) in enumerate(files[file:], file):
        skipped = item if place == file else 0
        for number, found in enumerate(islice(read_documents(source, path), skipped, None), skipped + 1):
            yield place, number, left_out.get((place, number), found)


def _is_xml(source: DocumentSource, file: Path) -> bool:
    return (source.format or format_of(file)) == "xml"


def read_documents(source: DocumentSource, file: Path) -> Iterator[Item]:
    """Streams the documents of one file of `source`.

    Raises RequestError for what concerns the whole file: it is not there, cut off, or not what it should be.
    """
    match source.format or format_of(file):
        case None:
            raise RequestError(
                f"documents: how is {file} to be read? Its name ends in none of {', '.join(FORMATS)} (.gz or not); "
                f"give its `format`: {', '.join(sorted({*FORMATS.values()}))}."
            )
        case "blocks":
            return read_blocks(file)
        case "xml":
            return read_papers(file)
        case _:
            return read_table(source, file)
