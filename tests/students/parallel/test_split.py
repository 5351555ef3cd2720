"""Dev sentences, limits, and the outcome of every pair."""

from corpora import aligned, build, items, numbered, three_languages


def test_no_english_sentence_is_in_dev_for_one_language_and_in_training_for_another(tmp_path):
    corpus = build(tmp_path, three_languages(tmp_path), dev_sentences=80)
    dev = {english.casefold() for pairs in corpus.dev.values() for english in pairs.english}
    train = {english.casefold() for _, english, _ in items(corpus)}
    assert len(dev) == 80
    assert dev.isdisjoint(train)
    assert dev | train == {f"sentence number {n}" for n in range(400)}
    assert all(len(pairs.english) > 5 for pairs in corpus.dev.values())
    for language, (english, other) in corpus.dev.items():  # real pairs, one for each sentence and language
        assert len({sentence.casefold() for sentence in english}) == len(english)
        form = " a" if language == "de" else ""
        assert other == [f"{language} {sentence.split()[-1]}{form}" for sentence in english]
    (german, *_) = corpus.facts["sources"]
    assert german["dev"] == german["in the dev split"] == len(corpus.dev["de"].english)
    assert german["pairs"] == german["dev"] + german["in the dev split"] + german["train"]


def test_more_data_moves_few_dev_sentences_and_another_seed_moves_most(tmp_path):
    def dev(numbers, seed):
        source = aligned(tmp_path, "de", numbered("de", numbers))
        return set(build(tmp_path, [source], seed=seed, dev_sentences=100).dev["de"].english)

    before = dev(range(1000), 1)
    assert len(before & dev(range(1100), 1)) > 80
    assert before == dev(list(reversed(range(1000))), 1)
    assert len(before & dev(range(1000), 2)) < 30


def test_dev_sources_are_used_whole_and_their_english_is_left_out_of_training(tmp_path):
    sources = [aligned(tmp_path, "de", numbered("de", range(10))), aligned(tmp_path, "fr", numbered("fr", range(10)))]
    dev = [("SENTENCE number 3", "drei"), ("Sentence number 3", "auch drei"), ("", "leer"), ("new", "neu")]
    corpus = build(tmp_path, sources, dev=[aligned(tmp_path / "dev", "de", dev)])
    assert list(corpus.dev) == ["de"]
    assert corpus.dev["de"].english == ["SENTENCE number 3", "Sentence number 3", "new"]
    assert corpus.dev["de"].other == ["drei", "auch drei", "neu"]
    assert "sentence number 3" not in corpus.english.read(0, 99)
    assert [source["in the dev split"] for source in corpus.facts["sources"]] == [1, 1]
    assert corpus.facts["dev_sources"][0]["empty text"] == 1


def test_a_sentence_of_dev_untrained_is_not_drawn_for_dev_even_if_its_pair_is_repeated(tmp_path):
    pairs = [("sentence number 0", "de number 0")] * 2 + numbered("de", range(1, 5))
    untrained = aligned(tmp_path / "untrained", "fi", numbered("fi", [0]))
    corpus = build(tmp_path, [aligned(tmp_path, "de", pairs)], dev_sentences=3, dev_untrained=[untrained])
    assert len(corpus.dev["de"].english) == 3 and "sentence number 0" not in corpus.dev["de"].english
    (account,) = corpus.facts["sources"]
    assert {key: account[key] for key in account if key not in ("source", "language")} == {
        "pairs": 6, "duplicate": 1, "in the dev split": 1, "dev": 3, "train": 1
    }  # fmt: skip


def test_a_limit_keeps_the_same_english_of_each_source_and_a_source_may_have_another_limit(toy, tmp_path):
    table = {"path": str(toy.train_path)}
    limits = {"dev_sentences": 10, "filters": {"max_pairs": 30}}
    corpus = build(tmp_path, [{**table, "others": {"de": "de"}}, {**table, "others": {"fr": "fr"}}], **limits)
    assert corpus.facts["train"] == {"de": 30, "fr": 30} and len(corpus.english) == 30
    assert [source["beyond max_pairs"] for source in corpus.facts["sources"]] == [160, 160]
    with_limit = [{**table, "others": {"de": "de"}, "max_pairs": 20}, {**table, "others": {"fr": "fr"}}]
    assert build(tmp_path, with_limit, **limits).facts["train"] == {"de": 20, "fr": 30}
