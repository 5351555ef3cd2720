"""Columns that seem to be taken for one another, found before the work: labels that are texts, numbers as texts."""

from bertrelay.errors import RequestError
from bertrelay.progress import log

FEWEST = 20
"""Of fewer records, or with fewer different labels, nothing is concluded."""
MAX_SWAPPED = 0.2
"""Of the records, where no setting says otherwise."""


def check_swapped(name: str, count: int, records: int, what: str, limit: float) -> None:
    """Logs how many of the records look as `what` says; raises RequestError where more than `limit` of them do."""
    if not count or records < FEWEST:
        return
    found = f"{count:,} of {records:,} ({count / records:.1%}) {what}"
    if count > limit * records:
        raise RequestError(
            f"{name}: {found}. The columns seem to be swapped: name each by what it has. For data that is right as it "
            f"is, raise max_swapped, now {limit:g}."
        )
    log(f"{name}: {found}")


def check_labels(name: str, labels: int, records: int, limit: float) -> None:
    """Raises RequestError where so many different labels are in the records that they seem to be texts."""
    if labels >= FEWEST and labels > limit * records:
        check_swapped(name, labels, records, "labels differ from all others", limit)


def has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))
