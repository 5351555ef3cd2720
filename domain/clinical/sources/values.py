"""Values of a hospital's own table: times in many forms, and meanings by a map."""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, NamedTuple, NoReturn
from zoneinfo import ZoneInfo

import pandas as pd

from bertrelay.data.records import MISSING_WORDS, is_missing
from bertrelay.errors import RequestError
from domain.clinical.sources.form import Count
from domain.clinical.sources.settings import NO_ADMISSION, HospitalSource, Values, pattern_of, plain

ISO = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)(?:[ T](?P<time>\d\d:\d\d(?::\d\d)?)(?:[.,]\d+)?(?P<offset>Z|[+-]\d\d:?\d\d)?)?", re.ASCII
)
STAMPS = {"start": time(0, 0, 0), "end": time(23, 59, 59)}
HAS_TIME = re.compile(r"%[HIcXTMS]")
SHOWN_FROM = 10
"""Subjects of a value, from which on it is shown: a rare one might be an identifier or a text."""
VALUES_SHOWN = 20
EMPTY = "(empty)"
NO_TIME = "no time or date in the form of the source"
WITH_OFFSET = "a time with an offset from UTC, and the source has no zone"
FIRST_YEAR, LAST_YEAR = 1800, 2261


class Times(NamedTuple):
    """Times of a column to the second; by_day: those that are only a date, at its beginning; faults: empty without."""

    times: "pd.Series[pd.Timestamp]"
    by_day: "pd.Series[bool]"
    faults: "pd.Series[str]"


def times_of(values: pd.Series, source: HospitalSource) -> Times:
    """Reads the times of a column, text or of a Parquet file's types; missing ones are null.

    With `date_only` "start" and no zone:

        2024-03-05 14:30        14:30 of that day
        2024-03-05              the day alone
        2024-03-05T00:00:00     the day alone
        05.03.2024              a fault
    """
    zone = ZoneInfo(source.zone) if source.zone else None
    stamp = STAMPS.get(source.date_only or "")
    rows = [_time(value, source.time_formats, zone, stamp) for value in values]
    times = pd.Series([row[0] for row in rows], values.index, dtype="datetime64[s]")
    return Times(
        times,
        pd.Series([row[1] for row in rows], values.index, dtype=bool),
        pd.Series([row[2] for row in rows], values.index, dtype=object),
    )


def _time(
    value: object, formats: list[str], zone: ZoneInfo | None, stamp: time | None
) -> tuple[datetime | None, bool, str]:
    """Reads one time: the time, whether it is only a date, and the fault."""
    if is_missing(value) or (isinstance(value, str) and value.strip() in {"", *MISSING_WORDS}):
        return None, False, ""
    if isinstance(value, datetime):
        at, is_date = value, False
    elif isinstance(value, date):
        at, is_date = datetime(value.year, value.month, value.day), True
    elif isinstance(value, str):
        parsed = _parsed(value.strip(), formats)
        if parsed is None:
            return None, False, NO_TIME
        at, is_date = parsed
    else:
        return None, False, NO_TIME
    if at.tzinfo is not None and zone is None:
        return None, False, WITH_OFFSET
    if at.tzinfo is not None:
        at = at.astimezone(zone).replace(tzinfo=None)
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        return None, False, "a time before 1800 or after 2261"
    at = at.replace(microsecond=0)
    if is_date or at.time() == stamp:
        return datetime.combine(at.date(), time()), True, ""
    return at, False, ""


def _parsed(text: str, formats: list[str]) -> tuple[datetime, bool] | None:
    """Parses a time by ISO 8601 or by the formats; also returns whether it is only a date. None for another form."""
    try:
        if not formats:
            iso = ISO.fullmatch(text)
            at = f"{iso['day']}T{iso['time'] or '00:00'}{iso['offset'] or ''}" if iso else ""
            return (datetime.fromisoformat(at), iso["time"] is None) if iso else None
    except ValueError:
        return None
    for form in formats:
        try:
            return datetime.strptime(text, form), HAS_TIME.search(form) is None
        except ValueError:
            continue
    return None


def candidates(value: object) -> tuple[str, ...]:
    """The values of which one may have a meaning, in upper case: of a tuple those that are not missing."""
    values = value if isinstance(value, tuple) else (value,)
    texts = ("" if is_missing(one) else str(one).strip().upper() for one in values)
    return tuple(text for text in texts if text not in {"", *MISSING_WORDS})


