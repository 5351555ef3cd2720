"""Model folders: what is written, what other versions write, and files that are not what they should be."""

import json
import shutil
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BartConfig, BertConfig, BertForPreTraining, BertForTokenClassification, GPT2Config, ViTConfig

from bertrelay.errors import RequestError
from bertrelay.model import network as backbone
from bertrelay.model import tokenizer as tokenizers
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.files import MAX_BYTES, read_model_file
from bertrelay.model.folder import ModelFolder
from bertrelay.model.pooling import Pooling, Projection
from bertrelay.settings import ModelSource


@pytest.fixture(scope="module")
def saved(make_encoder, tmp_path_factory):
    folder, projection = tmp_path_factory.mktemp("saved"), Projection(32, 8, activation=torch.nn.Tanh())
    make_encoder(pooling=["mean", "max"], projection=projection, normalize=True, max_tokens=12).save(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A folder with every module, to be changed into what other versions write, and into what none does."""
    return shutil.copytree(saved, tmp_path / "model")


def rewrite(path, **changes):
    path.write_text(json.dumps(read(path) | changes))


def with_modules(folder, *kinds):
    kinds = [kind if "." in kind else f"sentence_transformers.models.{kind}" for kind in kinds]
    modules = [{"idx": idx, "name": str(idx), "path": "", "type": kind} for idx, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))


def with_weights(folder, name, tensor):
    weights = load_file(folder / "model.safetensors") | {name: tensor}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def with_shard(folder, path):
    (folder / "model.safetensors").rename(folder / path)
    index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": path}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def read(path):
    return json.loads(path.read_text())


def vectors_of(folder, sentences):
    return SentenceEncoder.load(folder).encode(sentences, precision="fp32")


def test_the_files_say_what_every_version_reads(folder):
    assert [(module["path"], module["type"]) for module in read(folder / "modules.json")] == [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Pooling", "sentence_transformers.models.Pooling"),
        ("2_Dense", "sentence_transformers.models.Dense"),
        ("3_Normalize", "sentence_transformers.models.Normalize"),
    ]
    assert read(folder / "sentence_bert_config.json") == {"max_seq_length": 12, "do_lower_case": False}
    assert read(folder / "1_Pooling" / "config.json") == {
        "word_embedding_dimension": 16,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": True,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    assert read(folder / "2_Dense" / "config.json") == {
        "in_features": 32,
        "out_features": 8,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    assert set(load_file(folder / "2_Dense" / "model.safetensors")) == {"linear.weight", "linear.bias"}
    assert (folder / "3_Normalize").is_dir()
    model = read(folder / "config_sentence_transformers.json")
    assert set(model) == {"__version__", "prompts", "default_prompt_name", "similarity_fn_name"}
    assert set(model["__version__"]) == {"transformers", "pytorch"}
    assert read(folder / "tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"


SETTINGS = [
    {},
    {"pooling": ["cls"], "normalize": True},
    {"pooling": ["mean", "max", "cls"]},
    {"pooling": Pooling(["mean", "cls"])},
    {"pooling": ["mean_sqrt_len"]},
    {"projection": Projection(16, 6, bias=False), "max_tokens": 6},
    {"projection": Projection(16, 6, activation=torch.nn.Tanh()), "normalize": True},
]


@pytest.mark.promise("sentence-transformers reads what is written here", about="elsewhere")
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [*(("bert", settings) for settings in SETTINGS), ("distilbert", SETTINGS[-1]), ("xlm-roberta", SETTINGS[-1])],
)
def test_sentence_transformers_reads_what_is_written_here(architecture, settings, make_encoder, sentences, tmp_path):
    peer = pytest.importorskip("sentence_transformers")
    encoder = make_encoder(architecture, **settings)
    encoder.save(tmp_path)
    theirs = peer.SentenceTransformer(str(tmp_path), device="cpu").encode(sentences)
    np.testing.assert_allclose(encoder.encode(sentences, precision="fp32"), theirs, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", ["mean", "cls"], ["max", "mean_sqrt_len_tokens"]])
def test_what_sentence_transformers_writes_is_read_here(pooling, make_encoder, sentences, tmp_path):
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling as PeerPooling

    make_encoder().save(tmp_path / "plain")
    transformer = Transformer(str(tmp_path / "plain"), max_seq_length=7)
    pooled = PeerPooling(16, pooling_mode=pooling)
    dense = Dense(pooled.pooling_output_dimension, 5)
    model = SentenceTransformer(modules=[transformer, pooled, dense, Normalize()], device="cpu")
    model.save(str(tmp_path / "theirs"))
    assert "pooling_mode" in read(tmp_path / "theirs" / "1_Pooling" / "config.json")
    np.testing.assert_allclose(vectors_of(tmp_path / "theirs", sentences), model.encode(sentences), atol=1e-5)


def test_optional_files_may_be_missing(folder, sentences):
    before = vectors_of(folder, sentences)
    for name in ("config_sentence_transformers.json", "sentence_bert_config.json", "special_tokens_map.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "3_Normalize")
    np.testing.assert_array_equal(vectors_of(folder, sentences), before)  # the tokenizer knows the longest input too


def test_pickled_weights_are_read(folder, sentences):
    before = vectors_of(folder, sentences)
    for part in (folder, folder / "2_Dense"):
        torch.save(load_file(part / "model.safetensors"), part / "pytorch_model.bin")
        (part / "model.safetensors").unlink()
    np.testing.assert_array_equal(vectors_of(folder, sentences), before)


def test_a_network_in_a_folder_of_its_own_is_found(folder, sentences):
    before = vectors_of(folder, sentences)
    inner = folder / "0_Transformer"
    inner.mkdir()
    for file in [path for path in folder.iterdir() if path.is_file() and path.name != "modules.json"]:
        file.rename(inner / file.name)
    (inner / "sentence_bert_config.json").rename(inner / "sentence_roberta_config.json")
    modules = read(folder / "modules.json")
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    np.testing.assert_array_equal(vectors_of(folder, sentences), before)


def without_a_rule(folder, *keys):
    rules = read(folder / "tokenizer.json")
    inner = rules
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    (folder / "tokenizer.json").write_text(json.dumps(rules))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: folder.rename(folder.parent / "elsewhere"), "expected a model folder, found none at .*model"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "expected weights"),
        (lambda folder: with_weights(folder, "embeddings.word_embeddings.weight", torch.zeros(300, 8)), "shapes"),
        (lambda folder: with_shard(folder, "../model.safetensors"), "weight_map"),
        (
            lambda folder: rewrite(folder / "config.json", num_hidden_layers=1),
            r"16 that its config\.json has no place for \(encoder\.layer\.1\.",
        ),
        (lambda folder: rewrite(folder / "config.json", quantization_config={"quant_method": "fp8"}), "quantized"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "adapter"),
        (lambda folder: BartConfig().save_pretrained(folder), "expected a network that gives vectors.*'bart'"),
        (lambda folder: ViTConfig().save_pretrained(folder), "expected a network that gives vectors.*'vit'"),
        (lambda folder: BertConfig(is_decoder=True).save_pretrained(folder), "expected a network that gives .*'bert'"),
        (lambda folder: GPT2Config().save_pretrained(folder), r"asks for [\d,]+ weights|lack"),
        (lambda folder: with_modules(folder, "Transformer", "CNN"), "CNN"),
        (lambda folder: with_modules(folder, "Transformer"), "Transformer"),
        (lambda folder: with_modules(folder, "Transformer", "custom_code.Pooling"), r"custom_code\.Pooling"),
        (lambda folder: (folder / "modules.json").unlink(), r"modules\.json beside 1_Pooling, 2_Dense, 3_Normalize"),
        (lambda folder: (folder / "1_Pooling/config.json").unlink(), r"1_Pooling/config\.json, which modules\.json"),
        (lambda folder: rewrite(folder / "1_Pooling/config.json", pooling_mode=[]), "lasttoken, each once, found"),
        (lambda folder: without_a_rule(folder, "post_processor", "special_tokens", "[CLS]"), "do not fit one another"),
        (lambda folder: without_a_rule(folder, "normalizer"), "expected normalizer in"),
        (lambda folder: (folder / "2_Dense/model.safetensors").unlink(), "expected weights"),
        (lambda folder: rewrite(folder / "2_Dense/config.json", bias={"x": "secret"}), "bias: Input should be a valid"),
        (lambda folder: rewrite(folder / "1_Pooling/config.json", pooling_mode="median"), "median"),
        (lambda folder: rewrite(folder / "1_Pooling/config.json", word_embedding_dimension=20), "of 20 dimensions"),
        (lambda folder: rewrite(folder / "2_Dense/config.json", in_features=48), "do not fit"),
        (lambda folder: rewrite(folder / "2_Dense/config.json", activation_function="os.system"), "of torch.nn"),
        (lambda folder: rewrite(folder / "2_Dense/config.json", use_residual=True), "use_residual"),
        (lambda folder: rewrite(folder / "sentence_bert_config.json", transformer_task="fill-mask"), "fill-mask"),
    ],
)
def test_a_folder_that_lacks_what_its_files_ask_for_is_refused(harm, message, folder):
    harm(folder)
    with pytest.raises(RequestError, match=message) as refused:
        SentenceEncoder.load(folder)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("head", [BertForPreTraining, BertForTokenClassification])
def test_heads_of_other_tasks_and_positions_are_left_aside_without_a_word(head, folder, capsys):
    network = backbone.load_backbone(ModelFolder(folder))
    whole = head(network.config)
    setattr(whole, whole.base_model_prefix, network)
    whole.save_pretrained(folder)
    with_weights(folder, "bert.embeddings.position_ids", torch.arange(40)[None])  # as older versions wrote them
    capsys.readouterr()
    assert SentenceEncoder.load(folder).dim == 8
    assert capsys.readouterr().err == ""


def test_weights_that_nothing_is_known_of_are_reported(folder, capsys):
    with_weights(folder, "linear.weight", torch.zeros(4, 16))
    SentenceEncoder.load(folder)
    assert "warning: 1 weights" in (stderr := capsys.readouterr().err)
    assert "linear.weight" in stderr


def test_a_module_folder_that_modules_json_does_not_name_is_reported(folder, capsys):
    modules = [entry for entry in read(folder / "modules.json") if not entry["type"].endswith("Dense")]
    (folder / "modules.json").write_text(json.dumps(modules))
    assert SentenceEncoder.load(folder).dim == 32
    assert "does not name 2_Dense" in capsys.readouterr().err


def test_dropout_after_the_network_changes_nothing(folder, sentences):
    expected = vectors_of(folder, sentences)
    modules = read(folder / "modules.json")
    modules.insert(2, {"idx": 9, "name": "9", "path": "9_Dropout", "type": "sentence_transformers.models.Dropout"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "9_Dropout").mkdir()
    np.testing.assert_array_equal(vectors_of(folder, sentences), expected)


def test_a_similarity_that_there_is_not_is_reported_and_is_the_cosine(folder, capsys):
    rewrite(folder / "config_sentence_transformers.json", similarity_fn_name="dot_score")
    assert SentenceEncoder.load(folder).similarity_fn_name == "cosine"
    assert "is 'dot_score', none of cosine, dot" in " ".join(capsys.readouterr().err.split())


def test_a_folder_that_is_saved_again_has_nothing_of_the_model_before(folder, make_encoder, tmp_path):
    for graph in ("onnx/model.onnx", "onnx/model.onnx_data", "openvino/openvino_model.bin", "openvino/notes.txt"):
        (folder / graph).parent.mkdir(exist_ok=True)
        (folder / graph).touch()
    for path in (folder, tmp_path / "new"):
        make_encoder().save(path)
    names, expected = ({file.name for file in path.iterdir()} for path in (folder, tmp_path / "new"))
    assert names - expected == {"openvino"} and [file.name for file in (folder / "openvino").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"])
def test_the_attention_is_not_the_folders_to_choose(key, folder, sentences, monkeypatch):
    before = SentenceEncoder.load(folder).encode(sentences, precision="fp32")
    imports = []
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", lambda *a, **_: imports.append(a))
    rewrite(folder / "config.json", **{key: "someone/kernel"})
    np.testing.assert_array_equal(SentenceEncoder.load(folder).encode(sentences, precision="fp32"), before)
    assert imports == []


@pytest.mark.parametrize("path", ["../outside", "/outside", "1_Pooling/../../outside", "link"])
@pytest.mark.parametrize("kind", ["Transformer", "Pooling", "Dense"])
def test_a_module_path_may_not_leave_the_folder(kind, path, folder):
    shutil.copytree(folder / "2_Dense", folder.parent / "outside")
    (folder / "link").symlink_to(folder.parent / "outside")
    modules = read(folder / "modules.json")
    for entry in modules:
        if entry["type"].endswith(kind):
            entry["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(RequestError, match=r"expected a path inside the model's folder .*modules\.json"):
        SentenceEncoder.load(folder)


@pytest.mark.parametrize("source", ["bertrelay/../../tests", "bertrelay//etc", "sys/tests", "six/tests", "__main__/x"])
def test_a_package_path_may_not_leave_its_package(source):
    import_module("six")  # a single file, which calls itself a package once it is imported
    with pytest.raises(ValueError, match=r"inside the Python package|not installed"):
        ModelSource.parse(f"package:{source}")


WRONG = ['"text"', "[1]", "5", "null", "", "{", "\ufeff{}", "NaN", '{"a": 1e999}', "9" * 5_000, "[" * 100_000]
FILES = [
    "modules.json",
    "config.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
]


@pytest.mark.parametrize("file", FILES)
def test_what_is_no_object_is_a_clear_error(file, folder):
    for content in ("[1]", "null", "{"):
        (folder / file).write_text(content)
        with pytest.raises(RequestError, match="model: "):
            SentenceEncoder.load(folder)


@pytest.mark.promise("Impossible values are errors before memory is allocated", about="loading")
@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config.json", {"num_hidden_layers": -1}),
        ("config.json", {"num_hidden_layers": "2"}),
        ("config.json", {"vocab_size": 10**9}),
        ("config.json", {"num_labels": 10**9}),
        ("config.json", {"num_attention_heads": 3}),
        ("config.json", {"hidden_act": "os.system"}),
        ("config.json", {"layer_norm_eps": -1.0}),
        ("config.json", {"model_type": ["bert"]}),
        ("2_Dense/config.json", {"in_features": -3}),
        ("2_Dense/config.json", {"out_features": 10**9}),
        ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.MultiheadAttention"}),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "cls"]}),
        ("sentence_bert_config.json", {"max_seq_length": 1}),
        ("config_sentence_transformers.json", {"prompts": {"query": 4}}),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}),
        ("tokenizer_config.json", {"model_max_length": -1}),
        ("tokenizer_config.json", {"padding_side": "middle"}),
        ("special_tokens_map.json", {"unk_token": {"x": 1}}),
    ],
)
def test_a_value_that_cannot_be_is_a_clear_error_before_memory_is_taken(file, changes, folder):
    rewrite(folder / file, **changes)
    with pytest.raises(RequestError):
        SentenceEncoder.load(folder)


def test_a_special_token_may_be_written_with_its_options(folder):
    before = SentenceEncoder.load(folder).encode(["a b"])
    rewrite(folder / "special_tokens_map.json", cls_token={"content": "[CLS]", "lstrip": False, "__type": "AddedToken"})
    assert np.array_equal(SentenceEncoder.load(folder).encode(["a b"]), before)


def test_a_padding_token_has_an_embedding_or_is_the_networks(folder):
    encoder = SentenceEncoder.load(folder)
    network, tokenizer = encoder.backbone, encoder.tokenizer
    tokenizer.pad_token = None
    network.config.pad_token_id = 3
    assert tokenizers.pad_id_of(network, tokenizer) == 3
    tokenizer.add_tokens([f"new{number}" for number in range(network.config.vocab_size)])
    tokenizer.pad_token = f"new{network.config.vocab_size - 1}"
    with pytest.raises(RequestError, match="expected a padding token among"):
        tokenizers.pad_id_of(network, tokenizer)


def test_a_template_without_a_special_token_is_reported(folder, capsys):
    SentenceEncoder.load(folder)
    assert capsys.readouterr().err == ""
    rules = read(folder / "tokenizer.json")
    for template, is_said in (("pair", False), ("single", True)):  # a sentence encoder reads no pairs
        rules["post_processor"][template].pop(0)
        (folder / "tokenizer.json").write_text(json.dumps(rules))
        tokenizer = SentenceEncoder.load(folder).tokenizer
        assert ("adds no [CLS] to a text;" in capsys.readouterr().err) == is_said
    tokenizers.warn_of_special_tokens(tokenizer, pairs=True)
    assert "adds no [CLS] to a pair of texts;" in capsys.readouterr().err


def test_a_file_of_any_size_kind_or_content_is_not_read(tmp_path):
    for content in WRONG:
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(RequestError, match=r"a\.json"):
            read_model_file(tmp_path / "a.json", dict[str, Any])
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    (tmp_path / "folder.json").mkdir()
    for name in ("large.json", "folder.json"):
        with pytest.raises(RequestError, match=name):
            read_model_file(tmp_path / name, dict[str, Any])
    assert read_model_file(tmp_path / "none.json", dict[str, Any]) is None
