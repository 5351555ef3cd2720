"""What tagging reads and writes: documents surveyed and cut into blocks, and the output they are put together into.

This room loads neither torch nor transformers, so that a wrong request is told of at once.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import check_place
from bertrelay.parts import Parts, Stretch
from bertrelay.progress import log
from domain.biomedical.annotations import Document, Entity
from domain.biomedical.formats import jsonl
from domain.biomedical.formats.front import FORMATS, FormatName, check_held, format_of, read_documents, writing

BLOCK_CHARACTERS = 400_000
"""As much text is tagged before it is on the disk: some 60,000 words, the most that a kill costs."""
WORD = re.compile(r"\S+")


class Source(NamedTuple):
    """A file or folder of documents, and its format where its name does not tell it."""

    path: Path
    format: FormatName | None = None

    def documents(self, rejects: Rejects | None = None) -> Iterator[Document]:
        return read_documents(self.path, self.format, rejects)


class Survey(NamedTuple):
    """What reading the source through has shown. digest: sha256 of all that a tagger sees."""

    blocks: list[Stretch]
    blank: int
    rejected: int
    digest: str

    @property
    def documents(self) -> int:
        return self.blocks[-1].end

    @property
    def words(self) -> int:
        return sum(block.size for block in self.blocks)


def check_source(source: Source) -> None:
    """Reads one document, which tells most of what can be wrong with a request. Raises RequestError."""
    name = source.format or format_of(source.path)
    if FORMATS[name].read is None:
        raise RequestError(f"{source.path}: {name} is only written; name documents of another format")
    next(source.documents(Rejects(None, limit=1)), None)


def check_output(
    output: Path, format_name: FormatName | None, source: Path | None = None, overwrite: bool = True
) -> FormatName:
    """The format of `output`. Raises RequestError for one that is only read, in no folder, not empty, or the source.

    overwrite: whether a file may be there already.
    """
    name = format_name or format_of(output)
    if FORMATS[name].writing is None:
        raise RequestError(f"output: {name} is only read; write {', '.join(written())}")
    check_place(output, source, overwrite=overwrite)
    if output.is_dir() != (name == "brat") and output.exists():
        raise RequestError(f"output: expected a {'folder' if name == 'brat' else 'file'} for {name}, found {output}")
    if output.is_dir() and any(output.iterdir()):
        raise RequestError(f"output: expected a new folder or an empty one for {name}, found files in {output}")
    return name


def check_types(types: Iterable[str], output: FormatName) -> None:
    """Raises RequestError where the format `output` cannot hold entities of one of a model's `types`."""
    for each in types:
        rejects = Rejects(None, limit=1)
        check_held(Document("1", "x", (Entity(0, 1, each),)), output, rejects)
        if rejects.counts:
            raise RequestError(
                f"output: {output} cannot hold entities of the model's type {each!r} ({', '.join(rejects.counts)}); "
                "write another format, JSONL for example"
            )


def written() -> list[FormatName]:
    """The formats that can be written."""
    return [name for name, found in FORMATS.items() if found.writing]


def survey(source: Source, listed: Path, max_rejects: float, output: FormatName = "jsonl") -> Survey:
    """Reads `source` through, and lists in `listed` what cannot be used, where there is any.

    output: the format to be written, whose refusals of texts and ids are counted too.
    Raises WorkError when either is more than `max_rejects` of all, RequestError when nothing is left.
    """
    refused = Rejects(None, max_rejects)
    blocks, blank, digest = list[Stretch](), 0, hashlib.sha256()
    first, end, characters, words = 0, 0, 0, 0
    with Rejects(listed, max_rejects) as rejects:
        for document in source.documents(rejects):
            blank += not document.text.strip()
            plain = replace(document, entities=())
            check_held(plain, output, refused)
            digest.update(jsonl.line_of(plain).encode(errors="surrogatepass"))
            end, characters = end + 1, characters + len(document.text)
            words += count_words(document.text)
            if characters >= BLOCK_CHARACTERS:
                blocks.append(Stretch(first, end, words))
                first, characters, words = end, 0, 0
    refused.check()
    if first < end:
        blocks.append(Stretch(first, end, words))
    rejected = rejects.counts.total()
    if not rejected:
        listed.unlink()
    if not blocks:
        raise RequestError(f"{source.path} holds no documents. Check that it is the right one and complete.")
    if blank:
        log(f"{blank:,} of {end:,} documents are blank; each has its place in the output as any other")
    return Survey(blocks, blank, rejected, digest.hexdigest())


def count_words(text: str) -> int:
    """As white space divides them; a list of them would be ten times the text."""
    return sum(1 for _ in WORD.finditer(text))


def tagged_documents(parts: Parts[Stretch]) -> Iterator[Document]:
    """All tagged documents, in order; where they stood in a part is nobody's concern."""
    for path in parts.paths:
        for document in read_documents(path, "jsonl", unique=False):
            yield replace(document, file="", line=0)


def put_together(parts: Parts[Stretch], output: Path, format_name: FormatName, listed: Path, max_rejects: float) -> int:
    """Writes `output`; how many documents its format cannot hold, which `listed` lists where there are any."""
    rejects = Rejects(listed, max_rejects)
    with writing(output, format_name, rejects) as write, rejects:  # too many rejects end before the output is there
        for document in tagged_documents(parts):
            write(document)
    refused = rejects.counts.total()
    if not refused:
        listed.unlink()
    return refused
