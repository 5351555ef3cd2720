"""Averaged word vectors by NumPy's own arithmetic, TF-IDF, other poolings, and vectors that are none."""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError, WorkError
from teachers.baselines.encoders import encode_of, finite, tfidf
from teachers.baselines.poly_encoder import PolyEncoder
from teachers.baselines.word_vectors import WordVectors
from teachers.cross_encoder import start_cross_encoder
from teachers.evaluation.settings import EncoderSource

VECTORS = {
    "the": [1, 0, 2],
    "dog": [0.5, -1, 0],
    "Dog": [9, 9, 9],
    "runs": [-2, 4, 0.25],
    ".": [0, 0, 1],
    "can't": [5, 5, 5],
}


def write_vectors(path: Path, first: str = "") -> Path:
    lines = [" ".join([word, *map(str, figures)]) for word, figures in VECTORS.items()]
    content = "".join(f"{line}\n" for line in ([first] if first else []) + lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(("name", "first"), [("glove.txt", ""), ("glove.txt.gz", ""), ("word2vec.txt", "6 3")])
def test_a_sentence_is_the_mean_of_its_words(tmp_path: Path, name: str, first: str) -> None:
    path = write_vectors(tmp_path / name, first)
    encode = encode_of(EncoderSource(glove=str(path)), tmp_path)
    found = encode(["The dog runs.", "Dog zebra", "I can't.", "zebra"])
    means = [np.mean([VECTORS[word] for word in ("the", "dog", "runs", ".")], axis=0)]
    means += [np.array(VECTORS["Dog"]), np.mean([VECTORS["can't"], VECTORS["."]], axis=0), np.zeros(3)]
    np.testing.assert_allclose(found, means, rtol=1e-6)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("cat 1 2", "line 7"),
        ("cat 1 2 x", "line 7: expected a word and 3 finite values, found others"),
        ("cat 1 2 nan", "line 7: expected a word and 3 finite values, found others"),
        ("cat 1 2 3 4", "line 7: expected a word and 3 values, found more"),
    ],
)
def test_a_word_of_other_figures_is_told_with_its_line(tmp_path: Path, line: str, told: str) -> None:
    path = write_vectors(tmp_path / "glove.txt")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(RequestError, match=told):
        WordVectors.load(path)


def test_a_word_may_have_spaces(tmp_path: Path) -> None:
    path = write_vectors(tmp_path / "glove.txt")
    path.write_text(path.read_text() + ". . 1 2 3\n7 1 2 3\n")
    found = WordVectors.load(path)
    assert [found.matrix[found.rows[word]].tolist() for word in (". .", "7")] == [[1, 2, 3]] * 2


def test_tf_idf_by_hand() -> None:
    sentences = ["dog runs", "dog sleeps"]
    found = tfidf(sentences)(sentences)
    rare = np.log(3 / 2) + 1  # scikit-learn's smoothed idf; of a word in both sentences it is 1
    expected = np.array([[1, rare, 0], [1, 0, rare]]) / np.hypot(1, rare)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_another_pooling_is_that_of_the_same_network(
    tmp_path: Path, tiny_encoder: Callable[..., SentenceEncoder]
) -> None:
    sentences = ["A dog runs.", "Two cats sleep.", "A bird."]
    tiny_encoder("bert", sentences).save(tmp_path / "model")
    tiny_encoder("bert", sentences, pooling=["cls"]).save(tmp_path / "cls")
    source = EncoderSource.model_validate({"model": str(tmp_path / "model"), "pooling": ["cls"], "precision": "fp32"})
    expected = SentenceEncoder.load(tmp_path / "cls").encode(sentences, precision="fp32")
    np.testing.assert_allclose(encode_of(source, tmp_path)(sentences), expected, rtol=1e-5)
    assert not np.allclose(SentenceEncoder.load(tmp_path / "model").encode(sentences, precision="fp32"), expected)


def test_a_network_that_scores_pairs_is_no_sentence_encoder(
    tmp_path: Path, tiny_encoder: Callable[..., SentenceEncoder]
) -> None:
    encoder = tiny_encoder("bert", ["A dog runs."])
    encoder.save(tmp_path / "base")
    PolyEncoder(encoder, codes=2).save(tmp_path / "poly")
    start_cross_encoder(tmp_path / "base").save(tmp_path / "cross")
    for kind in ("poly", "cross"):
        source = EncoderSource.model_validate({"model": str(tmp_path / kind)})
        with pytest.raises(RequestError, match=rf"{kind} a network that scores pairs of .* `bertrelay rerank`"):
            encode_of(source, tmp_path)


def test_vectors_that_are_no_figures_are_told_without_their_sentence() -> None:
    def encode(sentences: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[1, 2], [np.nan, 1], [np.inf, 0]], np.float32)[: len(sentences)]

    with pytest.raises(WorkError, match="found 2 of 3 with NaN or infinity, the first for sentence 1") as raised:
        finite(encode)(["one", "secret", "three"])
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("given", [{}, {"tfidf": True, "glove": "a.txt"}, {"tfidf": True, "pooling": ["cls"]}])
def test_exactly_one_source_of_vectors_is_taken(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"exactly one of model, glove, bilstm and tfidf|only a model has one"):
        EncoderSource.model_validate(given)


def test_a_packed_file_of_vectors_that_is_cut_off_is_told(tmp_path: Path) -> None:
    path = write_vectors(tmp_path / "glove.txt.gz")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RequestError, match=r"glove\.txt\.gz is cut off or damaged"):
        WordVectors.load(path)
