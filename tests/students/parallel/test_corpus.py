import errno
import gzip
import json
import os
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from bertrelay.cache import Cache
from bertrelay.errors import RequestError, WorkError
from students.distill.settings import DistillSettings
from students.parallel import corpus as corpus_files
from students.parallel.corpus import ParallelCorpus, build_corpus
from students.parallel.pairs import drop_reason
from students.parallel.settings import AlignedFiles, Filters, TranslationColumns


def aligned(folder, language, pairs, name="train"):
    """Two line-aligned files, the other one packed."""
    folder.mkdir(parents=True, exist_ok=True)
    english, other = folder / f"{name}.{language}.en", folder / f"{name}.{language}.gz"
    english.write_text("".join(f"{pair[0]}\n" for pair in pairs), encoding="utf-8")
    other.write_bytes(gzip.compress("".join(f"{pair[1]}\n" for pair in pairs).encode(), mtime=0))
    return AlignedFiles(english=str(english), other=str(other), language=language)


def settings(*sources, **given):
    chosen = {"teacher": "./t", "base": "./b", "parallel": list(sources), "seed": 1, **given}
    return DistillSettings.model_validate(chosen if "dev" in given else {"dev_sentences": 0, **chosen})


def build(folder, sources, dev_untrained=(), **given):
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return build_corpus(folder / "cache/key", settings(*sources, **given), Cache(folder), dev_untrained=dev_untrained)


def items(corpus):
    """(text, English target, weight) of each item."""
    texts, english = corpus.texts(0, len(corpus)), corpus.english.read(0, len(corpus.english))
    rows = zip(texts, corpus.targets, corpus.weights, strict=True)
    return [(text, english[target], weight) for text, target, weight in rows]


def numbered(language, numbers):
    return [(f"sentence number {n}", f"{language} number {n}") for n in numbers]


# Items


def test_items_targets_and_weights_by_hand(tmp_path):
    german = aligned(tmp_path, "de", [("A dog.", "Ein Hund."), ("A cat.", "Eine Katze."), ("A dog.", "Der Hund.")])
    french = aligned(tmp_path, "fr", [("A cat.", "Un chat."), ("A bird.", "Un oiseau.")])
    corpus = build(tmp_path, [german, french])
    assert items(corpus)[:3] == [("A dog.", "A dog.", 2), ("A cat.", "A cat.", 2), ("A bird.", "A bird.", 1)]
    others = ["Ein Hund.", "Eine Katze.", "Der Hund.", "Un chat.", "Un oiseau."]
    english = ["A dog.", "A cat.", "A dog.", "A cat.", "A bird."]
    assert items(corpus)[3:] == list(zip(others, english, [1] * 5, strict=True))


def test_any_block_of_texts_is_the_same_as_that_part_of_all(tmp_path):
    corpus = build(tmp_path, [aligned(tmp_path, "de", numbered("de", range(10_000)))])
    texts = corpus.texts(0, len(corpus))
    assert len(texts) == len(corpus) == 20_000
    for start, stop in [(0, 1), (4095, 4097), (9_990, 10_010), (10_000, 10_001), (19_999, 20_000), (5, 5)]:
        assert corpus.texts(start, stop) == texts[start:stop]
    assert isinstance(corpus.targets, np.memmap)


def test_case_makes_another_target_and_spaces_and_composition_do_not(tmp_path):
    pairs = [("a  café", "eins"), (" a\u00a0cafe\u0301 ", "zwei"), ("A café", "drei")]
    corpus = build(tmp_path, [aligned(tmp_path, "de", pairs)])
    assert corpus.english.read(0, 9) == ["a café", "A café"]
    assert corpus.targets.tolist() == [0, 1, 0, 0, 1]


# Sources


def test_row_aligned_tables_pair_by_row_whatever_lines_their_fields_take(tmp_path):
    (tmp_path / "en.csv").write_text('"one\ntwo",x,1\nthree,y,2\n')
    (tmp_path / "de.csv").write_text('eins zwei,x,1\n"dr\nei",y,2\n')
    source = AlignedFiles(english=str(tmp_path / "en.csv"), other=str(tmp_path / "de.csv"), language="de", header=False)
    assert build(tmp_path, [source]).texts(0, 9) == ["one two", "three", "eins zwei", "dr ei"]


