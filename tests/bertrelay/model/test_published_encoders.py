"""Encoders as they are published: every pooling, several projections, prompts that are not pooled."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import POOLINGS, Prompts
from bertrelay.model.pooling import Pooling, Projection

peer = pytest.importorskip("sentence_transformers")
Dense, Normalize, Transformer = (getattr(peer.base.modules, name) for name in ("Dense", "Normalize", "Transformer"))

CHAINS = {
    "embeddinggemma": lambda dim: [linear(dim, 64), linear(64, dim), Normalize()],
    "sentence-t5": lambda dim: [linear(dim, 24), Normalize()],
    "distiluse": lambda dim: [Dense(dim, 8)],  # with a Tanh
    "bottleneck": lambda dim: [Dense(dim, 3, activation_function=nn.GELU()), Dense(3, 20, bias=False), linear(20, 9)],
    "normalised between": lambda dim: [Normalize(), linear(dim, 7), Normalize(), Dense(7, 5), Normalize(), Normalize()],
}


def linear(in_features, to):
    return Dense(in_features, to, bias=False, activation_function=nn.Identity())


@pytest.fixture
def publish(make_encoder, tmp_path):
    """`publish(modes, chain)`: a model of sentence-transformers, saved as its newest version does, and its folder."""

    def save(modes, chain=(), include_prompt=True, **options):
        make_encoder("bert").save(tmp_path / "plain")
        transformer = Transformer(str(tmp_path / "plain"), max_seq_length=24)
        pooling = peer.sentence_transformer.modules.Pooling(16, modes, include_prompt)
        torch.manual_seed(3)
        rest = CHAINS[chain](pooling.pooling_output_dimension) if chain else []
        model = peer.SentenceTransformer(modules=[transformer, pooling, *rest], device="cpu", **options)
        model.save(str(tmp_path / "theirs"))
        return model, tmp_path / "theirs"

    return save


def assert_same_here_and_saved_again(model, folder, sentences, *all_options):
    again = folder.with_name("ours")
    encoder = SentenceEncoder.load(folder, "cpu")
    encoder.save(again)
    saved, theirs = SentenceEncoder.load(again, "cpu"), peer.SentenceTransformer(str(again), device="cpu")
    for options in all_options or [{}]:
        expected, ours = model.encode(sentences, **options), {"precision": "fp32", **options}
        alone = [encoder.encode(sentence, **ours) for sentence in sentences]
        both = encoder.encode(sentences, **ours), saved.encode(sentences, **ours)
        for vectors in (alone, *both, theirs.encode(sentences, **options)):
            np.testing.assert_allclose(vectors, expected, atol=1e-5)


THEIR_NAMES = [mode.replace("sqrt_len", "sqrt_len_tokens") for mode in POOLINGS]


@pytest.mark.parametrize("modes", [*THEIR_NAMES, THEIR_NAMES, ["lasttoken", "mean"], ["weightedmean", "cls", "max"]])
def test_every_pooling_and_several_in_any_order(publish, sentences, modes):
    assert_same_here_and_saved_again(*publish(modes), sentences)


@pytest.mark.promise(
    "Every pooling, several projections and prompts that are not pooled have the vectors of "
    "sentence-transformers, also after saving",
    about="elsewhere",
)
@pytest.mark.parametrize("chain", CHAINS)
def test_projections_and_normalisations_in_a_row(publish, sentences, chain):
    assert_same_here_and_saved_again(*publish(["mean", "cls"], chain), sentences)


@pytest.mark.parametrize("mode", THEIR_NAMES)
def test_a_prompt_is_not_pooled_where_the_folder_says_so(publish, sentences, mode):
    prompts = {"query": "Two dogs: ", "title": "Rain."}
    model, folder = publish(mode, "distiluse", False, prompts=prompts, default_prompt_name="query")
    ways = {}, {"prompt_name": "title"}, {"prompt": "Nobody knows"}, {"prompt": ""}
    assert_same_here_and_saved_again(model, folder, sentences, *ways)
    pooled = SentenceEncoder.load(folder)
    pooled.pooling.include_prompt = True
    is_moved = np.abs(pooled.encode(sentences) - model.encode(sentences)).max() > 1e-2
    assert is_moved == (mode != "lasttoken")


def test_training_leaves_the_default_prompt_out_of_the_pooling_as_encoding_does(make_encoder, sentences):
    prompts = Prompts({"query": "Two dogs: "}, default="query")
    encoder = make_encoder("bert", pooling=Pooling(["mean"], include_prompt=False), prompts=prompts)
    ids = torch.tensor(encoder.tokenize([f"Two dogs: {sentences[0]}"]))
    vectors = encoder(ids, torch.ones_like(ids)).detach()  # as a training step calls it
    np.testing.assert_allclose(vectors, encoder.encode(sentences[:1], precision="fp32"), atol=1e-6)


def test_of_a_sentence_cut_within_its_prompt_the_last_token_is_pooled():
    tokens, mask = torch.arange(12.0).view(2, 3, 2), torch.tensor([[1, 1, 1], [1, 1, 0]])
    vectors = Pooling(["mean"], include_prompt=False)(tokens, mask, prompt_tokens=5)
    assert torch.equal(vectors, torch.stack([tokens[0, 2], tokens[1, 1]]))


def test_the_files_of_several_projections_are_those_of_older_versions(make_encoder, tmp_path):
    chain = nn.Sequential(Projection(16, 8, bias=False), Projection(8, 4, activation=nn.Tanh(), normalized=True))
    make_encoder("bert", projection=chain, normalize=True).save(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert [(module["path"], module["type"].rpartition(".")[2]) for module in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        ("2_Dense", "Dense"),
        ("3_Normalize", "Normalize"),
        ("4_Dense", "Dense"),
        ("5_Normalize", "Normalize"),
    ]
    assert json.loads((tmp_path / "4_Dense/config.json").read_text())["activation_function"].endswith(".Tanh")


def test_projections_that_do_not_fit_one_another_are_refused(make_encoder):
    with pytest.raises(RequestError, match="expects 9 dimensions and the projection before it gives 8"):
        make_encoder("bert", projection=nn.Sequential(Projection(16, 8), Projection(9, 4)))


@pytest.mark.parametrize("kind", ["2_Normalize", "3_Dense"])
def test_modules_that_read_or_write_other_vectors_are_refused(publish, kind):
    _, folder = publish("mean", "normalised between")
    path = folder / kind / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "module_input_name": "token_embeddings"}))
    with pytest.raises(RequestError, match=r"token_embeddings in .*config\.json; sentence-transformers itself"):
        SentenceEncoder.load(folder)
