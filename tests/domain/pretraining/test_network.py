from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
)

from bertrelay.backbone import save_network
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.new_encoder import train_unigram, train_wordpiece
from bertrelay.tokenizer import save_tokenizer
from domain.pretraining.items import Text
from domain.pretraining.network import Pretraining, losses, start_network
from domain.pretraining.sequences import Sequences
from domain.pretraining.settings import PretrainSettings
from domain.pretraining.train import draw_items

TEXTS = ["the heart and the lung", "a fever, a cough and a rash", "kidney, liver, spleen"]
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
TOKENIZERS = {"wordpiece": train_wordpiece(TEXTS, 90, 40), "unigram": train_unigram(TEXTS, 90, 38)}
LIKE_ROBERTA = {"pad_token_id": 1, "type_vocab_size": 1}
KINDS = {
    "bert": (AutoModelForPreTraining, "bert", {}),
    "bert without heads": (AutoModel, "bert", {}),
    "bert for masked words": (AutoModelForMaskedLM, "bert", {}),
    "roberta": (AutoModelForMaskedLM, "roberta", LIKE_ROBERTA),
    "xlm-roberta": (AutoModelForMaskedLM, "xlm-roberta", LIKE_ROBERTA),
    "distilbert": (AutoModelForMaskedLM, "distilbert", {}),
    "albert": (AutoModelForMaskedLM, "albert", {"embedding_size": 8}),
}


def written(folder, architecture, model_type, sizes):
    """A model folder with random weights, and the tokenizer that goes with it."""
    tokenizer = TOKENIZERS["unigram" if "roberta" in model_type else "wordpiece"]
    torch.manual_seed(1)
    config = AutoConfig.for_model(model_type, vocab_size=len(tokenizer), **SIZES, **sizes)
    folder.mkdir()
    architecture.from_config(config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder, 38, has_types=getattr(config, "type_vocab_size", 0) > 1)
    return folder


def started(tmp_path, kind, **settings):
    folder = written(tmp_path / "base", *KINDS[kind])
    given = {"base": str(folder), "documents": [{"path": "none.jsonl"}], "max_tokens": 32, **settings}
    return start_network(PretrainSettings.model_validate(given), tmp_path / "cache")


def test_a_network_with_both_heads_starts_with_them_and_without_a_word(tmp_path, capsys):
    network, _ = started(tmp_path, "bert")
    expected = BertForPreTraining.from_pretrained(tmp_path / "base").state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in network.state_dict().items())
    assert "head" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("bert without heads", ["masked words", "next sentences"]),
        ("bert for masked words", ["next sentences"]),
    ],
)
def test_a_missing_head_is_announced_and_starts_fresh_always_alike(tmp_path, capsys, kind, told):
    network, _ = started(tmp_path, kind)
    said = capsys.readouterr().err
    assert [name for name in ("masked words", "next sentences") if f"no whole head for {name}" in said] == told
    (tmp_path / "again").mkdir()
    again, _ = started(tmp_path / "again", kind)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    assert network.cls.seq_relationship.weight.std() > 0


def test_a_pooler_of_zeros_is_one_that_never_was(tmp_path, capsys):
    """Sentence encoders are saved with one, so that other readers do not miss it."""
    folder = written(tmp_path / "bert", *KINDS["bert without heads"])
    encoder = SentenceEncoder.load(folder)
    for parameter in encoder.backbone.pooler.parameters():
        parameter.data.zero_()
    encoder.save(tmp_path / "encoder")
    given = {"base": str(tmp_path / "encoder"), "documents": [{"path": "none.jsonl"}], "max_tokens": 32}
    network, _ = start_network(PretrainSettings.model_validate(given), tmp_path / "cache")
    assert network.bert.pooler.dense.weight.std() > 0.005
    assert "no whole head for next sentences" in capsys.readouterr().err


MLM = {"objectives": ["mlm"]}


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        ("roberta", {}, r"need a BERT.* the base is a 'roberta'.*set objectives = \['mlm'\]"),
        ("distilbert", {}, r"need a BERT.* the base is a 'distilbert'"),
        ("albert", MLM, r"expected one of bert, distilbert, roberta.*found 'albert'"),
        ("bert", {**MLM, "max_tokens": 64}, "max_tokens: expected at most 40, the positions of the network, found 64"),
        (
            "roberta",
            {**MLM, "max_tokens": 64},
            "max_tokens: expected at most 38, the positions of the network, found 64",
        ),
    ],
)
def test_a_network_that_will_not_do_is_refused(tmp_path, kind, settings, told):
    with pytest.raises(RequestError, match=told):
        started(tmp_path, kind, **settings)


def test_absent_weights_and_a_tokenizer_that_does_not_fit_are_refused(tmp_path):
    folder = written(tmp_path / "base", *KINDS["bert"])
    settings = PretrainSettings.model_validate({"base": str(folder), "documents": [{"path": "none.jsonl"}]})
    larger = train_wordpiece([*TEXTS, "quite another vocabulary, 0123456789"], 120, 40)
    save_tokenizer(larger, folder, 40, has_types=True)
    with pytest.raises(RequestError, match="the vocabulary does not fit the model"):
        start_network(settings, tmp_path / "cache")
    BertConfig.from_pretrained(folder, num_hidden_layers=2).save_pretrained(folder)
    with pytest.raises(RequestError, match=r"lack 16 that its config\.json asks for"):
        start_network(settings, tmp_path / "cache")


