"""Everything that gives sentence vectors: an encoder, averaged word vectors, TF-IDF."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import WorkError
from bertrelay.hardware import accelerator
from bertrelay.pooling import Pooling
from teachers.baselines.bilstm import BiLstmEncoder
from teachers.baselines.word_vectors import encode_with
from teachers.evaluation.settings import EncoderSource
from teachers.evaluation.sts import Encode

TERMS = 5_000  # the most frequent ones: enough for these sets, and small enough to hold them dense


def encode_of(source: EncoderSource, cache: Path | None = None) -> Encode:
    """The function from sentences to vectors, float32 (sentences, dim), that `source` names; all of them finite."""
    if source.glove is not None:
        return finite(partial(encode_with, Path(source.glove)))
    if source.tfidf:
        return tfidf
    if source.bilstm is not None:
        return finite(BiLstmEncoder.load(source.bilstm).to(accelerator().device).encode)
    assert source.model is not None
    encoder = SentenceEncoder.load(source.model, cache_dir=cache and cache / "hub").to(accelerator().device)
    if source.pooling is not None:
        encoder = repooled(encoder, source.pooling)
    return finite(partial(encoder.encode, precision=source.precision))


def repooled(encoder: SentenceEncoder, pooling: Sequence[str]) -> SentenceEncoder:
    """The network of `encoder` under another pooling, without what came after its own."""
    return SentenceEncoder(
        encoder.backbone,
        encoder.tokenizer,
        pooling=Pooling(pooling),
        max_tokens=encoder.max_tokens,
        prompts=encoder.prompts,
    )


def finite(encode: Encode) -> Encode:
    """`encode`, but raising WorkError where a vector has a figure that is none."""

    def checked(sentences: Sequence[str]) -> NDArray[np.float32]:
        vectors = encode(sentences)
        spoilt = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(spoilt):
            raise WorkError(
                f"expected finite vectors, found {len(spoilt):,} of {len(vectors):,} with NaN or infinity, the first "
                f"for sentence {spoilt[0]:,} counted from 0. Check the model's weights, or ask for precision fp32."
            )
        return vectors

    return checked


def tfidf(sentences: Sequence[str]) -> NDArray[np.float32]:
    """TF-IDF vectors of length 1 over the most frequent words of `sentences` themselves, (sentences, words)."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(max_features=TERMS, token_pattern=r"(?u)\b\w+\b", dtype=np.float32)
    vectors: NDArray[np.float32] = vectorizer.fit_transform(sentences).toarray()
    return vectors
