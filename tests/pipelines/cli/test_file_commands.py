"""What every command that runs a model over a file promises: killed, resumed, shared by processes, wrong requests."""

import json
import re
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from forked import finish

from bertrelay.encode_files import encode_file
from bertrelay.errors import RequestError
from domain.biomedical import answer_file, tag_file, write_documents, write_questions
from domain.biomedical.documents.document import Document
from domain.biomedical.qa.data import Question
from domain.clinical import score_file
from teachers import rerank_file

FEVER, GOUT = "The mice had fever of BRCA1.", "gout (fever) of p53, in the rats"


class Command(NamedTuple):
    """One command. model: fixture of its model. lines: of an input of n items. block, size: what a shard is cut by."""

    words: str
    model: str
    input: str
    lines: Callable[[int], list[str]]
    block: str
    size: int
    function: Callable[..., Any]
    stage: str
    summary: str = ""


def documents(count: int) -> list[str]:
    texts = (f"{FEVER} {GOUT} in rats {n}." for n in range(count))
    return [json.dumps({"id": str(n), "text": text}) for n, text in enumerate(texts)]


def questions(count: int) -> list[str]:
    rows = (("Who had gout?", f"{n} of {FEVER * (n % 5 + 1)} {GOUT}") for n in range(count))
    return [json.dumps({"id": n, "question": asked, "context": text}) for n, (asked, text) in enumerate(rows)]


def pairs(count: int) -> list[str]:
    return ["sentence1,sentence2", *(f"a dog {n % 7},ein hund bellt {n % 5}" for n in range(count))]


def notes(count: int) -> list[str]:
    texts = ["the failing heart again. the wound is dry.", "slept well again.", ""]
    return ["hadm_id,text", *(f"{n % (count // 3)},{texts[n % 3]} qzx {n}" for n in range(count))]


COMMANDS = {
    "tag": Command(
        words="ner tag",
        model="tagger",
        input="documents.jsonl",
        lines=documents,
        block="domain.biomedical.ner.predict_files.BLOCK_CHARACTERS",
        size=2_000,
        function=tag_file,
        stage='uses = "domain.ner-tag"\ndocuments = "documents.jsonl"',
        summary="documents words entities linked relations rejected refused words_per_second",
    ),
    "answer": Command(
        words="qa answer",
        model="answerer",
        input="many.jsonl",
        lines=questions,
        block="domain.biomedical.qa.predict_files.BLOCK_CHARACTERS",
        size=8_000,
        function=answer_file,
        stage='uses = "domain.qa-answer"\nquestions = "many.jsonl"\npage = true',
        summary="questions without_answer too_long rejected questions_per_second",
    ),
    "rerank": Command(
        words="rerank",
        model="cross_encoder",
        input="many.csv",
        lines=pairs,
        block="teachers.pairs.rerank.BLOCK_PAIRS",
        size=100,
        function=rerank_file,
        stage='uses = "teachers.rerank"\npairs.path = "many.csv"',
        summary="pairs queries pairs_per_second",
    ),
    "score": Command(
        words="readmission score",
        model="readmission_model",
        input="many.csv",
        lines=notes,
        block="domain.clinical.predict_files.BLOCK_CHARACTERS",
        size=1_000,
        function=score_file,
        stage="",
    ),
}
SHARED = [name for name in COMMANDS if name != "score"]
"""Those that several processes share, and that are stages."""


@pytest.fixture
def command(request, monkeypatch, tmp_path):
    """(command, folder of its model), with small blocks here too, in the working directory."""
    found = COMMANDS[request.param]
    monkeypatch.setattr(found.block, found.size)
    monkeypatch.chdir(tmp_path)
    return found, request.getfixturevalue(found.model)


def shards_of(folder):
    return len(list(folder.glob("0*.jsonl")))


