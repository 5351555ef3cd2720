"""Starts of words, masked tokens, and the sequences of a batch."""

from itertools import pairwise

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from bertrelay.errors import RequestError
from bertrelay.model.new import train_unigram, train_wordpiece
from bertrelay.model.tokenizer import before_sentences, plain_rules
from domain.pretraining.masking import Masker, Sequences, WordStarts
from domain.pretraining.network import with_new_tokens
from domain.pretraining.pairs import Text, draw_pairs, pack
from domain.pretraining.settings import Masking, PretrainSettings
from domain.sampling import uniform_draws

# Where words begin

WORD_TEXTS = [
    "Metoprolol 12.5 mg was given to the patient, who had heart failure (systolic).",
    "The patient's beta-blocker was stopped: bradycardia!",
    "Naïve œdema of 37 °C — Größe.",
] * 3


def byte_level():
    rules = ByteLevelBPETokenizer()
    rules.train_from_iterator(WORD_TEXTS, 320, show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=rules._tokenizer, unk_token=None)


TOKENIZERS = {
    "wordpiece": lambda: train_wordpiece(WORD_TEXTS, 90, 32),
    "unigram": lambda: train_unigram(WORD_TEXTS, 90, 32),
    "byte level": byte_level,
}


def words(tokenizer, text):
    """The words of a text by their starts."""
    rules = plain_rules(tokenizer)
    encoding = rules.encode(before_sentences(rules) + text, add_special_tokens=False)
    starts = np.flatnonzero(WordStarts(tokenizer)(np.array(encoding.ids)))
    cut = [*starts.tolist(), len(encoding.ids)]
    shift = len(before_sentences(rules))
    spans = [(encoding.offsets[a][0], encoding.offsets[b - 1][1]) for a, b in pairwise(cut)]
    return [text[max(start - shift, 0) : end - shift].strip() for start, end in spans]


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "byte level"])
def test_words_are_whole_and_punctuation_is_alone_in_every_kind_of_vocabulary(kind):
    tokenizer = TOKENIZERS[kind]()
    text = "the patient who had heart failure was given metoprolol (systolic): beta-blocker stopped! naïve œdema"
    assert words(tokenizer, text) == [
        "the", "patient", "who", "had", "heart", "failure", "was", "given", "metoprolol", "(", "systolic", ")", ":",
        "beta", "-", "blocker", "stopped", "!", "naïve", "œdema",
    ]  # fmt: skip
    ids = plain_rules(tokenizer).encode("patient", add_special_tokens=False).ids  # the first piece has no mark
    assert WordStarts(tokenizer)(np.array(ids)).tolist() == [True, *[False] * (len(ids) - 1)]
    assert WordStarts(tokenizer)(np.array([], int)).tolist() == []


def test_wordpiece_words_are_those_of_its_own_pre_tokenizer_and_added_tokens():
    tokenizer = TOKENIZERS["wordpiece"]()
    for text in WORD_TEXTS:
        encoding = plain_rules(tokenizer).encode(text, add_special_tokens=False)
        changes = np.diff([-1, *encoding.word_ids]) != 0
        assert WordStarts(tokenizer)(np.array(encoding.ids)).tolist() == changes.tolist()
    tokenizer.add_tokens(["[NAME]"])
    assert words(tokenizer, "the patient[NAME]had") == ["the", "patient", "[NAME]", "had"]


# Masks

TOKENS, LENGTH, VOCABULARY = 1_000_000, 125, 2_000
MASK = 4
PROTECTED = np.r_[0:5, 1_000:1_020]  # special ones, and marks such as [NAME]


@pytest.fixture(scope="module")
def million():
    """Ids of a million tokens, of which one in fifty is protected, in sequences of 125."""
    generator = np.random.default_rng(0)
    ids = generator.integers(0, VOCABULARY, TOKENS)
    return ids, np.arange(TOKENS) // LENGTH, np.arange(TOKENS) % LENGTH


def masker(word_starts=None, **settings):
    maskable = np.ones(VOCABULARY, dtype=bool)
    maskable[PROTECTED] = False
    return Masker(Masking(whole_words=word_starts is not None, **settings), MASK, maskable, word_starts)


def begins_word(ids):
    """Pieces that divide by three begin a word, and protected ones stand alone, and so begin what follows them."""
    alone = np.isin(ids, PROTECTED)
    begins = (ids % 3 == 0) | alone
    begins[1:] |= alone[:-1]
    begins[0] = True
    return begins


def masked(million, seed=0, epoch=0, word_starts=None, **settings):
    ids, rows, offsets = million
    return masker(word_starts, **settings)(ids, uniform_draws(seed, epoch, rows, offsets))


