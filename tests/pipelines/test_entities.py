import re
from collections import Counter
from itertools import pairwise

import pytest

from bertrelay.stage import StageContext
from domain.biomedical.documents import read_documents
from domain.biomedical.documents.document import Document, Entity
from pipelines.samples.papers import (
    WELL_KNOWN,
    Abstracts,
    draw_documents,
    find_names,
    lookup_metrics,
    names_of,
    run_entities,
)
from pipelines.samples.settings import EntitySettings


def drawn(seed, count):
    abstracts = Abstracts(seed)
    return [abstracts.document(f"abstract-{number}") for number in range(count)]


@pytest.fixture(scope="module")
def documents():
    return drawn(7, 200)


def mentions(documents):
    return [
        (document.text[entity.start : entity.end], entity.type)
        for document in documents
        for entity in document.entities
    ]


def test_every_entity_is_whole_words_and_none_overlaps_another(documents):
    for document in documents:
        starts, ends = ({span[side] for sentence in document.sentences for span in sentence} for side in (0, 1))
        assert all(entity.start in starts and entity.end in ends for entity in document.entities)
        assert all(first.end < second.start for first, second in pairwise(document.entities))
        assert not re.search(r"[{}]", document.text)


def test_words_and_passages_cover_the_text(documents):
    for document in documents:
        title, abstract = document.passages
        assert (title.start, title.end + 1, abstract.end) == (0, abstract.start, len(document.text))
        joined = "".join(document.text[start:end] for sentence in document.sentences for start, end in sentence)
        assert joined == document.text.replace(" ", "")
        assert document.sentences[0][-1][1] == title.end


def test_all_three_types_are_frequent_and_half_of_the_names_are_new(documents):
    train, test = documents[:150], documents[150:]
    known = set(mentions(train))
    share = Counter(mention in known for mention in mentions(test))
    assert 0.35 < share[True] / share.total() < 0.65
    assert min(Counter(kind for _, kind in mentions(documents)).values()) > 500


def test_no_sentence_stands_in_two_abstracts(documents):
    sentences = [
        document.text[sentence[0][0] : sentence[-1][1]] for document in documents for sentence in document.sentences
    ]
    assert len(set(sentences)) == len(sentences)


def test_a_word_is_an_entity_in_one_sentence_and_none_in_another(documents):
    named = {text.lower() for text, _ in mentions(documents)}
    outside = Counter()
    for document in documents:
        inside = {place for entity in document.entities for place in range(entity.start, entity.end)}
        outside.update(found[0].lower() for found in re.finditer(r"\w+", document.text) if found.start() not in inside)
    assert {word for word in ("lead", "gold", "cold", "depression", "iron") if outside[word]} <= named
    symbols = {word for word in outside if re.fullmatch(r"[bdkpr]{2,3}\d?", word)}
    assert len(symbols & named) > 10  # cell lines and trials that are called as some gene is


def test_an_abbreviation_is_introduced_before_it_is_used_alone(documents):
    introduced = 0
    for document in documents:
        for first, second in pairwise(document.entities):
            if document.text[first.end : second.start] == " (" and document.text[second.end] == ")":
                introduced += 1
                short = document.text[second.start : second.end]
                assert [word[0].upper() for word in document.text[first.start : first.end].split()] == list(short)
    assert introduced > 50


def test_names_coined_for_an_abstract_stay_in_it(documents):
    homes = {}
    for number, document in enumerate(documents):
        for text, _ in mentions([document]):
            if len(text) > 8:
                homes.setdefault(text.lower(), set()).add(number)
    in_one = sum(len(found) == 1 for found in homes.values())
    assert len(homes) - in_one < 3 * WELL_KNOWN + 20
    assert in_one > 400


def marked(text, *entities):
    words = tuple((found.start(), found.end()) for found in re.finditer(r"\w+", text))
    found = tuple(Entity(text.index(name), text.index(name) + len(name), kind) for name, kind in entities)
    return Document("x", text, found, sentences=(words,))


def test_a_lookup_marks_the_longest_names_it_knows_and_nothing_else():
    train = [
        marked("renal gout and fever", ("renal gout", "Disease"), ("fever", "Disease")),
        marked("lead harms", ("lead", "Chemical")),
    ]
    test = [
        marked("Renal gout may lead to fever in ABC", ("Renal gout", "Disease"), ("ABC", "Gene"), ("fever", "Disease"))
    ]
    assert set(find_names(names_of(train), test[0])) == {
        (0, 10, "Disease"),
        (15, 19, "Chemical"),
        (23, 28, "Disease"),
    }
    figures = lookup_metrics(train, test)  # 2 right of 3 marked and 3 gold
    assert figures == pytest.approx({"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3})


def test_names_alone_do_not_get_far(documents):
    figures = lookup_metrics(documents[:150], documents[150:])
    assert 0.3 < figures["f1"] < 0.65


def test_the_files_hold_what_was_drawn(tmp_path):
    settings = EntitySettings(train=12, dev=5, test=6)
    metrics = run_entities(settings, StageContext(tmp_path, tmp_path))
    assert metrics["documents/train"] == 12.0
    parts = draw_documents(settings)
    for part, documents in parts.items():
        read_back = list(read_documents(tmp_path / f"entities.{part}.jsonl"))
        assert [(d.text, d.entities) for d in read_back] == [(d.text, d.entities) for d in documents]
        tagged = list(read_documents(tmp_path / f"entities.{part}.tsv"))
        names = [document.text[e.start : e.end].replace(" ", "") for document in tagged for e in document.entities]
        assert names == [text.replace(" ", "") for text, _ in mentions(documents)]
    pubtator = list(read_documents(tmp_path / "entities.test.pubtator"))
    assert [(d.text, d.entities, d.passages) for d in pubtator] == [
        (d.text, d.entities, d.passages) for d in parts["test"]
    ]
