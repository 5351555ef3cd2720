"""Sources of every kind have marks; stages that read them show none, and only the owner may read their files.

The first stages raise what quotes a record, are then stopped when their work is done, and resume. After the work of
every stage marks are looked for in all that is printed and written but in `WITH_TEXT`, the outputs with text or ids.
"""

import json
import os
import re
import signal
import stat
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from marked_tables import MARK, marked_stays, tables, write
from synthetic_patients import write_early_stays, write_stays
from transformers import BertConfig, BertForPreTraining

from bertrelay.errors import RequestError
from bertrelay.evaluation import statistics
from bertrelay.model.new import train_wordpiece
from bertrelay.stage import Stage
from pipelines.cli import _exit_code

WITH_TEXT = {
    "*.parquet",
    "readmission/*/work/*",
    "mined/*/mined.tsv",
    "ranked/*/scores.jsonl",
    "ranked/*/scores.jsonl.partial/*",
    "tagged/*/entities.jsonl",
    "tagged/*/entities.jsonl.partial/*",
    "questions/*/train.jsonl",
    "questions/*/dev.jsonl",
    "questions/*/test.jsonl",
    "answered/*/answers.jsonl",
    "answered/*/answers.jsonl.partial/*",
    "index/*/index/*.sentences.*",
    "terms/*/terms.csv",
    "terms/*/neighbours.csv",
    "terms/*/tsne.*",
    "notes/*/work/*",
    "compared/*/similarity.json",
    ".cache/corpora/*/*",
}
TRACKER = 'tracker = "tensorboard"' if find_spec("tensorboard") else ""
TRAINING = f'epochs = 1\nbatch_tokens = 2048\nprecision = "fp32"\n{TRACKER}'
RECIPE = Path(__file__).with_name("sensitive.toml").read_text().replace("#TRAINING", TRAINING)
STAGES, KINDS = zip(*re.findall(r'^\[(\w+)\]\nuses = "(.+)"$', RECIPE, re.MULTILINE), strict=True)
PUBLIC = """
name = "public"
[scored]
uses = "domain.ner-evaluate"
model = "runs/sensitive/ner/latest/model"
test = [{ path = "sound.jsonl" }]
[asked]
uses = "domain.qa-evaluate"
model = "runs/sensitive/qa/latest/model"
test = [{ path = "questions.jsonl" }]
max_rejects = 0.5
"""


def write_base(folder):
    """A BERT that knows letters and one word of each note, so that its vocabulary has no mark."""
    tokenizer = train_wordpiece([" ".join("abcdefghijklmnopqrstuvwxyz0123456789-.[]:"), "hospital " * 9], 100, 64)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertForPreTraining(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)


