from dataclasses import fields

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_score

from bertrelay.errors import RequestError
from domain.pretraining import pairs
from domain.pretraining.pairs import Items, Text, draw_pairs, pack

EVERY = 10**6  # longer than any document


def chosen(corpus, name="documents"):
    return Text(corpus, np.ones(len(corpus.groups), dtype=bool), name)


def document_of(corpus, starts):
    """The document of each position of the tokens, from the corpus only."""
    return np.searchsorted(corpus.sentence_starts[corpus.document_starts], starts, side="right") - 1


def drawn(corpus, max_tokens=64, short_share=0.1, seed=1, epoch=0):
    return draw_pairs(chosen(corpus), max_tokens, short_share, seed, epoch)


@pytest.mark.parametrize("groups", [7, None])
def test_no_random_segment_is_of_the_first_ones_document_or_group(random_corpus, groups):
    corpus = random_corpus(400, groups=groups) if groups else random_corpus(3, sentences=(500, 900))
    items = drawn(corpus)
    first, second = (document_of(corpus, items.starts[:, segment]) for segment in (0, 1))
    assert np.array_equal(first, items.documents)
    assert (corpus.groups[first] != corpus.groups[second])[items.is_random].all()
    assert (first == second)[~items.is_random].all()
    assert items.is_random.sum() > 100 and (~items.is_random).sum() > 100


def test_labels_are_fair_coins_in_short_documents_too(random_corpus):
    for bounds in ((2, 3), (1, 5)):
        items = drawn(random_corpus(1000, sentences=bounds, tokens=(1, 9)))
        assert abs(items.is_random.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(items))


def test_lengths_hardly_show_the_label(random_corpus):
    items = drawn(random_corpus(1500, sentences=(4, 14), tokens=(5, 30)), max_tokens=128)
    accuracy = cross_val_score(HistGradientBoostingClassifier(max_iter=30), items.tokens, items.is_random, cv=3)
    assert accuracy.mean() < 0.55


def test_documents_of_one_sentence_are_second_segments_only(corpus_of):
    alone, long = [[[5] * 4]] * 20, [[[6] * 3] * 9] * 20
    items = drawn(corpus_of([*alone, *long]))
    assert items.documents.min() == 20
    assert (items.starts[items.is_random, 1] < 80).any()


@pytest.mark.parametrize(
    ("documents", "groups", "message"),
    [
        ([[[5], [5]]], None, "two documents at least, .* found 1 of one group"),
        ([[[5], [5]], [[5], [5]]], [3, 3], "two groups where groups are known; found 2 of one group"),
        ([[[5]], [[5]], [[5]]], None, "two sentences at least, found 3 of one sentence each"),
    ],
)
def test_a_text_without_pairs_is_reported(corpus_of, documents, groups, message):
    with pytest.raises(
        RequestError, match=f"held-out documents: next-sentence pairs need documents of {message}|{message}"
    ):
        draw_pairs(chosen(corpus_of(documents, groups), "held-out documents"), 64, 0.1, 0, 0)


def test_documents_that_are_not_chosen_are_in_no_pair(random_corpus):
    corpus = random_corpus(300)
    some = np.random.default_rng(0).random(300) < 0.4
    for items in (draw_pairs(Text(corpus, some), 64, 0.1, 0, 0), pack(Text(corpus, some), 64)):
        is_segment = items.tokens > 0
        assert some[document_of(corpus, items.starts[is_segment])].all()
        assert some[items.documents].all()


def test_a_walk_continues_where_a_pair_ended_with_what_was_not_used(random_corpus):
    """Read back from the table: each pair of a document begins where the one before it ended, or was cut."""
    corpus = random_corpus(300, sentences=(2, 30))
    items = drawn(corpus, max_tokens=EVERY, short_share=1.0)
    ends = items.starts + items.tokens
    follows = ends[:, 0] == items.starts[:, 1]
    assert follows[~items.is_random].all() and follows[items.is_random].mean() < 0.01  # by chance a neighbour does
    assert np.isin([items.starts, ends], corpus.sentence_starts).all()  # whole sentences, as nothing is cut
    last = corpus.sentence_starts[corpus.document_starts[1:]]
    walked = np.zeros(last[-1], dtype=bool)
    for (first, second), (first_end, second_end), is_random in zip(items.starts, ends, items.is_random, strict=True):
        walked[first:first_end] = True
        walked[second : second if is_random else second_end] = True
    assert walked.all()
    for number in range(len(items) - 1):
        if items.documents[number] != items.documents[number + 1]:
            continue
        onward = ends[number, 0] if items.is_random[number] else ends[number, 1]
        follows_once_more = ends[number + 1].max() == last[items.documents[number]]
        assert items.starts[number + 1, 0] == onward or (follows_once_more and items.starts[number + 1, 1] == onward)


