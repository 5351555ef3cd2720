"""InferSent's BiLSTM against torch's, and its training."""

import json

import numpy as np
import pytest
import torch

from bertrelay.errors import RequestError
from teachers.sbert_paper.bilstm import BiLstmEncoder, run
from teachers.sbert_paper.settings import BiLstmSettings
from teachers.sbert_paper.word_vectors import WordVectors

WORDS = ["the", "dog", "cat", "bird", "runs", "sleeps", "sings", "."]
WORD_VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)
SENTENCES = ["the dog runs.", "The cat sleeps", "bird", "the zebra sings in the bird.", ""]


@pytest.fixture
def encoder():
    return BiLstmEncoder.of(WordVectors({word: row for row, word in enumerate(WORDS)}, WORD_VECTORS), hidden=3, seed=1)


def by_torch(encoder, words):
    """The maximum of each dimension over the states of torch's LSTM for these words, without padding."""
    vectors = [WORD_VECTORS[WORDS.index(word)] if word in WORDS else np.zeros(5, np.float32) for word in words]
    with torch.inference_mode():
        states, _ = encoder.lstm(torch.from_numpy(np.stack(vectors))[None])  # (1, words, 2 · hidden)
    return states[0].amax(dim=0).numpy()


def test_a_vector_is_the_maximum_over_both_directions_and_padding_changes_nothing(encoder):
    vectors = encoder.encode(SENTENCES)
    words = [["the", "dog", "runs", "."], ["the", "cat", "sleeps"], ["bird"]]
    words += [["the", "zebra", "sings", "in", "the", "bird", "."], ["zebra"]]
    np.testing.assert_allclose(vectors, [by_torch(encoder, sentence) for sentence in words], atol=1e-5)


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


def test_it_learns_labelled_pairs_and_leaves_the_word_vectors(context, tmp_path, encode_of):
    lines = [" ".join([word, *map(str, vector)]) for word, vector in zip(WORDS, WORD_VECTORS, strict=True)]
    (tmp_path / "glove.txt").write_text("".join(f"{line}\n" for line in lines))
    drawn = np.random.default_rng(3)
    for part, count in (("train", 300), ("dev", 60)):
        rows = [("premise", "hypothesis", "label")]
        for _ in range(count):
            a, b = drawn.choice(["dog", "cat", "bird"], 2)
            rows.append((f"the {a} runs", f"the {b} {drawn.choice(WORDS[4:7])}", "same" if a == b else "other"))
        (tmp_path / f"{part}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    tables = {part: [{"path": str(tmp_path / f"{part}.tsv")}] for part in ("train", "dev")}
    settings = {**tables, "glove": str(tmp_path / "glove.txt"), "hidden": 16, "epochs": 40, "learning_rate": 2e-2}
    metrics = run(BiLstmSettings.model_validate({**settings, "batch_items": 16, "precision": "fp32"}), context)
    accuracy = metrics["dev/accuracy"]
    assert accuracy is not None and accuracy > 0.9
    trained = BiLstmEncoder.load(context.output / "model")
    after = trained.embeddings.weight[1 + trained.words.index("dog")].numpy()
    np.testing.assert_allclose(after, WORD_VECTORS[WORDS.index("dog")], rtol=1e-5)
    encode = encode_of(bilstm=str(context.output / "model"))
    np.testing.assert_allclose(encode(SENTENCES), trained.encode(SENTENCES), rtol=1e-6)
