"""Fields of MIMIC's tables as what their columns hold: ids in one form, times and days, text."""

from typing import TYPE_CHECKING

from domain.clinical.ids import canonical_ids

if TYPE_CHECKING:
    import pyarrow as pa

IDS = ("subject_id", "hadm_id")
NUMBERS = ("hospital_expire_flag", "iserror", "icd_version", "seq_num", "anchor_age", "anchor_year")
"""Which may have been through floats as well, and are given as text in the same form."""
TIMES = ("admittime", "dischtime", "deathtime", "charttime", "storetime")
DAYS = ("chartdate", "dob", "dod")
TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
MIDNIGHT = " 00:00:00"


def parsed(name: str, raw: "pa.Array") -> "tuple[pa.Array, str]":
    """A column as what it is by its name, null where that fails; and what to call the failure."""
    import pyarrow.compute as pc

    text = _decoded(raw)
    if name in TIMES:
        return _times(text), f"{name} is no time YYYY-MM-DD HH:MM:SS"
    if name in DAYS:
        is_day = pc.equal(pc.utf8_length(text), 10)
        midnights = pc.if_else(is_day, pc.binary_join_element_wise(text, MIDNIGHT, ""), text)
        return pc.floor_temporal(_times(midnights), unit="day"), f"{name} is no date YYYY-MM-DD"
    if name in IDS + NUMBERS:
        text = pc.if_else(pc.is_null(text), text, canonical_ids(text))
    return text, f"{name} is not valid UTF-8"


def _times(text: "pa.Array") -> "pa.Array":
    """Timestamps to the second; null for what is not written exactly so. strptime alone takes 30 February for March."""
    import pyarrow.compute as pc

    written = pc.if_else(pc.match_substring_regex(text, TIME), text, None)
    times = pc.strptime(written, TIME_FORMAT, "s", error_is_null=True)
    day = pc.utf8_slice_codeunits(written, 8, 10).cast("int64")
    return pc.if_else(pc.equal(pc.day(times), day), times, None)


def _decoded(raw: "pa.Array") -> "pa.Array":
    """Text of bytes; null where they are not UTF-8."""
    import pyarrow as pa

    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in raw.to_pylist()], pa.string())


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
