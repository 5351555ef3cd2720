"""The server's routes of its tasks: `/search`, `/ner`, `/qa`, `/readmission` and `/outcomes`.

`/ner` and `/qa` also read and answer in the form of the hub's tasks, where a body has `inputs`.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bertrelay.data.tables import Rejected
from domain.biomedical.documents.document import Document
from domain.biomedical.documents.formats import writer_of
from domain.biomedical.documents.html import entity_page
from domain.biomedical.documents.jsonl import json_relation
from domain.biomedical.qa.data import Reply
from domain.biomedical.qa.settings import CANDIDATES
from domain.clinical.settings import READMISSION
from pipelines.serve.endpoints import Endpoint, one_of
from pipelines.serve.heads import ServedAnswerer, ServedExtractor, ServedLinker, ServedPredictor, ServedTagger
from pipelines.serve.models import Models
from pipelines.serve.requests import Body, Refusal, Text, Texts, Usage, list_of
from pipelines.serve.searching import ServedIndex
from students.searching.settings import SearchMode

NO_DEVICE = "For research only; this is no medical device."
MOST_HITS = 1_000

TextFormat = Literal["conll", "conll-iobes", "pubtator", "bioc", "bioc-xml", "brat", "jsonl", "html", "triples"]
"""The formats that are text; spaCy's is not."""
FilterValue = str | int | float | bool


class SearchBody(Body):
    """A request for the sentences nearest to queries; `model` names the index."""

    query: Texts
    """A text to look for, or several."""
    top_k: Annotated[int, Field(ge=1, le=MOST_HITS)] = 10
    """Sentences for each query."""
    mode: SearchMode = "dense"
    """Rank by vectors, by words, or by both; hits of the latter two have the words that match."""
    filter: dict[str, FilterValue | list[FilterValue]] | None = None
    """Only sentences that have one of these values in each of these columns."""
    where: str | None = None
    """Only sentences that fulfil a condition on columns, such as language = 'de' and year >= 2020."""


async def search(models: Models, body: SearchBody, usage: Usage) -> dict[str, Any]:
    """The sentences nearest to each query, best first."""
    index = one_of(ServedIndex, models, body)
    queries = list_of(body.query, index.encoder.settings.max_texts, "query")
    conditions = [condition for condition in (body.filter, body.where) if condition is not None]
    found_hits = await index.search(queries, body.top_k, usage, mode=body.mode, where=conditions)
    results = [
        {"query": query, "hits": [{"rank": rank, **hit.document} for rank, hit in enumerate(hits, 1)]}
        for query, hits in zip(queries, found_hits, strict=True)
    ]
    return {"model": index.name, "results": results}


class NerBody(Body):
    """A request for the entities of texts: `text`, or `inputs` as of the hub's token classification."""

    text: Texts | None = None
    """A text, or several."""
    inputs: Texts | None = None
    """A text, or several; the answer is in the form of the hub."""
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Only entities of at least this confidence."""
    link: bool | str = False
    """Give the entities the identifiers of a terminology: by the first linker, or by that of a name."""
    relate: bool | str = False
    """Find the relations of the entities: by the first model of relations, or by that of a name."""
    format: TextFormat | None = None
    """Answer with a file of this format; of one text."""

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if (self.text is None) == (self.inputs is None):
            raise ValueError("expected text or inputs")
        if self.format is not None and not isinstance(self.text, str):
            raise ValueError("format: expected one text")
        return self


async def entities(models: Models, body: NerBody, usage: Usage) -> Any:
    """The entities of texts, with offsets in characters."""
    tagger = one_of(ServedTagger, models, body)
    texts: Any = body.text if body.inputs is None else body.inputs
    documents = await tagger.tag(list_of(texts, tagger.settings.max_texts, "text"), usage)
    documents = [_likely(document, body.threshold) for document in documents]
    if body.link:
        documents = await models.find(ServedLinker, _name_in(body.link)).link(documents, usage)
    if body.relate:
        documents = await models.find(ServedExtractor, _name_in(body.relate)).relate(documents, usage)
    if body.format is not None:
        return {"model": tagger.name, "format": body.format, "content": _file_of(documents[0], body.format)}
    if body.inputs is None:
        return {"model": tagger.name, "documents": [_own_document(document, body) for document in documents]}
    rows = [_hub_entities(document) for document in documents]
    return rows[0] if isinstance(texts, str) else rows


def _name_in(chosen: bool | str) -> str | None:
    return chosen if isinstance(chosen, str) else None


def _likely(document: Document, threshold: float) -> Document:
    likely = (entity for entity in document.entities if (entity.confidence or 0.0) >= threshold)
    return replace(document, entities=tuple(likely))


def _file_of(document: Document, name: TextFormat) -> str:
    """The content of a file with a document. Raises Refusal where the format cannot hold it."""
    if name == "html":
        return entity_page([document], "Entities")
    try:
        return writer_of(name).file_text(document)
    except Rejected as fault:
        raise Refusal(f"format: expected one that can hold {fault.reason}", param="format") from None


def _own_document(document: Document, body: NerBody) -> dict[str, Any]:
    names = ["start", "end", "type", "text", "confidence", "identifier", *(["identifier_score"] if body.link else [])]
    rows = [{name: getattr(entity, name) for name in names} for entity in document.entities]
    relations = {"relations": [json_relation(relation) for relation in document.relations]} if body.relate else {}
    return {"entities": rows, **relations}


def _hub_entities(document: Document) -> list[dict[str, Any]]:
    names = {"entity_group": "type", "score": "confidence", "word": "text", "start": "start", "end": "end"}
    return [{name: getattr(entity, ours) for name, ours in names.items()} for entity in document.entities]


class HubQuestion(BaseModel):
    """A question as of the hub's question answering."""

    model_config = ConfigDict(strict=True, extra="ignore")

    question: Text
    context: Text


