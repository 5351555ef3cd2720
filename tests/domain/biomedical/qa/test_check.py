"""Checks of questions: the severity of each finding, in Python and on the command line."""

import json

import pytest
from typer.testing import CliRunner

from bertrelay.errors import RequestError
from domain.biomedical.qa.check import are_questions, check_questions
from domain.biomedical.qa.data import Answer, Question
from domain.biomedical.qa.question_files import write_questions
from pipelines.cli.app import app

COPIES = [Question(f"d{n}", f"Which {n}?", f"x {n} is", document="d") for n in range(2)]  # of contexts of good("x")
LONG = " ".join(["word"] * 31)


def good(name, count=5):
    """Questions of one context each; every one has an article of its own."""
    return [
        Question(f"{name}{n}", f"Which {n}?", f"{name} {n} is", (Answer(str(n), len(name) + 1),), document=f"{name}{n}")
        for n in range(count)
    ]


def squad_question(name, *answers, **more):
    golds = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": f"What of {name}?", "answers": golds, **more}


@pytest.fixture
def squad(tmp_path):
    def write(*qas, context="a fever, a rash", title="t", name="a.json"):
        articles = [{"title": title, "paragraphs": [{"context": context, "qas": list(qas)}]}]
        (tmp_path / name).write_text(json.dumps({"data": articles}))
        return tmp_path / name

    return write


@pytest.fixture
def written(tmp_path):
    def write(**splits):
        for split, questions in splits.items():
            write_questions(tmp_path / f"{split}.jsonl", questions, overwrite=True)
        return {split: tmp_path / f"{split}.jsonl" for split in splits}

    return write


def finding(files, check, **more):
    return next(entry for entry in check_questions(files, **more) if entry.check == check)


def call(*arguments):
    return CliRunner().invoke(app, ["data", "check", *map(str, arguments)], catch_exceptions=False)


def test_good_questions_are_good(written):
    findings = check_questions(written(train=good("train"), dev=good("dev"), test=good("test")))
    assert {finding.check: finding.summary for finding in findings if finding.severity != "good"} == {}
    leaks = [finding.check for finding in findings if finding.check.startswith("leaks")]
    assert leaks == ["leaks train/dev", "leaks train/test", "leaks dev/test"]


FEVER, OFF = squad_question("1", ("fever", 2)), squad_question("1", ("fever", 1))


@pytest.mark.parametrize(
    ("qas", "check", "severity", "counts", "message"),
    [
        ([OFF, squad_question("2", ("rash", 11), ("x", 0))], "offsets", "fail", [1, 1], ""),
        ([OFF, squad_question("2", ("rash", 11))], "offsets", "warn", [1, 0], ""),
        ([FEVER, squad_question("q9", ("chill", 2))], "offsets", "fail", [0, 1], "line 1, record q9"),
        ([FEVER, squad_question("1", ("rash", 11))], "ids", "fail", [1], "line 1, record 1 ("),
        ([FEVER, squad_question("q2", ("rash", 11), is_impossible=True)], "records", "fail", [1], "record q2"),
        ([FEVER, squad_question("2", is_impossible=True)], "answers", "good", [0], "1 impossible, 0 without"),
        ([FEVER, squad_question("2")], "answers", "warn", [1], ""),
        ([squad_question("2")], "answers", "fail", [1], "there is no answer to train on"),
    ],
)
def test_what_is_wrong_in_a_file_is_counted_with_the_first(squad, qas, check, severity, counts, message):
    result = finding({"train": squad(*qas)}, check)
    assert (result.severity, list(result.counts.values())) == (severity, counts)
    assert message in result.summary


def in_both(first, second, **more):
    """A question of each of two splits."""
    return {split: [Question(split, "q", split, **{"document": split, **more})] for split in (first, second)}


@pytest.mark.parametrize(
    ("splits", "check", "severity", "counts"),
    [
        ({"train": [Question(n, "q", "c") for n in "12"]}, "duplicates", "warn", [1]),
        ({"train": [Question("1", "q", "c"), Question("3", "q", "other")]}, "duplicates", "good", [0]),
        ({"train": good("x", 300), "dev": [*good("y", 300), *COPIES]}, "leaks train/dev", "warn", [2, 0]),
        ({"train": good("x", 300), "dev": COPIES}, "leaks train/dev", "fail", [2, 0]),
        (in_both("train", "dev", document="d"), "leaks train/dev", "warn", [0, 1]),
        (in_both("train", "test", pool="p"), "leaks train/test", "fail", [0, 0]),
        ({"train": [Question("1", "why " * 65, "c")]}, "words in a question", "warn", [65, 1]),
        ({"train": [Question("2", "q", LONG, (Answer(LONG, 0),))]}, "words in an answer", "warn", [31, 1]),
    ],
)
def test_what_is_repeated_shared_or_long_is_counted(written, splits, check, severity, counts):
    leaks = finding(written(**splits), check)
    assert (leaks.severity, list(leaks.counts.values())) == (severity, counts)


def test_a_context_of_several_questions_counts_once(written):
    questions = [Question("1", "q", "c", document="d"), *(Question(n, n, LONG, document="e") for n in "23")]
    assert (
        finding(written(train=questions), "words in a context").summary == "train: median 1, 95 % up to 1, longest 31"
    )


