"""The entities of many documents, from a file of one format to a file of another, in shards that survive a kill.

Importing this loads neither torch nor transformers, so that an invalid request is reported at once.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bertrelay.data.records import Rejects
from bertrelay.data.shards import Scan, Shards, Span, cut_spans, model_output, read_spans
from bertrelay.distributed import SINGLE_PROCESS, ProcessGroup
from bertrelay.errors import RequestError
from bertrelay.files import check_place
from bertrelay.privacy import check_page
from bertrelay.progress import Bar, log
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.documents import FORMATS, FormatName, check_held, format_of, jsonl, read_documents, writing
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.ner.settings import TagSettings

if TYPE_CHECKING:
    from domain.biomedical.ner.tagger import EntityTagger

BLOCK_CHARACTERS = 400_000
"""As much text is tagged before it is on the disk: some 60,000 words, the most that a kill costs."""
WORD = re.compile(r"\S+")
DIGITS = 6  # of a confidence; those behind them depend on the threads of a machine
MAX_REJECTS = 0.01
SUFFIXES: dict[FormatName, str] = {"conll": ".conll", "conll-iobes": ".iobes", "bioc": ".json", "brat": ""}
"""Of a stage's output where it is not the name of the format."""


class DocumentFiles(NamedTuple):
    """A file or folder of documents, and its format where its name does not imply it."""

    path: Path
    format: FormatName | None = None

    def documents(self, rejects: Rejects | None = None) -> Iterator[Document]:
        return read_documents(self.path, self.format, rejects)


def check_source(source: DocumentFiles) -> None:
    """Reads one document, which shows most faults of a request. Raises RequestError."""
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


def scan(source: DocumentFiles, listed: Path, max_rejects: float, output: FormatName = "jsonl") -> Scan:
    """Reads `source` through, in spans of words, and lists in `listed` what cannot be used, where there is any.

    output: the format to be written, whose refusals of texts and ids are counted too.
    Raises WorkError when either is more than `max_rejects` of all, RequestError when nothing is left.
    """
    refused = Rejects(None, max_rejects)
    blank, digest = 0, hashlib.sha256()

    def sizes(rejects: Rejects) -> Iterator[tuple[int, int]]:
        """The characters and words of each document: what spans are cut by and progress counts."""
        nonlocal blank
        for document in source.documents(rejects):
            blank += not document.text.strip()
            plain = replace(document, entities=())
            check_held(plain, output, refused)
            digest.update(jsonl.line_of(plain).encode(errors="surrogatepass"))
            yield len(document.text), sum(1 for _ in WORD.finditer(document.text))

    with Rejects(listed, max_rejects, keep_empty=False) as rejects:
        spans = cut_spans(sizes(rejects), BLOCK_CHARACTERS)
    refused.check()
    if not spans:
        raise RequestError(f"{source.path} holds no documents. Check that it is the right one and complete.")
    if blank:
        log(f"{blank:,} of {spans[-1].end:,} documents are blank; each has its place in the output as any other")
    return Scan(spans, digest.hexdigest(), rejects.counts.total())


def assemble(
    shards: Shards, output: Path, format_name: FormatName, listed: Path, max_rejects: float
) -> tuple[dict[str, int], int]:
    """Writes `output`; the entities by type, the most frequent first, and how many documents its format cannot hold.

    listed: lists these documents where there are any.
    """
    rejects, counts = Rejects(listed, max_rejects, keep_empty=False), Counter[str]()
    with writing(output, format_name, rejects) as write, rejects:  # too many rejects end before the output is there
        for path in shards.complete():
            for document in read_documents(path, "jsonl", unique=False):
                counts.update(entity.type for entity in document.entities)
                write(replace(document, file="", line=0))  # without its place in the shard
    return dict(counts.most_common()), rejects.counts.total()


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
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> TaggedFile:
    """Writes `documents` to `output`, each with the entities that `model` finds in place of those it had.

    source_format, output_format: found by the names when not given (`domain.biomedical.documents.FORMATS`).
    max_rejects: the share of documents that may be unusable, and that the output's format may be unable to hold; they
        are listed in `OUTPUT.rejects.jsonl` and `OUTPUT.refused.jsonl`.
    cache: where a model of the hub is kept.
    with_text: allows a page within `bertrelay.privacy.sensitive_data()`.
    process_group: each of several processes computes its share; they need torch.distributed, to synchronise, and
        one folder of `output`, on a disk that all of them see.

    Killed and called again, with as many processes or others, it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an input or output that cannot be what it should be, and
    WorkError when too many documents are left out.
    """
    from domain.biomedical.ner.tagger import EntityTagger

    source, output = DocumentFiles(Path(documents), source_format), Path(output)
    output_format = check_output(output, output_format, source.path)
    if output_format == "html":
        check_page(with_text)
    with model_output(
        output,
        model,
        partial(scan, source, _list(output, "rejects"), max_rejects, output_format),
        block=BLOCK_CHARACTERS,
        precision=precision,
        cache=cache,
        process_group=process_group,
    ) as work:
        tagger = EntityTagger.load(work.folder)
        check_types(tagger.model.labels.types, output_format)
        compute = partial(_lines, tagger, source, work.precision, batch_tokens)
        filled = work.shards.fill(compute, "tagging", "words")
        entities, refused = dict[str, int](), 0
        if work.is_main:
            entities, refused = assemble(work.shards, output, output_format, _list(output, "refused"), max_rejects)
    return TaggedFile(work.scan.items, work.scan.size, entities, work.scan.rejected, refused, filled.rate)


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
    metrics = tagged._asdict()
    return {name: value for name, value in metrics.items() if name != "entities"} | counts


def _list(output: Path, what: str) -> Path:
    return output.with_name(f"{output.name}.{what}.jsonl")


def _lines(
    tagger: "EntityTagger",
    source: DocumentFiles,
    precision: str,
    batch_tokens: int | None,
    spans: Sequence[Span],
    bar: Bar,
) -> Iterator[Iterator[str]]:
    """The lines of the tagged documents of each of `spans`."""
    found = read_spans(source.documents(Rejects(None, limit=1)), spans, source.path)
    for span, documents in zip(spans, found, strict=True):
        tagged = tagger.tag_documents(documents, precision=precision, batch_tokens=batch_tokens)
        yield map(jsonl.line_of, map(_rounded, tagged))
        bar.advance(span.size)


def _rounded(document: Document) -> Document:
    """The document with confidences as they are written."""
    rounded = (replace(entity, confidence=round(entity.confidence or 0.0, DIGITS)) for entity in document.entities)
    return replace(document, entities=tuple(rounded))
