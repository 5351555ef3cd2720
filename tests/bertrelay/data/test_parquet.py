"""Parquet datasets in folders and in an object store: moto's S3 server, where it is installed."""

import errno
from contextlib import nullcontext
from itertools import pairwise
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from pyarrow import fs

from bertrelay.compute.local import LocalExecutor
from bertrelay.compute.work import Work, whole_span
from bertrelay.data import parquet
from bertrelay.data.parquet import DatasetShards, ParquetInput, is_dataset, writes_dataset
from bertrelay.data.records import read
from bertrelay.data.shards import ShardFiles
from bertrelay.data.tables import Table
from bertrelay.encode_files import encode_dataset
from bertrelay.errors import RequestError, WorkError
from bertrelay.inference.run_model import fill, fill_dataset
from bertrelay.privacy import sensitive_data

ROWS, IN_GROUP = 61, 4
PLAIN = {"Content-Type": "text/plain"}
OURS = {"spans": "", "of": "rows"}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(parquet, "SHARD_ROWS", 10)
    monkeypatch.setattr(parquet, "BLOCK_SENTENCES", 8)


@pytest.fixture
def locked(store):
    """Takes all permissions from the key to the store, so that it refuses every request."""
    address = "http://" + store.split("endpoint_override=")[1].split("&")[0] + "/moto-api/reset-auth"
    urlopen(Request(address, b"0", PLAIN))
    yield
    urlopen(Request(address, b"Infinity", PLAIN))


@pytest.fixture(params=["folder", "store"])
def address(request, tmp_path):
    """Addresses of new folders by name."""
    if request.param == "folder":
        return lambda name: str(tmp_path / name)
    store, test = request.getfixturevalue("store"), tmp_path.name
    return lambda name: store.format(f"{name}/{test}")


def opened(address):
    location = parquet.Location(address)
    return location.filesystem, location.path()


def write_input(address, texts, files=3, **columns):
    """The texts in files of about the same size, with row groups of IN_GROUP rows."""
    filesystem, folder = opened(address)
    filesystem.create_dir(folder, recursive=True)
    table = pa.table({"id": [f"n{row}" for row in range(len(texts))], "text": texts, **columns})
    cuts = np.linspace(0, len(texts), files + 1).astype(int).tolist()
    for number, (first, end) in enumerate(pairwise(cuts)):
        path = f"{folder}/{number}.parquet"
        pq.write_table(table.slice(first, end - first), path, filesystem=filesystem, row_group_size=IN_GROUP)
    return address


def read_output(address):
    """Reads a dataset as any reader does: all rows in their order, and information on its files by name."""
    filesystem, folder = opened(address)
    table = pq.read_table(folder, filesystem=filesystem)
    entries = filesystem.get_file_info(fs.FileSelector(folder))
    files = {entry.path.removeprefix(f"{folder}/"): entry for entry in entries if entry.type == fs.FileType.File}
    return table.sort_by("row"), files


def rows_in(address):
    return read_output(address)[0]["row"].to_pylist()


def names_in(address):
    filesystem, folder = opened(address)
    return {entry.base_name for entry in filesystem.get_file_info(fs.FileSelector(folder))}


def spans_of(rows):
    return [parquet.Span(first, first + 5, 5) for first in range(0, rows, 5)]


def test_vectors_are_those_of_the_encoder_with_row_and_what_is_kept(make_encoder, many, address):
    encoder = make_encoder()
    encoded = encode_dataset(
        encoder, write_input(address("input"), many), address("output"), keep=["id"], precision="fp32"
    )
    assert encoded[:2] == (ROWS, 16)
    table, files = read_output(address("output"))
    assert table.column_names == ["row", "id", "text", "vector"]
    assert table["row"].to_pylist() == list(range(ROWS)) and table["text"].to_pylist() == many
    assert table["id"].to_pylist() == [f"n{row}" for row in range(ROWS)]
    expected = encoder.encode(many, precision="fp32")
    np.testing.assert_allclose(np.stack(table["vector"].to_numpy(zero_copy_only=False)), expected, atol=1e-5)
    assert {*files} == {"_SUCCESS", "_manifest.json", *(f"part-{number:05}.parquet" for number in range(6))}
    again = encode_dataset(encoder, address("input"), address("output"), keep=["id"], precision="fp32")
    assert again == (ROWS, 16, None, "fp32")
    assert {name: entry.mtime for name, entry in read_output(address("output"))[1].items()} == {
        name: entry.mtime for name, entry in files.items()
    }


