"""Exported networks with a head: transformers' own scores in the runtimes, and the model's results in this project."""

import json

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from bertrelay.cache import Cache
from bertrelay.errors import RequestError
from bertrelay.model.graph import import_openvino
from bertrelay.stage import StageContext
from domain.biomedical.ner import model as entities
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.predict import EntityTagger
from domain.biomedical.ner.settings import NerSettings
from domain.biomedical.qa import model as answers
from domain.biomedical.qa.predict import QuestionAnswerer
from domain.biomedical.qa.settings import QaSettings
from domain.clinical import model as outcome_model
from domain.clinical.predict import OutcomeScorer
from domain.clinical.settings import ModelDescription
from students.compress.export import export, run
from students.compress.settings import ExportSettings
from teachers.pairs.model import CrossEncoder, start_cross_encoder

TEXTS = ["The heart of the patient beats fast.", "Lungs breathe air", "Aspirin thins the blood, and helps the heart."]
ROUNDING = 1e-5
DISTILBERT = {"dim": 16, "n_heads": 2, "hidden_dim": 32, "n_layers": 1}


def save_entities(base, folder, **more):
    settings = {"base": str(base), "train": [{"path": "none"}], "decoder": "crf", **more}
    labels = LabelSet.of_types(["Disease", "Drug"], "IOB2")
    model = entities.start_model(NerSettings.model_validate(settings), labels)
    with torch.no_grad():  # with the weights of a new head no tag would ever win
        for weight in (model.network.network.classifier.weight, model.network.crf.follow):
            weight.normal_(std=1, generator=torch.manual_seed(1))
    entities.save_model(model, folder)


def save_answers(base, folder):
    model = answers.start_model(QaSettings.model_validate({"base": str(base), "train": [{"path": "none"}]}))
    with torch.no_grad():
        model.network.network.qa_outputs.weight.normal_(std=1, generator=torch.manual_seed(1))
    answers.save_model(model, folder)


def save_outcomes(base, folder, **more):
    settings = ModelDescription.model_validate({"chunking": {"max_tokens": 12}, **more})
    outcome_model.save_model(outcome_model.start_model(base, settings, seed=1), folder)


def tagged(folder, backend):
    tagger = EntityTagger.load(folder, backend=backend)
    results = [
        (entity.text, entity.type, entity.confidence)
        for document in tagger(TEXTS, precision="fp32")
        for entity in document.entities
    ]
    assert results
    return results


def answered(folder, backend):
    replies = QuestionAnswerer.load(folder, backend=backend)(
        [("What beats?", text) for text in TEXTS], precision="fp32"
    )
    return [(reply.answer, reply.start, reply.probability) for reply in replies]


def scored(folder, backend):
    notes = pd.DataFrame({"hadm_id": [1, 1, 2], "text": TEXTS})
    scores = OutcomeScorer.load(folder, backend=backend).score(notes, precision="fp32")
    return list(scores["probability"].items())


def ranked(folder, backend):
    scores = CrossEncoder.load(folder, backend=backend).predict([(TEXTS[0], text) for text in TEXTS], precision="fp32")
    return list(enumerate(map(float, scores)))


KINDS = {
    "tagger": ("bert", lambda base, folder: save_entities(base, folder, capitals=True), tagged),
    "tagger of DistilBERT": ("distilbert", save_entities, tagged),
    "answerer": ("bert", save_answers, answered),
    "answerer of MPNet": ("mpnet", save_answers, answered),
    "scorer": ("bert", save_outcomes, scored),
    "scorer by means": ("bert", lambda base, folder: save_outcomes(base, folder, pooling="mean"), scored),
    "scorer of RoBERTa": ("xlm-roberta", save_outcomes, scored),
    "scorer of ALBERT": ("albert", save_outcomes, scored),
    "cross-encoder": ("bert", lambda base, folder: start_cross_encoder(base).save(folder), ranked),
    "cross-encoder of RoBERTa": ("xlm-roberta", lambda base, folder: start_cross_encoder(base).save(folder), ranked),
}
OTHER_NETWORKS = {kind for kind, (network, *_) in KINDS.items() if network != "bert"}
AUTO_CLASSES = {
    tagged: (AutoModelForTokenClassification, ["logits"]),
    answered: (AutoModelForQuestionAnswering, ["start_logits", "end_logits"]),
    scored: (AutoModelForSequenceClassification, ["logits"]),
    ranked: (AutoModelForSequenceClassification, ["logits"]),
}


