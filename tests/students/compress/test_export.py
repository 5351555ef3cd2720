"""Exported graphs: the model's vectors in the runtimes themselves and in this project, and refused requests."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file
from scipy.stats import spearmanr
from tokenizers import Tokenizer

from bertrelay import SentenceEncoder
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from bertrelay.files import write_tensors
from bertrelay.model.encoder import encoder_digest
from bertrelay.model.folder import ModelFolder
from bertrelay.model.graph import import_openvino
from bertrelay.model.layout import Prompts
from bertrelay.model.pooling import Pooling, Projection
from domain.biomedical import EntityTagger
from students.compress.export import export, run
from students.compress.settings import ExportSettings
from students.compress.shrink import shrink
from students.distill.settings import DistillSettings
from students.distill.train import run as distill
from students.parallel.general_sentences import general_sentences
from students.parallel.pairs import read_translations

TEXTS = ["a dog runs", "", "two birds sing in the old garden", "ein Hund", "word " * 60]
NETWORKS = {
    "bert": {"pooling": ["mean"], "projection": 8, "normalize": True},
    "xlm-roberta": {"pooling": ["cls"]},
    "mpnet": {"pooling": ["max"], "normalize": True},
    "modernbert": {"layers": 2, "pooling": ["mean", "cls"], "projection": 8},  # attends to all tokens, or near ones
}
SLOW = ("mpnet", "modernbert")
ROUNDING = 1e-5


def made(tiny_encoder, kind, layers=1, projection=None, **parts):
    if projection:
        torch.manual_seed(1)
        parts["projection"] = Projection(16 * len(parts["pooling"]), projection)
    return tiny_encoder(kind, TEXTS * 10, layers, **parts)


def inputs(folder, texts):
    """Ids and mask made without this project."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer.enable_truncation(settings["model_max_length"])
    tokenizer.enable_padding(pad_id=json.loads((folder / "config.json").read_text())["pad_token_id"])
    encoded = tokenizer.encode_batch(texts)
    ids, mask = (np.array([getattr(row, name) for row in encoded]) for name in ("ids", "attention_mask"))
    return {"input_ids": ids, "attention_mask": mask}


def by_onnx(folder, texts, output="sentence_embedding"):
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx")
    return session.run([output], inputs(folder, texts))[0]


def by_openvino(folder, texts):
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    model = import_openvino().Core().compile_model(folder / "openvino/openvino_model.xml", "CPU", options)
    return model(inputs(folder, texts))["sentence_embedding"]


@pytest.mark.promise(
    "An exported graph gives the vectors of torch in ONNX Runtime and OpenVINO themselves", about="elsewhere"
)
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in NETWORKS])
def test_a_graph_gives_the_vectors_of_torch_in_the_runtimes_themselves(tiny_encoder, tmp_path, kind):
    encoder, folder = made(tiny_encoder, kind, **NETWORKS[kind]), tmp_path / "exported"
    export(encoder, folder, formats=["onnx", "openvino"])
    expected = encoder.encode(TEXTS, precision="fp32")
    for computed in (by_onnx, by_openvino):
        assert np.abs(computed(folder, TEXTS) - expected).max() < ROUNDING
        for row, text in enumerate(TEXTS):  # a batch of one is as long as its text
            assert np.abs(computed(folder, [text]) - expected[row]).max() < ROUNDING
    assert by_onnx(folder, TEXTS, "last_hidden_state").shape[-1] == 16
    assert b'File "' not in (folder / "onnx/model.onnx").read_bytes()  # no path of the machine that exported it
    assert not list(folder.glob("*.safetensors"))
    measured = json.loads((folder / "export.json").read_text())
    assert measured["onnx/size_mb"] == (folder / "onnx/model.onnx").stat().st_size / 1e6
    assert all(measured[f"{name}/cosine_min"] == pytest.approx(1, abs=ROUNDING) for name in ("onnx", "openvino"))
    for backend in ("onnx", "openvino", None):
        loaded = SentenceEncoder.load(folder, backend=backend)
        assert loaded.layout == encoder.layout
        with ThreadPoolExecutor(2) as threads:
            for vectors in threads.map(loaded.encode, [TEXTS] * 4):
                assert np.abs(vectors - expected).max() < ROUNDING
    assert sys.modules["openvino_telemetry"] is None
    assert np.abs(encoder.encode(TEXTS, precision="fp32") - expected).max() == 0  # the encoder did not change


@pytest.fixture(scope="module")
def encoder(tiny_encoder):
    return made(tiny_encoder, "bert", layers=2, pooling=["mean"], normalize=True)


