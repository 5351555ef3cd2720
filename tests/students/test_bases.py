"""Students of every published family: trimmed, shortened, projected, trained, saved, and the same elsewhere."""

import json
import shutil

import numpy as np
import onnx
import published_networks
import pytest
import torch

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from students.compress.export import export
from students.compress.pruning import FEED_FORWARD, keep_layers, keep_neurons
from students.compress.vocabulary import trim_vocabulary
from students.distill.settings import DistillSettings
from students.distill.train import run

BASES = ["multilingual-e5", "xlm-roberta", "mbert", "mpnet", "modernbert", "mmbert"]
TRAINING = {"epochs": 2, "precision": "fp32", "dev_sentences": 20, "learning_rate": 2e-3}
TRAINING |= {"batch_tokens": 1_000, "log_every": 1}
MORE = ["Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.", "누구나 학교에 갑니다.", "ни один дом"]


@pytest.fixture(scope="module")
def texts(toy):
    return [text for row in toy.train for text in row]


@pytest.fixture(scope="module")
def publish(texts, tmp_path_factory):
    """`publish(kind)`: the folder of a base whose vocabulary knows more than the corpus; XLM-R's has no modules."""
    made = tmp_path_factory.mktemp("bases")

    def folder(kind):
        if kind == "xlm-roberta":
            plain = publish_once("multilingual-e5", made / "plain")
            for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
                (plain / name).unlink(missing_ok=True)
            for module in plain.glob("*_*/"):
                shutil.rmtree(module)
            return plain
        return publish_once(kind, made / kind)

    def publish_once(kind, path):
        return path if path.is_dir() else published_networks.publish(kind, path, [*texts, *MORE * 40])

    return folder


def encoded(encoder, sentences):
    return encoder.eval().encode(sentences, precision="fp32")


def pieces(encoder, sentences):
    return [encoder.tokenizer.convert_ids_to_tokens(ids) for ids in encoder.tokenize(sentences)]


@pytest.mark.promise(
    "Students of XLM-R, mBERT, E5, MPNet, ModernBERT and mmBERT, trimmed, shortened and projected, have the "
    "same vectors in sentence-transformers",
    about="elsewhere",
)
@pytest.mark.parametrize("kind", BASES)
def test_a_base_is_trimmed_shortened_projected_trained_and_loads_elsewhere(
    kind, publish, texts, tiny_encoder, toy, context, tmp_path
):
    peer = pytest.importorskip("sentence_transformers")
    tiny_encoder("bert", [row[0] for row in toy.train], normalize=True, pooling=["mean", "cls"]).save(tmp_path)
    sources = {"teacher": str(tmp_path), "base": str(publish(kind)), "parallel": [toy.source()], **TRAINING}
    prompt = {"student_prompt": "query"} if kind == "multilingual-e5" else {}
    settings = DistillSettings.model_validate({**sources, "trim_vocabulary": True, "layers": 4, **prompt})
    metrics = run(settings, context)
    losses = [json.loads(line) for line in (context.output / "metrics.jsonl").read_text().splitlines()]
    learnt = [line["loss"] for line in losses if "loss" in line]
    assert np.mean(learnt[-4:]) < np.mean(learnt[:4])
    assert (metrics["layers/before"], metrics["layers/after"]) == (5, 4)
    assert metrics["vocabulary/after"] < metrics["vocabulary/before"]
    base, student = (SentenceEncoder.load(folder) for folder in (sources["base"], context.output / "model"))
    assert student.dim == 32 and student.projection is not None and student.normalize
    assert pieces(student, texts) == pieces(base, texts)
    theirs = peer.SentenceTransformer(str(context.output / "model"), device="cpu")
    sentences = [*texts[:40], " ".join(texts[:9]), "Rain."]
    np.testing.assert_allclose(encoded(student, sentences), theirs.encode(sentences, batch_size=7), atol=1e-5)


