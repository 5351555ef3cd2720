"""`bertrelay encode`, in one process and in several, killed and resumed."""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked import finish

from bertrelay.errors import RequestError
from pipelines.cli.options import check_request

ENGLISH = ["a dog barks", "a dog .", "dog dog"]
OTHERS = ["ein hund bellt .", "개가 짖는다"]


@pytest.fixture
def english(write_lines):
    return write_lines("english.txt", ENGLISH)


@pytest.fixture
def encode(call, model):
    return partial(call, "encode", model)


@pytest.mark.parametrize(("column", "header"), [("german", "id\tgerman"), ("1", "id\tgerman"), ("1", None)])
def test_a_column_is_found_by_name_and_by_position(encode, vectors, write_lines, tmp_path, column, header):
    lines = ([header] if header else []) + [f"{number}\t{sentence}" for number, sentence in enumerate(OTHERS)]
    table, target = write_lines("table.tsv", lines), tmp_path / "v.parquet"
    encode(table, target, "--column", column, "--precision", "fp32", *([] if header else ["--no-header"]))
    rows = pq.read_table(target).to_pydict()
    assert rows["text"] == OTHERS
    np.testing.assert_allclose(rows["vector"], vectors(OTHERS), atol=1e-6)


def test_a_prompt_stands_before_each_sentence_and_vectors_have_the_bits_asked_for(encode, english, vectors, tmp_path):
    options = ["--prompt", "query", "--vectors", "binary", "--precision", "fp32", "--batch-tokens", "4"]
    encode(english, tmp_path / "v.npy", *options)
    expected = np.packbits(vectors([f"dog {text}" for text in ENGLISH]) > 0, axis=1)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)
    with pytest.raises(RequestError, match=r"expected one of \['query'\], found 'answer'; leave it out, or in Python"):
        encode(english, tmp_path / "w.npy", "--prompt", "answer")


def test_standard_input_gives_the_vectors_of_its_sentences(encode, english, vectors, tmp_path):
    out = encode("-", tmp_path / "file.npy", "--precision", "fp32", stdin=english.read_bytes())
    assert out == f"{tmp_path / 'file.npy'}: 3 sentences, 8 dim, computed in fp32\n"
    (tmp_path / "one.txt").write_text("a dog\n")
    assert ": 1 sentence, 8 dim, computed in " in encode(tmp_path / "one.txt", tmp_path / "one.npy")
    np.testing.assert_allclose(np.load(tmp_path / "file.npy"), vectors(ENGLISH), atol=1e-6)


def test_a_mistake_in_standard_input_is_reported_with_its_line_and_leaves_nothing(encode, tmp_path, monkeypatch):
    with pytest.raises(RequestError, match=r"^standard input, line 2: not valid UTF-8 \(byte 6 "):
        encode("-", tmp_path / "v.npy", stdin=b"a dog\n\xe4\n")
    with pytest.raises(RequestError, match=r"^standard input has no records"):
        encode("-", tmp_path / "v.npy", stdin=b"")
    monkeypatch.setattr("pipelines.cli.stdin.sys", SimpleNamespace(stdin=None))
    with pytest.raises(RequestError, match=r"^-: expected standard input, found it closed"):
        encode("-", tmp_path / "v.npy")
    assert list(tmp_path.iterdir()) == []


BAD = {
    "bad.txt": (b"a dog\n\xe4\na cat\n", ["a dog", "a cat"], [2]),
    "bad.csv": (b'text,id\na dog,1\na cat\n"a\r\ndog",3\n', ["a dog", "a\r\ndog"], [3]),
    "bad.jsonl": (b'{"text": 5}\n{"text": "a dog"}\nno json\n{"id": 1}\n', ["a dog"], [1, 3, 4]),
}


