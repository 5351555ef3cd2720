"""Averaged word vectors by hand."""

import gzip

import numpy as np
import pytest

from bertrelay.errors import RequestError
from teachers.sbert_paper.word_vectors import WordVectors

VECTORS = {
    "the": [1, 0, 2],
    "dog": [0.5, -1, 0],
    "Dog": [9, 9, 9],
    "runs": [-2, 4, 0.25],
    ".": [0, 0, 1],
    "can't": [5, 5, 5],
}


def write_vectors(path, first=""):
    lines = [" ".join([word, *map(str, values)]) for word, values in VECTORS.items()]
    content = "".join(f"{line}\n" for line in ([first] if first else []) + lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(("name", "first"), [("glove.txt", ""), ("glove.txt.gz", ""), ("word2vec.txt", "6 3")])
def test_a_sentence_is_the_mean_of_its_words(tmp_path, name, first, encode_of):
    encode = encode_of(glove=str(write_vectors(tmp_path / name, first)))
    vectors = encode(["The dog runs.", "Dog zebra", "I can't.", "zebra"])
    means = [np.mean([VECTORS[word] for word in ("the", "dog", "runs", ".")], axis=0)]
    means += [np.array(VECTORS["Dog"]), np.mean([VECTORS["can't"], VECTORS["."]], axis=0), np.zeros(3)]
    np.testing.assert_allclose(vectors, means, rtol=1e-6)
    with pytest.raises(RequestError, match="expected vectors of words of these sentences, found none"):
        encode(["zebra"])


def test_a_word_may_have_spaces_and_only_the_words_to_read_are_read(tmp_path):
    path = write_vectors(tmp_path / "glove.txt")
    path.write_text(path.read_text() + ". . 1 2 3\n7 1 2 3\n")
    read = WordVectors.load(path, only=[". .", "7", "dog", "zebra"])
    assert dict(zip(read.rows, read.matrix.tolist(), strict=True)) == {
        "dog": [0.5, -1, 0], ". .": [1, 2, 3], "7": [1, 2, 3],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cat 1 2", "line 7"),
        ("cat 1 2 x", "line 7: expected a word and 3 finite values, found others"),
        ("cat 1 2 nan", "line 7: expected a word and 3 finite values, found others"),
        ("cat 1 2 3 4", "line 7: expected a word and 3 values, found more"),
    ],
)
def test_a_word_of_other_values_is_refused_with_its_line(tmp_path, line, expected):
    path = write_vectors(tmp_path / "glove.txt")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(RequestError, match=expected):
        WordVectors.load(path)
