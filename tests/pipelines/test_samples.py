"""Sample sentences: the files against each other."""

import csv
import gzip
from collections import Counter
from pathlib import Path

import pytest

from bertrelay.errors import RequestError
from pipelines.samples.sentence_files import PLAIN_FILES, write_plain_files, write_samples
from pipelines.samples.settings import SampleSettings

LANGUAGES = ["en", "de", "fr", "es", "ko"]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    write_samples(folder, SampleSettings())
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def sentences(path: Path) -> set[str]:
    return {text for row in rows(path) for name, text in row.items() if name not in ("label", "score")}


def test_no_test_or_development_sentence_is_in_a_training_file(samples: Path) -> None:
    training = set().union(*(sentences(path) for path in samples.iterdir() if ".train." in path.name))
    held_out = [path for path in samples.iterdir() if ".train." not in path.name]
    assert len(held_out) == 6
    for path in held_out:
        assert sentences(path)
        assert training.isdisjoint(sentences(path)), path.name


def test_every_parallel_test_sentence_is_there_once_and_many_have_a_twin_of_the_same_words(samples: Path) -> None:
    tested = rows(samples / "parallel.test.tsv")
    assert list(tested[0]) == LANGUAGES
    for language in LANGUAGES:
        assert len({row[language] for row in tested}) == len(tested) == 1_200
    bags = Counter(tuple(sorted(row["en"].lower().rstrip(".").split())) for row in tested)
    assert sum(count for count in bags.values() if count > 1) >= 0.15 * len(tested)


def test_a_third_of_the_pairs_has_each_label_and_an_entailed_sentence_adds_no_word(samples: Path) -> None:
    pairs = rows(samples / "nli.train.tsv")
    assert Counter(row["label"] for row in pairs) == dict.fromkeys(("entailment", "neutral", "contradiction"), 2_000)
    assert all(row["premise"] != row["hypothesis"] for row in pairs)
    for row in (row for row in pairs if row["label"] == "entailment"):
        premise, hypothesis = (
            row[name].lower().rstrip(".").replace(",", "").split() for name in ("premise", "hypothesis")
        )
        assert len(hypothesis) <= len(premise)
        assert set(hypothesis) - set(premise) <= {"person", "people", "animal", "animals"}


def test_the_multilingual_test_has_the_sentences_of_the_english_one(samples: Path) -> None:
    english, multilingual = rows(samples / "sts.test.tsv"), rows(samples / "sts.multilingual.test.tsv")
    assert [tuple(row.values()) for row in english] == [
        (row["sentence1_en"], row["sentence2_en"], row["score"]) for row in multilingual
    ]


def test_fewer_rows_are_the_first_ones(samples: Path, tmp_path: Path) -> None:
    write_samples(tmp_path, SampleSettings(parallel_train=100, parallel_test=10, nli=120, sts=120, triplets=100))
    lengths = {path.name: len(rows(path)) for path in tmp_path.iterdir()}
    assert lengths == {
        "parallel.train.tsv.gz": 100,
        "parallel.test.tsv": 10,
        "nli.train.tsv": 120,
        "nli.dev.tsv": 10,
        "sts.train.tsv": 120,
        "sts.dev.tsv": 10,
        "sts.test.tsv": 20,
        "sts.multilingual.test.tsv": 20,
        "triplets.train.tsv": 100,
        "triplets.dev.tsv": 10,
    }
    assert all(rows(tmp_path / name) == rows(samples / name)[:count] for name, count in lengths.items())


def test_plain_files_are_aligned_line_by_line_and_their_pairs_list_it(samples: Path, tmp_path: Path) -> None:
    counts = write_plain_files(tmp_path, sentences=40)
    lines = {name: (tmp_path / name).read_text("utf-8").splitlines() for name in counts}
    assert {name: len(listed) - (name == "pairs.tsv") for name, listed in lines.items()} == counts
    for row, translations in enumerate(rows(samples / "parallel.test.tsv")[:40]):
        assert [lines[name][row] for name in PLAIN_FILES] == [translations[code] for code in PLAIN_FILES.values()]
    assert lines["pairs.tsv"][1:] == [f"{row}\t{row}" for row in range(1, 41)]
    assert lines["questions.txt"] == lines["english.txt"][:20]


def test_the_command_replaces_nothing_unless_asked(call, tmp_path, monkeypatch):
    for name in ("sentence_files.write_samples", "sentence_files.write_sbert_paper", "hospital.write_hospitals"):
        monkeypatch.setattr(f"pipelines.samples.{name}", lambda *_: {})
    for name in ("draw_documents", "write_entities", "write_papers", "write_questions"):
        monkeypatch.setattr(f"pipelines.samples.papers.{name}", lambda *_: {})
    (tmp_path / "german.txt").write_text("mine")
    with pytest.raises(RequestError, match=rf"1 of the files are there already, such as {tmp_path}/german.txt"):
        call("samples", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["german.txt"]
    assert (tmp_path / "german.txt").read_text() == "mine"
    call("samples", tmp_path, "--overwrite")
    assert len((tmp_path / "german.txt").read_text().splitlines()) == 200
