"""BioASQ: the metrics of its evaluator on cases worked by hand, and files that it takes, from a tiny model."""

import json
import math

import pytest
import torch
from synthetic_questions import start_answerer
from typer.testing import CliRunner

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.stage import StageContext
from domain.biomedical.qa.bioasq import (
    Gold,
    best_list_margin,
    bioasq_metrics,
    exact_answers,
    list_score,
    score_bioasq,
    yesno_metrics,
)
from domain.biomedical.qa.data import Answer, Question
from domain.biomedical.qa.evaluate import run as evaluate
from domain.biomedical.qa.model import load_model, save_model, start_model
from domain.biomedical.qa.predict_bioasq import answer_bioasq
from domain.biomedical.qa.question_files import QuestionPath, question_items, read_questions, write_questions
from domain.biomedical.qa.settings import QaEvaluateSettings, QaSettings
from domain.biomedical.qa.spans import Spans
from domain.biomedical.qa.train import QaTask
from pipelines.cli.app import app

ALL = ["factoid", "list", "yesno"]
TEXTS = ["the patient of gout and flu", "no sign of asthma in the patient", "gold salts with insulin"]


def record(name, kind, exact=None, texts=TEXTS, body="mild"):
    gold = {} if exact is None else {"exact_answer": exact}
    return {"id": name, "type": kind, "body": body, "snippets": [{"text": text} for text in texts], **gold}


def write(path, *records):
    path.write_text(json.dumps({"questions": list(records)}, indent=0))
    return path


RECORDS = [
    record("f", "factoid", [["gout"]]),
    record("l", "list", [["gout"], ["flu", "influenza"], ["asthma"]]),
    record("y", "yesno", "Yes"),
    record("n", "yesno", "no"),
    record("s", "summary"),
    record("none", "list", [["x"]], texts=[]),
    record("silent", "yesno", "no", texts=[]),
]


# The evaluator


@pytest.mark.parametrize(
    ("answers", "golds", "expected"),
    [
        ([["b"], ["A"]], (("a", "aa"), ("b",)), (1, 1)),
        ([["a"], ["A"], ["x"]], (("a",), ("b",)), (1 / 3, 1 / 2)),  # a duplicate is a false positive
        ([["a"], ["aa"]], (("a", "aa"), ("b",)), (1 / 2, 1 / 2)),  # and so is a synonym of what was taken
        ([["x", "a"]], (("a",),), (0, 0)),  # of an entry the first wording counts
        ([[], ["a"]], (("a",),), (1 / 2, 1)),
        ([["a "], ["a."]], (("a",),), (0, 0)),  # nothing is trimmed
        ([], (("a",),), (0, 0)),
        ([["a"]], (("a", "b"), ("a",)), (1, 1)),  # a gold answer left over that an entry has is not missed
        ([["a"]] * 101, (("a",),), (1 / 101, 1)),  # nothing is cut
    ],
)
def test_lists_are_scored_as_the_evaluator_does(answers, golds, expected):
    precision, recall = expected
    f1 = 2 * precision * recall / (precision + recall) if precision else 0
    assert list_score(answers, golds) == pytest.approx((precision, recall, f1), abs=1e-9)


def test_the_f1_of_lists_is_the_mean_over_questions():
    golds = {"1": Gold("list", (("a",), ("b",))), "2": Gold("list", (("a",),)), "3": Gold("list", (("a",),))}
    metrics = bioasq_metrics({"1": [["a"]], "2": [["x"], ["a"]]}, golds)
    assert metrics["list/precision"] == pytest.approx(3 / 4, abs=1e-9)
    assert metrics["list/recall"] == pytest.approx(3 / 4, abs=1e-9)
    assert metrics["list/f1"] == pytest.approx(2 / 3, abs=1e-9)  # of the means it would be 3/4
    assert metrics["with_unanswered/list/f1"] == pytest.approx(4 / 9, abs=1e-9)
    assert metrics["list/unanswered"] == 1