def test_one_table_serves_several_languages(tmp_path):
    (tmp_path / "a.tsv").write_text("id\ten\tgerman\tfr\n1\tyes\tja\toui\n2\tno\tnein\t\n")
    source = TranslationColumns(path=str(tmp_path / "a.tsv"), others={"de": "german", "fr": "fr"})
    corpus = build(tmp_path, [source])
    assert [item[:2] for item in items(corpus)[2:]] == [("ja", "yes"), ("oui", "yes"), ("nein", "no")]
    assert corpus.facts["sources"][1] == {
        "source": str(tmp_path / "a.tsv"), "language": "fr", "pairs": 2, "empty side": 1, "train": 1
    }  # fmt: skip


def test_a_line_that_is_not_utf8_rejects_its_row_and_shifts_no_other(tmp_path):
    source = aligned(tmp_path, "de", numbered("de", range(200)))
    lines = Path(source.english).read_bytes().splitlines()
    lines[2] = b"bro\xffken"
    Path(source.english).write_bytes(b"\n".join(lines))
    corpus = build(tmp_path, [source])
    assert {(item[1], item[0]) for item in items(corpus)[199:]} == set(numbered("de", range(200))) - {
        ("sentence number 2", "de number 2")
    }
    assert corpus.facts["rejects"] == {"not valid UTF-8": 1}
    rejected = json.loads((tmp_path / "cache" / "key" / "rejects.jsonl").read_text())
    assert rejected == {
        "file": source.english,
        "line": 3,
        "reason": "not valid UTF-8",
        "detail": "byte 39 of the file, counted from 0",
    }


def test_too_many_unusable_records_stop_and_filtered_pairs_never_do(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"en": "yes", "de": "ja"}\n' * 50 + '{"en": "yes", "de": 7}\n')
    source = TranslationColumns(path=str(tmp_path / "a.jsonl"), others={"de": "de"})
    with pytest.raises(WorkError, match=r"1 of 51 records.*1 × not text"):
        build(tmp_path, [source])
    assert not (tmp_path / "cache" / "key").exists()
    assert build(tmp_path, [source], max_rejects=0.02).facts["sources"][0]["duplicate"] == 49


# Filters


@pytest.mark.parametrize(
    ("english", "other", "reason"),
    [
        ("", "Nein", "empty side"),
        ("Yes", "", "empty side"),
        ("a" * 1001, "b" * 1001, "too long"),
        ("a" * 1000, "b" * 1000, None),
        ("a" * 91, "b" * 30, "length ratio"),
        ("a" * 30, "b" * 91, "length ratio"),
        ("a" * 90, "b" * 30, None),
        ("Yes.", "Oui, bien sûr, volontiers!", None),
        ("STRASSE 5", "straße 5", "copy of the source"),
        ("Berlin is big", "Berlin ist groß", None),
        ("The weather is nice today, so let us go to the park", "今日は天気がいいので公園に", None),
        ("a" * 90, "今" * 14, "length ratio"),
        ("a" * 90, "今" * 15, None),
        ("Ok", "Speichern", "too short"),
        ("Sav", "天気", None),
        ("Sav", "天", "too short"),
    ],
)
def test_each_filter_has_its_reason(english, other, reason):
    assert drop_reason(english, other, Filters(min_characters=3)) == reason


def test_wide_characters_are_those_of_unicode():
    for text in [
        "Ein Satz über Füße",
        "天気がいい。ﾊﾝｶｸ",
        "오늘은 날씨가 좋다",
        "Сегодня",
        "ＦＵＬＬ　width",
        "𠀋字",
        "नमस्ते",
    ]:
        width = sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)
        exactly, less = Filters(max_length_ratio=100 / width), Filters(max_length_ratio=100 / width - 0.01)
        assert drop_reason("a" * 100, text, exactly) is None
        assert drop_reason("a" * 100, text, less) == "length ratio"