def shown_one(values: tuple[str, ...]) -> str | None:
    """The last of the candidates, the one that is shown; None without any."""
    return values[-1] if values else None


class Meanings:
    """The meaning of each value of a column by a map; None for one that is not mapped.

    Of several candidates the first that is named itself decides, then the first that a regular expression matches; but
    one that is named itself as `no_admission` decides before all.

    column: its name, for errors.
    """

    def __init__(self, groups: Mapping[str, Values], column: str) -> None:
        self._column = column
        self._exact = {plain(value): name for name, values in groups.items() for value in values}
        self._patterns = [
            (pattern, name) for name, values in groups.items() for value in values if (pattern := pattern_of(value))
        ]
        self._cache: dict[tuple[str, ...], str | None] = {}

    def look_up(self, values: "pd.Series[Any]") -> "pd.Series[Any]":
        """Looks up the meanings of a column of tuples of candidates.

        Raises RequestError for a value that regular expressions of two meanings match.
        """
        plain_values = values.map(lambda each: tuple(map(plain, each)) or ("",))
        meanings = {value: self._meaning(value) for value in set(plain_values)}
        return pd.Series([meanings[value] for value in plain_values], values.index, dtype=object)

    def _meaning(self, values: tuple[str, ...]) -> str | None:
        if values not in self._cache:
            exact = [self._exact[value] for value in values if value in self._exact]
            first = NO_ADMISSION if NO_ADMISSION in exact else next(iter(exact), None)
            self._cache[values] = first or next(filter(None, map(self._matching, values)), None)
        return self._cache[values]

    def _matching(self, value: str) -> str | None:
        matches = {name for pattern, name in self._patterns if pattern.search(value)}
        if len(matches) > 1:
            raise RequestError(
                f"map: expected one meaning of each value of {self._column}, found one that regular expressions of "
                f"{' and '.join(sorted(matches))} match. Name the value itself in one of them"
            )
        return next(iter(matches), None)


def count_unmapped(
    table: pd.DataFrame, column: str, meanings: "pd.Series[str]", limit: float, treatment: str, count: Count
) -> None:
    """Counts the rows whose value of `column` has no meaning, by value; rare values together.

    limit: the fraction of the rows that may have none. treatment: what such rows count as.
    Raises RequestError above it.
    """
    unmapped = table[meanings.isna()]
    if unmapped.empty:
        return
    values = unmapped[column].map(plain).replace("", EMPTY)
    listed = shown_values(values, unmapped["subject_id"])
    if len(unmapped) > limit * len(table):
        counts = [(repr(value), int((values == value).sum())) for value in listed]
        rare = int((~values.isin(listed)).sum())
        counts += [(f"values of fewer than {SHOWN_FROM} patients", rare)] if rare else []
        refuse_unmapped(column, counts, len(table), limit)
    for value in listed:
        count(f"of these, {column} {value!r} not in the map, {treatment}", unmapped[values == value])
    if not values.isin(listed).all():
        count(f"of these, a rare {column} not in the map, {treatment}", unmapped[~values.isin(listed)])


def shown_values(values: "pd.Series[str]", subjects: "pd.Series[str]") -> list[str]:
    """Lists the values of ten subjects or more, the commonest first; the others might identify someone."""
    of_subjects = subjects.groupby(values).nunique()
    frequent = of_subjects[of_subjects >= SHOWN_FROM].index
    counts = values[values.isin(frequent)].value_counts()
    return sorted(counts.index, key=lambda value: (-counts[value], value))[:VALUES_SHOWN]


def refuse_unmapped(column: str, counts: Sequence[tuple[str, int]], rows: int, limit: float) -> NoReturn:
    """Raises RequestError for the values without a meaning, with their counts among `rows` rows."""
    listed = ", ".join(f"{count:,} × {value}" for value, count in counts)
    raise RequestError(
        f"map: expected a meaning of each {column}, found none of {sum(count for _, count in counts):,} of {rows:,} "
        f"rows, more than the {limit:.2%} allowed: {listed}. Put these values under their meanings, or raise "
        "max_unmapped"
    )
