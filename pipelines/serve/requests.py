"""The refusal of a request, what a request cost, and the bodies of requests: their base and common fields."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pipelines.serve.engine import Engine, QueueFullError

RefusalKind = Literal[
    "invalid",
    "empty",
    "over_limit",
    "unauthorized",
    "forbidden",
    "not_found",
    "too_large",
    "unsupported",
    "slow",
    "busy",
    "internal",
]
STATUS: dict[RefusalKind, int] = {
    "invalid": 400,
    "empty": 400,
    "over_limit": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "slow": 408,
    "too_large": 413,
    "unsupported": 415,
    "busy": 429,
    "internal": 500,
}
Text = Annotated[str, Field(max_length=4_000_000)]
Texts = Text | Annotated[list[Text], Field(min_length=1)]


class Refusal(Exception):
    """A request that is not answered. The message never quotes a text of the request.

    kind: a key of STATUS. param: the field at fault. code: a word for programs, such as `model_not_found`.
    """

    def __init__(
        self,
        message: str,
        kind: RefusalKind = "invalid",
        *,
        param: str | None = None,
        code: str | None = None,
        retry_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.param, self.code, self.retry_seconds = kind, param, code or kind, retry_seconds

    @property
    def status(self) -> int:
        return STATUS[self.kind]


@dataclass
class Usage:
    """Costs of a request: tokens that were read, texts that were cut, and seconds in queue and network."""

    request_id: str = ""
    tokens: int = 0
    cut: int = 0
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0

    @property
    def headers(self) -> dict[str, str]:
        """The costs as headers of an answer; times in milliseconds."""
        times = {"x-compute-time": self.compute_seconds, "x-queue-time": self.queue_seconds}
        named = {name: str(round(1000 * seconds)) for name, seconds in times.items()}
        named["x-compute-tokens"] = str(self.tokens)
        return named | ({"x-truncated-texts": str(self.cut)} if self.cut else {})

    async def compute(self, engine: Engine, values: Sequence[Any], tokens: Sequence[int], group: int = 0) -> list[Any]:
        """The results of an engine for inputs with so many tokens each. Raises Refusal where its queue is full."""
        try:
            job = engine.submit(values, tokens, group)
        except QueueFullError as full:
            code = "rate_limit_exceeded"
            raise Refusal(str(full), "busy", code=code, retry_seconds=full.retry_seconds) from None
        computed = await asyncio.wrap_future(job)
        self.queue_seconds += computed.queue_seconds
        self.compute_seconds += computed.compute_seconds
        return computed.results


class Body(BaseModel):
    """Base of the JSON body of a request. Fields that no route knows are ignored, as other servers do."""

    model_config = ConfigDict(
        strict=True, frozen=True, allow_inf_nan=False, extra="ignore", use_attribute_docstrings=True
    )

    model: str | None = None
    """Name of the model, as /v1/models lists it; the first that can do it when absent."""


def list_of(texts: str | Sequence[str], most: int, param: str = "input") -> list[str]:
    """One text or several as a list. Raises Refusal for more than `most`."""
    listed = [texts] if isinstance(texts, str) else list(texts)
    if len(listed) > most:
        raise Refusal(
            f"{param}: expected at most {most:,} texts, found {len(listed):,}; send several requests",
            "over_limit",
            param=param,
        )
    return listed
