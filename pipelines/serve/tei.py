"""Routes of text-embeddings-inference: vectors, similarities, tokens and the scores of pairs."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field

from bertrelay.evaluation.similarity import matrix
from pipelines.serve.embedding import ServedEncoder
from pipelines.serve.endpoints import Endpoint, one_of
from pipelines.serve.heads import ServedScorer
from pipelines.serve.models import Models
from pipelines.serve.openai import Ids, Inputs, texts_of
from pipelines.serve.requests import Body, Refusal, RefusalKind, Text, Texts, Usage, list_of

ERRORS: Mapping[RefusalKind, tuple[int, str]] = {
    "invalid": (422, "Tokenizer"),
    "empty": (400, "Empty"),
    "over_limit": (413, "Validation"),
    "busy": (429, "Overloaded"),
    "internal": (424, "Backend"),
}
"""Status and type of errors, as of text-embeddings-inference's router/src/http/server.rs; others have the usual."""
LABEL = "LABEL_0"
"""The name of an only label in transformers."""


def tei_error(refusal: Refusal) -> tuple[int, Mapping[str, Any]]:
    """An error in the form of text-embeddings-inference."""
    status, kind = ERRORS.get(refusal.kind, (refusal.status, "Validation"))
    return status, {"error": str(refusal), "error_type": kind}


class EmbedAllBody(Body):
    """A request for the vectors of all tokens."""

    inputs: Inputs
    """A text, or several; or token ids, where the server accepts them."""
    truncate: bool | None = None
    """Cut texts beyond the longest input, which are an error otherwise."""
    prompt_name: str | None = None
    """Name of the model's prompt before each text."""


async def embed_all(models: Models, body: EmbedAllBody, usage: Usage) -> Any:
    """The vectors of the tokens of texts as lists of numbers."""
    encoder, prompt_name = models.encoder(body.model)
    encoder, prompt = encoder.route(body.prompt_name or prompt_name)
    vectors = await encoder.token_vectors(
        texts_of(encoder, body.inputs),
        usage,
        prompt=prompt,
        truncate=body.truncate,
    )
    return [of_text.tolist() for of_text in vectors]


class EmbedBody(EmbedAllBody):
    """A request for vectors."""

    normalize: bool = True
    """Scale vectors to length 1."""
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Only the first dimensions, scaled to length 1; of a model trained for it."""


async def embed(models: Models, body: EmbedBody, usage: Usage) -> Any:
    """The vectors of texts as lists of numbers."""
    encoder, prompt_name = models.encoder(body.model)
    encoder, prompt = encoder.route(body.prompt_name or prompt_name)
    vectors = await encoder.embed(
        texts_of(encoder, body.inputs),
        usage,
        prompt=prompt,
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
    encoder, prompt = encoder.route(body.parameters.prompt_name or prompt_name)
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


class DecodeBody(Body):
    """Token ids to turn into texts."""

    ids: Ids | Annotated[list[Ids], Field(min_length=1)]
    """The ids of a text, or of several."""
    skip_special_tokens: bool = True
    """Leave out the tokens that the model expects around a text."""


async def decode(models: Models, body: DecodeBody, usage: Usage) -> list[str]:  # noqa: ARG001
    """The texts of token ids."""
    encoder, _ = models.encoder(body.model)
    rows = cast(list[list[int]], body.ids if isinstance(body.ids[0], list) else [body.ids])
    return encoder.decode(rows, "ids", body.skip_special_tokens)


Pair = Annotated[list[Text], Field(min_length=2, max_length=2)]


class PredictBody(Body):
    """Pairs of texts to score."""

    inputs: Pair | Annotated[list[Pair], Field(min_length=1)]
    """Two texts, or several pairs of them."""
    raw_scores: bool = False
    """Scores before the sigmoid."""
    truncate: bool | None = None
    """Cut pairs beyond the longest input, which are an error otherwise."""


async def predict(models: Models, body: PredictBody, usage: Usage) -> Any:
    """The score of each pair, under the name of the only label."""
    scorer = one_of(ServedScorer, models, body)
    is_single = isinstance(body.inputs[0], str)
    rows = cast(list[list[str]], [body.inputs] if is_single else body.inputs)
    if len(rows) > scorer.settings.max_texts:
        raise Refusal(f"inputs: expected at most {scorer.settings.max_texts:,} pairs", "over_limit", param="inputs")
    pairs = [(first, second) for first, second in rows]
    scores = await scorer.score(pairs, usage, raw=body.raw_scores, truncate=body.truncate)
    labelled = [[{"score": score, "label": LABEL}] for score in scores]
    return labelled[0] if is_single else labelled


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
        "/embed_all", ServedEncoder, EmbedAllBody, embed_all, "Vectors of tokens", {"inputs": "A dog."}, tei_error
    ),
    Endpoint(
        "/similarity", ServedEncoder, SimilarityBody, similarity, "Similarities with a sentence", COMPARED, tei_error
    ),
    Endpoint("/tokenize", ServedEncoder, TokenizeBody, tokenize, "Tokens of texts", {"inputs": "A dog."}, tei_error),
    Endpoint("/decode", ServedEncoder, DecodeBody, decode, "Texts of token ids", {"ids": [1, 2, 3]}, tei_error),
    Endpoint(
        "/predict",
        ServedScorer,
        PredictBody,
        predict,
        "Scores of pairs",
        {"inputs": ["Who barks?", "A dog barks."]},
        tei_error,
    ),
]
