"""Files of questions: read, written, corrected, and the error of each fault."""

import gzip
import json
import re
from dataclasses import replace

import pytest

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from domain.biomedical.qa.data import Answer, Question
from domain.biomedical.qa.question_files import (
    QuestionPath,
    question_format_of,
    question_items,
    read_all,
    read_questions,
    write_questions,
)
from domain.biomedical.qa.settings import QuestionSource

SECRET = "Xanthippe"  # is in every text of a fault, and never in the error
CONTEXT = f"{SECRET} had a fever of 39 °C, then a rash."


def squad_question(name="1", answers=(("fever", 16),), question=f"What had {SECRET}?", **more):
    golds = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": question, "answers": golds, **more}


def squad(path, *qas, context=CONTEXT, version="1.1", **article):
    paragraph = {"context": context, "qas": list(qas)} if context is not None else {"qas": list(qas)}
    path.write_text(json.dumps({"version": version, "data": [{"title": "t", **article, "paragraphs": [paragraph]}]}))
    return path


def bioasq(path, *questions):
    path.write_text(json.dumps({"questions": list(questions)}))
    return path


def jsonl(path, *lines):
    path.write_text('{"id": "j0", "question": "q", "context": "c"}\n' + "".join(f"{line}\n" for line in lines))
    return path


def factoid(name="5a", exact_answer=(("Fever", "pyrexia"),), snippets=(CONTEXT,), **more):
    listed = [{"text": text, "document": f"pubmed/{number}"} for number, text in enumerate(snippets)]
    gold = {} if exact_answer is None else {"exact_answer": exact_answer}
    return {"id": name, "body": "What?", "type": "factoid", "snippets": listed, **gold, **more}


def error_of(path, format_name=None):
    with pytest.raises(RequestError) as caught:
        list(read_questions(path, format_name))
    assert SECRET not in str(caught.value)
    return str(caught.value)


def rejects_of(path, listed):
    """The questions of a file, and its rejects."""
    with Rejects(listed, 1.0) as rejects:
        usable = list(read_questions(path, None, rejects))
    assert SECRET not in listed.read_text()
    return usable, [json.loads(line) for line in listed.read_text().splitlines()]


SHAPE = "JSON of another shape"
J7 = '{"id": "j7", "question": "q", "context": "c"'


@pytest.mark.parametrize(
    ("write", "broken", "message"),
    [
        (squad, squad_question("q7", answers=[("fever", 30)]), "expected it at 30 of 44 characters"),
        (squad, squad_question("q7", question="  "), "1, record q7: an empty question"),
        (squad, squad_question("q7", answers=[(" ", 8)]), "1, record q7: an empty answer"),
        (squad, squad_question("q7", is_impossible=True), "1, record q7: an impossible question with an answer"),
        (squad, {"id": "q7", "question": SECRET, "answers": [{"text": SECRET}]}, f"1, record q7: {SHAPE} (answers.0"),
        (squad, {"question": SECRET, "answers": []}, f"line 1: {SHAPE} (id: Field required"),
        (squad, squad_question("q7", question=f"{SECRET}\ud800?"), "1, record q7: not valid Unicode"),
        (bioasq, factoid("b7", snippets=()), "1, record b7: a question without snippets"),
        (bioasq, factoid("b7", snippets=(CONTEXT, " ")), "1, record b7_002: a question without a context"),
        (bioasq, factoid("b7", type=SECRET), f"1, record b7: {SHAPE} (type: Input should be 'factoid'"),
        (bioasq, SECRET, f"line 1: {SHAPE}"),
        (jsonl, f'{{"id": "j7", "question": "{SECRET}", "answers": []}}', "2, record j7: a question without a context"),
        (jsonl, '{"id": "j0", "question": "q", "context": "c"}', "2, record j0: an id that another"),
        (jsonl, f'{{"id": "j7", "{SECRET}"', "line 2: not JSON (is the file cut off here?)"),
        (jsonl, f'["{SECRET}"]', f"line 2: {SHAPE}"),
        (jsonl, f'{J7}, "answers": {{"text": 1}}}}', f"j7: {SHAPE} (answers: Input should be a valid list; expected "),
        (jsonl, f'{J7}, "answers": [{{"text": "{SECRET}", "start": 0}}]}}', "j7: an answer that is not in its context"),
    ],
)
def test_each_fault_is_an_error_with_line_and_id_and_without_text(tmp_path, write, broken, message):
    error = error_of(write(tmp_path / "a.json", broken))
    assert f"{tmp_path / 'a.json'}, line" in error
    assert message in error
    assert error.endswith("Fix or remove this record.")