def test_yes_and_no_are_scored_as_the_evaluator_does():
    golds = {name: Gold("yesno", yes=name < "d") for name in "abcdef"}  # three of each
    answers = {"a": "yes", "b": "YES, it does", "c": "not sure", "d": "no", "e": "none of them, yes"}
    metrics = bioasq_metrics(answers, golds)
    # Right: a, b, d. c has "no" in it, and e has "yes". f is left out.
    assert metrics["yesno/accuracy"] == pytest.approx(3 / 5, abs=1e-9)
    assert metrics["yesno/f1_yes"] == pytest.approx(4 / 6, abs=1e-9)
    assert metrics["yesno/f1_no"] == pytest.approx(2 / 4, abs=1e-9)
    assert metrics["yesno/macro_f1"] == pytest.approx(7 / 12, abs=1e-9)
    assert (metrics["with_unanswered/yesno/accuracy"], metrics["yesno/unanswered"]) == (0.5, 1)


def test_what_is_neither_yes_nor_no_counts_as_the_other_and_a_label_that_is_never_right_has_no_f1():
    assert bioasq_metrics({"a": "perhaps"}, {"a": Gold("yesno", yes=True)})["yesno/f1_no"] == 0
    all_yes = yesno_metrics("", [True, True], [True, True])
    assert (all_yes["accuracy"], all_yes["f1_yes"], all_yes["f1_no"], all_yes["macro_f1"]) == (1, 1, 0, 0.5)


def test_a_sixth_entry_of_a_factoid_answer_counts_and_an_empty_one_keeps_its_rank():
    golds = {"a": Gold("factoid", (("f",),)), "b": Gold("factoid", (("B", "beta"),))}
    metrics = bioasq_metrics({"a": [[letter] for letter in "abcdef"], "b": [[], ["x", "b"], ["BETA"]]}, golds)
    assert (metrics["strict_accuracy"], metrics["lenient_accuracy"]) == (0, 1)
    assert metrics["mrr"] == pytest.approx((1 / 6 + 1 / 3) / 2, abs=1e-9)


def test_files_are_scored_by_the_command_and_a_question_without_an_answer_is_wrong(tmp_path):
    gold = write(tmp_path / "gold.json", *RECORDS, record("open", "factoid"))
    given = [{"id": "f", "exact_answer": [["Gout"]]}, {"id": "l"}, {"id": "y", "exact_answer": "yes"}, {"id": "new"}]
    system = write(tmp_path / "system.json", *given)
    result = CliRunner().invoke(app, ["data", "score", str(gold), str(system), "--json"])
    metrics = json.loads(result.stdout)["result"]
    assert (metrics["mrr"], metrics["list/f1"], metrics["yesno/accuracy"]) == (1, 0, 1)
    assert (metrics["unanswered"], metrics["list/unanswered"], metrics["yesno/unanswered"]) == (0, 1, 2)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"id": "f", "exact_answer": ["gout", "flu"]}, "line 3, record f: .*expected a list of lists"),
        ({"id": "f", "exact_answer": None}, "line 3, record f"),
        ({"id": "f", "exact_answer": [["gout", None]]}, "line 3, record f"),
        ({"id": "y", "exact_answer": [["yes"]]}, "question y: expected .yes. or .no."),
        ({"id": "y"}, "question y: expected .yes. or .no."),
        ({"exact_answer": "yes"}, "line 3: "),
    ],
)
def test_a_file_that_the_evaluator_fails_at_is_refused_with_line_and_id(tmp_path, answer, error):
    gold = write(tmp_path / "gold.json", *RECORDS)
    with pytest.raises(RequestError, match=rf"system\.json, {error}"):
        score_bioasq(gold, write(tmp_path / "system.json", answer))


# Reading


