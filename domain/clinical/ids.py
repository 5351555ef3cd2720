"""One form for identifiers: `100001`, `100001.0` and `" 100001 "` name the same admission, whatever a table holds."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def canonical_id(value: object) -> str:
    """`value` as text without white space and without the `.0` that a detour through floats leaves; None is empty."""
    if value is None or value != value:  # NaN, which only floats are, differs from itself
        return ""
    text = str(value).strip()
    whole, _, fraction = text.partition(".")
    return whole if whole.isdigit() and fraction and not fraction.strip("0") else text


def canonical_ids(column: "pa.Array | pa.ChunkedArray") -> "pa.Array | pa.ChunkedArray":
    """A column of text or numbers as `canonical_id` has it; what is missing is empty text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(column.type):  # as text a large one would have an exponent
        column = pc.if_else(pc.is_nan(column), None, column).cast(pa.int64())
    text = pc.utf8_trim_whitespace(pc.fill_null(column.cast(pa.string()), ""))
    return pc.replace_substring_regex(text, r"^(\d+)\.0+$", r"\1")
