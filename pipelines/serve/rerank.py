"""Reranking: `/rerank`, `/v1/rerank` and `/v2/rerank`, as of Cohere and Jina, or of text-embeddings-inference."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipelines.serve.endpoints import Endpoint, one_of
from pipelines.serve.heads import ServedScorer
from pipelines.serve.models import Models
from pipelines.serve.requests import Body, Text, Usage, list_of


class RankedDocument(BaseModel):
    """A document as an object."""

    model_config = ConfigDict(strict=True, extra="ignore")

    text: Text


class RerankBody(Body):
    """A query with `documents`, as of Cohere and Jina, or with `texts`, as of text-embeddings-inference."""

    query: Text
    """The query."""
    documents: Annotated[list[Text | RankedDocument], Field(min_length=1)] | None = None
    """Texts to rank, or objects with a `text`."""
    texts: Annotated[list[Text], Field(min_length=1)] | None = None
    """Texts to rank; the answer is in the form of text-embeddings-inference."""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """Only so many, the best."""
    return_documents: bool = False
    """Return each document beside its score."""
    return_text: bool = False
    """Return each of `texts` beside its score."""
    raw_scores: bool = False
    """Scores before the sigmoid."""
    truncate: bool | None = None
    """Cut texts beyond the longest input, which are an error otherwise."""

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if (self.documents is None) == (self.texts is None):
            raise ValueError("expected documents or texts")
        return self


async def rerank(models: Models, body: RerankBody, usage: Usage) -> Any:
    """The scores of texts with a query, best first."""
    scorer = one_of(ServedScorer, models, body)
    listed = body.texts or [one if isinstance(one, str) else one.text for one in body.documents or []]
    texts = list_of(listed, scorer.settings.max_texts, "documents" if body.texts is None else "texts")
    pairs = [(body.query, text) for text in texts]
    scores = await scorer.score(pairs, usage, raw=body.raw_scores, truncate=body.truncate)
    order = sorted(range(len(scores)), key=lambda row: -scores[row])[: body.top_n]
    if body.texts is not None:
        return [
            {"index": row, "score": scores[row], **({"text": texts[row]} if body.return_text else {})} for row in order
        ]
    results = [
        {"index": row, "relevance_score": scores[row]}
        | ({"document": {"text": texts[row]}} if body.return_documents else {})
        for row in order
    ]
    return {"id": usage.request_id, "model": scorer.name, "results": results, "usage": {"total_tokens": usage.tokens}}


ENDPOINTS = [
    Endpoint(
        path,
        ServedScorer,
        RerankBody,
        rerank,
        "Texts ranked for a query",
        {"query": "Who barks?", "documents": ["A dog barks.", "It rains."]},
    )
    for path in ("/rerank", "/v1/rerank", "/v2/rerank")
]
