"""Words cut into subwords beside the tokenizer's own cutting, and framed windows beside its own framing."""

from pathlib import Path

import numpy as np
import pytest

from bertrelay.errors import RequestError
from bertrelay.tokenizer import load_tokenizer
from domain.biomedical.ner.model import WordSplitter

SENTENCES = [["the", "patient", "angina", "pectoris"], [], ["\x01", "fluxyz", "of"], ["gout"]]


@pytest.fixture
def splitter(tiny_bert: Path) -> WordSplitter:
    return WordSplitter(load_tokenizer(tiny_bert))


def test_pieces_are_the_tokenizers_own(tiny_bert: Path, splitter: WordSplitter) -> None:
    tokenizer = load_tokenizer(tiny_bert)
    subwords = splitter(SENTENCES)
    theirs = [tokenizer(words, is_split_into_words=True, add_special_tokens=False) for words in SENTENCES if words]
    ids = [number for each in theirs for number in each["input_ids"]]
    unknown = np.flatnonzero(subwords.ids == tokenizer.unk_token_id)
    place = subwords.firsts[4]  # of the control character, for which the tokenizer has nothing
    assert place in unknown
    assert np.delete(subwords.ids, place).tolist() == ids
    assert subwords.words.tolist() == [4, 0, 3, 1]
    assert subwords.lengths.sum() == len(subwords.ids)


def test_a_window_is_framed_as_the_tokenizer_frames_a_sentence(tiny_bert: Path, splitter: WordSplitter) -> None:
    tokenizer = load_tokenizer(tiny_bert)
    subwords = splitter([SENTENCES[0]])
    batch = splitter.batch(subwords, subwords.windows(40, 4), width=20, height=1)
    theirs = tokenizer(SENTENCES[0], is_split_into_words=True, padding="max_length", max_length=20)
    assert batch["input_ids"][0].tolist() == theirs["input_ids"]
    assert batch["attention_mask"][0].tolist() == theirs["attention_mask"]
    firsts = [theirs.word_ids().index(word) for word in range(4)]
    assert batch["places"].tolist() == firsts


def test_windows_of_a_long_sentence_own_each_word_once(splitter: WordSplitter) -> None:
    words = ["patient", "pectorisxyz", "of"] * 30
    subwords = splitter([words])
    windows = subwords.windows(12, 4)
    first, counts = subwords.owned_words(windows)
    assert np.concatenate([np.arange(a, a + n) for a, n in zip(first, counts, strict=True)]).tolist() == list(range(90))
    batch = splitter.batch(subwords, windows, width=12, height=len(windows.starts) + 2)
    np.testing.assert_array_equal(batch["input_ids"].flatten()[batch["places"]], subwords.ids[subwords.firsts])


def test_words_with_two_capitals_have_the_second_token_type(tiny_bert: Path) -> None:
    splitter = WordSplitter(load_tokenizer(tiny_bert), capitals=True)
    subwords = splitter([["The", "PatientS", "gout", "WAS"], [], ["a", "A", "ÄÖ", "pH7", "fluXYZ"] * 5])
    assert subwords.token_types is not None
    of_word = [0, 1, 0, 1, *[0, 0, 1, 0, 1] * 5]
    lengths = np.diff(np.append(subwords.firsts, len(subwords.ids)))
    assert subwords.token_types.tolist() == np.repeat(of_word, lengths).tolist()  # all subwords of such words
    windows = subwords.windows(12, 4)
    assert len(windows.starts) > 2
    marked = splitter.batch(subwords, windows, width=14, height=len(windows.starts) + 2)["token_type_ids"]
    for row, (start, end) in enumerate(zip(windows.starts, windows.ends, strict=True)):
        padding = [0] * (14 - 1 - (end - start))
        assert marked[row].tolist() == [0, *subwords.token_types[start:end], *padding]


def test_a_tokenizer_without_special_tokens_is_refused(tiny_bert: Path) -> None:
    tokenizer = load_tokenizer(tiny_bert)
    tokenizer.sep_token = None
    with pytest.raises(RequestError, match="sep_token"):
        WordSplitter(tokenizer)
