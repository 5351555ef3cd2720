from itertools import pairwise

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from bertrelay.errors import RequestError
from bertrelay.new_encoder import train_unigram, train_wordpiece
from bertrelay.tokenizer import before_sentences, check_vocabulary, plain_rules
from domain.pretraining.sequences import WordStarts

TEXTS = [
    "Metoprolol 12.5 mg was given to the patient, who had heart failure (systolic).",
    "The patient's beta-blocker was stopped: bradycardia!",
    "Naïve œdema of 37 °C — Größe.",
] * 3


def byte_level() -> PreTrainedTokenizerFast:
    rules = ByteLevelBPETokenizer()
    rules.train_from_iterator(TEXTS, 320, show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=rules._tokenizer, unk_token=None)


def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    return {
        "wordpiece": train_wordpiece(TEXTS, 90, 32),
        "unigram": train_unigram(TEXTS, 90, 32),
        "byte level": byte_level(),
    }


def words(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    """The words that the starts make of a text."""
    rules = plain_rules(tokenizer)
    encoding = rules.encode(before_sentences(rules) + text, add_special_tokens=False)
    starts = np.flatnonzero(WordStarts(tokenizer)(np.array(encoding.ids)))
    cut = [*starts.tolist(), len(encoding.ids)]
    shift = len(before_sentences(rules))
    found = [(encoding.offsets[a][0], encoding.offsets[b - 1][1]) for a, b in pairwise(cut)]
    return [text[max(start - shift, 0) : end - shift].strip() for start, end in found]


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "byte level"])
def test_words_are_whole_and_punctuation_is_alone_in_every_kind_of_vocabulary(kind: str) -> None:
    tokenizer = tokenizers()[kind]
    text = "the patient who had heart failure was given metoprolol (systolic): beta-blocker stopped!"
    assert words(tokenizer, text) == [
        "the", "patient", "who", "had", "heart", "failure", "was", "given", "metoprolol", "(", "systolic", ")", ":",
        "beta", "-", "blocker", "stopped", "!",
    ]  # fmt: skip


def test_wordpiece_words_are_those_of_its_own_pre_tokenizer() -> None:
    tokenizer = tokenizers()["wordpiece"]
    for text in TEXTS:
        encoding = plain_rules(tokenizer).encode(text, add_special_tokens=False)
        changes = np.diff([-1, *encoding.word_ids]) != 0
        assert WordStarts(tokenizer)(np.array(encoding.ids)).tolist() == changes.tolist()


def test_added_tokens_characters_of_several_bytes_and_unmarked_first_pieces() -> None:
    tokenizer = tokenizers()["wordpiece"]
    tokenizer.add_tokens(["[NAME]"])
    assert words(tokenizer, "the patient[NAME]had") == ["the", "patient", "[NAME]", "had"]
    tokenizer = byte_level()
    assert words(tokenizer, "naïve œdema") == ["naïve", "œdema"]
    ids = plain_rules(tokenizer).encode("patient", add_special_tokens=False).ids
    assert WordStarts(tokenizer)(np.array(ids)).tolist() == [True, *[False] * (len(ids) - 1)]
    assert WordStarts(tokenizer)(np.array([], int)).tolist() == []


def test_rules_are_a_copy_that_neither_cuts_nor_pads() -> None:
    tokenizer = tokenizers()["wordpiece"]
    tokenizer(["the patient"] * 2, truncation=True, max_length=3, padding="max_length")
    before = tokenizer.backend_tokenizer.to_str()
    assert len(plain_rules(tokenizer).encode(TEXTS[0]).ids) > 10
    assert tokenizer.backend_tokenizer.to_str() == before


def test_a_vocabulary_of_another_size_than_the_embeddings_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = tokenizers()["wordpiece"]
    check_vocabulary(tokenizer, len(tokenizer))
    assert not capsys.readouterr().err
    with pytest.raises(RequestError, match=rf"{len(tokenizer)} tokens, and embeddings for {len(tokenizer) - 1} of"):
        check_vocabulary(tokenizer, len(tokenizer) - 1)
    check_vocabulary(tokenizer, 2 * len(tokenizer))
    assert f"{2 * len(tokenizer)} tokens and the tokenizer only {len(tokenizer)}" in capsys.readouterr().err


def test_a_cased_vocabulary_under_a_lower_casing_tokenizer_is_reported() -> None:
    names = [f"{first}{second}rin" for first in "ABCDEFG" for second in "aeiou"]
    cased = train_wordpiece(names * 5, 90, 32, lowercase=False)
    check_vocabulary(cased, 1000)
    cased.backend_tokenizer.normalizer = tokenizers()["wordpiece"].backend_tokenizer.normalizer
    with pytest.raises(RequestError, match=r"lower-cases text, and \d+ of its \d+ tokens have capitals"):
        check_vocabulary(cased, 1000)