def test_types_are_read_as_requested_and_kept_in_jsonl(tmp_path):
    path = write(tmp_path / "a.json", *RECORDS[:5])
    assert {question.pool for question in read_questions(path)} == {"f"}
    questions = [item for item in question_items(QuestionPath(path, types=ALL)) if isinstance(item, Question)]
    assert [(question.pool, question.answer_type, question.yes) for question in questions[::3]] == [
        ("f", "factoid", None),
        ("l", "list", None),
        ("y", "yesno", True),
        ("n", "yesno", False),
    ]
    assert [answer.text for answer in questions[3].answers] == ["gout", "flu"]
    write_questions(tmp_path / "a.jsonl", questions)
    assert list(read_questions(tmp_path / "a.jsonl")) == questions


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (record("y", "yesno", "perhaps"), "record y: .*expected yes or no"),
        (record("q", "essay"), "record q: .*type"),
        (record("f", "factoid"), "record f: an id that another question has"),
        ({"id": "q", "type": "list"}, "record q: .*body"),
    ],
)
def test_a_file_with_a_bad_question_is_refused_with_line_and_id(tmp_path, bad, error):
    path = write(tmp_path / "bad.json", RECORDS[0], bad)
    with pytest.raises(RequestError, match=rf"bad.json, line \d+, {error}"):
        answer_bioasq("none", path, tmp_path / "out.json")


# Answering


def test_entries_of_lists_are_apart_distinct_short_and_near_the_best():
    text = "gout or flu or " + "x" * 101
    spans = Spans([0] * 4, [0, 0, 8, 15], [4, 7, 11, 116], [5.0, 4.9, 4.0, 3.9], 0.0)
    other = Spans([0, 0], [0, 5], [4, 8], [3.5, 1.0], 0.0)
    pool = [(Question("q_1", "?", text, pool="q", answer_type="list"), spans)]
    pool += [(Question("q_2", "?", "GOUT rash", pool="q", answer_type="list"), other)]
    assert exact_answers(pool, 1.0) == {"q": [["gout"], ["flu"]]}
    assert exact_answers(pool, 4.0) == {"q": [["gout"], ["flu"], ["ras"]]}
    assert exact_answers(pool, 0.0) == {"q": [["gout"]]}


def test_the_margin_of_lists_is_the_one_with_the_best_mean_f1():
    def pool(golds, scores):
        words = ["gout", "flu", "rash"]
        question = Question("q", "?", " ".join(words), synonyms=golds, answer_type="list")
        return [(question, Spans([0] * 3, [0, 5, 9], [4, 8, 13], scores, 0.0))]

    pools = [pool((("gout",), ("flu",)), [3.0, 2.0, 0.0]), pool((("gout",),), [3.0, 1.5, 0.0])]
    assert best_list_margin(pools) == pytest.approx(1.25)  # between the gaps 1, which is right, and 1.5
    assert best_list_margin([[(Question("q", "?", "gout"), Spans([], [], [], [], None))]]) is None


@pytest.fixture(scope="module")
def folder(tiny_bert, tmp_path_factory):
    """A random answerer with a yes/no head."""
    model = start_answerer(tiny_bert, max_tokens=40, overlap=26, max_answer_tokens=3)
    model.network.add_yesno(1)
    folder = tmp_path_factory.mktemp("bioasq") / "model"
    save_model(model, folder)
    return folder


def faults(path, asked):
    """What the evaluator and the rules of a submission forbid, written from these alone."""
    given = {}
    for question in json.loads(path.read_text())["questions"]:
        assert question["id"] not in given
        given[question["id"]] = question
    listed = [f"{name} is missing" for name in asked.keys() - given.keys()]
    for name, kind in asked.items():
        answer = given[name].get("exact_answer", "absent")
        if kind == "yesno" and answer not in ("yes", "no"):
            listed.append(f"{name}: neither yes nor no")
        if kind in ("factoid", "list"):
            is_nested = isinstance(answer, list) and all(
                isinstance(entry, list) and len(entry) == 1 and isinstance(entry[0], str) for entry in answer
            )
            if not is_nested or len(answer) > {"factoid": 5, "list": 100}[kind]:
                listed.append(f"{name}: {answer}")
            elif any(not 0 < len(text) <= 100 for (text,) in answer):
                listed.append(f"{name}: too long or empty")
            elif len({text.lower() for (text,) in answer}) < len(answer):
                listed.append(f"{name}: twice")
    return listed