def test_shards_are_row_groups_of_one_file_and_count_every_row_once(many, address):
    source = ParquetInput(write_input(address("input"), many), ["text"], ["id"])
    assert [group.rows for group in source.row_groups] == [12, 8, 12, 8, 12, 9]  # files of 20, 20 and 21 rows
    assert [(group.first, group.end) for group in source.row_groups] == [(0, 3), (3, 5), (0, 3), (3, 5), (0, 3), (3, 6)]
    blocks = [block for span in source.spans for block in source.blocks(span)]
    assert [row for block in blocks for row in block["row"].to_pylist()] == list(range(ROWS))
    assert [text for block in blocks for text in block["text"].to_pylist()] == many
    assert max(map(len, blocks)) <= 8


def test_all_parquet_files_below_a_folder_are_read_whatever_their_names_and_how_they_have_text(address):
    filesystem, folder = opened(address("input"))
    texts = {"0.parquet": pa.array(["a"]), "1.PARQUET": pa.array(["b"]).dictionary_encode()}
    texts |= {"year=2020/2.parq": pa.array(["c"]), "year=2020/_old/3.parquet": pa.array([None], pa.string())}
    for name, column in texts.items():
        filesystem.create_dir(f"{folder}/{name}".rpartition("/")[0], recursive=True)
        schema = pa.schema([pa.field("text", column.type, nullable=name != "0.parquet")])
        pq.write_table(pa.table([column], schema), f"{folder}/{name}", filesystem=filesystem)
    source = ParquetInput(address("input"), ["text"])

    def rows():
        return lambda spans, _: map(source.blocks, spans)

    work = Work(whole_span, rows, "copying", "rows")
    written = fill_dataset(address("output"), source.spans, [*source.schema], {}, work, LocalExecutor())
    assert written.rows == 3
    assert read_output(address("output"))[0]["text"].to_pylist() == [*"abc"]


