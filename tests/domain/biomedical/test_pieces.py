"""Words cut into pieces beside the tokenizer's own cutting, and framed windows beside its own framing."""

from pathlib import Path

import numpy as np
import pytest

from bertrelay.backbone import load_tokenizer
from bertrelay.errors import RequestError
from domain.biomedical.ner.model import Cutter, owned_words

SENTENCES = [["the", "patient", "angina", "pectoris"], [], ["\x01", "fluxyz", "of"], ["gout"]]


@pytest.fixture
def cutter(tiny_bert: Path) -> Cutter:
    return Cutter(load_tokenizer(tiny_bert))


def test_pieces_are_the_tokenizers_own(tiny_bert: Path, cutter: Cutter) -> None:
    tokenizer = load_tokenizer(tiny_bert)
    pieces = cutter(SENTENCES)
    theirs = [tokenizer(words, is_split_into_words=True, add_special_tokens=False) for words in SENTENCES if words]
    ids = [number for each in theirs for number in each["input_ids"]]
    unknown = np.flatnonzero(pieces.ids == tokenizer.unk_token_id)
    place = pieces.firsts[4]  # of the control character, for which the tokenizer has nothing
    assert place in unknown
    assert np.delete(pieces.ids, place).tolist() == ids
    assert pieces.words.tolist() == [4, 0, 3, 1]
    assert pieces.lengths.sum() == len(pieces.ids)


def test_every_word_has_a_first_piece_in_its_own_sentence(cutter: Cutter) -> None:
    pieces = cutter(SENTENCES)
    assert len(pieces.firsts) == 8
    assert (np.diff(pieces.firsts) > 0).all()
    owners = np.searchsorted(np.cumsum(pieces.lengths), pieces.firsts, side="right")
    assert owners.tolist() == [0, 0, 0, 0, 2, 2, 2, 3]


def test_a_window_is_framed_as_the_tokenizer_frames_a_sentence(tiny_bert: Path, cutter: Cutter) -> None:
    tokenizer = load_tokenizer(tiny_bert)
    pieces = cutter([SENTENCES[0]])
    batch = cutter.batch(pieces, pieces.windows(40, 4), width=20, height=1)
    theirs = tokenizer(SENTENCES[0], is_split_into_words=True, padding="max_length", max_length=20)
    assert batch["input_ids"][0].tolist() == theirs["input_ids"]
    assert batch["attention_mask"][0].tolist() == theirs["attention_mask"]
    firsts = [theirs.word_ids().index(word) for word in range(4)]
    assert batch["places"].tolist() == firsts


def test_windows_of_a_long_sentence_own_each_word_once(cutter: Cutter) -> None:
    words = ["patient", "pectorisxyz", "of"] * 30
    pieces = cutter([words])
    windows = pieces.windows(12, 4)
    first, counts = owned_words(pieces, windows)
    assert np.concatenate([np.arange(a, a + n) for a, n in zip(first, counts, strict=True)]).tolist() == list(range(90))
    batch = cutter.batch(pieces, windows, width=12, height=len(windows.starts) + 2)
    np.testing.assert_array_equal(batch["input_ids"].flatten()[batch["places"]], pieces.ids[pieces.firsts])


def test_words_with_two_capitals_have_the_second_token_type(tiny_bert: Path) -> None:
    cutter = Cutter(load_tokenizer(tiny_bert), capitals=True)
    pieces = cutter([["The", "PatientS", "gout", "WAS"], [], ["a", "A", "ÄÖ", "pH7", "fluXYZ"] * 5])
    assert pieces.token_types is not None
    of_word = [0, 1, 0, 1, *[0, 0, 1, 0, 1] * 5]
    lengths = np.diff(np.append(pieces.firsts, len(pieces.ids)))
    assert pieces.token_types.tolist() == np.repeat(of_word, lengths).tolist()  # all pieces of such words
    windows = pieces.windows(12, 4)
    assert len(windows.starts) > 2
    marked = cutter.batch(pieces, windows, width=14, height=len(windows.starts) + 2)["token_type_ids"]
    for row, (start, end) in enumerate(zip(windows.starts, windows.ends, strict=True)):
        padding = [0] * (14 - 1 - (end - start))
        assert marked[row].tolist() == [0, *pieces.token_types[start:end], *padding]


def test_a_tokenizer_without_special_tokens_is_refused(tiny_bert: Path) -> None:
    tokenizer = load_tokenizer(tiny_bert)
    tokenizer.sep_token = None
    with pytest.raises(RequestError, match="sep_token"):
        Cutter(tokenizer)
