"""Settings of the model to start from: an existing one, or the size of a new one. Free of torch."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from bertrelay.settings import ModelSource, Settings

VocabularySize = Annotated[int, Field(ge=50, le=10_000_000)]
MOST_WEIGHTS = 10_000_000_000
GraphPrecision = Literal["fp32", "int8"]
Opset = Literal[20, 23]
PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken"]


class NewEncoder(Settings):
    """A network with random weights and a vocabulary trained on the corpus."""

    layers: Annotated[int, Field(ge=1, le=1_000)]
    """Layers of the network."""
    dim: Annotated[int, Field(ge=1, le=65_536)]
    """Size of its token vectors, a multiple of `heads`."""
    heads: Annotated[int, Field(ge=1, le=1_000)]
    """Attention heads of each layer."""
    feed_forward: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Inner size of the feed-forward layers; four times `dim` when absent."""
    vocabulary: VocabularySize
    """Most subwords of the vocabulary."""
    cased: bool = False
    """Train a cased vocabulary for a BERT, which names need; an XLM-R's is always cased."""
    max_tokens: Annotated[int, Field(ge=3, le=1_000_000)] = 128
    """Longest input, special tokens included."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout in every layer while training."""
    positions: Literal["sinusoidal"] | None = None
    """`sinusoidal` starts the position embeddings as sines and cosines (Vaswani et al. 2017), so that a small network
    learns sooner to attend to neighbouring tokens; random by default. Either way they are trained."""

    @model_validator(mode="after")
    def _heads_divide_dim(self) -> Self:
        if self.dim % self.heads:
            raise ValueError(f"expected dim to be a multiple of heads, found dim {self.dim} and {self.heads} heads")
        return self

    @model_validator(mode="after")
    def _fits_memory(self) -> Self:
        inner = self.feed_forward or 4 * self.dim
        weights = self.dim * (self.vocabulary + self.max_tokens + self.layers * (4 * self.dim + 2 * inner))
        if weights > MOST_WEIGHTS:
            raise ValueError(
                f"expected a network of at most {MOST_WEIGHTS:,} weights, found one of {weights:,}; lower layers, dim, "
                "feed_forward, vocabulary or max_tokens"
            )
        return self


def kind_of_base(value: Any) -> str | None:
    """The tag of a base's type in `Base`."""
    if isinstance(value, str):
        return "model"
    return "new" if isinstance(value, dict | NewEncoder) else None


Base = Annotated[
    Annotated[ModelSource, Tag("model")] | Annotated[NewEncoder, Tag("new")],
    Discriminator(
        kind_of_base,
        custom_error_type="base",
        custom_error_message="expected a model such as 'bert-base-uncased', or a size such as "
        "{ layers = 3, dim = 128, heads = 4, vocabulary = 2000 }",
    ),
]
"""A model that exists, or the size of a new one."""
