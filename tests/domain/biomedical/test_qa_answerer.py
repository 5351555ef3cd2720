"""`QuestionAnswerer`: answers in Python, and the sentence around each."""

from dataclasses import replace

import pytest
import torch
from asked_texts import start_answerer

from bertrelay.errors import RequestError
from domain.biomedical import QuestionAnswerer
from domain.biomedical.qa.answerer import _around
from domain.biomedical.qa.model import save_model
from domain.sentences import sentence_spans

CONTEXT = "The patient had mild asthma. After a course of insulin no flu was seen.\n\nGout and migraine in the patient."
LONG = " ".join([CONTEXT] * 12)
QUESTIONS = ["Was gout seen?", "What had the patient?", "after what?"]


@pytest.fixture(scope="module")
def folder(tiny_bert, tmp_path_factory):
    path = tmp_path_factory.mktemp("answers")
    model = start_answerer(tiny_bert, max_tokens=40, stride=10, max_answer_tokens=6, seed=3)
    torch.nn.init.normal_(model.network.network.qa_outputs.weight, std=0.5)
    save_model(model, path)
    return path


@pytest.fixture(scope="module")
def answerer(folder):
    return QuestionAnswerer.load(folder)


def told(replies):
    return [[candidate[:3] for candidate in reply.nbest] for reply in replies]


def test_an_answer_is_the_text_at_its_offsets_in_a_sentence_of_the_context(answerer):
    for question in QUESTIONS:
        reply = answerer(question, LONG, precision="fp32")
        assert reply.answer == LONG[reply.start : reply.end] != ""
        assert reply.answer in reply.sentence in LONG
        assert len(reply.nbest) == 5
        assert sorted((each.probability for each in reply.nbest), reverse=True) == [c.probability for c in reply.nbest]
        assert 0 < reply.probability <= 1


def test_many_are_answered_as_each_alone(answerer):
    asked = [(question, context) for context in (CONTEXT, LONG, "gout") for question in QUESTIONS]
    together = list(answerer.pipe(iter(asked), precision="fp32"))
    alone = [answerer(*each, precision="fp32") for each in asked]
    assert told(together) == told(alone)
    assert [reply.sentence for reply in together] == [reply.sentence for reply in alone]
    assert told(answerer(asked, precision="fp32")) == told(alone)
    assert told([answerer(*asked[0], precision="fp32")]) == told(alone[:1])
    for stream in (answerer(iter(asked), precision="fp32"), answerer.pipe(asked, batch_size=2, precision="fp32")):
        assert told([next(stream)]) == told(alone[:1]) and told(stream) == told(alone[1:])
    with pytest.raises(RequestError, match="position 3"):
        list(answerer.pipe([*asked[:3], ("", "context")], batch_size=2))
    with pytest.raises(RequestError, match="give both"):
        answerer("Was gout seen?")


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ((4, 11), "The patient had mild asthma."),
        ((16, 28), "The patient had mild asthma."),
        ((21, 34), "The patient had mild asthma. After a course of insulin no flu was seen."),
        ((73, 77), "Gout and migraine in the patient."),
    ],
)
def test_the_sentence_is_all_that_the_answer_is_in(found, sentence):
    assert _around(*found, CONTEXT, sentence_spans(CONTEXT)) == sentence


def test_no_answer_has_neither_text_nor_place(answerer):
    model = replace(answerer.model, threshold=-1e6)
    reply = QuestionAnswerer(model)("Was gout seen?", CONTEXT, top=3)
    assert (reply.answer, reply.start, reply.end, reply.sentence) == ("", None, None, "")
    assert reply.probability > 0.99
    assert len(reply.nbest) == 3
    assert all(other.text == CONTEXT[other.start : other.end] != "" for other in reply.nbest[1:])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([("gout?", "gout"), (" ", "gout")], "expected a question, found an empty one at position 1"),
        ([("gout?", "\n")], "expected a context, found an empty one at position 0"),
        ([("gout?", None)], "answer: expected text, found NoneType at position 0"),
        ([("gout?", "a \ud800")], "answer: .*half of a surrogate pair at character 2 of the text at position 0"),
        ([("\ud800", "gout")], "answer: .*half of a surrogate pair at character 0 of the text at position 0"),
        (["ab"], r"answer: expected two texts, \(first, second\), found another thing at position 0"),
        ("ab", "answer: expected a list of pairs of texts, found one string"),
        (None, "answer: expected a list of pairs of texts, found NoneType"),
        ([("was the patient given insulin " * 9, LONG)], "'0'.*too long.*[Ss]horten it"),
    ],
)
def test_what_cannot_be_asked_is_told_with_its_position(answerer, asked, message):
    with pytest.raises(RequestError, match=message):
        list(answerer.pipe(asked))


@pytest.mark.parametrize("top", [0, 21])
def test_no_candidates_and_more_than_are_kept_are_refused(answerer, top):
    with pytest.raises(RequestError, match=f"top: expected 1 to 20 candidates, found {top}"):
        answerer("gout?", "gout", top=top)
    assert len(answerer("gout?", LONG, top=20).nbest) == 20


def test_a_bert_without_a_head_for_answers_is_told(tiny_bert):
    with pytest.raises(RequestError, match=r"expected one that answers questions, found none in .*domain\.qa"):
        QuestionAnswerer.load(tiny_bert)
