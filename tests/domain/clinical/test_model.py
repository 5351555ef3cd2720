"""The network under a head: every kind of BERT as a base, gradients of all weights, and folders that are read again."""

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForSequenceClassification

from bertrelay.errors import RequestError
from domain.clinical.model import load_model, save_model, start_model
from domain.clinical.settings import ModelDescription

TEXTS = ["The wound is dry.", "The failing heart came back again.", "Slept well."] * 3
HOW = ModelDescription.model_validate({"chunking": {"max_tokens": 16}, "c": 4.0, "threshold": 0.25})


@pytest.fixture
def base(tiny_encoder, tmp_path):
    """The folder of a random sentence encoder of this kind."""

    def make(kind: str):
        tiny_encoder(kind, TEXTS).save(tmp_path / kind)
        return tmp_path / kind

    return make


def log_odds(model):
    model.network.eval()
    ids = torch.tensor([[5, 6, 7, 8], [9, 6, 5, model.pad_id]])
    return model.network(ids, (ids != model.pad_id).long())


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet"])
def test_any_bert_learns_with_all_its_weights_and_its_dropout_and_is_read_again_as_it_was(base, tmp_path, kind):
    model = start_model(base(kind), HOW, dropout=0.3, seed=3)
    computed = log_odds(model)
    assert computed.shape == (2, 1) and computed.dtype == torch.float32 and computed[0] != computed[1]
    computed.sum().backward()
    trained = [weight for weight in model.network.parameters() if weight.requires_grad]
    assert all(weight.grad is not None for weight in trained)
    save_model(model, tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.description == HOW
    assert torch.allclose(log_odds(again), computed, atol=1e-6)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    assert torch.allclose(plain(ids, torch.ones_like(ids)).logits, computed[:1], atol=1e-5)
    for network in (model.network, plain):
        shares = [module.p for module in network.modules() if isinstance(module, torch.nn.Dropout)]
        assert len(shares) > 2 and set(shares) == {0.3}


def test_a_seed_gives_the_same_head_and_another_one_another(base):
    folder = base("bert")
    first, again, other = (log_odds(start_model(folder, HOW, seed=seed)).tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_log_odds_are_not_rounded_to_bf16(base):
    model = start_model(base("bert"), HOW)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        computed = log_odds(model)
    assert computed.dtype == torch.float32
    assert not torch.equal(computed, computed.bfloat16().float())


def test_a_pooler_of_zeros_starts_fresh(base):
    """A folder without a trained pooler has zeros for it, with which every chunk would get one vector."""
    file = (folder := base("bert")) / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    zeros = {name: torch.zeros_like(weights[name]) for name in weights if "pooler" in name}
    assert zeros
    safetensors.torch.save_file(weights | zeros, file)
    first, other = log_odds(start_model(folder, HOW))
    assert first != other


def test_a_head_on_the_mean_reads_the_mean_of_the_tokens_that_are_no_padding(base, tmp_path):
    for kind in ("bert", "roberta"):
        description = HOW.model_copy(update={"pooling": "mean"})
        model = start_model(base(kind), description, seed=3)
        computed = log_odds(model)
        save_model(model, tmp_path / "model")
        again = load_model(tmp_path / "model")
        assert again.description == description and torch.allclose(log_odds(again), computed, atol=1e-6)
        plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
        inner, outer = (plain.classifier.dense, plain.classifier.out_proj) if kind == "roberta" else (
            plain.bert.pooler.dense, plain.classifier
        )  # fmt: skip
        ids = torch.tensor([[5, 6, 7, 8], [9, 6, 5, model.pad_id]])
        tokens = plain.base_model(ids, (ids != model.pad_id).long()).last_hidden_state
        means = torch.stack([tokens[0].mean(0), tokens[1, :3].mean(0)])
        assert torch.allclose(computed, outer(torch.tanh(inner(means))), atol=1e-6)
        assert not torch.allclose(computed, plain(ids, (ids != model.pad_id).long()).logits, atol=1e-4)
    with pytest.raises(RequestError, match=r"pooling: expected a base whose head reads one vector.*'distilbert'"):
        start_model(base("distilbert"), description)
