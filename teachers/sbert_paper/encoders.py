"""Encoders that the protocols compare: a sentence encoder, averaged word vectors, InferSent's BiLSTM, TF-IDF."""

from collections.abc import Callable, Sequence
from functools import cache as once
from functools import partial
from pathlib import Path

import numpy as np

from bertrelay.cache import Cache
from bertrelay.device import default_device
from bertrelay.evaluation.encode import Encode, finite
from bertrelay.model.encoder import open_encoder
from teachers.evaluation.encoders import with_pooling
from teachers.sbert_paper.bilstm import BiLstmEncoder
from teachers.sbert_paper.settings import ProtocolSettings
from teachers.sbert_paper.word_vectors import vectors_for

TERMS = 5_000  # the most frequent ones: enough for these sets, and small enough to hold them dense

Fit = Callable[[Sequence[str]], Encode]
"""From all sentences of a set to the function that encodes some of them; TF-IDF and word vectors depend on all."""


def fit_of(settings: ProtocolSettings, precision: str = "fp32", cache: Cache | None = None) -> Fit:
    """Returns the encoder that `settings` name, to vectors, float32 (sentences, dim), all of them finite.

    A network is loaded with its first sentences. precision: of a sentence encoder. cache: of models of the hub.
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
        return finite(partial(encoder.encode, precision=precision, truncate_dim=settings.truncate_dim))

    return lambda _: network()


def tfidf(sentences: Sequence[str]) -> Encode:
    """Fits TF-IDF vectors of length 1 over the most frequent words of `sentences`, (sentences, words)."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(max_features=TERMS, token_pattern=r"(?u)\b\w+\b", dtype=np.float32).fit(sentences)
    return lambda block: np.asarray(vectorizer.transform(block).toarray())


def at_once(fit: Fit) -> Encode:
    """Returns an encoder that fits on the sentences of each call."""
    return lambda sentences: fit(sentences)(sentences)
