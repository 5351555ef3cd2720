"""Everything that gives sentence vectors: an encoder, averaged word vectors, InferSent's BiLSTM, TF-IDF."""

from collections.abc import Sequence
from functools import cache as once
from functools import partial
from pathlib import Path

import numpy as np

from bertrelay.cache import Cache
from bertrelay.checks import check_dimensions
from bertrelay.device import default_device
from bertrelay.evaluation.encode import Encode, finite
from bertrelay.model.encoder import SentenceEncoder, open_encoder
from bertrelay.model.pooling import Pooling
from teachers.baselines.word_vectors import BiLstmEncoder, vectors_for
from teachers.evaluation.settings import ProtocolSettings
from teachers.evaluation.sts import Fit

TERMS = 5_000  # the most frequent ones: enough for these sets, and small enough to hold them dense


def fit_of(settings: ProtocolSettings, cache: Cache | None = None) -> Fit:
    """What gives the vectors that `settings` name, float32 (sentences, dim), all of them finite.

    A network is loaded when vectors are first asked for.
    """
    if settings.glove is not None:
        path = Path(settings.glove)
        return lambda sentences: finite(vectors_for(path, sentences).encode)
    if settings.tfidf:
        return tfidf

    @once
    def network() -> Encode:
        if settings.bilstm is not None:
            return finite(BiLstmEncoder.load(settings.bilstm).to(default_device()).encode)
        assert settings.model is not None
        encoder = with_pooling(open_encoder(settings.model, cache), settings.pooling, settings.truncate_dim)
        return finite(partial(encoder.encode, precision=settings.precision, truncate_dim=settings.truncate_dim))

    return lambda _: network()


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


def tfidf(sentences: Sequence[str]) -> Encode:
    """TF-IDF vectors of length 1 over the most frequent words of `sentences`, (sentences, words)."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(max_features=TERMS, token_pattern=r"(?u)\b\w+\b", dtype=np.float32).fit(sentences)
    return lambda block: np.asarray(vectorizer.transform(block).toarray())
