"""Sample sentences: checked against ones written by hand, and files against each other."""

import csv
import gzip
from collections import Counter
from pathlib import Path

import pytest

from bertrelay.errors import RequestError
from pipelines.samples.meanings import (
    LANGUAGES,
    Features,
    clause_of,
    is_sensible,
    meaning_of,
    place_of,
    render,
    similarity,
)
from pipelines.samples.meanings import phrase_of as noun
from pipelines.samples.sentence_files import PLAIN_FILES, write_plain_files, write_samples
from pipelines.samples.sentences import Meanings
from pipelines.samples.settings import SampleSettings

SMALL = SampleSettings(parallel_train=600, parallel_test=150, nli=300, sts=300, triplets=150)

DOG, CAT, BOY, OLD_CAT = noun("dog"), noun("cat"), noun("boy"), noun("cat", adjective="old")

MEANINGS = [
    meaning_of(clause_of(DOG, "follow", "past", object=OLD_CAT, place=place_of("at", "garden"), time="yesterday")),
    meaning_of(clause_of(OLD_CAT, "follow", "past", object=DOG, place=place_of("at", "garden"), time="yesterday")),
    meaning_of(
        clause_of(
            noun("teacher"),
            "give",
            "present",
            object=noun("flower", "my", adjective="red"),
            recipient=noun("boy", "this"),
        )
    ),
    meaning_of(clause_of(noun("woman", several=True), "come", "past", negated=True, place=place_of("from", "market"))),
    meaning_of(
        clause_of(noun("nurse"), "call", "future", object=noun("doctor", adjective="old"), time="tomorrow"),
        "because",
        clause_of(noun("child", "this"), "be", "present", state="ill"),
    ),
    meaning_of(
        clause_of(noun("man"), "read", "past", object=noun("book", "two", adjective="old")),
        "while",
        clause_of(noun("child", "three"), "play", "background", place=place_of("near", "school")),
    ),
    meaning_of(
        clause_of(noun("girl"), "laugh", "present"),
        "but",
        clause_of(noun("neighbour", "my"), "sing", "present", negated=True),
    ),
    meaning_of(clause_of(noun("bird", "many"), "eat", "habit", object=noun("apple", "two"), time="often")),
    meaning_of(clause_of(noun("cow", several=True), "be", "past", state="ill", time="last week")),
    meaning_of(
        clause_of(
            noun("farmer", "this"),
            "wait for",
            "habit",
            negated=True,
            object=noun("man", adjective="young"),
            place=place_of("at", "station"),
            time="on Sundays",
        )
    ),
    meaning_of(
        clause_of(noun("girl", "this"), "run", "past", place=place_of("to", "park")),
        "and",
        clause_of(noun("horse", several=True), "go", "past", place=place_of("to", "forest")),
    ),
    meaning_of(
        clause_of(noun("child"), "be", "present", state="sad"),
        "because",
        clause_of(noun("girl"), "find", "past", negated=True, object=noun("ball")),
    ),
]
"""Those of `sentences_by_hand.tsv`, line by line."""

BY_HAND = [
    line.split("\t") for line in Path(__file__).with_name("sentences_by_hand.tsv").read_text("utf-8").splitlines()
]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    write_samples(folder, SMALL)
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def sentences(path: Path) -> set[str]:
    return {text for row in rows(path) for name, text in row.items() if name not in ("label", "score")}


def translations(meaning: Features) -> list[str]:
    return [render(meaning, language) for language in LANGUAGES]


def sentence(language: str, *clause: object, **details: object) -> str:
    return render(meaning_of(clause_of(*clause, **details)), language)


@pytest.mark.parametrize(("meaning", "expected"), list(zip(MEANINGS, BY_HAND[1:], strict=True)))
def test_sentences_are_those_written_by_hand(meaning: Features, expected: list[str]) -> None:
    assert list(LANGUAGES) == BY_HAND[0]
    assert translations(meaning) == expected
    assert is_sensible(meaning)


