"""`ner tag`, `qa answer` and `readmission score` on Parquet datasets, beside the same commands on files."""

import json
import stat

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_file_commands import COMMANDS

from bertrelay.data import parquet
from bertrelay.errors import RequestError, WorkError
from domain.clinical import predict_files, score_dataset

pytestmark = pytest.mark.usefixtures("store")  # its keys are set before the environment of a test is kept
ROWS = 60


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(parquet, "SHARD_ROWS", 10)
    monkeypatch.setattr(predict_files, "DATASET_CHARACTERS", 400)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def address(request, store, tmp_path):
    """Addresses of new folders by name, in the store where that is asked for."""
    in_store = getattr(request, "param", "folder") == "store"
    return lambda name: store.format(f"{name}/{tmp_path.name}") if in_store else f"{tmp_path / name}/"


@pytest.fixture(scope="module")
def cluster(store, cluster):
    """Workers have the keys of the store."""


@pytest.fixture
def command(request):
    found = COMMANDS[request.param]
    return request.param, found, request.getfixturevalue(found.model)


def rows_of(kind):
    """The items of an input as rows of columns of text."""
    if kind.input.endswith(".csv"):
        return [dict(zip(("hadm_id", "text"), line.split(",", 1), strict=True)) for line in kind.lines(ROWS)[1:]]
    return [{name: str(value) for name, value in json.loads(line).items()} for line in kind.lines(ROWS)]


def write_dataset(address, rows):
    place = parquet.Location(address)
    place.filesystem.create_dir(place.path(), recursive=True)
    for first in range(0, len(rows), 25):
        path, table = place.path(f"{first:03}.parquet"), pa.Table.from_pylist(rows[first : first + 25])
        pq.write_table(table, path, filesystem=place.filesystem, row_group_size=5)
    return address


def read_dataset(address):
    place = parquet.Location(address)
    files = [name for name in place.names() if name.startswith("part-")]
    table = pq.read_table(place.path(), filesystem=place.filesystem).sort_by("row")
    assert len(files) > 3 and "_SUCCESS" in place.names()
    return table.to_pylist()


def without_nones(value):
    """As JSON has it: of entities and candidates only what is there."""
    if isinstance(value, dict):
        return {name: without_nones(each) for name, each in value.items() if each is not None}
    return list(map(without_nones, value)) if isinstance(value, list) else value


KEPT = {"tag": ["--keep", "id"], "answer": ["--keep", "id"], "score": []}
GIVEN = {"tag": set(), "answer": {"question", "context"}, "score": set()}
"""What a dataset has and a file has not: all texts."""


PLACES = [("tag", "folder"), ("answer", "folder"), ("score", "folder"), ("answer", "store"), ("score", "store")]


@pytest.mark.promise("A dataset, in a folder or a store, has the rows of a file", about="cluster")
@pytest.mark.parametrize(("command", "address"), PLACES, indirect=True)
def test_a_dataset_has_the_rows_of_a_file(command, address, call, write_lines, tmp_path, monkeypatch):
    name, kind, model = command
    monkeypatch.setattr(parquet, "BLOCK_SENTENCES", 8)
    write_dataset(address("input"), rows_of(kind))
    words = [*kind.words.split(), model]
    printed = call(*words, address("input"), address("output"), *KEPT[name], "--precision", "fp32")
    call(*words, write_lines(kind.input, kind.lines(ROWS)), tmp_path / "out.jsonl", "--precision", "fp32")
    expected = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    found = read_dataset(address("output"))
    assert [row.pop("row") for row in found] == list(range(len(expected))) and f"{len(expected)} " in printed
    for row, wanted in zip(found, expected, strict=True):
        texts = {each: row.pop(each) for each in GIVEN[name]}
        assert without_nones(row) == without_nones(
            {each: str(it) if each == "id" else it for each, it in wanted.items()}
        )
        assert all(texts.values())


