"""Sample sentences: checked against ones written by hand, and files against each other."""

import csv
import gzip
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from bertrelay.stage import StageContext
from pipelines.samples.meanings import (
    LANGUAGES,
    Clause,
    Meaning,
    Phrase,
    Place,
    draw_meaning,
    is_sensible,
    kinds,
    render,
    similarity,
    translations,
    verbs,
)
from pipelines.samples.sentences import Source, run, write_plain_files, write_samples
from pipelines.samples.settings import SampleSettings
from pipelines.samples.templates import Rules, load

SMALL = SampleSettings(parallel_train=1200, parallel_test=150, nli=600, sts=600, triplets=300)

DOG, CAT, BOY, OLD_CAT = Phrase("dog"), Phrase("cat"), Phrase("boy"), Phrase("cat", adjective="old")

BY_HAND = [
    (
        Meaning(Clause(DOG, "follow", "past", object=OLD_CAT, place=Place("at", "garden"), time="yesterday")),
        "The dog followed the old cat in the garden yesterday.",
        "Gestern ist der Hund der alten Katze im Garten gefolgt.",
        "Hier, le chien a suivi le vieux chat dans le jardin.",
        "Ayer el perro siguió al gato viejo en el jardín.",
        "개는 어제 정원에서 늙은 고양이를 따라갔다.",
    ),
    (
        Meaning(Clause(OLD_CAT, "follow", "past", object=DOG, place=Place("at", "garden"), time="yesterday")),
        "The old cat followed the dog in the garden yesterday.",
        "Gestern ist die alte Katze dem Hund im Garten gefolgt.",
        "Hier, le vieux chat a suivi le chien dans le jardin.",
        "Ayer el gato viejo siguió al perro en el jardín.",
        "늙은 고양이는 어제 정원에서 개를 따라갔다.",
    ),
    (
        Meaning(
            Clause(
                Phrase("teacher"),
                "give",
                "present",
                object=Phrase("flower", "my", adjective="red"),
                recipient=Phrase("boy", "this"),
            )
        ),
        "The teacher is giving my red flower to this boy.",
        "Der Lehrer gibt diesem Jungen meine rote Blume.",
        "Le professeur donne ma fleur rouge à ce garçon.",
        "El profesor le está dando mi flor roja a este chico.",
        "교사는 이 소년에게 내 빨간 꽃을 주고 있다.",
    ),
    (
        Meaning(Clause(Phrase("woman", several=True), "come", "past", negated=True, place=Place("from", "market"))),
        "The women did not come from the market.",
        "Die Frauen sind nicht vom Markt gekommen.",
        "Les femmes ne sont pas venues du marché.",
        "Las mujeres no vinieron del mercado.",
        "여자들은 시장에서 오지 않았다.",
    ),
    (
        Meaning(
            Clause(
                Phrase("nurse"),
                "call",
                "future",
                object=Phrase("doctor", adjective="old"),
                time="tomorrow",
            ),
            "because",
            Clause(Phrase("child", "this"), "be", "present", state="ill"),
        ),
        "The nurse will call the old doctor tomorrow because this child is ill.",
        "Morgen wird die Krankenschwester den alten Arzt anrufen, weil dieses Kind krank ist.",
        "Demain, l'infirmière appellera le vieux médecin parce que cet enfant est malade.",
        "Mañana la enfermera llamará al médico anciano porque este niño está enfermo.",
        "이 아이가 아프기 때문에 간호사는 내일 나이 든 의사에게 전화할 것이다.",
    ),
    (
        Meaning(
            Clause(Phrase("man"), "read", "past", object=Phrase("book", "two", adjective="old")),
            "while",
            Clause(Phrase("child", "three"), "play", "background", place=Place("near", "school")),
        ),
        "The man read two old books while three children were playing near the school.",
        "Der Mann hat zwei alte Bücher gelesen, während drei Kinder nahe der Schule spielten.",
        "L'homme a lu deux vieux livres pendant que trois enfants jouaient près de l'école.",
        "El hombre leyó dos libros viejos mientras tres niños jugaban cerca de la escuela.",
        "아이 세 명이 학교 근처에서 노는 동안 남자는 오래된 책 두 권을 읽었다.",
    ),
    (
        Meaning(
            Clause(Phrase("girl"), "laugh", "present"),
            "but",
            Clause(Phrase("neighbour", "my"), "sing", "present", negated=True),
        ),
        "The girl is laughing, but my neighbour is not singing.",
        "Das Mädchen lacht, aber mein Nachbar singt nicht.",
        "La fille rit, mais mon voisin ne chante pas.",
        "La chica se está riendo, pero mi vecino no está cantando.",
        "소녀는 웃고 있지만 내 이웃은 노래하고 있지 않다.",
    ),
    (
        Meaning(Clause(Phrase("bird", "many"), "eat", "habit", object=Phrase("apple", "two"), time="often")),
        "Many birds often eat two apples.",
        "Viele Vögel fressen oft zwei Äpfel.",
        "Beaucoup d'oiseaux mangent souvent deux pommes.",
        "Muchos pájaros a menudo comen dos manzanas.",
        "많은 새들이 자주 사과 두 개를 먹는다.",
    ),
    (
        Meaning(Clause(Phrase("cow", several=True), "be", "past", state="ill", time="last week")),
        "The cows were ill last week.",
        "Letzte Woche waren die Kühe krank.",
        "La semaine dernière, les vaches étaient malades.",
        "La semana pasada las vacas estaban enfermas.",
        "소들은 지난주에 아팠다.",
    ),
    (
        Meaning(
            Clause(
                Phrase("farmer", "this"),
                "wait for",
                "habit",
                negated=True,
                object=Phrase("man", adjective="young"),
                place=Place("at", "station"),
                time="on Sundays",
            )
        ),
        "This farmer does not wait for the young man at the station on Sundays.",
        "Sonntags wartet dieser Bauer nicht am Bahnhof auf den jungen Mann.",
        "Le dimanche, ce fermier n'attend pas le jeune homme à la gare.",
        "Los domingos este granjero no espera al hombre joven en la estación.",
        "이 농부는 일요일에 역에서 젊은 남자를 기다리지 않는다.",
    ),
    (
        Meaning(
            Clause(Phrase("girl", "this"), "run", "past", place=Place("to", "park")),
            "and",
            Clause(Phrase("horse", several=True), "go", "past", place=Place("to", "forest")),
        ),
        "This girl ran to the park and the horses went to the forest.",
        "Dieses Mädchen ist in den Park gerannt und die Pferde sind in den Wald gegangen.",
        "Cette fille a couru vers le parc et les chevaux sont allés dans la forêt.",
        "Esta chica corrió hacia el parque y los caballos fueron al bosque.",
        "이 소녀는 공원으로 달려갔고 말들은 숲에 갔다.",
    ),
    (
        Meaning(
            Clause(Phrase("child"), "be", "present", state="sad"),
            "because",
            Clause(Phrase("girl"), "find", "past", negated=True, object=Phrase("ball")),
        ),
        "The child is sad because the girl did not find the ball.",
        "Das Kind ist traurig, weil das Mädchen den Ball nicht gefunden hat.",
        "L'enfant est triste parce que la fille n'a pas trouvé le ballon.",
        "El niño está triste porque la chica no encontró la pelota.",
        "소녀가 공을 발견하지 못했기 때문에 아이는 슬프다.",
    ),
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


def sentence(language: str, *clause: object, **details: object) -> str:
    return render(Meaning(Clause(*clause, **details)), language)


@pytest.mark.parametrize("expected", BY_HAND, ids=lambda item: item[1])
def test_sentences_are_those_written_by_hand(expected: tuple[Meaning, str, str, str, str, str]) -> None:
    meaning, *by_hand = expected
    assert list(translations(meaning)) == by_hand
    assert is_sensible(meaning)


@pytest.mark.parametrize(
    ("phrase", "nominative", "accusative", "dative"),
    [
        (Phrase("man", "my", "kind"), "mein freundlicher Mann", "meinen freundlichen Mann", "meinem freundlichen Mann"),
        (Phrase("woman", "the", "young"), "die junge Frau", "die junge Frau", "der jungen Frau"),
        (Phrase("child", "my", "small"), "mein kleines Kind", "mein kleines Kind", "meinem kleinen Kind"),
        (Phrase("boy", "this", "small"), "dieser kleine Junge", "diesen kleinen Jungen", "diesem kleinen Jungen"),
        (Phrase("horse", "this", "white"), "dieses weiße Pferd", "dieses weiße Pferd", "diesem weißen Pferd"),
        (Phrase("dog", several=True, adjective="old"), "die alten Hunde", "die alten Hunde", "den alten Hunden"),
        (Phrase("bird", "two", "big"), "zwei große Vögel", "zwei große Vögel", "zwei großen Vögeln"),
        (Phrase("neighbour", "many"), "viele Nachbarn", "viele Nachbarn", "vielen Nachbarn"),
    ],
)
def test_german_articles_and_adjectives_show_the_case(
    phrase: Phrase, nominative: str, accusative: str, dative: str
) -> None:
    assert sentence("de", phrase, "sleep", "future").lower().startswith(f"{nominative} w".lower())
    assert sentence("de", CAT, "see", "habit", object=phrase) == f"Die Katze sieht {accusative}."
    assert sentence("de", BOY, "help", "present", object=phrase) == f"Der Junge hilft {dative}."


def test_german_prefix_parts_from_the_verb_in_a_main_clause_only() -> None:
    calls = Clause(Phrase("man"), "call", "present", object=BOY)
    happy = Clause(Phrase("woman"), "be", "present", state="happy")
    assert render(Meaning(calls), "de") == "Der Mann ruft den Jungen an."
    assert render(Meaning(happy, "because", calls), "de").endswith(", weil der Mann den Jungen anruft.")


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        (Phrase("friend"), "l'ami"),
        (Phrase("school"), "l'école"),
        (Phrase("man", adjective="old"), "le vieil homme"),
        (Phrase("man", several=True, adjective="old"), "les vieux hommes"),
        (Phrase("bird", "this"), "cet oiseau"),
        (Phrase("bird", "this", "small"), "ce petit oiseau"),
        (Phrase("animal", "this", "white"), "cet animal blanc"),
        (Phrase("nurse", "my"), "mon infirmière"),
        (Phrase("nurse", "my", "young"), "ma jeune infirmière"),
        (Phrase("student", "many"), "beaucoup d'étudiants"),
        (Phrase("car", "two", "new"), "deux nouvelles voitures"),
        (Phrase("picture", "three", "new"), "trois nouveaux tableaux"),
    ],
)
def test_french_elides_and_agrees(phrase: Phrase, expected: str) -> None:
    assert sentence("fr", CAT, "see", "habit", object=phrase) == f"Le chat voit {expected}."


