"""`bertrelay qa answer`: tables and JSON in, every output, a page."""

import csv
import io
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrelay.errors import RequestError, WorkError
from domain.biomedical import QuestionAnswerer, answer_file
from domain.biomedical.qa.predict_files import QuestionFile, scan

SHORT = "The mice had fever of BRCA1. The 𝒢out <b>p53</b>, gout in rats."
LONG = " ".join(f"gout ({n}) of p53, in the rats. BRCA1 < fever of the mice." for n in range(40))
ASKED = [("Who had gout?", SHORT), ("fever in mice?", LONG), ("who, of p53?", LONG)]


@pytest.fixture
def questions(write_lines):
    rows = [{"id": f"q{n}", "question": question, "context": text} for n, (question, text) in enumerate(ASKED)]
    return write_lines("questions.jsonl", map(json.dumps, rows))


@pytest.fixture(scope="module")
def expected(answerer):
    """(answer, start, end, sentence) of each question, in Python."""
    replies = QuestionAnswerer.load(answerer)(ASKED, precision="fp32")
    found = [(reply.answer, reply.start, reply.end, reply.sentence) for reply in replies]
    assert len(set(found)) == 3
    assert found[1][1] > 200 or found[2][1] > 200  # beyond the first window
    return found


def answers(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def of(row):
    return row["answer"], row["start"], row["end"], row["sentence"]


def test_jsonl_has_answer_offsets_probability_sentence_and_candidates(call, answerer, questions, expected, tmp_path):
    out = call("qa", "answer", answerer, questions, tmp_path / "a.jsonl", "--precision", "fp32", "--top", 3)
    rows = answers(tmp_path / "a.jsonl")
    assert [row["id"] for row in rows] == ["q0", "q1", "q2"]
    assert [of(row) for row in rows] == expected
    for row, (_, text) in zip(rows, ASKED, strict=True):
        assert list(row) == ["id", "answer", "start", "end", "probability", "sentence", "nbest"]
        assert [text[each["start"] : each["end"]] for each in row["nbest"]] == [each["answer"] for each in row["nbest"]]
        assert len(row["nbest"]) == 3
        assert row["nbest"][0].items() <= row.items()
        assert row["answer"] in row["sentence"] in text
        assert 0 < row["probability"] <= 1
    assert out == f"{tmp_path / 'a.jsonl'}: 3 questions\n"
    assert {path.name for path in tmp_path.iterdir()} == {"questions.jsonl", "a.jsonl"}


def test_tables_have_the_best_answer_flat(call, answerer, questions, expected, tmp_path):
    call("qa", "answer", answerer, questions, tmp_path / "a.csv", "--precision", "fp32")
    call("qa", "answer", answerer, questions, tmp_path / "a.parquet", "--precision", "fp32")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        flat = [(r["answer"], int(r["start"]), int(r["end"]), r["sentence"]) for r in csv.DictReader(file)]
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["id", "answer", "start", "end", "probability", "sentence"]
    assert flat == [of(row) for row in table.to_pylist()] == expected


def test_no_answer_is_an_empty_text_without_a_place(call, save_answerer, questions, tmp_path):
    doubting = save_answerer(threshold=-1e6)
    out = call("qa", "answer", doubting, questions, tmp_path / "a.jsonl", "--html", tmp_path / "a.html")
    assert out.endswith(": 3 questions, 3 without answer\n")
    assert {of(row) for row in answers(tmp_path / "a.jsonl")} == {("", None, None, "")}
    assert (tmp_path / "a.html").read_text(encoding="utf-8").count("no answer in this text") == 3
    for suffix in ("parquet", "csv"):
        call("qa", "answer", doubting, questions, tmp_path / f"a.{suffix}")
    assert {of(row) for row in pq.read_table(tmp_path / "a.parquet").to_pylist()} == {("", None, None, "")}
    assert (tmp_path / "a.csv").read_text().splitlines()[1].startswith("q0,,,,")


def test_other_columns_and_rows_without_ids(call, answerer, expected, tmp_path):
    with (tmp_path / "q.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("asked", "text"), *ASKED])
    columns = ["--question", "asked", "--context", "text", "--precision", "fp32"]
    call("qa", "answer", answerer, tmp_path / "q.csv", tmp_path / "a.jsonl", *columns)
    rows = [(row["id"], of(row)) for row in answers(tmp_path / "a.jsonl")]
    assert rows == list(zip("234", expected, strict=True))


def test_an_id_is_that_of_its_row_or_else_its_line(answerer, write_lines, tmp_path):
    row = {"question": "gout?", "context": SHORT}
    for first, second, names in ((row, {**row, "id": "q7"}, ["1", "q7"]), ({**row, "id": 5}, row, ["5", "2"])):
        file = write_lines("q.jsonl", map(json.dumps, (first, second)))
        answer_file(answerer, file, tmp_path / "a.jsonl", overwrite=True)
        assert [each["id"] for each in answers(tmp_path / "a.jsonl")] == names
    floats = {"id": [1.0, 2.0], **{name: [text] * 2 for name, text in row.items()}}  # as pandas has ids after a gap
    pq.write_table(pa.table(floats), tmp_path / "q.parquet")
    answer_file(answerer, tmp_path / "q.parquet", tmp_path / "a.jsonl", overwrite=True)
    assert [each["id"] for each in answers(tmp_path / "a.jsonl")] == ["1", "2"]


def test_fields_of_jsonl_are_kept_on_request(call, answerer, write_lines, tmp_path):
    rows = [{"question": "gout?", "context": SHORT, "PMID": 7, "mesh": ["a"]}, {"question": "p53?", "context": SHORT}]
    file = write_lines("q.jsonl", map(json.dumps, rows))
    call("qa", "answer", answerer, file, tmp_path / "a.jsonl", "--keep", "PMID", "--keep", "mesh")
    assert [(row["PMID"], row["mesh"]) for row in answers(tmp_path / "a.jsonl")] == [(7, ["a"]), (None, None)]
    for output, keep, message in (
        ("b.csv", "PMID", "keep: only from JSONL to JSONL"),
        ("b.jsonl", "year", "found none named year"),
        ("b.jsonl", "start", "keep: start of each answer is written"),
    ):
        with pytest.raises(RequestError, match=message):
            answer_file(answerer, file, tmp_path / output, keep=[keep])


def test_a_page_marks_every_answer_and_shows_markup_as_text(call, answerer, questions, expected, tmp_path):
    html = tmp_path / "a.html"
    call("qa", "answer", answerer, questions, tmp_path / "a.jsonl", "--html", html, "--precision", "fp32")
    page = html.read_text(encoding="utf-8")
    assert "3 questions about 2 contexts" in page
    assert "<b>p53" not in page
    assert not re.search(r"(?:src|href)=[\"']?http|<script", page)
    contexts = re.findall(r'<p class="marked" dir="auto">(.*?)</p>', page, flags=re.DOTALL)
    assert [strip(context) for context in contexts] == [SHORT, LONG]
    first = re.findall(r"<mark[^>]*>(.*?)</mark>", contexts[0])
    assert [strip(each) for each in first] == [expected[0][0]]


def strip(html):
    for sign, entity in (("", r"<[^>]+>"), ("<", "&lt;"), (">", "&gt;"), ("&", "&amp;")):
        html = re.sub(entity, sign, html)
    return html


def test_what_cannot_be_asked_is_counted_and_listed_with_its_id(call, answerer, write_lines, tmp_path):
    rows = [{"id": f"q{n}", "question": "gout?", "context": SHORT} for n in range(6)]
    rows[1]["question"], rows[2]["context"], rows[4]["id"], rows[5]["id"] = " ", "", "q0", ""
    source = write_lines("q.jsonl", map(json.dumps, rows))
    out = call("qa", "answer", answerer, source, tmp_path / "a.jsonl", "--max-rejects", 0.7)
    assert out.endswith(": 2 questions, 4 rejected\n")
    assert [row["id"] for row in answers(tmp_path / "a.jsonl")] == ["q0", "q3"]
    listed = answers(tmp_path / "a.jsonl.rejects.jsonl")
    assert [(each["line"], each.get("record", "")) for each in listed] == [(2, "q1"), (3, "q2"), (5, "q0"), (6, "")]
    assert [each["reason"].split()[-1] for each in listed] == ["question", "context", "has", "id"]
    with pytest.raises(
        WorkError, match=r"4 of 6 records cannot be used.*first is .*line 2, record q1.*lists them.*max_rejects"
    ):
        answer_file(answerer, source, tmp_path / "b.jsonl")


def test_standard_input_is_json_or_what_it_is_said_to_be(call, answerer, questions, expected, tmp_path):
    table = io.StringIO()
    csv.writer(table).writerows([("question", "context"), *ASKED])
    output = (tmp_path / "a.jsonl", "--overwrite")
    for stdin, options in [(questions.read_text(), []), (table.getvalue(), ["--input-format", "csv"])]:
        call("qa", "answer", answerer, "-", *output, "--precision", "fp32", *options, stdin=stdin)
        assert [of(row) for row in answers(tmp_path / "a.jsonl")] == expected
    with pytest.raises(RequestError, match="standard input: expected JSON, found something else"):
        call("qa", "answer", answerer, "-", *output, stdin=table.getvalue())
    assert {path.name for path in tmp_path.iterdir()} == {"questions.jsonl", "a.jsonl"}


def test_an_over_long_question_is_reported_with_its_id_and_the_others_are_answered(
    call, answerer, write_lines, tmp_path, capsys
):
    rows = [("q0", "gout?"), ("q1", "who had the gout of the mice in rats , " * 5), ("q2", "fever?")]
    lines = [json.dumps({"id": name, "question": question, "context": LONG}) for name, question in rows]
    source, page = write_lines("q.jsonl", lines), tmp_path / "a.html"
    assert "1 too long" in call("qa", "answer", answerer, source, tmp_path / "a.jsonl", "--html", page)
    logged = capsys.readouterr().err
    assert "1 questions are left without an answer, 'q1' the first: too long: with special tokens" in logged
    found = answers(tmp_path / "a.jsonl")
    assert [bool(row["answer"]) for row in found] == [True, False, True]
    assert (found[1]["probability"], found[1]["nbest"]) == (None, [])
    assert "too long to be asked of this model" in page.read_text(encoding="utf-8")


def test_questions_in_the_place_of_contexts_are_said_before_the_work(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("context,question\n" + "What of it?,Aspirin helps against gout.\n" * 20)
    scan(QuestionFile(path), tmp_path / "rejects", 0.01)
    expected = "20 of 20 questions are longer than their contexts; are the two columns swapped?"
    assert expected in capsys.readouterr().err
