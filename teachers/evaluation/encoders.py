"""Encoders opened for evaluation."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bertrelay.cache import Cache
from bertrelay.checks import check_dimensions
from bertrelay.evaluation.encode import Encode, finite
from bertrelay.model.encoder import SentenceEncoder, open_encoder
from bertrelay.model.pooling import Pooling


def encoder_at(model: str | Path, precision: str, cache: Cache | None = None) -> Encode:
    """Opens the encoder of a folder or hub id as a function from sentences to vectors, all of them finite."""
    return finite(partial(open_encoder(model, cache).encode, precision=precision))


def with_pooling(
    encoder: SentenceEncoder, pooling: Sequence[str] | None, truncate_dim: int | None = None
) -> SentenceEncoder:
    """Returns `encoder`; with another `pooling` a new one, without the modules that follow the pooling.

    truncate_dim: the number of dimensions to which vectors will be cut. Raises RequestError for more than it has.
    """
    if pooling is not None:
        encoder = encoder.with_parts(
            pooling=Pooling(pooling, encoder.pooling.include_prompt), projection=None, normalize=False
        )
        encoder.truncate_dim = None
    check_dimensions([truncate_dim or 1], encoder.dim)
    return encoder
