import pytest

from bertrelay.errors import RequestError
from bertrelay.model.new import train_wordpiece
from bertrelay.model.tokenizer import check_vocabulary, plain_rules

TEXTS = ["Metoprolol 12.5 mg was given to the patient, who had heart failure (systolic).", "Naïve œdema of 37 °C."] * 3


@pytest.fixture
def tokenizer():
    return train_wordpiece(TEXTS, 90, 32)


def test_rules_are_a_copy_that_neither_cuts_nor_pads(tokenizer):
    tokenizer(["the patient"] * 2, truncation=True, max_length=3, padding="max_length")
    before = tokenizer.backend_tokenizer.to_str()
    assert len(plain_rules(tokenizer).encode(TEXTS[0]).ids) > 10
    assert tokenizer.backend_tokenizer.to_str() == before


def test_a_vocabulary_of_another_size_than_the_embeddings_is_reported(tokenizer, capsys):
    check_vocabulary(tokenizer, len(tokenizer))
    assert not capsys.readouterr().err
    with pytest.raises(RequestError, match=rf"{len(tokenizer)} tokens, and embeddings for {len(tokenizer) - 1} of"):
        check_vocabulary(tokenizer, len(tokenizer) - 1)
    check_vocabulary(tokenizer, 2 * len(tokenizer))
    assert f"{2 * len(tokenizer)} tokens and the tokenizer only {len(tokenizer)}" in capsys.readouterr().err


def test_a_cased_vocabulary_under_a_lower_casing_tokenizer_is_reported(tokenizer):
    names = [f"{first}{second}rin" for first in "ABCDEFG" for second in "aeiou"]
    cased = train_wordpiece(names * 5, 90, 32, lowercase=False)
    check_vocabulary(cased, 1000)
    cased.backend_tokenizer.normalizer = tokenizer.backend_tokenizer.normalizer
    with pytest.raises(RequestError, match=r"lower-cases text, and \d+ of its \d+ tokens have capitals"):
        check_vocabulary(cased, 1000)
