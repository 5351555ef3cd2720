"""The entities of many documents, from a file of one format to a file of another, in blocks that survive a kill.

Importing this loads neither torch nor transformers, so that an invalid request is reported at once.
"""

import hashlib
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import check_place, output_lock
from bertrelay.fingerprint import Digests, fingerprint
from bertrelay.hardware import default_device, resolve_precision
from bertrelay.parts import Parts, Stretch, fill, taken
from bertrelay.privacy import check_page
from bertrelay.progress import log
from bertrelay.stage import Metrics, ProcessGroup, StageContext
from domain.biomedical.documents import FORMATS, FormatName, check_held, format_of, jsonl, read_documents, writing
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.ner.settings import TagSettings

if TYPE_CHECKING:
    from domain.biomedical.ner.tagger import EntityTagger

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


ALONE = ProcessGroup()
DIGITS = 6  # of a confidence; those behind them depend on the threads of a machine
MAX_REJECTS = 0.01
SUFFIXES: dict[FormatName, str] = {"conll": ".conll", "conll-iobes": ".iobes", "bioc": ".json", "brat": ""}
"""Of a stage's output where it is not the name of the format."""


class TaggedFile(NamedTuple):
    """What `tag_file` did.

    entities: by type. rejected: documents that could not be read. refused: those that the output cannot hold.
    words_per_second: of what was computed now, as white space divides words; None where that is nothing.
    """

    documents: int
    words: int
    entities: dict[str, int]
    rejected: int
    refused: int
    words_per_second: float | None


def tag_file(
    model: str | Path,
    documents: str | Path,
    output: str | Path,
    *,
    source_format: FormatName | None = None,
    output_format: FormatName | None = None,
    max_rejects: float = MAX_REJECTS,
    precision: str = "auto",
    batch_tokens: int | None = None,
    cache: Path | None = None,
    with_text: bool = False,
    process_group: ProcessGroup = ALONE,
) -> TaggedFile:
    """Writes `documents` to `output`, each with the entities that `model` finds in place of those it had.

    source_format, output_format: found by the names when not given (`domain.biomedical.documents.FORMATS`).
    max_rejects: the share of documents that may be unusable, and that the output's format may be unable to hold; they
        are listed in `OUTPUT.rejects.jsonl` and `OUTPUT.refused.jsonl`.
    cache: where a model of the hub is kept.
    with_text: allows a page within `bertrelay.privacy.sensitive_data()`.
    process_group: each of several processes computes its share; they need torch.distributed, to synchronise, and
        one folder of `output`, on a disk that all of them see.

    Killed and called again, with as many processes or others, it goes on at the first block that is not done.
    Raises RequestError, before anything is computed, for an input or output that cannot be what it should be, and
    WorkError when too many documents are left out.
    """
    from bertrelay.backbone import model_folder
    from bertrelay.distributed import check_shared, from_main, wait_for_all
    from domain.biomedical.ner.tagger import EntityTagger

    source, output = Source(Path(documents), source_format), Path(output)
    output_format = check_output(output, output_format, source.path)
    if output_format == "html":
        check_page(with_text)
    with output_lock(output) if process_group.is_main else nullcontext():
        folder = from_main(
            model_folder(model, cache_dir=cache and cache / "hub") if process_group.is_main else None, process_group
        )
        precision = from_main(resolve_precision(precision, default_device()), process_group)
        listed = _list(output, "rejects")
        surveyed = from_main(
            survey(source, listed, max_rejects, output_format) if process_group.is_main else None, process_group
        )
        parts = Parts(output, surveyed.blocks)
        if process_group.is_main:
            parts.begin(_holds(folder, surveyed, precision))
        check_shared(parts.folder, process_group)
        tagger, started = EntityTagger.load(folder), time.monotonic()
        check_types(tagger.model.labels.types, output_format)
        lines = partial(_lines, tagger, source, precision, batch_tokens)
        computed = fill(parts, lines, "tagging", "words", process_group)
        seconds = time.monotonic() - started
        entities, refused = {}, 0
        if process_group.is_main:
            entities = _count(parts)
            refused = put_together(parts, output, output_format, _list(output, "refused"), max_rejects)
            parts.remove()
        wait_for_all(process_group)
    rate = computed / seconds if computed else None
    return TaggedFile(surveyed.documents, surveyed.words, entities, surveyed.rejected, refused, rate)


def run(settings: TagSettings, context: StageContext) -> Metrics:
    """The stage `domain.ner-tag`: the documents and their entities, in `entities` with the suffix of the format."""
    output = context.output / f"entities{SUFFIXES.get(settings.output, f'.{settings.output}')}"
    tagged = tag_file(
        settings.model,
        settings.documents,
        output,
        source_format=settings.format,
        output_format=settings.output,
        max_rejects=settings.max_rejects,
        precision=settings.precision,
        batch_tokens=settings.batch_tokens,
        cache=context.cache,
        with_text=settings.with_text or not context.sensitive,
        process_group=context.process_group,
    )
    counts = {f"entities/{kind}": count for kind, count in tagged.entities.items()}
    figures = tagged._asdict()
    return {name: value for name, value in figures.items() if name != "entities"} | counts


def _list(output: Path, what: str) -> Path:
    return output.with_name(f"{output.name}.{what}.jsonl")


def _holds(folder: Path, surveyed: Survey, precision: str) -> dict[str, object]:
    """What decides the content of the blocks."""
    key = fingerprint({"model": Digests().of_folder(folder), "documents": surveyed.digest})
    return {"key": key, "precision": precision, "block": BLOCK_CHARACTERS}


def _lines(
    tagger: "EntityTagger",
    source: Source,
    precision: str,
    batch_tokens: int | None,
    wanted: Sequence[Stretch],
) -> Iterator[Iterator[str]]:
    """The lines of each block of tagged documents."""
    for documents in taken(source.documents(Rejects(None, limit=1)), wanted, source.path):
        tagged = tagger.tag_documents(documents, precision=precision, batch_tokens=batch_tokens)
        yield map(jsonl.line_of, map(_rounded, tagged))


def _rounded(document: Document) -> Document:
    """The document with confidences as they are written."""
    rounded = (replace(entity, confidence=round(entity.confidence or 0.0, DIGITS)) for entity in document.entities)
    return replace(document, entities=tuple(rounded))


def _count(parts: Parts[Stretch]) -> dict[str, int]:
    """The entities of all documents by type, the most frequent first."""
    counts = Counter(entity.type for document in tagged_documents(parts) for entity in document.entities)
    return dict(counts.most_common())
