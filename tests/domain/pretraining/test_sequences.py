import numpy as np
import pytest

from bertrelay.errors import RequestError
from bertrelay.new_encoder import train_unigram, train_wordpiece
from domain.pretraining.items import Text, draw_pairs, pack
from domain.pretraining.network import with_new_tokens
from domain.pretraining.sequences import Sequences
from domain.pretraining.settings import PretrainSettings

TOKENIZER = train_wordpiece(["the heart and the lung", "a fever, a cough and a rash", "kidney, liver, spleen"], 90, 40)
UNIGRAM = train_unigram(["the heart and the lung", "a fever, a cough and a rash", "kidney, liver, spleen"], 90, 40)


@pytest.fixture(scope="module")
def items(text):
    return draw_pairs(text, 24, 0.1, 0, 0)


def sequences_of(corpus, tokenizer=TOKENIZER, **settings):
    given = {"base": "./none", "documents": [{"path": "none.jsonl"}], "max_tokens": 24, **settings}
    return Sequences(corpus, tokenizer, PretrainSettings.model_validate(given))


@pytest.fixture(scope="module")
def corpus(random_corpus):
    return random_corpus(30, sentences=(2, 7), tokens=(2, 9), vocabulary=(6, len(TOKENIZER)))


@pytest.fixture(scope="module")
def text(corpus):
    return Text(corpus, corpus.groups >= 0)


def original(inputs):
    """The ids before masking, (batch, tokens)."""
    ids = inputs["input_ids"].numpy().copy()
    ids.reshape(-1)[inputs["masked"].numpy()] = inputs["masked_ids"].numpy()
    return ids


def test_pairs_are_laid_out_as_bert_has_them(corpus, items):
    chosen = np.array([5, 0, 11])
    inputs = sequences_of(corpus).batch(items, chosen, seed=1, epoch=0).inputs
    cls, sep, pad = TOKENIZER.cls_token_id, TOKENIZER.sep_token_id, TOKENIZER.pad_token_id
    longest = items.lengths[chosen].max()
    for row, item in enumerate(chosen):
        a, b = (
            corpus.tokens(start, start + count).tolist()
            for start, count in zip(items.starts[item], items.tokens[item], strict=True)
        )
        rest = longest - len(a) - len(b) - 3
        assert original(inputs)[row].tolist() == [cls, *a, sep, *b, sep, *[pad] * rest]
        assert inputs["attention_mask"][row].tolist() == [1] * (longest - rest) + [0] * rest
        assert inputs["token_type_ids"][row].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * rest
    assert inputs["is_random"].tolist() == items.is_random[chosen].astype(int).tolist()


def test_single_segments_have_one_type_and_the_tokenizers_own_ends(random_corpus):
    corpus = random_corpus(20, sentences=(1, 4), tokens=(2, 9), vocabulary=(5, len(UNIGRAM) - 1))
    items = pack(Text(corpus, corpus.groups >= 0), 24)
    inputs = sequences_of(corpus, UNIGRAM, objectives=["mlm"]).batch(items, np.array([3]), 0, 0).inputs
    span = corpus.tokens(items.starts[3, 0], items.starts[3, 0] + items.tokens[3, 0]).tolist()
    assert original(inputs)[0].tolist() == [UNIGRAM.bos_token_id, *span, UNIGRAM.eos_token_id]
    assert not inputs["token_type_ids"].any()


def test_counts_are_masked_tokens_and_pairs(corpus, items):
    batch = sequences_of(corpus).batch(items, np.arange(16), 0, 0)
    assert batch.counts == {"mlm": len(batch.inputs["masked"]), "nsp": 16}
    assert len(batch.inputs["masked"]) > 10
    changed = batch.inputs["input_ids"].numpy() != original(batch.inputs)
    assert np.isin(np.flatnonzero(changed), batch.inputs["masked"]).all()


def test_next_sentences_alone_see_all_words(corpus, items):
    batch = sequences_of(corpus, objectives=["nsp"]).batch(items, np.arange(16), 0, 0)
    assert batch.counts == {"nsp": 16}
    assert len(batch.inputs["masked"]) == 0
    assert not (batch.inputs["input_ids"] == TOKENIZER.mask_token_id).any()


def test_special_tokens_and_marks_are_never_masked_nor_put_in(random_corpus):
    tokenizer, pieces = with_new_tokens(TOKENIZER, [], ["[NAME]", "[DATE]"])
    marks = list(pieces)
    corpus = random_corpus(200, sentences=(2, 6), tokens=(4, 9), vocabulary=(0, len(tokenizer)))
    items = draw_pairs(Text(corpus, corpus.groups >= 0), 24, 0.1, 0, 0)
    batch = sequences_of(corpus, tokenizer).batch(items, np.arange(len(items)), 0, 0)
    assert not np.isin(batch.inputs["masked_ids"], [*marks, *tokenizer.all_special_ids]).any()
    put_in = batch.inputs["input_ids"].numpy().reshape(-1)[batch.inputs["masked"].numpy()]
    assert set(put_in) & set(marks) == set()
    assert set(put_in) & set(tokenizer.all_special_ids) == {tokenizer.mask_token_id}
    assert np.isin(original(batch.inputs), marks).sum() > 50


def test_whole_words_are_masked_by_the_vocabularys_own_marks(corpus, items):
    batch = sequences_of(corpus, masking={"whole_words": True}).batch(items, np.arange(len(items)), 0, 0)
    pieces = TOKENIZER.convert_ids_to_tokens(original(batch.inputs).reshape(-1))
    masked = set(batch.inputs["masked"].tolist())
    special = set(TOKENIZER.all_special_tokens)
    goes_on = [
        place for place, piece in enumerate(pieces) if piece.startswith("##") and pieces[place - 1] not in special
    ]
    assert len(goes_on) > 100
    assert all((place in masked) == (place - 1 in masked) for place in goes_on)


def test_a_tokenizer_without_a_mask_is_reported(corpus):
    lacking = train_wordpiece(["the heart"], 60, 24)
    lacking.mask_token = None
    with pytest.raises(RequestError, match=r"it lacks mask_token$"):
        sequences_of(corpus, lacking)
