"""Vocabularies trained on a corpus: the same each time, with every character known, and kept by saving."""

import json
import os
import random
import subprocess
import sys

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from bertrelay.errors import RequestError
from bertrelay.model.new import BERT_SPECIALS, train_unigram, train_wordpiece

WORDS = [
    *("the", "dog", "cat", "runs", "garden", "playing", "children", "woman", "ball", "don't", "3.14", "[x]", "—", "€5"),
    *("café", "naïve", "Straße", "über", "läuft", "Mädchen", "niño", "¿dónde?", "공원에서", "아이가", "놀고", "있다"),
    *("старый", "дом", "кошка", "猫が走る", "公園", "½"),
]
TEXTS = [" ".join(random.Random(n).choices(WORDS, k=7)) for n in range(300)]
TRAINERS = {"wordpiece": train_wordpiece, "unigram": train_unigram}


@pytest.fixture(scope="module", params=TRAINERS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def tokenizer(kind):
    return TRAINERS[kind](TEXTS, 260, 64)


def in_order(tokenizer):
    return sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)


def test_every_training_gives_the_same_vocabulary(tmp_path):
    """Here and in a process of another hash seed; from the same corpus, read as a stream."""
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    code = (
        "import json; from bertrelay.model.new import *; texts = json.load(open('texts.json'));"
        "print(json.dumps([train(iter(texts), 260, 64).backend_tokenizer.to_str()"
        " for train in (train_wordpiece, train_unigram)]))"
    )
    other = os.environ | {"PYTHONHASHSEED": "1"}
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True, env=other)
    assert json.loads(printed) == [train(TEXTS, 260, 64).backend_tokenizer.to_str() for train in TRAINERS.values()]


def test_characters_of_the_corpus_are_known_in_any_word_and_no_others(tokenizer):
    for text in (*TEXTS, "мош", "garbage", "ßa", "이공"):
        assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"], text
    assert tokenizer.unk_token_id in tokenizer("ก")["input_ids"]
    assert [len(tokenizer.tokenize(word)) for word in ("dog", "garden")] == [1, 1]  # frequent words are one piece
    ids = tokenizer(f"the {tokenizer.mask_token} dog")["input_ids"]
    assert ids.count(tokenizer.mask_token_id) == 1  # a special token is never split


def test_a_saved_tokenizer_gives_the_same_ids(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    texts = [*TEXTS[:20], "never seen: zebra ก", "", "  two  spaces ", "Ｆｕｌｌ ｗｉｄｔｈ", "ﬁn"]
    for load in (PreTrainedTokenizerFast, AutoTokenizer):
        again = load.from_pretrained(tmp_path)
        assert again(texts)["input_ids"] == tokenizer(texts)["input_ids"]
        assert again(texts, texts)["input_ids"] == tokenizer(texts, texts)["input_ids"]
        assert again.model_max_length == 64
        assert again.pad_token_id == tokenizer.pad_token_id
        assert again.mask_token_id == tokenizer.mask_token_id


def test_a_vocabulary_has_at_most_the_given_size(kind):
    for size in (150, 180, 260):
        assert len(TRAINERS[kind](TEXTS, size, 64)) <= size
    assert 5 < len(TRAINERS[kind](["a b", "b a"], 10_000, 64)) < 20  # a small corpus has no more


def test_a_size_that_leaves_out_characters_of_the_corpus_is_refused_with_the_one_that_is_needed(kind):
    for size in (40, 100):  # fewer than the characters, and for word pieces fewer than they need at two places
        try:
            trained = TRAINERS[kind](TEXTS, size, 64)
        except RequestError as error:
            needed = int(str(error).split("at least ")[1].split()[0])
            assert size < needed < 200
            trained = TRAINERS[kind](TEXTS, needed, 64)
        assert not any(trained.unk_token_id in ids for ids in trained(TEXTS)["input_ids"])
    with pytest.raises(RequestError, match="vocabulary: expected at least"):
        TRAINERS[kind](TEXTS, 40, 64)


def test_no_text_is_refused_and_a_very_long_one_is_used(kind):
    for texts in ([], ["", ""]):
        with pytest.raises(RequestError, match="expected text to train a vocabulary on"):
            TRAINERS[kind](texts, 100, 64)
    trained = TRAINERS[kind](["wxyz " * 13_200, "a b"], 40, 64)
    assert trained.unk_token_id not in trained("wxyz")["input_ids"]


def test_special_ids_are_xlmrs():
    trained = train_unigram(TEXTS, 260, 64)
    assert in_order(trained)[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert in_order(trained)[-1] == "<mask>"
    assert trained.mask_token_id == len(trained) - 1
    ids = trained("dog", "cat")["input_ids"]
    assert [ids.index(2), ids[0], ids[-1], ids.count(2)] == [ids.index(2), 0, 2, 3]
    assert ids[ids.index(2) + 1] == 2  # XLM-R has two of them between a pair


def test_special_ids_and_segments_are_berts():
    trained = train_wordpiece(TEXTS, 260, 64)
    assert in_order(trained)[:5] == BERT_SPECIALS
    pair = trained("dog", "cat")
    assert (pair["input_ids"][0], pair["input_ids"].count(3)) == (2, 2)
    first_end = pair["input_ids"].index(3)
    assert pair["token_type_ids"] == [0] * (first_end + 1) + [1] * (len(pair["input_ids"]) - first_end - 1)


@pytest.mark.parametrize("read_before", [0, 3])
def test_an_error_of_the_reader_is_the_one_that_is_raised(read_before):
    def cut_off():
        yield from TEXTS[:read_before]
        raise RequestError("a.gz is cut off")

    with pytest.raises(RequestError, match=r"a\.gz is cut off"):
        train_unigram(cut_off(), 60, 64)


def test_case_is_kept_or_dropped_as_asked():
    texts = ["Ab aB ab AB"] * 50
    assert len({tuple(train_wordpiece(texts, 60, 64)(word)["input_ids"]) for word in ("Ab", "aB", "AB")}) == 1
    cased = train_wordpiece(texts, 60, 64, lowercase=False)
    assert len({tuple(cased(word)["input_ids"]) for word in ("Ab", "aB", "AB")}) == 3
