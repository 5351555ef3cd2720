"""Streams of questions beside one question at a time, and beside transformers' own network window by window."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from asked_texts import Found, ask, find_answers, many, start_answerer

from bertrelay.errors import RequestError
from domain.biomedical.qa import answerer as answering
from domain.biomedical.qa.answerer import QuestionAnswerer
from domain.biomedical.qa.model import AnswerModel
from domain.biomedical.qa.questions import Question
from domain.biomedical.qa.subwords import PairSplitter, _inside_words


@pytest.fixture(scope="module")
def model(tiny_bert: Path) -> AnswerModel:
    found = start_answerer(tiny_bert, max_tokens=24, stride=8, max_answer_tokens=4)
    torch.nn.init.normal_(found.network.network.qa_outputs.weight, generator=torch.Generator().manual_seed(0))
    found.network.eval()
    return replace(found, threshold=0.5, temperature=2.0)


def asked(count: int, seed: int = 0) -> list[Question]:
    """Questions to texts of many lengths, several of which are asked of one text."""
    drawn = [each for words in (0, 5, 20, 60) for each in many(count // 4, seed + words, words=words)]
    return [ask(each.question, drawn[number - number % 2].context, each.id) for number, each in enumerate(drawn)]


def near(one: list[Found], other: list[Found]) -> bool:
    places = [[each[:2] for each in found] for found in (one, other)]
    numbers = [np.array([each[2:] for each in found]) for found in (one, other)]
    return places[0] == places[1] and np.allclose(*numbers, rtol=1e-4, atol=1e-4)


def test_a_stream_gives_what_each_question_gives_alone(model: AnswerModel) -> None:
    questions = asked(24)
    together = list(find_answers(model, iter(questions), precision="fp32"))
    in_blocks = list(find_answers(model, questions, precision="fp32", block_characters=300, batch_tokens=64))
    assert len(together) == len(in_blocks) == len(questions)
    assert len({found[0][:2] for found in together}) > 5
    for question, found, other in zip(questions, together, in_blocks, strict=True):
        (alone,) = find_answers(model, [question], precision="fp32")
        assert near(found, alone)
        assert near(found, other)


def test_answers_are_those_of_a_walk_over_the_windows_with_transformers_network(model: AnswerModel) -> None:
    question = max(asked(24), key=lambda each: len(each.context))
    theirs = model.network.network
    encoded = model.tokenizer(question.context, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    asked_ids = model.tokenizer(question.question, add_special_tokens=False)["input_ids"]
    space, cls, sep = 24 - 3 - len(asked_ids), model.tokenizer.cls_token_id, model.tokenizer.sep_token_id
    starts = [start for start in range(0, len(ids), 8) if start < len(ids) - space] + [len(ids) - space]
    scores: dict[tuple[int, int], float] = {}
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
                place = (offsets[start + begin][0], offsets[start + end][1])
                total = first[len(before) + begin] + last[len(before) + end]
                scores[place] = max(total, scores.get(place, -np.inf))
    ranked = sorted([*((score, *place) for place, score in scores.items())], reverse=True)[:20]
    ranked = sorted([*ranked, (min(nulls) - 0.5, -1, -1)], reverse=True)
    weights = np.exp([score / 2.0 for score, _, _ in ranked])
    (found,) = find_answers(model, [question], top=21, precision="fp32")
    expected = [
        Found(start, end, score, weight)
        for (score, start, end), weight in zip(ranked, weights / weights.sum(), strict=True)
    ]
    assert near(found, expected)
    assert len(starts) > 3


def test_a_text_of_many_questions_is_cut_once(model: AnswerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[str] = []
    texts = PairSplitter._texts

    def noted(self: PairSplitter, given: list[str]) -> object:
        cut.extend(given)
        return texts(self, given)

    monkeypatch.setattr(PairSplitter, "_texts", noted)
    context = many(1, 1)[0].context
    list(find_answers(model, [ask(str(number), context) for number in range(14)], precision="fp32"))
    assert cut.count(context) == 1


@pytest.mark.parametrize("context", ["", " \t\n", "\x01"])
def test_a_text_without_a_piece_has_no_answer(model: AnswerModel, context: str) -> None:
    assert next(find_answers(model, [ask("mild", context)], precision="fp32")) == [Found(-1, -1, 0.0, 1.0)]


LETTERS = re.compile(r"[^\W_]")


def ends_inside_a_word(text: str, place: int) -> bool:
    return 0 < place < len(text) and all(map(LETTERS.match, text[place - 1 : place + 1]))


def test_answers_begin_and_end_with_words_unless_parts_are_asked_for(
    model: AnswerModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "CANDIDATES", 1000)
    context = "The patients had fluxes, asthmatic seenmild-gouty sign; inno 5mildly, of amid courses"
    model = replace(model, max_answer_tokens=12)

    def inside(whole_words: bool) -> list[tuple[int, int]]:
        chosen = replace(model, whole_words=whole_words)
        (found,) = find_answers(chosen, [ask("mild", context)], top=1000, precision="fp32")
        spans = [(each.start, each.end) for each in found if each.start >= 0]
        assert len(spans) > 10
        return [span for span in spans if any(ends_inside_a_word(context, place) for place in span)]

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
def test_words_are_of_scripts_that_have_spaces(text: str, inside: list[int]) -> None:
    found = _inside_words(text)
    assert len(found) == len(text) + 1
    assert np.flatnonzero(found).tolist() == inside


def test_characters_are_those_of_the_text_whatever_it_holds(
    model: AnswerModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "CANDIDATES", 200)
    context = "  𝒳 the\u2003patient\r\nİof\u0301 gout — “no”\u00a0sign 👩\u200d🔬 flu \x02 "
    (found,) = find_answers(model, [ask("mild", context)], top=200, precision="fp32")
    spans = {(each.start, each.end) for each in found if each.start >= 0}
    for word in ("the", "patient", "gout", "flu", "sign"):
        start = context.index(word)
        assert any(span == (start, start + len(word)) for span in spans)
    for start, end in spans:
        assert 0 <= start < end <= len(context)
        assert context[start:end] == context[start:end].strip()


def test_a_question_that_leaves_no_room_is_told_with_its_id(model: AnswerModel) -> None:
    usual, long = asked(8)[-1], ask("mild given " * 10, "the patient " * 20, "q17")
    pairs = [(each.question, each.context) for each in (usual, long)]
    with pytest.raises(RequestError, match=r"question '1': too long: a window of 24 subwords .* 8 of the text"):
        list(QuestionAnswerer(model).pipe(pairs, precision="fp32"))
    found = list(find_answers(model, [usual, long, usual], precision="fp32"))
    assert found[1] == []
    assert near(found[0], found[2])
    assert found[0]


def test_only_a_block_ahead_is_read(model: AnswerModel) -> None:
    read = 0

    def endless() -> Iterator[Question]:
        nonlocal read
        while True:
            read += 1
            yield ask("mild", "the patient of gout " * 5)

    found = find_answers(model, endless(), precision="fp32", block_characters=500)
    for _ in range(20):
        next(found)
    assert read <= 20 + 3 * 5
