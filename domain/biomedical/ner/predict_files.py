"""Tags the documents of files and datasets, in shards that survive a kill; any format in, any format out.

Importing this loads neither torch nor transformers, so that an invalid request is reported at once.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from bertrelay.cache import Cache
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.compute.work import Compute, Work
from bertrelay.data.records import Rejects
from bertrelay.data.shards import ShardFiles, SpanReader, cut_spans
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError, plural
from bertrelay.files import check_location
from bertrelay.fingerprint import Digests, note_folder
from bertrelay.inference.run_model import BLOCK_CHARACTERS, DIGITS, Scan, connect, open_run
from bertrelay.privacy import check_page
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.progress import Bar, log
from bertrelay.settings import settings_of
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.documents.document import TEXT_ONLY, Document, Entity, Reading, RepeatedIds
from domain.biomedical.documents.formats import (
    FORMATS,
    FormatName,
    WrittenName,
    check_held,
    check_written,
    format_of,
    read_documents,
    writing,
)
from domain.biomedical.documents.jsonl import DOCUMENT_KEYS, jsonl_line
from domain.biomedical.ner.settings import TagOptions, TagSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from bertrelay.inference.run_model import Columns, WrittenDataset

ReadDocuments = Callable[[Rejects], Iterator[Document]]


def checked_format(
    output: Path, format_name: FormatName | None, source: Path, *, with_text: bool, overwrite: bool
) -> WrittenName:
    """The format of `output`: `format_name`, or by the suffix. with_text: allow a page of sensitive data.

    Raises RequestError for a format that is only read, an output without a folder, an existing file unless `overwrite`,
    a folder that is not empty, and the source itself.
    """
    name = check_written(output, format_name)
    check_location(output, source, overwrite=overwrite)
    if output.is_dir() != (name == "brat") and output.exists():
        raise RequestError(f"output: expected a {'folder' if name == 'brat' else 'file'} for {name}, found {output}")
    if output.is_dir() and any(output.iterdir()):
        raise RequestError(f"output: expected a new folder or an empty one for {name}, found files in {output}")
    if name == "html":
        check_page(with_text)
    return name


class TaggedFile(NamedTuple):
    """Counts of `tag_file`.

    words: between white space. entities: by type. linked: entities that got identifiers.
    relations: found ones; None, as `linked`, where there is no model for them.
    rejected: documents that could not be read. refused: documents that the output cannot hold.
    words_per_second: of the words computed by this call; None if there were none.
    """

    documents: int
    words: int
    entities: dict[str, int]
    linked: int | None
    relations: int | None
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
    repeated_ids: RepeatedIds = "error",
    keep: Sequence[str] = (),
    types: Sequence[str] = (),
    min_confidence: float = 0.0,
    link: str | Path | None = None,
    link_types: Sequence[str] = (),
    relate: str | Path | None = None,
    max_rejects: float = 0.01,
    with_text: bool = False,
    precision: str = "auto",
    batch_tokens: int | None = None,
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    overwrite: bool = False,
) -> TaggedFile:
    """Writes `documents` to `output`, each with the entities that `model` finds in place of its own, valid or not.

    source_format, output_format: by the names of the files when None (docs/formats.md).
    repeated_ids: as in `TagSettings`.
    keep: fields of JSONL that the output, which is JSONL, has too.
    types, min_confidence, link, link_types, relate, max_rejects, with_text, precision, batch_tokens: as in
        `TagOptions`. Documents that are left out are listed in `OUTPUT.rejects.jsonl` and, if the output's format
        cannot hold them, in `OUTPUT.refused.jsonl`.
    cache: of models of the hub.
    process_group: each of several processes computes a part; they need torch.distributed, to synchronise, and one
        folder of `output`, on a disk that all of them read.
    engine: in place of several processes a Ray cluster, `ray`, `ray://HOST:PORT` or an `Engine`; its workers read the
        model and the folder of `output`.
    overwrite: replace an existing file, which is an error otherwise; a folder must be empty or new.

    Killed and called again, with any number of processes, it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an unusable input or output, and WorkError if too many
    documents are left out.
    """
    models = {name: None if path is None else str(path) for name, path in (("link", link), ("relate", relate))}
    options = settings_of(TagOptions, {**locals(), **models})
    documents, output = Path(documents), Path(output)
    written = checked_format(output, output_format, documents, with_text=options.with_text, overwrite=overwrite)
    _check_keep(keep, documents, source_format, written)
    rejects, refused = (
        Rejects(output.with_name(f"{output.name}.{what}.jsonl"), options.max_rejects, keep_empty=False)
        for what in ("rejects", "refused")
    )
    reading = TEXT_ONLY._replace(keep=tuple(keep), repeated_ids=repeated_ids)
    read = partial(read_documents, documents, source_format, reading=reading)
    with open_run(
        output,
        model,
        partial(_scan, read, rejects, Rejects(None, options.max_rejects), written, documents, keep),
        span_limit=BLOCK_CHARACTERS,
        precision=options.precision,
        cache=cache,
        process_group=process_group,
        engine=engine,
        decisive=_decisive(options),
    ) as run:
        reader = SpanReader(partial(read, Rejects(None, limit=1)), documents)
        start = partial(_start, run.folder, written, run.precision, options)
        rate = run.fill(Work(reader.read, start, "tagging", "words")).rate
        counts = _assemble(run.shards, output, written, keep, refused) if run.is_main else Counts()
    return TaggedFile(
        run.scan.items,
        run.scan.size,
        dict(counts.entities),
        None if link is None else counts.linked,
        None if relate is None else counts.relations,
        run.scan.rejected,
        refused.counts.total(),
        rate,
    )


def _decisive(options: TagOptions) -> dict[str, object]:
    """The options on which the output depends, and the digests of linker and model of relations."""
    names = ("types", "min_confidence", "link_types")
    decisive: dict[str, object] = {name: value for name in names if (value := getattr(options, name))}
    for name, path in (("link", options.link), ("relate", options.relate)):
        if path is not None:
            note_folder(Path(path))
            decisive[name] = Digests().of_folder(Path(path))
    return decisive


def _check_keep(keep: Sequence[str], source: Path, source_format: FormatName | None, output: WrittenName) -> None:
    """Raises RequestError for fields that the output cannot have."""
    formats = {source_format or format_of(source), output} if keep else set()
    if formats - {"jsonl"}:
        raise RequestError(f"keep: only from JSONL to JSONL, found {' and '.join(sorted(formats - {'jsonl'}))}")
    if standard := [name for name in keep if name in DOCUMENT_KEYS]:
        raise RequestError(f"keep: {', '.join(standard)} of each document is written as it is; name other fields")


def _scan(
    read: ReadDocuments,
    rejects: Rejects,
    refused: Rejects,
    output: WrittenName,
    source: Path,
    keep: Sequence[str] = (),
) -> Scan:
    """Reads all documents, cuts them into spans, and lists unusable ones in `rejects`.

    refused: counts documents whose text or id the format `output` cannot hold.
    Raises WorkError if either are too many, RequestError if no document is left.
    """
    blank, digest, absent = 0, hashlib.sha256(), set(keep)

    def sizes() -> Iterator[tuple[int, int]]:
        """Characters, which spans are cut by, and words, which progress counts, of each document."""
        nonlocal blank
        for document in read(rejects):
            absent.intersection_update(name for name, value in document.fields.items() if value is None)
            blank += not document.text.strip()
            plain = replace(document, entities=())
            check_held(plain, output, refused)
            digest.update(jsonl_line(plain).encode(errors="surrogatepass"))
            yield len(document.text), _words(document)

    with rejects:
        spans = cut_spans(sizes(), BLOCK_CHARACTERS)
    refused.check()
    if not spans:
        raise RequestError(f"{source} holds no documents. Check that it is the right one and complete.")
    if absent:
        raise RequestError(f"keep: expected fields of {source}, found none named {', '.join(sorted(absent))}")
    if blank:
        are = plural(blank, "is", "are")
        log(f"{blank:,} of {spans[-1].end:,} documents {are} blank; the output has them, too")
    return Scan(spans, digest.hexdigest(), rejects.counts.total())


def _check_types(types: Sequence[str], output: WrittenName) -> None:
    """Raises RequestError if the format `output` cannot hold entities of one of a model's `types`."""
    for name in types:
        rejects = Rejects(None, limit=1)
        check_held(Document("1", "x", (Entity(0, 1, name),)), output, rejects)
        if rejects.counts:
            raise RequestError(
                f"output: {output} cannot hold entities of the model's type {name!r} ({', '.join(rejects.counts)}); "
                "write another format, JSONL for example"
            )


