from itertools import count, islice

import numpy as np
import pytest

from bertrelay.errors import RequestError, WorkError
from bertrelay.evaluation.similarity import matrix, pairwise
from bertrelay.inference import compare
from bertrelay.inference.compare import compare_all, compare_pairs
from bertrelay.model.encoder import SentenceEncoder


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(compare, "BLOCK_SENTENCES", 6)
    monkeypatch.setattr(compare, "CELLS_AT_ONCE", 40)


@pytest.mark.usefixtures("small_blocks")
def test_pairs_come_in_order_with_their_similarity(make_encoder, many):
    encoder, others = make_encoder(), many[::-1]
    blocks = list(compare_pairs(encoder, zip(many, others, strict=True), "dot", precision="fp32"))
    assert [len(block.first) for block in blocks] == [3] * 20 + [1]
    assert [text for block in blocks for text in block.first] == many
    assert [text for block in blocks for text in block.second] == others
    expected = pairwise(encoder.encode(many, precision="fp32"), encoder.encode(others, precision="fp32"), "dot")
    np.testing.assert_allclose(np.concatenate([block.similarity for block in blocks]), expected, rtol=1e-4)


@pytest.mark.usefixtures("small_blocks")
def test_pairs_without_end_are_compared_as_they_come(make_encoder):
    endless = ((f"A dog {number}.", "Rain.") for number in count())
    blocks = islice(compare_pairs(make_encoder(), endless), 4)
    assert [block.first[0] for block in blocks] == ["A dog 0.", "A dog 3.", "A dog 6.", "A dog 9."]


@pytest.mark.usefixtures("small_blocks")
def test_all_with_all_is_the_matrix_some_rows_at_a_time(make_encoder, many):
    encoder = make_encoder()
    vectors = encoder.encode(many, precision="fp32")
    blocks = list(compare_all(encoder, many, many[:9], "euclidean", precision="fp32"))
    assert [len(block.first) for block in blocks] == [4] * 15 + [1]
    similarities = np.concatenate([block.similarity for block in blocks])
    np.testing.assert_allclose(similarities, matrix(vectors, vectors[:9], "euclidean"), atol=2e-4)
    alone = np.concatenate([block.similarity for block in compare_all(encoder, many[:9], precision="fp32")])
    np.testing.assert_allclose(alone, matrix(vectors[:9], vectors[:9]), atol=1e-5)


@pytest.mark.usefixtures("small_blocks")
def test_an_unknown_metric_is_refused_before_anything_is_encoded(make_encoder, monkeypatch):
    monkeypatch.setattr(compare, "encode", None)
    monkeypatch.setattr(compare, "encode_blocks", None)
    expected = "metric: expected cosine, dot, euclidean or manhattan, found 'cosin'"
    for compared in (
        lambda: compare_pairs(make_encoder(), [("a", "b")], "cosin"),
        lambda: compare_all(make_encoder(), ["a"], metric="cosin"),
    ):
        with pytest.raises(RequestError, match=expected):
            list(compared())
    for of_vectors in (pairwise, matrix):
        with pytest.raises(RequestError, match=expected):
            of_vectors(np.eye(2), np.eye(2), "cosin")


@pytest.mark.usefixtures("small_blocks")
def test_a_vector_that_is_not_finite_is_an_error_with_the_model_and_the_place(make_encoder, tmp_path):
    make_encoder().save(tmp_path / "spoilt")
    encoder = SentenceEncoder.load(tmp_path / "spoilt")
    word = encoder.tokenize(["Rain."])[0][1]
    encoder.backbone.embeddings.word_embeddings.weight.data[word] = float("nan")
    pairs = [("A dog runs.", "A dog runs.")] * 4 + [("A dog runs.", "Rain.")]
    with pytest.raises(WorkError, match=r"spoilt gives a vector that is not finite for pair 5\. .*precision fp32"):
        list(compare_pairs(encoder, pairs, precision="fp32"))
    with pytest.raises(WorkError, match="not finite for sentence 2 of the second list"):
        list(compare_all(encoder, ["A dog runs."], ["A dog runs.", "Rain."], precision="fp32"))


@pytest.mark.usefixtures("small_blocks")
def test_lists_may_be_iterators_and_other_things_are_refused(make_encoder):
    encoder, sentences = make_encoder(), ["A dog runs.", "Rain."]
    (block,) = compare_all(encoder, iter(sentences), iter(sentences), precision="fp32")
    (expected,) = compare_all(encoder, sentences, sentences, precision="fp32")
    np.testing.assert_array_equal(block.similarity, expected.similarity)
    for first in ("ab", {"text": sentences}, None, ["\ud800"], []):
        for lists in ([first], [sentences, first or 5]):
            with pytest.raises(RequestError, match="compare_all: expected"):
                list(compare_all(encoder, *lists))
    for pairs in (["ab"], None, [("a", None)], [("a", "\ud800")]):
        with pytest.raises(RequestError, match="compare_pairs: expected"):
            list(compare_pairs(encoder, pairs))
