"""Settings of the server; free of torch."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from bertrelay.settings import BatchTokens, Positive, Precision, Settings
from students.searching.settings import IndexKind


class ServeSettings(Settings):
    """Limits and habits of a server, in Python and on the command line."""

    precision: Precision = "auto"
    """Precision of the computation; `auto` is bf16 where the device computes in it, else fp32."""
    batch_tokens: BatchTokens = None
    """Most tokens in a batch, padding included; chosen by the device when absent."""
    invariant: bool = False
    """Give a text the same bits whatever else is asked: an encoder computes batches of fixed shapes, other models one
    input at a time. It takes longer under load."""
    truncate: bool = False
    """Cut texts beyond the longest input where a request does not say; without, such a text is an error."""
    accept_token_ids: bool = False
    """Accept lists of numbers in place of texts, as ids of the model's own vocabulary."""
    dimensions: list[Annotated[Positive, Field(strict=False)]] = Field(default=[])
    """Dimensions that the encoders were trained to be cut to, beside those that their folders record. A request for
    others is refused. May be repeated."""
    allow_host: list[str] = Field(default=[])
    """Further Host name by which the server may be asked, as of a proxy. May be repeated."""
    allow_origin: list[str] = Field(default=[])
    """Origin of another site whose pages may ask the server: https://HOST. May be repeated."""
    queue_tokens: Positive = 524_288
    """Most tokens that wait for a model; further requests are refused with 429. An idle model takes any request."""
    max_texts: Positive = 2_048
    """Most texts in a request."""
    max_body_mb: Positive = 8
    """Most megabytes in the body of a request."""
    cache_mb: Annotated[int, Field(ge=0)] = 64
    """Megabytes of memory for vectors of earlier texts, by their digests; 0 keeps none. None are kept with
    --sensitive."""
    kind: IndexKind = "auto"
    """Kind of search in an index: as of `bertrelay search`."""


class AddressOptions(Settings):
    """The address of a server."""

    host: str = "127.0.0.1"
    """Address to listen on; another than this machine's own needs --key-file."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port to listen on; 0 takes a free one."""
    key_file: Path | None = None
    """File with a key on each line, one of which a request must name: `Authorization: Bearer KEY`."""

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if self.key_file is None and not is_local(self.host):
            raise ValueError(
                f"--host {self.host}: expected --key-file FILE beside an address that other machines reach, found none"
            )
        return self


def is_local(host: str) -> bool:
    """True for an address that only this machine reaches."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