def _check_known(types: Sequence[str], model_types: Sequence[str]) -> None:
    """Raises RequestError for types that a model does not find."""
    if unknown := set(types) - set(model_types):
        raise RequestError(
            f"types: expected types that the model finds ({', '.join(sorted(model_types))}), found "
            f"{', '.join(sorted(unknown))}. Correct or leave it out."
        )


def _words(document: Document) -> int:
    return len(document.text.split())


def _start(
    folder: Path, output: WrittenName, precision: ComputePrecision, options: TagOptions
) -> Compute[list[Document], Iterator[str]]:
    """Loads the models. Raises RequestError if the format `output` cannot hold the tagger's types."""
    from domain.biomedical.linking.predict import EntityLinker
    from domain.biomedical.ner.predict import EntityTagger
    from domain.biomedical.relations.predict import RelationExtractor

    tagger, batch_tokens = EntityTagger.load(folder), options.batch_tokens
    _check_types(options.types or tagger.model.labels.types, output)
    _check_known(options.types, tagger.model.labels.types)
    linker = EntityLinker.load(options.link) if options.link else None
    extractor = RelationExtractor.load(options.relate) if options.relate else None

    def lines(blocks: Iterable[list[Document]], bar: Bar) -> Iterator[Iterator[str]]:
        for documents in blocks:
            tagged = tagger.tag_documents(
                documents,
                precision=precision,
                batch_tokens=batch_tokens,
                types=options.types,
                min_confidence=options.min_confidence,
            )
            if linker is not None:
                tagged = linker.link_documents(
                    tagged, types=options.link_types, precision=precision, batch_tokens=batch_tokens
                )
            if extractor is not None:
                tagged = extractor.relate_documents(tagged, precision=precision, batch_tokens=batch_tokens)
            yield (jsonl_line(_rounded(document)) for document in tagged)
            bar.advance(sum(map(_words, documents)))

    return lines


