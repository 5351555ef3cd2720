"""TF-IDF by hand, other poolings, and models that are no encoders."""

import numpy as np
import pytest

from bertrelay.errors import RequestError, WorkError
from bertrelay.evaluation.encode import finite
from teachers.pairs.model import start_cross_encoder
from teachers.sbert_paper.encoders import tfidf
from teachers.sbert_paper.poly_encoder import PolyEncoder


def test_tf_idf_by_hand():
    sentences = ["dog runs", "dog sleeps"]
    vectors = tfidf(sentences)(sentences)
    rare = np.log(3 / 2) + 1  # scikit-learn's smoothed idf; of a word in both sentences it is 1
    expected = np.array([[1, rare, 0], [1, 0, rare]]) / np.hypot(1, rare)
    np.testing.assert_allclose(vectors, expected, rtol=1e-6)


def test_another_pooling_is_that_of_the_same_network(tmp_path, tiny_encoder, encode_of):
    sentences = ["A dog runs.", "Two cats sleep.", "A bird."]
    tiny_encoder("bert", sentences).save(tmp_path / "model")
    expected = tiny_encoder("bert", sentences, pooling=["cls"]).encode(sentences, precision="fp32")
    encode = encode_of(model=str(tmp_path / "model"), pooling=["cls"])
    np.testing.assert_allclose(encode(sentences), expected, rtol=1e-5)


def test_a_network_that_scores_pairs_is_no_sentence_encoder(tmp_path, tiny_encoder, encode_of):
    encoder = tiny_encoder("bert", ["A dog runs."])
    encoder.save(tmp_path / "base")
    PolyEncoder(encoder, codes=2).save(tmp_path / "poly")
    start_cross_encoder(tmp_path / "base").save(tmp_path / "cross")
    for kind in ("poly", "cross"):
        with pytest.raises(RequestError, match=rf"{kind} a network that scores pairs of .* `bertrelay rerank`"):
            encode_of(model=str(tmp_path / kind))(["A dog runs."])


def test_vectors_that_are_not_finite_are_refused_without_their_sentence():
    vectors = np.array([[1, 2], [np.nan, 1], [np.inf, 0]], np.float32)
    with pytest.raises(WorkError, match="gives a vector that is not finite for sentence 2") as raised:
        finite(lambda _: vectors)(["one", "secret", "three"])
    assert "secret" not in str(raised.value)
