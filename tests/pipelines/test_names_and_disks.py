"""Names that are no text, too long or empty, and disks that are full: one clear error in every command."""

import errno
import io
import os
import resource
import shutil
import sys
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrelay import SentenceEncoder
from bertrelay.errors import WorkError
from students.compress.export import export

BAD, LONG = "bad\udcff", "a" * 300


@pytest.fixture(scope="module")
def model(tiny_encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "M"
    tiny_encoder("bert", ["A dog runs in the park.", "A cat plays."] * 20).save(folder)
    return folder


@pytest.fixture
def folder(tmp_path, model):
    shutil.copytree(model, tmp_path / "M")
    (tmp_path / "lines.txt").write_text("A dog runs.\nA cat plays.\n")
    (tmp_path / BAD).mkdir()
    for name in (f"{BAD}.txt", f"{BAD}.toml"):
        (tmp_path / name).write_text("A dog runs.\n")
    (tmp_path / "r.toml").write_text("[slow]\nuses = 'light.slow'\n")
    (tmp_path / "ds").mkdir()
    pq.write_table(pa.table({"text": ["A dog."]}), tmp_path / "ds" / "a.parquet")
    (tmp_path / "ds" / f"{BAD}.txt").touch()
    return tmp_path


COMMANDS = [
    ("plan", "NAME.toml"),
    ("plan", "r.toml", "--runs", "NAME"),
    ("run", "r.toml", "--runs", "NAME"),
    ("encode", "M", "NAME.txt", "o.npy"),
    ("encode", "M", "lines.txt", "NAME.npy"),
    ("encode", "NAME/M", "lines.txt", "o.npy"),
    ("search", "M", "NAME.txt", "--query", "dog"),
    ("search", "M", "lines.txt", "--index", "NAME", "--query", "dog"),
    ("export", "M", "NAME"),
    ("shrink", "M", "lines.txt", "NAME"),
    ("mine", "M", "lines.txt", "NAME.txt", "o.tsv"),
    ("mine", "M", "lines.txt", "lines.txt", "NAME.tsv"),
    ("similarity", "M", "A", "B", "--csv", "NAME.csv"),
]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_name_that_is_no_text_or_too_long_is_one_clear_error_and_nothing_is_written(bertrelay, folder, command):
    before = sorted(os.listdir(folder))  # noqa: PTH208
    for name, expected in ((BAD, "in UTF-8"), (LONG, "File name too long")):
        code, _, error = bertrelay(*(word.replace("NAME", name) for word in command))
        assert (code, expected in error, "unforeseen" in error, "damaged" in error) == (2, True, False, False), error
    assert sorted(os.listdir(folder)) == before  # noqa: PTH208


def test_a_dataset_with_such_a_file_beside_it_names_it(bertrelay, folder):
    code, _, error = bertrelay("encode", "M", "ds/", "out/")
    assert code == 2 and f"found 'bad\\udcff.txt' in {folder / 'ds'}; rename or remove it" in error
    assert not (folder / "out").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("run", "r.toml", "--runs", ""), "--runs: expected a folder, found an empty text"),
        (("plan", "r.toml", "--runs="), "--runs: expected a folder, found an empty text"),
        (("plan", "r.toml", "--set", "vars=1"), "--set vars=1: expected vars.NAME=VALUE"),
        (("encode", "M", "lines.txt", ""), "output: expected a file that ends in .npy"),
    ],
)
def test_a_value_that_cannot_be_is_named_by_its_option(bertrelay, command, message):
    code, _, error = bertrelay(*command)
    assert code == 2 and message in error


@pytest.mark.parametrize("command", [("export", "M", "out"), ("shrink", "M", "lines.txt", "out")])
def test_a_full_disk_is_no_unforeseen_error(bertrelay, folder, command):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))  # stands in for a full disk
    try:
        code, _, error = bertrelay(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 1 and "could not write out: File too large; free space" in error
    assert not (folder / "out").exists() and not list(folder.glob(".out*"))


def test_a_full_disk_is_named_in_python_too(model, tmp_path):
    encoder, limits = SentenceEncoder.load(model), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))
    try:
        for write in (encoder.save, partial(export, encoder)):
            with pytest.raises(WorkError, match=f"could not write {tmp_path / 'out'}: File too large; free space"):
                write(tmp_path / "out")
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("folder")
def test_standard_output_on_a_full_disk_is_no_unforeseen_error(bertrelay, monkeypatch):
    class Full(io.StringIO):
        def write(self, _):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Full())
    code, _, error = bertrelay("plan", "r.toml")
    assert code == 1 and "no space left to write the output" in error


def test_a_question_mark_is_a_letter_of_a_local_path(bertrelay, folder):
    (folder / "a?b").mkdir()
    pq.write_table(pa.table({"text": ["A dog."]}), folder / "a?b" / "a.parquet")
    assert bertrelay("encode", "M", "a?b/", "a?c/")[0] == 0
    assert (folder / "a?c" / "_SUCCESS").is_file()
    code, _, error = bertrelay("encode", "M", "a?b/", "a?b/inner/")
    assert code == 2 and "expected a folder outside of the input" in error
