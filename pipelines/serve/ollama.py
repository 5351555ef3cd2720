"""Ollama's route `/api/embed`."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from pipelines.serve.embedding import ServedEncoder
from pipelines.serve.endpoints import Endpoint
from pipelines.serve.models import Models
from pipelines.serve.requests import Body, Refusal, Texts, Usage


def ollama_error(refusal: Refusal) -> Mapping[str, Any]:
    """An error in Ollama's form."""
    return {"error": str(refusal)}


class OllamaBody(Body):
    """A request for vectors."""

    input: Texts
    """A text, or several."""
    truncate: bool = True
    """Cut texts beyond the longest input, as Ollama does by default."""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Only the first dimensions; of a model trained for it."""


async def embed(models: Models, body: OllamaBody, usage: Usage) -> dict[str, Any]:
    """The vectors of texts at length 1."""
    started = time.monotonic_ns()
    name = body.model and body.model.removesuffix(":latest")  # which Ollama's clients add
    encoder, prompt_name = models.encoder(name)
    vectors = await encoder.embed(
        body.input,
        usage,
        prompt=encoder.prompt(prompt_name),
        truncate=body.truncate,
        dimensions=body.dimensions,
        normalize=True,
    )
    durations = {"total_duration": time.monotonic_ns() - started, "load_duration": 0}
    return {
        "model": body.model or encoder.name,
        "embeddings": vectors.tolist(),
        **durations,
        "prompt_eval_count": usage.tokens,
    }


ENDPOINTS = [
    Endpoint(
        "/api/embed", ServedEncoder, OllamaBody, embed, "Vectors, as of Ollama", {"input": "A dog runs."}, ollama_error
    )
]
