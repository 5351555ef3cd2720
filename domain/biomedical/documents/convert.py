"""Conversion of annotated documents from one format to another, with the number of what is lost on the way."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bertrelay.data.records import Rejects
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from bertrelay.files import check_location
from bertrelay.privacy import check_page
from domain.biomedical.documents.document import Document, Item, Reading, RepeatedIds
from domain.biomedical.documents.formats import FormatName, check_written, document_items, writer_of, writing
from domain.biomedical.documents.losses import Counts
from domain.reading import usable


class Converted(NamedTuple):
    """Counts of `convert_file`.

    documents, entities, relations: written ones.
    left_out: what was not read or could not be held, by kind, the most frequent first.
    rejected: documents that could not be read. refused: documents that the output cannot hold.
    """

    documents: int
    entities: int
    relations: int
    left_out: dict[str, int]
    rejected: int
    refused: int


def convert_file(
    source: str | Path,
    output: str | Path,
    *,
    source_format: FormatName | None = None,
    output_format: FormatName | None = None,
    repeated_ids: RepeatedIds = "error",
    drop_misplaced: bool = False,
    max_rejects: float = 0.01,
    with_text: bool = False,
    overwrite: bool = False,
) -> Converted:
    """Writes the documents of `source` to `output`, with all of each that the format of `output` can hold.

    source_format, output_format: by the names of the files when None (docs/formats.md).
    repeated_ids: `passages` reads records of PubTator with one id, one after the other, as passages of a document.
    drop_misplaced: leave out, and count, an entity at wrong offsets in place of its document.
    max_rejects: fraction of documents that may be unusable, and that the output may be unable to hold. They are listed
        in `OUTPUT.rejects.jsonl` and `OUTPUT.refused.jsonl`.
    with_text: allow a page of sensitive documents, as it shows their text.
    overwrite: replace an existing file, which is an error otherwise; a folder must be empty or new.
    Raises RequestError for an unusable input or output, and WorkError for too many such documents; nothing is then
    written.
    """
    source, output = Path(source), Path(output)
    name = check_written(output, output_format)
    check_location(output, source, overwrite=overwrite)
    if name == "html":
        check_page(with_text)
    reading = Reading(misplaced="drop" if drop_misplaced else "reject", repeated_ids=repeated_ids)
    items = document_items(source, source_format, reading=reading)
    rejects, refused = (
        Rejects(output.with_name(f"{output.name}.{what}.jsonl"), max_rejects, keep_empty=False)
        for what in ("rejects", "refused")
    )
    fit, left_out, written = writer_of(name).fit, Counts(), Counter[str]()
    with writing(output, name, refused) as write, refused, rejects:
        for document in usable(_without_left_out(items, left_out), rejects, None, source):
            lost, before = Counts(), refused.counts.total()
            held = fit(document, lost)
            write(held)
            if refused.counts.total() == before:
                left_out.update(lost)
                written.update(documents=1, entities=len(held.entities), relations=len(held.relations))
        if not written and not refused.counts and not rejects.counts:
            raise RequestError(f"{source} holds no documents. Check that it is the right one and complete.")
    return Converted(
        written["documents"],
        written["entities"],
        written["relations"],
        {kind: count for kind, count in left_out.most_common() if count},
        rejects.counts.total(),
        refused.counts.total(),
    )


def _without_left_out(items: Iterable[Item], left_out: Counts) -> Iterator[Document | Rejected]:
    """Yields documents and faults; counts what is left out of the documents."""
    for item in items:
        if isinstance(item, Rejected) and not item.is_fault:
            left_out[item.reason] += 1
        else:
            yield item
