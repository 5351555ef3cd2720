"""Files of questions: read, written, mended, and what each fault is told as."""

import gzip
import json
import re
from collections import Counter

import pytest
from real_files import COVID, with_covid

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from domain.biomedical.qa.question_files import (
    question_format_of,
    read_questions,
    write_questions,
)
from domain.biomedical.qa.questions import Answer, Question

SECRET = "Xanthippe"  # stands in every text of a fault, and never in what is told of it
CONTEXT = f"{SECRET} had a fever of 39 °C, then a rash."


def asked(name="1", answers=(("fever", 16),), question=f"What had {SECRET}?", **more):
    told = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": question, "answers": told, **more}


def squad(path, *qas, context=CONTEXT, **article):
    paragraph = {"context": context, "qas": list(qas)} if context is not None else {"qas": list(qas)}
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", **article, "paragraphs": [paragraph]}]}))
    return path


def bioasq(path, *questions):
    path.write_text(json.dumps({"questions": list(questions)}))
    return path


def factoid(name="5a", exact_answer=(("Fever", "pyrexia"),), snippets=(CONTEXT,), **more):
    listed = [{"text": text, "document": f"pubmed/{number}"} for number, text in enumerate(snippets)]
    gold = {} if exact_answer is None else {"exact_answer": exact_answer}
    return {"id": name, "body": "What?", "type": "factoid", "snippets": listed, **gold, **more}


def fault_of(path, format_name=None):
    with pytest.raises(RequestError) as caught:
        list(read_questions(path, format_name))
    assert SECRET not in str(caught.value)
    return str(caught.value)


# SQuAD


def test_a_question_of_squad_is_read(tmp_path):
    (found,) = read_questions(squad(tmp_path / "a.json", asked(answers=[("fever", 16), ("a fever", 14)])))
    answers = (Answer("fever", 16), Answer("a fever", 14))
    assert found == Question("1", f"What had {SECRET}?", CONTEXT, answers, document="t")
    assert (found.file, found.line, found.notes) == (str(tmp_path / "a.json"), 1, ("in place", "in place"))


def test_an_impossible_question_has_no_answer_and_its_plausible_ones_are_none(tmp_path):
    plausible = [{"text": "fever", "answer_start": 16}]
    (found,) = read_questions(
        squad(tmp_path / "a.json", asked(answers=(), is_impossible=True, plausible_answers=plausible))
    )
    assert (found.impossible, found.answers, found.golds) == (True, (), ())


@pytest.mark.parametrize(
    ("version", "asked_so", "impossible"),
    [
        ("v2.0", {"answers": []}, True),
        ("2.0", {"answers": []}, True),
        ("v2.0", {"answers": [], "is_impossible": False}, False),
        ("v2.0", {}, False),  # nobody says that there is none
        ("1.1", {"answers": []}, False),
    ],
)
def test_no_answers_in_a_file_of_version_2_are_an_impossible_question(tmp_path, version, asked_so, impossible):
    article = {"title": "t", "paragraphs": [{"context": CONTEXT, "qas": [{"id": "1", "question": "q", **asked_so}]}]}
    (tmp_path / "a.json").write_text(json.dumps({"version": version, "data": [article]}))
    (found,) = read_questions(tmp_path / "a.json")
    assert (found.impossible, found.has_gold) == (impossible, impossible)


def test_integer_ids_become_text_and_articles_without_title_have_a_name(tmp_path):
    (one,) = read_questions(squad(tmp_path / "a.json", asked(262), title=None))
    (same,) = read_questions(squad(tmp_path / "b.json", asked(263), title=None))
    (other,) = read_questions(squad(tmp_path / "c.json", asked(), title=None, context=CONTEXT + "!"))
    assert one.id == "262"
    assert one.document == same.document != other.document
    assert SECRET not in one.document


def test_wrong_offsets_are_mended_and_noted(tmp_path):
    (found,) = read_questions(squad(tmp_path / "a.json", asked(answers=[("fever", 13), ("rash", 35)])))
    assert found.answers == (Answer("fever", 16), Answer("rash", CONTEXT.index("rash")))
    assert Counter(found.notes) == {"corrected": 2}


def test_of_several_answers_one_that_stands_nowhere_still_counts_in_a_score(tmp_path):
    (found,) = read_questions(squad(tmp_path / "a.json", asked(answers=[("fever", 16), ("pyrexia", 16)])))
    assert (found.answers, found.golds) == ((Answer("fever", 16),), ("pyrexia",))
    assert found.notes == ("in place", "nowhere")


