"""A look at questions: what is good, what is doubtful and what will not do; on the command line too."""

import json

import pytest
from typer.testing import CliRunner

from bertrelay.errors import RequestError
from domain.biomedical.qa.checking import are_questions, check_questions
from domain.biomedical.qa.question_files import write_questions
from domain.biomedical.qa.questions import Answer, Question
from pipelines.cli.app import app


def good(name, count=5):
    """Questions of one context each; every one has an article of its own."""
    return [
        Question(f"{name}{n}", f"Which {n}?", f"{name} {n} is", (Answer(str(n), len(name) + 1),), document=f"{name}{n}")
        for n in range(count)
    ]


def file_of(path, questions):
    write_questions(path, questions)
    return path


def squad(path, *qas, context="a fever, a rash", title="t"):
    articles = [{"title": title, "paragraphs": [{"context": context, "qas": list(qas)}]}]
    path.write_text(json.dumps({"data": articles}))
    return path


def asked(name, *answers, **more):
    told = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": f"What of {name}?", "answers": told, **more}


def finding(findings, name):
    return next(each for each in findings if each.check == name)


def call(*arguments):
    return CliRunner().invoke(app, ["data", "check", *map(str, arguments)], catch_exceptions=False)


def test_good_questions_are_good(tmp_path):
    splits = ("train", "dev", "test")
    findings = check_questions({split: file_of(tmp_path / f"{split}.jsonl", good(split)) for split in splits})
    assert {each.check: each.summary for each in findings if each.severity != "good"} == {}
    assert [each.check for each in findings if each.check.startswith("leaks")] == [
        "leaks train/dev",
        "leaks train/test",
        "leaks dev/test",
    ]


def test_wrong_offsets_are_a_warning_and_answers_that_stand_nowhere_a_failure(tmp_path):
    mended = squad(tmp_path / "a.json", asked("1", ("fever", 1)), asked("2", ("rash", 11), ("x", 0)))
    found = finding(check_questions({"train": mended}), "offsets")
    assert (found.severity, found.counts) == ("fail", {"mended": 1, "nowhere": 1})
    alone = squad(tmp_path / "b.json", asked("1", ("fever", 1)), asked("2", ("rash", 11)))
    assert finding(check_questions({"train": alone}), "offsets").severity == "warn"
    lost = squad(tmp_path / "c.json", asked("1", ("fever", 2)), asked("q9", ("chill", 2)))
    found = finding(check_questions({"train": lost}), "offsets")
    assert (found.severity, found.counts["nowhere"]) == ("fail", 1)
    assert f"the first is {tmp_path / 'c.json'}, line 1, record q9" in found.summary


def test_ids_given_twice_fail(tmp_path):
    path = squad(tmp_path / "a.json", asked("q1", ("fever", 2)), asked("q1", ("rash", 11)))
    found = finding(check_questions({"train": path}), "ids")
    assert (found.severity, found.counts) == ("fail", {"repeated": 1})
    assert f"an id that another question has; the first is {path}, line 1, record q1 (" in found.summary


def test_what_the_readers_cannot_use_is_told_with_its_id(tmp_path):
    path = squad(tmp_path / "a.json", asked("1", ("fever", 2)), asked("q2", ("fever", 2), is_impossible=True))
    found = finding(check_questions({"train": path}), "records")
    assert (found.severity, found.counts) == ("fail", {"unusable": 1})
    assert "record q2" in found.summary


def test_equal_questions_of_one_context_are_told_and_equal_ones_of_two_are_not(tmp_path):
    first, second = Question("1", "q", "c", document="d"), Question("2", "q", "c", document="d")
    elsewhere = Question("3", "q", "other", document="d")
    path = file_of(tmp_path / "a.jsonl", [*good("x"), first, second, elsewhere])
    found = finding(check_questions({"train": path}), "duplicates")
    assert (found.severity, found.counts) == ("warn", {"train": 1})


def test_contexts_in_two_splits_are_leaks(tmp_path):
    train = file_of(tmp_path / "train.jsonl", good("x", 300))
    copied = [Question(f"d{each.id}", each.question, each.context, document="d") for each in good("x", 2)]
    dev = file_of(tmp_path / "dev.jsonl", [*good("y", 300), *copied])
    found = finding(check_questions({"train": train, "dev": dev}), "leaks train/dev")
    assert (found.severity, found.counts) == ("warn", {"contexts": 2, "articles": 0})
    found = finding(check_questions({"train": train, "dev": file_of(tmp_path / "c.jsonl", copied)}), "leaks train/dev")
    assert (found.severity, found.counts["contexts"]) == ("fail", 2)


