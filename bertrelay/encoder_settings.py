"""The settings of an encoder that is made anew, and of the sentence-pair data it is scored on; free of torch."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import Settings

Positive = Annotated[int, Field(ge=1)]
PoolingMode = Literal["cls", "mean", "max"]


class NewEncoder(Settings):
    """A network with random weights and a vocabulary learnt from the training corpus."""

    layers: Positive
    dim: Positive
    heads: Positive
    feed_forward: Positive | None = None
    """Inner size of the feed-forward layers; four times `dim` when absent."""
    vocabulary: Positive
    max_tokens: Positive = 128
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1

    @model_validator(mode="after")
    def _heads_divide_dim(self) -> Self:
        if self.dim % self.heads:
            raise ValueError(f"expected dim to be a multiple of heads, found dim {self.dim} and {self.heads} heads")
        return self