@pytest.mark.promise("Invalid records are skipped, counted and listed on request", about="counted")
@pytest.mark.parametrize("name", BAD)
def test_invalid_records_are_skipped_counted_and_listed_when_asked(encode, vectors, tmp_path, capsys, name):
    content, kept, lines = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match=f"{name}, line {lines[0]}: "):
        encode(tmp_path / name, tmp_path / "v.parquet")
    encode(tmp_path / name, tmp_path / "v.parquet", "--skip-invalid", "--precision", "fp32")
    rows = pq.read_table(tmp_path / "v.parquet").to_pydict()
    assert rows["text"] == kept
    np.testing.assert_allclose(rows["vector"], vectors(kept), atol=1e-6)
    listed = [json.loads(line) for line in (tmp_path / "v.parquet.rejects.jsonl").read_text().splitlines()]
    assert [reject["line"] for reject in listed] == lines
    assert f"left out {len(lines)} of {len(lines) + len(kept)} records" in capsys.readouterr().err


def test_without_invalid_records_there_is_no_list_and_without_others_an_error(encode, english, tmp_path):
    encode(english, tmp_path / "v.npy", "--skip-invalid")
    assert {path.name for path in tmp_path.iterdir()} == {"english.txt", "v.npy"}
    (tmp_path / "bad.txt").write_bytes(b"\xe4\n")
    with pytest.raises(RequestError, match=r"bad\.txt: expected sentences, found no record that can be used"):
        encode(tmp_path / "bad.txt", tmp_path / "w.npy", "--skip-invalid")


@pytest.mark.promise("A hub is contacted only for hub ids; telemetry is off", about="privacy")
@pytest.mark.parametrize(("source", "offline"), [("MODEL", "1"), ("owner/name", None)])
def test_telemetry_is_off_and_a_hub_is_asked_for_hub_ids_alone(model, monkeypatch, source, offline):
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    check_request(model if source == "MODEL" else source)
    assert (os.environ["HF_HUB_DISABLE_TELEMETRY"], os.environ.get("HF_HUB_OFFLINE")) == ("1", offline)


SMALLEST = "bertrelay.encode_files.SMALLEST_SHARD"


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_stopped_and_robbed_of_a_process_two_processes_resume_to_the_same_bytes(
    start_forked, encode, model, write_lines, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(SMALLEST, 125)
    many = write_lines("many.txt", [f"{ENGLISH[i % 3]} {OTHERS[i % 2]} {i}" for i in range(8_000)])
    words = ["encode", model, "many.txt", "v.npy", "--precision", "fp32", "--processes", "2"]
    folder, done = tmp_path / "v.npy.partial", 0
    for number, ends in (
        (signal.SIGTERM, "stopped by SIGTERM; the same command resumes from what is saved"),
        (signal.SIGKILL, "process 1 was ended by SIGKILL, perhaps because memory ran out; the same command resumes"),
    ):
        process, printed = start_forked(*words, constants={SMALLEST: 125})
        while len(list(folder.glob("0*.npy"))) < done + 2:
            assert process.is_alive(), printed()
            time.sleep(0.01)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[1]) if number == signal.SIGKILL else process.pid, number)
        codes, (_, stderr) = finish([process]), printed()
        assert codes == [128 + number]
        assert stderr.count(ends) == 1 and "Traceback" not in stderr
        assert not any(Path(f"/proc/{child}").exists() for child in children)
        assert ("resuming after" in stderr) == (done > 0)
        done = len(list(folder.glob("0*.npy")))
    assert not (tmp_path / "v.npy").exists()
    for output, resumes in (("v.npy", True), ("whole.npy", False)):
        encode(many, tmp_path / output, "--precision", "fp32")
        assert ("resuming after" in capsys.readouterr().err) == resumes
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"many.txt", "v.npy", "whole.npy"}


def test_a_dataset_becomes_a_dataset(encode, vectors, tmp_path):
    (tmp_path / "in").mkdir()
    for number, texts in enumerate((ENGLISH, OTHERS)):
        pq.write_table(
            pa.table({"id": [f"{number}-{row}" for row in range(len(texts))], "note": texts}),
            tmp_path / f"in/{number}.parquet",
        )
    printed = encode(tmp_path / "in", f"{tmp_path}/out/", "--column", "note", "--keep", "id", "--precision", "fp32")
    assert "5 sentences" in printed
    table = pq.read_table(tmp_path / "out").sort_by("row").to_pydict()
    assert table["note"] == [*ENGLISH, *OTHERS] and table["id"] == ["0-0", "0-1", "0-2", "1-0", "1-1"]
    np.testing.assert_allclose(table["vector"], vectors([*ENGLISH, *OTHERS]), atol=1e-6)