def test_an_article_in_two_splits_is_told_and_snippets_of_one_question_fail(tmp_path):
    one = file_of(tmp_path / "a.jsonl", [Question("1", "q", "c", document="d"), *good("x")])
    other = file_of(tmp_path / "b.jsonl", [Question("2", "q", "e", document="d"), *good("y")])
    found = finding(check_questions({"train": one, "dev": other}), "leaks train/dev")
    assert (found.severity, found.counts) == ("warn", {"contexts": 0, "articles": 1})
    assert "domain.questions" in found.summary
    pooled = [file_of(tmp_path / f"{n}.jsonl", [Question(n, "q", n, document=n, pool="p")]) for n in "12"]
    found = finding(check_questions({"train": pooled[0], "test": pooled[1]}), "leaks train/test")
    assert found.severity == "fail"


def test_questions_without_an_answer_are_counted_apart(tmp_path):
    impossible = asked("2", is_impossible=True)
    path = squad(tmp_path / "a.json", asked("1", ("fever", 2)), impossible)
    found = finding(check_questions({"train": path}), "answers")
    assert (found.severity, "1 impossible, 0 without" in found.summary) == ("good", True)
    path = squad(tmp_path / "b.json", asked("1", ("fever", 2)), asked("2"))
    found = finding(check_questions({"train": path}), "answers")
    assert (found.severity, found.counts) == ("warn", {"train_without_answer": 1})
    found = finding(check_questions({"train": squad(tmp_path / "c.json", asked("2"))}), "answers")
    assert (found.severity, "there is no answer to train on" in found.summary) == ("fail", True)


def test_lengths_are_told_and_long_ones_warned_of(tmp_path):
    long_answer = " ".join(["word"] * 31)
    questions = [
        Question("1", "why " * 65, "c", document="d"),
        Question("2", "q", long_answer, (Answer(long_answer, 0),), document="e"),
        Question("3", "p", long_answer, (Answer("word", 0),), document="e"),
    ]
    findings = check_questions({"train": file_of(tmp_path / "a.jsonl", questions)})
    assert finding(findings, "words in a question").counts == {"longest": 65, "long": 1}
    found = finding(findings, "words in an answer")
    assert (found.severity, found.counts) == ("warn", {"longest": 31, "long": 1})
    assert "max_answer_tokens" in found.summary
    found = finding(findings, "words in a context")
    assert (found.severity, found.summary) == (
        "good",
        "train: median 1, 95 % up to 1, longest 31",
    )  # contexts count once


def test_lengths_are_measured_in_a_models_word_pieces(tmp_path, tiny_encoder):
    tiny_encoder("bert", ["What is this a fever of many words"]).save(tmp_path / "model")
    context = "fever " * 100 + "many words"
    questions = [
        Question("roomy", "What " * 25, "fever", (Answer("fever", 0),), document="a"),  # with its text in one window
        Question("just", "What " * 24, context, (Answer("fever", 0),), document="a"),  # 40 subwords: 24, 13 and 3
        Question("long", "What " * 25, context, (Answer("fever", 0),), document="a"),
        Question("wide", "What", context, (Answer(context[: 6 * 37 - 1], 0),), document="a"),
        Question("late", "What", context, (Answer("many words", 600),), document="a"),
    ]
    path = file_of(tmp_path / "a.jsonl", questions)
    findings = check_questions({"train": path}, model=str(tmp_path / "model"))
    told = {part: finding(findings, f"tokens in {part}") for part in ("a question", "an answer", "a context")}
    assert {part: (each.severity, each.counts["unfit"]) for part, each in told.items()} == {
        "a question": ("warn", 1), "an answer": ("warn", 1), "a context": ("good", 0),
    }  # fmt: skip
    assert (
        f"leaves its text no space in a window; raise max_tokens or lower stride; the first is question long in {path}"
        in (told["a question"].summary)
    )
    assert (
        "no window holds whole; raise max_tokens or lower stride; the first is question wide"
        in told["an answer"].summary
    )
    assert told["a question"].counts["longest"] == 25
    assert told["a context"].counts == {"longest": 102, "long": 1, "unfit": 0}
    assert "longer than 40: 1 (read in windows)" in told["a context"].summary