# SQuAD


def test_a_question_of_squad_is_read_its_offsets_corrected_and_noted(tmp_path):
    golds = [("fever", 16), ("a fever", 13), ("pyrexia", 16)]
    (question,) = read_questions(squad(tmp_path / "a.json", squad_question(answers=golds)))
    answers = (Answer("fever", 16), Answer("a fever", 14))
    assert question == Question("1", f"What had {SECRET}?", CONTEXT, answers, ("pyrexia",), document="t")
    assert (question.file, question.line) == (str(tmp_path / "a.json"), 1)
    assert question.notes == ("in place", "corrected", "nowhere")


@pytest.mark.parametrize(
    ("version", "fields", "impossible"),
    [
        ("v2.0", {"answers": []}, True),
        ("v2.0", {"answers": [], "is_impossible": False}, False),
        ("v2.0", {}, False),  # nobody says that there is none
        ("1.1", {"answers": []}, False),
        ("1.1", {"is_impossible": True, "plausible_answers": [{"text": "fever", "answer_start": 16}]}, True),
    ],
)
def test_no_answers_in_a_file_of_version_2_are_an_impossible_question(tmp_path, version, fields, impossible):
    (question,) = read_questions(squad(tmp_path / "a.json", {"id": "1", "question": "q", **fields}, version=version))
    assert (question.impossible, question.has_gold, question.answers) == (impossible, impossible, ())


def test_integer_ids_become_text_and_articles_without_title_have_a_name(tmp_path):
    (one,) = read_questions(squad(tmp_path / "a.json", squad_question(262), title=None))
    (same,) = read_questions(squad(tmp_path / "b.json", squad_question(263), title=None))
    (other,) = read_questions(squad(tmp_path / "c.json", squad_question(), title=None, context=CONTEXT + "!"))
    assert one.id == "262"
    assert one.document == same.document != other.document
    assert SECRET not in one.document


@pytest.mark.parametrize("write", [squad, jsonl])
@pytest.mark.parametrize(("flag", "impossible"), [(1, True), (0, False), (True, True), (False, False)])
def test_a_flag_may_be_0_or_1_and_nothing_else_than_booleans_beside(tmp_path, write, flag, impossible):
    record = squad_question(answers=(), is_impossible=flag)
    for flag_or_other in (flag, 2, "false", "no", 1.0):
        record["is_impossible"] = flag_or_other
        line = json.dumps({key: record[key] for key in ("id", "question", "is_impossible")} | {"context": CONTEXT})
        path = write(tmp_path / "a.json", record if write is squad else line)
        if flag_or_other is flag:
            assert [*read_questions(path)][-1].impossible is impossible
        else:
            with pytest.raises(RequestError, match=r"JSON of another shape .*valid boolean"):
                list(read_questions(path))


def test_one_bad_paragraph_or_article_costs_no_other(tmp_path):
    good = {"context": CONTEXT, "qas": [squad_question()]}
    articles = [{"title": "t", "paragraphs": [{"context": CONTEXT}, good]}, {"title": SECRET}, 7]
    text = json.dumps({"data": articles}, indent=1)
    (tmp_path / "a.json").write_text(text)
    usable, listed = rejects_of(tmp_path / "a.json", tmp_path / "r.jsonl")
    assert len(usable) == 1
    assert {reject["reason"] for reject in listed} == {SHAPE}
    second = text[: text.index(SECRET, text.index("answers"))].count("\n")  # its brace is in the line before its title
    assert [reject["line"] for reject in listed] == [3, second, text.count("\n") - 1]


# BioASQ


def test_each_snippet_is_a_context_of_its_own(tmp_path):
    snippets = ["No Fever.", "fever was high", "Pyrexia, or PYREXIA", "nothing"]
    questions = list(read_questions(bioasq(tmp_path / "a.json", factoid(snippets=snippets))))
    assert [question.id for question in questions] == ["5a_001", "5a_002", "5a_003", "5a_004"]
    assert [question.document for question in questions] == [f"pubmed/{number}" for number in range(4)]
    assert [question.notes for question in questions] == [("exactly",), ("by case",), ("in a synonym",), ("not found",)]
    texts = [[answer.text for answer in question.answers] for question in questions]
    assert texts == [["Fever"], ["fever"], ["Pyrexia", "PYREXIA"], []]
    assert (questions[3].golds, questions[3].impossible) == (("Fever", "pyrexia"), False)
    assert {(question.pool, question.synonyms) for question in questions} == {("5a", (("Fever", "pyrexia"),))}


