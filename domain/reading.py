"""Records that readers give, those that are rejected, and ids: of texts, annotated documents and questions alike."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertrelay.data.encodings import remedy
from bertrelay.data.records import ROUNDED_ID, Rejects, is_rounded
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from bertrelay.privacy import WITHHELD, is_sensitive
from bertrelay.progress import log

NO_TEXT = "without text"
MAX_LINES = 1 << 40  # of a file

AnyRecord = TypeVar("AnyRecord")
"""A document, a sentence or a question."""


class TextDocument(NamedTuple):
    """A text with its paragraphs in lines, and its origin; unknown is empty.

    id: of the document, such as PubMed's number. group: such as a patient's number.
    """

    text: str
    id: str = ""
    group: str = ""


TextItem = TextDocument | Rejected
"""One document of a source."""


def usable(
    items: Iterable[AnyRecord | Rejected],
    rejects: Rejects | None = None,
    log_as: str | None = "left out",
    source: Path | str = "",
) -> Iterator[AnyRecord]:
    """Yields the records among the items; `rejects` counts these and the faults.

    Without `rejects` the first fault raises RequestError.
    log_as: title of the message that counts what is no fault, by reason; None for no message.
    source: the folder or file of all items, by which rejects are counted: a folder may have a file for each.
    """
    left_out = Counter[str]()
    for item in items:
        if not isinstance(item, Rejected):
            if rejects is not None:
                rejects.used()
            yield item
        elif not item.is_fault:
            left_out[item.reason] += 1
        elif rejects is None:
            raise RequestError(f"{item}. {remedy(item, 'record')}")
        else:
            rejects.add(item.file, item.line, item.reason, item.record, item.detail, str(source))
    if left_out and log_as:
        log(f"{log_as}: " + ", ".join(f"{count:,} × {reason}" for reason, count in left_out.most_common()))


def with_distinct_ids(
    items: Iterable[AnyRecord | Rejected], reason: str, advice: str = "give each one of its own"
) -> Iterator[AnyRecord | Rejected]:
    """Yields the items; a record with the id of an earlier one, or with a rounded id, becomes a fault.

    reason, advice: of the fault of a repeated id.
    Memory has 150 bytes of each record. Where ids are withheld, faults go by their number in their file.
    """
    first_places: dict[int, int] = {}  # hash of an id to the file's number and the line
    files, number = list[str](), 0
    for item in items:
        record: Any = item
        is_rejected = isinstance(item, Rejected)
        if is_rejected and not record.is_fault:
            yield item
            continue
        if files[-1:] != [record.file]:
            files.append(record.file)
            number = 0
        number += 1
        if is_rejected:
            fault = record
        elif is_rounded(record.id):
            fault = Rejected(ROUNDED_ID).at(record.file, record.line, shown_id(record.id))
        elif (first := first_places.get(hash(record.id))) is not None:
            file, line = files[first // MAX_LINES], first % MAX_LINES
            detail = f"the first with it is in {file}, line {line:,}; {advice}"
            fault = Rejected(reason, detail).at(record.file, record.line, shown_id(record.id))
        else:
            first_places[hash(record.id)] = (len(files) - 1) * MAX_LINES + record.line
            yield item
            continue
        yield fault.at(fault.file, fault.line, f"{number:,}") if fault.record == WITHHELD else fault


def count_reasons(faults: Sequence[Rejected]) -> str:
    """`2 × an empty id; the first is a.tsv, line 3; …`, by frequency."""
    first = {fault.reason: fault for fault in reversed(faults)}
    counts = Counter(fault.reason for fault in faults).most_common()
    return "; ".join(
        f"{count:,} × {reason}; the first is {first[reason].place}{first[reason].note}" for reason, count in counts
    )


def shown_id(value: object) -> str:
    """An id as errors and rejects, which are UTF-8, show it; empty for what is no id, withheld in sensitive data."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return ""
    return WITHHELD if is_sensitive() else str(value)[:80].encode(errors="replace").decode()
