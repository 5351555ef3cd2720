"""`bertrelay encode`, in one process and in several, killed and resumed."""

import json
import os
import signal
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from bertrelay.errors import RequestError
from pipelines.cli.options import check_request

ENGLISH = ["a dog barks", "a dog .", "dog dog"]
OTHERS = ["ein hund bellt .", "개가 짖는다"]


@pytest.fixture
def english(write_lines):
    return write_lines("english.txt", ENGLISH)


def test_row_i_is_the_vector_of_line_i_and_the_count_is_told(call, model, english, vectors, tmp_path):
    out = call("encode", model, english, tmp_path / "v.npy", "--precision", "fp32", "--batch-tokens", "4")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors(ENGLISH), atol=1e-6)
    assert out == f"{tmp_path / 'v.npy'}: 3 sentences, 8 dim\n"


@pytest.mark.parametrize(("column", "header"), [("german", "id\tgerman"), ("1", "id\tgerman"), ("1", None)])
def test_a_column_is_found_by_name_and_by_position(call, model, vectors, write_lines, tmp_path, column, header):
    lines = ([header] if header else []) + [f"{number}\t{sentence}" for number, sentence in enumerate(OTHERS)]
    table, target = write_lines("table.tsv", lines), tmp_path / "v.parquet"
    options = [] if header else ["--no-header"]
    call("encode", model, table, target, "--column", column, "--precision", "fp32", *options)
    rows = pq.read_table(target).to_pydict()
    assert rows["text"] == OTHERS
    np.testing.assert_allclose(rows["vector"], vectors(OTHERS), atol=1e-6)


def test_a_prompt_of_the_model_stands_before_each_sentence(call, model, english, vectors, tmp_path):
    call("encode", model, english, tmp_path / "v.npy", "--prompt", "query", "--precision", "fp32")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors([f"dog {text}" for text in ENGLISH]), atol=1e-6)
    with pytest.raises(RequestError, match=r"expected one of \['query'\], found 'answer'"):
        call("encode", model, english, tmp_path / "w.npy", "--prompt", "answer")


def test_standard_input_gives_the_bytes_of_a_file_in_several_processes_too(
    call, model, english, vectors, start_encode, tmp_path
):
    call("encode", model, "-", tmp_path / "file.npy", "--precision", "fp32", stdin=english.read_bytes())
    np.testing.assert_allclose(np.load(tmp_path / "file.npy"), vectors(ENGLISH), atol=1e-6)
    start = start_encode("--processes", "2", stdin=english)
    assert start.communicate(timeout=120)[0] == "v.npy: 3 sentences, 8 dim\n"
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "file.npy").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"english.txt", "file.npy", "v.npy"}


def test_a_mistake_in_standard_input_is_told_with_its_line_and_leaves_nothing(call, model, tmp_path):
    with pytest.raises(RequestError, match=r"^standard input, line 2: not valid UTF-8 \(byte 6 "):
        call("encode", model, "-", tmp_path / "v.npy", stdin=b"a dog\n\xe4\n")
    with pytest.raises(RequestError, match=r"^standard input has no records"):
        call("encode", model, "-", tmp_path / "v.npy", stdin=b"")
    table = b"id,text\n1,a dog\n"
    call("encode", model, "-", tmp_path / "v.npy", "--format", "csv", stdin=table)
    assert np.load(tmp_path / "v.npy").shape == (1, 8)
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]


def test_other_commands_say_that_they_need_a_file(refused):
    commands = (
        "search model -|search model c.txt --queries -|rerank model - best.csv|mine model a.txt - mined.tsv|run -|"
        "shrink model - small|terms model - terms|data check -|data audit -|readmission score model - scores.csv|"
        "outcome score model - scores.csv|plan -"
    )
    requests = [command.split() for command in commands.split("|")]
    for code, told in refused(requests):
        assert (code, told.partition("; ")[0]) == (2, "-: expected a file")
    ((code, told),) = refused([["similarity", "model", "a dog", "-"]])
    assert (code, told) == (2, "expected two sentences, found -; standard input is read with --files or --matrix\n")


BAD = {
    "bad.txt": (b"a dog\n\xe4\na cat\n", ["a dog", "a cat"], [2]),
    "bad.csv": (b'text,id\na dog,1\na cat\n"a\r\ndog",3\n', ["a dog", "a\r\ndog"], [3]),
    "bad.jsonl": (b'{"text": 5}\n{"text": "a dog"}\nno json\n{"id": 1}\n', ["a dog"], [1, 3, 4]),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_records_are_skipped_counted_and_listed_when_asked(call, model, vectors, tmp_path, capsys, name):
    content, kept, lines = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match=f"{name}, line {lines[0]}: "):
        call("encode", model, tmp_path / name, tmp_path / "v.parquet")
    call("encode", model, tmp_path / name, tmp_path / "v.parquet", "--skip-invalid", "--precision", "fp32")
    rows = pq.read_table(tmp_path / "v.parquet").to_pydict()
    assert rows["text"] == kept
    np.testing.assert_allclose(rows["vector"], vectors(kept), atol=1e-6)
    listed = [json.loads(line) for line in (tmp_path / "v.parquet.rejects.jsonl").read_text().splitlines()]
    assert [reject["line"] for reject in listed] == lines
    assert f"left out {len(lines)} of {len(lines) + len(kept)} records" in capsys.readouterr().err