def test_french_ne_elides_and_prepositions_contract() -> None:
    assert sentence("fr", CAT, "love", "habit", negated=True, object=BOY) == "Le chat n'aime pas le garçon."
    assert sentence("fr", BOY, "come", "present", place=Place("from", "hospital")) == "Le garçon vient de l'hôpital."
    assert sentence("fr", BOY, "come", "present", place=Place("from", "park")) == "Le garçon vient du parc."
    assert sentence("fr", BOY, "go", "present", place=Place("to", "market")) == "Le garçon va au marché."


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        (Phrase("dog"), "al perro"),
        (Phrase("woman"), "a la mujer"),
        (Phrase("horse", "two"), "a dos caballos"),
        (Phrase("friend", "my", "good"), "a mi buen amigo"),
        (Phrase("nurse", several=True, adjective="young"), "a las enfermeras jóvenes"),
        (Phrase("key"), "la llave"),
        (Phrase("ball", "three", "red"), "tres pelotas rojas"),
    ],
)
def test_spanish_has_the_personal_a_before_people_and_animals_only(thing: Phrase, expected: str) -> None:
    assert sentence("es", BOY, "find", "past", object=thing) == f"El chico encontró {expected}."


def test_spanish_prepositions_contract() -> None:
    assert sentence("es", BOY, "go", "past", place=Place("to", "forest")) == "El chico fue al bosque."
    assert sentence("es", BOY, "go", "past", place=Place("to", "beach")) == "El chico fue a la playa."
    assert sentence("es", BOY, "sleep", "past", place=Place("near", "garden")) == "El chico durmió cerca del jardín."


