"""Graphs that others wrote, made by hand: what they name, and what they give."""

import pickle

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from transformers import BertConfig

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder, encoder_digest
from bertrelay.model.files import remove_graphs
from bertrelay.model.folder import ModelFolder
from bertrelay.model.graph import load_graph

WORDS, DIM, LONGEST = 300, 4, 7
IDS = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])
LOOK_UP = [helper.make_node("Gather", ["table", "input_ids"], ["vectors"])]


@pytest.fixture
def write(tmp_path, word_piece):
    """Writes a model whose vectors of tokens are rows of a table, by these nodes."""

    def written(nodes, words=WORDS, shape=("batch", "tokens", DIM), external=False):
        table = np.arange(words * DIM, dtype=np.float32).reshape(words, DIM)
        weights = onnx.numpy_helper.from_array(table, "table")
        vectors = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, shape)
        constants = [onnx.numpy_helper.from_array(np.array(value), name) for name, value in CONSTANTS.items()]
        graph = helper.make_graph(nodes, "by hand", [IDS], [vectors], [weights, *constants])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        (tmp_path / "onnx").mkdir()
        storage = {"save_as_external_data": external, "location": "weights.bin", "size_threshold": 0}
        onnx.save(model, tmp_path / "onnx/model.onnx", **storage)
        BertConfig(hidden_size=DIM, num_attention_heads=1, vocab_size=WORDS).save_pretrained(tmp_path)
        word_piece.save_pretrained(tmp_path)
        return tmp_path

    return written


CONSTANTS = {"first": np.int64(0), "axes": np.array([0, 1]), "six": np.array([2, 3, DIM])}
SAME = [*LOOK_UP, helper.make_node("Identity", ["vectors"], ["last_hidden_state"])]
POOLED = [*LOOK_UP, helper.make_node("Gather", ["vectors", "first"], ["last_hidden_state"], axis=1)]
OF_ALL = [*LOOK_UP, helper.make_node("ReduceMean", ["vectors", "axes"], ["last_hidden_state"], keepdims=1)]
OF_SIX = [*LOOK_UP, helper.make_node("Reshape", ["vectors", "six"], ["last_hidden_state"])]


def test_other_weights_beside_a_graph_are_another_model(write):
    folder = write(SAME, external=True)
    (folder / "onnx/notes.txt").write_text("of no graph")
    weights = folder / "onnx/weights.bin"
    before = SentenceEncoder.load(folder)
    vectors, digest = before.encode("A dog runs."), encoder_digest(before)
    (folder / "onnx/notes.txt").write_text("changed")
    assert encoder_digest(SentenceEncoder.load(folder)) == digest
    weights.write_bytes(np.zeros(WORDS * DIM, np.float32).tobytes())
    after = SentenceEncoder.load(folder)
    assert vectors.any() and not after.encode("A dog runs.").any() and encoder_digest(after) != digest
    remove_graphs(folder)
    assert [path.name for path in (folder / "onnx").iterdir()] == ["notes.txt"]


def test_a_graph_is_sent_to_workers_as_its_folder(write):
    encoder = SentenceEncoder.load(folder := write(SAME))
    sent = pickle.dumps(encoder)
    restored = pickle.loads(sent)
    assert restored.layout == encoder.layout and encoder_digest(restored) == encoder_digest(encoder)
    np.testing.assert_array_equal(restored.encode(["A dog runs."]), encoder.encode(["A dog runs."]))
    (folder / "onnx/model.onnx").rename(folder / "onnx/other.onnx")
    with pytest.raises(RequestError, match=r"expected a graph for onnx at .*model\.onnx, found none"):
        pickle.loads(sent)


@pytest.mark.parametrize(
    ("nodes", "shape", "message"),
    [(POOLED, ("batch", DIM), r"\(2, 4\)"), (OF_ALL, (1, 1, DIM), r"\(1, 1, 4\)")],
    ids=["rank 2", "one vector for all"],
)
def test_a_graph_that_gives_no_vector_for_each_token_of_each_text_is_refused(write, nodes, shape, message):
    folder = write(nodes, shape=shape)
    with pytest.raises(RequestError, match=rf"of the shape \(2, 3, 4\) for 2 × 3 tokens, found {message}; export it"):
        SentenceEncoder.load(folder)


def test_a_graph_that_reads_fewer_tokens_than_the_model_is_refused(write):
    with pytest.raises(RequestError, match=r"model\.onnx cannot be computed for 1 × 7 tokens .* export it again"):
        load_graph(ModelFolder(write(OF_SIX)), "onnx", LONGEST)


def test_a_failure_while_a_graph_computes_is_an_error_of_the_model(write):
    encoder = SentenceEncoder.load(write(SAME, words=5))  # ids beyond them have no row
    with pytest.raises(RequestError, match=r"the graph .*model\.onnx cannot be computed for 1 × \d+ tokens"):
        encoder.encode("A dog runs.")
