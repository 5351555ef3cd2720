"""spaCy's `DocBin`: tokens and entities as spaCy trains on them; spaCy is imported when a file is read or written.

Entities are those of the span group `entities`, or of `doc.ents` without it; identifiers are knowledge base ids. A
document without tokens is split by spaCy's English tokenizer. A file is in memory as a whole.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write
from domain.biomedical.documents.document import ANNOTATED, NAME_FORMAT, Document, Entity, Item, Reading, Span
from domain.biomedical.documents.losses import Counts, keep_entities, remove_parts, remove_relations
from domain.biomedical.documents.soundness import DISCONTINUOUS, check_contiguous
from domain.biomedical.documents.writing import Write, Writer

GROUP = "entities"
"""The span group of all entities, as `doc.ents` has no overlapping ones."""
ID = "id"
"""The key of the document's id in the user data of a `Doc`."""
INSIDE_TOKEN = "an entity that begins or ends inside a token"
LACKS = ("identifier_score", "confidence", "database", "parts", "is_part", "passages", "fields")


def _spacy() -> Any:
    try:
        import_module("spacy.tokens")
        return import_module("spacy")
    except ImportError:
        raise RequestError("a .spacy file needs spaCy, which is not installed; pip install spacy") from None


def read(path: Path, reading: Reading = ANNOTATED) -> Iterator[Item]:
    """Streams the documents of a file. Raises RequestError for a file that is no `DocBin`, or without spaCy."""
    spacy = _spacy()
    vocabulary = spacy.blank("en").vocab
    try:
        docs = list(spacy.tokens.DocBin().from_disk(path).get_docs(vocabulary))
    except Exception as error:  # zlib, msgpack and spaCy have errors of many kinds
        raise RequestError(
            f"{path}: expected a DocBin of spaCy, found something else ({type(error).__name__}). {NAME_FORMAT}"
        ) from None
    for number, doc in enumerate(docs, 1):
        name = str(doc.user_data.get(ID, f"{path.name.partition('.')[0]}-{number}"))
        spans = doc.spans.get(GROUP, doc.ents)
        entities = [] if reading.only_text else list(map(_entity, spans))
        if all(entity.type for entity in entities):
            sentences = _sentences(doc) if doc.has_annotation("SENT_START") else ()
            yield Document(name, doc.text, tuple(entities), sentences=sentences, file=str(path), line=number)
        else:
            yield Rejected("an entity without a type", file=str(path), line=number)


def _entity(span: Any) -> Entity:
    return Entity(span.start_char, span.end_char, span.label_, identifier=span.kb_id_ or None)


def _sentences(doc: Any) -> tuple[tuple[Span, ...], ...]:
    """The tokens of each sentence; those of white space, which CoNLL cannot hold, are none."""
    sentences = (
        tuple((token.idx, token.idx + len(token)) for token in sentence if not token.is_space) for sentence in doc.sents
    )
    return tuple(filter(None, sentences))


def _doc(document: Document, nlp: Any) -> Any:
    """The tokens of a document in spaCy: its own, with the characters between them as tokens too, or spaCy's."""
    if not document.sentences:
        return nlp.make_doc(document.text)
    words, spaces, starts = list[str](), list[bool](), list[bool]()
    firsts = {sentence[0][0] for sentence in document.sentences if sentence}
    for start, end in _pieces(document):
        if document.text[start:end] == " " and words and not spaces[-1]:
            spaces[-1] = True
            continue
        words.append(document.text[start:end])
        spaces.append(False)
        starts.append(start in firsts or len(words) == 1)
    return import_module("spacy.tokens").Doc(nlp.vocab, words=words, spaces=spaces, sent_starts=starts)


def _pieces(document: Document) -> Iterator[Span]:
    """The tokens of a document, and the text between them."""
    tokens: Sequence[Span] = [token for sentence in document.sentences for token in sentence]
    for (_, before), (start, end) in pairwise([(0, 0), *tokens, (len(document.text), len(document.text))]):
        if before < start:
            yield before, start
        if start < end:
            yield start, end


def render(document: Document, nlp: Any = None) -> Any:
    """The `Doc` of a document. Raises Rejected for discontinuous entities and such as end inside a token."""
    check_contiguous(document, "a span")
    doc = _doc(document, nlp or _spacy().blank("en"))
    spans = [_span(doc, entity) for entity in document.entities]
    if None in spans:
        raise Rejected(INSIDE_TOKEN)
    doc.user_data[ID] = document.id
    doc.spans[GROUP] = spans
    doc.ents = import_module("spacy.util").filter_spans(spans)
    return doc


def _span(doc: Any, entity: Entity) -> Any:
    return doc.char_span(entity.start, entity.end, entity.type, kb_id=entity.identifier or "", alignment_mode="strict")


@contextmanager
def _open_file(path: Path, rendered: Callable[[Document], Any]) -> Iterator[Write]:
    """Opens a file of documents, which is written when the block ends."""
    spacy = _spacy()
    documents = spacy.tokens.DocBin(store_user_data=True)

    def write(document: Document) -> None:
        documents.add(rendered(document))

    with atomic_write(path) as building:
        yield write
        documents.to_disk(building)


def fit(document: Document, left_out: Counts) -> Document:
    """The document with entities of whole tokens, and without relations."""
    document = remove_relations(remove_parts(document, left_out, *LACKS), left_out)
    doc = _doc(document, _spacy().blank("en"))

    def fault_of(entity: Entity) -> str:
        if entity.fragments or not entity.type:
            return DISCONTINUOUS if entity.fragments else "an entity without a type"
        return "" if _span(doc, entity) is not None else INSIDE_TOKEN

    return keep_entities(document, left_out, fault_of)


WRITER = Writer(render, _open_file, fit)
