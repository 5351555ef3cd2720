import numpy as np
import pytest

from domain.draws import nth_number, uniform_draws
from domain.pretraining.sequences import Masker
from domain.pretraining.settings import Masking

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
    ids, rows, places = million
    return masker(word_starts, **settings)(ids, uniform_draws(seed, epoch, rows, places))


@pytest.mark.parametrize("word_starts", [None, begins_word])
def test_shares_hold_on_a_million_tokens(million, word_starts):
    ids = million[0]
    seen, is_masked = masked(million, word_starts=word_starts)
    maskable = ~np.isin(ids, PROTECTED)
    assert is_masked.sum() / maskable.sum() == pytest.approx(0.15, abs=0.002)
    new, old = seen[is_masked], ids[is_masked]
    assert (new == MASK).mean() == pytest.approx(0.8, abs=0.005)
    assert ((new != MASK) & (new != old)).mean() == pytest.approx(0.1, abs=0.005)
    assert (new == old).mean() == pytest.approx(0.1, abs=0.005)
    assert np.array_equal(seen[~is_masked], ids[~is_masked])
    assert (~maskable).sum() > 10_000 and not is_masked[~maskable].any()
    assert not np.isin(seen[is_masked & (seen != MASK)], PROTECTED).any()


def test_random_tokens_are_drawn_evenly(million):
    seen, is_masked = masked(million, mask=0.0, random=1.0)
    counts = np.bincount(seen[is_masked], minlength=VOCABULARY)
    allowed = np.delete(counts, PROTECTED)
    assert counts[PROTECTED].sum() == 0
    expected = allowed.mean()
    assert ((allowed - expected) ** 2 / expected).sum() / len(allowed) == pytest.approx(1, abs=0.15)  # chi-square


def test_whole_words_are_masked_whole(million):
    ids = million[0]
    _, is_masked = masked(million, word_starts=begins_word)
    words = np.cumsum(begins_word(ids)) - 1
    sizes, hidden = np.bincount(words), np.bincount(words, weights=is_masked)
    assert ((hidden == 0) | (hidden == sizes)).all()
    assert sizes[hidden > 0].mean() > 2


def test_every_place_and_every_word_is_as_likely(million):
    _, _, places = million
    _, is_masked = masked(million)
    by_place = np.bincount(places, weights=is_masked) / np.bincount(places)
    assert np.abs(by_place - by_place.mean()).max() < 5 * np.sqrt(0.15 * 0.85 / (TOKENS / LENGTH))
    ids = million[0]
    _, by_word = masked(million, word_starts=begins_word)
    sizes = np.bincount(np.cumsum(begins_word(ids)) - 1)
    size_of_token = np.repeat(sizes, sizes)
    shares = [by_word[(size_of_token == size) & ~np.isin(ids, PROTECTED)].mean() for size in (1, 2, 5)]
    assert max(shares) - min(shares) < 0.01


def test_two_epochs_mask_differently_and_the_same_epoch_twice_alike(million):
    first, again, other, seed = (masked(million, *key)[1] for key in ((1, 0), (1, 0), (1, 1), (2, 0)))
    assert np.array_equal(first, again)
    for different in (other, seed):
        assert (first & different).sum() / first.sum() == pytest.approx(0.15, abs=0.005)


@pytest.mark.parametrize("word_starts", [None, begins_word])
def test_an_item_is_masked_alike_in_any_company(million, word_starts):
    """Which items share a batch depends on the number of processes, and the masks must not."""
    ids, rows, places = (values[: 40 * LENGTH] for values in million)
    rules = masker(word_starts)
    together = rules(ids, uniform_draws(5, 2, rows, places))[0].reshape(40, LENGTH)
    for item in (0, 7, 39):
        own = slice(item * LENGTH, (item + 1) * LENGTH)
        draws = uniform_draws(5, 2, np.full(LENGTH, item), places[own])
        assert np.array_equal(rules(ids[own], draws)[0], together[item])


def test_numbers_are_those_of_splitmix64():
    """The first ones of the reference implementation in C, for the seeds 0 and 1234567."""
    seeds = np.array([[0], [1234567]], dtype=np.uint64)
    numbers = nth_number(seeds, np.arange(3, dtype=np.uint64))
    assert numbers[0].tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert numbers[1].tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_draws_of_neighbouring_tokens_items_and_epochs_have_nothing_to_do_with_one_another():
    items, places = np.repeat(np.arange(2_000), 50), np.tile(np.arange(50), 2_000)
    draws = uniform_draws(0, 0, items, places)
    assert draws.min() >= 0 and draws.max() < 1
    assert draws.mean() == pytest.approx(0.5, abs=0.003)
    other_epoch = uniform_draws(0, 1, items, places)
    by_item = draws.reshape(2_000, 150)
    columns = [draws[:, 0], draws[:, 1], draws[:, 2], other_epoch[:, 0], np.roll(draws[:, 0], 1)]
    assert np.abs(np.corrcoef(columns) - np.eye(len(columns))).max() < 0.02
    assert np.abs(np.corrcoef(by_item[:-1, 0], by_item[1:, 0])[0, 1]) < 0.1