def test_gzip_is_read_whatever_its_name(tmp_path):
    path = squad(tmp_path / "a.json", asked())
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert len(list(read_questions(path))) == 1


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (asked("q7", answers=[(f"{SECRET}ia", 3)]), "record q7: an answer that is not in its context"),
        (asked("q7", answers=[("fever", 30)]), "expected it at 30 of 44 characters"),
        (asked("q7", question="  "), "record q7: an empty question"),
        (asked("q7", answers=[(" ", 8)]), "record q7: an empty answer"),
        (asked("q7", is_impossible=True), "record q7: an impossible question with an answer"),
        (
            {"id": "q7", "question": SECRET, "answers": [{"text": SECRET}]},
            "record q7: JSON of another shape (answers.0",
        ),
        ({"id": "q7", "question": [SECRET]}, "record q7: JSON of another shape (question: Input should be"),
        ({"question": SECRET, "answers": []}, "line 1: JSON of another shape (id: Field required"),
        ([SECRET], "line 1: JSON of another shape"),
        (asked("q7", question=f"{SECRET}\ud800?"), "record q7: not valid Unicode"),
    ],
)
def test_each_fault_is_told_with_the_id_and_without_the_text(tmp_path, broken, told):
    fault = fault_of(squad(tmp_path / "a.json", asked(), broken))
    assert f"{tmp_path / 'a.json'}, line 1" in fault
    assert told in fault
    assert fault.endswith("Fix or remove this record.")


def test_questions_without_a_context_are_told_each_by_its_id(tmp_path):
    with Rejects(tmp_path / "rejects.jsonl", 1.0) as rejects:
        found = list(read_questions(squad(tmp_path / "a.json", asked("x"), asked("y"), context=None), None, rejects))
    told = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert found == []
    assert [each["record"] for each in told] == ["x", "y"]
    assert {each["reason"] for each in told} == {"a question without a context"}
    assert {each["detail"] for each in told} == {"its paragraph has no `context`; give the text that it is asked of"}
    assert "a question without a context" in fault_of(squad(tmp_path / "b.json", asked(answers=()), context=" "))


def test_two_questions_with_one_id_are_told_and_the_first_is_used(tmp_path):
    path = squad(tmp_path / "a.json", asked("x"), asked("x", question="Which?"), asked("y"))
    assert "record x: an id that another question has (the first with it is in" in fault_of(path)
    with Rejects(None, 1.0) as rejects:
        assert [found.question for found in read_questions(path, None, rejects)] == [f"What had {SECRET}?"] * 2
    assert rejects.counts == {"an id that another question has": 1}


def test_one_bad_paragraph_or_article_costs_no_other(tmp_path):
    good = {"context": CONTEXT, "qas": [asked()]}
    articles = [{"title": "t", "paragraphs": [{"context": CONTEXT}, good]}, {"title": SECRET}, 7]
    text = json.dumps({"data": articles}, indent=1)
    (tmp_path / "a.json").write_text(text)
    with Rejects(tmp_path / "rejects.jsonl", 1.0) as rejects:
        assert len(list(read_questions(tmp_path / "a.json", None, rejects))) == 1
    lines = [json.loads(line)["line"] for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert rejects.counts == {"JSON of another shape": 3}
    second = text[: text.index(SECRET, text.index("answers"))].count("\n")  # its brace stands a line before its title
    assert lines == [3, second, text.count("\n") - 1]
    assert SECRET not in (tmp_path / "rejects.jsonl").read_text()


# BioASQ


def test_each_snippet_is_a_context_of_its_own(tmp_path):
    snippets = ["No Fever.", "fever was high", "Pyrexia, or PYREXIA", "nothing"]
    found = list(read_questions(bioasq(tmp_path / "a.json", factoid(snippets=snippets))))
    assert [each.id for each in found] == ["5a_001", "5a_002", "5a_003", "5a_004"]
    assert {each.pool for each in found} == {"5a"}
    assert [each.document for each in found] == [f"pubmed/{number}" for number in range(4)]
    assert [each.notes for each in found] == [("exactly",), ("by case",), ("in a synonym",), ("not found",)]
    assert [[answer.text for answer in each.answers] for each in found] == [
        ["Fever"],
        ["fever"],
        ["Pyrexia", "PYREXIA"],
        [],
    ]
    assert found[3].golds == ("Fever", "pyrexia")
    assert not found[3].impossible
    assert all(each.synonyms == (("Fever", "pyrexia"),) for each in found)


@pytest.mark.parametrize(
    ("gold", "synonyms"),
    [
        (["Fever", "pyrexia"], (("Fever", "pyrexia"),)),
        ([["Fever", "pyrexia"]], (("Fever", "pyrexia"),)),
        ([["Fever"], ["rash"]], (("Fever",), ("rash",))),
        ("Fever", (("Fever",),)),
        ([["Fever", " "], []], (("Fever",),)),
        (None, ()),
    ],
)
def test_golds_come_in_more_than_one_shape(tmp_path, gold, synonyms):
    (found,) = read_questions(bioasq(tmp_path / "a.json", factoid(exact_answer=gold)))
    assert found.synonyms == synonyms


def test_questions_of_other_types_are_read_over_and_told(tmp_path, capsys):
    others = [factoid("b", type="yesno", exact_answer="yes"), factoid("c", type="summary"), factoid("d", type="yesno")]
    assert len(list(read_questions(bioasq(tmp_path / "a.json", factoid(), *others)))) == 1
    assert "left out: 2 × a question of the type yesno, 1 × a question of the type summary" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (factoid("b7", snippets=()), "record b7: a question without snippets"),
        (factoid("b7", snippets=(CONTEXT, " ")), "record b7_002: a question without a context"),
        (factoid("b7", body=" "), "record b7_001: an empty question"),
        (factoid("b7", type=SECRET), "record b7: JSON of another shape (type: Input should be 'factoid'"),
        (factoid("b7", exact_answer={"a": SECRET}), "record b7: JSON of another shape (exact_answer"),
        (SECRET, "line 1: JSON of another shape"),
    ],
)
def test_each_fault_of_bioasq_is_told_with_the_id(tmp_path, broken, told):
    assert told in fault_of(bioasq(tmp_path / "a.json", broken))


