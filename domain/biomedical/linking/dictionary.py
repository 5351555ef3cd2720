"""Terminologies: concepts with their names, from lines `id||name|name`, OBO, MeSH's XML, MRCONSO.RRF and tables."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.data.readers import line_rows, open_input, refuse_damaged
from bertrelay.data.records import Rejects, rows
from bertrelay.data.tables import Rejected, Table, inner_suffix
from bertrelay.errors import RequestError
from domain.biomedical.linking.names import normalized
from domain.biomedical.linking.settings import DictionaryFormat, DictionarySource
from domain.reading import usable

SUFFIXES: dict[str, DictionaryFormat] = {
    ".csv": "table",
    ".tsv": "table",
    ".jsonl": "table",
    ".parquet": "table",
    ".txt": "terms",
    ".obo": "obo",
    ".xml": "mesh",
    ".rrf": "rrf",
}
NO_IDENTIFIER, NO_NAME = "without an identifier", "without a name"
OBSOLETE, SUPPRESSED, OTHER_LANGUAGE = "obsolete", "suppressed by UMLS", "a name in another language"
OBO_SYNONYM = re.compile(r'"((?:[^"\\]|\\.)*)"')
OBO_ESCAPE = re.compile(r"\\(.)")
RRF_LANGUAGE, RRF_NAME, RRF_SUPPRESSED, RRF_FIELDS = 1, 14, 16, 17
MESH_RECORDS = {"DescriptorRecord": "DescriptorUI", "SupplementalRecord": "SupplementalRecordUI"}


class Concept(NamedTuple):
    """A concept of a terminology.

    identifiers: the one that links have, then others of the same concept. names: the preferred one first.
    file, line: its place.
    """

    identifiers: tuple[str, ...]
    names: tuple[str, ...]
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Dictionary:
    """The concepts and names of a linker.

    identifiers: of each concept. names: normalized, those of a concept distinct. concepts: the position of the concept
    of each name, (names,). is_preferred: true for the first name of a concept, (names,).
    """

    identifiers: Sequence[tuple[str, ...]]
    names: Sequence[str]
    concepts: NDArray[np.int64]
    is_preferred: NDArray[np.bool_]

    @classmethod
    def of(cls, concepts: Iterable[Concept], ignored_prefixes: Sequence[str] = ()) -> "Dictionary":
        """Joins concepts of the same identifier; names come in the order in which they are first met."""
        position: dict[str, int] = {}
        identifiers: list[tuple[str, ...]] = []
        names: list[dict[str, None]] = []
        for concept in concepts:
            plain = [without_prefix(identifier, ignored_prefixes) for identifier in concept.identifiers]
            at = position.get(plain[0], len(identifiers))
            if at == len(identifiers):
                identifiers.append(concept.identifiers)
                names.append({})
            for identifier in plain:
                position.setdefault(identifier, at)
            names[at].update(dict.fromkeys(filter(None, map(normalized, concept.names))))
        counts = [len(listed) for listed in names]
        firsts = np.cumsum([0, *counts[:-1]])[np.array(counts) > 0]
        is_preferred = np.zeros(sum(counts), bool)
        is_preferred[firsts] = True
        flat = [name for listed in names for name in listed]
        return cls(identifiers, flat, np.repeat(np.arange(len(counts)), counts), is_preferred)


def without_prefix(identifier: str, prefixes: Sequence[str]) -> str:
    """The identifier without the first of `prefixes` that it begins with, in either case."""
    stripped = identifier.strip()
    prefix = next((prefix for prefix in prefixes if stripped.lower().startswith(prefix.lower())), "")
    return stripped[len(prefix) :]


def read_dictionary(
    sources: Sequence[DictionarySource], rejects: Rejects | None = None, cache: Cache | None = None
) -> Iterator[Concept]:
    """Streams the concepts of `sources`; what is obsolete or in other languages is counted in the log.

    Raises RequestError for a file that is missing, damaged, or has no concept, and at the first unusable record unless
    `rejects` counts them.
    """
    for source in sources:
        read = READERS[source.format or format_of(source.path)]
        count = 0
        for concept in usable(read(source, cache), rejects, f"{source.path}: left out", source.path):
            count += 1
            yield concept
        if not count:
            raise RequestError(f"{source.path}: expected concepts with names, found none. Check `format` and the file.")


def format_of(path: str | Path) -> DictionaryFormat:
    """The format of a dictionary by the suffix of its name. Raises RequestError for an unknown one."""
    suffix = inner_suffix(path)
    if suffix not in SUFFIXES:
        expected = ", ".join(SUFFIXES)
        raise RequestError(f"{path}: expected a file of {expected}, found {suffix or 'no suffix'}. Give its `format`.")
    return SUFFIXES[suffix]


Items = Iterator[Concept | Rejected]


def _lines(source: DictionarySource) -> Iterator[tuple[int, str | Rejected]]:
    """Yields number and text of each line that is not blank."""
    for row in line_rows(Table(path=source.path, format="lines"), [0]):
        if isinstance(row, Rejected):
            yield row.line, row
        elif row.values[0] is not None:
            yield row.line, row.values[0]


def _concept(identifiers: Iterable[str], names: Iterable[str], file: str, line: int) -> Concept | Rejected:
    concept = Concept(_distinct(identifiers), _distinct(names), file, line)
    if not concept.identifiers or not concept.names:
        return Rejected(NO_NAME if concept.identifiers else NO_IDENTIFIER, file=file, line=line)
    return concept


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, map(str.strip, texts))))


def _terms(source: DictionarySource, cache: Cache | None = None) -> Items:  # noqa: ARG001 (as every reader)
    """`D001249|C1||Ataxia|Ataxy`: identifiers before two bars, names behind them."""
    for number, line in _lines(source):
        if isinstance(line, Rejected):
            yield line
            continue
        identifiers, bars, names = line.partition("||")
        if bars:
            yield _concept(identifiers.split("|"), names.split("|"), source.path, number)
        else:
            yield Rejected("without `||` between identifiers and names", file=source.path, line=number)


def _obo(source: DictionarySource, cache: Cache | None = None) -> Items:  # noqa: ARG001
    """The `[Term]` stanzas of an ontology: `id`, `alt_id`, `name`, `synonym`."""
    tags: list[tuple[str, str]] = []
    first, is_term = 0, False
    for number, line in _lines(source):
        if isinstance(line, Rejected):
            yield line
        elif line.startswith("["):
            yield from _obo_term(tags, source.path, first) if is_term else ()
            tags, first, is_term = [], number, line.strip() == "[Term]"
        else:
            tag, _, value = line.partition(":")
            tags.append((tag.strip(), value.strip()))
    yield from _obo_term(tags, source.path, first) if is_term else ()


def _obo_term(tags: Sequence[tuple[str, str]], file: str, line: int) -> Items:
    if ("is_obsolete", "true") in tags:
        yield Rejected(OBSOLETE, file=file, line=line, is_fault=False)
        return
    identifiers = [value for name in ("id", "alt_id") for tag, value in tags if tag == name]
    names = [value for tag, value in tags if tag == "name"]
    quoted = (OBO_SYNONYM.match(value) for tag, value in tags if tag == "synonym")
    names += [OBO_ESCAPE.sub(r"\1", match[1]) for match in quoted if match]
    yield _concept(identifiers, names, file, line)


def _rrf(source: DictionarySource, cache: Cache | None = None) -> Items:  # noqa: ARG001
    """Lines of MRCONSO.RRF, a name in a line, whose concept is its CUI."""
    for number, line in _lines(source):
        if isinstance(line, Rejected):
            yield line
            continue
        fields = line.split("|")
        if len(fields) < RRF_FIELDS:
            detail = f"expected {RRF_FIELDS} fields or more between bars, found {len(fields)}"
            yield Rejected("a line that is none of MRCONSO.RRF", detail, source.path, number)
        elif source.languages and fields[RRF_LANGUAGE] not in source.languages:
            yield Rejected(OTHER_LANGUAGE, file=source.path, line=number, is_fault=False)
        elif fields[RRF_SUPPRESSED] not in ("", "N"):
            yield Rejected(SUPPRESSED, file=source.path, line=number, is_fault=False)
        else:
            yield _concept([fields[0]], [fields[RRF_NAME]], source.path, number)


def _mesh(source: DictionarySource, cache: Cache | None = None) -> Items:  # noqa: ARG001
    """Descriptors or supplementary records of MeSH; memory holds one. `line` is the number of the record."""
    number = 0
    with refuse_damaged(source.path), open_input(source.path) as stream:
        try:
            for _, record in ElementTree.iterparse(stream):
                if identifier := MESH_RECORDS.get(record.tag):
                    number += 1
                    names = (string.text or "" for string in record.iterfind(".//TermList/Term/String"))
                    yield _concept([record.findtext(identifier, "")], names, source.path, number)
                    record.clear()
        except ElementTree.ParseError as error:
            raise RequestError(f"{source.path} is no XML, or cut off ({error}). Fetch it again.") from None


def _table(source: DictionarySource, cache: Cache | None = None) -> Items:
    """Rows of identifier and name; an identifier may hold several between bars."""
    for row in rows(Table(path=source.path), source.columns, cache):
        if isinstance(row, Rejected):
            yield row
        else:
            identifier, name = ("" if value is None else str(value) for value in row.values)
            yield _concept(identifier.split("|"), [name], row.file, row.line)


READERS: dict[DictionaryFormat, Callable[[DictionarySource, Cache | None], Items]] = {
    "table": _table,
    "terms": _terms,
    "obo": _obo,
    "mesh": _mesh,
    "rrf": _rrf,
}