def test_the_alignment_of_snippets_is_told(tmp_path):
    snippets = [{"text": text, "document": text} for text in ("fever", "Fever", "pyrexia", "x", "y", "z", "u")]
    value = {"id": "1", "body": "q", "type": "factoid", "exact_answer": [["fever", "pyrexia"]], "snippets": snippets}
    (tmp_path / "a.json").write_text(json.dumps({"questions": [value, {**value, "id": "2", "type": "yesno"}]}))
    findings = check_questions({"train": tmp_path / "a.json"})
    assert finding(findings, "records").summary == "7 read; left out: 1 × a question of the type yesno"
    assert finding(findings, "offsets").summary == "no answer came with an offset"
    found = finding(findings, "alignment")
    assert found.severity == "warn"
    assert found.counts == {"exactly": 1, "by case": 1, "in a synonym": 1, "not found": 4}


def test_files_of_questions_are_told_from_others(tmp_path):
    questions = file_of(tmp_path / "a.jsonl", good("x"))
    (tmp_path / "b.jsonl").write_text('{"id": "1", "text": "t", "entities": []}\n')
    (tmp_path / "c.json").write_text('{"source": "s", "documents": [{"id": "1", "passages": []}]}')
    (tmp_path / "d.tsv").write_text("a\tO\n")
    assert are_questions({"train": questions, "dev": squad(tmp_path / "e.json", asked("1"))})
    for name in ("b.jsonl", "c.json", "d.tsv", "missing.json"):
        assert not are_questions({"train": tmp_path / name})
    with pytest.raises(RequestError, match=r"a\.jsonl: expected files of one kind"):
        are_questions({"train": questions, "dev": tmp_path / "b.jsonl"})


def test_nothing_to_ask_is_told(tmp_path):
    value = {"id": "1", "body": "q", "type": "yesno", "exact_answer": "yes", "snippets": []}
    (tmp_path / "a.json").write_text(json.dumps({"questions": [value]}))
    with pytest.raises(RequestError, match="found none"):
        check_questions({"train": tmp_path / "a.json"})


def test_no_text_of_a_question_is_told(tmp_path):
    secret = "Xanthippe"
    broken = [asked("1", (secret, 0)), asked("2", question=secret, is_impossible=secret), asked("1")]
    path = squad(tmp_path / "a.json", asked("0", ("fever", 1)), *broken, context=f"a fever {secret}s", title=secret)
    assert secret not in json.dumps([each._asdict() for each in check_questions({"train": path, "dev": path})])


def test_the_command_knows_questions(tmp_path):
    train, dev = (file_of(tmp_path / f"{split}.jsonl", good(split)) for split in ("train", "dev"))
    result = call(train, dev, "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert (document["verdict"], document["files"]) == ("good", {"train": str(train), "dev": str(dev)})
    assert "offsets" in [each["check"] for each in document["checks"]]


def test_the_command_ends_with_1_for_questions_that_will_not_do(tmp_path):
    result = call(squad(tmp_path / "a.json", asked("q9", ("chill", 2))), "--format", "squad")
    assert result.exit_code == 1
    assert "fail  offsets" in result.stdout
    assert "record q9" in result.stdout


def test_a_format_that_the_file_has_not_is_told(tmp_path):
    squad(tmp_path / "a.json", asked("1"))
    with pytest.raises(RequestError, match=r"expected questions \(bioasq\), found none"):
        call(tmp_path / "a.json", "--format", "bioasq")


def test_each_reason_is_told_with_the_first_that_has_it(tmp_path):
    path = squad(tmp_path / "a.json", asked("1", ("", 0)), asked("2", question=" "), asked("3", question=" "))
    told = finding(check_questions({"train": path}), "records").summary
    assert f"2 × an empty question; the first is {path}, line 1, record 2 (" in told
    assert f"1 × an empty answer; the first is {path}, line 1, record 1 (" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"foo": [1]}', "BioC JSON.* SQuAD's JSON has articles in 'data'"),
        ("", "BioC JSON.* SQuAD's JSON has articles in 'data'"),
        ('[{"question": "q", "context": "c"}]', "found a list of questions.* each on a line of its own"),
    ],
)
def test_json_of_no_format_is_told_what_questions_look_like(tmp_path, text, told):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(RequestError, match=told):
        call(tmp_path / "a.json")
