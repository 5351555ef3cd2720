"""Made-up questions: where their answers stand, and that none can be answered where none should be."""

import re
from collections import Counter
from random import Random

import pytest

from bertrelay.stage import StageContext
from domain.biomedical.qa.question_files import read_questions
from pipelines.samples.papers import (
    Abstracts,
    Part,
    Sentence,
    article,
    draw_documents,
    marked,
    questions_of,
    run_questions,
)
from pipelines.samples.settings import EntitySettings, QuestionSettings

ASKED = questions_of()
SMALL = QuestionSettings(train=120, dev=20, test=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions")
    run_questions(SMALL, StageContext(path, path))
    return path


@pytest.fixture(scope="module")
def questions(folder):
    return list(read_questions(folder / "questions.train.json"))


def test_every_answer_stands_at_its_offset(questions):
    assert {note for question in questions for note in question.notes} == {"in place"}
    assert all(bool(question.answers) != question.impossible for question in questions)


def test_answers_stand_at_the_beginning_in_the_middle_and_at_the_end(questions):
    tenths = Counter(10 * answer.start // len(q.context) for q in questions for answer in q.answers[:1])
    assert min(tenths[tenth] for tenth in range(10)) >= 5


def test_some_have_no_answer_and_some_have_several_golds(questions):
    share = Counter("none" if q.impossible else "several" if len(q.answers) > 1 else "one" for q in questions)
    assert min(share.values()) > len(questions) // 20


def test_contexts_are_short_and_long(questions):
    words = [len(question.context.split()) for question in questions]
    assert min(words) < 30
    assert max(words) > 120


def test_an_impossible_question_asks_of_a_sentence_that_is_not_there():
    abstracts, random = Abstracts(3), Random(3)
    for number in range(200):
        abstract = abstracts.next()
        (paragraph,) = article(str(number), abstract, random)["paragraphs"]
        present = {sentence.template for sentence in abstract.sentences if sentence.text in paragraph["context"]}
        for asked in paragraph["qas"]:
            kinds = {template for template, known in ASKED.items() if any(asks(q[0], asked["question"]) for q in known)}
            assert bool(kinds & present) != asked["is_impossible"]


def asks(template, question):
    """Whether `question` is `template` with names in the place of its roles."""
    return re.fullmatch(re.sub(r"\\\{\w+\\\}", ".+", re.escape(template)), question) is not None


def test_the_contexts_are_sentences_of_the_entities_abstracts(folder):
    texts = {d.id: d.text for d in draw_documents(EntitySettings(train=120, dev=20, test=30))["test"]}
    asked = list(read_questions(folder / "questions.test.json"))
    assert {question.document for question in asked} <= texts.keys()
    assert all(question.context in texts[question.document] for question in asked)


def test_every_part_that_answers_stands_in_its_template():
    for template, asked in ASKED.items():
        for question, *parts in asked:
            assert parts
            assert question.endswith("?")
            assert all(part.lower() in template.lower() for part in parts)


def test_an_answer_is_marked_by_hand_as_it_is_by_the_template():
    names = [[Part("P76", "Gene")], [Part("renal corlo fibrosis"), Part(" ("), Part("RCF"), Part(")")]]
    pieces = [[Part("")], names[0], [Part(" causes ")], names[1], [Part(" in "), Part("12"), Part(" %.")]]
    sentence = Sentence("{Gene} causes {disease} in 12 %.", pieces)
    assert sentence.text == "P76 causes renal corlo fibrosis (RCF) in 12 %."
    assert list(marked(sentence, "{gene}")) == [(0, "P76")]
    assert list(marked(sentence, "{disease}")) == [(11, "renal corlo fibrosis"), (11, "renal corlo fibrosis (RCF)")]
    assert list(marked(sentence, "12 %")) == [(41, "12 %")]
    assert list(marked(sentence, "{gene} causes")) == [(0, "P76 causes")]