def test_the_evaluator_takes_what_is_written(folder, tmp_path):
    many = record("many", "list", texts=[f"{text} {number}" for number in range(40) for text in TEXTS])
    questions, output = write(tmp_path / "q.json", *RECORDS, many), tmp_path / "answers.json"
    (folder / "qa.json").write_text(json.dumps(json.loads((folder / "qa.json").read_text()) | {"list_margin": 50.0}))
    command = ["qa", "bioasq", str(folder), str(questions), str(output), "--max-rejects", "1", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    counts = json.loads(result.stdout)["result"]
    assert faults(output, {question["id"]: question["type"] for question in [*RECORDS, many]}) == []
    given = {question["id"]: question.get("exact_answer") for question in json.loads(output.read_text())["questions"]}
    assert list(given) == ["f", "l", "y", "n", "s", "none", "silent", "many"]
    assert (len(given["f"]), len(given["many"]) > 5, given["none"], given["s"]) == (5, True, [], None)
    assert (counts["questions"], counts["list"], counts["summary"], counts["unanswered"]) == (8, 3, 1, 2)
    assert set(score_bioasq(questions, output)) >= {"mrr", "list/f1", "yesno/macro_f1"}


def test_an_evaluation_scores_as_the_file_that_is_written(folder, tmp_path):
    questions, output = write(tmp_path / "q.json", *RECORDS[:4]), tmp_path / "answers.json"
    answer_bioasq(folder, questions, output, precision="fp32")
    settings = {"model": str(folder), "test": [{"path": str(questions), "types": ALL}], "precision": "fp32"}
    (tmp_path / "scores").mkdir()
    context = StageContext(tmp_path / "scores", Cache(tmp_path / "cache"))
    metrics = evaluate(QaEvaluateSettings.model_validate(settings), context)
    of_file = score_bioasq(questions, output)
    assert {name: metrics[name] for name in of_file} == of_file


# Training


def test_lists_train_on_every_answer_and_yes_and_no_on_the_head(folder):
    text = "gout and flu"
    golds = (Answer("gout", 0), Answer("flu", 9))
    questions = [
        Question("1", "mild", text, golds, answer_type="list"),
        Question("2", "mild", text, golds),
        Question("3", "mild", text, answer_type="yesno", yes=True),
        Question("4", "mild", text, answer_type="yesno", yes=False),
    ]
    settings = QaSettings.model_validate({"base": str(folder), "train": [{"path": "none"}], "max_tokens": 40})
    model = start_model(settings)  # from a folder with the head
    model.network.eval()
    losses = []
    for question in questions:
        task = QaTask(model, settings, [question], [], Rejects(None, 1.0), ComputePrecision.FP32)
        losses.append(float(task.loss(model.network, task.collate(torch.arange(1).numpy(), 1))["answer"].detach()))
    inputs = task.collate(torch.arange(1).numpy(), 1).inputs
    beside = {"answers", "yes", "has_all"}
    scores = model.network(**{name: values for name, values in inputs.items() if name not in beside}).detach()
    begin = 3  # [CLS] mild [SEP]
    logs = scores[0, :, :2].log_softmax(0)
    gout, flu = (float(logs[begin + at, 0] + logs[begin + at, 1]) for at in (0, 2))
    yes = float(scores[0, 0, 2])
    assert losses[0] == pytest.approx(-(gout + flu) / 2, abs=1e-4)
    assert losses[1] == pytest.approx(-math.log(math.exp(gout) + math.exp(flu)), abs=1e-4)
    assert losses[2] == pytest.approx(math.log1p(math.exp(-yes)), abs=1e-4)
    assert losses[3] == pytest.approx(math.log1p(math.exp(yes)), abs=1e-4)


def test_the_head_is_saved_beside_a_plain_folder(folder, tmp_path):
    model = load_model(folder)
    assert model.network.yesno is not None
    save_model(model, tmp_path / "copy")
    copied = load_model(tmp_path / "copy").network.yesno
    assert torch.equal(copied.weight, model.network.yesno.weight)
    (tmp_path / "copy" / "yesno.safetensors").write_bytes(b"{")
    with pytest.raises(RequestError, match=r"yesno\.safetensors"):
        load_model(tmp_path / "copy")
