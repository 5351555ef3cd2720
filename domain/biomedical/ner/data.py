"""Sentences with gold entities from annotated files, for training, scoring and checking; no gold entity is lost."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from bertrelay.data.records import MANY_COPIES, Rejects, log_copies
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.biomedical.documents.conll import CONLL, TOKEN_AND_TAG, Columns, SentenceRow, sentence_rows
from domain.biomedical.documents.document import ANNOTATED, LEFT_OUT, Document, Entity, Reading, Span, sentences_of
from domain.biomedical.documents.formats import FormatName, check_repeated_ids, document_items, format_of
from domain.biomedical.documents.tags import Scheme, TokenSpan
from domain.biomedical.ner.settings import EntitySource
from domain.reading import shown_id, usable
from domain.text.words import is_word

AnySpan = TypeVar("AnySpan", Entity, TokenSpan)


class Example(NamedTuple):
    """The tokens of a sentence and its gold entities, as tokens [start, end), in order.

    document: names the document; a number for each sentence where a file has no documents.
    untaggable: the types of gold entities that tags cannot represent: nested, discontinuous, of white space, or ending
        inside a word. A score counts them as missed, and training cannot use them.
    unopened: entities of an illegal tag sequence, `O I-X`, that only lenient scores count.
    corpus: name of the corpus, or the path of its file.
    annotated: types of entities that the corpus annotates; None for all.
    """

    tokens: tuple[str, ...]
    entities: tuple[TokenSpan, ...]
    document: str
    untaggable: tuple[str, ...] = ()
    unopened: tuple[TokenSpan, ...] = ()
    corpus: str = ""
    annotated: frozenset[str] | None = None

    def annotates(self, kind: str) -> bool:
        """Returns true if an entity of this type would be annotated."""
        return self.annotated is None or kind in self.annotated

    def scored(self, spans: Iterable[TokenSpan]) -> list[TokenSpan]:
        """The predicted entities of types that the corpus annotates; others cannot be scored."""
        return [span for span in spans if self.annotates(span.type)]

    @property
    def lenient_entities(self) -> list[TokenSpan]:
        """The entities as seqeval reads tags by default."""
        return sorted((*self.entities, *self.unopened))

    @property
    def entity_tokens(self) -> list[str]:
        """The tokens of entities."""
        return [token for span in self.lenient_entities for token in self.tokens[span.start : span.end]]


TRIMMED = "white space at the ends, which is trimmed"
REPEATED = "given twice, which counts once"
DISCONTINUOUS, BLANK, INSIDE_WORD, NESTED = (
    "discontinuous",
    "of white space",
    "ends inside a word",
    "nested or overlaps",
)
BEYOND_TAGS = (NESTED, DISCONTINUOUS, BLANK, INSIDE_WORD)
"""Reasons why tags cannot represent an entity."""


class Doubtful(NamedTuple):
    """An entity that is not trained on as it is in its document, with the reason."""

    reason: str
    entity: Entity


class AnnotatedRecord(NamedTuple):
    """A sentence of CoNLL or a document of another format, used or rejected as a whole, with its examples.

    doubtful: entities of a document that are changed, or that tags cannot represent.
    other_types: of entities that are left out.
    """

    file: str
    origin: SentenceRow | Document
    examples: list[Example]
    doubtful: Sequence[Doubtful] = ()
    other_types: Sequence[str] = ()


def annotated_records(
    path: Path,
    format_name: FormatName | None = None,
    columns: Columns = TOKEN_AND_TAG,
    illegal: Collection[Scheme] = ("IOB2", "IOBES"),
    reading: Reading = ANNOTATED,
    types: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[AnnotatedRecord | Rejected]:
    """Yields every sentence or document of a file, usable or not, in the order of the file.

    columns: of CoNLL files.
    illegal: schemes whose illegal tag sequences are usable.
    reading: what is read of documents.
    types: of entities that are read, with their new names; all as they are when empty.
    Raises RequestError for `columns` or `repeated_ids` of a file of another format.
    """
    name = format_name or format_of(path)
    check_repeated_ids(path, name, reading)
    if name in CONLL:
        for row in sentence_rows(path, columns):
            if isinstance(row, Rejected) or (row.illegal and row.scheme not in illegal):
                yield row if isinstance(row, Rejected) else row.as_illegal()
            elif row.tokens:
                unit, other_types = f"document {row.document}" if row.document else f"line {row.line}", list[str]()
                entities, unopened = (_renamed(spans, types, other_types) for spans in (row.entities, row.unopened))
                example = Example(row.tokens, entities, unit, unopened=unopened)
                yield AnnotatedRecord(row.file, row, [example], other_types=other_types)
        return
    if columns != TOKEN_AND_TAG:
        raise RequestError(f"{path}: columns: only {' and '.join(CONLL)} have them; leave them out, or name the format")
    for item in document_items(path, name, reading=reading):
        if isinstance(item, Document):
            doubtful, other_types = list[Doubtful](), list[str]()
            renamed = replace(item, entities=_renamed(item.entities, types, other_types))
            yield AnnotatedRecord(item.file, item, list(of_document(renamed, doubtful)), doubtful, other_types)
        else:
            yield item


def _renamed(spans: Iterable[AnySpan], types: Mapping[str, str], other_types: list[str]) -> tuple[AnySpan, ...]:
    """The entities of `types` under their new names, or all without them; `other_types` takes the types of others."""
    if not types:
        return tuple(spans)
    renamed = list[AnySpan]()
    for span in spans:
        if span.type not in types:
            other_types.append(span.type)
        elif isinstance(span, Entity):
            renamed.append(replace(span, type=types[span.type]))
        else:
            renamed.append(span._replace(type=types[span.type]))
    return tuple(renamed)


def read_examples(
    sources: Sequence[EntitySource],
    rejects: Rejects | None = None,
    only_legal: bool = True,
    drop_misplaced: bool = False,
    once: bool = False,
) -> list[Example]:
    """Reads the sentences of all `sources`.

    rejects: counts used and unusable records; without it the first unusable one raises RequestError.
    only_legal: reject illegal tag sequences, as training does; otherwise those of IOB2 are used, as seqeval does.
    drop_misplaced: leave out, and count, an entity at wrong offsets in place of its document.
    once: use only the first of equal documents, as training does. Sentences of CoNLL without documents stay, as short
        ones are often equal; many of them are logged.
    Raises RequestError if no sentence is left.
    """
    reading = Reading(misplaced="drop" if drop_misplaced else "reject")
    examples = [list(_read(source, rejects, only_legal, reading)) for source in sources]
    if not any(examples):
        if rejects is not None:
            rejects.check()  # gives the reasons
        files = ", ".join(str(source.path) for source in sources)
        raise RequestError(f"{files}: expected sentences with tags, found none that can be used")
    has_documents = [(source.format or format_of(source.path)) not in CONLL for source in sources]
    return _without_copies(examples, has_documents, once)


def _without_copies(sources: Sequence[Sequence[Example]], has_documents: Sequence[bool], once: bool) -> list[Example]:
    """The sentences of all sources, only once those of equal documents if `once`; logs the numbers of copies.

    has_documents: false for a source of CoNLL, where a document of a single sentence may be just a sentence.
    """
    seen, chosen, counts, copies = set[int](), list[Example](), Counter[bool](), Counter[bool]()
    groups = (
        (list(group), is_document)
        for examples, is_document in zip(sources, has_documents, strict=True)
        for _, group in groupby(examples, key=attrgetter("document"))
    )
    for sentences, is_document in groups:
        content = hash(tuple(sentence._replace(document="", corpus="") for sentence in sentences))
        is_sentence = len(sentences) == 1 and not is_document
        counts[is_sentence] += 1
        copies[is_sentence] += content in seen
        if not (once and content in seen and not is_sentence):
            chosen += sentences
        seen.add(content)
    but = "and count once" if once else "and are scored each"
    log_copies(copies[False], counts[False], "documents", "with their entities", but)
    if copies[True] > MANY_COPIES * counts[True]:
        log_copies(copies[True], counts[True], "sentences", "with their tags", "and count each")
    return chosen


def _read(source: EntitySource, rejects: Rejects | None, only_legal: bool, reading: Reading) -> Iterator[Example]:
    if source.format is None and format_of(source.path) == "text":
        raise RequestError(
            f"{source.path}: expected annotated documents, found raw text, which has no entities. Give the file or "
            'folder that has them; if these are documents without entities, say `format = "text"`.'
        )
    illegal: Sequence[Scheme] = () if only_legal else ("IOB2",)  # seqeval has no lenient reading of IOBES
    reading = reading._replace(repeated_ids=source.repeated_ids)
    columns = Columns(*source.columns)
    records = annotated_records(Path(source.path), source.format, columns, illegal, reading, source.types)
    annotated = frozenset(source.types.values()) or None
    untaggable, changed, of_types, of_other_types = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for record in usable(records, rejects, f"{source.path}: {LEFT_OUT}", source.path):
        changed.update(reason for reason, _ in record.doubtful if reason not in BEYOND_TAGS)
        of_other_types.update(record.other_types)
        for example in record.examples:
            untaggable.update(example.untaggable)
            of_types.update([*example.untaggable, *(span.type for span in example.lenient_entities)])
            corpus = source.corpus or str(source.path)
            yield example._replace(document=f"{source.path} {example.document}", corpus=corpus, annotated=annotated)
    if of_other_types:
        others = _counts(of_other_types)
        if not of_types:
            raise RequestError(
                f"{source.path}: types: expected entities of the types {', '.join(source.types)}, found {others}. Name "
                "those that it has, each with its name in the model."
            )
        log(f"{source.path}: entities of types that `types` leaves out: {others}")
    if untaggable:
        kinds = "nested, discontinuous, or ending in a word"
        log(f"{source.path}: entities that tags cannot represent ({kinds}): {_counts(untaggable)}")
    if changed:
        log(f"{source.path}: entities: {_counts(changed, '; ')}")


def _counts(counter: Counter[str], between: str = ", ") -> str:
    return between.join(f"{count:,} × {name}" for name, count in counter.most_common())


def without_held_out(examples: Iterable[Example], held_out: Iterable[Example]) -> list[Example]:
    """The sentences that `held_out` lacks, of documents with at most half of their sentences in it; logs the others.

    Sentences are the same if their tokens have the same characters, as corpora split words differently.
    """
    held = {"".join(example.tokens) for example in held_out}
    sentences, chosen = 0, list[Example]()
    for _, group in groupby(examples, key=attrgetter("document")):
        whole = list(group)
        others = [example for example in whole if "".join(example.tokens) not in held]
        chosen += others if 2 * len(others) >= len(whole) else []
        sentences += len(whole)
    log(f"held_out: {sentences - len(chosen):,} of {sentences:,} sentences of train are left out")
    return chosen


def shared_documents(train: Iterable[Example], dev: Iterable[Example]) -> int:
    """Counts the documents of `dev` that have more than half of their sentences in one document of `train`.

    Documents of one sentence do not count: in a file without documents each sentence is one.
    """
    owners = dict[tuple[str, ...], set[str]]()
    for example in train:
        owners.setdefault(example.tokens, set()).add(example.document)
    shared = 0
    for _, sentences in groupby(dev, key=lambda example: example.document):
        distinct = {example.tokens for example in sentences}
        counts = Counter(document for tokens in distinct for document in owners.get(tokens, ()))
        shared += len(distinct) > 1 and max(counts.values(), default=0) > len(distinct) / 2
    return shared


def tidied(document: Document, doubtful: list[Doubtful]) -> Document:
    """The document with entities trimmed of white space and without repeated ones; `doubtful` takes both."""
    entities = dict[tuple[object, ...], Entity]()
    for entity in document.entities:
        text = document.text[entity.start : entity.end]
        start, end = entity.start + len(text) - len(text.lstrip()), entity.start + len(text.rstrip())
        if start < end and (start, end) != (entity.start, entity.end) and not entity.fragments:
            doubtful.append(Doubtful(TRIMMED, entity))
            entity = replace(entity, start=start, end=end)
        key = (entity.start, entity.end, entity.type, entity.fragments)
        if key in entities:
            doubtful.append(Doubtful(REPEATED, entity))
        entities.setdefault(key, entity)
    return replace(document, entities=tuple(entities.values()))


def of_document(document: Document, doubtful: list[Doubtful] | None = None) -> Iterator[Example]:
    """Yields the sentences of a document, by its tokens, or else by the words of its text.

    `No gout. Fever?` with a disease at 3 to 7 gives `No gout .` with the entity (1, 2, disease), and `Fever ?`.
    doubtful: takes the entities that `tidied` changes and those that tags cannot represent.
    An entity over two sentences makes them one. Entities behind the last word belong to the last sentence, which is
    empty in a document without words.
    """
    doubtful = [] if doubtful is None else doubtful
    document = tidied(document, doubtful)
    left = deque(sorted(document.entities, key=lambda entity: (entity.start, -entity.end)))
    sentences: Sequence[Sequence[Span]] = document.sentences or sentences_of(document)
    if left and not sentences:
        sentences = [()]
    for number, words in enumerate(sentences, 1):
        is_last, entities = number == len(sentences), list[Entity]()
        while left and (is_last or (words and left[0].start < words[-1][1])):
            entities.append(left.popleft())
        yield _example(document, words, entities, doubtful)


def _example(
    document: Document, words: Sequence[Span], entities: Sequence[Entity], doubtful: list[Doubtful]
) -> Example:
    """A sentence with its entities, sorted by their starts, the longer one first."""
    spans: list[TokenSpan] = []
    untaggable: list[str] = []
    starts = {word[0]: number for number, word in enumerate(words)}
    ends = {word[1]: number for number, word in enumerate(words, 1)}
    for entity in entities:
        start, end = starts.get(entity.start), ends.get(entity.end)
        is_free = not spans or (start is not None and start >= spans[-1].end)
        if start is not None and end is not None and is_free and not entity.fragments:
            spans.append(TokenSpan(start, end, entity.type))
        else:
            untaggable.append(entity.type)
            reason = BLANK if entity.text.isspace() else INSIDE_WORD if start is None or end is None else NESTED
            doubtful.append(Doubtful(DISCONTINUOUS if entity.fragments else reason, entity))
    tokens = tuple(document.text[start:end] for start, end in words)
    return Example(tokens, tuple(spans), document.id, tuple(untaggable))


def divided_tokens(examples: Iterable[Example]) -> list[str]:
    """The tokens of entities that are not single words of raw text."""
    return [token for example in examples for token in example.entity_tokens if not is_word(token)]


def divided_summary(divided: Sequence[str], in_entities: int) -> str:
    """A warning that a model trained on such tokens misses entities; empty if there are none.

    in_entities: the number of all tokens of entities.
    """
    if not divided:
        return ""
    return (
        f"{len(divided):,} of {in_entities:,} tokens of entities are not single words of raw text "
        f"({shown_id(divided[0])} the first): the tagger splits these in raw text, and misses entities "
        "with them; tokenize the training data as it does"
    )


def types_in(examples: Sequence[Example]) -> list[str]:
    """The types of entities that occur, sorted."""
    types = {span.type for example in examples for span in example.lenient_entities}
    return sorted(types.union(*(example.untaggable for example in examples)))


def of_types(examples: Sequence[Example], types: Sequence[str]) -> list[Example]:
    """The same sentences with only entities of `types`; unchanged if `types` is empty."""
    if not types:
        return list(examples)
    return [
        example._replace(
            entities=tuple(span for span in example.entities if span.type in types),
            untaggable=tuple(kind for kind in example.untaggable if kind in types),
            unopened=tuple(span for span in example.unopened if span.type in types),
        )
        for example in examples
    ]