FRAMES = {
    "de": ((CAT, "see", "habit"), "Die Katze sieht {}."),
    "de dative": ((BOY, "help", "present"), "Der Junge hilft {}."),
    "fr": ((CAT, "see", "habit"), "Le chat voit {}."),
    "es": ((BOY, "find", "past"), "El chico encontró {}."),
    "ko": ((noun("doctor"), "buy", "past"), "의사는 {} 샀다."),
}


@pytest.mark.parametrize(
    ("language", "thing", "expected"),
    [
        ("de", noun("man", "my", "kind"), "meinen freundlichen Mann"),
        ("de", noun("woman", "the", "young"), "die junge Frau"),
        ("de", noun("child", "my", "small"), "mein kleines Kind"),
        ("de", noun("boy", "this", "small"), "diesen kleinen Jungen"),
        ("de", noun("horse", "this", "white"), "dieses weiße Pferd"),
        ("de", noun("dog", several=True, adjective="old"), "die alten Hunde"),
        ("de", noun("bird", "two", "big"), "zwei große Vögel"),
        ("de", noun("neighbour", "many"), "viele Nachbarn"),
        ("de dative", noun("man", "my", "kind"), "meinem freundlichen Mann"),
        ("de dative", noun("woman", "the", "young"), "der jungen Frau"),
        ("de dative", noun("child", "my", "small"), "meinem kleinen Kind"),
        ("de dative", noun("boy", "this", "small"), "diesem kleinen Jungen"),
        ("de dative", noun("horse", "this", "white"), "diesem weißen Pferd"),
        ("de dative", noun("dog", several=True, adjective="old"), "den alten Hunden"),
        ("de dative", noun("bird", "two", "big"), "zwei großen Vögeln"),
        ("de dative", noun("neighbour", "many"), "vielen Nachbarn"),
        ("fr", noun("friend"), "l'ami"),
        ("fr", noun("school"), "l'école"),
        ("fr", noun("man", adjective="old"), "le vieil homme"),
        ("fr", noun("man", several=True, adjective="old"), "les vieux hommes"),
        ("fr", noun("bird", "this"), "cet oiseau"),
        ("fr", noun("bird", "this", "small"), "ce petit oiseau"),
        ("fr", noun("animal", "this", "white"), "cet animal blanc"),
        ("fr", noun("nurse", "my"), "mon infirmière"),
        ("fr", noun("nurse", "my", "young"), "ma jeune infirmière"),
        ("fr", noun("student", "many"), "beaucoup d'étudiants"),
        ("fr", noun("car", "two", "new"), "deux nouvelles voitures"),
        ("fr", noun("picture", "three", "new"), "trois nouveaux tableaux"),
        ("es", noun("dog"), "al perro"),  # the personal "a"
        ("es", noun("woman"), "a la mujer"),
        ("es", noun("horse", "two"), "a dos caballos"),
        ("es", noun("friend", "my", "good"), "a mi buen amigo"),
        ("es", noun("nurse", several=True, adjective="young"), "a las enfermeras jóvenes"),
        ("es", noun("key"), "la llave"),
        ("es", noun("ball", "three", "red"), "tres pelotas rojas"),
        ("ko", noun("book"), "책을"),  # particles follow the final consonant
        ("ko", noun("apple"), "사과를"),
        ("ko", noun("newspaper", "two"), "신문 두 부를"),
    ],
)
def test_articles_adjectives_and_particles_agree(language: str, thing: Features, expected: str) -> None:
    clause, frame = FRAMES[language]
    assert sentence(language.split()[0], *clause, object=thing) == frame.format(expected)


@pytest.mark.parametrize(
    ("language", "verb", "place", "expected"),
    [
        ("fr", "come", place_of("from", "hospital"), "Le garçon vient de l'hôpital."),
        ("fr", "come", place_of("from", "park"), "Le garçon vient du parc."),
        ("fr", "go", place_of("to", "market"), "Le garçon va au marché."),
        ("es", "go", place_of("to", "forest"), "El chico va al bosque."),
        ("es", "go", place_of("to", "beach"), "El chico va a la playa."),
        ("es", "sleep", place_of("near", "garden"), "El chico está durmiendo cerca del jardín."),
        ("ko", "run", place_of("to", "school"), "소년은 학교로 달려가고 있다."),
        ("ko", "run", place_of("to", "station"), "소년은 역으로 달려가고 있다."),
    ],
)
def test_prepositions_contract(language: str, verb: str, place: Features, expected: str) -> None:
    assert sentence(language, BOY, verb, "present", place=place) == expected