@pytest.mark.parametrize(
    ("subject", "thing", "expected"),
    [
        ("student", "book", "학생은 책을 샀다."),
        ("doctor", "apple", "의사는 사과를 샀다."),
        ("woman", "bread", "여자는 빵을 샀다."),
        ("boy", "bicycle", "소년은 자전거를 샀다."),
    ],
)
def test_korean_particles_follow_the_final_consonant(subject: str, thing: str, expected: str) -> None:
    assert sentence("ko", Phrase(subject), "buy", "past", object=Phrase(thing)) == expected


def test_korean_reason_comes_first_and_its_subject_is_no_topic() -> None:
    for noun, subject in (("boy", "소년이"), ("girl", "소녀가"), ("horse", "말이"), ("bird", "새가")):
        tired = Clause(Phrase(noun), "be", "present", state="tired")
        because = Meaning(Clause(Phrase("man"), "sleep", "present"), "because", tired)
        assert render(because, "ko") == f"{subject} 피곤하기 때문에 남자는 자고 있다."


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_concept_has_its_words(language: str) -> None:
    data, world = load(language), load("world")
    for table, columns in data["columns"].items():
        assert all(len(row) <= len(columns) for row in data[table].values()), table
    known = {table: set(data[table]) for table in ("nouns", "verbs", "times") if table in data}
    known["nouns"] = known.get("nouns", set(kinds())) | data.get("places", {}).keys()
    known["verbs"] |= {"be"} if language == "ko" else set()
    assert set(kinds()) <= known["nouns"]
    assert set(verbs()) <= known["verbs"]
    assert set(world["times"]) <= known.get("times", set(world["times"]))


