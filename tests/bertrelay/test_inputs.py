import os
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrelay.data import shards
from bertrelay.data.parquet import DatasetShards
from bertrelay.data.readers import open_input
from bertrelay.encode_files import encode_dataset, encode_file
from bertrelay.errors import RequestError, WorkError
from bertrelay.files import atomic_write
from bertrelay.fingerprint import Digests, content_parts
from bertrelay.inputs import check_inputs, note_input, unchanged_inputs
from bertrelay.settings import InputFile, Settings

DOGS, CATS = "A dog runs.\nA dog plays.\n" * 20, "A cat runs.\nA cat plays.\n" * 20


def replaced_after_first_shard(monkeypatch, owner, replace):
    """Calls `replace` when the first shard has been written, as another process might."""
    write, calls = owner.write, []

    def write_and_replace(*arguments):
        write(*arguments)
        if not calls:
            calls.append(replace())

    monkeypatch.setattr(owner, "write", write_and_replace)


@pytest.mark.parametrize("change", ["other", "added"])
def test_a_dataset_that_changes_or_grows_while_it_is_encoded_is_never_marked_as_whole(
    make_encoder, tmp_path, monkeypatch, change
):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b"):
        pq.write_table(pa.table({"text": ["A dog runs."] * 3}), folder / f"{name}.parquet")
    name = "a" if change == "other" else "c"
    cats = pa.table({"text": ["A cat runs."] * 3})
    replaced_after_first_shard(monkeypatch, DatasetShards, lambda: pq.write_table(cats, folder / f"{name}.parquet"))
    with pytest.raises(WorkError, match="in changed while it was read"):
        encode_dataset(make_encoder(), folder, tmp_path / "out")
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_a_model_replaced_while_it_encodes_is_an_error(make_encoder, tmp_path, monkeypatch):
    make_encoder().save(tmp_path / "model")
    (tmp_path / "lines.txt").write_text(DOGS)
    vectors = tmp_path / "v.npy"
    replaced_after_first_shard(
        monkeypatch, shards.ShardFiles, lambda: (tmp_path / "model" / "more.json").write_text("{}")
    )
    with pytest.raises(WorkError, match="model changed while it was read"):
        encode_file(tmp_path / "model", tmp_path / "lines.txt", vectors)
    assert not vectors.exists()


def test_a_second_pass_over_changed_content_is_an_error_unless_the_inputs_are_separate(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")

    def first_byte():
        with open_input(str(file)) as stream:
            return stream.read(1)

    with unchanged_inputs():
        assert first_byte() == b"o"
        file.write_text("newer")
        with pytest.raises(WorkError, match=r"a\.txt changed while it was read"):
            first_byte()
    with unchanged_inputs():
        with unchanged_inputs(separate=True):
            first_byte()
        file.unlink()
        with atomic_write(tmp_path / "out") as building:
            building.write_text("whole")
    with unchanged_inputs():
        note_input(tmp_path, lambda: sorted(os.listdir(tmp_path)))  # noqa: PTH208
        with pytest.raises(WorkError), atomic_write(tmp_path / "other") as building:
            building.write_text("never there")
    assert not (tmp_path / "other").exists()


def test_a_file_added_to_a_folder_between_its_digest_and_its_reading_is_seen(tmp_path):
    class Sources(Settings):
        texts: InputFile

    (tmp_path / "a.txt").write_text("old")
    with unchanged_inputs():
        content_parts(Sources(texts=str(tmp_path)), ["texts"], Digests())
        (tmp_path / "b.txt").write_text("new")
        with pytest.raises(WorkError, match="changed while it was read; run the same command again"):
            check_inputs()


def test_a_pipe_without_a_writer_and_a_device_without_an_end_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    errors = []

    def read():
        for name in (str(tmp_path / "pipe"), "/dev/zero"):
            try:
                with open_input(name):
                    pass
            except RequestError as error:
                errors.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(5)
    assert len(errors) == 2 and all("expected a file, found a pipe or a device" in error for error in errors)
