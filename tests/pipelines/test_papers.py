"""Synthetic papers: abstracts about one subject, the offsets of entities and answers, and questions without one."""

import re
from itertools import pairwise
from random import Random

import pytest

from bertrelay.cache import Cache
from bertrelay.stage import StageContext
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.documents.formats import read_documents
from domain.biomedical.qa.question_files import QuestionPath, question_items, read_questions
from pipelines.recipe.steps import read_recipe
from pipelines.recipe.text import built_in_names
from pipelines.registry import REGISTRY
from pipelines.samples.papers import (
    Abstracts,
    Sentence,
    answer_spans,
    article,
    as_document,
    draw_documents,
    lookup_metrics,
    questions_of,
    run_bioasq,
    run_entities,
    run_questions,
)
from pipelines.samples.settings import BioasqSampleSettings, EntitySettings, QuestionSettings

QUESTIONS = questions_of()


@pytest.fixture(scope="module")
def documents():
    abstracts = Abstracts(7)
    return [as_document(f"abstract-{number}", abstracts.next()) for number in range(200)]


def mentions(documents):
    return [(document.text[e.start : e.end], e.type) for document in documents for e in document.entities]


def test_entities_are_whole_words_apart_and_words_and_passages_cover_the_text(documents):
    for document in documents:
        starts, ends = ({span[side] for sentence in document.sentences for span in sentence} for side in (0, 1))
        assert all(entity.start in starts and entity.end in ends for entity in document.entities)
        assert all(first.end < second.start for first, second in pairwise(document.entities))
        title, abstract = document.passages
        assert (title.start, title.end + 1, abstract.end) == (0, abstract.start, len(document.text))
        joined = "".join(document.text[start:end] for sentence in document.sentences for start, end in sentence)
        assert joined == document.text.replace(" ", "")
        assert document.sentences[0][-1][1] == title.end
        assert not re.search(r"[{}]", document.text)


def marked(text, *entities):
    return Document("x", text, tuple(Entity(text.index(n), text.index(n) + len(n), kind) for n, kind in entities))


def test_a_lookup_marks_the_longest_names_it_knows_and_nothing_else():
    train = [
        marked("renal gout and fever", ("renal gout", "Disease"), ("fever", "Disease")),
        marked("gout", ("gout", "Chemical")),
        marked("lead harms", ("lead", "Chemical")),
    ]
    test = [
        marked("Renal gout may lead to fever in ABC", ("Renal gout", "Disease"), ("ABC", "Gene"), ("fever", "Disease"))
    ]
    metrics = lookup_metrics(train, test)  # 2 right of 3 marked, "lead" being no chemical here, and of 3 gold
    assert metrics == pytest.approx({"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3})


def test_the_files_hold_what_was_drawn(tmp_path):
    settings = EntitySettings(train=12, dev=5, test=6)
    metrics = run_entities(settings, StageContext(tmp_path, Cache(tmp_path)))
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions")
    run_questions(QuestionSettings(train=120, dev=20, test=30), StageContext(path, Cache(path)))
    return path


def test_every_answer_stands_at_its_offset(folder):
    questions = list(read_questions(folder / "questions.train.json"))
    assert {note for question in questions for note in question.notes} == {"in place"}
    assert all(bool(question.answers) != question.impossible for question in questions)


def test_an_impossible_question_asks_of_a_sentence_that_is_not_there():
    abstracts, random = Abstracts(3), Random(3)
    for number in range(100):
        abstract = abstracts.next()
        (paragraph,) = article(str(number), abstract, random)["paragraphs"]
        present = {sentence.template for sentence in abstract.sentences if sentence.text in paragraph["context"]}
        for asked in paragraph["qas"]:
            kinds = {
                template for template, known in QUESTIONS.items() if any(asks(q[0], asked["question"]) for q in known)
            }
            assert bool(kinds & present) != asked["is_impossible"]


def asks(template, question):
    """Whether `question` is `template` with names in the place of its roles."""
    return re.fullmatch(re.sub(r"\\\{\w+\\\}", ".+", re.escape(template)), question) is not None


def test_an_answer_is_marked_by_hand_as_it_is_by_the_template():
    text = "P76 causes renal corlo fibrosis (RCF) in 12 %."
    roles = {"Gene": "P76", "disease": "renal corlo fibrosis (RCF)"}
    sentence = Sentence(text, [], "{Gene} causes {disease} in 12 %.", roles)
    assert list(answer_spans(sentence, "{gene}")) == [(0, "P76")]
    assert list(answer_spans(sentence, "{disease}")) == [
        (11, "renal corlo fibrosis"),
        (11, "renal corlo fibrosis (RCF)"),
    ]
    assert list(answer_spans(sentence, "12 %")) == [(41, "12 %")]
    assert list(answer_spans(sentence, "{gene} causes")) == [(0, "P76 causes")]


def test_questions_of_bioasq_are_answered_in_their_snippets(tmp_path):
    settings = BioasqSampleSettings(train=40, dev=5, test=5)
    counts = run_bioasq(settings, StageContext(tmp_path, Cache(tmp_path)))
    questions = list(question_items(QuestionPath(tmp_path / "bioasq.train.json", types=["factoid", "list", "yesno"])))
    assert len({question.pool for question in questions}) == counts["questions/train"]
    assert {question.yes for question in questions if question.answer_type == "yesno"} == {True, False}
    assert {len(question.synonyms) for question in questions if question.answer_type == "list"} == {2}
    assert {len(question.synonyms) for question in questions if question.answer_type == "factoid"} == {1}
    assert not any("not found" in question.notes for question in questions)


@pytest.mark.parametrize("name", built_in_names())
def test_every_built_in_recipe_is_valid(name):
    required = {"own-text": ["vars.parallel=.", "vars.language=ko"], "own-search": ["vars.folder=."]}
    assert read_recipe(name, REGISTRY, required.get(name, [])).steps