@pytest.mark.parametrize("command", ["score"], indirect=True)
def test_killed_it_leaves_no_text_of_a_note_and_resumes_to_the_same_bytes(
    command, call, start_forked, write_lines, tmp_path, capsys
):
    kind, model = command
    write_lines(kind.input, kind.lines(600))
    words = [*kind.words.split(), model, kind.input, "out.jsonl", "--precision", "fp32"]
    process, printed = start_forked(*words, constants={kind.block: kind.size})
    while shards_of(tmp_path / "out.jsonl.partial") < 2:
        assert process.is_alive(), printed()
        time.sleep(0.01)
    process.kill()
    assert finish([process]) == [-signal.SIGKILL]
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != kind.input]
    assert left and not (tmp_path / "out.jsonl").exists()
    assert not any("qzx" in path.read_text() for path in left)

    for output, resumes in (("out.jsonl", True), ("whole.jsonl", False)):
        call(*kind.words.split(), model, kind.input, output, "--precision", "fp32")
        assert ("resuming after" in capsys.readouterr().err) == resumes
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert len((tmp_path / "whole.jsonl").read_text().splitlines()) == 200
    assert {path.name for path in tmp_path.iterdir()} == {kind.input, "out.jsonl", "whole.jsonl"}


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("command", ["rerank"], indirect=True)
def test_workers_of_a_cluster_write_the_bytes_of_one_process(command, call, write_lines, tmp_path):
    kind, model = command
    write_lines(kind.input, kind.lines(60))
    for engine in ("local", "ray"):
        how = ["--precision", "fp32", "--engine", engine]
        call(*kind.words.split(), model, kind.input, f"{engine}.jsonl", *how)
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {kind.input, "local.jsonl", "ray.jsonl"}


