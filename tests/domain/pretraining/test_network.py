"""The network that training starts from, its new tokens, and its losses against transformers."""

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

from bertrelay.cache import Cache
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.network import save_network
from bertrelay.model.new import train_unigram, train_wordpiece
from bertrelay.model.tokenizer import load_tokenizer, save_tokenizer
from bertrelay.settings import InputFile
from domain.pretraining.masking import Sequences
from domain.pretraining.network import (
    Pretraining,
    give_embeddings,
    losses,
    read_words,
    start_network,
    with_new_tokens,
)
from domain.pretraining.pairs import Text
from domain.pretraining.settings import PretrainSettings
from domain.pretraining.train import draw_items

TEXTS = [
    "the heart and the lung",
    "a fever, a cough and a rash",
    "kidney, liver, spleen",
    "[ n a m e ] h y p e r k l i s",
]
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
WORDPIECE, UNIGRAM = train_wordpiece(TEXTS, 110, 40), train_unigram(TEXTS, 110, 38)
LIKE_ROBERTA = {"pad_token_id": 1, "type_vocab_size": 1}
KINDS = {
    "bert": (AutoModelForPreTraining, "bert", {}),
    "bert without heads": (AutoModel, "bert", {}),
    "bert for masked words": (AutoModelForMaskedLM, "bert", {}),
    "roberta": (AutoModelForMaskedLM, "roberta", LIKE_ROBERTA),
    "distilbert": (AutoModelForMaskedLM, "distilbert", {}),
    "albert": (AutoModelForMaskedLM, "albert", {"embedding_size": 8}),
}


def written(folder, kind):
    """A model folder with random weights, and the tokenizer that goes with it."""
    architecture, model_type, sizes = KINDS[kind]
    tokenizer = UNIGRAM if model_type == "roberta" else WORDPIECE
    torch.manual_seed(1)
    config = AutoConfig.for_model(model_type, vocab_size=len(tokenizer), **SIZES, **sizes)
    architecture.from_config(config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder, 38, has_types=getattr(config, "type_vocab_size", 0) > 1)
    return folder


def settings_of(base, **settings):
    values = {"base": base, "documents": [{"path": "none.jsonl"}], "max_tokens": 32, **settings}
    return PretrainSettings.model_validate(values)


def started(tmp_path, kind, **settings):
    folder = written(tmp_path / "base", kind)
    return start_network(settings_of(str(folder), **settings), Cache(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("bert", []),
        ("bert without heads", ["masked words", "next sentences"]),
        ("bert for masked words", ["next sentences"]),
    ],
)
def test_heads_of_the_base_stay_and_a_missing_one_is_announced_and_starts_fresh_always_alike(
    tmp_path, capsys, kind, missing
):
    network, _ = started(tmp_path, kind)
    printed = capsys.readouterr().err
    assert [name for name in ("masked words", "next sentences") if f"no whole head for {name}" in printed] == missing
    if not missing:
        expected = BertForPreTraining.from_pretrained(tmp_path / "base").state_dict()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in network.state_dict().items())
    again, _ = started(tmp_path, kind)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    assert network.cls.seq_relationship.weight.std() > 0


def test_a_pooler_of_zeros_is_one_that_never_was(tmp_path, capsys):
    """Sentence encoders are saved with one, so that other readers do not miss it."""
    encoder = SentenceEncoder.load(written(tmp_path / "bert", "bert without heads"))
    for parameter in encoder.backbone.pooler.parameters():
        parameter.data.zero_()
    encoder.save(tmp_path / "encoder")
    network, _ = start_network(settings_of(str(tmp_path / "encoder")), Cache(tmp_path / "cache"))
    assert network.bert.pooler.dense.weight.std() > 0.005
    assert "no whole head for next sentences" in capsys.readouterr().err


