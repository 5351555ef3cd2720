"""Answers of a model against transformers' network, and `QuestionAnswerer`."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic_questions import Found, ask, find_answers, many, start_answerer

from bertrelay.errors import RequestError
from domain.biomedical import QuestionAnswerer
from domain.biomedical.qa.predict import sentences_around
from domain.biomedical.qa.subwords import _inside_words
from domain.text.sentences import sentence_spans


@pytest.fixture(scope="module")
def model(tiny_bert):
    started = start_answerer(tiny_bert, max_tokens=24, overlap=16, max_answer_tokens=4)
    torch.nn.init.normal_(started.network.network.qa_outputs.weight, generator=torch.Generator().manual_seed(0))
    started.network.eval()
    return replace(started, threshold=0.5, temperature=2.0)


def queries(count, seed=0):
    """Questions to texts of many lengths, several of which are asked of one text."""
    drawn = [question for words in (0, 5, 20, 60) for question in many(count // 4, seed + words, words=words)]
    contexts = [drawn[number - number % 2].context for number in range(len(drawn))]
    return [ask(question.question, context, question.id) for question, context in zip(drawn, contexts, strict=True)]


def near(one, other):
    spans = [[candidate[:2] for candidate in candidates] for candidates in (one, other)]
    numbers = [np.array([candidate[2:] for candidate in candidates]) for candidates in (one, other)]
    return spans[0] == spans[1] and np.allclose(*numbers, rtol=1e-4, atol=1e-4)


def test_a_stream_gives_what_each_question_gives_alone(model):
    questions = queries(24)
    together = list(find_answers(model, iter(questions), precision="fp32"))
    in_blocks = list(find_answers(model, questions, precision="fp32", block_characters=300, batch_tokens=64))
    assert len(together) == len(in_blocks) == len(questions)
    assert len({candidates[0][:2] for candidates in together}) > 5
    for question, candidates, other in zip(questions, together, in_blocks, strict=True):
        (alone,) = find_answers(model, [question], precision="fp32")
        assert near(candidates, alone)
        assert near(candidates, other)


def test_answers_are_those_of_a_walk_over_the_windows_with_transformers_network(model):
    question = max(queries(24), key=lambda question: len(question.context))
    theirs = model.network.network
    encoded = model.tokenizer(question.context, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    asked_ids = model.tokenizer(question.question, add_special_tokens=False)["input_ids"]
    space, cls, sep = 24 - 3 - len(asked_ids), model.tokenizer.cls_token_id, model.tokenizer.sep_token_id
    starts = [start for start in range(0, len(ids), 8) if start < len(ids) - space] + [len(ids) - space]
    scores = {}
    nulls = []
    for start in starts:
        before = [cls, *asked_ids, sep]
        row = torch.tensor([[*before, *ids[start : start + space], sep]])
        types = torch.tensor([[0] * len(before) + [1] * (space + 1)])
        with torch.inference_mode():
            out = theirs(input_ids=row, token_type_ids=types)
        first, last = out.start_logits[0].tolist(), out.end_logits[0].tolist()
        nulls.append(first[0] + last[0])
        for begin in range(space):
            for end in range(begin, min(begin + 4, space)):
                span = (offsets[start + begin][0], offsets[start + end][1])
                total = first[len(before) + begin] + last[len(before) + end]
                scores[span] = max(total, scores.get(span, -np.inf))
    ranked = sorted([*((score, *span) for span, score in scores.items())], reverse=True)[:20]
    ranked = sorted([*ranked, (min(nulls) - 0.5, -1, -1)], reverse=True)
    weights = np.exp([score / 2.0 for score, _, _ in ranked])
    (candidates,) = find_answers(model, [question], top=21, precision="fp32")
    expected = [
        Found(start, end, score, weight)
        for (score, start, end), weight in zip(ranked, weights / weights.sum(), strict=True)
    ]
    assert near(candidates, expected)
    assert len(starts) > 3


@pytest.mark.parametrize("context", ["", " \t\n", "\x01"])
def test_a_text_without_a_subword_has_no_answer(model, context):
    assert next(find_answers(model, [ask("mild", context)], precision="fp32")) == [Found(-1, -1, 0.0, 1.0)]


LETTERS = re.compile(r"[^\W_]")


def ends_inside_a_word(text, end):
    return 0 < end < len(text) and all(map(LETTERS.match, text[end - 1 : end + 1]))


def test_answers_begin_and_end_with_words_unless_parts_are_asked_for(model, monkeypatch):
    for module in ("predict", "spans"):
        monkeypatch.setattr(f"domain.biomedical.qa.{module}.CANDIDATES", 1000)
    context = "The patients had fluxes, asthmatic seenmild-gouty sign; inno 5mildly, of amid courses"
    model = replace(model, max_answer_tokens=12)

    def inside(whole_words):
        chosen = replace(model, whole_words=whole_words)
        (candidates,) = find_answers(chosen, [ask("mild", context)], top=1000, precision="fp32")
        spans = [(candidate.start, candidate.end) for candidate in candidates if candidate.start >= 0]
        assert len(spans) > 10
        return [span for span in spans if any(ends_inside_a_word(context, end) for end in span)]

    assert model.whole_words
    assert not inside(whole_words=True)
    assert inside(whole_words=False)


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("", []),
        ("ab c", [1]),
        ("COX-2a", [1, 2, 5]),
        ("e\u0301t\u00e9", [1, 2, 3]),
        ("𝒜b", [1]),
        ("患者は流感", []),
        ("환자는", []),
        ("p53の", [1, 2]),
    ],
)
def test_words_are_of_scripts_that_have_spaces(text, inside):
    inside_words = _inside_words(text)
    assert len(inside_words) == len(text) + 1
    assert np.flatnonzero(inside_words).tolist() == inside


def test_characters_are_those_of_the_text_whatever_it_holds(model, monkeypatch):
    for module in ("predict", "spans"):
        monkeypatch.setattr(f"domain.biomedical.qa.{module}.CANDIDATES", 200)
    context = "  𝒳 the\u2003patient\r\nİof\u0301 gout — “no”\u00a0sign 👩\u200d🔬 flu \x02 "
    (candidates,) = find_answers(model, [ask("mild", context)], top=200, precision="fp32")
    spans = {(candidate.start, candidate.end) for candidate in candidates if candidate.start >= 0}
    for word in ("the", "patient", "gout", "flu", "sign"):
        start = context.index(word)
        assert any(span == (start, start + len(word)) for span in spans)
    for start, end in spans:
        assert 0 <= start < end <= len(context)
        assert context[start:end] == context[start:end].strip()


CONTEXT = "The patient had mild asthma. After a course of insulin no flu was seen.\n\nGout and migraine in the patient."
LONG = " ".join([CONTEXT] * 12)
QUESTIONS = ["Was gout seen?", "What had the patient?", "after what?"]


@pytest.fixture(scope="module")
def answerer(model):
    return QuestionAnswerer(replace(model, threshold=None))


def test_many_are_answered_as_each_alone(answerer):
    def offsets_of(replies):
        return [(reply.sentence, [candidate[:3] for candidate in reply.nbest]) for reply in replies]

    pairs = [(question, context) for context in (CONTEXT, LONG, "gout") for question in QUESTIONS]
    alone = offsets_of(answerer(*pair, precision="fp32") for pair in pairs)
    assert offsets_of(answerer(pairs, precision="fp32")) == alone
    of_one = [question for question, _ in pairs]
    assert offsets_of(answerer(of_one, LONG, precision="fp32")) == offsets_of(
        answerer([(question, LONG) for question in of_one], precision="fp32")
    )
    for stream in (answerer(iter(pairs), precision="fp32"), answerer.pipe(pairs, batch_size=2, precision="fp32")):
        assert offsets_of([next(stream)]) == alone[:1] and offsets_of(stream) == alone[1:]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((4, 11), "The patient had mild asthma."),
        ((16, 28), "The patient had mild asthma."),
        ((21, 34), "The patient had mild asthma. After a course of insulin no flu was seen."),
        ((73, 77), "Gout and migraine in the patient."),
    ],
)
def test_the_sentence_is_all_that_the_answer_is_in(answer, sentence):
    assert sentences_around(*answer, CONTEXT, sentence_spans(CONTEXT)) == sentence


def test_an_answer_is_the_text_at_its_offsets_in_a_sentence_of_the_context(answerer):
    for question in QUESTIONS:
        reply = answerer(question, LONG, precision="fp32")
        assert reply.answer == LONG[reply.start : reply.end] != ""
        assert reply.answer in reply.sentence in LONG
        probabilities = [candidate.probability for candidate in reply.nbest]
        assert len(probabilities) == 5
        assert 1 >= reply.probability == probabilities[0] and sorted(probabilities, reverse=True) == probabilities
    assert len(answerer("gout?", LONG, top=20).nbest) == 20


def test_no_answer_has_neither_text_nor_place(model):
    reply = QuestionAnswerer(replace(model, threshold=-1e6))("Was gout seen?", CONTEXT, top=3)
    assert (reply.answer, reply.start, reply.end, reply.sentence) == ("", None, None, "")
    assert reply.probability > 0.99
    assert len(reply.nbest) == 3
    assert all(other.text == CONTEXT[other.start : other.end] != "" for other in reply.nbest[1:])


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([("gout?", "gout"), (" ", "gout")], "expected a question, found an empty one at position 1"),
        ([("gout?", "\n")], "expected a context, found an empty one at position 0"),
        ([("gout?", None)], "answer: expected text, found NoneType at position 0"),
        ("ab", "answer: expected a list of pairs of texts, found one string"),
        ([("gout?", "gout"), ("was the patient given insulin " * 9, LONG)], "question '1': too long.*[Ss]horten it"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_position(answerer, questions, message):
    with pytest.raises(RequestError, match=message):
        list(answerer.pipe(questions))
    with pytest.raises(RequestError, match="give both"):
        answerer("Was gout seen?")
    with pytest.raises(RequestError, match="questions of the context: expected text, found tuple at position 0"):
        answerer([("gout?", "gout")], "another")
    for top in (0, 21):
        with pytest.raises(RequestError, match=f"top: expected 1 to 20 candidates, found {top}"):
            answerer("gout?", "gout", top=top)
