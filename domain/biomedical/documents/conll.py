"""CoNLL: a token and its tag in each line, a tab between them, a blank line between sentences.

Other columns are ignored. `-DOCSTART-` lines begin documents; in a file without them every sentence is one. The text
of a document is its tokens with a space between them and a line break between sentences, for the format knows no
white space.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from bertrelay.data.readers import open_input
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.biomedical.documents.document import (
    Document,
    Entity,
    Item,
    Span,
    Unfit,
    check_contiguous,
    numbered_lines,
)
from domain.biomedical.documents.tokens import (
    OUTSIDE,
    PREFIXES,
    READ_AS,
    FileScheme,
    Scheme,
    TokenSpan,
    has_stray_space,
    illegal_places,
    is_tag,
    rewritten,
    scheme_of_tags,
    sentences_of,
    spans_of,
    tags_of,
)

DOCUMENT_START = "-DOCSTART-"
START_LINES = f"{DOCUMENT_START}\t{OUTSIDE}\n\n"
SEPARATORS = "\t\n\r\0"
ILLEGAL = "an illegal tag sequence"
STRAY_SPACE = "a tag with a stray space"
CONLL = ("conll", "conll-iobes")
"""The names of the formats that have columns."""


class Columns(NamedTuple):
    """The columns of the token and the tag in a line, from 0; negative from the end."""

    token: int = 0
    tag: int = -1


TOKEN_AND_TAG = Columns()


class TaggedSentence(NamedTuple):
    """The tokens of a sentence and a tag for each: token i is in line `line + i` of `file`.

    document: how many `-DOCSTART-` lines come before it; 0 throughout a file without them.
    """

    tokens: tuple[str, ...]
    tags: tuple[str, ...]
    file: str
    line: int
    document: int


class DocumentStart(NamedTuple):
    """A `-DOCSTART-` line."""

    line: int


class _TokenLine(NamedTuple):
    line: int
    token: str
    tag: str
    fault: tuple[str, str] | None


# Sentences


def scheme_of(path: Path | str, columns: Columns = TOKEN_AND_TAG) -> FileScheme:
    """The scheme of a file's tags; logs it where they are rewritten."""
    runs = (run for run in _runs(Path(path), columns) if not isinstance(run, DocumentStart))
    found = scheme_of_tags([line.tag for line in run] for run in runs)
    if found != READ_AS[found]:
        log(f"{path}: the tags are {found}, and are read as {READ_AS[found]}")
    return found


def sentence_rows(
    path: Path | str, scheme: FileScheme, columns: Columns = TOKEN_AND_TAG
) -> Iterator[TaggedSentence | Unusable | DocumentStart]:
    """Every sentence in its place, usable or not, and where documents begin; whether tags are legal is not checked.

    scheme: of the file; the tags are given in `READ_AS[scheme]`.
    Logs where a file ends in the middle of a line, which may have lost a part of its tag.
    """
    documents, last = 0, 0
    for run in _runs(Path(path), columns):
        if isinstance(run, DocumentStart):
            documents, last = documents + 1, 0
            yield run
        else:
            last = run[-1].line
            yield _sentence(run, str(path), documents, scheme)
    with open_input(str(path)) as stream:
        end = b"".join(deque(stream, maxlen=1))
    if last and end.strip() and not end.endswith(b"\n"):
        log(f"{path}, line {last:,}: the last line has no end. Is the file cut off here, in the middle of a tag?")


def legal(sentence: TaggedSentence | Unusable, scheme: Scheme) -> TaggedSentence | Unusable:
    """The sentence; unusable when its tags are not legal in `scheme`."""
    if isinstance(sentence, Unusable) or not (places := illegal_places(sentence.tags, scheme)):
        return sentence
    found = f"in {scheme}, {len(places):,} of {len(sentence.tags):,} tags of the sentence"
    return Unusable(sentence.file, sentence.line + places[0], ILLEGAL, f"{found} are not allowed where they are")


def refuse_columns(path: Path | str, columns: Columns) -> None:
    """Raises RequestError for columns other than the usual ones, of a file that is no CoNLL."""
    if columns != TOKEN_AND_TAG:
        raise RequestError(f"{path}: columns: only {' and '.join(CONLL)} have them; leave them out, or name the format")


def _runs(path: Path, columns: Columns) -> Iterator[list[_TokenLine] | DocumentStart]:
    """Lines with tokens up to a blank one, and `-DOCSTART-` lines. The first token sets the number of columns."""
    width, lines = 0, list[_TokenLine]()
    for row in numbered_lines(path):
        text = "" if isinstance(row, Unusable) else row.values[0]
        is_start = text.startswith(DOCUMENT_START)
        if isinstance(row, Unusable):
            lines.append(_TokenLine(row.line, "", "", (row.reason, row.detail)))
        elif text.strip() and not is_start:
            fields = text.split("\t")
            width = width or _checked_width(fields, columns, f"{row.file}, line {row.line:,}")
            lines.append(_token_line(fields, columns, width, row.line))
        elif lines:
            yield lines
            lines = []
        if is_start:
            yield DocumentStart(row.line)
    if lines:
        yield lines


def _checked_width(fields: Sequence[str], columns: Columns, place: str) -> int:
    """How many columns a file has; raises RequestError when `columns` are not among them."""
    width = len(fields)
    if width < 2:
        raise RequestError(
            f"{place}: expected a token and its tag with a tab between them, found no tab. Is it another "
            "format (give --format)? Replace spaces by tabs: tr ' ' '\\t' < FILE does that."
        )
    if not all(-width <= column < width for column in columns):
        raise RequestError(
            f"{place}: expected columns {columns.token} and {columns.tag}, found {width} columns, 0 to "
            f"{width - 1}. Choose among these; negative ones count from the end."
        )
    return width