def test_blocks_change_neither_what_is_walked_nor_the_rules(random_corpus, monkeypatch):
    corpus = random_corpus(300, sentences=(2, 9))
    monkeypatch.setattr(pairs, "BLOCK", 50)
    text = chosen(corpus)
    documents, sentences = (np.concatenate(parts) for parts in zip(*text.blocks(), strict=True))
    assert len(list(text.blocks())) > 20
    assert np.array_equal(sentences, np.arange(len(corpus.lengths)))
    assert np.array_equal(documents, np.arange(300))
    items = drawn(corpus)
    assert set(items.documents) == set(range(300))
    assert (document_of(corpus, items.starts[:, 1]) != items.documents)[items.is_random].all()
    monkeypatch.undo()
    assert packed_spans(pack(text, 64)) == packed_spans(pack(chosen(corpus), 64))


def test_the_second_segments_of_random_pairs_come_from_everywhere(random_corpus):
    corpus = random_corpus(50, sentences=(2, 12))
    epochs = [drawn(corpus, epoch=epoch) for epoch in range(40)]
    drawn_from = np.concatenate([document_of(corpus, items.starts[items.is_random, 1]) for items in epochs])
    expected = np.diff(corpus.document_starts) / len(corpus.lengths)
    assert np.abs(np.bincount(drawn_from) / len(drawn_from) - expected).max() < 0.01


def test_a_sequence_is_never_longer_than_asked_for(random_corpus):
    for max_tokens in (8, 64, 128):
        items = drawn(random_corpus(200, tokens=(1, 90)), max_tokens)
        assert items.lengths.max() == max_tokens
        assert np.array_equal(items.lengths, items.tokens.sum(axis=1) + 3)
        assert items.tokens.min() >= 1


def test_one_in_ten_is_short(corpus_of):
    """In documents without end nothing else is: nine in ten are filled."""
    corpus = corpus_of([[[5]] * 100_000] * 2)
    items = drawn(corpus, max_tokens=64)
    short = items.lengths < 64
    assert short.mean() == pytest.approx(0.1 * 61 / 62, abs=0.01)  # one of 61 targets is the full one
    filled = drawn(corpus, 64, short_share=0.0)
    is_last = np.diff(filled.documents, append=-1) != 0
    assert (filled.lengths[~is_last] == 64).mean() > 0.999  # what comes before the last may be shortened by it


def test_a_pair_is_cut_as_berts_loop_cuts_it():
    generator = np.random.default_rng(0)
    tokens = generator.integers(1, 200, (500, 2))
    starts, remaining = pairs._truncated(np.zeros_like(tokens), tokens, 100, generator)
    for (first, second), row in zip(tokens.tolist(), remaining.tolist(), strict=True):
        while first + second > 100:
            if first > second:
                first -= 1
            else:
                second -= 1
        assert [first, second] == row
    dropped = tokens - remaining
    assert (starts >= 0).all() and (starts <= dropped).all()
    assert starts.sum() / dropped.sum() == pytest.approx(0.5, abs=0.01)  # either end by chance


def test_a_table_is_a_function_of_seed_and_epoch(random_corpus):
    corpus = random_corpus(100)
    one = drawn(corpus, seed=3, epoch=2)
    again = drawn(random_corpus(100), seed=3, epoch=2)
    for field in fields(Items):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(again, field.name))
    for other in (drawn(corpus, seed=3, epoch=3), drawn(corpus, seed=4, epoch=2)):
        assert len(other) != len(one) or not np.array_equal(other.starts, one.starts)


def packed_spans(items):
    return list(zip(items.starts[:, 0].tolist(), (items.starts + items.tokens)[:, 0].tolist(), strict=True))


def test_packed_items_take_every_sentence_once_as_many_as_fit_and_cross_no_document(random_corpus):
    corpus = random_corpus(200, tokens=(1, 30))
    bounds = corpus.sentence_starts
    items = pack(chosen(corpus), 64)
    spans = packed_spans(items)
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])] and spans[-1][1] == bounds[-1]
    ends = np.array([end for _, end in spans])
    assert np.isin(ends, bounds).all()
    assert np.array_equal(document_of(corpus, items.starts[:, 0]), document_of(corpus, ends - 1))
    for start, end in spans[:-1]:
        is_last = document_of(corpus, [end])[0] != document_of(corpus, [start])[0]
        assert is_last or bounds[np.searchsorted(bounds, end) + 1] - start > 62
    assert items.lengths.max() == 64 and not items.is_random.any() and not items.tokens[:, 1].any()


def test_a_sentence_longer_than_a_sequence_is_cut_up_and_kept(corpus_of):
    corpus = corpus_of([[[5] * 4, [5] * 25, [5] * 3], [[5] * 2]])
    assert packed_spans(pack(chosen(corpus), 12)) == [(0, 4), (4, 14), (14, 24), (24, 32), (32, 34)]