def test_every_pair_is_accounted_for_and_copies_and_duplicates_may_stay(tmp_path):
    pairs = [("Same", "same"), ("", "x"), ("a", ""), ("b " * 600, "c"), ("d", "e"), ("d", " e "), ("f" * 99, "g")]
    corpus = build(tmp_path, [aligned(tmp_path, "de", pairs)])
    (account,) = corpus.facts["sources"]
    reasons = {"copy of the source": 1, "empty side": 2, "too long": 1, "duplicate": 1, "length ratio": 1, "train": 1}
    assert {key: account[key] for key in account if key not in ("source", "language")} == {"pairs": 7, **reasons}
    both = Filters(drop_copies=False, drop_duplicates=False)
    corpus = build(tmp_path, [aligned(tmp_path, "de", [("Same", "Same")] * 2)], filters=both)
    assert items(corpus) == [("Same", "Same", 2), ("Same", "Same", 1), ("Same", "Same", 1)]
    taxi = [("A taxi comes", "Un taxi")]
    sources = [aligned(tmp_path, "es", taxi), aligned(tmp_path, "es", taxi, "more"), aligned(tmp_path, "fr", taxi)]
    corpus = build(tmp_path, sources)
    assert corpus.facts["train"] == {"es": 1, "fr": 1}, "the same in another language is no duplicate"
    assert corpus.facts["sources"][1]["duplicate"] == 1


def test_a_corpus_that_the_filters_empty_is_refused_with_the_counts(tmp_path):
    german, french = numbered("de", range(3)), [("Copy", "copy"), ("Copy", "COPY"), ("", "vide")]
    with pytest.raises(RequestError, match=r"no pair of en and fr .* 2 × copy of the source, 1 × empty side"):
        build(tmp_path, [aligned(tmp_path, "de", german), aligned(tmp_path, "fr", french)])
    with pytest.raises(RequestError, match=r"no pair of en and de .* 3 × dev"):
        build(tmp_path, [aligned(tmp_path, "de", german)], dev_sentences=3)


# Dev split


def three_languages(folder):
    """The same English in several languages, with other case and spaces, given several times."""
    german = [(f"Sentence  number {n} ", f"de {n} {form}") for n in range(300) for form in "ab"]
    french = [(f"sentence number {n}", f"fr {n}") for n in range(100, 400)]
    finnish = [(f"SENTENCE NUMBER {n}", f"fi {n}") for n in range(0, 400, 7)]
    return [aligned(folder, "de", german), aligned(folder, "fr", french), aligned(folder, "fi", finnish)]


def test_no_english_sentence_is_in_dev_for_one_language_and_in_training_for_another(tmp_path):
    corpus = build(tmp_path, three_languages(tmp_path), dev_sentences=80)
    dev = {english.casefold() for sides in corpus.dev.values() for english in sides.english}
    train = {english.casefold() for _, english, _ in items(corpus)}
    assert len(dev) == 80
    assert dev.isdisjoint(train)
    assert dev | train == {f"sentence number {n}" for n in range(400)}
    assert all(len(sides.english) > 5 for sides in corpus.dev.values())
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


def test_given_dev_sources_stand_as_they_are_and_training_gives_up_their_english(tmp_path):
    sources = [aligned(tmp_path, "de", numbered("de", range(10))), aligned(tmp_path, "fr", numbered("fr", range(10)))]
    given = [("SENTENCE number 3", "drei"), ("Sentence number 3", "auch drei"), ("", "leer"), ("new", "neu")]
    corpus = build(tmp_path, sources, dev=[aligned(tmp_path / "dev", "de", given)])
    assert list(corpus.dev) == ["de"]
    assert corpus.dev["de"].english == ["SENTENCE number 3", "Sentence number 3", "new"]
    assert corpus.dev["de"].other == ["drei", "auch drei", "neu"]
    assert "sentence number 3" not in corpus.english.read(0, 99)
    assert [source["in the dev split"] for source in corpus.facts["sources"]] == [1, 1]
    assert corpus.facts["dev_sources"][0]["empty side"] == 1


def test_a_sentence_of_dev_untrained_is_not_drawn_for_dev_even_if_its_pair_is_repeated(tmp_path):
    pairs = [("sentence number 0", "de number 0")] * 2 + numbered("de", range(1, 5))
    untrained = aligned(tmp_path / "untrained", "fi", numbered("fi", [0]))
    corpus = build(tmp_path, [aligned(tmp_path, "de", pairs)], dev_sentences=3, dev_untrained=[untrained])
    assert len(corpus.dev["de"].english) == 3 and "sentence number 0" not in corpus.dev["de"].english
    (account,) = corpus.facts["sources"]
    assert {key: account[key] for key in account if key not in ("source", "language")} == {
        "pairs": 6, "duplicate": 1, "in the dev split": 1, "dev": 3, "train": 1
    }  # fmt: skip


