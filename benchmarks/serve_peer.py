"""The peer of `serve`: a function of FastAPI that calls sentence-transformers, in the threads of FastAPI's pool."""

import sys

import uvicorn
from fastapi import Body, FastAPI
from sentence_transformers import SentenceTransformer


def application(model: str) -> FastAPI:
    encoder, routes = SentenceTransformer(model), FastAPI()

    @routes.post("/embed")
    def embed(texts: list[str] = Body(alias="input", embed=True)) -> list[list[float]]:  # noqa: B008 (FastAPI's way)
        vectors: list[list[float]] = encoder.encode(texts, show_progress_bar=False).tolist()
        return vectors

    @routes.get("/health")
    def health() -> str:
        return "ok"

    return routes


if __name__ == "__main__":
    model, port = sys.argv[1:]
    uvicorn.run(application(model), port=int(port), log_level="warning")