def test_an_unknown_name_in_a_rule_is_named() -> None:
    with pytest.raises(KeyError, match="expected a feature, a rule or a word, found 'nothing'"):
        Rules("en").value("nothing", {})


def test_every_meaning_has_sentences_of_its_own_in_every_language() -> None:
    source = Source(seed=3)
    drawn = [translations(source.new()) for _ in range(2000)]
    for in_one_language in zip(*drawn, strict=True):
        assert len(set(in_one_language)) == len(drawn)


def test_drawn_meanings_are_sensible_and_short() -> None:
    random = Random(5)
    drawn = [draw_meaning(random) for _ in range(1000)]
    assert all(is_sensible(meaning) for meaning in drawn)
    words = [len(render(meaning, "en").split()) for meaning in drawn]
    assert min(words) >= 3
    assert max(words) <= 20


@pytest.mark.parametrize(
    "clause",
    [
        Clause(Phrase("dog"), "read", "present", object=Phrase("book")),
        Clause(Phrase("girl", "my"), "sleep", "present"),
        Clause(Phrase("bread", several=True), "be", "past", state="ill"),
        Clause(Phrase("man"), "go", "past"),
        Clause(Phrase("man"), "eat", "habit", object=Phrase("cake"), time="often"),
        Clause(Phrase("man"), "sleep", "habit", negated=True, time="always"),
        Clause(Phrase("man"), "sleep", "past", time="tomorrow"),
        Clause(Phrase("man", "two"), "sleep", "past", negated=True),
    ],
)
def test_what_nobody_would_say_is_not_sensible(clause: Clause) -> None:
    assert not is_sensible(Meaning(clause))


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
    assert Counter(row["label"] for row in pairs) == {"entailment": 200, "neutral": 200, "contradiction": 200}
    assert all(row["premise"] != row["hypothesis"] for row in pairs)
    for row in (row for row in pairs if row["label"] == "entailment"):
        premise, hypothesis = (
            row[name].lower().rstrip(".").replace(",", "").split() for name in ("premise", "hypothesis")
        )
        assert len(hypothesis) <= len(premise)
        assert set(hypothesis) - set(premise) <= {"person", "people", "animal", "animals"}


