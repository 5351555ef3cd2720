"""Averaged word vectors by NumPy's own arithmetic, TF-IDF, other poolings, and vectors that are none."""

import gzip
import json

import numpy as np
import pytest
import torch

from bertrelay.errors import RequestError, WorkError
from bertrelay.evaluation.encode import finite
from teachers.pairs.model import start_cross_encoder
from teachers.sbert_paper.encoders import at_once, fit_of, tfidf
from teachers.sbert_paper.poly_encoder import PolyEncoder
from teachers.sbert_paper.settings import BiLstmSettings, ProtocolSettings
from teachers.sbert_paper.word_vectors import BiLstmEncoder, WordVectors, run


def encode_of(**source):
    return at_once(fit_of(ProtocolSettings.model_validate({"protocols": ["sts"], "data": ".", **source})))


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
def test_a_sentence_is_the_mean_of_its_words(tmp_path, name, first):
    encode = encode_of(glove=str(write_vectors(tmp_path / name, first)))
    found = encode(["The dog runs.", "Dog zebra", "I can't.", "zebra"])
    means = [np.mean([VECTORS[word] for word in ("the", "dog", "runs", ".")], axis=0)]
    means += [np.array(VECTORS["Dog"]), np.mean([VECTORS["can't"], VECTORS["."]], axis=0), np.zeros(3)]
    np.testing.assert_allclose(found, means, rtol=1e-6)
    with pytest.raises(RequestError, match="knows no word of these sentences"):
        encode(["zebra"])


def test_a_word_may_have_spaces_and_only_the_words_that_are_wanted_are_kept(tmp_path):
    path = write_vectors(tmp_path / "glove.txt")
    path.write_text(path.read_text() + ". . 1 2 3\n7 1 2 3\n")
    found = WordVectors.load(path, only=[". .", "7", "dog", "zebra"])
    assert dict(zip(found.rows, found.matrix.tolist(), strict=True)) == {
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


def test_tf_idf_by_hand():
    sentences = ["dog runs", "dog sleeps"]
    found = tfidf(sentences)(sentences)
    rare = np.log(3 / 2) + 1  # scikit-learn's smoothed idf; of a word in both sentences it is 1
    expected = np.array([[1, rare, 0], [1, 0, rare]]) / np.hypot(1, rare)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_another_pooling_is_that_of_the_same_network(tmp_path, tiny_encoder):
    sentences = ["A dog runs.", "Two cats sleep.", "A bird."]
    tiny_encoder("bert", sentences).save(tmp_path / "model")
    expected = tiny_encoder("bert", sentences, pooling=["cls"]).encode(sentences, precision="fp32")
    encode = encode_of(model=str(tmp_path / "model"), pooling=["cls"])
    np.testing.assert_allclose(encode(sentences), expected, rtol=1e-5)


def test_a_network_that_scores_pairs_is_no_sentence_encoder(tmp_path, tiny_encoder):
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


WORDS = ["the", "dog", "cat", "bird", "runs", "sleeps", "sings", "."]
WORD_VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)
SENTENCES = ["the dog runs.", "The cat sleeps", "bird", "the zebra sings in the bird.", ""]


@pytest.fixture
def encoder():
    return BiLstmEncoder.of(WordVectors({word: row for row, word in enumerate(WORDS)}, WORD_VECTORS), hidden=3, seed=1)


def alone(encoder, words):
    """The maximum of each dimension over the states of torch's LSTM for these words and no padding."""
    vectors = [WORD_VECTORS[WORDS.index(word)] if word in WORDS else np.zeros(5, np.float32) for word in words]
    with torch.inference_mode():
        states, _ = encoder.lstm(torch.from_numpy(np.stack(vectors))[None])  # (1, words, 2 · hidden)
    return states[0].amax(dim=0).numpy()


def test_a_vector_is_the_maximum_over_both_directions_and_padding_changes_nothing(encoder):
    found = encoder.encode(SENTENCES)
    words = [["the", "dog", "runs", "."], ["the", "cat", "sleeps"], ["bird"]]
    words += [["the", "zebra", "sings", "in", "the", "bird", "."], ["zebra"]]
    np.testing.assert_allclose(found, [alone(encoder, each) for each in words], atol=1e-5)


def test_it_loads_after_saving_with_equal_vectors_and_other_weights_are_refused(encoder, tmp_path):
    encoder.save(tmp_path / "model")
    loaded = BiLstmEncoder.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.encode(SENTENCES), encoder.encode(SENTENCES), rtol=1e-6)
    with pytest.raises(RequestError, match=r"expected bilstm\.json and bilstm\.safetensors in"):
        BiLstmEncoder.load(tmp_path)
    described = json.loads((tmp_path / "model/bilstm.json").read_text())
    (tmp_path / "model/bilstm.json").write_text(json.dumps({**described, "hidden": 4}))
    with pytest.raises(RequestError, match=r"bilstm\.json describes in .*bilstm\.safetensors, found none that"):
        BiLstmEncoder.load(tmp_path / "model")


def test_it_learns_labelled_pairs_and_leaves_the_word_vectors(context, tmp_path):
    lines = [" ".join([word, *map(str, vector)]) for word, vector in zip(WORDS, WORD_VECTORS, strict=True)]
    (tmp_path / "glove.txt").write_text("".join(f"{line}\n" for line in lines))
    drawn = np.random.default_rng(3)
    for part, count in (("train", 300), ("dev", 60)):
        rows = [("premise", "hypothesis", "label")]
        for _ in range(count):
            a, b = drawn.choice(["dog", "cat", "bird"], 2)
            rows.append((f"the {a} runs", f"the {b} {drawn.choice(WORDS[4:7])}", "same" if a == b else "other"))
        (tmp_path / f"{part}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    given = {part: [{"path": str(tmp_path / f"{part}.tsv")}] for part in ("train", "dev")}
    settings = {**given, "glove": str(tmp_path / "glove.txt"), "hidden": 16, "epochs": 40, "learning_rate": 2e-2}
    metrics = run(BiLstmSettings.model_validate({**settings, "batch_items": 16, "precision": "fp32"}), context)
    accuracy = metrics["dev/accuracy"]
    assert accuracy is not None and accuracy > 0.9
    trained = BiLstmEncoder.load(context.output / "model")
    kept = trained.embeddings.weight[1 + trained.words.index("dog")].numpy()
    np.testing.assert_allclose(kept, WORD_VECTORS[WORDS.index("dog")], rtol=1e-5)
    encode = encode_of(bilstm=str(context.output / "model"))
    np.testing.assert_allclose(encode(SENTENCES), trained.encode(SENTENCES), rtol=1e-6)