@pytest.mark.promise("Two processes write the bytes of one", about="processes")
def test_a_recipe_in_two_processes_writes_the_bytes_of_each_command(
    request, call, start_forked, write_lines, model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rows = [f"a dog {'barks ' * (place % 7)}\tein hund {'bellt ' * (place % 9)}." for place in range(40)]
    write_lines("pairs.tsv", ["anchor\tpositive", *rows])
    mining = 'uses = "students.mine-negatives"\npairs.path = "pairs.tsv"'
    stages = ["[mined]", mining, f'model = "{model}"\nprecision = "fp32"']
    for name in SHARED:
        kind, own = COMMANDS[name], request.getfixturevalue(COMMANDS[name].model)
        write_lines(kind.input, kind.lines(40))
        stages += [f"[{name}]", kind.stage, f'model = "{own}"\nprecision = "fp32"\noutput = "jsonl"']
    recipe = write_lines("r.toml", stages)
    process, printed = start_forked("run", "r.toml", "--processes", "2")
    codes, (out, err) = finish([process]), printed()
    assert codes == [0], err
    for name in SHARED:
        kind, words = COMMANDS[name], COMMANDS[name].words.split()
        own, output = request.getfixturevalue(kind.model), f"{name}.jsonl"
        document = json.loads(call(*words, own, kind.input, output, "--precision", "fp32", "--json"))
        assert (document["command"], document["output"]) == (kind.words, output)
        assert " ".join(document["result"]) == kind.summary and 40 in document["result"].values()
        (written,) = (tmp_path / f"runs/r/{name}/latest").resolve().glob("*s.jsonl")
        assert written.name != "rejects.jsonl" and written.read_bytes() == (tmp_path / output).read_bytes()
        assert re.search(r"(documents|questions|pairs) 40\b", out)
    call("mine-negatives", model, "pairs.tsv", "negatives.jsonl", "--precision", "fp32")
    mined = (tmp_path / "runs/r/mined/latest/negatives.jsonl").read_bytes()
    assert mined == (tmp_path / "negatives.jsonl").read_bytes()
    batches = [word for name in SHARED for word in ("--set", f"{name}.batch_tokens=64")]
    assert call("run", recipe, *batches).count("SKIP") == len(SHARED) + 1


@pytest.mark.parametrize(("function", "expected"), [(tag_file, "tags entities"), (rerank_file, "scores pairs of sent")])
def test_a_model_of_another_task_is_refused(function, expected, model, write_lines, tmp_path):
    lines = write_lines("in.csv", pairs(3)) if function is rerank_file else write_lines("in.jsonl", documents(3))
    with pytest.raises(RequestError, match=f"model: expected one that {expected}.*, found none in"):
        function(model, lines, tmp_path / "out.jsonl")


FUNCTIONS = [
    *((function, "out.jsonl") for function in (tag_file, answer_file, rerank_file, score_file)),
    (encode_file, "out.npy"),
]


@pytest.mark.parametrize(("function", "output"), FUNCTIONS)
def test_a_function_replaces_an_existing_file_only_on_request(function, output, write_lines, tmp_path):
    (tmp_path / output).write_text("mine")
    source = write_lines("in.csv", ["id,text"])
    with pytest.raises(RequestError, match=r"exists already.*overwrite=True"):
        function("no model", source, tmp_path / output)
    with pytest.raises(RequestError) as later_fault:
        function("no model", source, tmp_path / output, overwrite=True)
    assert "exists already" not in str(later_fault.value) and (tmp_path / output).read_text() == "mine"


def test_documents_and_questions_replace_an_existing_file_only_on_request(tmp_path):
    for write, items in ((write_documents, [Document("1", "gout")]), (write_questions, [Question("1", "q", "gout")])):
        path = tmp_path / f"{write.__name__}.jsonl"
        write(path, items)
        expected = path.read_text()
        with pytest.raises(RequestError, match="exists already"):
            write(path, [])
        assert path.read_text() == expected
        write(path, [], overwrite=True)
        assert path.read_text() == ""


QUESTION = json.dumps({"id": 1, "question": "gout?", "context": FEVER})
FILES = {
    "english.txt": "a dog barks\n",
    "table.csv": "id,sentence\n1,a dog\n",
    "pairs.csv": "sentence1,sentence2\na dog,ein hund\n",
    "numbers.jsonl": '{"sentence1": "a dog", "sentence2": 7}\n',
    "texts.jsonl": json.dumps({"text": GOUT}),
    "questions.jsonl": QUESTION,
    "shape.json": '{"rows": [1]}',
    "notes.csv": "hadm_id,text\n100,slept well\n",
    "texts.csv": "text\na dog\n",
    "two.txt": "a dog\nein hund\n",
    "long.txt": "a dog\n" * 201,
    "memory.tmx": "<tmx/>\n",
}
WRONG = {
    "encode model": {
        "english.txt out.txt": "out.txt",
        "none.txt out.npy": "none.txt",
        "memory.tmx out.npy": "memory.tmx",
        "english.txt out.npy --quoted": "quoted",
        " out.npy": "empty text",
        "table.csv out.npy": "'text'",
        "s3://bucket/table.csv out.npy": "s3://bucket/table.csv",
        "english.txt out/ --skip-invalid": "--skip-invalid",
        "english.txt out.npy --keep id": "--keep",
    },
    "encode ./none": {"english.txt out.npy": "none"},
    "encode @student/model": {"english.txt out.npy": "@student/model"},
    "search model": {
        "": "CORPUS",
        "--index x --rebuild": "--rebuild",
        "english.txt --query \t": "--query",
        "english.txt --query x --output a.jsonl --json": "--json",
        "english.txt --queries texts.csv --output texts.csv": "--output",
        "english.txt --kind exact --ef-search 5": "--ef-search",
        "--index x --column said --prompt query": "--column, --prompt",
        "table.csv --column said": "'said'",
        "memory.tmx --query x": "memory.tmx",
        "- --query x": "CORPUS",
    },
    "similarity model": {
        "dog": "A",
        "dog hund --picture p.svg": "--matrix",
        "dog hund --column text": "--column",
        "english.txt --matrix --picture p.gif": "p.gif",
        "texts.csv texts.csv --files --csv texts.csv": "--csv",
        "english.txt texts.csv --matrix --files": "--matrix",
        "english.txt two.txt --files": "two.txt",
        "memory.tmx english.txt --files": "memory.tmx",
        "english.txt none.txt --matrix": "none.txt",
        "long.txt --matrix --picture p.png": "201 × 201",
        "- - --files": "2 times",
    },
    "mine model": {
        "english.txt memory.tmx m.tsv": "memory.tmx",
        "none.txt two.txt m.tsv": "none.txt",
        "english.txt two.txt pairs.csv --gold pairs.csv": "pairs.csv",
        "english.txt two.txt m.tsv --id-column 0": "--id-column",
    },
    "shrink model": {
        "english.txt small --no-trim": "trim_vocabulary, layers, intermediate_size or dimensions",
        "memory.tmx small": "memory.tmx",
        "table.csv small --column german": "'german'",
        "english.txt small --parallel english.de": "--parallel",
        "english.txt small --parallel deutsch=none.tsv": "deutsch",
        "english.txt small --sts a/x.csv --sts b/x.csv": "--sts",
        "english.txt .": "OUT",
    },
    "rerank cross_encoder": {
        "pairs.csv pairs.csv": "pairs.csv",
        "memory.tmx out.csv": "memory.tmx",
        "pairs.csv out.csv --column sentence1": "two columns",
        "english.txt out.csv": "english.txt",
        "numbers.jsonl out.csv": "numbers.jsonl, line 1",
    },
    "ner tag tagger": {
        "memory.tmx out.jsonl": "memory.tmx",
        "texts.jsonl out.xyz": "out.xyz",
        "texts.jsonl out.txt --format text": "out.txt",
        "none.jsonl out.jsonl": "none.jsonl",
        "texts.jsonl texts.jsonl": "texts.jsonl",
        "texts.jsonl . --format brat": "brat",
        "texts.jsonl out.jsonl --column said": "--column",
        "texts.jsonl s3://bucket/out --max-rejects 0.5": "--max-rejects",
        "texts.jsonl s3://bucket/out --link linker": "--link",
        "texts.jsonl out.jsonl --repeated-ids passages": "repeated_ids",
        "texts.jsonl -": "output",
    },
    "qa answer answerer": {
        "questions.jsonl out.jsonl --html out.pdf": "--html",
        "memory.tmx out.jsonl": "memory.tmx",
        "table.csv out.jsonl": "'question'",
        "shape.json out.jsonl": "shape.json",
        "questions.jsonl questions.jsonl": "questions.jsonl",
        "questions.jsonl s3://bucket/out --id id": "--id",
        "questions.jsonl out.jsonl --id name": "'name'",
    },
    "readmission score readmission_model": {
        "memory.tmx out.csv": "memory.tmx",
        "notes.csv notes.csv": "notes.csv",
        "notes.csv out.csv --id stay": "'stay'",
        "english.txt out.csv": "english.txt",
        "notes.csv out.csv --admission 100": "--admission",
        "notes.csv s3://bucket/out --html out.html": "--html",
        "notes.csv out.csv --html out.pdf": "--html",
    },
    "export model": {"-": "-: "},
    "data check": {"-": "-: "},
}
"""By command and its model: arguments that are refused, and the value that the message names."""


def test_a_wrong_request_ends_with_2_leaves_nothing_and_loads_no_torch(request, refused, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    requests = []
    for start, cases in WRONG.items():
        *words, model = start.split()
        folder = model if model[0] in ".@" or model == "check" else request.getfixturevalue(model)
        requests += [[*words, folder, *arguments.split(" ")[: None if arguments else 0]] for arguments in cases]
    expected = [error for cases in WRONG.values() for error in cases.values()]
    for (code, printed), error, given in zip(refused(requests), expected, requests, strict=True):
        assert code == 2 and error in printed, (given, printed)
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    assert all((tmp_path / name).read_text("utf-8") == text for name, text in FILES.items())