LATER = ["qwen3-embedding", "embeddinggemma", "sentence-t5"]
FAMILIES = [*(kind for kind in BASES if kind != "xlm-roberta"), *LATER]  # whose network is that of multilingual-e5


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_trimmed_base_gives_the_same_vectors_of_its_corpus(kind, publish, texts, tmp_path):
    base = SentenceEncoder.load(publish(kind))
    trimmed = trim_vocabulary(base, texts)
    assert len(trimmed.tokenizer) < len(base.tokenizer)
    rows = trimmed.backbone.get_input_embeddings().weight
    assert len(rows) == len(trimmed.tokenizer) == trimmed.backbone.config.vocab_size
    trimmed.save(tmp_path)
    expected = encoded(base, texts[:60])
    for encoder in (trimmed, SentenceEncoder.load(tmp_path)):
        np.testing.assert_allclose(encoded(encoder, texts[:60]), expected, atol=1e-6)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_shortened_base_computes_what_its_layers_do_and_so_when_loaded(kind, publish, texts, tmp_path):
    """Compares with the whole network in which the layers that go pass their input through."""

    def pass_through(_, inputs, output):
        return (inputs[0], *output[1:]) if isinstance(output, tuple) else inputs[0]

    base, whole = (SentenceEncoder.load(publish(kind)).eval() for _ in range(2))
    path = next(
        path for path in ("encoder.layer", "layers", "encoder.block") if path in dict(whole.backbone.named_modules())
    )
    layers, base_layers = whole.backbone.get_submodule(path), list(base.backbone.get_submodule(path))
    count = len(layers) // 2
    keep_layers(base, count, texts)
    remaining = list(base.backbone.get_submodule(path))
    for layer, same in zip(layers, base_layers, strict=True):
        if same not in remaining:
            layer.register_forward_hook(pass_through)
    base.save(tmp_path)
    sentences = [*texts[:9], " ".join(texts[:5])]
    expected = encoded(whole, sentences)
    for encoder in (base, SentenceEncoder.load(tmp_path)):
        assert encoder.backbone.config.num_hidden_layers == count
        np.testing.assert_allclose(encoded(encoder, sentences), expected, atol=1e-5)


def test_a_first_layer_unlike_the_others_stays_though_it_computes_nothing(publish, texts, tmp_path):
    base = SentenceEncoder.load(publish("modernbert")).eval()
    first = base.backbone.layers[0]
    with torch.no_grad():
        first.attn.Wo.weight.zero_()
        first.mlp.Wo.weight.zero_()
    keep_layers(base, 1, texts)
    assert list(base.backbone.layers) == [first]
    base.save(tmp_path)
    np.testing.assert_array_equal(encoded(SentenceEncoder.load(tmp_path), texts[:9]), encoded(base, texts[:9]))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_base_without_its_idle_neurons_gives_the_same_vectors(kind, publish, texts, tmp_path):
    """An idle neuron's activation is 0, gated or not."""
    base = SentenceEncoder.load(publish(kind)).eval()
    if base.backbone.config.model_type == "t5":
        with pytest.raises(RequestError, match="the neurons of a 't5' network cannot be left out"):
            keep_neurons(base, 4, texts)
        return
    neurons = base.backbone.config.intermediate_size
    for name, module in base.backbone.named_modules():
        if any(name.endswith(f".{up}") for ups, _ in FEED_FORWARD for up in ups):
            with torch.no_grad():
                module.weight[1:neurons:2] = 0.0  # of a map to both halves, the half that is not the gate or is it
                if module.bias is not None:
                    module.bias[1:neurons:2] = 0.0
    expected = encoded(base, texts[:9])
    keep_neurons(base, neurons // 2, texts)
    base.save(tmp_path)
    again = SentenceEncoder.load(tmp_path)
    assert again.backbone.config.intermediate_size == neurons // 2
    for encoder in (base, again):
        np.testing.assert_allclose(encoded(encoder, texts[:9]), expected, atol=1e-5)


@pytest.mark.parametrize("kind", LATER)
def test_graphs_of_causal_windowed_and_biased_attention_give_the_same_vectors(kind, publish, texts, tmp_path):
    base = SentenceEncoder.load(publish(kind)).eval()
    if base.backbone.config.model_type != "t5":  # two layers, of near tokens and of all: an export takes long for each
        base.backbone.layers = base.backbone.layers[1:3]
        base.backbone.config.num_hidden_layers = 2
        base.backbone.config.layer_types = base.backbone.config.layer_types[1:3]
    export(base, tmp_path / "exported")
    graph = onnx.load(tmp_path / "exported/onnx/model.onnx").graph
    assert any(node.op_type == "Attention" for node in graph.node)
    exported = SentenceEncoder.load(tmp_path / "exported", backend="onnx")
    np.testing.assert_allclose(encoded(exported, texts[:9]), encoded(base, texts[:9]), atol=1e-5)