def test_a_second_question_of_an_id_is_not_pooled_with_the_first(tmp_path):
    first, second = (
        factoid("b7", snippets=(CONTEXT,)),
        factoid("b7", body="Why?", snippets=(CONTEXT, "a fever, a rash")),
    )
    with Rejects(tmp_path / "rejects.jsonl", 1.0) as rejects:
        found = list(read_questions(bioasq(tmp_path / "a.json", first, second), None, rejects))
    assert [(each.id, each.pool) for each in found] == [("b7_001", "b7")]
    (told,) = map(json.loads, (tmp_path / "rejects.jsonl").read_text().splitlines())
    assert (told["record"], told["reason"]) == ("b7", "an id that another question has")
    assert told["detail"] == "the first with it is in line 1; give each question one of its own"


# JSONL


def test_jsonl_holds_all_that_a_question_is(tmp_path):
    questions = [
        Question("1", "q?", "a\u2028b\n\tc", (Answer("b\n", 2), Answer("c", 5)), ("d",), document="doc", pool="p"),
        Question("4", "q?", "b", (Answer("b", 0),), ("d",), document="doc", pool="p", synonyms=(("b", "d"),)),
        Question("2", "q?", "ctx", impossible=True, document="doc"),
        Question("3", "q?", "🧬 ctx", (Answer("ctx", 2),), document="doc"),
    ]
    write_questions(tmp_path / "a.jsonl", questions)
    assert list(read_questions(tmp_path / "a.jsonl")) == questions


def test_jsonl_of_others_needs_a_question_and_a_context(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"answers": [], "question": "q", "context": "c", "more": 1}\n\n')
    (found,) = read_questions(tmp_path / "a.jsonl")
    assert (found.id, found.question, found.context, found.has_gold) == ("1", "q", "c", False)
    assert found.document.startswith("article-")


def test_questions_of_one_context_share_it_in_memory(tmp_path):
    write_questions(tmp_path / "a.jsonl", [Question(str(n), "q", "".join(["con", "text"])) for n in range(3)])
    first, second, third = read_questions(tmp_path / "a.jsonl")
    assert first.context is second.context is third.context


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f'{{"id": "j7", "question": "{SECRET}", "answers": []}}', "line 2, record j7: a question without a context"),
        ('{"id": "j7", "question": "", "context": "c"}', "line 2, record j7: an empty question"),
        ('{"id": "j0", "question": "q", "context": "c"}', "line 2, record j0: an id that another"),
        (f'{{"id": "j7", "{SECRET}"', "line 2: not JSON (is the file cut off here?)"),
        (f'["{SECRET}"]', "line 2: JSON of another shape"),
        (
            f'{{"id": "j7", "question": "q", "context": "c", "answers": {{"text": ["{SECRET}"]}}}}',
            'line 2, record j7: JSON of another shape (answers: Input should be a valid list; expected {"id", ',
        ),
        (
            f'{{"id": "j7", "question": "q", "context": "c", "answers": [{{"text": "{SECRET}", "start": 0}}]}}',
            "line 2, record j7: an answer that is not in its context",
        ),
    ],
)
def test_each_fault_of_jsonl_is_told_with_its_line(tmp_path, line, told):
    (tmp_path / "a.jsonl").write_text(f'{{"id": "j0", "question": "q", "context": "c"}}\n{line}\n')
    assert told in fault_of(tmp_path / "a.jsonl")


# Files