def test_no_test_or_development_sentence_is_in_a_training_file(samples: Path) -> None:
    training = set().union(*(sentences(path) for path in samples.iterdir() if ".train." in path.name))
    held_out = [path for path in samples.iterdir() if ".train." not in path.name]
    assert len(held_out) == 6
    for path in held_out:
        assert sentences(path)
        assert training.isdisjoint(sentences(path)), path.name


def test_every_parallel_test_sentence_is_there_once_and_many_have_a_twin_of_the_same_words(samples: Path) -> None:
    tested = rows(samples / "parallel.test.tsv")
    for language in LANGUAGES:
        assert len({row[language] for row in tested}) == SMALL.parallel_test
    bags = Counter(tuple(sorted(row["en"].lower().rstrip(".").split())) for row in tested)
    twins = sum(count for count in bags.values() if count > 1)
    assert twins >= 0.15 * SMALL.parallel_test


def test_a_third_of_the_pairs_has_each_label_and_an_entailed_sentence_adds_no_word(samples: Path) -> None:
    pairs = rows(samples / "nli.train.tsv")
    assert Counter(row["label"] for row in pairs) == {"entailment": 100, "neutral": 100, "contradiction": 100}
    assert all(row["premise"] != row["hypothesis"] for row in pairs)
    for row in (row for row in pairs if row["label"] == "entailment"):
        premise, hypothesis = (
            row[name].lower().rstrip(".").replace(",", "").split() for name in ("premise", "hypothesis")
        )
        assert len(hypothesis) <= len(premise)
        assert set(hypothesis) - set(premise) <= {"person", "people", "animal", "animals"}


def test_similarity_is_the_share_of_what_is_expressed() -> None:
    follows = meaning_of(clause_of(DOG, "follow", "past", object=CAT))  # 3 + 2 + 1, 2 + ½, 2 + ½: 11 in all
    follows_back = meaning_of(clause_of(CAT, "follow", "past", object=DOG))
    animal = meaning_of(clause_of(noun("animal"), "follow", "past", object=CAT))
    denied = meaning_of(clause_of(DOG, "follow", "past", negated=True, object=CAT))
    elsewhere = meaning_of(clause_of(BOY, "sleep", "future"))
    assert similarity(follows, follows) == 5
    assert similarity(follows, follows_back) == round(5 * 6 / 11, 2)
    assert similarity(follows, animal) == round(5 * (6 + 1 + 2.5) / 11, 2)
    assert similarity(follows, denied) == round(5 * 9 / 11, 2)
    assert similarity(follows, elsewhere) == 0


def test_the_multilingual_test_has_the_sentences_of_the_english_one(samples: Path) -> None:
    english, multilingual = rows(samples / "sts.test.tsv"), rows(samples / "sts.multilingual.test.tsv")
    assert [tuple(row.values()) for row in english] == [
        (row["sentence1_en"], row["sentence2_en"], row["score"]) for row in multilingual
    ]


def test_plain_files_are_aligned_line_by_line_and_their_pairs_list_it(tmp_path: Path) -> None:
    counts = write_plain_files(tmp_path, seed=1, sentences=40)
    lines = {name: (tmp_path / name).read_text("utf-8").splitlines() for name in counts}
    assert {name: len(each) - (name == "pairs.tsv") for name, each in lines.items()} == counts
    source = Meanings(1)
    for row, meaning in enumerate(source.new() for _ in range(40)):
        assert [lines[name][row] for name in PLAIN_FILES] == [render(meaning, each) for each in PLAIN_FILES.values()]
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