def test_scores_spread_over_their_range(samples: Path) -> None:
    scored = rows(samples / "sts.train.tsv")
    scores = [float(row["score"]) for row in scored]
    assert min(scores) == 0 and max(scores) == 5
    assert all(sum(low <= score <= low + 1 for score in scores) >= 0.05 * len(scores) for low in range(5))
    assert all(
        (score == 5) == (row["sentence1"] == row["sentence2"]) for score, row in zip(scores, scored, strict=True)
    )


def test_similarity_is_the_share_of_what_is_expressed() -> None:
    follows = Meaning(Clause(DOG, "follow", "past", object=CAT))  # 3 + 2 + 1, 2 + ½, 2 + ½: 11 in all
    follows_back = Meaning(Clause(CAT, "follow", "past", object=DOG))
    animal = Meaning(Clause(Phrase("animal"), "follow", "past", object=CAT))
    denied = Meaning(Clause(DOG, "follow", "past", negated=True, object=CAT))
    elsewhere = Meaning(Clause(BOY, "sleep", "future"))
    assert similarity(follows, follows) == 5
    assert similarity(follows, follows_back) == round(5 * 6 / 11, 2)
    assert similarity(follows, animal) == round(5 * (6 + 1 + 2.5) / 11, 2)
    assert similarity(follows, denied) == round(5 * 9 / 11, 2)
    assert similarity(follows, elsewhere) == 0


def test_similarity_is_symmetric_and_five_for_the_same_alone() -> None:
    source = Source(seed=11)
    drawn = [source.new() for _ in range(300)]
    for first, second in pairwise(drawn):
        assert similarity(first, second) == similarity(second, first)
        assert 0 <= similarity(first, second) < 5
        assert similarity(first, first) == 5


def test_the_multilingual_test_has_the_sentences_of_the_english_one(samples: Path) -> None:
    english, multilingual = rows(samples / "sts.test.tsv"), rows(samples / "sts.multilingual.test.tsv")
    assert [tuple(row.values()) for row in english] == [
        (row["sentence1_en"], row["sentence2_en"], row["score"]) for row in multilingual
    ]


def test_the_stage_writes_the_files_and_counts_their_rows(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    settings = SampleSettings(parallel_train=200, parallel_test=20, nli=120, sts=120, triplets=100)
    metrics = run(settings, StageContext(output=tmp_path / "out", cache=tmp_path / "cache"))
    assert metrics["sentences/parallel.train"] == 200.0
    assert metrics["sentences/sts.test"] == 20.0
    for name, count in metrics.items():
        part = name.removeprefix("sentences/")
        file = next((tmp_path / "out").glob(f"{part}.tsv*"))
        assert len(rows(file)) == count


def test_plain_files_are_aligned_line_by_line_and_their_pairs_list_it(tmp_path: Path) -> None:
    counts = write_plain_files(tmp_path, seed=1)
    written = write_samples(tmp_path, SampleSettings(seed=1, parallel_test=20, parallel_train=100, nli=100, sts=100))
    lines = {name: (tmp_path / name).read_text("utf-8").splitlines() for name in counts}
    assert {name: len(each) - (name == "pairs.tsv") for name, each in lines.items()} == counts
    assert not counts.keys() & written.keys()
    tested = rows(tmp_path / "parallel.test.tsv")  # the first sentences of the same seed
    for name, language in {"english.txt": "en", "german.txt": "de", "korean.txt": "ko"}.items():
        assert lines[name][: len(tested)] == [row[language] for row in tested]
    assert lines["questions.txt"] == lines["english.txt"][:20]
    assert lines["pairs.tsv"][:2] == ["source_line\ttarget_line", "1\t1"]