@pytest.mark.parametrize(
    ("gold", "synonyms"),
    [
        ([["Fever"], ["rash"]], (("Fever",), ("rash",))),
        ("Fever", (("Fever",),)),
        ([["Fever", " "], []], (("Fever",),)),
        (None, ()),
    ],
)
def test_golds_come_in_more_than_one_shape(tmp_path, gold, synonyms):
    (question,) = read_questions(bioasq(tmp_path / "a.json", factoid(exact_answer=gold)))
    assert question.synonyms == synonyms


def test_a_second_question_of_an_id_is_not_pooled_with_the_first(tmp_path):
    path = bioasq(tmp_path / "a.json", factoid("b7"), factoid("b7", body="Why?", snippets=(CONTEXT, "a fever")))
    usable, (listed,) = rejects_of(path, tmp_path / "r.jsonl")
    assert [(question.id, question.pool) for question in usable] == [("b7_001", "b7")]
    assert (listed["record"], listed["reason"]) == ("b7", "an id that another question has")
    assert listed["detail"] == "the first with it is in line 1; give each question one of its own"


# Files


def test_jsonl_has_all_that_a_question_is(tmp_path):
    questions = [
        Question("1", "q?", "a\u2028b\n\tc", (Answer("b\n", 2), Answer("c", 5)), ("d",), document="doc", pool="p"),
        Question("4", "q?", "b", (Answer("b", 0),), ("d",), document="doc", pool="p", synonyms=(("b", "d"),)),
        Question("2", "q?", "ctx", impossible=True, document="doc"),
        Question("3", "q?", "🧬 ctx", (Answer("ctx", 2),), document="doc"),
    ]
    write_questions(tmp_path / "a.jsonl", questions)
    assert list(read_questions(tmp_path / "a.jsonl")) == questions


def test_null_is_nothing_where_a_value_may_be_absent(tmp_path):
    line = {"question": "What?", "context": "gout", "answers": [{"text": "gout", "start": 0}]}
    absent = dict.fromkeys(["id", "golds", "impossible", "document", "pool", "synonyms"])
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(line | absent) + "\n")
    first, second = read_questions(tmp_path / "a.jsonl")
    assert replace(first, id="2") == second
    path = bioasq(tmp_path / "a.json", factoid(exact_answer=None) | {"snippets": [{"text": "gout", "document": None}]})
    (question,) = read_questions(path)
    assert (question.context, question.answers) == ("gout", ())


def test_rows_of_the_library_datasets_are_read_and_lines_of_several_files_kept_apart(tmp_path):
    row = {"question": "q", "context": "a fever", "answers": {"text": ["fever"], "answer_start": [2]}}
    names = ("a.jsonl", "b.jsonl", "more/a.jsonl")
    (tmp_path / "more").mkdir()
    for name in names:
        (tmp_path / name).write_text("\n".join(map(json.dumps, [row, {**row, "id": name}])))
    questions = list(question_items(*(QuestionPath(tmp_path / name) for name in names)))
    assert {question.answers for question in questions} == {(Answer("fever", 2),)}
    assert [question.id for question in questions] == ["a-1:1", "a.jsonl", "b:1", "b.jsonl", "a-3:1", "more/a.jsonl"]
    assert [question.id for question in question_items(QuestionPath(tmp_path / "a.jsonl"))] == ["1", "a.jsonl"]
    none = {"text": [], "answer_start": []}
    records = [row, {**row, "answers": none}, {**row, "answers": [], "is_impossible": True}, {**row, "answers": []}]
    (tmp_path / "squad_v2.jsonl").write_text("\n".join(map(json.dumps, records)))
    questions = list(read_questions(tmp_path / "squad_v2.jsonl"))
    assert [question.impossible for question in questions] == [False, True, True, False]


def test_questions_of_one_context_share_it_in_memory(tmp_path):
    write_questions(tmp_path / "a.jsonl", [Question(str(n), "q", "".join(["con", "text"])) for n in range(3)])
    first, second, third = read_questions(tmp_path / "a.jsonl")
    assert first.context is second.context is third.context


def test_squad_is_written_as_it_was_read_or_not_at_all(tmp_path):
    questions = list(
        read_questions(
            squad(tmp_path / "a.json", squad_question("1"), squad_question("2", answers=(), is_impossible=True))
        )
    )
    questions.append(Question("3", "q", "c", impossible=True, document="u"))
    write_questions(tmp_path / "b.json", questions, "squad")
    assert list(read_questions(tmp_path / "b.json")) == questions
    assert len(json.loads((tmp_path / "b.json").read_text())["data"]) == 2
    for other in (Question("1", "q", "c", golds=("d",)), Question("1", "q", "c")):
        with pytest.raises(RequestError, match=r"question '1': .* Write JSONL"):
            write_questions(tmp_path / "c.json", [other], "squad")
    with pytest.raises(RequestError, match=r"expected a name without \.gz, as it is not packed"):
        write_questions(tmp_path / "c.json.gz", questions, "squad")
    with pytest.raises(RequestError, match="bioasq is only read"):
        write_questions(tmp_path / "c.json", [], "bioasq")
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "b.json"}


