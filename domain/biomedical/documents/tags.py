"""Tags of tokens: the schemes IOB2 and IOBES, what is legal in them, and the spans they represent.

IOB1 and BILOU, in which files may be, are rewritten to these two.
A tag is `O`, or a prefix and a type: `B-Disease`. Files with one type may leave it out (`B`, `I`): it is then empty.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import Literal, NamedTuple

Scheme = Literal["IOB2", "IOBES"]
FileScheme = Literal["IOB2", "IOBES", "IOB1", "BILOU"]
SCHEMES: tuple[FileScheme, ...] = ("IOB2", "IOBES", "BILOU", "IOB1")
NORMALIZED_SCHEME: dict[FileScheme, Scheme] = {"IOB2": "IOB2", "IOB1": "IOB2", "IOBES": "IOBES", "BILOU": "IOBES"}
OF_BILOU = {"L": "E", "U": "S"}

OUTSIDE = "O"
PREFIXES: dict[FileScheme, str] = {"IOB2": "BI", "IOBES": "BIES", "IOB1": "BI", "BILOU": "BILU"}
OPENING = {"B", "S"}
"""Prefixes that begin an entity; `I` and `E` continue one."""


class TokenSpan(NamedTuple):
    """An entity as tokens: from `start` to before `end`."""

    start: int
    end: int
    type: str


def split_tag(tag: str) -> tuple[str, str]:
    """Prefix and type: `("B", "Disease")`, and `("O", "")` for a token outside."""
    prefix, _, entity_type = tag.partition("-")
    return prefix, entity_type


def join_tag(prefix: str, entity_type: str) -> str:
    """The tag of a prefix and a type, which may be empty."""
    return f"{prefix}-{entity_type}" if entity_type else prefix


def is_tag(tag: str, scheme: FileScheme) -> bool:
    prefix, dash, entity_type = tag.partition("-")
    return tag == OUTSIDE or (len(prefix) == 1 and prefix in PREFIXES[scheme] and bool(dash) == bool(entity_type))


def has_stray_space(tag: str) -> bool:
    """True if there is white space around a tag or its type."""
    return any(part != part.strip() for part in (tag, *split_tag(tag)))


def labels(types: Iterable[str], scheme: Scheme = "IOB2") -> list[str]:
    """`O`, and the tags of each type in the order of `types`."""
    return [OUTSIDE, *(join_tag(prefix, name) for name in types for prefix in PREFIXES[scheme])]


def follows(tag: str, previous: str, scheme: Scheme = "IOB2") -> bool:
    """True if `tag` may follow `previous`; `O` also represents the beginning and the end of a sentence.

    In IOB2 `I-X` follows `B-X` and `I-X`, but neither `O` nor `B-Y`; in IOBES only `I-X` and `E-X` follow `B-X`.
    """
    prefix, entity_type = split_tag(tag)
    before, type_before = split_tag(previous)
    is_open = before in ("B", "I")
    if prefix in ("I", "E"):
        return is_open and type_before == entity_type
    return scheme == "IOB2" or not is_open


def illegal_positions(tags: Sequence[str], scheme: Scheme = "IOB2") -> list[int]:
    """Positions of the tags that may not follow the one before: `O I-X B-X I-Y` has [1, 3].

    An entity that is open at the end of the sentence (IOBES) counts at the last tag.
    """
    illegal = [at for at, (before, tag) in enumerate(pairwise([OUTSIDE, *tags])) if not follows(tag, before, scheme)]
    is_open = bool(tags) and not follows(OUTSIDE, tags[-1], scheme)
    return sorted({*illegal, len(tags) - 1}) if is_open else illegal


def spans_of(tags: Sequence[str], scheme: Scheme = "IOB2") -> list[TokenSpan]:
    """The entities of `tags`, strictly: they begin, and in IOBES end, as the scheme says.

    An illegal sequence has only its whole entities: `O I-X` has none, `B-X I-Y` one of type X.
    """
    spans: list[TokenSpan] = []
    start: int | None = None
    for at, tag in enumerate([*tags, OUTSIDE]):
        prefix, entity_type = split_tag(tag)
        continues = start is not None and prefix in ("I", "E") and entity_type == split_tag(tags[start])[1]
        if start is not None and not continues:
            if scheme == "IOB2":
                spans.append(TokenSpan(start, at, split_tag(tags[start])[1]))
            start = None
        if prefix == "S" or (continues and prefix == "E"):
            spans.append(TokenSpan(at if start is None else start, at + 1, entity_type))
            start = None
        elif prefix == "B":
            start = at
    return spans


def unopened_spans(tags: Sequence[str]) -> list[TokenSpan]:
    """The entities of IOB2 tags that begin with an `I`, which is illegal: `O I-X I-X` has one, tokens 1 to 3.

    seqeval counts them by default, and conlleval did; strict scores do not. Together with `spans_of` they cover every
    tag but `O`.
    """
    opened = normalize_tags(tags, "IOB1")
    return [span for span in spans_of(opened) if opened[span.start] != tags[span.start]]


def prefixes(length: int, scheme: Scheme = "IOB2") -> str:
    """The prefixes of an entity of `length` tokens: of three `BII`, or `BIE` in IOBES; of one `B`, or `S` in IOBES."""
    if scheme == "IOB2":
        return "B" + "I" * (length - 1)
    return "S" if length == 1 else "B" + "I" * (length - 2) + "E"


def tags_of(
    spans: Iterable[TokenSpan], length: int, scheme: Scheme = "IOB2", unopened: Iterable[TokenSpan] = ()
) -> list[str]:
    """The tags of `length` tokens that represent `spans`. unopened: entities whose tags are all `I`.

    Raises ValueError for spans that overlap, are empty, or reach beyond the tokens.
    """
    tags = [OUTSIDE] * length
    for start, end, entity_type in spans:
        if not 0 <= start < end <= length or tags[start:end] != [OUTSIDE] * (end - start):
            raise ValueError(f"tokens {start} to {end} of {length} are no span of their own")
        tags[start:end] = [join_tag(prefix, entity_type) for prefix in prefixes(end - start, scheme)]
    for start, end, entity_type in unopened:
        tags[start:end] = [join_tag("I", entity_type)] * (end - start)
    return tags


def scheme_of_tags(tags: Iterable[str]) -> FileScheme:
    """The scheme with the fewest illegal tags in a file: tags of all sentences, with an `O` between two sentences.

    Of several the first in the order of `SCHEMES`. `O I-X B-X` is IOB1, `B-X L-X` BILOU, `B-X I-X` IOB2.
    """
    valid_tags = (tag if is_tag(tag, "BILOU") or is_tag(tag, "IOBES") else "" for tag in tags)
    pairs = Counter(pairwise(chain([OUTSIDE], valid_tags, [OUTSIDE])))
    return min(
        SCHEMES,
        key=lambda scheme: sum(count for pair, count in pairs.items() if not _is_legal_in_file(*pair, scheme)),
    )


def _is_legal_in_file(before: str, tag: str, scheme: FileScheme) -> bool:
    """True if the scheme of a file has `tag` and allows it after `before`; IOB1 has B only between equal types."""
    if not is_tag(tag, scheme):
        return False
    before = before if is_tag(before, scheme) else OUTSIDE
    if scheme == "IOB1":
        prefix, entity_type = split_tag(tag)
        return prefix != "B" or (before != OUTSIDE and split_tag(before)[1] == entity_type)
    first, second = normalize_tags([before, tag], scheme)
    return follows(second, first, NORMALIZED_SCHEME[scheme])


def normalize_tags(tags: Sequence[str], scheme: FileScheme) -> tuple[str, ...]:
    """The tags of a file in `NORMALIZED_SCHEME[scheme]`; illegal ones stay illegal."""
    if scheme == "IOB1":
        pairs = zip(tags, [OUTSIDE, *tags], strict=False)
        return tuple(tag.replace("I", "B", 1) if _begins_with_i(tag, before) else tag for tag, before in pairs)
    if scheme == "BILOU":
        return tuple(join_tag(OF_BILOU.get(prefix, prefix), name) for prefix, name in map(split_tag, tags))
    return tuple(tags)


def _begins_with_i(tag: str, before: str) -> bool:
    """True if `tag` is an `I` that begins an entity: the tag before it is of no entity or of another type."""
    prefix, entity_type = split_tag(tag)
    return prefix == "I" and (before == OUTSIDE or split_tag(before)[1] != entity_type)