MLM = {"objectives": ["mlm"]}
LONG = {**MLM, "max_tokens": 64}


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("roberta", {}, r"need a BERT.* the base is a 'roberta'.*set objectives = \['mlm'\]"),
        ("albert", MLM, r"expected one of bert, distilbert, roberta.*found 'albert'"),
        ("bert", LONG, "max_tokens: expected at most 40, the positions of the network, found 64"),
        ("roberta", LONG, "max_tokens: expected at most 38, the positions of the network, found 64"),
    ],
)
def test_a_network_that_will_not_do_is_refused(tmp_path, kind, settings, message):
    with pytest.raises(RequestError, match=message):
        started(tmp_path, kind, **settings)


def test_absent_weights_and_a_tokenizer_that_does_not_fit_are_refused(tmp_path):
    folder = written(tmp_path / "base", "bert")
    save_tokenizer(train_wordpiece([*TEXTS, "another vocabulary, 0123456789"], 140, 40), folder, 40, has_types=True)
    with pytest.raises(RequestError, match="the vocabulary does not fit the model"):
        start_network(settings_of(str(folder)), Cache(tmp_path / "cache"))
    BertConfig.from_pretrained(folder, num_hidden_layers=2).save_pretrained(folder)
    with pytest.raises(RequestError, match=r"lack 16 that its config\.json asks for"):
        start_network(settings_of(str(folder)), Cache(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("kind", "objectives"),
    [("bert", ["mlm", "nsp"]), ("bert", ["nsp"]), *((kind, ["mlm"]) for kind in ("bert", "roberta", "distilbert"))],
)
def test_all_that_learns_gets_a_gradient_and_nothing_else_learns(tmp_path, random_corpus, kind, objectives):
    network, tokenizer = started(tmp_path, kind, objectives=objectives)
    settings = settings_of("./none", objectives=objectives)
    corpus = random_corpus(20, sentences=(2, 6), tokens=(3, 12), vocabulary=(6, len(tokenizer) - 1))
    items = draw_items(Text(corpus, corpus.groups >= 0), settings, 0, 0)
    batch = Sequences(corpus, tokenizer, settings).batch(items, np.arange(8), 0, 0)
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
    documents = [{"path": str(tmp_path / "notes.txt")}]
    (network, tokenizer), (again, _), (sinusoidal, _) = (
        start_network(settings_of({**base, **more}, documents=documents, seed=3), tmp_path)
        for more in ({}, {}, {"positions": "sinusoidal"})
    )
    assert len(tokenizer) <= 60 and network.config.vocab_size == len(tokenizer)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    pairs = zip(network.named_parameters(), sinusoidal.parameters(), strict=True)
    changed = [name for (name, tensor), other in pairs if not torch.equal(tensor, other)]
    assert changed == ["bert.embeddings.position_embeddings.weight"]


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


def test_words_and_marks_become_one_token_each_and_other_text_stays():
    before = [ids(WORDPIECE, text) for text in TEXTS[:2]]
    extended, pieces = with_new_tokens(WORDPIECE, ["Hyperkalemia"], ["[NAME]"])
    [word], [mark] = ids(extended, "hyperkalemia"), ids(extended, "[NAME]")
    assert set(pieces) == {word, mark} == {len(WORDPIECE), len(WORDPIECE) + 1}
    assert ids(extended, "the Hyperkalemia of [NAME]'s heart")[1:2] == [word]
    assert ids(extended, "[NAME]'s")[0] == mark
    assert ids(extended, "hyperkalemias")[0] == word  # a piece of longer words, too
    assert [ids(extended, text) for text in TEXTS[:2]] == before == [ids(WORDPIECE, text) for text in TEXTS[:2]]


def test_embeddings_and_biases_start_as_the_mean_of_the_old_pieces():
    network = network_of("bert", len(WORDPIECE))
    old_rows = network.get_input_embeddings().weight.detach().clone()
    old_biases = network.cls.predictions.bias.detach().clone()
    extended, pieces = with_new_tokens(WORDPIECE, ["hyperkalemia"], ["[NAME]"])
    give_embeddings(network, pieces)
    rows, biases = network.get_input_embeddings().weight, network.cls.predictions.bias
    for text in ("hyperkalemia", "[NAME]"):
        [number], old = ids(extended, text), ids(WORDPIECE, text)
        assert len(old) > 1
        torch.testing.assert_close(rows[number], old_rows[old].mean(dim=0))
        torch.testing.assert_close(biases[number], old_biases[old].mean())
    torch.testing.assert_close(rows[: len(old_rows)], old_rows)
    assert network.cls.predictions.decoder.weight is rows
    assert network.config.vocab_size == len(extended)


def test_words_added_after_marks_disturb_no_id(tmp_path):
    """An added token outside the vocabulary would get the number of the next new word when the file is loaded."""
    once, _ = with_new_tokens(WORDPIECE, [], ["[NAME]", "[DATE]"])
    twice, pieces = with_new_tokens(once, ["hyperkalemia", "the"], ["[NAME]", "[PLACE]"])
    assert len(pieces) == 2  # what is one token already stays as it is
    expected = ids(twice, "[NAME] [DATE] [PLACE] hyperkalemia")
    assert len(set(expected)) == 4 and expected[:2] == ids(once, "[NAME] [DATE]")
    save_network(network_of("bert", len(twice)), twice, tmp_path)
    for loaded in (load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        assert ids(loaded, "[NAME] [DATE] [PLACE] hyperkalemia") == expected
        assert len(loaded) == len(twice)


def test_a_unigram_vocabulary_takes_marks(tmp_path):
    extended, pieces = with_new_tokens(UNIGRAM, [], ["[NAME]"])
    [number] = pieces
    assert number in ids(extended, "the [NAME] has a fever")
    save_tokenizer(extended, tmp_path, 64, has_types=False)
    assert ids(load_tokenizer(tmp_path), "the [NAME]") == ids(extended, "the [NAME]")


@pytest.mark.parametrize(
    ("tokenizer", "words", "marks", "message"),
    [
        (WORDPIECE, ["fever", "covid-19", "heart failure"], [], "found 2 which .*: 'covid-19', 'heart failure'"),
        (WORDPIECE, [" "], [], "new_tokens, protected_tokens: .* found a blank one"),
        (WORDPIECE, [], ["\u0007"], "found a blank one"),
        (UNIGRAM, ["hyperkalemia"], [], "only a WordPiece vocabulary.*this is a Unigram"),
    ],
)
def test_what_cannot_be_one_token_is_refused(tokenizer, words, marks, message):
    with pytest.raises(RequestError, match=message):
        with_new_tokens(tokenizer, words, marks)


def test_words_are_read_from_a_file(tmp_path):
    (tmp_path / "words.txt").write_text("hyperkalemia\n\n  sepsis \n", encoding="utf-8-sig")
    assert read_words(InputFile(tmp_path / "words.txt")) == ["hyperkalemia", "sepsis"]
    with pytest.raises(RequestError, match=r"protected_tokens: expected a text file.*FileNotFoundError at .*none\.txt"):
        read_words(InputFile(tmp_path / "none.txt"))


def network_of(kind, vocabulary=50):
    """Random and in float64, without dropout, and with biases that are not zero."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=vocabulary, **{**SIZES, "num_hidden_layers": 2})
    network = AutoModelForPreTraining.from_config(config).double().eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network


def batch_of(rows=3, tokens=9):
    """Inputs with padding, masked positions in all rows but the last, and what transformers calls the labels."""
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
    return {name: weight.grad.clone() for name, weight in network.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert"])
def test_losses_and_gradients_are_those_of_transformers(kind):
    """Against transformers' own loss, whose head is computed at every position, in float64."""
    network = network_of(kind)
    inputs, labels = batch_of()
    objectives = ["mlm", "nsp"] if kind == "bert" else ["mlm"]
    loss = sum(values.mean() for values in losses(Pretraining(network, objectives)(inputs), inputs).values())
    loss.backward()
    ours = gradients(network)
    network.zero_grad()
    arguments = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    if kind == "bert":
        arguments |= {"token_type_ids": inputs["token_type_ids"], "next_sentence_label": inputs["is_random"]}
    theirs = network(**arguments, labels=labels).loss
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
