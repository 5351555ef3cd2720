"""`bertrelay qa answer`: tables and JSON in, every output, a page, several processes, killed and resumed."""

import csv
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from bertrelay.errors import RequestError, WorkError
from domain.biomedical import QuestionAnswerer, answer_file

WORDS = ["gout", "fever", "mice", "had", "the", "of", "BRCA1", "p53", "in", "rats", "who", "(", ")", ".", ",", "<", ">"]
SHORT = "The mice had fever of BRCA1. The 𝒢out <b>p53</b>, gout in rats."
LONG = " ".join(f"gout ({n}) of p53, in the rats. BRCA1 < fever of the mice." for n in range(40))
ASKED = [("Who had gout?", SHORT), ("fever in mice?", LONG), ("who, of p53?", LONG)]


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    """The folder of a random model that answers, from windows of 48 pieces."""
    return saved(tmp_path_factory.mktemp("answerer"))


@pytest.fixture(scope="module")
def doubting(tmp_path_factory):
    """The folder of one that holds nothing to be answered."""
    return saved(tmp_path_factory.mktemp("doubting"), threshold=-1e6)


def saved(folder, **settings):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import AutoModelForQuestionAnswering, BertConfig, PreTrainedTokenizerFast

    from domain.biomedical.qa.model import AnswerFinder, AnswerModel, save_model

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    rules = Tokenizer(models.WordLevel({piece: row for row, piece in enumerate(pieces)}, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    network = AutoModelForQuestionAnswering.from_config(
        BertConfig(vocab_size=len(pieces), max_position_embeddings=64, **sizes)
    )
    torch.manual_seed(11)
    for weight in network.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.7)  # so that scores depend on words and on their neighbours
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, **named)
    save_model(AnswerModel(AnswerFinder(network), tokenizer, 48, 16, 8, **settings), folder)
    return folder


@pytest.fixture
def questions(write_lines):
    rows = [{"id": f"q{n}", "question": question, "context": text} for n, (question, text) in enumerate(ASKED)]
    return write_lines("questions.jsonl", map(json.dumps, rows))


@pytest.fixture
def expected(answerer):
    """(answer, start, end, sentence) of each question, in Python."""
    replies = QuestionAnswerer.load(answerer).answer_many(ASKED, precision="fp32")
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
    assert out == f"3 questions answered, in {tmp_path / 'a.jsonl'}\n"
    assert {path.name for path in tmp_path.iterdir()} == {"questions.jsonl", "a.jsonl"}


def test_tables_have_the_best_answer_flat(call, answerer, questions, expected, tmp_path):
    call("qa", "answer", answerer, questions, tmp_path / "a.csv", "--precision", "fp32")
    call("qa", "answer", answerer, questions, tmp_path / "a.parquet", "--precision", "fp32")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        flat = [(r["answer"], int(r["start"]), int(r["end"]), r["sentence"]) for r in csv.DictReader(file)]
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["id", "answer", "start", "end", "probability", "sentence"]
    assert flat == [of(row) for row in table.to_pylist()] == expected