@pytest.mark.parametrize("word_starts", [None, begins_word])
def test_shares_hold_on_a_million_tokens(million, word_starts):
    ids = million[0]
    seen, is_masked = masked(million, word_starts=word_starts)
    maskable = ~np.isin(ids, PROTECTED)
    assert (~maskable).sum() > 10_000 and not is_masked[~maskable].any()
    assert is_masked.sum() / maskable.sum() == pytest.approx(0.15, abs=0.002)
    new, old = seen[is_masked], ids[is_masked]
    assert (new == MASK).mean() == pytest.approx(0.8, abs=0.005)
    assert ((new != MASK) & (new != old)).mean() == pytest.approx(0.1, abs=0.005)
    assert (new == old).mean() == pytest.approx(0.1, abs=0.005)
    assert np.array_equal(seen[~is_masked], ids[~is_masked])
    assert not np.isin(seen[is_masked & (seen != MASK)], PROTECTED).any()
    by_place = np.bincount(million[2], weights=is_masked) / np.bincount(million[2])
    assert np.abs(by_place - by_place.mean()).max() < 5 * np.sqrt(0.15 * 0.85 / (TOKENS / LENGTH))


def test_random_tokens_are_drawn_evenly(million):
    seen, is_masked = masked(million, mask=0.0, random=1.0)
    counts = np.bincount(seen[is_masked], minlength=VOCABULARY)
    allowed = np.delete(counts, PROTECTED)
    assert counts[PROTECTED].sum() == 0
    expected = allowed.mean()
    assert ((allowed - expected) ** 2 / expected).sum() / len(allowed) == pytest.approx(1, abs=0.15)  # chi-square


def test_whole_words_are_masked_whole_and_those_of_any_length_alike(million):
    ids, (_, is_masked) = million[0], masked(million, word_starts=begins_word)
    words = np.cumsum(begins_word(ids)) - 1
    sizes, hidden = np.bincount(words), np.bincount(words, weights=is_masked)
    assert ((hidden == 0) | (hidden == sizes)).all()
    size_of_token = np.repeat(sizes, sizes)
    shares = [is_masked[(size_of_token == size) & ~np.isin(ids, PROTECTED)].mean() for size in (1, 2, 5)]
    assert max(shares) - min(shares) < 0.01


@pytest.mark.parametrize("word_starts", [None, begins_word])
def test_an_item_is_masked_alike_in_any_company(million, word_starts):
    """The number of processes decides which items share a batch; masks must not depend on it."""
    ids, rows, offsets = (values[: 40 * LENGTH] for values in million)
    rules = masker(word_starts)
    together = rules(ids, uniform_draws(5, 2, rows, offsets))[0].reshape(40, LENGTH)
    for item in (0, 7, 39):
        tokens = slice(item * LENGTH, (item + 1) * LENGTH)
        draws = uniform_draws(5, 2, np.full(LENGTH, item), offsets[tokens])
        assert np.array_equal(rules(ids[tokens], draws)[0], together[item])


# Sequences

TEXTS = ["the heart and the lung", "a fever, a cough and a rash", "kidney, liver, spleen"]
TOKENIZER, UNIGRAM = train_wordpiece(TEXTS, 90, 40), train_unigram(TEXTS, 90, 40)


def sequences_of(corpus, tokenizer=TOKENIZER, **settings):
    values = {"base": "./none", "documents": [{"path": "none.jsonl"}], "max_tokens": 24, **settings}
    return Sequences(corpus, tokenizer, PretrainSettings.model_validate(values))


@pytest.fixture(scope="module")
def corpus(random_corpus):
    return random_corpus(30, sentences=(2, 7), tokens=(2, 9), vocabulary=(6, len(TOKENIZER)))


@pytest.fixture(scope="module")
def items(corpus):
    return draw_pairs(Text(corpus, corpus.groups >= 0), 24, 0.1, 0, 0)


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


def test_counts_are_masked_tokens_and_pairs_and_next_sentences_alone_see_all_words(corpus, items):
    batch = sequences_of(corpus).batch(items, np.arange(16), 0, 0)
    assert batch.counts == {"mlm": len(batch.inputs["masked"]), "nsp": 16}
    assert len(batch.inputs["masked"]) > 10
    changed = batch.inputs["input_ids"].numpy() != original(batch.inputs)
    assert np.isin(np.flatnonzero(changed), batch.inputs["masked"]).all()
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
    continues = [piece.startswith("##") and before not in special for before, piece in pairwise(pieces)]
    goes_on = np.flatnonzero(continues) + 1
    assert len(goes_on) > 100
    assert all((position in masked) == (position - 1 in masked) for position in goes_on)


def test_a_tokenizer_without_a_mask_is_reported(corpus):
    lacking = train_wordpiece(["the heart"], 60, 24)
    lacking.mask_token = None
    with pytest.raises(RequestError, match=r"it lacks mask_token$"):
        sequences_of(corpus, lacking)
