"""CoNLL: a token and its tag in each line, a tab between them, a blank line between sentences.

Other columns are ignored. `-DOCSTART-` lines begin documents; in a file without them every sentence is one. The text
of a document is its tokens with a space between them and a line break between sentences, for the format knows no
white space.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate, count, groupby
from pathlib import Path
from typing import NamedTuple

from bertrelay.data.readers import open_input
from bertrelay.data.records import Rejects
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write
from bertrelay.progress import log
from domain.biomedical.documents.document import (
    Document,
    Entity,
    Item,
    Span,
    TaggedSentence,
    Unfit,
    Write,
    check_contiguous,
    numbered_lines,
    refuse,
    text_file,
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
BYTE_ORDER_MARK = "\ufeff"
ILLEGAL = "an illegal tag sequence"
STRAY_SPACE = "a tag with a stray space"
CONLL = ("conll", "conll-iobes")
"""The names of the formats that have columns."""


class Columns(NamedTuple):
    """The columns of the token and the tag in a line, from 0; negative from the end."""

    token: int = 0
    tag: int = -1


TOKEN_AND_TAG = Columns()


class DocumentStart(NamedTuple):
    """A `-DOCSTART-` line."""

    line: int


class _TokenLine(NamedTuple):
    line: int
    token: str
    tag: str
    fault: tuple[str, str] | None


# Sentences


def read_sentences(
    path: Path | str,
    scheme: FileScheme | None = None,
    columns: Columns = TOKEN_AND_TAG,
    rejects: Rejects | None = None,
) -> Iterator[TaggedSentence]:
    """Streams the sentences of a file, with legal tags in `READ_AS[scheme]`; `scheme_of` finds one not given.

    rejects: counts sentences, used and not; without it the first one that cannot be used raises RequestError. Without
    a `with` block around it, it is closed at the end of the file.
    """
    scheme = scheme or scheme_of(path, columns)
    for row in sentence_rows(path, scheme, columns):
        judged = legal(row, READ_AS[scheme]) if isinstance(row, TaggedSentence) else row
        if isinstance(judged, TaggedSentence):
            if rejects is not None:
                rejects.used()
            yield judged
        elif isinstance(judged, Unusable):
            refuse(judged, rejects)
    if rejects is not None:
        rejects.close()


def write_sentences(path: Path | str, sentences: Iterable[TaggedSentence]) -> None:
    """Writes tokens and tags as they are, with a `-DOCSTART-` line wherever a document begins.

    Raises Unfit for tokens that a line cannot hold.
    """
    with atomic_write(Path(path)) as building, building.open("w", encoding="utf-8", newline="\n") as file:
        document = 0
        for number, sentence in enumerate(sentences):
            text = START_LINES * (sentence.document - document) + lines_of(sentence.tokens, sentence.tags)
            if number == 0 and text.startswith(BYTE_ORDER_MARK):
                raise Unfit("a token that no line can hold", "a byte order mark at the beginning of a file is none")
            file.write(text)
            document = sentence.document


def scheme_of(path: Path | str, columns: Columns = TOKEN_AND_TAG) -> FileScheme:
    """The scheme of a file's tags; logs it where they are rewritten."""
    runs = groupby(_parsed(Path(path), columns), type)
    found = scheme_of_tags([row.tag for row in run if isinstance(row, _TokenLine)] for _, run in runs)
    if found != READ_AS[found]:
        log(f"{path}: the tags are {found}, and are read as {READ_AS[found]}")
    return found


def sentence_rows(
    path: Path | str, scheme: FileScheme, columns: Columns = TOKEN_AND_TAG
) -> Iterator[TaggedSentence | Unusable | DocumentStart]:
    """Every sentence in its place, usable or not, and where documents begin; whether tags are legal is not asked.

    scheme: of the file; the tags are given in `READ_AS[scheme]`.

    Says where a file ends in the middle of a line, which may have lost a part of its tag.
    """
    documents, last = 0, None
    for _, run in groupby(_parsed(Path(path), columns), type):
        rows = list(run)
        starts = [row for row in rows if isinstance(row, DocumentStart)]
        lines = [row for row in rows if isinstance(row, _TokenLine)]
        documents += len(starts)
        yield from starts
        if lines:
            yield _sentence(lines, str(path), documents, scheme)
        last = lines[-1] if lines else None
    if last is not None and not _ends_in_line_break(Path(path)):
        log(f"{path}, line {last.line:,}: the last line has no end. Is the file cut off here, in the middle of a tag?")


def _ends_in_line_break(path: Path) -> bool:
    with open_input(str(path)) as stream:
        last = b""
        while more := stream.read(1 << 20):
            last = more[-1:]
    return last == b"\n"


def legal(sentence: TaggedSentence, scheme: Scheme) -> TaggedSentence | Unusable:
    """The sentence, when its tags are legal in `scheme`."""
    places = illegal_places(sentence.tags, scheme)
    if not places:
        return sentence
    detail = (
        f"in {scheme}, {len(places):,} of {len(sentence.tags):,} tags of the sentence are not allowed where they are"
    )
    return Unusable(sentence.file, sentence.line + places[0], ILLEGAL, detail)


