"""Trimmed vocabularies: the same tokens and vectors of the corpus, and no new unknown tokens."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bertrelay.errors import RequestError, WorkError
from bertrelay.model.encoder import SentenceEncoder, encoder_digest
from bertrelay.model.layout import Prompts
from bertrelay.model.pooling import Projection
from students.compress import vocabulary
from students.compress.vocabulary import trim_vocabulary

ENGLISH = ["a dog runs near the old station", "two cats and a bird sleep outside", "the dogs run again"]
GERMAN = ["ein großer Hund läuft über die Straße", "zwei Kätzchen schlafen draußen", "ÖÄÜ?! 3,50 €"]
ALL = [*ENGLISH, *GERMAN]
ROLES = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
LONG = {"max_position_embeddings": 60}


@pytest.fixture(scope="module")
def encoder_of(tiny_encoder):
    def make(tokenizer, kind="roberta", **parts):
        rows = len(tokenizer) + 3  # a network may have more rows than subwords
        return tiny_encoder(kind, tokenizer, layers=1, sizes={"vocab_size": rows, **LONG}, **parts)

    return make


@pytest.fixture(scope="module")
def make(tiny_encoder, encoder_of, byte_level):
    """`make(kind)`: an encoder with a vocabulary of English and German."""

    def make_encoder(kind, **parts):
        if kind == "roberta":
            return encoder_of(byte_level(ALL), **parts)
        return tiny_encoder(kind, ALL * 20, sizes=LONG, **parts)

    return make_encoder


@pytest.fixture(scope="module", params=["bert", "distilbert", "albert", "xlm-roberta", "mpnet", "roberta"])
def trimmed(request, make):
    """An encoder, and the same trimmed to English."""
    encoder = make(request.param)
    return encoder, trim_vocabulary(encoder, ENGLISH)


def subwords(encoder, texts):
    return [encoder.tokenizer.convert_ids_to_tokens(ids) for ids in encoder.tokenize(texts)]


def vectors(encoder, texts):
    return encoder.eval().encode(texts, precision="fp32")


def rows(encoder):
    """The token vector of each subword."""
    table = encoder.backbone.get_input_embeddings().weight.detach().numpy()
    return {subword: table[index] for subword, index in encoder.tokenizer.get_vocab().items()}


def test_neither_tokens_nor_vectors_of_the_corpus_change_and_all_of_it_is_smaller(trimmed, tmp_path):
    encoder, small = trimmed
    small.save(tmp_path / "model")
    for smaller in (small, SentenceEncoder.load(tmp_path / "model")):
        assert subwords(smaller, ENGLISH) == subwords(encoder, ENGLISH)
        assert np.array_equal(vectors(smaller, ENGLISH), vectors(encoder, ENGLISH))
        count = len(smaller.tokenizer)
        assert count < len(encoder.tokenizer)
        assert smaller.backbone.config.vocab_size == count == smaller.backbone.get_input_embeddings().num_embeddings
        assert sorted(smaller.tokenizer.get_vocab().values()) == list(range(count))
    before, after = rows(encoder), rows(small)
    assert all(np.array_equal(after[subword], before[subword]) for subword in after)
    characters = {text for text in before if len(text.removeprefix("##").removeprefix("▁").removeprefix("Ġ")) < 2}
    assert len(characters) > 30 and characters <= after.keys()


def test_unseen_text_has_smaller_subwords_and_no_unknown_ones(trimmed):
    encoder, small = trimmed
    unseen = [*GERMAN, "".join(reversed(GERMAN[0])), "Ö" * 5]
    before, after = subwords(encoder, unseen), subwords(small, unseen)
    assert not any(encoder.tokenizer.unk_token in text for text in [*before, *after])
    assert sum(map(len, after[:3])) > sum(map(len, before[:3]))
    assert np.isfinite(vectors(small, GERMAN)).all()


def test_special_tokens_and_padding_keep_their_roles(trimmed):
    encoder, small = trimmed
    assert small.tokenizer.special_tokens_map == encoder.tokenizer.special_tokens_map
    assert small.pad_id == encoder.pad_id == small.backbone.config.pad_token_id
    name = encoder.tokenizer.convert_ids_to_tokens, small.tokenizer.convert_ids_to_tokens
    for role in ("bos_token_id", "eos_token_id", "pad_token_id"):
        before, after = (getattr(one.backbone.config, role) for one in trimmed)
        assert before is None or name[1](after) == name[0](before)
    assert name[1](small.tokenizer("a dog", "cats").input_ids) == name[0](encoder.tokenizer("a dog", "cats").input_ids)


def test_other_parts_are_copied_and_the_encoder_itself_does_not_change(make):
    parts = {"pooling": ["cls", "mean"], "projection": Projection(32, 8), "normalize": True, "max_tokens": 9}
    encoder = make("xlm-roberta", **parts, prompts=Prompts({"query": "run "}, "query"), similarity_fn_name="dot")
    weights = {name: weight.clone() for name, weight in encoder.state_dict().items()}
    config, ids = encoder.backbone.config.to_dict(), encoder.tokenize(ALL)
    small = trim_vocabulary(encoder, ENGLISH)
    assert replace(small.layout, spaces=()) == encoder.layout and small.spaces == (encoder_digest(encoder),)
    with torch.no_grad():
        for weight in small.parameters():
            weight.add_(1)
    assert all(torch.equal(weight, weights[name]) for name, weight in encoder.state_dict().items())
    assert (encoder.backbone.config.to_dict(), encoder.tokenize(ALL)) == (config, ids)


def test_subwords_beyond_max_tokens_and_of_prompts_stay_too(make):
    encoder = make("xlm-roberta", max_tokens=5, prompts=Prompts({"query": "schlafen Hund: ", "passage": "Straße "}))
    small = trim_vocabulary(encoder, ENGLISH)
    whole = [prompt + text for prompt in encoder.prompts.texts.values() for text in ENGLISH]
    for text in [*ENGLISH, *whole]:
        assert small.tokenizer.tokenize(text) == encoder.tokenizer.tokenize(text)


def test_added_tokens_stay_and_are_recognised_in_text(make, encoder_of):
    tokenizer = make("bert").tokenizer
    tokenizer.add_tokens(["[name]"])
    encoder = encoder_of(tokenizer, "bert")
    small = trim_vocabulary(encoder, ENGLISH)
    assert small.tokenizer.tokenize("a dog of [name] runs")[-2:] == ["[name]", "runs"]
    assert np.array_equal(rows(small)["[name]"], rows(encoder)["[name]"])


def unigram(scores):
    vocabulary = [*((name, 0.0) for name in list(ROLES.values())[:4]), *scores.items(), ("<mask>", 0.0)]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.Unigram(vocabulary, unk_id=3)), **ROLES)


def test_an_unknown_character_is_as_unlikely_as_before(encoder_of):
    """Its score is 10 below the lowest, so the subword with the lowest score stays although no text uses it."""
    scores = {"a": -15.0, "b": -15.0, "c": -15.0, "ab": -20.0, "cx": -20.0, "abc": -1.0, "longest": -30.0}
    encoder = encoder_of(unigram(scores), "xlm-roberta")
    texts = ["abcx", "abc"]
    assert subwords(encoder, texts)[0] == ["ab", "cx"]
    without = {subword: score for subword, score in scores.items() if subword != "longest"}
    assert subwords(encoder_of(unigram(without), "xlm-roberta"), texts)[0] == ["abc", "<unk>"]
    small = trim_vocabulary(encoder, texts)
    assert subwords(small, texts) == subwords(encoder, texts)
    assert "longest" in small.tokenizer.get_vocab()


def word_piece(*inner):
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *inner]
    rules = Tokenizer(models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=rules, pad_token="[PAD]", unk_token="[UNK]")


DEAD_END = ["a", "x", "ab", "##bc", "##de"]
"""`abc` is unknown, because `ab` fits and nothing follows it; without `ab` it would be `a ##bc`."""


def test_an_unknown_word_does_not_become_known(encoder_of):
    encoder = encoder_of(word_piece(*DEAD_END), "bert")
    texts = ["abc xbc", "x", "x" * 200]
    assert subwords(encoder, texts)[0] == ["[UNK]", "x", "##bc"]
    small = trim_vocabulary(encoder, texts)
    assert subwords(small, texts) == subwords(encoder, texts)
    assert small.tokenizer.get_vocab().keys() - {"[PAD]", "[UNK]"} == {"a", "x", "ab", "##bc"}


def test_the_parts_that_a_subword_is_merged_from_stay(encoder_of, byte_level):
    encoder = encoder_of(byte_level(["lowest lower low est"] * 5))
    small = trim_vocabulary(encoder, ["lowest"])
    assert subwords(small, ["lowest"]) == subwords(encoder, ["lowest"])
    parts = set(small.tokenizer.get_vocab()) - set(encoder.tokenizer.all_special_tokens)
    merged = {part for part in parts if len(part) > 1 and part[0] != "Ġ"}
    assert merged <= {"lo", "ow", "low", "es", "st", "est", "lowest"}
    assert "Ġlower" in encoder.tokenizer.get_vocab() and "Ġlower" not in parts


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "bpe"])
def test_random_vocabularies_tokenize_random_texts_as_before(kind, encoder_of, byte_level):
    for seed in range(5 if kind == "bpe" else 12):
        drawn = random.Random(seed)

        def word(longest, drawn=drawn):
            return "".join(drawn.choice("abcd") for _ in range(drawn.randint(1, longest)))

        words = list(dict.fromkeys(word(5) for _ in range(40)))
        if kind == "unigram":  # few scores, so that many paths tie
            encoder = encoder_of(unigram({text: -float(drawn.randint(1, 3)) for text in words}), "xlm-roberta")
        elif kind == "wordpiece":
            marked = [f"##{text}" if drawn.random() < 0.6 else text for text in words]
            encoder = encoder_of(word_piece(*dict.fromkeys(marked)), "bert")
        else:
            encoder = encoder_of(byte_level([word(9) for _ in range(60)]))
        texts = [" ".join(word(9) for _ in range(4)) for _ in range(8)]
        small = trim_vocabulary(encoder, texts)
        assert subwords(small, texts) == subwords(encoder, texts)
        assert len(small.tokenizer) <= len(encoder.tokenizer)


def test_tokens_that_would_change_are_an_error(encoder_of, monkeypatch):
    monkeypatch.setattr(vocabulary, "longest_failed_matches", lambda *_: ())
    with pytest.raises(WorkError, match="cut into other tokens than before, so nothing was trimmed"):
        trim_vocabulary(encoder_of(word_piece(*DEAD_END), "bert"), ["abc xbc"])


def test_generators_no_texts_and_other_kinds_of_tokenizers_are_refused(make, encoder_of):
    with pytest.raises(RequestError, match="found a generator"):
        trim_vocabulary(make("bert"), (text for text in ENGLISH))
    with pytest.raises(RequestError, match="expected texts to trim it to, found none"):
        trim_vocabulary(make("bert"), [])
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "dog": 2}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    with pytest.raises(RequestError, match="Unigram, WordPiece, BPE, which can be trimmed, found WordLevel"):
        trim_vocabulary(encoder_of(tokenizer, "bert"), ENGLISH)
    marked = Tokenizer(models.BPE({"a</w>": 0, "<unk>": 1}, [], unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=marked, unk_token="<unk>")
    with pytest.raises(RequestError, match="marks that joining takes away"):
        trim_vocabulary(encoder_of(tokenizer, "bert"), ENGLISH)


def test_a_corpus_that_changes_while_it_is_read_is_an_error(make):
    class Growing:
        def __init__(self):
            self.readings = 0

        def __iter__(self):
            self.readings += 1
            return iter(ALL[: 2 + self.readings])

    with pytest.raises(WorkError, match="If no file of the corpus was changed"):
        trim_vocabulary(make("bert"), Growing())
