"""How an admission's text is cut into what a model can read at once; free of torch."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from bertrelay.settings import Positive, Settings


class ChunkSettings(Settings):
    """Chunks of an admission's text.

    max_tokens: of a chunk at most, special tokens included.
    overlap: tokens at most that a chunk repeats of the one before it; it begins with a sentence where it can.
    max_chunks: of an admission at most; those after them are left out and counted. None keeps all.
    """

    max_tokens: Annotated[int, Field(ge=8)] = 512
    overlap: Annotated[int, Field(ge=0)] = 0
    max_chunks: Positive | None = None

    @model_validator(mode="after")
    def _goes_on(self) -> Self:
        if self.overlap > self.max_tokens // 2:
            raise ValueError(
                f"overlap: expected at most half of max_tokens, {self.max_tokens // 2}, found {self.overlap}"
            )
        return self
