"""Vocabularies learnt from a corpus: the same each time, with every character known, and kept by saving."""

import json
import os
import random
import subprocess
import sys

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from bertrelay.errors import RequestError
from bertrelay.new_encoder import BERT_SPECIALS, train_unigram, train_wordpiece

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
    """Whatever the hash seed; from the same corpus, read as a stream."""
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    code = (
        "import json, hashlib; from bertrelay.new_encoder import *; texts = json.load(open('texts.json'));"
        "print([hashlib.sha256(train(iter(texts), 260, 64).backend_tokenizer.to_str().encode()).hexdigest()"
        " for train in (train_wordpiece, train_unigram)])"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    first, second = (process.communicate(timeout=120)[0] for process in started)
    assert first == second
    assert len(first) > 100


def test_every_character_of_the_corpus_is_known(tokenizer):
    for text in TEXTS:
        assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


def test_characters_are_known_in_new_places_too(kind, tokenizer):
    """A word nobody wrote, of characters that the corpus has at other places of its words."""
    for word in ("мош", "garbage", "ßa", "이공"):
        assert tokenizer.unk_token_id not in tokenizer(word)["input_ids"], (kind, word)


def test_what_the_corpus_has_not_is_unknown(tokenizer):
    assert tokenizer.unk_token_id in tokenizer("ก")["input_ids"]


def test_a_saved_tokenizer_gives_the_same_ids(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    told = [*TEXTS[:20], "never seen: zebra ก", "", "  two  spaces ", "Ｆｕｌｌ ｗｉｄｔｈ", "ﬁn"]
    for load in (PreTrainedTokenizerFast, AutoTokenizer):
        again = load.from_pretrained(tmp_path)
        assert again(told)["input_ids"] == tokenizer(told)["input_ids"]
        assert again(told, told)["input_ids"] == tokenizer(told, told)["input_ids"]
        assert again.model_max_length == 64
        assert again.pad_token_id == tokenizer.pad_token_id
        assert again.mask_token_id == tokenizer.mask_token_id


@pytest.mark.parametrize("size", [150, 180, 260])
def test_a_vocabulary_has_at_most_the_size_asked_for(kind, size):
    assert len(TRAINERS[kind](TEXTS, size, 64)) <= size


def test_a_corpus_too_small_for_the_size_gives_what_it_has(kind):
    assert 5 < len(TRAINERS[kind](["a b", "b a"], 10_000, 64)) < 20


def test_no_text_is_refused(kind):
    for texts in ([], ["", ""]):
        with pytest.raises(RequestError, match="expected text to train a vocabulary on"):
            TRAINERS[kind](texts, 100, 64)


def test_a_very_long_text_is_learnt_from(kind):
    learnt = TRAINERS[kind](["wxyz " * 13_200, "a b"], 40, 64)
    assert learnt.unk_token_id not in learnt("wxyz")["input_ids"]


def test_special_ids_are_xlmrs():
    learnt = train_unigram(TEXTS, 260, 64)
    assert in_order(learnt)[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert in_order(learnt)[-1] == "<mask>"
    assert learnt.mask_token_id == len(learnt) - 1
    ids = learnt("dog", "cat")["input_ids"]
    assert [ids.index(2), ids[0], ids[-1], ids.count(2)] == [ids.index(2), 0, 2, 3]
    assert ids[ids.index(2) + 1] == 2  # XLM-R has two of them between a pair


def test_special_ids_and_segments_are_berts():
    learnt = train_wordpiece(TEXTS, 260, 64)
    assert in_order(learnt)[:5] == BERT_SPECIALS
    pair = learnt("dog", "cat")
    assert (pair["input_ids"][0], pair["input_ids"].count(3)) == (2, 2)
    first_end = pair["input_ids"].index(3)
    assert pair["token_type_ids"] == [0] * (first_end + 1) + [1] * (len(pair["input_ids"]) - first_end - 1)


def test_special_tokens_are_never_cut(tokenizer):
    ids = tokenizer(f"the {tokenizer.mask_token} dog")["input_ids"]
    assert ids.count(tokenizer.mask_token_id) == 1


def test_case_is_kept_or_dropped_as_asked():
    texts = ["Ab aB ab AB"] * 50
    assert len({tuple(train_wordpiece(texts, 60, 64)(word)["input_ids"]) for word in ("Ab", "aB", "AB")}) == 1
    cased = train_wordpiece(texts, 60, 64, lowercase=False)
    assert len({tuple(cased(word)["input_ids"]) for word in ("Ab", "aB", "AB")}) == 3


def test_frequent_words_are_one_piece(tokenizer):
    assert [len(tokenizer.tokenize(word)) for word in ("dog", "garden")] == [1, 1]


@pytest.mark.parametrize("read_before", [0, 3])
def test_an_error_of_the_reader_is_the_one_that_is_told(read_before):
    def cut_off():
        yield from TEXTS[:read_before]
        raise RequestError("a.gz is cut off")

    with pytest.raises(RequestError, match=r"a\.gz is cut off"):
        train_unigram(cut_off(), 60, 64)
