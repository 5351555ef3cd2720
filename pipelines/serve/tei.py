"""Routes of text-embeddings-inference: `/embed`, `/similarity`, `/tokenize` and `/info`."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from bertrelay.evaluation.similarity import matrix
from pipelines.serve.embedding import ServedEncoder
from pipelines.serve.endpoints import Endpoint
from pipelines.serve.models import Models
from pipelines.serve.openai import Inputs, texts_of
from pipelines.serve.requests import Body, Refusal, Text, Texts, Usage, list_of

ERROR_TYPES = {"busy": "Overloaded", "internal": "Backend"}


def tei_error(refusal: Refusal) -> Mapping[str, Any]:
    """An error in the form of text-embeddings-inference."""
    return {"error": str(refusal), "error_type": ERROR_TYPES.get(refusal.kind, "Validation")}


class EmbedBody(Body):
    """A request for vectors."""

    inputs: Inputs
    """A text, or several; or token ids, where the server accepts them."""
    truncate: bool | None = None
    """Cut texts beyond the longest input, which are an error otherwise."""
    normalize: bool = True
    """Scale vectors to length 1."""
    prompt_name: str | None = None
    """Name of the model's prompt before each text."""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Only the first dimensions, scaled to length 1; of a model trained for it."""


async def embed(models: Models, body: EmbedBody, usage: Usage) -> Any:
    """The vectors of texts as lists of numbers."""
    encoder, prompt_name = models.encoder(body.model)
    vectors = await encoder.embed(
        texts_of(encoder, body.inputs),
        usage,
        prompt=encoder.prompt(body.prompt_name or prompt_name),
        truncate=body.truncate,
        dimensions=body.dimensions,
        normalize=body.normalize,
        param="inputs",
    )
    return vectors.tolist()


class ComparedSentences(BaseModel):
    """A sentence and those to compare it with."""

    model_config = ConfigDict(strict=True, extra="ignore")

    source_sentence: Text
    sentences: Annotated[list[Text], Field(min_length=1)]


class SimilarityParameters(BaseModel):
    """Options of a comparison."""

    model_config = ConfigDict(strict=True, extra="ignore")

    truncate: bool | None = None
    prompt_name: str | None = None


class SimilarityBody(Body):
    """Sentences to compare, as of the hub's sentence similarity."""

    inputs: ComparedSentences
    """`source_sentence`, and `sentences` to compare it with."""
    parameters: SimilarityParameters = SimilarityParameters()
    """`truncate` and `prompt_name`, as of /embed."""


async def similarity(models: Models, body: SimilarityBody, usage: Usage) -> list[float]:
    """The similarities of a sentence with others, by the measure of the model."""
    encoder, prompt_name = models.encoder(body.model)
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    prompt = encoder.prompt(body.parameters.prompt_name or prompt_name)
    vectors = await encoder.embed(texts, usage, prompt=prompt, truncate=body.parameters.truncate, param="inputs")
    (similarities,) = matrix(vectors[:1], vectors[1:], encoder.encoder.similarity_fn_name).tolist()
    return list(similarities)


class TokenizeBody(Body):
    """Texts to tokenize."""

    inputs: Texts
    """A text, or several."""
    add_special_tokens: bool = True
    """Add the tokens that the model expects around a text."""


async def tokenize(models: Models, body: TokenizeBody, usage: Usage) -> list[list[dict[str, Any]]]:  # noqa: ARG001
    """The tokens of texts, with the characters that they cover."""
    encoder, _ = models.encoder(body.model)
    texts = list_of(body.inputs, encoder.settings.max_texts, "inputs")
    return [encoder.tokens(text, body.add_special_tokens) for text in texts]


def info(models: Models) -> dict[str, Any]:
    """Facts about the first encoder. Raises Refusal where there is none."""
    encoder = models.find(ServedEncoder)
    facts = encoder.description
    return {
        "model_id": encoder.name,
        "model_sha": encoder.digest,
        "model_dtype": facts["precision"],
        "model_type": {"embedding": {"pooling": "+".join(facts["pooling"])}},
        "max_input_length": encoder.encoder.max_tokens,
        "max_batch_tokens": encoder.engine.batch_tokens,
        "max_client_batch_size": encoder.settings.max_texts,
        "auto_truncate": encoder.settings.truncate,
        "version": version("bertrelay"),
    }


COMPARED = {"inputs": {"source_sentence": "A dog runs.", "sentences": ["Ein Hund läuft.", "It rains."]}}
ENDPOINTS = [
    Endpoint("/embed", ServedEncoder, EmbedBody, embed, "Vectors, bare", {"inputs": ["A dog runs."]}, tei_error),
    Endpoint(
        "/similarity", ServedEncoder, SimilarityBody, similarity, "Similarities with a sentence", COMPARED, tei_error
    ),
    Endpoint("/tokenize", ServedEncoder, TokenizeBody, tokenize, "Tokens of texts", {"inputs": "A dog."}, tei_error),
]
