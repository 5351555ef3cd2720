"""OpenAI's routes: `/v1/embeddings` and `/v1/models`."""

import base64
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from bertrelay.data.vectors import Vectors
from pipelines.serve.embedding import ServedEncoder
from pipelines.serve.endpoints import Endpoint
from pipelines.serve.models import Models
from pipelines.serve.requests import Body, Texts, Usage

Ids = Annotated[list[int], Field(min_length=1)]
Inputs = Texts | Ids | Annotated[list[Ids], Field(min_length=1)]
"""A text or several, or the token ids of one or several."""


class EmbeddingsBody(Body):
    """A request for embeddings."""

    input: Inputs
    """A text, or several; or token ids, where the server accepts them."""
    encoding_format: Literal["float", "base64"] = "float"
    """Form of a vector: numbers, or little-endian float32 in base64."""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Only the first dimensions, scaled to length 1; of a model trained for it."""
    prompt_name: str | None = None
    """Name of the model's prompt before each text."""
    input_type: str | None = None
    """Purpose of the texts, which chooses a prompt: query, document, search_query or search_document."""
    truncate: bool | None = None
    """Cut texts beyond the longest input, which are an error otherwise."""


async def embeddings(models: Models, body: EmbeddingsBody, usage: Usage) -> dict[str, Any]:
    """The vectors of texts in the form of OpenAI."""
    encoder, prompt_name = models.encoder(body.model)
    route, prompt = encoder.route(body.prompt_name or prompt_name, body.input_type)
    vectors = await route.embed(
        texts_of(route, body.input),
        usage,
        prompt=prompt,
        truncate=body.truncate,
        dimensions=body.dimensions,
    )
    as_sent = base64_vectors(vectors) if body.encoding_format == "base64" else vectors.tolist()
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(as_sent)]
    counts = {"prompt_tokens": usage.tokens, "total_tokens": usage.tokens}
    counts |= {"truncated_texts": usage.cut} if usage.cut else {}
    return {"object": "list", "data": data, "model": body.model or encoder.name, "usage": counts}


def texts_of(encoder: ServedEncoder, inputs: Inputs) -> str | list[str]:
    """The texts of a request. Raises Refusal for token ids, unless the server accepts them."""
    if isinstance(inputs, str):
        return inputs
    rows: list[Any] = [inputs] if isinstance(inputs[0], int) else inputs
    return rows if isinstance(rows[0], str) else encoder.texts_of_ids(rows)


def base64_vectors(vectors: Vectors) -> list[str]:
    """Vectors as little-endian float32 in base64."""
    return [base64.b64encode(vector.tobytes()).decode() for vector in np.ascontiguousarray(vectors, "<f4")]


def model_list(models: Models, created: int) -> dict[str, Any]:
    """The models of the server in the form of OpenAI; an encoder also by each of its prompts, `NAME:PROMPT`."""
    entries = []
    for model in models:
        prompts = list(model.encoder.prompts.texts) if isinstance(model, ServedEncoder) else []
        for name in (model.name, *(f"{model.name}:{prompt}" for prompt in prompts)):
            entry = {"id": name, "object": "model", "created": created, "owned_by": "bertrelay"}
            entries.append({**entry, "kind": model.kind})
    return {"object": "list", "data": entries}


ENDPOINTS = [
    Endpoint(
        "/v1/embeddings",
        ServedEncoder,
        EmbeddingsBody,
        embeddings,
        "Embeddings, as of OpenAI",
        {"input": ["A dog runs.", "Ein Hund läuft."]},
    )
]