@pytest.mark.parametrize(
    ("kind", "objectives"),
    [("bert", ["mlm", "nsp"]), ("bert", ["nsp"]), *((kind, ["mlm"]) for kind in ("bert", "roberta", "distilbert"))],
)
def test_all_that_learns_gets_a_gradient_and_nothing_else_learns(tmp_path, random_corpus, kind, objectives):
    given = {"base": "./none", "documents": [{"path": "none.jsonl"}], "max_tokens": 32, "objectives": objectives}
    network, tokenizer = started(tmp_path, kind, objectives=objectives)
    settings = PretrainSettings.model_validate(given)
    corpus = random_corpus(20, sentences=(2, 6), tokens=(3, 12), vocabulary=(6, len(tokenizer) - 1))
    text = Text(corpus, corpus.groups >= 0)
    items = draw_items(text, settings, 0, 0)
    batch = Sequences(corpus, tokenizer, settings).batch(items, torch.arange(8).numpy(), 0, 0)
    model = Pretraining(network, objectives)
    sum(loss.sum() for loss in losses(model(batch.inputs), batch.inputs).values()).backward()
    for name, parameter in network.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name


def test_what_is_saved_is_a_plain_folder_with_both_heads(tmp_path):
    network, tokenizer = started(tmp_path, "bert without heads")
    network.eval()
    save_network(network, tokenizer, tmp_path / "saved")
    loaded, report = BertForPreTraining.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight
    inputs = tokenizer(TEXTS[0], TEXTS[1], return_tensors="pt")
    theirs, ours = loaded.eval()(**inputs), network(**inputs)
    torch.testing.assert_close(theirs.prediction_logits, ours.prediction_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(theirs.seq_relationship_logits, ours.seq_relationship_logits, rtol=0, atol=1e-5)
    encoder = SentenceEncoder.load(tmp_path / "saved")
    assert encoder.encode(["the heart"], precision="fp32").shape == (1, 16)
    assert encoder.max_tokens == 40
    pair = AutoTokenizer.from_pretrained(tmp_path / "saved")(TEXTS[0], TEXTS[1])
    assert (pair["token_type_ids"][0], pair["token_type_ids"][-1]) == (0, 1)


def test_a_new_bert_has_the_vocabulary_of_its_documents(tmp_path):
    (tmp_path / "notes.txt").write_text("the heart and the lung\n\na fever, a cough and a rash\n")
    base = {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 60, "max_tokens": 32}
    given = {"documents": [{"path": str(tmp_path / "notes.txt")}], "max_tokens": 32, "seed": 3}
    (network, tokenizer), (again, _), (sinusoidal, _) = (
        start_network(PretrainSettings.model_validate({**given, "base": {**base, **more}}), tmp_path)
        for more in ({}, {}, {"positions": "sinusoidal"})
    )
    assert len(tokenizer) <= 60 and network.config.vocab_size == len(tokenizer)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    pairs = zip(network.named_parameters(), sinusoidal.parameters(), strict=True)
    changed = [name for (name, tensor), other in pairs if not torch.equal(tensor, other)]
    assert changed == ["bert.embeddings.position_embeddings.weight"]


# Losses


def network_of(kind):
    """Random and in float64, without dropout, and with biases that are not zero."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=50, **{**SIZES, "num_hidden_layers": 2})
    network = AutoModelForPreTraining.from_config(config).double().eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network


def batch_of(rows=3, tokens=9):
    """Inputs with padding, masked places in all rows but the last, and what transformers calls the labels."""
    generator = np.random.default_rng(0)
    mask = np.arange(tokens) < np.array([tokens, tokens - 2, tokens - 4])[:, None]
    ids = np.where(mask, generator.integers(5, 50, (rows, tokens)), 1)
    masked = np.flatnonzero((generator.random((rows, tokens)) < 0.4) & mask & (np.arange(rows)[:, None] < rows - 1))
    masked_ids = generator.integers(5, 50, len(masked))
    labels = np.full(rows * tokens, -100)
    labels[masked] = masked_ids
    inputs = {
        "input_ids": ids,
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": ((np.arange(tokens) > 3) & mask).astype(np.int64),
        "masked": masked,
        "masked_ids": masked_ids,
        "is_random": np.array([0, 1, 1]),
    }
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    return tensors, torch.from_numpy(labels.reshape(rows, tokens))


def gradients(network):
    return {name: each.grad.clone() for name, each in network.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert"])
def test_losses_and_gradients_are_those_of_transformers(kind):
    """Against transformers' own loss, whose head is computed at every place, in float64."""
    network = network_of(kind)
    inputs, labels = batch_of()
    objectives = ["mlm", "nsp"] if kind == "bert" else ["mlm"]
    loss = sum(each.mean() for each in losses(Pretraining(network, objectives)(inputs), inputs).values())
    loss.backward()
    ours = gradients(network)
    network.zero_grad()
    given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    if kind == "bert":
        given |= {"token_type_ids": inputs["token_type_ids"], "next_sentence_label": inputs["is_random"]}
    theirs = network(**given, labels=labels).loss
    theirs.backward()
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-6)
    torch.testing.assert_close(ours, gradients(network), rtol=1e-9, atol=1e-12)


def test_a_batch_without_a_masked_word_has_a_loss_of_nought_and_gradients_of_nought():
    network = network_of("bert")
    none = torch.empty(0, dtype=torch.int64)
    inputs = {**batch_of()[0], "masked": none, "masked_ids": none}
    loss = losses(Pretraining(network, ["mlm"])(inputs), inputs)["mlm"].sum()
    loss.backward()
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in gradients(network).values())
    assert "cls.predictions.transform.dense.weight" in gradients(network)  # processes wait for one another's