def write_biomedical(folder):
    """Documents, questions, lines and terms; some of them cannot be used, or are too long to be asked."""

    def write_lines(name, *lines):
        rows = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join([*rows, ""]))

    documents, questions = list[dict[str, Any]](), list[dict[str, Any]]()
    for n in range(24):
        text = f"Qzxsentence {n} is about qzxflu. Another sentence of it."
        entity = {"start": text.index("qzxflu"), "end": text.index("qzxflu") + 6, "type": "Disease", "text": "qzxflu"}
        documents.append({"id": f"qzxD{n}", "text": text, "entities": [entity]})
        context = f"It was said that qzxanswer{n} is right. Qzx nobody knows."
        answer = {"text": f"qzxanswer{n}", "start": context.index("qzx")}
        questions.append({"id": f"qzxQ{n}", "question": f"What is qzx {n}?", "context": context, "answers": [answer]})
    write_lines("sound.jsonl", *documents)
    documents[3]["entities"] = [{"start": 0, "end": 4, "type": "Disease", "text": "qzxwrong"}]
    documents[4]["id"] = "qzxD0"
    broken = {"id": "qzxbroken", "text": 5}, "qzx no json"
    write_lines("entities.jsonl", *documents, *broken)
    others = (json.dumps(document).replace("sentence ", "saying44 ", 1) for document in documents)
    write_lines("entities-dev.jsonl", *others, *broken)
    questions[2]["answers"] = [{"text": "qzx nowhere at all", "start": 3}]
    questions[5]["id"], questions[7]["question"], questions[9]["answers"] = "qzxQ0", "qzxlong " * 40, []
    broken = {"id": "qzxbroken", "question": 5}, "qzx no json"
    write_lines("questions.jsonl", *questions, *broken)
    others = (json.dumps(question).replace("nobody knows", "they know") for question in questions)
    write_lines("questions-dev.jsonl", *others, *broken)
    records = [
        {
            "id": f"qzxB{n % 20}",
            "body": f"What is qzx {n}?",
            "type": "factoid",
            "exact_answer": ["qzxanswer"],
            "snippets": [{"text": f"Qzxword {n}: qzxanswer.", "document": f"article {n}"}] * (n != 11),
        }
        for n in range(22)
    ]
    write_lines("bioasq.json", {"questions": records})
    write_lines("pairs.csv", "sentence1,sentence2", *(f"qzxa {n},qzxb {n}" for n in range(9)))
    write_lines("lines.txt", *(f"A qzxline of number {n}." for n in range(40)))
    pairs = [f"A qzxline of number {n}.\tQzxother line {n}.\t{n % 6}" for n in range(40)]
    wrong = ["qzxa\tqzxb\tqzxscore", "qzx alone", "qzxa\tqzxb\t99"]
    write_lines("sts.tsv", "sentence1\tsentence2\tscore", *pairs, *wrong)
    labels = ("entailment", "neutral", "contradiction")
    labelled = [f"A line of qzxline {n}.\tQzxother line {n}.\t{labels[n % 3]}" for n in range(40)]
    write_lines("labelled.tsv", "premise\thypothesis\tlabel", *labelled, "qzxa\tqzxb\tqzxlabel", "qzx")
    parallel = [f"The qzxline of number {n}.\tQzxzeile Nummer {n} ist das." for n in range(40)]
    write_lines("parallel.tsv", "en\tde", *parallel, "qzxalone", "\tqzxother")
    write_lines("glove.txt", "line 0.1 0.2", "other 0.3 0.4")
    for part in ("train", "dev", "test"):
        rows = (f"g\tf\ty\t1\t{n % 6}\tA qzxline {n}\tQzxother {n}" for n in range(24))
        write_lines(f"official/sts-{part}.csv", *rows)
    for part in ("GC", "GM", "DP"):
        header = ",".join(["regression_label", *"bcdefghi", "sentence_1", "sentence_2"])
        rows = (",".join([str(n % 6), *["qzx"] * 8, f"Qzxargument {n}", f"qzxother {n}"]) for n in range(12))
        write_lines(f"official/ArgPairs_{part}.csv", header, *rows)
    write_lines("terms.csv", "term,group", *(f"qzxterm {n},qzxgroup" for n in range(8)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The sources, in a folder to work in."""
    folder = tmp_path_factory.mktemp("sensitive")
    write_base(folder / "base")
    write(folder / "mimic", tables())
    write_stays(folder / "ward", marked_stays(64))
    write_early_stays(folder / "early", marked_stays(64))
    write_biomedical(folder)
    (folder / "sensitive.toml").write_text(RECIPE)
    (folder / "public.toml").write_text(PUBLIC)
    (folder / "tmp").mkdir()
    return folder


def caused_by_arrow():
    error = RequestError("something is wrong")
    error.__cause__ = pa.ArrowInvalid("cannot convert 'qzx17' to int64")
    return error


ERRORS = [
    ValueError("could not convert 'Qzxword' to float"),
    pa.ArrowInvalid("CSV conversion error: invalid value 'qzx17'"),
    OSError("malformed page near 'qzx'"),
    KeyError("qzxH3"),
    caused_by_arrow(),
]


@pytest.fixture(scope="module")
def finished(folder):
    """Runs all stages with their faults; returns all output, and the files with a mark."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile("w+", buffering=1) as out:
        patch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
        patch.chdir(folder)
        patch.setenv("TMPDIR", str(folder / "tmp"))
        patch.setattr(tempfile, "tempdir", None)
        before, usual = [os.dup(number) for number in (1, 2)], os.umask(0o022)
        try:
            for number in (1, 2):
                os.dup2(out.fileno(), number)
            with redirect_stdout(out), redirect_stderr(out):
                shown = run_through_faults(patch, folder)
        finally:
            os.umask(usual)
            for number, copy in zip((1, 2), before, strict=True):
                os.dup2(copy, number)
        out.seek(0)
        yield out.read(), shown


def run_through_faults(patch, folder):
    """Runs all stages, the first ones with their faults; returns the files with a mark after each."""
    load_work, shown, broken = Stage.load_run, list[str](), dict(zip(KINDS, ERRORS, strict=False))
    stopped = set(broken)

    def load_run(stage):
        work = load_work(stage)

        def run(settings, context):
            if stage.kind in broken:
                raise broken.pop(stage.kind)
            metrics = work(settings, context)
            shown.extend(telling(folder))
            if stage.kind in stopped:
                stopped.remove(stage.kind)
                os.kill(os.getpid(), signal.SIGTERM)
            return metrics

        return run

    patch.setattr(Stage, "load_run", load_run)
    codes = [start("sensitive.toml", debug=True) for _ in range(2 * len(ERRORS))]
    assert set(codes[::2]) <= {1, 2} and set(codes[1::2]) == {143}
    assert start("sensitive.toml") == 0
    return shown


def start(recipe, *options, debug=False):
    return _exit_code(["run", recipe, "--runs", "runs", *options], debug=debug)


def telling(folder):
    """The files with a mark that should have none, and files outside the folder of their stage."""
    runs = folder / "runs"
    files = [path for path in runs.rglob("*") if path.is_file() and not path.is_symlink()]
    marked = [path for path in files if MARK.search(path.read_bytes()) or MARK.search(str(path.name).encode())]
    outside = [str(path) for path in (folder / "tmp").rglob("*")]
    return outside + [str(path.relative_to(runs)) for path in marked if not holds_text(path.relative_to(runs))]


def holds_text(path):
    return any(path.match(pattern) for pattern in WITH_TEXT) or "work" in path.parts


def modes(folder):
    """The permissions of all that stages wrote, as `ls` has them."""
    paths = [path for path in folder.rglob("*") if not path.is_symlink() and len(path.relative_to(folder).parts) > 1]
    return {stat.filemode(path.stat().st_mode) for path in paths}


def test_what_is_printed_shows_no_mark(finished):
    printed, _ = finished
    assert not MARK.search(printed.encode())
    for name in STAGES[: len(ERRORS)]:
        assert (
            f"RequestError: [{name}] something is wrong" in printed or f"WorkError: [{name}] an unforeseen" in printed
        )
        assert f"Stopped: [{name}] stopped by SIGTERM" in printed


def test_no_file_shows_a_mark_but_outputs_with_text(folder, finished):
    assert finished[1] == telling(folder) == []
    report = folder / "runs/sensitive/report.html"
    assert "Text is left out of what is sensitive" in report.read_text()
    latest = {stage: folder / f"runs/sensitive/{stage}/latest" for stage in STAGES}
    assert not (latest["scored"] / "predictions.tsv").exists() and not (latest["asked"] / "nbest.jsonl").exists()
    assert json.loads((latest["questions"] / "alignment.json").read_text())["by_question"] == {}
    assert MARK.search((latest["tagged"] / "entities.jsonl").read_bytes())  # the marks were there to be found


@pytest.mark.promise("Sensitive stages name records by their number", about="privacy")
@pytest.mark.usefixtures("finished")
def test_rejects_name_records_by_their_number(folder):
    listed = (folder / "runs/sensitive/questions/latest/rejects.jsonl").read_text().splitlines()
    rejects = [json.loads(line) for line in listed]
    assert [reject["record"] for reject in rejects] == ["12", "21", "22"]


@pytest.mark.usefixtures("finished")
def test_all_that_sensitive_stages_write_is_for_its_owner_alone(folder):
    assert modes(folder / "runs/sensitive") == {"-rw-------", "drwx------"}
    caches = [path for path in (folder / "runs/.cache").rglob("*") if path.name != "digests.json"]
    assert len(caches) > 10 and not [path for path in caches if path.stat().st_mode & 0o077]
    for name in ("report.html", "metrics.json"):
        assert (folder / "runs/sensitive" / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("finished")
def test_a_setting_lets_the_group_read(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert start("sensitive.toml", "--set", "group_read=true") == 0
    assert modes(folder / "runs/sensitive") == {"-rw-r-----", "drwxr-x---"}
    assert start("sensitive.toml") == 0
    assert modes(folder / "runs/sensitive") == {"-rw-------", "drwx------"}


@pytest.mark.usefixtures("finished")
def test_a_source_that_is_marked_later_makes_nothing_again(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    usual = os.umask(0o022)
    try:
        assert start("public.toml", "--runs", "public") == 0
        run = folder / "public/public"
        assert modes(run) == {"-rw-r--r--", "drwxr-xr-x"}
        assert MARK.search((run / "report.html").read_bytes())
        capfd.readouterr()
        (folder / "public.toml").write_text(PUBLIC.replace('sound.jsonl"', 'sound.jsonl", sensitive = true'))
        marked = ["--set", "asked.sensitive=true"]
        assert start("public.toml", "--runs", "public", *marked) == 0
        assert capfd.readouterr().err.count("SKIP") == 2
        assert modes(run) == {"-rw-------", "drwx------"}
        assert not MARK.search((run / "report.html").read_bytes())
        asked_for = ["--set", "scored.with_text=true", "--set", "asked.with_text=true"]
        assert start("public.toml", "--runs", "public", *marked, *asked_for) == 0
        assert MARK.search((run / "report.html").read_bytes())
        assert (run / "scored/latest/predictions.tsv").is_file() and (run / "asked/latest/nbest.jsonl").is_file()
        assert start("public.toml", "--runs", "public", *marked) == 0
        assert not MARK.search((run / "report.html").read_bytes())
    finally:
        os.umask(usual)


MODELS = {"ner": "runs/sensitive/ner/latest/model", "qa": "runs/sensitive/qa/latest/model"}
COMMANDS = {
    "ner tag": ("entities.jsonl", "--max-rejects", "0.5"),
    "qa answer": ("questions.jsonl", "--max-rejects", "0.5"),
}


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_sensitive_data_shows_no_mark(folder, tmp_path, monkeypatch, capfd, command):
    monkeypatch.chdir(folder)
    source, *options = COMMANDS[command]
    words = [*command.split(), MODELS[command.split()[0]], source]
    for limit, code in (("0", 1), ("0.5", 0)):
        output = tmp_path / "o.jsonl"
        arguments = [*words, str(output), "--max-rejects", limit]
        assert _exit_code(arguments, debug=True, sensitive=True, group_read=True) == code
    printed = "".join(capfd.readouterr())
    assert "rejects.jsonl lists them" in printed and not MARK.search(printed.encode())
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o640
        assert path == output or not MARK.search(path.read_bytes())
    page = ["--html", str(tmp_path / "p.html")] if command == "qa answer" else []
    arguments = [*words, str(tmp_path / ("p.jsonl" if page else "p.html")), *page, *options]
    assert _exit_code(arguments, debug=False, sensitive=True) == 2
    assert "--with-text" in capfd.readouterr().err
    assert _exit_code([*arguments, "--with-text"], debug=False, sensitive=True) == 0
    assert MARK.search((tmp_path / "p.html").read_bytes())


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize("source", ["entities.jsonl", "questions.jsonl", "bioasq.json"])
def test_a_check_names_no_record_unless_asked_for(folder, monkeypatch, capfd, source):
    monkeypatch.chdir(folder)
    for more in ([], ["--model", MODELS["qa"]], ["--json"]):
        _exit_code(["data", "check", source, *more], debug=True, sensitive=True)
        printed = "".join(capfd.readouterr())
        assert source in printed and not MARK.search(printed.encode())
    _exit_code(["data", "check", source, "--with-text"], debug=False, sensitive=True)
    assert MARK.search("".join(capfd.readouterr()).encode()) or source == "entities.jsonl"


@pytest.mark.usefixtures("finished")
def test_the_id_of_a_page_is_read_from_a_file(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    notes = pd.DataFrame({"hadm_id": ["qzxH1", "qzxH2"], "text": ["The wound is dry.", "Slept well."]})
    notes.to_csv(tmp_path / "notes.csv", index=False)
    model, page = "runs/sensitive/readmission/latest/model", tmp_path / "page.html"

    def score(admission):
        arguments = ["readmission", "score", model, str(tmp_path / "notes.csv"), str(tmp_path / "o.csv")]
        return _exit_code([*arguments, "--html", str(page), "--admission", admission], debug=False)

    (tmp_path / "id.txt").write_text("\ufeffqzxH2\n")  # as Windows saves it
    assert score(f"@{tmp_path / 'id.txt'}") == 0
    assert "Slept" in page.read_text() and page.stat().st_mode & 0o777 == 0o600
    (tmp_path / "id.txt").write_text("qzxH2 qzxH1\n")
    assert score(f"@{tmp_path / 'id.txt'}") == 2 and score(f"@{tmp_path / 'none'}") == 2
    assert not MARK.search("".join(capfd.readouterr()).encode())