def _rounded(document: Document) -> Document:
    entities = (
        replace(
            entity,
            confidence=round(entity.confidence or 0.0, DIGITS),
            identifier_score=None if entity.identifier_score is None else round(entity.identifier_score, DIGITS),
        )
        for entity in document.entities
    )
    relations = (replace(one, confidence=round(one.confidence or 0.0, DIGITS)) for one in document.relations)
    return replace(document, entities=tuple(entities), relations=tuple(relations))


class Counts(NamedTuple):
    """Numbers of what documents have: entities by type, the most frequent first, those with identifiers, relations."""

    entities: Mapping[str, int] = MappingProxyType({})
    linked: int = 0
    relations: int = 0


def _assemble(
    shards: ShardFiles, output: Path, output_format: WrittenName, keep: Sequence[str], refused: Rejects
) -> Counts:
    """Writes `output`. refused: takes the documents that the format cannot hold."""
    types, reading = Counter[str](), Reading(keep=tuple(keep))
    linked = relations = 0
    with writing(output, output_format, refused) as write, refused:  # too many rejects end before the output is there
        for path in shards.complete():
            for document in read_documents(path, "jsonl", unique=False, reading=reading):
                types.update(entity.type for entity in document.entities)
                linked += sum(entity.identifier is not None for entity in document.entities)
                relations += len(document.relations)
                write(replace(document, file="", line=0))  # file and line are those of the shard
    return Counts(dict(types.most_common()), linked, relations)


def tag_dataset(
    model: str | Path,
    source: str,
    output: str,
    *,
    column: str = "text",
    keep: Sequence[str] = (),
    types: Sequence[str] = (),
    min_confidence: float = 0.0,
    precision: str = "auto",
    batch_tokens: int | None = None,
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    overwrite: bool = False,
) -> "WrittenDataset":
    """Writes the rows of the Parquet files of `source` to the dataset `output`, with their entities.

    source, output: folders, or addresses such as `s3://bucket/folder`, as in `bertrelay.encode_dataset`.
    column: of the text. The output has `row`, the columns of `keep`, the text, and `entities`: start, end, type, text
        and confidence of each.
    types, min_confidence, precision, batch_tokens: as in `TagOptions`.
    cache, process_group, engine, overwrite: as in `bertrelay.encode_dataset`.
    Killed and called again, it resumes. Raises as `encode_dataset` does.
    """
    import pyarrow as pa

    from bertrelay.inference.run_model import add_columns

    options = settings_of(TagOptions, locals())
    kinds = {"start": pa.int32(), "end": pa.int32(), "type": pa.string(), "text": pa.string()}
    entity = pa.struct([*kinds.items(), ("confidence", pa.float64())])
    return add_columns(
        model,
        source,
        output,
        [column],
        [pa.field("entities", pa.list_(entity))],
        partial(_load_tagger, column, options),
        keep=keep,
        precision=options.precision,
        description="tagging",
        cache=cache,
        process_group=process_group,
        engine=engine,
        overwrite=overwrite,
        decisive=_decisive(options),
    )


def _load_tagger(column: str, options: TagOptions, folder: Path, precision: ComputePrecision) -> "Columns":
    from domain.biomedical.ner.predict import EntityTagger

    tagger = EntityTagger.load(folder)
    _check_known(options.types, tagger.model.labels.types)

    def columns(block: "pa.Table") -> dict[str, list[Any]]:
        rows = (Document(str(number), text) for number, text in enumerate(block[column].to_pylist()))
        documents = tagger.tag_documents(
            rows,
            precision=precision,
            batch_tokens=options.batch_tokens,
            types=options.types,
            min_confidence=options.min_confidence,
        )
        return {"entities": [list(map(asdict, _rounded(document).entities)) for document in documents]}

    return columns


def run(settings: TagSettings, context: StageContext) -> Metrics:
    """The stage `domain.ner-tag`: writes documents and their entities to `entities`, with the suffix of the format."""
    suffix = "" if settings.output == "brat" else FORMATS[settings.output].suffixes[0]
    options = settings.model_dump(include=set(TagOptions.model_fields))
    options |= {"with_text": settings.with_text or not context.sensitive}
    with connect(context.engine, context.process_group) as executor:
        options |= {"precision": context.precision(settings.precision, executor)}
        tagged = tag_file(
            settings.model,
            settings.documents,
            context.output / f"entities{suffix}",
            source_format=settings.format,
            output_format=settings.output,
            repeated_ids=settings.repeated_ids,
            keep=settings.keep,
            cache=context.cache,
            process_group=context.process_group,
            engine=context.engine,
            overwrite=True,
            **options,
        )
    entities = {f"entities/{kind}": count for kind, count in tagged.entities.items()}
    return {name: value for name, value in tagged._asdict().items() if name != "entities"} | entities