def test_a_format_is_known_by_the_content(tmp_path):
    write_questions(tmp_path / "a.txt", [Question("1", "q", "c")])
    assert question_format_of(tmp_path / "a.txt") == "jsonl"
    path = squad(tmp_path / "b", squad_question())
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert question_format_of(path) == "squad"
    assert len(list(read_questions(path))) == 1
    assert question_format_of(bioasq(tmp_path / "c", factoid())) == "bioasq"
    lists = {"keywords": ["a"], "golds": [], "question": "q", "topics": [[1], {}], "context": "c", "more": 1}
    (tmp_path / "d").write_text(json.dumps(lists) + "\n\n")
    (question,) = read_questions(tmp_path / "d")  # without an id and a document
    assert (question.id, question.has_gold, question.document.startswith("article-")) == ("1", False, True)


@pytest.mark.parametrize("content", ["[1]", "7", '{"documents": [{"id": 1}]}', '{"id": "1", "text": "t"}', "{} "])
def test_json_of_another_shape_is_refused_with_what_is_expected(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    error = error_of(tmp_path / "a.json")
    assert all(text in error for text in ("found JSON of another shape", "'data'", "'questions'"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"version": "1.1"}', "expected questions (squad), found none"),
        ('{"version": "v2.0",\n"data": {}}', "line 2: expected a list, found an object"),
        ('{"data": [', "is broken, or the file is cut off"),
    ],
)
def test_a_file_without_questions_or_of_another_kind_is_refused(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content)
    assert message in error_of(tmp_path / "a.json", "squad")


@pytest.mark.parametrize("format_name", [None, "squad"])
def test_a_file_cut_off_anywhere_is_an_error(tmp_path, format_name):
    whole = squad(tmp_path / "a.json", *[squad_question(str(number)) for number in range(300)]).read_bytes()
    packed = gzip.compress(whole)
    for length in (1, 20, len(whole) // 2, len(whole) - 3):
        (tmp_path / "b.json").write_bytes(whole[:length])
        assert "cut off" in error_of(tmp_path / "b.json", format_name)
        (tmp_path / "c.json.gz").write_bytes(packed[: length * len(packed) // len(whole)])
        assert re.search("cut off|JSON of another shape", error_of(tmp_path / "c.json.gz", format_name))


def test_a_question_given_twice_counts_once_in_training_and_each_time_in_a_score(tmp_path, capsys):
    lines = [json.dumps({"question": f"q{n}?", "context": CONTEXT, "answers": []}) for n in (1, 2)]
    lines += [json.dumps({"question": "q1?", "context": CONTEXT, "answers": [], "impossible": True})]
    (tmp_path / "a.jsonl").write_text("".join(f"{line}\n" for line in [*lines, *lines]))
    sources = [QuestionSource(path=str(tmp_path / "a.jsonl"))]
    questions = read_all(sources, Rejects(None), once=True)
    assert [(question.id, question.question) for question in questions] == [("1", "q1?"), ("2", "q2?"), ("3", "q1?")]
    assert "3 of 6 questions are copies of an earlier one, with context and answers, and count once" in (
        capsys.readouterr().err
    )
    assert len(read_all(sources, Rejects(None))) == 6
    assert "and are scored each; so many are seldom meant" in capsys.readouterr().err


@pytest.mark.parametrize("is_swapped", [True, False])
def test_questions_in_the_place_of_contexts_are_refused(tmp_path, is_swapped):
    texts = "What is given against gout?", "Aspirin is given against gout in many hospitals of the country."
    question, context = reversed(texts) if is_swapped else texts
    lines = (json.dumps({"question": question, "context": context, "answers": []}) for _ in range(30))
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    source = [QuestionSource(path=str(tmp_path / "q.jsonl"))]
    assert len(read_all(source, Rejects(None), max_swapped=1.0)) == 30
    if is_swapped:
        with pytest.raises(RequestError, match=r"q\.jsonl: 30 of 30 \(100\.0%\) questions are longer"):
            read_all(source, Rejects(None), max_swapped=0.2)
    else:
        assert len(read_all(source, Rejects(None), max_swapped=0.0)) == 30
