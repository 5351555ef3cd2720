"""CoNLL: a token and its tag in each line, a tab between them, a blank line between sentences.

Other columns are ignored. `-DOCSTART-` lines, and JNLPBA's `###MEDLINE:`, begin documents; in a file without them every
sentence is one. A line `# …` without a tab is a comment, and ends a sentence as a blank line does. The text of a
document is its tokens with a space between them and a line break between sentences, as it has no white space.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby
from os import SEEK_END
from pathlib import Path
from typing import NamedTuple

from bertrelay.data.readers import open_input
from bertrelay.data.tables import Record, Rejected, Row
from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.biomedical.documents.document import (
    ANNOTATED,
    NAME_FORMAT,
    Document,
    Entity,
    Item,
    Reading,
    Span,
    numbered_lines,
    sentences_of,
)
from domain.biomedical.documents.losses import (
    Counts,
    keep_entities,
    remove_overlaps,
    remove_parts,
    remove_relations,
)
from domain.biomedical.documents.soundness import DISCONTINUOUS, NO_TYPE, STRAY_SPACE, check_contiguous
from domain.biomedical.documents.tags import (
    NORMALIZED_SCHEME,
    OUTSIDE,
    PREFIXES,
    FileScheme,
    Scheme,
    TokenSpan,
    has_stray_space,
    illegal_positions,
    is_tag,
    normalize_tags,
    scheme_of_tags,
    spans_of,
    split_tag,
    tags_of,
    unopened_spans,
)
from domain.biomedical.documents.writing import Writer

DOCUMENT_START, OF_JNLPBA = "-DOCSTART-", "###MEDLINE:"
COMMENT = re.compile(r"# [^\t]+")
CONLL = ("conll", "conll-iobes")
"""Names of the formats with columns."""


class Columns(NamedTuple):
    """The columns of the token and the tag in a line, from 0; negative from the end."""

    token: int = 0
    tag: int = -1


TOKEN_AND_TAG = Columns()


class SentenceRow(NamedTuple):
    """A sentence of a file: its tokens, token i in line `line + i`, and its entities.

    A `-DOCSTART-` line is a sentence without tokens.

    document: the number of `-DOCSTART-` lines before it; 0 throughout a file without them.
    scheme: the scheme of the file's tags.
    illegal: the positions of tags that the scheme does not allow there; `entities` then has only what is whole.
    unopened: in IOB2 the entities that begin with an illegal `I` (see `unopened_spans`).
    """

    tokens: tuple[str, ...]
    entities: tuple[TokenSpan, ...]
    file: str
    line: int
    document: int
    scheme: Scheme
    illegal: Sequence[int] = ()
    unopened: tuple[TokenSpan, ...] = ()

    def as_illegal(self) -> Rejected:
        """The reject of a sentence with illegal tags."""
        count = f"{len(self.illegal):,} of {len(self.tokens):,} tags of the sentence"
        detail = f"in {self.scheme}, {count} are not allowed where they are"
        return Rejected("an illegal tag sequence", detail, file=self.file, line=self.line + self.illegal[0])


def sentence_rows(
    path: Path | str, columns: Columns = TOKEN_AND_TAG, only_tokens: bool = False
) -> Iterator[SentenceRow | Rejected]:
    """Yields every sentence, usable or not, and `-DOCSTART-` lines, in the order of the file.

    only_tokens: read every tag as `O`.
    A first pass over the file finds the scheme of the tags, which is logged if they are rewritten. A file that ends in
    the middle of a line, so that its last tag may be cut off, is logged too.
    """
    path = Path(path)
    file_scheme: FileScheme = "IOB2" if only_tokens else _scheme_of(path, columns)
    documents, last_line = 0, 0
    for has_token, group in groupby(_token_rows(path, columns, only_tokens), _has_token):
        rows = list(group)
        if has_token:
            last_line = rows[-1].line
            yield _sentence(rows, documents, file_scheme)
        for row in rows:
            if isinstance(row, Record) and row.values == (DOCUMENT_START,):
                documents, last_line = documents + 1, 0
                yield SentenceRow((), (), row.file, row.line, documents, NORMALIZED_SCHEME[file_scheme])
    if last_line:
        with open_input(str(path)) as stream:
            stream.seek(-1, SEEK_END)
            if stream.read().strip():
                end = "the last line has no end. Is the file cut off here, in the middle of a tag?"
                log(f"{path}, line {last_line:,}: {end}")


def _scheme_of(path: Path, columns: Columns) -> FileScheme:
    scheme = scheme_of_tags(
        "" if isinstance(row, Rejected) else row.values[1] if _has_token(row) else OUTSIDE
        for row in _token_rows(path, columns)
    )
    if scheme != NORMALIZED_SCHEME[scheme]:
        log(f"{path}: the tags are {scheme}, and are read as {NORMALIZED_SCHEME[scheme]}")
    return scheme


def _token_rows(path: Path, columns: Columns, only_tokens: bool = False) -> Iterator[Row]:
    """(token, tag) of each line, () of one without a token, or (`-DOCSTART-`,).

    The first line with a token sets the number of columns.
    """
    width = 0
    for row in numbered_lines(path):
        if isinstance(row, Rejected):
            yield row
        elif row.values[0].startswith((DOCUMENT_START, OF_JNLPBA)):
            yield row._replace(values=(DOCUMENT_START,))
        elif not row.values[0].strip() or COMMENT.fullmatch(row.values[0]):
            yield row._replace(values=())
        else:
            fields = row.values[0].split("\t")
            width = width or _checked_width(fields, columns, f"{row.file}, line {row.line:,}")
            if len(fields) == width:
                yield row._replace(values=(fields[columns.token], OUTSIDE if only_tokens else fields[columns.tag]))
            else:
                is_spaced = len(fields) == 1 and " " in fields[0]
                detail = f"expected {width} columns with tabs between them, found {len(fields)}; "
                detail += "put tabs for its spaces" if is_spaced else "is the file cut off here?"
                yield Rejected("another number of columns", detail, file=row.file, line=row.line)


def _has_token(row: Row) -> bool:
    return isinstance(row, Rejected) or len(row.values) == 2


def _checked_width(fields: Sequence[str], columns: Columns, line: str) -> int:
    """The number of columns of a file. Raises RequestError if `columns` are not among them."""
    width = len(fields)
    if width < 2:
        raise RequestError(
            f"{line}: expected a token and its tag with a tab between them, found no tab. Replace "
            f"spaces by tabs: tr ' ' '\\t' < FILE does that. {NAME_FORMAT}"
        )
    if not all(-width <= column < width for column in columns):
        raise RequestError(
            f"{line}: expected columns {columns.token} and {columns.tag}, found {width} columns, 0 to "
            f"{width - 1}. Choose among these; negative ones count from the end."
        )
    return width


def _sentence(run: Sequence[Row], document: int, file_scheme: FileScheme) -> SentenceRow | Rejected:
    tokens, file_tags, scheme = list[str](), list[str](), NORMALIZED_SCHEME[file_scheme]
    for row in run:
        if isinstance(row, Rejected):
            return row
        token, tag = row.values
        if not token:
            return Rejected("an empty token", "a tag alone", file=row.file, line=row.line)
        if has_stray_space(tag):
            return Rejected(STRAY_SPACE, "take the white space out of the tag", file=row.file, line=row.line)
        if split_tag(tag)[1] in NO_TYPE:
            return Rejected(
                "an entity without a type", "a missing value was written as its type", file=row.file, line=row.line
            )
        if not is_tag(tag, file_scheme):
            detail = f"{file_scheme} has O, and {', '.join(PREFIXES[file_scheme])} with a hyphen and a type"
            return Rejected("an unknown tag", detail, file=row.file, line=row.line)
        tokens.append(token)
        file_tags.append(tag)
    tags = normalize_tags(file_tags, file_scheme)
    unopened = tuple(unopened_spans(tags)) if scheme == "IOB2" else ()
    illegal, entities = illegal_positions(tags, scheme), tuple(spans_of(tags, scheme))
    return SentenceRow(tuple(tokens), entities, run[0].file, run[0].line, document, scheme, illegal, unopened)


def read(path: Path, reading: Reading = ANNOTATED) -> Iterator[Item]:
    """Streams the documents of a file, named after it and numbered from 1."""
    stem, number, has_start = path.name.partition(".")[0], 0, False
    document: list[SentenceRow | Rejected] = []
    for row in sentence_rows(path, only_tokens=reading.only_text):
        is_start = isinstance(row, SentenceRow) and not row.tokens
        if document and (is_start or not has_start):  # a sentence before the first `-DOCSTART-` line is one
            number += 1
            yield _document(document, f"{stem}-{number}")
            document = []
        has_start |= is_start
        document.append(row)
    if document:
        yield _document(document, f"{stem}-{number + 1}")


def _document(sentences: Sequence[SentenceRow | Rejected], name: str) -> Document | Rejected:
    """The document of some sentences; unusable if one of them is."""
    text, entities, tokens = "", list[Entity](), list[tuple[Span, ...]]()
    for row in sentences:
        if isinstance(row, Rejected) or row.illegal:
            return row if isinstance(row, Rejected) else row.as_illegal()
        if row.tokens:
            text += "\n" if text else ""
            starts = accumulate((len(token) + 1 for token in row.tokens), initial=len(text))
            spans = tuple((start, start + len(token)) for start, token in zip(starts, row.tokens, strict=False))
            entities += [Entity(spans[start][0], spans[end - 1][1], kind) for start, end, kind in row.entities]
            tokens.append(spans)
            text += " ".join(row.tokens)
    first = sentences[0]
    return Document(name, text, tuple(entities), sentences=tuple(tokens), file=first.file, line=first.line)


LACKS = ("identifier_score", "confidence", "identifier", "database", "parts", "is_part", "passages", "fields")
INSIDE_TOKEN, TWO_SENTENCES = "an entity that begins or ends inside a token", "an entity over two sentences"
NO_TOKEN = "\t\n\r\0"
"""Characters that no field of a line can hold."""


def render(document: Document, scheme: Scheme = "IOB2") -> str:
    """The lines of a document, `-DOCSTART-` first. Raises Rejected for entities or tokens that they cannot hold."""
    check_contiguous(document, "a tag")
    sentences = document.sentences or sentences_of(document)
    lines = [f"{DOCUMENT_START}\t{OUTSIDE}\n\n"]
    for tokens, spans in zip(sentences, _token_spans(document, sentences), strict=True):
        try:
            tags = tags_of(spans, len(tokens), scheme)
        except ValueError:
            raise Rejected("nested or overlapping entities", "a token has one tag") from None
        lines.append(lines_of([document.text[start:end] for start, end in tokens], tags))
    return "".join(lines)


def lines_of(tokens: Sequence[str], *tags: Sequence[str]) -> str:
    """A line for each token and its tags, and a blank line. Raises Rejected for those that no line can hold."""
    for token in tokens:
        if not token or token.startswith(DOCUMENT_START) or any(sign in token for sign in NO_TOKEN):
            raise Rejected(
                "a token that no line can hold", "an empty one, or one with a tab, a line break or NUL in it"
            )
    if any(has_stray_space(tag) or any(sign in tag for sign in NO_TOKEN) for column in tags for tag in column):
        raise Rejected("a type that no line can hold", "with a tab, a line break or NUL in it, or a space around it")
    return "".join("\t".join(fields) + "\n" for fields in zip(tokens, *tags, strict=True)) + "\n"


Borders = dict[int, tuple[int, int]]
"""Sentence and token of each character at which a token begins, or ends."""


def _borders_of(sentences: Sequence[Sequence[Span]]) -> tuple[Borders, Borders]:
    starts, ends = Borders(), Borders()
    for row, tokens in enumerate(sentences):
        for number, (start, end) in enumerate(tokens):
            starts[start], ends[end] = (row, number), (row, number + 1)
    return starts, ends


def fit(document: Document, left_out: Counts) -> Document:
    """The document with entities of whole tokens that do not overlap, and nothing but these."""
    document = remove_relations(remove_parts(document, left_out, *LACKS), left_out)
    left_out["the id of a document"] += 1
    starts, ends = _borders_of(document.sentences or sentences_of(document))

    def fault_of(entity: Entity) -> str:
        first, last = starts.get(entity.start), ends.get(entity.end)
        if entity.fragments or first is None or last is None:
            return DISCONTINUOUS if entity.fragments else INSIDE_TOKEN
        return "" if first[0] == last[0] else TWO_SENTENCES

    return remove_overlaps(keep_entities(document, left_out, fault_of), left_out)


def _token_spans(document: Document, sentences: Sequence[Sequence[Span]]) -> list[list[TokenSpan]]:
    """The entities of each sentence as tokens. Raises Rejected for one that is no run of whole tokens of a sentence."""
    starts, ends = _borders_of(sentences)
    spans: list[list[TokenSpan]] = [[] for _ in sentences]
    for entity in document.entities:
        first, last = starts.get(entity.start), ends.get(entity.end)
        if first is None or last is None:
            raise Rejected(INSIDE_TOKEN, f"at {entity.start:,} to {entity.end:,}")
        if first[0] != last[0]:
            raise Rejected(TWO_SENTENCES, f"at {entity.start:,} to {entity.end:,}")
        spans[first[0]].append(TokenSpan(first[1], last[1], entity.type))
    return spans


WRITER, IOBES_WRITER = Writer(render, fit=fit), Writer(partial(render, scheme="IOBES"), fit=fit)
