"""A static student: made of a parent's tokens, trained as any student, and the same in sentence-transformers."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from bertrelay import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.model.pooling import Projection
from bertrelay.model.static import StaticNetwork
from students import export
from students.distill.settings import DistillSettings
from students.distill.static import create_static, fold_projection
from students.distill.train import run

peer = pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def models(tiny_encoder, toy, tmp_path_factory):
    """Folders of a teacher and of a parent that knows both languages."""
    folder, rows = tmp_path_factory.mktemp("models"), [*toy.train, *toy.test]
    tiny_encoder("bert", [row[0] for row in rows], normalize=True).save(folder / "teacher")
    tiny_encoder("xlm-roberta", [text for row in rows for text in row], sizes={"hidden_size": 32}).save(
        folder / "parent"
    )
    return folder


def trained(models, toy, context, dim):
    base = {"static": str(models / "parent"), **({"dim": dim} if dim else {})}
    settings = {"teacher": str(models / "teacher"), "base": base, "parallel": [toy.source()], "precision": "fp32"}
    options = {"epochs": 4, "learning_rate": 2e-2, "batch_tokens": 512, "dev_sentences": 20, "trim_vocabulary": True}
    return run(DistillSettings.model_validate(settings | options), context)


@pytest.mark.promise("A static student is sentence-transformers' `StaticEmbedding`", about="elsewhere")
@pytest.mark.parametrize("dim", [None, 12])
def test_a_static_student_learns_and_is_the_same_in_sentence_transformers(models, toy, context, dim, tmp_path):
    metrics = trained(models, toy, context, dim)
    assert metrics["gain/cosine/de"] > 0
    texts = [text for row in toy.test for text in row] + ["", "dog", "dog " * 700]
    folder = context.output / "model"
    student, theirs = SentenceEncoder.load(folder), peer.SentenceTransformer(str(folder), device="cpu")
    assert isinstance(student.backbone, StaticNetwork)
    expected = theirs.encode(texts)
    np.testing.assert_allclose(student.encode(texts), expected, atol=1e-5)
    modules = [module["type"].rpartition(".")[2] for module in json.loads((folder / "modules.json").read_text())]
    assert modules == ["StaticEmbedding", *(["Dense"] if dim else []), "Normalize"]
    metrics = export(student, tmp_path / "small", precision="int8")
    assert load_file(tmp_path / "small/model.safetensors")["embeddings"].dtype == np.int8
    small = SentenceEncoder.load(tmp_path / "small").encode(texts)
    np.testing.assert_allclose(
        peer.SentenceTransformer(str(tmp_path / "small"), device="cpu").encode(texts), small, atol=1e-5
    )
    assert pairwise(small[:100], expected[:100]).min() > 0.999 and metrics["table/cosine_min"] > 0.99
    if dim is None:
        static_model = pytest.importorskip("model2vec").StaticModel
        for path in (folder, tmp_path / "small"):
            vectors = static_model.from_pretrained(path, normalize=True).encode(texts[:100])
            np.testing.assert_allclose(vectors, SentenceEncoder.load(path).encode(texts[:100]), atol=1e-5)


def test_a_table_starts_as_the_parents_weighted_vectors_of_tokens_alone(models, toy, tmp_path):
    parent, corpus = SentenceEncoder.load(models / "parent", "cpu"), toy.corpus(tmp_path)
    static = create_static(parent, corpus, None, "fp32")
    rules = parent.tokenizer.backend_tokenizer
    ids = [rules.encode(text, add_special_tokens=False).ids for text in corpus]
    counts = 1 + np.bincount(np.concatenate(ids), minlength=len(parent.tokenizer))
    probabilities = counts / counts.sum()
    alone = torch.tensor([[rules.token_to_id("<s>"), token, rules.token_to_id("</s>")] for token in range(len(counts))])
    with torch.inference_mode():
        vectors = parent.eval()(alone, torch.ones_like(alone)).numpy()
    expected = (vectors - probabilities @ vectors) * (1e-3 / (1e-3 + probabilities))[:, None]
    expected[parent.tokenizer.pad_token_id] = 0
    table = static.backbone.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_allclose(table, expected, atol=1e-5)
    text = next(iter(corpus))
    np.testing.assert_allclose(static.encode(text), expected[ids[0]].mean(axis=0), atol=1e-5)
    fewer, whole = (one.encode([text, "dog"]) for one in (create_static(parent, corpus, 31, "fp32"), static))
    np.testing.assert_allclose(fewer @ fewer.T, whole @ whole.T, rtol=0.05)
    with pytest.raises(RequestError, match=r"base.dim: expected fewer than the 32 dimensions of the encoder, found 32"):
        create_static(parent, corpus, 32, "fp32")
    torch.manual_seed(0)
    projected = static.with_parts(projection=Projection(32, 5))
    np.testing.assert_allclose(fold_projection(projected).encode(text), projected.encode(text), atol=1e-5)


def test_folders_of_static_models_elsewhere_load_and_damaged_ones_are_refused(models, tmp_path):
    parent = SentenceEncoder.load(models / "parent", "cpu")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    module = modules.StaticEmbedding(parent.tokenizer.backend_tokenizer, embedding_dim=6)
    theirs = peer.SentenceTransformer(modules=[module], device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    texts = ["a dog runs", "", "ein Hund"]
    np.testing.assert_allclose(SentenceEncoder.load(tmp_path / "theirs").encode(texts), theirs.encode(texts), atol=1e-6)
    path = tmp_path / "theirs/model.safetensors"
    weights = load_file(path)
    for content, message in (
        (
            {"x": weights["embedding.weight"]},
            "expected a table of vectors named embedding.weight or embeddings .*found x",
        ),
        ({"embeddings": weights["embedding.weight"][:-1]}, r"for each of the [\d,]+ tokens in .*found [\d,]+ vectors"),
    ):
        save_file(content, path)
        with pytest.raises(RequestError, match=message):
            SentenceEncoder.load(tmp_path / "theirs")


def test_settings_without_a_meaning_for_a_table_are_refused():
    sources = [{"path": "x.tsv", "others": {"de": "de"}}]
    settings = {"teacher": "./t", "base": {"static": "./b"}, "parallel": sources}
    for extra, message in (
        ({"layers": 2}, "layers: without effect, because a table of token vectors has no layers"),
        ({"head_neurons": 8}, "head_neurons: .*give base.dim too"),
        ({"budget_minutes": 3}, "budget_minutes: .*give epochs"),
    ):
        with pytest.raises(ValueError, match=message):
            DistillSettings.model_validate(settings | extra)
