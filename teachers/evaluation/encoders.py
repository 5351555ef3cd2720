"""Encoders as evaluations call them."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bertrelay.cache import Cache
from bertrelay.checks import check_dimensions
from bertrelay.evaluation.encode import Encode, finite
from bertrelay.model.encoder import SentenceEncoder, open_encoder
from bertrelay.model.pooling import Pooling


def encoder_at(model: str | Path, precision: str, cache: Cache | None = None) -> Encode:
    """What gives the vectors of the encoder of a folder or hub id, all of them finite."""
    return finite(partial(open_encoder(model, cache).encode, precision=precision))


def with_pooling(
    encoder: SentenceEncoder, pooling: Sequence[str] | None, truncate_dim: int | None = None
) -> SentenceEncoder:
    """`encoder`; with another `pooling` a new one, without the modules after its own.

    truncate_dim: dimensions that will be kept. Raises RequestError for more than the encoder has.
    """
    if pooling is not None:
        encoder = encoder.with_parts(
            pooling=Pooling(pooling, encoder.pooling.include_prompt), projection=None, normalize=False
        )
        encoder.truncate_dim = None
    check_dimensions([truncate_dim or 1], encoder.dim)
    return encoder
