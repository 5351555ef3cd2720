"""The folder of a tagger: what transformers makes of it, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from asked_texts import start_tagger
from safetensors.torch import load_file
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    BertModel,
)

from bertrelay.errors import RequestError
from bertrelay.tokenizer import load_tokenizer, save_tokenizer
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.model import EntityModel, WordSplitter, load_model, save_model

LABELS = LabelSet.of_types(["Disease", "Chemical"])
WORDS = ["the", "patient", "angina", "pectoris", "fluxyz"]


def started(tiny_bert: Path, **more: object) -> EntityModel:
    model = start_tagger(tiny_bert, LABELS, max_tokens=40, overlap=8, **more)
    if model.network.crf is not None:
        for weight in model.network.crf.parameters():
            torch.nn.init.normal_(weight)
    return EntityModel(model.network.eval(), model.tokenizer, LABELS, 40, 8, temperature=1.7)


@pytest.fixture
def folder(tiny_bert: Path, tmp_path: Path) -> Path:
    save_model(started(tiny_bert, decoder="crf"), tmp_path / "model")
    return tmp_path / "model"


def test_transformers_loads_the_folder_and_gives_the_same_scores(tiny_bert: Path, tmp_path: Path) -> None:
    model = started(tiny_bert)
    save_model(model, tmp_path / "model")
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    splitter = WordSplitter(model.tokenizer)
    subwords = splitter([WORDS])
    with torch.inference_mode():
        ours = model.network(**splitter.batch(subwords, subwords.windows(40, 8), 20, 1))
        encoded = tokenizer(WORDS, is_split_into_words=True, return_tensors="pt")
        logits = theirs(**encoded).logits[0]
    firsts = [encoded.word_ids().index(word) for word in range(len(WORDS))]
    torch.testing.assert_close(ours, logits[firsts], rtol=1e-5, atol=1e-5)
    assert theirs.config.id2label == dict(enumerate(LABELS.tags))
    assert theirs.config.label2id == LABELS.number


def test_a_model_comes_back_as_it_was(tiny_bert: Path, folder: Path) -> None:
    model, back = started(tiny_bert, decoder="crf"), load_model(folder)
    assert (back.labels, back.max_tokens, back.overlap, back.temperature) == (LABELS, 40, 8, 1.7)
    weights = load_file(folder / "model.safetensors")
    for name, tensor in back.network.network.state_dict().items():
        if name in weights:
            torch.testing.assert_close(tensor, weights[name])
    saved = load_file(folder / "crf.safetensors")
    assert back.network.crf is not None
    for name, tensor in back.network.crf.state_dict().items():
        torch.testing.assert_close(tensor, saved[name])
    assert model.network.crf is not None


def test_marked_capitals_begin_unseen_and_come_back(tiny_bert: Path, tmp_path: Path) -> None:
    model = start_tagger(tiny_bert, LABELS, max_tokens=40, capitals=True)
    model.network.eval()
    words = ["the", "PATIENT", "gout"]

    def scores(model: EntityModel, splitter: WordSplitter) -> torch.Tensor:
        subwords = splitter([words])
        with torch.inference_mode():
            return model.network(**splitter.batch(subwords, subwords.windows(40, 8), 20, 1))

    unmarked = scores(model, WordSplitter(model.tokenizer))
    torch.testing.assert_close(scores(model, model.make_splitter()), unmarked, rtol=0, atol=0)
    with torch.no_grad():
        model.network.network.bert.embeddings.token_type_embeddings.weight[1] += torch.linspace(-1, 1, 32)
    marked = scores(model, model.make_splitter())
    assert not torch.allclose(marked, unmarked)
    save_model(model, tmp_path / "model")
    back = load_model(tmp_path / "model")
    assert back.capitals
    torch.testing.assert_close(scores(back, back.make_splitter()), marked)
    theirs = AutoModelForTokenClassification.from_pretrained(tmp_path / "model").eval()
    encoded = AutoTokenizer.from_pretrained(tmp_path / "model")(words, is_split_into_words=True, return_tensors="pt")
    encoded["token_type_ids"] = torch.tensor([[int(word == 1) for word in encoded.word_ids()]])
    firsts = [encoded.word_ids().index(word) for word in range(len(words))]
    with torch.inference_mode():
        torch.testing.assert_close(theirs(**encoded).logits[0][firsts], marked, rtol=1e-5, atol=1e-5)


def test_a_folder_from_before_capitals_marks_none(folder: Path) -> None:
    told = json.loads((folder / "ner.json").read_text())
    assert told.pop("capitals") is False
    (folder / "ner.json").write_text(json.dumps(told))
    assert not load_model(folder).capitals


def test_capitals_are_not_marked_where_the_vocabulary_tells_them(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_bert, tmp_path, dirs_exist_ok=True)
    rules = json.loads((tmp_path / "tokenizer.json").read_text())
    rules["normalizer"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    assert not start_tagger(tmp_path, LABELS, max_tokens=40, capitals=True).capitals
    assert "vocabulary has capitals, so they are not marked" in capsys.readouterr().err


def test_capitals_are_not_marked_without_a_second_token_type(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = load_tokenizer(tiny_bert)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64, type_vocab_size=1,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path)
    save_tokenizer(tokenizer, tmp_path, 64, has_types=False)
    assert not start_tagger(tmp_path, LABELS, capitals=True).capitals
    assert "the base, bert, has no second token type, so they are not marked" in capsys.readouterr().err


def test_a_folder_of_transformers_without_ours_beside_tags_too(tiny_bert: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_bert)
    names = ["O", "B-Gene", "I-Gene", "E-Gene", "S-Gene"]
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64, id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)},
    )  # fmt: skip
    BertForTokenClassification(config).save_pretrained(tmp_path)
    save_tokenizer(tokenizer, tmp_path, 64, has_types=True)
    model = load_model(tmp_path)
    assert model.labels == LabelSet(tuple(names), "IOBES")
    assert model.max_tokens == 64
    assert model.network.crf is None


def test_what_is_no_tagger_is_refused(tiny_bert: Path) -> None:
    with pytest.raises(RequestError, match=r"train it with domain\.ner"):
        load_model(tiny_bert)


def test_labels_that_are_no_tags_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["id2label"]["1"] = "LABEL_1"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RequestError, match="id2label: expected the tags"):
        load_model(folder)


@pytest.mark.parametrize("damage", ["absent", "cut"])
def test_a_damaged_crf_is_told(folder: Path, damage: str) -> None:
    file = folder / "crf.safetensors"
    content = file.read_bytes()
    file.unlink() if damage == "absent" else file.write_bytes(content[: len(content) // 2])
    with pytest.raises(RequestError, match=r"CRF of 5 tags in .*crf\.safetensors"):
        load_model(folder)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"decoder": "crf", "temperature": 1.7}', "\ud800", '"1.7"', "1e12"],
    ids=["empty", "cut", "a list", "without keys", "with some", "no UTF-8", "of another shape", "absurd"],
)
def test_a_damaged_description_is_told(folder: Path, content: str) -> None:
    file = folder / "ner.json"
    if content in ('"1.7"', "1e12"):
        content = file.read_text().replace("1.7", content)
    file.write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(RequestError, match=r"ner\.json (is not as expected|cannot be read)|expected JSON, .*ner\.json"):
        load_model(folder)


def test_a_tokenizer_without_padding_is_refused_while_loading(folder: Path) -> None:
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | {"pad_token": None}))
    with pytest.raises(RequestError, match="needs a tokenizer with a pad_token"):
        load_model(folder)


@pytest.mark.parametrize("damage", ["softmax", "absent"])
def test_a_crf_that_nobody_names_is_told(folder: Path, damage: str) -> None:
    file = folder / "ner.json"
    content = file.read_text()
    file.unlink() if damage == "absent" else file.write_text(content.replace('"crf"', '"softmax"'))
    with pytest.raises(RequestError, match=r"ner\.json to name the decoder crf, .* found (softmax|no such file)"):
        load_model(folder)


def test_a_model_without_a_crf_takes_the_place_of_one_with_it(tiny_bert: Path, folder: Path) -> None:
    save_model(started(tiny_bert), folder)
    assert load_model(folder).network.crf is None


def test_more_tokens_than_positions_are_refused(tiny_bert: Path) -> None:
    with pytest.raises(RequestError, match="max_tokens: the base has 40 positions, and 41"):
        start_tagger(tiny_bert, LABELS, max_tokens=41)


def test_windows_that_are_mostly_overlap_are_refused(tiny_bert: Path) -> None:
    with pytest.raises(RequestError, match="overlap: expected at most half of max_tokens, which is 40, found 21"):
        start_tagger(tiny_bert, LABELS, overlap=21)


def test_a_cased_vocabulary_is_never_lower_cased(tiny_bert: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bert, tmp_path, dirs_exist_ok=True)
    rules = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = rules["model"]["vocab"]
    rules["model"]["vocab"] = {
        subword.upper() if n > 4 and not subword.startswith("##") else subword: n for subword, n in vocabulary.items()
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    with pytest.raises(RequestError, match="lower-cases text"):
        start_tagger(tmp_path, LABELS, max_tokens=40)


def test_the_head_is_drawn_from_the_seed(tiny_bert: Path) -> None:
    heads = [start_tagger(tiny_bert, LABELS, max_tokens=40, seed=seed).network.network.classifier for seed in (1, 1, 2)]
    torch.testing.assert_close(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)
