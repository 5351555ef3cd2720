import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertrelay.data.vectors import create_vectors, open_vectors, write_rows
from bertrelay.errors import RequestError


def some_vectors(rows: int, dim: int = 3) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, dim)).astype(np.float32)


def test_blocks_written_in_any_order_are_the_file_that_numpy_reads(tmp_path: Path) -> None:
    path, expected = tmp_path / "v.npy", some_vectors(7)
    create_vectors(path, 7, 3)
    write_rows(path, 4, expected[4:])
    write_rows(path, 0, expected[:4])
    np.testing.assert_array_equal(np.load(path), expected)
    np.testing.assert_array_equal(open_vectors(path), expected)


def test_a_file_that_numpy_wrote_is_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", some_vectors(5))
    np.testing.assert_array_equal(open_vectors(tmp_path / "v.npy"), some_vectors(5))


def test_opened_vectors_are_mapped_and_cannot_be_written(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", some_vectors(5))
    vectors = open_vectors(tmp_path / "v.npy")
    assert isinstance(vectors, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        vectors[0] = 1


def test_a_file_of_no_vectors_is_opened(tmp_path: Path) -> None:
    create_vectors(tmp_path / "v.npy", 0, 3)
    assert open_vectors(tmp_path / "v.npy").shape == (0, 3)


def test_a_cut_off_file_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "v.npy"
    np.save(path, some_vectors(5))
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(RequestError, match="expected 188 bytes for 5 vectors of 3 dimensions, found 187"):
        open_vectors(path)


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.npy"
    with pytest.raises(RequestError, match="found none"):
        open_vectors(path)
    path.write_bytes(b"text")
    with pytest.raises(RequestError, match="something else"):
        open_vectors(path)
    for other in (np.zeros((2, 2)), np.zeros(4, np.float32), np.zeros((2, 2), np.float32, order="F")):
        np.save(path, other)
        with pytest.raises(RequestError, match="expected float32 vectors by rows"):
            open_vectors(path)


def test_a_full_disk_is_an_error_before_the_work_begins(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk; it takes a process of its own."""
    code = """
import resource, sys
from pathlib import Path
from bertrelay.errors import WorkError
from bertrelay.data.vectors import create_vectors
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
path = Path(sys.argv[1])
create_vectors(path / "small.npy", 10, 3)
try:
    create_vectors(path / "large.npy", 1_000_000, 3)
except WorkError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert "large.npy: File too large; free space" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["small.npy"]


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from bertrelay.errors import RequestError
from bertrelay.data.vectors import create_vectors
if os.geteuid() == 0:  # root may write anywhere
    os.setuid(65534)
try:
    create_vectors(Path(sys.argv[1]) / "v.npy", 1, 1)
except RequestError as error:
    print(error)
"""
    tmp_path.chmod(0o500)
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    tmp_path.chmod(0o700)
    assert "Permission denied at" in done.stdout


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"No such file or directory at .*nowhere"):
        create_vectors(tmp_path / "nowhere" / "v.npy", 1, 1)
