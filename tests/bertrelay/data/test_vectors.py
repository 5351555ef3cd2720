import os
import subprocess
import sys

import numpy as np
import pytest

from bertrelay.data.vectors import check_space, open_vectors, write_npy, write_vectors
from bertrelay.errors import RequestError, WorkError


def some_vectors(rows, dim=3):
    return np.random.default_rng(rows).normal(size=(rows, dim)).astype(np.float32)


def test_blocks_are_the_file_that_numpy_reads_and_must_be_all_there(tmp_path):
    path, expected = tmp_path / "v.npy", some_vectors(7)
    write_npy(path, [expected[:4], expected[4:]], 7, 3)
    np.testing.assert_array_equal(np.load(path), expected)
    np.testing.assert_array_equal(open_vectors(path), expected)
    with pytest.raises(WorkError, match="expected 7 vectors, found 4"):
        write_npy(path, [expected[:4]], 7, 3)
    write_npy(path, [], 0, 3)
    assert open_vectors(path).shape == (0, 3)


def test_opened_vectors_are_mapped_and_cannot_be_written(tmp_path):
    np.save(tmp_path / "v.npy", some_vectors(5))
    vectors = open_vectors(tmp_path / "v.npy")
    assert isinstance(vectors, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        vectors[0] = 1


def test_files_of_something_else_are_refused(tmp_path):
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
    for line, found in zip(
        logged, ("large.npy: File too large; free space", "large.parquet: ", "denied at"), strict=True
    ):
        assert found in line
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_and_a_disk_without_space_are_named(tmp_path):
    with pytest.raises(RequestError, match=r"No such file or directory at .*nowhere"):
        write_vectors(tmp_path / "nowhere" / "v.npy", [some_vectors(1)], 1, 3, lambda first, end: [])  # noqa: ARG005
    check_space(tmp_path, 1)
    with pytest.raises(WorkError, match=r"expected 1,000,000,000\.0 GB of free disk space, found"):
        check_space(tmp_path, 10**18)
