import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.layout import Prompts
from bertrelay.pooling import Pooling, Projection


def read(path):
    return json.loads(path.read_text())


def rewrite(path, **changes):
    path.write_text(json.dumps(read(path) | changes))


@pytest.fixture
def folder(make_encoder, tmp_path):
    """A folder with every module, to be changed into what other versions write."""
    projection = Projection(32, 8, activation=torch.nn.Tanh())
    make_encoder(pooling=["mean", "max"], projection=projection, normalize=True, max_tokens=12).save(tmp_path / "model")
    return tmp_path / "model"


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


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("architecture", ["bert", "distilbert", "xlm-roberta"])
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


@pytest.mark.parametrize(
    "paths",
    [
        {"Transformer": "sentence_transformers.base.modules.transformer"},
        {"Pooling": "sentence_transformers.sentence_transformer.modules.pooling"},
        {"Dense": "sentence_transformers.base.modules.dense"},
        {"Normalize": "sentence_transformers.models.Normalize"},
    ],
)
def test_class_paths_of_every_version_are_known(paths, folder, sentences):
    before = vectors_of(folder, sentences)
    modules = read(folder / "modules.json")
    for module in modules:
        name = module["type"].rpartition(".")[2]
        module["type"] = f"{paths.get(name, 'sentence_transformers.models')}.{name}"
    (folder / "modules.json").write_text(json.dumps(modules))
    np.testing.assert_array_equal(vectors_of(folder, sentences), before)


def test_optional_files_may_be_missing(folder, sentences):
    before = vectors_of(folder, sentences)
    for name in ("config_sentence_transformers.json", "sentence_bert_config.json", "special_tokens_map.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "3_Normalize")
    np.testing.assert_array_equal(vectors_of(folder, sentences), before)  # the tokenizer knows the longest input too


def test_pickled_weights_are_read(folder, sentences):
    before = vectors_of(folder, sentences)
    for place in (folder, folder / "2_Dense"):
        torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
        (place / "model.safetensors").unlink()
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


def test_prompts_stand_where_sentence_transformers_puts_them(make_encoder, sentences, tmp_path):
    peer = pytest.importorskip("sentence_transformers")
    prompts = Prompts({"query": "Two dogs: ", "passage": "Rain: "}, default="passage")
    make_encoder(prompts=prompts, similarity_fn_name="dot").save(tmp_path)
    encoder = SentenceEncoder.load(tmp_path)
    theirs = peer.SentenceTransformer(str(tmp_path), device="cpu")
    assert encoder.prompts == prompts
    assert encoder.similarity_fn_name == "dot"
    np.testing.assert_allclose(encoder.encode(sentences, precision="fp32"), theirs.encode(sentences), atol=1e-5)
    by_name = encoder.encode(sentences, precision="fp32", prompt_name="query")
    np.testing.assert_allclose(by_name, theirs.encode(sentences, prompt_name="query"), atol=1e-5)
    with pytest.raises(RequestError, match=r"passage.*query.*'title'"):
        encoder.encode(sentences, prompt_name="title")


@pytest.mark.parametrize(
    "kinds",
    [
        ["sentence_transformers.models.WordEmbeddings", "sentence_transformers.models.Pooling"],
        ["sentence_transformers.models.Transformer", "sentence_transformers.models.CNN"],
        ["sentence_transformers.models.Transformer"],
        ["sentence_transformers.models.Transformer", "custom_code.Pooling"],
    ],
)
def test_other_modules_are_refused_by_name(kinds, folder):
    modules = [{"idx": place, "name": str(place), "path": "", "type": kind} for place, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(RequestError, match=kinds[-1].removeprefix("sentence_transformers.models.")):
        SentenceEncoder.load(folder)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode_lasttoken": True}, "lasttoken"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "weightedmean"),
        ("1_Pooling/config.json", {"word_embedding_dimension": 20}, "of 20 dimensions"),
        ("2_Dense/config.json", {"in_features": 48}, "do not fit"),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "activation of torch.nn"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.functional.tanh"}, "activation of torch.nn"),
        ("2_Dense/config.json", {"use_residual": True}, "use_residual"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "fill-mask"),
    ],
)
def test_what_a_folder_asks_for_and_is_not_here_is_refused(file, changes, message, folder):
    rewrite(folder / file, **changes)
    with pytest.raises(RequestError, match=message):
        SentenceEncoder.load(folder)
