"""Sanity checks of training data: columns that seem to be swapped, and items of train in a held-out split."""

from collections.abc import Hashable, Iterable

from bertrelay.errors import RequestError
from bertrelay.progress import log

MIN_RECORDS = 20
"""With fewer records, or fewer distinct labels, nothing is concluded."""
MAX_SWAPPED = 0.2
"""Fraction of the records, where no setting gives another."""
MAX_LEAKED = 0.01
"""Fraction of the distinct items of a split; published corpora often have fewer."""


def count_leaked(train: Iterable[Hashable], held_out: Iterable[Hashable], split: str, items: str) -> int:
    """The number of distinct items of `held_out` that are in `train` too: a model knows them, so scores are too high.

    Logs it, with a warning where they are many.
    split: the name of `held_out`. items: the plural of an item, for the log.
    """
    distinct = set(held_out)
    leaked = len(distinct & set(train))
    if leaked:
        are_many = leaked > MAX_LEAKED * len(distinct)
        warning = "; so many that scores on them are too high: leave them out of train" if are_many else ""
        log(f"{split}: of {len(distinct):,} distinct {items}, {leaked:,} in train too{warning}")
    return leaked


def check_swapped(name: str, count: int, records: int, symptom: str, limit: float) -> None:
    """Logs that `count` of the records show the `symptom`; raises RequestError where the fraction is above `limit`."""
    if not count or records < MIN_RECORDS:
        return
    finding = f"{count:,} of {records:,} ({count / records:.1%}) {symptom}"
    if count > limit * records:
        raise RequestError(
            f"{name}: {finding}. The columns seem to be swapped: name each by what it has. For data that is right as "
            f"it is, raise max_swapped, now {limit:g}."
        )
    log(f"{name}: {finding}")


def check_labels(name: str, labels: int, records: int, limit: float) -> None:
    """Raises RequestError where the distinct labels are so many that they seem to be texts."""
    if labels >= MIN_RECORDS and labels > limit * records:
        check_swapped(name, labels, records, "labels differ from all others", limit)


def has_letter(text: str) -> bool:
    """True if a text is not only a number or punctuation."""
    return any(map(str.isalpha, text))
