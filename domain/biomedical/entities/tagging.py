"""The entities of many documents, from a file of one format to a file of another, in blocks that survive a kill."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bertrelay.backbone import model_folder
from bertrelay.data.records import Rejects
from bertrelay.distributed import check_shared, from_main, wait_for_all
from bertrelay.files import output_lock
from bertrelay.fingerprint import Digests, fingerprint
from bertrelay.hardware import default_device, resolve_precision
from bertrelay.parts import Parts, Stretch, fill, taken
from bertrelay.privacy import check_page
from bertrelay.stage import Metrics, ProcessGroup, StageContext
from domain.biomedical.annotations import Document
from domain.biomedical.entities.tag_files import (
    BLOCK_CHARACTERS,
    Source,
    Survey,
    check_output,
    check_types,
    put_together,
    survey,
    tagged_documents,
)
from domain.biomedical.entities.tag_settings import TagSettings
from domain.biomedical.entities.tagger import EntityTagger
from domain.biomedical.formats import jsonl
from domain.biomedical.formats.front import FormatName

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

    source_format, output_format: found by the names when not given (`domain.biomedical.formats.FORMATS`).
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
    tagger: EntityTagger,
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
    rounded = (entity._replace(confidence=round(entity.confidence or 0.0, DIGITS)) for entity in document.entities)
    return replace(document, entities=tuple(rounded))


def _count(parts: Parts[Stretch]) -> dict[str, int]:
    """The entities of all documents by type, the most frequent first."""
    counts = Counter(entity.type for document in tagged_documents(parts) for entity in document.entities)
    return dict(counts.most_common())