@pytest.fixture(scope="module")
def exported(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph") / "model"
    export(encoder, folder)
    return folder


def test_the_graph_of_an_encoder_is_refused_as_a_tagger_by_its_kind(exported):
    with pytest.raises(RequestError, match=r"expected a tagger of entities, found in .* a sentence encoder; use it by"):
        EntityTagger.load(exported)


def test_int8_is_smaller_and_its_distance_is_that_of_the_graph(encoder, exported, tiny_encoder, tmp_path, context):
    encoder.save(tmp_path / "model")
    parent = tiny_encoder("bert", encoder.tokenizer, layers=3, seed=1)
    parent.save(tmp_path / "parent")
    rows = [("sentence1", "sentence2", "score"), *((TEXTS[0], text, str(len(text))) for text in TEXTS[2:])]
    sts = tmp_path / "sts.tsv"
    sts.write_text("".join("\t".join(row) + "\n" for row in rows))
    models = {name: str(tmp_path / name) for name in ("model", "parent")}
    settings = {**models, "precision": "int8", "sts": {"few": {"path": str(sts)}}}
    for unfinished in ("model/onnx", ".model.k1lled"):  # left by a killed stage
        (context.output / unfinished).mkdir(parents=True)
    metrics = run(ExportSettings.model_validate(settings), context)
    folder = context.output / "model"
    assert sorted(path.name for path in context.output.iterdir()) == ["model", "rejects.jsonl"]
    initializers = onnx.load(folder / "onnx/model.onnx").graph.initializer
    kinds = [tensor.data_type for tensor in initializers if len(tensor.dims) == 2]
    assert kinds.count(onnx.TensorProto.INT8) == 2 * 6  # two layers: query, key, value, output, up, down
    assert (folder / "onnx/model.onnx").stat().st_size < (exported / "onnx/model.onnx").stat().st_size
    assert metrics["onnx/size_mb"] == (folder / "onnx/model.onnx").stat().st_size / 1e6
    pairs = read_translations(general_sentences(), None, Rejects(None))
    sentences = list({text for translations in pairs.values() for texts in translations for text in texts})
    exact = encoder.encode(sentences, precision="fp32")
    rounded = np.concatenate([by_onnx(folder, sentences[start : start + 64]) for start in range(0, len(sentences), 64)])
    cosines = (exact * rounded).sum(axis=1) / np.linalg.norm(rounded, axis=1)
    assert metrics["onnx/cosine_min"] == pytest.approx(cosines.min(), abs=2e-3)
    assert metrics["onnx/cosine_mean"] == pytest.approx(cosines.mean(), abs=2e-4)
    assert metrics["onnx/cosine_mean"] < 1
    for name in ("parent", "torch", "onnx"):
        assert {f"{name}/sentences_per_second", f"{name}/sts/few/spearman_cosine"} <= set(metrics)
    first, *others = parent.encode([TEXTS[0], *TEXTS[2:]], precision="fp32")
    cosines = [first @ other / np.linalg.norm(first) / np.linalg.norm(other) for other in others]
    expected = spearmanr(cosines, [len(text) for text in TEXTS[2:]]).statistic
    assert metrics["parent/sts/few/spearman_cosine"] == pytest.approx(expected, abs=1e-6)
    weights = load_file(tmp_path / "parent/model.safetensors").values()
    assert metrics["parent/size_mb"] == sum(tensor.nbytes for tensor in weights) / 1e6


@pytest.mark.promise("The loss of an int8 graph is measured on its vectors and printed", about="exact")
def test_projections_stay_in_fp32_and_the_loss_of_int8_is_logged(tiny_encoder, tmp_path, capsys):
    encoder, folder = made(tiny_encoder, "bert", pooling=["mean"], projection=8, normalize=True), tmp_path / "int8"
    metrics = export(encoder, folder, precision="int8")
    assert json.loads((folder / "export.json").read_text()) == metrics
    initial = onnx.load(folder / "onnx/model.onnx").graph.initializer
    assert sum(len(tensor.dims) == 2 and tensor.data_type == onnx.TensorProto.INT8 for tensor in initial) == 6
    loaded = SentenceEncoder.load(folder)
    for text in TEXTS:
        assert np.abs(by_onnx(folder, [text]) - loaded.encode([text])).max() < ROUNDING
    assert (
        f"int8: cosines of the vectors to those in fp32 are {metrics['onnx/cosine_min']:.4f}" in capsys.readouterr().err
    )


def test_an_older_opset_gives_the_same_without_the_operator_for_attention(encoder, exported, tmp_path):
    export(encoder, tmp_path / "older", opset=20)
    graphs = [onnx.load(folder / "onnx/model.onnx") for folder in (exported, tmp_path / "older")]
    assert [graph.opset_import[0].version for graph in graphs] == [23, 20]
    assert [sum(node.op_type == "Attention" for node in graph.graph.node) for graph in graphs] == [2, 0]
    assert np.abs(by_onnx(exported, TEXTS) - by_onnx(tmp_path / "older", TEXTS)).max() < ROUNDING
    with pytest.raises(RequestError, match="opset: expected 20 or 23, found 21"):
        export(encoder, tmp_path / "other", opset=21)


def test_a_prompt_that_is_not_pooled_is_not_pooled_by_a_graph(tiny_encoder, tmp_path):
    prompts = Prompts({"query": "two birds "}, default="query")
    encoder = tiny_encoder("bert", TEXTS * 10, pooling=Pooling(["mean"], include_prompt=False), prompts=prompts)
    export(encoder, tmp_path / "exported")
    expected = encoder.encode(TEXTS, precision="fp32")
    assert np.abs(SentenceEncoder.load(tmp_path / "exported").encode(TEXTS) - expected).max() < ROUNDING
    assert np.abs(by_onnx(tmp_path / "exported", [f"two birds {text}" for text in TEXTS]) - expected).max() < ROUNDING
    without = encoder.encode(TEXTS, prompt="", precision="fp32")
    assert np.abs(SentenceEncoder.load(tmp_path / "exported").encode(TEXTS, prompt="") - without).max() < ROUNDING


def test_graphs_have_digests_of_their_own_and_auto_takes_the_fastest(encoder, exported, tiny_encoder, tmp_path, capsys):
    loaded = SentenceEncoder.load(exported)
    export(encoder, tmp_path / "int8", precision="int8")
    digests = {encoder_digest(one) for one in (encoder, loaded, SentenceEncoder.load(tmp_path / "int8"))}
    assert len(digests) == 3
    encoder.save(tmp_path / "both")
    (exported / "onnx").rename(tmp_path / "both/onnx")
    try:
        assert ModelFolder(tmp_path / "both").backends == ["torch", "onnx"]
        assert type(SentenceEncoder.load(tmp_path / "both").backbone).__name__ == "BertModel"
        fastest = SentenceEncoder.load(tmp_path / "both", backend="auto")
        assert "the backend is" in capsys.readouterr().err
        assert (
            np.abs(fastest.encode(TEXTS, precision="fp32") - encoder.encode(TEXTS, precision="fp32")).max() < ROUNDING
        )
        other = tiny_encoder("bert", encoder.tokenizer, layers=2, seed=1)  # with other weights than the graph
        write_tensors(tmp_path / "both/model.safetensors", other.backbone.state_dict(), {"format": "pt"})
        chosen = SentenceEncoder.load(tmp_path / "both", backend="auto")
        assert type(chosen.backbone).__name__ == "BertModel"
        assert "the vectors of onnx are not those of the weights (squared error" in capsys.readouterr().err
    finally:
        (tmp_path / "both/onnx").rename(exported / "onnx")


def test_requests_that_a_graph_cannot_fulfil_are_refused(encoder, exported, tmp_path, monkeypatch, context):
    graph = SentenceEncoder.load(exported)
    with pytest.raises(RequestError, match="is a graph, which cannot be changed"):
        graph.save(tmp_path / "copy")
    with pytest.raises(RequestError, match="is a graph"):
        shrink(graph, TEXTS)
    for name in ("en", "de"):
        (tmp_path / name).write_text("".join(f"{text} {name}\n" for text in TEXTS if text))
    encoder.save(tmp_path / "teacher")
    pairs = [{"english": str(tmp_path / "en"), "other": str(tmp_path / "de"), "language": "de"}]
    settings = {"teacher": str(tmp_path / "teacher"), "base": str(exported), "parallel": pairs, "dev_sentences": 0}
    with pytest.raises(RequestError, match="it has a graph alone: give the model that was exported"):
        distill(DistillSettings.model_validate(settings), context)
    with pytest.raises(RequestError, match=r"backend: expected a graph for openvino .* found one for onnx"):
        SentenceEncoder.load(exported, backend="openvino")
    with pytest.raises(RequestError, match=r"expected weights .* found none"):
        SentenceEncoder.load(exported, backend="torch")
    with pytest.raises(RequestError, match="backend: expected torch, onnx, openvino or auto"):
        SentenceEncoder.load(exported, backend="tensorrt")
    damaged = tmp_path / "damaged"
    export(encoder, damaged)
    content = (damaged / "onnx/model.onnx").read_bytes()
    (damaged / "onnx/model.onnx").write_bytes(content[: len(content) // 2])
    with pytest.raises(RequestError, match=r"the graph .*model\.onnx cannot be computed"):
        SentenceEncoder.load(damaged)
    for module in ("bertrelay.model.graph", "bertrelay.model.export"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None if name == "onnxruntime" else find_spec(name))
    with pytest.raises(RequestError, match=r"needs the package onnxruntime: pip install 'bertrelay\[onnx\]'"):
        SentenceEncoder.load(exported)
    with pytest.raises(RequestError, match=r"export needs onnxruntime: pip install 'bertrelay\[onnx\]'"):
        export(encoder, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(RequestError, match="device: expected cpu, where graphs are computed, found meta"):
        SentenceEncoder.load(exported, "meta", backend="onnx")
    with pytest.raises(RequestError, match="folder: expected a folder that does not exist yet"):
        export(encoder, exported)
    with pytest.raises(RequestError, match="formats: expected a list of one or more"):
        export(encoder, tmp_path / "none", formats="onnx")
