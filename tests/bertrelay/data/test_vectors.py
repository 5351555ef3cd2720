import errno
import os
import resource
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sentence_transformers.util.quantization import quantize_embeddings

from bertrelay.data.vectors import (
    check_finite_rows,
    check_space,
    open_vectors,
    quantized,
    stored_columns,
    write_array,
    write_npy,
    write_vectors,
)
from bertrelay.data.writing import write_table
from bertrelay.errors import RequestError, WorkError


def some_vectors(rows, dim=3):
    return np.random.default_rng(rows).normal(size=(rows, dim)).astype(np.float32)


def test_numpy_reads_the_blocks_and_a_missing_one_is_an_error(tmp_path):
    path, expected = tmp_path / "v.npy", some_vectors(7)
    write_npy(path, [expected[:4], expected[4:]], 7, 3)
    np.testing.assert_array_equal(np.load(path), expected)
    np.testing.assert_array_equal(open_vectors(path), expected)
    with pytest.raises(WorkError, match="expected 7 vectors, found 4"):
        write_npy(path, [expected[:4]], 7, 3)
    write_npy(path, [], 0, 3)
    assert open_vectors(path).shape == (0, 3)


def test_int8_keeps_cosines_and_binary_packs_signs_as_sentence_transformers_does():
    vectors = np.array([[0.5, -1, 0.25, 0, 0.001, 2, -0.1, 0.1], np.zeros(8)], np.float32)
    assert quantized(vectors, "int8").tolist() == [[32, -64, 16, 0, 0, 127, -6, 6], [0] * 8]
    assert quantized(vectors, "binary").tolist() == [[0b10101101], [0]]
    many = some_vectors(300, 64)
    np.testing.assert_array_equal(quantized(many, "binary"), quantize_embeddings(many, "ubinary"))
    rounded = quantized(many, "int8").astype(np.float64)
    cosines = (rounded * many).sum(1) / np.linalg.norm(rounded, axis=1) / np.linalg.norm(many, axis=1)
    assert cosines.min() > 0.9998
    assert quantized(many, "float32") is many
    with pytest.raises(RequestError, match="expected a multiple of 8 dimensions for binary, found 12"):
        stored_columns(12, "binary")


def test_opened_vectors_are_mapped_and_cannot_be_written(tmp_path):
    np.save(tmp_path / "v.npy", some_vectors(5))
    vectors = open_vectors(tmp_path / "v.npy")
    assert isinstance(vectors, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        vectors[0] = 1


def test_files_without_float32_vectors_are_refused(tmp_path):
    path = tmp_path / "v.npy"
    with pytest.raises(RequestError, match="found none"):
        open_vectors(path)
    np.save(path, some_vectors(5))
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(RequestError, match="cut off in"):
        open_vectors(path)
    path.write_bytes(b"text")
    with pytest.raises(RequestError, match="something else"):
        open_vectors(path)
    for other in (np.zeros((2, 2)), np.zeros(4, np.float32), np.zeros((2, 2), np.float32, order="F")):
        np.save(path, other)
        with pytest.raises(RequestError, match="expected float32 vectors by rows"):
            open_vectors(path)


def test_the_first_row_that_is_not_finite_is_named_in_whatever_block_it_is():
    vectors = some_vectors(10_000)
    check_finite_rows(vectors, "m", str)
    vectors[9_000, 1], vectors[9_500, 0] = np.inf, np.nan
    with pytest.raises(WorkError, match=r"the model gives a score that is not finite for line 9001\. Check"):
        check_finite_rows(vectors, None, lambda row: f"line {row + 1}", "a score")


FULL = """
import os, resource, sys
from pathlib import Path
import numpy as np
from bertrelay.errors import BertRelayError
from bertrelay.data.vectors import write_vectors
folder, block = Path(sys.argv[1]), np.random.default_rng(0).normal(size=(10_000, 3)).astype(np.float32)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # stands in for a full disk
for suffix in (".npy", ".parquet"):
    try:
        write_vectors(folder / f"large{suffix}", [block], *block.shape, lambda first, end: ["text"] * (end - first))
    except BertRelayError as error:
        print(error)
folder.chmod(0o500)
if os.geteuid() == 0:  # root may write anywhere
    os.setuid(65534)
try:
    write_vectors(folder / "v.npy", [block[:1]], 1, 3, None)
except BertRelayError as error:
    print(error)
"""


def test_a_full_disk_and_a_folder_that_may_not_be_written_leave_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True, check=True)
    tmp_path.chmod(0o700)
    logged = done.stdout.splitlines()
    messages = ("large.npy: File too large; free space", "large.parquet: ", "denied at")
    for line, message in zip(logged, messages, strict=True):
        assert message in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("values", [np.arange(9_000, dtype=np.int32), np.array([b"a" * 16] * 900), np.empty(0, int)])
def test_an_array_of_any_kind_is_that_of_numpy_and_a_full_disk_keeps_its_error_number(tmp_path, values):
    path = tmp_path / "a.npy"
    write_array(path, values)
    read = np.load(path)
    assert read.dtype == values.dtype and np.array_equal(read, values)
    if not len(values):
        return
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, limits[1]))  # after the header
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            write_array(path, values)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG


def test_rows_keep_their_spaces_and_a_link_stays_one(tmp_path):
    (tmp_path / "link.tsv").symlink_to("real.tsv")
    write_table(tmp_path / "link.tsv", {"a": "string", "b": "string"}, [("two  words\u00a0", "a\r\nb\tc\u2028d")])
    assert (tmp_path / "real.tsv").read_text() == "a\tb\ntwo  words\u00a0\ta b c d\n"
    assert (tmp_path / "link.tsv").is_symlink() and len(list(tmp_path.iterdir())) == 2


def test_a_missing_folder_and_a_full_disk_are_named(tmp_path):
    with pytest.raises(RequestError, match=r"No such file or directory at .*nowhere"):
        write_vectors(tmp_path / "nowhere" / "v.npy", [some_vectors(1)], 1, 3, lambda first, end: [])  # noqa: ARG005
    check_space(tmp_path, 1)
    with pytest.raises(WorkError, match=r"expected 1,000,000,000\.0 GB of free disk space, found"):
        check_space(tmp_path, 10**18)


def test_too_little_space_is_stated_in_a_unit_that_fits(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2_500))
    with pytest.raises(WorkError, match=r"expected 12\.0 MB of free disk space, found 2\.5 kB"):
        check_space(tmp_path, 12_000_000)