def test_a_limit_keeps_the_same_english_of_each_source_and_a_source_may_have_its_own(toy, tmp_path):
    table = {"path": str(toy.train_path)}
    given = {"dev_sentences": 10, "filters": {"max_pairs": 30}}
    corpus = build(tmp_path, [{**table, "others": {"de": "de"}}, {**table, "others": {"fr": "fr"}}], **given)
    assert corpus.facts["train"] == {"de": 30, "fr": 30} and len(corpus.english) == 30
    assert [source["beyond max_pairs"] for source in corpus.facts["sources"]] == [160, 160]
    own = [{**table, "others": {"de": "de"}, "max_pairs": 20}, {**table, "others": {"fr": "fr"}}]
    assert build(tmp_path, own, **given).facts["train"] == {"de": 20, "fr": 30}


# On disk


def test_the_same_input_gives_the_same_bytes_whatever_the_hash_seed(tmp_path):
    given = settings(*three_languages(tmp_path), dev_sentences=50)
    code = (
        "import sys; from pathlib import Path; from students.parallel.corpus import build_corpus; "
        "from students.distill.settings import DistillSettings; "
        "build_corpus(Path(sys.argv[1]), DistillSettings.model_validate_json(sys.argv[2]))"
    )
    arguments = [sys.executable, "-c", code, tmp_path / "other/key", given.model_dump_json()]
    subprocess.run(arguments, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    build_corpus(tmp_path / "own/key", given)
    other, own = (
        {path.name: path.read_bytes() for path in (tmp_path / folder / "key").iterdir()} for folder in ("other", "own")
    )
    assert other == own
    assert sorted(own) == [
        "corpus.json", "dev.json", "dev_untrained.json", "english.arrow", "rejects.jsonl", "retained.arrow",
        "targets.npy", "translations.arrow", "weights.npy",
    ]  # fmt: skip


def test_a_corpus_that_stands_is_only_read_and_what_a_killed_run_has_left_is_removed(tmp_path):
    source = aligned(tmp_path, "de", numbered("de", range(5)))
    cache = tmp_path / "cache"
    for key in ("key", "killed", "busy"):
        (cache / f"{key}.partial").mkdir(parents=True)
        (cache / f"{key}.partial" / "english.arrow").write_text("half")
    with FileLock(cache / "busy.lock"):
        build_corpus(cache / "key", settings(source))
    assert sorted(path.name for path in cache.iterdir() if path.is_dir()) == ["busy.partial", "key"]
    Path(source.english).unlink()
    assert len(build_corpus(cache / "key", settings(source))) == len(ParallelCorpus.open(cache / "key")) == 10


def test_a_lower_limit_of_unusable_records_is_held_by_a_corpus_that_stands(tmp_path):
    source = aligned(tmp_path, "de", numbered("de", range(9)))
    other = gzip.decompress(Path(source.other).read_bytes())
    Path(source.other).write_bytes(other.replace(b"3", b"\xff"))  # one of nine
    cache = tmp_path / "cache"
    build_corpus(cache / "key", settings(source, max_rejects=0.2))
    listed = (cache / "key" / "rejects.jsonl").stat()
    with pytest.raises(WorkError, match=r"1 of 9 records cannot be used, more than the 5\.00% allowed: 1 × not valid"):
        build_corpus(cache / "key", settings(source, max_rejects=0.05))
    assert len(build_corpus(cache / "key", settings(source, max_rejects=0.2)).english) == 8
    assert len((cache / "key" / "rejects.jsonl").read_text().splitlines()) == 1
    assert (cache / "key" / "rejects.jsonl").stat().st_ino == listed.st_ino  # a corpus that stands is only read


def test_a_full_disk_keeps_its_error_number_whichever_file_it_strikes(tmp_path, monkeypatch):
    """The runner tells a full disk by it. Files that go to /dev/full are written, and then find no room."""
    source = aligned(tmp_path, "de", numbered("de", range(50)))
    read_sentences = corpus_files._write_corpus
    for name in ("pairs.arrow", "english.arrow", "targets.npy", "weights.npy"):

        def on_a_full_disk(folder, *rest, name=name):
            (folder / name).symlink_to("/dev/full")
            read_sentences(folder, *rest)

        monkeypatch.setattr(corpus_files, "_write_corpus", on_a_full_disk)
        with pytest.raises(OSError, match="No space left") as found:
            build(tmp_path, [source])
        assert found.value.errno == errno.ENOSPC, name