def test_questions_in_the_place_of_contexts_are_found(written):
    swapped = [Question(f"{n}", f"Patient {n} takes aspirin against gout.", f"What of {n}?") for n in range(20)]
    result = finding(written(train=swapped), "swapped")
    assert (result.severity, result.counts) == ("fail", {"longer": 20})
    right = [Question(f"r{n}", question.context, question.question) for n, question in enumerate(swapped)]
    assert finding(written(train=[*swapped[:1], *right]), "swapped").severity == "warn"


def test_lengths_are_measured_in_a_models_subwords(written, tmp_path, tiny_encoder):
    tiny_encoder("bert", ["What is this a fever of many words"]).save(tmp_path / "model")
    context = "fever " * 100 + "many words"
    questions = [
        Question("roomy", "What " * 25, "fever", (Answer("fever", 0),), document="a"),  # with its text in one window
        Question("just", "What " * 24, context, (Answer("fever", 0),), document="a"),  # 40 subwords: 24, 13 and 3
        Question("long", "What " * 25, context, (Answer("fever", 0),), document="a"),
        Question("wide", "What", context, (Answer(context[: 6 * 37 - 1], 0),), document="a"),
        Question("late", "What", context, (Answer("many words", 600),), document="a"),
    ]
    files, more = written(train=questions), "; raise overlap; the first is question"
    of_question, of_answer, of_context = (
        finding(files, f"tokens in {part}", model=str(tmp_path / "model"))
        for part in ("a question", "an answer", "a context")
    )
    assert of_question.counts == {"longest": 25, "long": 0, "unfit": 1}
    assert f"leaves its text no space in a window{more} long in {files['train']}" in of_question.summary
    assert (of_answer.severity, of_answer.counts["unfit"]) == ("warn", 1)
    assert f"no window holds whole{more} wide" in of_answer.summary
    assert (of_context.severity, of_context.counts) == ("good", {"longest": 102, "long": 1, "unfit": 0})
    assert "longer than 40: 1 (read in windows)" in of_context.summary


def test_the_alignment_of_snippets_is_counted(tmp_path):
    snippets = [{"text": text, "document": text} for text in ("fever", "Fever", "pyrexia", "x", "y", "z", "u")]
    value = {"id": "1", "body": "q", "type": "factoid", "exact_answer": [["fever", "pyrexia"]], "snippets": snippets}
    path = {"train": tmp_path / "a.json"}
    path["train"].write_text(json.dumps({"questions": [value, {**value, "id": "2", "type": "yesno"}]}))
    assert finding(path, "records").summary == "7 read; left out: 1 × a question of the type yesno"
    assert finding(path, "offsets").summary == "no answer came with an offset"
    alignment = finding(path, "alignment")
    assert (alignment.severity, list(alignment.counts.values())) == ("warn", [1, 1, 1, 4])


def test_files_of_questions_are_known_from_others(written, squad, tmp_path):
    questions = written(train=good("x"))
    (tmp_path / "b.jsonl").write_text('{"id": "1", "text": "t", "entities": []}\n')
    (tmp_path / "c.json").write_text('{"source": "s", "documents": [{"id": "1", "passages": []}]}')
    (tmp_path / "d.tsv").write_text("a\tO\n")
    assert are_questions({**questions, "dev": squad(squad_question("1"))})
    assert not any(are_questions({"train": tmp_path / name}) for name in ("b.jsonl", "c.json", "d.tsv", "missing.json"))
    with pytest.raises(RequestError, match=r"train\.jsonl: expected files of one kind"):
        are_questions({**questions, "dev": tmp_path / "b.jsonl"})


def test_a_suffix_in_capitals_is_one_of_questions(squad):
    assert are_questions({"train": squad(squad_question("1", ("fever", 2)), name="A.JSON")})


def test_no_text_of_a_question_is_shown(squad):
    secret = "Xanthippe"
    broken = [
        squad_question("1", (secret, 0)),
        squad_question("2", question=secret, is_impossible=secret),
        squad_question("1"),
    ]
    path = squad(squad_question("0", ("fever", 1)), *broken, context=f"a fever {secret}s", title=secret)
    assert secret not in json.dumps([entry._asdict() for entry in check_questions({"train": path, "dev": path})])


def test_the_command_knows_questions(written, squad):
    files = written(train=good("train"), dev=good("dev"))
    result = call(*files.values(), "--json")
    document = json.loads(result.stdout)["result"]
    assert (result.exit_code, document["severity"], "offsets" in result.stdout) == (0, "good", True)
    assert document["files"] == {split: str(path) for split, path in files.items()}
    counts = {entry["check"]: entry["counts"] for entry in document["findings"]}
    assert counts["offsets"] == {"corrected": 0, "nowhere": 0}
    result = call(squad(squad_question("q9", ("chill", 2))), "--format", "squad")
    assert (result.exit_code, "fail  offsets" in result.stdout) == (1, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "BioC JSON.* SQuAD's JSON has articles in 'data'"),
        ('[{"question": "q", "context": "c"}]', "found a list of questions.* each on a line of its own"),
    ],
)
def test_json_of_no_format_is_refused_with_what_questions_are(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(RequestError, match=message):
        call(tmp_path / "a.json")