def _token_line(fields: Sequence[str], columns: Columns, width: int, line: int) -> _TokenLine:
    if len(fields) != width:
        found = f"expected {width} columns with tabs between them, found {len(fields)}"
        advice = "put tabs for its spaces" if len(fields) == 1 and " " in fields[0] else "is the file cut off here?"
        return _TokenLine(line, "", "", ("another number of columns", f"{found}; {advice}"))
    token, tag = fields[columns.token], fields[columns.tag]
    return _TokenLine(line, token, tag, None if token else ("an empty token", "a tag alone"))


def _sentence(lines: Sequence[_TokenLine], file: str, document: int, scheme: FileScheme) -> TaggedSentence | Unusable:
    for line in lines:
        if line.fault is not None:
            return Unusable(file, line.line, *line.fault)
        if has_stray_space(line.tag):
            return Unusable(file, line.line, STRAY_SPACE, "take the white space out of the tag")
        if not is_tag(line.tag, scheme):
            detail = f"{scheme} has O, and {', '.join(PREFIXES[scheme])} with a hyphen and a type"
            return Unusable(file, line.line, "an unknown tag", detail)
    tokens, tags = tuple(line.token for line in lines), rewritten([line.tag for line in lines], scheme)
    return TaggedSentence(tokens, tags, file, lines[0].line, document)


# Documents


def read(path: Path, file_scheme: FileScheme | None = None) -> Iterator[Item]:
    """Streams the documents of a file, named after it and numbered from 1."""
    file_scheme = file_scheme or scheme_of(path)
    scheme, stem = READ_AS[file_scheme], path.name.partition(".")[0]
    for number, (line, parts) in enumerate(_divided(sentence_rows(path, file_scheme)), 1):
        yield _document([legal(part, scheme) for part in parts], f"{stem}-{number}", str(path), line, scheme)


def _divided(
    rows: Iterable[TaggedSentence | Unusable | DocumentStart],
) -> Iterator[tuple[int, list[TaggedSentence | Unusable]]]:
    """First line and sentences of each document; a sentence before the first `-DOCSTART-` line is one."""
    document: tuple[int, list[TaggedSentence | Unusable]] | None = None
    for row in rows:
        if isinstance(row, DocumentStart):
            if document:
                yield document
            document = row.line, []
        elif document:
            document[1].append(row)
        else:
            yield row.line, [row]
    if document:
        yield document


def _document(
    parts: Sequence[TaggedSentence | Unusable], name: str, file: str, line: int, scheme: Scheme
) -> Document | Unusable:
    """A document of sentences; not usable when one of them is not."""
    text, entities, sentences = "", list[Entity](), list[tuple[Span, ...]]()
    for part in parts:
        if isinstance(part, Unusable):
            return part
        text += "\n" if text else ""
        starts = accumulate((len(token) + 1 for token in part.tokens), initial=len(text))
        spans = tuple((start, start + len(token)) for start, token in zip(starts, part.tokens, strict=False))
        found = spans_of(part.tags, scheme)
        entities += [Entity(spans[span.start][0], spans[span.end - 1][1], span.type) for span in found]
        sentences.append(spans)
        text += " ".join(part.tokens)
    return Document(name, text, tuple(entities), sentences=tuple(sentences), file=file, line=line)


def rendered(document: Document, scheme: Scheme = "IOB2") -> str:
    """The lines of a document, `-DOCSTART-` first. Raises Unfit for what tags and lines cannot hold."""
    check_contiguous(document, "a tag")
    sentences = document.sentences or sentences_of(document)
    spans = _token_spans(document, sentences)
    lines = [START_LINES]
    for tokens, found in zip(sentences, spans, strict=True):
        try:
            tags = tags_of(found, len(tokens), scheme)
        except ValueError:
            raise Unfit("nested or overlapping entities", "a token has one tag") from None
        lines.append(lines_of([document.text[start:end] for start, end in tokens], tags))
    return "".join(lines)


def lines_of(tokens: Sequence[str], *tags: Sequence[str]) -> str:
    """A line for each token with its tag, or its tags, and a blank one. Raises Unfit for what no line can hold."""
    for token in tokens:
        if not token or token.startswith(DOCUMENT_START) or any(sign in token for sign in SEPARATORS):
            raise Unfit("a token that no line can hold", "an empty one, or one with a tab, a line break or NUL in it")
    if any(has_stray_space(tag) or any(sign in tag for sign in SEPARATORS) for column in tags for tag in column):
        raise Unfit("a type that no line can hold", "with a tab, a line break or NUL in it, or a space around it")
    return "".join("\t".join(fields) + "\n" for fields in zip(tokens, *tags, strict=True)) + "\n"


def _token_spans(document: Document, sentences: Sequence[Sequence[Span]]) -> list[list[TokenSpan]]:
    """The entities of each sentence, by its tokens."""
    starts, ends = (
        {token[side]: (row, place) for row, tokens in enumerate(sentences) for place, token in enumerate(tokens)}
        for side in (0, 1)
    )
    spans: list[list[TokenSpan]] = [[] for _ in sentences]
    for entity in document.entities:
        first, last = starts.get(entity.start), ends.get(entity.end)
        if first is None or last is None:
            raise Unfit("an entity that begins or ends inside a token", f"at {entity.start:,} to {entity.end:,}")
        if first[0] != last[0]:
            raise Unfit("an entity over two sentences", f"at {entity.start:,} to {entity.end:,}")
        spans[first[0]].append(TokenSpan(first[1], last[1] + 1, entity.type))
    return spans