class QaBody(Body):
    """A question and its context, or `inputs` as of the hub's question answering."""

    question: Text | None = None
    """The question."""
    context: Text | None = None
    """The text that may answer it."""
    inputs: HubQuestion | None = None
    """Question and context; the answer is in the form of the hub."""
    top_k: Annotated[int, Field(ge=1, le=CANDIDATES)] = 5
    """Most candidates in the answer."""

    @model_validator(mode="after")
    def _one_question(self) -> Self:
        if self.inputs is None and (self.question is None or self.context is None):
            raise ValueError("expected question and context, or inputs")
        return self


async def answer(models: Models, body: QaBody, usage: Usage) -> dict[str, Any]:
    """The answer to a question from its context, with offsets in characters."""
    answerer = one_of(ServedAnswerer, models, body)
    asked_for = body.inputs or body
    (reply,) = await answerer.answer([(asked_for.question or "", asked_for.context or "")], usage)
    if body.inputs is not None:
        return {"answer": reply.answer, "score": reply.probability, "start": reply.start or 0, "end": reply.end or 0}
    return {"model": answerer.name, **_own_reply(reply, body.top_k)}


def _own_reply(reply: Reply, top_k: int) -> dict[str, Any]:
    candidates = [
        {"answer": text, "start": start, "end": end, "probability": probability}
        for text, start, end, probability in reply.nbest[:top_k]
    ]
    best = {name: getattr(reply, name) for name in ("answer", "start", "end", "probability", "sentence")}
    return {**best, "candidates": candidates}


class NotesBody(Body):
    """The notes of one admission."""

    notes: Texts
    """A note, or all notes of the admission."""
    return_text: bool = False
    """Return the text as it is read, cleaned and joined, in which the chunks are."""


async def outcome(models: Models, body: NotesBody, usage: Usage, *, task: str | None = None) -> dict[str, Any]:
    """The probability of the outcome that a model predicts, and the chunks of the text that decide."""
    of_task = [model for model in models.of_kind(ServedPredictor) if task in (None, model.task)]
    if body.model is None and not of_task:
        raise Refusal(f"this server has no predictor of {task}", "not_found", code="model_not_found")
    predictor = one_of(ServedPredictor, models, body) if body.model else of_task[0]
    if predictor not in of_task:
        raise Refusal(f"model: expected a predictor of {task}, found one of {predictor.task}", param="model")
    notes = list_of(body.notes, predictor.settings.max_texts, "notes")
    ((text, score),) = await predictor.predict([notes], usage)
    stated = predictor.description
    return {
        "model": predictor.name,
        "task": predictor.task,
        "meaning": stated["meaning"],
        "probability": score.probability,
        "calibrated": score.calibrated,
        "alarm": score.alarm,
        "label": score.label,
        "labels": dict(zip(stated["labels"], score.by_label, strict=False)),
        "chunks": [chunk._asdict() for chunk in score.chunks],
        "reason": score.reason,
        "warning": NO_DEVICE,
        **({"text": text} if body.return_text else {}),
    }


readmission = partial(outcome, task=READMISSION.name)
NOTE = {"notes": ["Plan: the wound is dry."]}
ENDPOINTS = [
    Endpoint(
        "/search", ServedIndex, SearchBody, search, "Sentences nearest in meaning", {"query": "A dog runs.", "top_k": 3}
    ),
    Endpoint("/ner", ServedTagger, NerBody, entities, "Entities of texts", {"text": "The mice had gout."}),
    Endpoint(
        "/qa",
        ServedAnswerer,
        QaBody,
        answer,
        "An answer from a text",
        {"question": "Who had gout?", "context": "The mice had gout."},
    ),
    Endpoint(
        "/readmission", ServedPredictor, NotesBody, readmission, f"Probability of a readmission. {NO_DEVICE}", NOTE
    ),
    Endpoint("/outcomes", ServedPredictor, NotesBody, outcome, f"Probability of an outcome. {NO_DEVICE}", NOTE),
]
