"""InferSent's encoder against an LSTM written by hand, and its training."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bertrelay.errors import RequestError
from bertrelay.stage import StageContext
from teachers.baselines.encoders import encode_of
from teachers.baselines.word_vectors import BiLstmEncoder, WordVectors, run
from teachers.evaluation.settings import EncoderSource
from teachers.settings import BiLstmSettings

WORDS = ["the", "dog", "cat", "bird", "runs", "sleeps", "sings", "."]
VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)
SENTENCES = ["the dog runs.", "The cat sleeps", "bird", "the zebra sings in the bird.", ""]


@pytest.fixture
def encoder() -> BiLstmEncoder:
    return BiLstmEncoder.of(WordVectors({word: row for row, word in enumerate(WORDS)}, VECTORS), hidden=3, seed=1)


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def lstm_by_hand(encoder: BiLstmEncoder, inputs: NDArray[np.float32], end: str) -> NDArray[np.float64]:
    """The states after each of `inputs`, (words, hidden); the weights of this way have `end` behind their names."""
    own = encoder.lstm.state_dict()
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = {name: own[name + end].numpy() for name in names}
    state = cell = np.zeros(3)
    states = []
    for word in inputs:
        gates = weights["weight_ih_l0"] @ word + weights["bias_ih_l0"] + weights["weight_hh_l0"] @ state
        enter, forget, new, out = np.split(gates + weights["bias_hh_l0"], 4)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
        state = sigmoid(out) * np.tanh(cell)
        states.append(state)
    return np.array(states)


def by_hand(encoder: BiLstmEncoder, words: list[str]) -> NDArray[np.float64]:
    inputs = np.array([VECTORS[WORDS.index(word)] if word in WORDS else np.zeros(5) for word in words], np.float32)
    forward = lstm_by_hand(encoder, inputs, "")
    backward = lstm_by_hand(encoder, inputs[::-1], "_reverse")
    return np.concatenate([forward.max(axis=0), backward.max(axis=0)])


def test_a_vector_is_the_maximum_over_both_ways_and_padding_changes_nothing(encoder: BiLstmEncoder) -> None:
    found = encoder.encode(SENTENCES)
    words = [["the", "dog", "runs", "."], ["the", "cat", "sleeps"], ["bird"]]
    words += [["the", "zebra", "sings", "in", "the", "bird", "."], ["zebra"]]
    np.testing.assert_allclose(found, [by_hand(encoder, each) for each in words], atol=1e-5)


def test_it_loads_after_saving_with_equal_vectors(encoder: BiLstmEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path / "model")
    np.testing.assert_allclose(
        BiLstmEncoder.load(tmp_path / "model").encode(SENTENCES), encoder.encode(SENTENCES), rtol=1e-6
    )
    with pytest.raises(RequestError, match=r"expected bilstm\.json and bilstm\.safetensors in"):
        BiLstmEncoder.load(tmp_path)


def test_it_learns_labelled_pairs_and_leaves_the_word_vectors(context: StageContext, tmp_path: Path) -> None:
    lines = [" ".join([word, *map(str, vector)]) for word, vector in zip(WORDS, VECTORS, strict=True)]
    (tmp_path / "glove.txt").write_text("".join(f"{line}\n" for line in lines))
    drawn = np.random.default_rng(3)
    for part, count in (("train", 300), ("dev", 60)):
        rows = [("premise", "hypothesis", "label")]
        for _ in range(count):
            a, b = drawn.choice(["dog", "cat", "bird"], 2)
            rows.append((f"the {a} runs", f"the {b} {drawn.choice(WORDS[4:7])}", "same" if a == b else "other"))
        (tmp_path / f"{part}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    given = {part: [{"path": str(tmp_path / f"{part}.tsv")}] for part in ("train", "dev")}
    settings = {**given, "glove": str(tmp_path / "glove.txt"), "hidden": 16, "epochs": 6, "learning_rate": 2e-2}
    metrics = run(BiLstmSettings.model_validate({**settings, "batch_items": 16, "precision": "fp32"}), context)
    accuracy = metrics["dev/accuracy"]
    assert accuracy is not None and accuracy > 0.9
    trained = BiLstmEncoder.load(context.output / "model")
    kept = trained.embeddings.weight[1 + trained.words.index("dog")].numpy()
    np.testing.assert_allclose(kept, VECTORS[WORDS.index("dog")], rtol=1e-5)
    encode = encode_of(EncoderSource.model_validate({"bilstm": str(context.output / "model")}), tmp_path)
    np.testing.assert_allclose(encode(SENTENCES), trained.encode(SENTENCES), rtol=1e-6)