def test_a_link_to_nothing_and_an_output_in_its_input_are_refused(make_encoder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    source = tmp_path / "input"
    write_input(str(source), ["a", "b"])
    assert encode_dataset(make_encoder(), source, "~/output").sentences == 2 and (tmp_path / "output").is_dir()
    with pytest.raises(RequestError, match="expected a folder outside of the input"):
        encode_dataset(make_encoder(), source, source / "vectors")
    (source / "9.parquet").symlink_to("nothing")
    with pytest.raises(RequestError, match=r"9\.parquet: expected a Parquet file, found a link to nothing"):
        encode_dataset(make_encoder(), source, tmp_path / "other")


def shards_of(address, spans, **manifest):
    schema = pa.schema({"row": pa.int64()})
    shards = DatasetShards(address, spans, schema)
    shards.begin(OURS | manifest)
    return shards


def rows_of(span):
    yield pa.table({"row": list(range(span.first, span.end))})


def count_rows(shards, content=rows_of):
    """Fills the shards with the numbers of their rows; returns how many were missing."""
    return fill(
        shards, Work(whole_span, lambda: lambda spans, _: map(content, spans), "counting", "rows"), LocalExecutor()
    )


def test_what_is_missing_cut_off_or_of_another_input_is_written_again(address):
    spans = spans_of(30)
    shards = shards_of(address("output"), spans)
    for number in (0, 1, 2, 4):
        shards.write(number, rows_of(spans[number]))
    filesystem, folder = opened(address("output"))

    def damage():
        with filesystem.open_output_stream(f"{folder}/part-00001.parquet") as file:
            file.write(b"PAR1")
        filesystem.delete_file(f"{folder}/part-00002.parquet")

    damage()
    resumed = shards_of(address("output"), spans)
    assert resumed.missing() == [1, 2, 3, 5]
    with pytest.raises(RequestError, match="cannot be read"):
        resumed.finish()
    for size in (20, 10):
        assert not resumed.is_finished(OURS)
        resumed = shards_of(address("output"), spans)
        assert "_SUCCESS" not in names_in(address("output"))
        assert count_rows(resumed).size == size
        resumed.finish()
        assert resumed.is_finished(OURS)
        assert rows_in(address("output")) == list(range(30))
        damage()  # of what was finished
        with filesystem.open_output_stream(f"{folder}/_shards/{shards._key}-00001-999999") as file:
            file.write(b"")  # of other hardware, whose vectors fill another file
    count_rows(resumed)
    resumed.finish()
    with pytest.raises(RequestError, match="finished dataset of another model or input; overwrite it"):
        shards_of(address("output"), spans[:2], of="others")
    other = DatasetShards(address("output"), spans[:2], pa.schema({"row": pa.int64()}))
    other.begin(OURS | {"of": "others"}, overwrite=True)
    assert other.missing() == [0, 1] and "_SUCCESS" not in names_in(address("output"))
    count_rows(other)
    other.finish()
    assert rows_in(address("output")) == list(range(10))


def test_a_manifest_stays_as_it_is_where_a_call_resumes(address, monkeypatch):
    spans = spans_of(5)
    shards_of(address("output"), spans).write(0, rows_of(spans[0]))
    monkeypatch.setattr(parquet.Location, "write", None)  # a kill while it is written would cost all shards
    assert shards_of(address("output"), spans).missing() == []


def test_a_shard_is_not_visible_where_a_folder_has_another_manifest(tmp_path):
    shards = shards_of(str(tmp_path), spans_of(5))
    assert shards.is_visible()
    (tmp_path / "_manifest.json").write_text('{"of": "yesterday"}')
    assert not shards.is_visible()
    file = ShardFiles(tmp_path / "out.jsonl", [])
    file.begin({"of": "rows"})
    assert file.is_visible()
    (tmp_path / "out.jsonl.partial/manifest.json").write_text('{"of": "yesterday"}')
    assert not file.is_visible()


def test_an_error_about_sensitive_data_quotes_none_of_it(tmp_path):
    shards = shards_of(str(tmp_path), [parquet.Span(0, 1, 1)])
    for context, shown in ((nullcontext(), True), (sensitive_data(), False)):
        with context, pytest.raises(RequestError, match="part-00000") as caught:
            shards.write(0, [pa.table({"row": ["Anna Smith"]})])
        assert ("Anna" in str(caught.value)) == shown


def test_a_shard_with_other_rows_is_no_shard(address):
    spans = spans_of(5)
    shards = shards_of(address("output"), spans)
    with pytest.raises(WorkError, match="expected 5 rows, found 3"):
        shards.write(0, [pa.table({"row": [0, 1, 2]})])
    assert shards.missing() == [0] and "part-00000.parquet" not in names_in(address("output"))
    filesystem, folder = opened(address("output"))
    shards.write(0, rows_of(spans[0]))
    pq.write_table(pa.table({"row": [1]}), f"{folder}/part-00000.parquet", filesystem=filesystem)
    with pytest.raises(WorkError, match="expected 5 rows, found 1"):
        shards.finish()
    assert "_SUCCESS" not in names_in(address("output"))


def test_a_store_that_lists_late_is_waited_for(address, monkeypatch):
    """Eventual consistency: a marker that is written is listed from the third time on."""
    monkeypatch.setattr(parquet.time, "sleep", lambda _: None)
    seen, names = {}, parquet.Location.names

    def late(self, folder=""):
        listed = names(self, folder)
        if folder != parquet.MARKERS:
            return listed
        for name in listed:
            seen[name] = seen.get(name, 0) + 1
        return {name: entry for name, entry in listed.items() if seen[name] > 2}

    monkeypatch.setattr(parquet.Location, "names", late)
    monkeypatch.setattr(parquet.Location, "is_local", False)
    spans = spans_of(15)
    shards = shards_of(address("output"), spans)
    assert count_rows(shards).size == 15
    shards.finish()
    assert rows_in(address("output")) == list(range(15))


def test_a_manifest_that_a_store_shows_late_is_waited_for(tmp_path, monkeypatch):
    slept, read, late = [], parquet.Location.read, iter([None, None])
    monkeypatch.setattr(parquet.time, "sleep", slept.append)
    shards = shards_of(str(tmp_path / "output"), spans_of(5))
    monkeypatch.setattr(parquet.Location, "read", lambda self, name: next(late, read(self, name)))
    assert not shards.is_visible() and not slept  # a folder is there at once
    monkeypatch.setattr(parquet.Location, "is_local", False)
    assert shards.is_visible() and len(slept) == 1


def test_a_folder_that_another_call_writes_is_refused(make_encoder, many, tmp_path):
    source, output = write_input(str(tmp_path / "input"), many), tmp_path / "output"
    with FileLock(tmp_path / "output.lock"), pytest.raises(RequestError, match=r"another process is writing .*output"):
        encode_dataset(make_encoder(), source, str(output))
    assert not output.exists()
    assert encode_dataset(make_encoder(), source, str(output)).sentences == ROWS


def test_an_input_that_cannot_be_right_is_refused_with_the_file(make_encoder, many, address):
    filesystem, folder = opened(address("input"))
    filesystem.create_dir(folder, recursive=True)
    with pytest.raises(RequestError, match="expected Parquet files, found none and 0 others"):
        ParquetInput(address("input"), ["text"])
    with pytest.raises(RequestError, match=r"there is no folder .*input.*none"):
        ParquetInput(address("input").replace("input", "input/none", 1), ["text"])
    write_input(address("input"), many, score=[1.0] * ROWS)
    for column, why in (("sentence", "a column 'sentence', found id, text, score"), ("score", "to be text, found dou")):
        with pytest.raises(RequestError, match=rf"0\.parquet: expected .*{why}"):
            ParquetInput(address("input"), [column])
    pq.write_table(pa.table({"text": [None, "a"]}), f"{folder}/3.parquet", filesystem=filesystem)
    with pytest.raises(RequestError, match=r"3\.parquet, row group 0: expected text in 'text', found none in 1 of 2"):
        encode_dataset(make_encoder(), address("input"), address("output"))
    texts = pa.table({"text": ["a", None]})
    pq.write_table(texts, f"{folder}/3.parquet", filesystem=filesystem, write_statistics=False)
    with pytest.raises(RequestError, match=r"3\.parquet, row 2 of row groups 0 to 0: expected text, found none"):
        encode_dataset(make_encoder(), address("input"), address("output"))
    assert {f"part-{number:05}.parquet" for number in range(6)} < names_in(address("output"))  # all before it are kept
    pq.write_table(pa.table([["a"], ["b"]], ["text", "text"]), f"{folder}/3.parquet", filesystem=filesystem)
    with pytest.raises(RequestError, match=r"3\.parquet: expected a column 'text', found text, text"):
        ParquetInput(address("input"), ["text"])
    pq.write_table(pa.table({"text": [1]}), f"{folder}/3.parquet", filesystem=filesystem)
    with pytest.raises(RequestError, match=r"3\.parquet: expected text to be string as in 0\.parquet, found int64"):
        ParquetInput(address("input"), ["text"])
    with filesystem.open_output_stream(f"{folder}/3.parquet") as file:
        file.write(b"PAR1 and no more")
    with pytest.raises(RequestError, match=r"3\.parquet: expected a Parquet file, .* give a file as output"):
        ParquetInput(address("input"), ["text"])
    pq.write_table(pa.table({"text": ["a"], "row": [1]}), f"{folder}/3.parquet", filesystem=filesystem)
    with pytest.raises(RequestError, match="row: the output has a column of that name"):
        ParquetInput(write_input(address("input2"), many, row=[1] * ROWS), ["text"], ["row"], ["vector"])


@pytest.mark.parametrize("mine", ["notes.txt", "_manifest.json", "year=2020/part-0.parquet"])
def test_an_output_of_something_else_stays(address, mine):
    filesystem, folder = opened(address("output"))
    filesystem.create_dir(f"{folder}/{mine}".rpartition("/")[0], recursive=True)
    with filesystem.open_output_stream(f"{folder}/{mine}") as file:
        file.write(b'{"tool": "mine"}')
    with pytest.raises(RequestError, match="found 1 files or folders and no manifest of one"):
        shards_of(address("output"), spans_of(5))
    assert names_in(address("output")) == {mine.partition("/")[0]}


@pytest.mark.usefixtures("locked")
def test_a_store_that_allows_nothing_is_one_error(store):
    for act in (
        lambda: ParquetInput(store.format("input/x"), ["text"]),
        lambda: shards_of(store.format("output/x"), []),
    ):
        with pytest.raises(RequestError, match=r"cannot be \w+: .*(ACCESS_DENIED|403).* Check the address"):
            act()


def test_a_full_disk_or_quota_is_no_fault_of_the_request(tmp_path):
    location = parquet.Location(str(tmp_path))
    (tmp_path / "full").symlink_to("/dev/full")  # the kernel's own full disk
    with pytest.raises(WorkError, match=r"cannot be written: .*No space left"), location.errors("written"):
        (tmp_path / "full").write_bytes(b"a")
    with pytest.raises(WorkError, match="quota"), location.errors("written"):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")
    with pytest.raises(RequestError, match="Permission denied"), location.errors("written"):
        raise OSError(errno.EACCES, "Permission denied")


def test_a_bucket_that_is_not_there_and_an_unknown_store_are_refused(store):
    for url in (store.format("nowhere/x").replace("&allow_bucket_creation=true", ""), "nostore://a/b"):
        with pytest.raises(RequestError, match=r"cannot be .*Check the address"):
            shards_of(url, spans_of(5))


def test_datasets_differ_from_files_by_their_names(tmp_path):
    names = ("s3://bucket/folder", "file:///folder", "memory://x", "folder/", str(tmp_path))
    assert all(map(is_dataset, names))
    assert not any(map(is_dataset, ("vectors.npy", "folder/vectors.parquet", "-")))
    assert not writes_dataset(str(tmp_path), "out/") and not writes_dataset("in.parquet", "out.jsonl")
    (tmp_path / "in.parquet").touch()
    written = ((str(tmp_path), "out/"), ("in.parquet", "out/"), ("s3://b/in", "out/"), ("in.txt", "s3://b/out"))
    assert all(writes_dataset(*addresses) for addresses in written)


def test_other_file_systems_are_fsspecs(many):
    source = ParquetInput(write_input("memory://input", many), ["text"], ["id"])
    assert source.rows == ROWS


def test_the_missing_values_of_a_struct_are_not_those_of_a_text_column_of_that_name(tmp_path):
    inside = pa.array([{"text": None}, None], pa.struct([("text", pa.string())]))
    columns = {"meta.text": pa.array(["A dog.", "A cat."]), "meta": inside}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert [record.values for record in ParquetInput(tmp_path, ["meta.text"]).records()] == [("A dog.",), ("A cat.",)]
    pq.write_table(pa.table({**columns, "meta.text": pa.array(["A dog.", None])}), tmp_path / "a.parquet")
    with pytest.raises(RequestError, match=r"expected text in 'meta\.text', found none in 1 of 2 rows"):
        ParquetInput(tmp_path, ["meta.text"])


def test_text_and_names_of_columns_that_are_not_utf_8_are_one_clear_error(tmp_path):
    raw = pa.array([b"A dog.", b"caf\xe9"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    with pytest.raises(RequestError, match=r"a\.parquet, row groups 0 to 0: expected text in UTF-8, found other bytes"):
        list(ParquetInput(tmp_path, ["text"]).records())
    with pytest.raises(
        RequestError, match=r"a\.parquet, after row 0: expected text and names of columns in UTF-8, found other bytes"
    ):
        list(read(Table(path=str(tmp_path / "a.parquet")), ["text"]))
    pq.write_table(pa.table({"text": ["A dog."]}, metadata={}), tmp_path / "a.parquet", store_schema=False)
    content = (tmp_path / "a.parquet").read_bytes().replace(b"text", b"te\xfft")
    (tmp_path / "a.parquet").write_bytes(content)
    for reading in (
        lambda: ParquetInput(tmp_path, ["text"]),
        lambda: list(read(Table(path=str(tmp_path / "a.parquet")), ["text"])),
    ):
        with pytest.raises(RequestError, match="names of columns in UTF-8, found other bytes"):
            reading()


def test_a_manifest_nested_without_an_end_is_none_of_ours(tmp_path):
    (tmp_path / "_manifest.json").write_text('{"spans": ' + "[" * 100_000)
    with pytest.raises(RequestError, match="found 1 files or folders and no manifest"):
        DatasetShards(str(tmp_path), [], pa.schema([])).begin({"spans": ""})