@pytest.mark.promise(
    "Datasets of answers and scores computed on a cluster have the bytes of one process", about="cluster"
)
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("command", ["answer", "score"], indirect=True)
def test_workers_of_a_cluster_write_the_same_dataset(command, call, tmp_path):
    name, kind, model = command
    write_dataset(f"{tmp_path}/input/", rows_of(kind))
    for engine in ("local", "ray"):
        how = [*KEPT[name], "--precision", "fp32", "--engine", engine]
        call(*kind.words.split(), model, "input/", f"{engine}/", *how)
    files = [sorted((tmp_path / engine).glob("part-*")) for engine in ("local", "ray")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    assert len(files[0]) > 3


@pytest.mark.promise(
    "Datasets of entities computed on a cluster and written to a store have the rows of one process", about="cluster"
)
@pytest.mark.usefixtures("cluster")
def test_workers_of_a_cluster_write_entities_to_a_store(tagger, store, call, tmp_path):
    given, written = (store.format(f"{bucket}/{tmp_path.name}") for bucket in ("input", "output"))
    write_dataset(given, rows_of(COMMANDS["tag"]))
    call("ner", "tag", tagger, given, "local/", "--precision", "fp32")
    call("ner", "tag", tagger, given, written, "--precision", "fp32", "--engine", "ray")
    place, files = parquet.Location(written), sorted((tmp_path / "local").glob("part-*"))
    assert [place.read(path.name) for path in files] == [path.read_bytes() for path in files]
    assert len(read_dataset(written)) == ROWS


def test_notes_of_a_dataset_are_scored_into_a_file_and_of_a_file_into_a_dataset(
    readmission_model, address, call, write_lines, tmp_path
):
    kind = COMMANDS["score"]
    write_lines(kind.input, kind.lines(ROWS))
    how = ["--precision", "fp32"]
    call("readmission", "score", readmission_model, kind.input, "expected.jsonl", *how)
    call("readmission", "score", readmission_model, write_dataset(address("input"), rows_of(kind)), "found.jsonl", *how)
    assert (tmp_path / "found.jsonl").read_bytes() == (tmp_path / "expected.jsonl").read_bytes()
    call("readmission", "score", readmission_model, kind.input, address("output"), *how)
    found = [{name: value for name, value in row.items() if name != "row"} for row in read_dataset(address("output"))]
    assert found == list(map(json.loads, (tmp_path / "expected.jsonl").read_text().splitlines()))


def test_rows_that_cannot_be_asked_stay_with_the_reason(answerer, call):
    question, context = "Who had gout?", "The mice had gout."
    rows = [(question, context), (" ", context), (question, ""), ("gout " * 60, context), (question, context)]
    write_dataset("in/", [dict(zip(("question", "context"), row, strict=True)) for row in rows] * 8)
    call("qa", "answer", answerer, "in/", "out/", "--precision", "fp32")
    found = read_dataset("out/")
    reasons = [None, "an empty question", "a question without a context", "too long for a window of the model", None]
    assert [row["reason"] for row in found] == reasons * 8
    assert all((row["probability"] is None) == (row["reason"] is not None) for row in found)


def test_notes_that_cannot_be_used_are_counted_and_listed(readmission_model, call, tmp_path):
    rows = [{"hadm_id": str(row), "text": "slept well again."} for row in range(30)] + [{"hadm_id": None, "text": "x"}]
    write_dataset("in/", rows)
    with pytest.raises(WorkError, match="1 of 31 records cannot be used"):
        score_dataset(readmission_model, "in/", "out/")
    with pytest.raises(RequestError, match="expected a folder outside of the input"):
        score_dataset(readmission_model, "in/", "in/scores")
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out.rejects.jsonl"}
    call("readmission", "score", readmission_model, "in/", "out/", "--max-rejects", "0.1")
    (listed,) = map(json.loads, (tmp_path / "out.rejects.jsonl").read_text().splitlines())
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    assert (listed["file"], listed["line"]) == (str(tmp_path / "in/025.parquet"), 6) and listed[
        "reason"
    ] == "no id of an admission"