def refuse_columns(path: Path | str, columns: Columns) -> None:
    """Raises RequestError where columns are asked for of a file that is no CoNLL."""
    if columns != TOKEN_AND_TAG:
        raise RequestError(f"{path}: columns: only {' and '.join(CONLL)} have them; leave them out, or name the format")


def _parsed(path: Path, columns: Columns) -> Iterator[_TokenLine | DocumentStart | None]:
    """The lines of a file; None for a blank one. The first one with a token sets the number of columns."""
    width = 0
    for row in numbered_lines(path):
        if isinstance(row, Unusable):
            yield _TokenLine(row.line, "", "", (row.reason, row.detail))
        elif not row.values[0].strip():
            yield None
        elif row.values[0].startswith(DOCUMENT_START):
            yield DocumentStart(row.line)
        else:
            fields = row.values[0].split("\t")
            width = width or _checked_width(fields, columns, row.file, row.line)
            yield _token_line(fields, columns, width, row.line)


def _checked_width(fields: Sequence[str], columns: Columns, file: str, line: int) -> int:
    """How many columns a file has; raises RequestError when those asked for are not there."""
    width = len(fields)
    if width < 2:
        raise RequestError(
            f"{file}, line {line:,}: expected a token and its tag with a tab between them, found no tab. Is it another "
            "format (give --format)? Replace spaces by tabs: tr ' ' '\\t' < FILE does that."
        )
    if not all(-width <= column < width for column in columns):
        raise RequestError(
            f"{file}, line {line:,}: expected columns {columns.token} and {columns.tag}, found {width} columns, 0 to "
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


def lines_of(tokens: Sequence[str], *tags: Sequence[str]) -> str:
    """A line for each token with its tag, or its tags, and a blank one. Raises Unfit for what no line can hold."""
    for token in tokens:
        if not token or token.startswith(DOCUMENT_START) or any(sign in token for sign in SEPARATORS):
            raise Unfit("a token that no line can hold", "an empty one, or one with a tab, a line break or NUL in it")
    if any(has_stray_space(tag) or any(sign in tag for sign in SEPARATORS) for column in tags for tag in column):
        raise Unfit("a type that no line can hold", "with a tab, a line break or NUL in it, or a space around it")
    return "".join("\t".join(fields) + "\n" for fields in zip(tokens, *tags, strict=True)) + "\n"


# Documents


def read(path: Path, file_scheme: FileScheme | None = None) -> Iterator[Item]:
    """Streams the documents of a file, named after it and numbered from 1."""
    file_scheme = file_scheme or scheme_of(path)
    scheme = READ_AS[file_scheme]
    names = (f"{path.name.partition('.')[0]}-{number}" for number in count(1))
    parts: list[TaggedSentence | Unusable] = []
    start: DocumentStart | None = None
    for row in sentence_rows(path, file_scheme):
        if start is not None and isinstance(row, DocumentStart):
            yield _document(parts, next(names), str(path), start.line, scheme)
        if isinstance(row, DocumentStart):
            start, parts = row, []
        elif start is not None:
            parts.append(row)
        else:
            yield _document([row], next(names), str(path), row.line, scheme)
    if start is not None:
        yield _document(parts, next(names), str(path), start.line, scheme)


def _document(
    parts: Sequence[TaggedSentence | Unusable], name: str, file: str, line: int, scheme: Scheme
) -> Document | Unusable:
    """A document of sentences; not usable when one of them is not."""
    text, entities, sentences = "", list[Entity](), list[tuple[Span, ...]]()
    for part in parts:
        judged = legal(part, scheme) if isinstance(part, TaggedSentence) else part
        if isinstance(judged, Unusable):
            return judged
        text += "\n" if text else ""
        ends = list(accumulate((len(token) + 1 for token in judged.tokens), initial=len(text)))
        spans = tuple((start, start + len(token)) for start, token in zip(ends, judged.tokens, strict=False))
        found = spans_of(judged.tags, scheme)
        entities += [Entity(spans[span.start][0], spans[span.end - 1][1], span.type) for span in found]
        sentences.append(spans)
        text += " ".join(judged.tokens)
    return Document(name, text, tuple(entities), sentences=tuple(sentences), file=file, line=line)


def writing(path: Path, scheme: Scheme = "IOB2") -> AbstractContextManager[Write]:
    """A file of documents: of their own tokens, else of the words of their sentences."""
    return text_file(path, partial(rendered, scheme=scheme))


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


def _token_spans(document: Document, sentences: Sequence[Sequence[Span]]) -> list[list[TokenSpan]]:
    """The entities of each sentence, by its tokens."""
    starts = {token[0]: (row, place) for row, tokens in enumerate(sentences) for place, token in enumerate(tokens)}
    ends = {token[1]: (row, place) for row, tokens in enumerate(sentences) for place, token in enumerate(tokens)}
    spans: list[list[TokenSpan]] = [[] for _ in sentences]
    for entity in document.entities:
        first, last = starts.get(entity.start), ends.get(entity.end)
        if first is None or last is None:
            raise Unfit("an entity that begins or ends inside a token", f"at {entity.start:,} to {entity.end:,}")
        if first[0] != last[0]:
            raise Unfit("an entity over two sentences", f"at {entity.start:,} to {entity.end:,}")
        spans[first[0]].append(TokenSpan(first[1], last[1] + 1, entity.type))
    return spans
