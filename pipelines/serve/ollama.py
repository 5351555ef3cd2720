"""Ollama's routes `/api/embed` and `/api/tags`."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from pipelines.serve.embedding import ServedEncoder
from pipelines.serve.endpoints import Endpoint
from pipelines.serve.models import Models
from pipelines.serve.requests import Body, Refusal, Texts, Usage


def ollama_error(refusal: Refusal) -> tuple[int, Mapping[str, Any]]:
    """An error in Ollama's form."""
    return refusal.status, {"error": str(refusal)}


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
    route, prompt = encoder.route(prompt_name)
    vectors = await route.embed(
        body.input,
        usage,
        prompt=prompt,
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


def tags(models: Models, started: float) -> dict[str, Any]:
    """The encoders in the form of Ollama; started: seconds since 1970."""
    since = datetime.fromtimestamp(started, UTC).isoformat()
    return {
        "models": [
            {
                "name": f"{encoder.name}:latest",
                "model": f"{encoder.name}:latest",
                "modified_at": since,
                "size": encoder.bytes,
                "digest": encoder.digest,
                "details": {"format": "safetensors", "family": encoder.encoder.backbone.config.model_type},
            }
            for encoder in models.of_kind(ServedEncoder)
        ]
    }


ENDPOINTS = [
    Endpoint(
        "/api/embed", ServedEncoder, OllamaBody, embed, "Vectors, as of Ollama", {"input": "A dog runs."}, ollama_error
    )
]