def test_no_answer_is_an_empty_text_without_a_place(call, doubting, questions, tmp_path):
    out = call("qa", "answer", doubting, questions, tmp_path / "a.jsonl", "--html", tmp_path / "a.html")
    assert "3 questions answered, 3 of them without an answer" in out
    assert {of(row) for row in answers(tmp_path / "a.jsonl")} == {("", None, None, "")}
    assert (tmp_path / "a.html").read_text(encoding="utf-8").count("no answer in this text") == 3
    call("qa", "answer", doubting, questions, tmp_path / "a.parquet")
    assert {of(row) for row in pq.read_table(tmp_path / "a.parquet").to_pylist()} == {("", None, None, "")}
    call("qa", "answer", doubting, questions, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().splitlines()[1].startswith("q0,,,,")


def test_other_columns_and_rows_without_ids(call, answerer, expected, tmp_path):
    with (tmp_path / "q.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("asked", "text"), *ASKED])
    columns = ["--question", "asked", "--context", "text", "--precision", "fp32"]
    call("qa", "answer", answerer, tmp_path / "q.csv", tmp_path / "a.jsonl", *columns)
    rows = answers(tmp_path / "a.jsonl")
    assert [of(row) for row in rows] == expected
    assert [row["id"] for row in rows] == ["2", "3", "4"]


def test_squad_is_read_with_its_ids_and_bioasq_snippet_by_snippet(call, answerer, expected, tmp_path):
    qas = [{"id": n, "question": question, "answers": []} for n, (question, _) in enumerate(ASKED)]
    paragraphs = [{"context": SHORT, "qas": qas[:1]}, {"context": LONG, "qas": qas[1:]}]
    (tmp_path / "q.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    call("qa", "answer", answerer, tmp_path / "q.json", tmp_path / "a.jsonl", "--precision", "fp32")
    assert [(row["id"], of(row)) for row in answers(tmp_path / "a.jsonl")] == list(zip("012", expected, strict=True))

    snippets = [{"text": SHORT}, {"text": LONG}]
    asked = {"id": "b", "body": ASKED[0][0], "type": "factoid", "exact_answer": ["gout"], "snippets": snippets}
    (tmp_path / "b.json").write_text(json.dumps({"questions": [asked]}))
    call("qa", "answer", answerer, tmp_path / "b.json", tmp_path / "b.jsonl", "--precision", "fp32")
    rows = answers(tmp_path / "b.jsonl")
    assert [row["id"] for row in rows] == ["b_001", "b_002"]
    assert of(rows[0]) == expected[0]


def test_what_is_read_over_is_told_once(answerer, tmp_path, capsys):
    factoid = {"id": "b", "body": ASKED[0][0], "type": "factoid", "snippets": [{"text": SHORT}]}
    (tmp_path / "b.json").write_text(json.dumps({"questions": [factoid, {**factoid, "id": "c", "type": "list"}]}))
    answer_file(answerer, tmp_path / "b.json", tmp_path / "b.jsonl", page=tmp_path / "b.html")
    assert capsys.readouterr().err.count("left out: 1 × a question of the type list") == 1


def test_a_page_marks_every_answer_and_shows_markup_as_text(call, answerer, questions, expected, tmp_path):
    call(
        "qa", "answer", answerer, questions, tmp_path / "a.jsonl", "--html", tmp_path / "a.html", "--precision", "fp32"
    )
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "3 questions about 2 contexts" in page
    assert "<b>p53" not in page
    assert not re.search(r"(?:src|href)=[\"']?http|<script", page)
    contexts = re.findall(r'<p class="marked" dir="auto">(.*?)</p>', page, flags=re.DOTALL)
    assert [strip(context) for context in contexts] == [SHORT, LONG]
    first = re.findall(r"<mark[^>]*>(.*?)</mark>", contexts[0])
    assert [strip(each) for each in first] == [expected[0][0]]
    links = re.findall(r'href="#([\w-]+)"', page)
    assert len(links) == 3
    assert all(page.count(f'id="{link}"') == 1 for link in links)


def strip(html):
    for sign, entity in (("", r"<[^>]+>"), ("<", "&lt;"), (">", "&gt;"), ("&", "&amp;")):
        html = re.sub(entity, sign, html)
    return html


def test_the_summary_is_one_json_document(call, answerer, questions, tmp_path):
    told = json.loads(call("qa", "answer", answerer, questions, tmp_path / "a.jsonl", "--json"))
    assert told.pop("questions_per_second") > 0
    counts = {"questions": 3, "without_answer": 0, "too_long": 0, "rejected": 0}
    assert told == {"output": str(tmp_path / "a.jsonl"), **counts}


def test_what_cannot_be_asked_is_counted_and_listed_with_its_id(call, answerer, write_lines, tmp_path):
    rows = [{"id": f"q{n}", "question": "gout?", "context": SHORT} for n in range(6)]
    rows[1]["question"], rows[2]["context"], rows[4]["id"], rows[5]["id"] = " ", "", "q0", None
    source = write_lines("q.jsonl", map(json.dumps, rows))
    out = call("qa", "answer", answerer, source, tmp_path / "a.jsonl", "--max-rejects", 0.7)
    assert "left out: 4 unusable, listed beside it\n" in out
    assert [row["id"] for row in answers(tmp_path / "a.jsonl")] == ["q0", "q3"]
    listed = answers(tmp_path / "a.jsonl.rejects.jsonl")
    assert [(each["line"], each.get("record", "")) for each in listed] == [(2, "q1"), (3, "q2"), (5, "q0"), (6, "")]
    assert [each["reason"].split()[-1] for each in listed] == ["question", "context", "has", "id"]
    with pytest.raises(
        WorkError, match=r"4 of 6 records cannot be used.*first is .*line 2, record q1.*lists them.*max_rejects"
    ):
        answer_file(answerer, source, tmp_path / "b.jsonl")


def test_an_over_long_question_is_told_with_its_id_and_the_others_are_answered(answerer, write_lines, tmp_path):
    rows = [("q0", "gout?"), ("q1", "who had the gout of the mice in rats , " * 5), ("q2", "fever?")]
    lines = [json.dumps({"id": name, "question": question, "context": LONG}) for name, question in rows]
    source, page = write_lines("q.jsonl", lines), tmp_path / "a.html"
    done = subprocess.run(
        [sys.executable, "-m", "pipelines", "qa", "answer", answerer, source, tmp_path / "a.jsonl", "--html", page],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "left out: 1 too long\n" in done.stdout
    assert "1 questions are left without an answer, 'q1' the first: too long: a window of 48 subwords" in done.stderr
    found = answers(tmp_path / "a.jsonl")
    assert [bool(row["answer"]) for row in found] == [True, False, True]
    assert (found[1]["probability"], found[1]["nbest"]) == (None, [])
    assert "too long to be asked of this model" in page.read_text(encoding="utf-8")


FILES = {
    "questions.jsonl": json.dumps({"id": 1, "question": "gout?", "context": SHORT}),
    "none.jsonl": "",
    "other.csv": "id,context\n1,gout",
    "shape.json": '{"rows": [1]}',
    "empty.json": '{"data": []}',
}


WRONG = [
    (["MODEL", "questions.jsonl", "a.txt"], r"expected a file that ends in \.jsonl or \.csv or \.parquet, found a"),
    (["MODEL", "questions.jsonl", "none/a.jsonl"], "there is no folder none to write a.jsonl into; make it first"),
    (["MODEL", "questions.jsonl", "questions.jsonl"], "is the input itself; name another"),
    (["MODEL", "questions.jsonl", "a.jsonl", "--html", "a.pdf"], r"--html: expected a file that ends in \.html"),
    (["MODEL", "questions.jsonl", "a.jsonl", "--top", "21"], r"--top.*20"),
    (["MODEL", "nowhere.csv", "a.jsonl"], r"there is no file nowhere\.csv"),
    (["MODEL", "none.jsonl", "a.jsonl"], r"none\.jsonl has no records"),
    (["MODEL", "other.csv", "a.jsonl"], r"other\.csv has no column 'question'"),
    (["MODEL", "shape.json", "a.jsonl"], r"shape\.json: expected questions, found JSON of another shape"),
    (["MODEL", "empty.json", "a.jsonl"], r"empty\.json: expected questions \(squad\), found none"),
    (["MODEL", "questions.jsonl", "a.jsonl", "--id", "name"], "has no column 'name'.*Its columns are id, question"),
    (["./none", "questions.jsonl", "a.jsonl"], "model: expected .*folder, found none at .*none"),
]


def test_a_wrong_request_ends_with_2_and_loads_no_torch(refused, answerer, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    asked = [[answerer if word == "MODEL" else word for word in arguments] for arguments, _ in WRONG]
    for (code, words), (_, told) in zip(refused(["qa", "answer", *each] for each in asked), WRONG, strict=True):
        assert code == 2 and re.search(told, words), words
    assert {path.name for path in tmp_path.iterdir()} == FILES.keys()


def test_a_model_of_another_task_is_told(model, questions, tmp_path):
    with pytest.raises(RequestError, match="model: expected one that answers questions, found none in"):
        answer_file(model, questions, tmp_path / "a.jsonl")


def test_a_recipe_answers_questions(call, answerer, questions, expected, write_lines, tmp_path):
    stage = (
        f'uses = "domain.qa-answer"\nmodel = "{answerer}"\nquestions = "{questions}"\nprecision = "fp32"\npage = true'
    )
    recipe = write_lines("r.toml", ["[t]", stage])
    assert "questions 3" in call("run", recipe, "--runs", tmp_path / "runs")
    folder = tmp_path / "runs/r/t/latest"
    assert [of(row) for row in answers(folder / "answers.jsonl")] == expected
    assert (folder / "answers.html").is_file()
    assert "SKIP" in call("run", recipe, "--runs", tmp_path / "runs", "--set", "t.batch_tokens=64")


# Killed and shared

SMALL_BLOCKS = """
import domain.biomedical.qa.answering as files
files.BLOCK_CHARACTERS = 10_000
from pipelines.cli import main
main()
"""


@pytest.fixture
def start(answerer, tmp_path):
    """Starts `bertrelay qa answer` as a user or a launcher does, with blocks of 10,000 characters; none lives on."""
    started = []

    def start_one(output, *options, **environment):
        words = ["qa", "answer", answerer, "many.jsonl", output, "--precision", "fp32", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", **environment}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-c", SMALL_BLOCKS, *words], cwd=tmp_path, env=environment, **pipes)
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def many(write_lines, monkeypatch):
    """Many questions, which are answered in blocks of 10,000 characters here too."""
    monkeypatch.setattr("domain.biomedical.qa.answering.BLOCK_CHARACTERS", 10_000)
    asked = [{"id": n, "question": ASKED[n % 3][0], "context": f"{n} of {SHORT * (n % 5 + 1)}"} for n in range(1_500)]
    write_lines("many.jsonl", map(json.dumps, asked))
    return asked


def wait_for_parts(process, folder, count):
    while len(list(folder.glob("0*.jsonl"))) < count:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def finished(process):
    out, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    return out, told


def test_killed_again_and_again_it_goes_on_to_the_same_bytes(
    start, call, answerer, many, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    parts = tmp_path / "out.jsonl.partial"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    workers = [start("out.jsonl", RANK=str(rank), **shared) for rank in range(2)]
    wait_for_parts(workers[0], parts, 3)
    for worker in workers:
        worker.kill()
        assert worker.wait() == -signal.SIGKILL
    assert not (tmp_path / "out.jsonl").exists()

    out = call("qa", "answer", answerer, "many.jsonl", "out.jsonl", "--precision", "fp32", "--html", "out.html")
    assert "answering: resuming after" in capsys.readouterr().err
    assert "1,500 questions answered" in out
    call("qa", "answer", answerer, "many.jsonl", "whole.jsonl", "--precision", "fp32")
    assert "resuming after" not in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert [row["id"] for row in answers(tmp_path / "out.jsonl")] == [str(each["id"]) for each in many]
    assert {path.name for path in tmp_path.iterdir()} == {"many.jsonl", "out.jsonl", "out.html", "whole.jsonl"}


def test_processes_of_our_own_give_the_same_bytes(start, call, answerer, write_lines, tmp_path):
    write_lines("many.jsonl", [json.dumps({"question": question, "context": text}) for question, text in ASKED])
    summary, _ = finished(start("two.jsonl", "--processes", "2", "--json"))
    assert json.loads(summary)["questions"] == len(ASKED)
    call("qa", "answer", answerer, tmp_path / "many.jsonl", tmp_path / "one.jsonl", "--precision", "fp32")
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


def test_what_was_begun_for_other_questions_is_begun_again(cut_short, answerer, many, write_lines, tmp_path, capsys):
    cut_short(answer_file, answerer, tmp_path / "many.jsonl", tmp_path / "out.jsonl")
    assert len(list((tmp_path / "out.jsonl.partial").glob("0*.jsonl"))) == 1
    write_lines("many.jsonl", map(json.dumps, many[:10]))
    answer_file(answerer, tmp_path / "many.jsonl", tmp_path / "out.jsonl")
    assert "is of another model or input: restarting" in capsys.readouterr().err
    assert len(answers(tmp_path / "out.jsonl")) == 10


def test_standard_input_is_json_or_what_it_is_said_to_be(call, answerer, questions, expected, tmp_path):
    table = io.StringIO()
    csv.writer(table).writerows([("question", "context"), *ASKED])
    output = (tmp_path / "a.jsonl", "--overwrite")
    for stdin, options in [(questions.read_text(), []), (table.getvalue(), ["--input-format", "csv"])]:
        call("qa", "answer", answerer, "-", *output, "--precision", "fp32", *options, stdin=stdin)
        found = [(row["answer"], row["start"], row["end"], row["sentence"]) for row in answers(tmp_path / "a.jsonl")]
        assert found == expected
    with pytest.raises(RequestError, match="standard input: expected JSON, found something else"):
        call("qa", "answer", answerer, "-", *output, stdin=table.getvalue())
    assert {path.name for path in tmp_path.iterdir()} == {"questions.jsonl", "a.jsonl"}


def test_offsets_in_a_quoted_field_count_its_line_breaks_as_they_are(call, answerer, tmp_path):
    """Ten line breaks of two characters in front of a context shift its answer by twenty."""
    found = {}
    for breaks in ("", "\n" * 10, "\r\n" * 10):
        context = f"{breaks}{SHORT}"
        content = f'question,context\r\nWho had gout?,"{context}"\r\n'
        (tmp_path / "q.csv").write_bytes(content.encode())
        call("qa", "answer", answerer, tmp_path / "q.csv", tmp_path / "a.jsonl", "--precision", "fp32", "--overwrite")
        (row,) = answers(tmp_path / "a.jsonl")
        assert context[row["start"] : row["end"]] == row["answer"] != ""
        found[breaks] = row["start"]
    assert [start - found[""] for start in found.values()] == [0, 10, 20]