def test_a_format_is_told_by_what_the_file_holds(tmp_path):
    write_questions(tmp_path / "a.txt", [Question("1", "q", "c")])
    assert question_format_of(tmp_path / "a.txt") == "jsonl"
    assert question_format_of(squad(tmp_path / "b", asked())) == "squad"
    assert question_format_of(bioasq(tmp_path / "c", factoid())) == "bioasq"
    lists = {"keywords": ["a"], "golds": [], "question": "q", "topics": [[1], {}], "context": "c"}
    (tmp_path / "d").write_text(json.dumps(lists) + "\n")
    assert question_format_of(tmp_path / "d") == "jsonl"
    assert len(list(read_questions(tmp_path / "d"))) == 1


@pytest.mark.parametrize("content", ["[1]", "7", '{"documents": [{"id": 1}]}', '{"id": "1", "text": "t"}', "{}", "{} "])
def test_json_of_another_shape_is_told_with_what_is_expected(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    fault = fault_of(tmp_path / "a.json")
    assert "found JSON of another shape" in fault
    assert "'data'" in fault
    assert "'questions'" in fault


@pytest.mark.parametrize("content", ['{"data": []}', '{"version": "1.1"}'])
def test_a_file_without_questions_is_told(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    assert "expected questions (squad), found none" in fault_of(tmp_path / "a.json", "squad")


@pytest.mark.parametrize("format_name", [None, "squad"])
def test_a_file_cut_off_anywhere_is_told(tmp_path, format_name):
    whole = squad(tmp_path / "a.json", *[asked(str(number)) for number in range(300)]).read_bytes()
    for length in (1, 20, len(whole) // 2, len(whole) - 3):
        (tmp_path / "b.json").write_bytes(whole[:length])
        assert "cut off" in fault_of(tmp_path / "b.json", format_name)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_gzip_cut_off_anywhere_is_told(tmp_path, share):
    whole = gzip.compress(squad(tmp_path / "a.json", *[asked(str(number)) for number in range(300)]).read_bytes())
    (tmp_path / "b.json.gz").write_bytes(whole[: int(share * len(whole))])
    assert "cut off, damaged or not UTF-8" in fault_of(tmp_path / "b.json.gz")
    (tmp_path / "c.json.gz").write_bytes(whole[:-30] + b"\0" * 30)
    assert "c.json.gz" in fault_of(tmp_path / "c.json.gz")


def test_too_many_rejects_are_told_with_what_to_do_for_the_first(tmp_path):
    path = squad(tmp_path / "a.json", asked("q7", answers=[(SECRET, 30)]), asked("q8"))
    told = r"record q7 \(expected it at 30 of 44 characters; correct the text"
    with pytest.raises(WorkError, match=told) as caught, Rejects(None, 0.1) as rejects:
        list(read_questions(path, None, rejects))
    assert SECRET not in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    assert f"there is no file {tmp_path / 'a.json'}" in fault_of(tmp_path / "a.json")


def test_squad_is_written_as_it_was_read(tmp_path):
    questions = list(read_questions(squad(tmp_path / "a.json", asked("1"), asked("2", answers=(), is_impossible=True))))
    write_questions(tmp_path / "b.json", [*questions, Question("3", "q", "c", document="u")], "squad")
    again = list(read_questions(tmp_path / "b.json"))
    assert again[:2] == questions
    assert again[2] == Question("3", "q", "c", document="u")
    assert len(json.loads((tmp_path / "b.json").read_text())["data"]) == 2


def test_what_squad_cannot_hold_is_refused_and_no_file_is_left(tmp_path):
    with pytest.raises(RequestError, match=r"question '1': .* Write JSONL"):
        write_questions(tmp_path / "a.json", [Question("1", "q", "c", golds=("d",))], "squad")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RequestError, match="bioasq is only read"):
        write_questions(tmp_path / "a.json", [], "bioasq")


def test_a_folder_that_takes_no_file_is_told(tmp_path):
    with pytest.raises(RequestError, match="nowhere"):
        write_questions(tmp_path / "nowhere" / "a.jsonl", [])


@with_covid
def test_of_covid_qa_all_questions_are_read_and_234_offsets_mended():
    questions = list(read_questions(COVID))
    notes = Counter(note for question in questions for note in question.notes)
    assert (len(questions), notes) == (1380, {"in place": 1146, "corrected": 234})
    assert len({question.document for question in questions}) == 98
    assert all(each.context[gold.start : gold.end] == gold.text for each in questions for gold in each.answers)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[1]", "line 1: expected an object, found a list"),
        ('{"version": "v2.0",\n"data": {}}', "line 2: expected a list, found an object"),
        ('{"data": 7}', "line 1: expected a list, found a value"),
        ('{"data": [', "is broken, or the file is cut off"),
    ],
)
def test_another_kind_of_value_is_not_called_broken(tmp_path, content, told):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(RequestError, match=re.escape(told)):
        list(read_questions(tmp_path / "a.json", "squad"))