@pytest.fixture
def saved(tiny_encoder, tmp_path):
    def save_model(kind):
        network, save, results = KINDS[kind]
        sizes = DISTILBERT if network == "distilbert" else None
        base = tiny_encoder(network, TEXTS * 10, layers=1, sizes=sizes)  # an export takes a second for each layer
        base.save(tmp_path / "base")
        save(tmp_path / "base", tmp_path / "model")
        return tmp_path / "model", results

    return save_model


def outputs_of_runtimes(folder, inputs, names):
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx")
    expected = {node.name for node in session.get_inputs()}
    arrays = {name: values.numpy() for name, values in inputs.items() if name in expected}
    assert set(arrays) == expected
    yield session.run(names, arrays)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    model = import_openvino().Core().compile_model(folder / "openvino/openvino_model.xml", "CPU", options)
    outputs = model(arrays)
    yield [outputs[name] for name in names]


@pytest.mark.parametrize("written", [True, False])
def test_an_exported_folder_has_the_networks_limit_of_tokens_if_the_tokenizer_has_none(saved, tmp_path, written):
    folder, _ = saved("cross-encoder")
    file = folder / "tokenizer_config.json"
    if written:
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": int(1e30)}))
    else:
        file.unlink()
    export(folder, tmp_path / "exported")
    assert AutoTokenizer.from_pretrained(tmp_path / "exported").model_max_length == 40
    pair = (TEXTS[0], "heart " * 100)
    scores = [CrossEncoder.load(path).predict(pair, precision="fp32") for path in (folder, tmp_path / "exported")]
    assert scores[1] == pytest.approx(scores[0], abs=ROUNDING)


@pytest.mark.promise(
    "A graph of a network with a head gives transformers' scores, and here the model's results", about="elsewhere"
)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in OTHER_NETWORKS)) for kind in KINDS]
)
def test_a_graph_gives_the_scores_of_transformers_and_the_results_of_the_model(saved, tmp_path, kind):
    folder, results = saved(kind)
    exported = tmp_path / "exported"
    export(folder, exported, formats=["onnx", "openvino"])
    auto_class, names = AUTO_CLASSES[results]
    peer, tokenizer = auto_class.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for texts in (TEXTS, TEXTS[1:2]):
        inputs = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=True)
        if not getattr(peer.config, "type_vocab_size", 0) > 1:
            del inputs["token_type_ids"]
        with torch.no_grad():
            scores = peer(**inputs)
        for outputs in outputs_of_runtimes(exported, inputs, names):
            for name, values in zip(names, outputs, strict=True):
                is_by_token = values.shape[:2] == inputs["input_ids"].shape
                unpadded = inputs["attention_mask"].bool().numpy() if is_by_token else ...
                assert np.abs(values - scores[name].numpy())[unpadded].max() < ROUNDING
    assert not list(exported.glob("model*.safetensors"))
    expected = results(folder, "torch")
    for backend in ("onnx", "openvino", None, "auto"):
        by_graph = results(exported, backend)
        assert [first for first, *_ in by_graph] == [first for first, *_ in expected]
        assert np.allclose([row[-1] for row in by_graph], [row[-1] for row in expected], atol=ROUNDING)


