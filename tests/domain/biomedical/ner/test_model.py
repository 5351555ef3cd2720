"""The folder and subwords of a tagger against transformers; damaged folders are errors."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from synthetic_questions import cut, edit, remove_padding, start_tagger
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    BertModel,
)

from bertrelay.errors import RequestError
from bertrelay.model.tokenizer import load_tokenizer, save_tokenizer
from domain.biomedical.documents.tags import illegal_positions
from domain.biomedical.ner.decoding import LabelSet, viterbi
from domain.biomedical.ner.model import EntityModel, load_model, save_model
from domain.biomedical.ner.subwords import WordSplitter

LABELS = LabelSet.of_types(["Disease", "Chemical"])
WORDS = ["the", "patient", "angina", "pectoris", "fluxyz"]
SENTENCES = [["the", "patient", "angina", "pectoris"], [], ["\x01", "fluxyz", "of"], ["gout"]]


def started(tiny_bert, **more):
    model = start_tagger(tiny_bert, LABELS, max_tokens=40, overlap=8, **more)
    if model.network.crf is not None:
        for weight in model.network.crf.parameters():
            torch.nn.init.normal_(weight)
    return EntityModel(model.network.eval(), model.tokenizer, LABELS, 40, 8, 1.7, model.capitals)


def small(tiny_bert, **more):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertConfig(vocab_size=len(load_tokenizer(tiny_bert)), max_position_embeddings=64, **sizes, **more)


def scores_of(model, words, splitter=None):
    splitter = splitter or model.splitter
    subwords = splitter([words])
    with torch.inference_mode():
        return model.network(**splitter.batch(subwords, subwords.windows(40, 8), 20, 1))


def their_scores(folder, words, marked=()):
    """The scores of transformers for a folder; marked: the words of the second token type."""
    theirs = AutoModelForTokenClassification.from_pretrained(folder).eval()
    encoded = AutoTokenizer.from_pretrained(folder)(words, is_split_into_words=True, return_tensors="pt")
    encoded["token_type_ids"] = torch.tensor([[int(word in marked) for word in encoded.word_ids()]])
    with torch.inference_mode():
        return theirs(**encoded).logits[0][[encoded.word_ids().index(word) for word in range(len(words))]]


@pytest.fixture
def folder(tiny_bert, tmp_path):
    save_model(started(tiny_bert, decoder="crf"), tmp_path / "model")
    return tmp_path / "model"


def test_transformers_loads_the_folder_and_gives_the_same_scores(tiny_bert, tmp_path):
    model = started(tiny_bert)
    save_model(model, tmp_path)
    torch.testing.assert_close(scores_of(model, WORDS), their_scores(tmp_path, WORDS), rtol=1e-5, atol=1e-5)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["label2id"], list(config["id2label"].values())) == (LABELS.number, list(LABELS.tags))


def test_a_saved_model_loads_unchanged(tiny_bert, folder):
    back = load_model(folder)
    assert (back.labels, back.max_tokens, back.overlap, back.temperature) == (LABELS, 40, 8, 1.7)
    saved = {**load_file(folder / "model.safetensors"), **load_file(folder / "crf.safetensors")}
    assert back.network.crf is not None
    loaded = {**back.network.network.state_dict(), **back.network.crf.state_dict()}
    for name in saved:
        torch.testing.assert_close(loaded[name], saved[name])
    save_model(started(tiny_bert), folder)
    assert load_model(folder).network.crf is None


def test_the_token_type_of_capitals_starts_neutral_and_is_saved(tiny_bert, tmp_path):
    model, words = started(tiny_bert, capitals=True), ["the", "PATIENT", "gout"]
    unmarked = scores_of(model, words, WordSplitter(model.tokenizer))
    torch.testing.assert_close(scores_of(model, words), unmarked, rtol=0, atol=0)
    with torch.no_grad():
        model.network.network.bert.embeddings.token_type_embeddings.weight[1] += torch.linspace(-1, 1, 32)
    marked = scores_of(model, words)
    assert not torch.allclose(marked, unmarked)
    save_model(model, tmp_path)
    back = load_model(tmp_path)
    assert back.capitals
    torch.testing.assert_close(scores_of(back, words), marked)
    torch.testing.assert_close(their_scores(tmp_path, words, (1,)), marked, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("why", ["vocabulary has capitals", "base, bert, has no second token type"])
def test_capitals_are_marked_where_the_vocabulary_has_none_and_there_is_a_type_for_it(tiny_bert, tmp_path, capsys, why):
    shutil.copytree(tiny_bert, tmp_path, dirs_exist_ok=True)
    if "vocabulary" in why:
        rules = json.loads((tmp_path / "tokenizer.json").read_text())
        (tmp_path / "tokenizer.json").write_text(json.dumps({**rules, "normalizer": None}))
    else:
        BertModel(small(tiny_bert, type_vocab_size=1)).save_pretrained(tmp_path)
    assert not start_tagger(tmp_path, LABELS, max_tokens=40, capitals=True).capitals
    assert f"{why}, so they are not marked" in capsys.readouterr().err


def test_a_folder_that_transformers_wrote_tags_too(tiny_bert, tmp_path):
    names = ["O", "B-Gene", "I-Gene", "E-Gene", "S-Gene"]
    config = small(tiny_bert, id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)})
    BertForTokenClassification(config).save_pretrained(tmp_path)
    save_tokenizer(load_tokenizer(tiny_bert), tmp_path, 64, has_types=True)
    model = load_model(tmp_path)
    assert (model.labels, model.max_tokens) == (LabelSet(tuple(names), "IOBES"), 64)
    assert model.network.crf is None


@pytest.mark.parametrize(
    ("names", "types"),
    [
        (["O", "B-X", "I-X", "B-Y", "[CLS]", "PAD"], ["X", "Y"]),
        (["S-X", "O", "X"], ["X"]),
        (["O", "B-X", "I-X", "L-X", "U-X"], None),
        (["O", "B-X", "I-Y"], None),
        (["O", "B-X", "B-X"], None),
    ],
)
def test_tags_that_are_missing_or_of_no_entity_are_never_predicted(tiny_bert, tmp_path, capsys, names, types):
    config = small(tiny_bert, id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)})
    BertForTokenClassification(config).save_pretrained(tmp_path)
    save_tokenizer(load_tokenizer(tiny_bert), tmp_path, 64, has_types=True)
    if types is None:
        with pytest.raises(RequestError, match="id2label: expected the tags"):
            load_model(tmp_path)
        return
    model = load_model(tmp_path)
    assert (model.labels.types, len(model.labels)) == (types, len(names))
    others = [name for name in names if "-" not in name and name != "O"]
    assert f"the tags {', '.join(others)} are of no entity, and count as O" in capsys.readouterr().err
    surest = np.eye(len(names))  # each tag is the best of one word
    predicted = [model.labels.tags[tag] for tag in viterbi(surest, np.array([len(names)]), model.chain)]
    assert set(predicted) <= {*names} - {*others} and not illegal_positions(predicted, model.labels.scheme)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda it: edit(it / "config.json", id2label=dict(enumerate("OXYZW"))), "id2label: expected the tags"),
        (lambda it: (it / "crf.safetensors").unlink(), r"CRF of 5 tags in .*crf\.safetensors"),
        (lambda it: cut(it / "crf.safetensors"), r"CRF of 5 tags in .*crf\.safetensors"),
        (remove_padding, "needs a tokenizer with a pad_token"),
        (lambda it: (it / "ner.json").unlink(), r"ner\.json to name the decoder crf, .* found no such file"),
        (lambda it: edit(it / "ner.json", decoder="softmax"), "the decoder crf, .* found softmax"),
        (lambda it: edit(it / "ner.json", temperature=1e12), r"ner\.json is not as expected"),
        (lambda it: edit(it / "ner.json", max_tokens=2, overlap=0), r"ner\.json is not as expected"),
        (lambda it: cut(it / "ner.json"), r"expected JSON, .*ner\.json"),
    ],
)
def test_a_damaged_folder_is_refused(folder, damage, message):
    damage(folder)
    with pytest.raises(RequestError, match=message):
        load_model(folder)


def test_windows_that_the_base_cannot_read_are_refused(tiny_bert):
    with pytest.raises(RequestError, match="max_tokens: expected at most the 40 positions of the base, found 41"):
        start_tagger(tiny_bert, LABELS, max_tokens=41)


@pytest.fixture
def splitter(tiny_bert):
    return WordSplitter(load_tokenizer(tiny_bert))


def test_subwords_are_the_tokenizers_own(tiny_bert, splitter):
    tokenizer, subwords = load_tokenizer(tiny_bert), splitter(SENTENCES)
    theirs = [tokenizer(words, is_split_into_words=True, add_special_tokens=False) for words in SENTENCES if words]
    position = subwords.firsts[4]  # of the control character, for which the tokenizer has nothing
    assert subwords.ids[position] == tokenizer.unk_token_id
    assert np.delete(subwords.ids, position).tolist() == [
        number for encoding in theirs for number in encoding["input_ids"]
    ]
    assert subwords.words.tolist() == [4, 0, 3, 1]
    assert subwords.lengths.sum() == len(subwords.ids)


def test_words_with_two_capitals_have_the_second_token_type(tiny_bert):
    splitter = WordSplitter(load_tokenizer(tiny_bert), capitals=True)
    subwords = splitter([["The", "PatientS", "gout", "WAS"], [], ["a", "A", "ÄÖ", "pH7", "fluXYZ"] * 5])
    assert subwords.token_types is not None
    of_word = [0, 1, 0, 1, *[0, 0, 1, 0, 1] * 5]
    lengths = np.diff(np.append(subwords.firsts, len(subwords.ids)))
    assert subwords.token_types.tolist() == np.repeat(of_word, lengths).tolist()  # all subwords of such words
    windows = subwords.windows(12, 4)
    marked = splitter.batch(subwords, windows, width=14, height=len(windows.starts) + 2)["token_type_ids"]
    for row, (start, end) in enumerate(zip(windows.starts, windows.ends, strict=True)):
        assert marked[row].tolist() == [0, *subwords.token_types[start:end], *[0] * (14 - 1 - (end - start))]
