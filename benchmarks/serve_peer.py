"""The peer of `serve`: a function of FastAPI that calls sentence-transformers, in the threads of FastAPI's pool."""

import os

from fastapi import Body, FastAPI
from sentence_transformers import SentenceTransformer


def application() -> FastAPI:
    """The application of the model that MODEL names in the environment."""
    encoder, routes = SentenceTransformer(os.environ["MODEL"]), FastAPI()

    @routes.post("/embed")
    def embed(texts: list[str] = Body(alias="input", embed=True)) -> list[list[float]]:  # noqa: B008 (FastAPI's way)
        vectors: list[list[float]] = encoder.encode(texts, show_progress_bar=False).tolist()
        return vectors

    @routes.get("/health")
    def health() -> str:
        return "ok"

    return routes