def test_the_head_of_an_int8_graph_stays_in_fp32(saved, tmp_path):
    folder, _ = saved("tagger")
    metrics = run(
        ExportSettings.model_validate({"model": str(folder), "precision": "int8"}), new_context(tmp_path / "stage")
    )
    graph = onnx.load(tmp_path / "stage/model/onnx/model.onnx").graph
    matrices = [tensor.data_type for tensor in graph.initializer if len(tensor.dims) == 2]
    assert matrices.count(onnx.TensorProto.INT8) == 6  # query, key, value, output, up, down
    assert 0.9 < metrics["onnx/cosine_min"] < 1
    names = {path.name for path in (tmp_path / "stage/model").iterdir()}
    assert {"ner.json", "crf.safetensors", "head.safetensors", "tokenizer.json", "config.json"} <= names


def new_context(folder):
    folder.mkdir()
    return StageContext(folder, Cache(folder / "cache"))


def test_unusable_folders_of_an_exported_head_are_reported(saved, tmp_path, capsys):
    folder, _ = saved("scorer")
    exported = tmp_path / "exported"
    export(folder, exported)
    with pytest.raises(RequestError, match=r"expected a graph for openvino at .*, found one for onnx"):
        OutcomeScorer.load(exported, backend="openvino")
    with pytest.raises(RequestError, match="backend: expected torch, onnx, openvino or auto"):
        OutcomeScorer.load(exported, backend="tensorrt")
    with pytest.raises(RequestError, match="it has a graph alone: give the model that was exported"):
        outcome_model.start_model(exported, ModelDescription.model_validate({}))
    with pytest.raises(RequestError, match="is a graph, which cannot be changed, trained or saved again"):
        outcome_model.save_model(outcome_model.load_model(exported), tmp_path / "again")
    scorer = OutcomeScorer.load(exported)
    assert scorer.model.network.to("meta").device == torch.device("cpu")
    notes = pd.DataFrame({"hadm_id": [1, 1, 2], "text": TEXTS})
    bf16, fp32 = (scorer.score(notes, precision=precision)["probability"] for precision in ("bf16", "fp32"))
    assert (bf16 == fp32).all()  # the pooler, too
    (exported / "onnx").rename(folder / "onnx")
    assert OutcomeScorer.load(folder, backend="auto")
    assert "the backend is" not in capsys.readouterr().err  # a graph that others wrote
    (exported / "head.safetensors").rename(folder / "head.safetensors")
    assert OutcomeScorer.load(folder, backend="auto")
    assert "the backend is" in capsys.readouterr().err
    weights = (folder / "head.safetensors").read_bytes()
    (folder / "head.safetensors").write_bytes(weights[:-3])
    with pytest.raises(RequestError, match=r"expected the weights of a head in .*head\.safetensors, found none"):
        OutcomeScorer.load(folder, backend="onnx")
    (folder / "head.safetensors").unlink()
    with pytest.raises(RequestError, match="expected the weights of a head"):
        OutcomeScorer.load(folder, backend="onnx")


def test_an_exported_folder_has_only_files_of_the_model_and_all_of_them(saved, tmp_path):
    folder, _ = saved("cross-encoder")
    (folder / "modules.json").write_text(
        json.dumps([{"idx": 0, "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}])
    )
    for other in (".git", "checkpoint-1"):
        (folder / other).mkdir()
    (folder / "tf_model.h5").touch()
    export(folder, folder / "exported")
    assert {path.name for path in (folder / "exported").iterdir()} == {
        *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("head.safetensors", "onnx", "export.json"),
    }
    assert ranked(folder / "exported", None)
    weights = load_file(folder / "model.safetensors")
    without_pooler = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    save_file(without_pooler, folder / "model.safetensors")
    with pytest.raises(RequestError, match="lack 2 that BertForSequenceClassification has"):
        export(folder, tmp_path / "damaged")


def test_a_graph_cannot_be_the_base_of_a_question_answerer(saved, tmp_path):
    folder, _ = saved("answerer")
    export(folder, tmp_path / "exported")
    settings = QaSettings.model_validate({"base": str(tmp_path / "exported"), "train": [{"path": "none"}]})
    with pytest.raises(RequestError, match="it has a graph alone: give the model that was exported"):
        answers.start_model(settings)