def test_without_invalid_records_there_is_no_list_and_without_others_an_error(call, model, english, tmp_path):
    call("encode", model, english, tmp_path / "v.npy", "--skip-invalid")
    assert {path.name for path in tmp_path.iterdir()} == {"english.txt", "v.npy"}
    (tmp_path / "bad.txt").write_bytes(b"\xe4\n")
    with pytest.raises(RequestError, match=r"bad\.txt: expected sentences, found no record that can be used"):
        call("encode", model, tmp_path / "bad.txt", tmp_path / "w.npy", "--skip-invalid")


def test_a_recipe_encodes_a_column(call, model, vectors, write_lines, tmp_path):
    table = write_lines("t.csv", ["id,sentence", *(f"{n},{text}" for n, text in enumerate(ENGLISH))])
    stage = f'uses = "bertrelay.encode"\nmodel = "{model}"\nprecision = "fp32"\n'
    recipe = write_lines("r.toml", ["[v]", stage, f'sentences = {{ path = "{table}", columns = ["sentence"] }}'])
    assert "sentences 3  dim 8" in call("run", recipe, "--runs", tmp_path / "runs")
    np.testing.assert_allclose(np.load(tmp_path / "runs/r/v/latest/vectors.npy"), vectors(ENGLISH), atol=1e-6)
    assert "SKIP" in call("run", recipe, "--runs", tmp_path / "runs", "--set", "v.batch_tokens=64")
    assert 'v.output: "npy" → "parquet"' in call(
        "plan", recipe, "--runs", tmp_path / "runs", "--set", "v.output=parquet"
    )


@pytest.mark.parametrize(("source", "offline"), [("MODEL", "1"), ("owner/name", None)])
def test_telemetry_is_off_and_a_hub_is_asked_for_hub_ids_alone(model, monkeypatch, source, offline):
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    check_request(model if source == "MODEL" else source)
    assert (os.environ["HF_HUB_DISABLE_TELEMETRY"], os.environ.get("HF_HUB_OFFLINE")) == ("1", offline)


@pytest.fixture
def start_encode(start_python, model):
    """Starts `bertrelay encode` as a user does."""

    def start(*options, stdin=None):
        source = "many.txt" if stdin is None else "-"
        words = ["-m", "pipelines", "encode", model, source, "v.npy", "--precision", "fp32", *options]
        return start_python(*words, stdin=stdin or os.devnull)

    return start


def shards_done(folder):
    return len(list(folder.glob("0*.npy")))


def wait_for_shards(process, folder, count):
    while shards_done(folder) < count:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
        return [int(child) for child in file.read().split()]


def are_gone(pids):
    """True when all have ended within some seconds; one that nobody has asked for yet counts as ended."""
    deadline = time.monotonic() + 10
    while any(_lives(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_killed_in_every_way_and_by_other_processes_it_goes_on_to_the_same_bytes(
    start_encode, call, model, write_lines, tmp_path
):
    many = write_lines("many.txt", [f"{ENGLISH[i % 3]} {OTHERS[i % 2]} {i}" for i in range(100_000)])
    folder = tmp_path / "v.npy.partial"

    lost_parent = start_encode("--processes", "2")
    wait_for_shards(lost_parent, folder, 2)
    workers = children(lost_parent.pid)
    lost_parent.kill()
    assert lost_parent.wait() == -signal.SIGKILL
    assert len(workers) == 2
    assert are_gone(workers)
    done = shards_done(folder)

    lost_worker = start_encode("--processes", "2")
    wait_for_shards(lost_worker, folder, done + 2)
    workers = children(lost_worker.pid)
    os.kill(workers[1], signal.SIGKILL)
    _, told = lost_worker.communicate(timeout=60)
    assert lost_worker.returncode == 128 + signal.SIGKILL
    assert are_gone(workers)
    assert "process 1 was ended by SIGKILL, perhaps because memory ran out; the same command resumes" in told
    assert "resuming after" in told
    assert "stopped by" not in told
    done = shards_done(folder)

    for number, processes in [(signal.SIGTERM, "2"), (signal.SIGINT, "1")]:
        stopped = start_encode("--processes", processes)
        wait_for_shards(stopped, folder, done + 2)
        workers = children(stopped.pid)
        stopped.send_signal(number)
        _, told = stopped.communicate(timeout=60)
        assert stopped.returncode == 128 + number
        assert are_gone(workers)
        assert told.count(f"stopped by {number.name}; the same command resumes from here") == 1
        assert "Traceback" not in told
        done = shards_done(folder)

    assert not (tmp_path / "v.npy").exists()
    last = start_encode("--processes", "2")
    out, told = last.communicate(timeout=120)
    assert (last.returncode, out) == (0, "v.npy: 100,000 sentences, 8 dim\n"), told
    assert {path.name for path in tmp_path.iterdir()} == {"many.txt", "v.npy"}
    stopped_often = (tmp_path / "v.npy").rename(tmp_path / "stopped.npy")
    call("encode", model, many, tmp_path / "v.npy", "--precision", "fp32")
    assert (tmp_path / "v.npy").read_bytes() == stopped_often.read_bytes()


def test_a_mistake_deep_in_the_input_is_told_once_and_ends_with_2(start_encode, write_lines):
    lines = write_lines("many.txt", ["a dog"] * 5000)
    lines.write_bytes(lines.read_bytes() + b"ein H\xe4nd\n")
    process = start_encode("--processes", "2")
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert told.count("many.txt, line 5,001: not valid UTF-8") == 1
    assert "Traceback" not in told
