"""Processes that fill one output, on disks that they share or do not share: two real ones, which gloo connects."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from forked import CONTEXT, finish, rank_environments

from bertrelay import device, encode_files
from bertrelay.cache import Cache
from bertrelay.compute.local import LocalExecutor
from bertrelay.compute.work import Work, whole_span
from bertrelay.data import shards
from bertrelay.data.writing import write_lines
from bertrelay.errors import RequestError
from bertrelay.inference import encode as encoding
from bertrelay.inference.run_model import fill_shards
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.process_group import ProcessGroup, check_shared, join_processes, map_over_processes
from bertrelay.stage import StageContext

LINES = [f"A dog {number}." for number in range(61)]


def worker(folder, environment):
    """Runs as one of two processes, in its own working folder; writes the outcomes of its calls into `folder`."""
    os.environ.update(environment)
    process_group = ProcessGroup.from_environment()
    with join_processes(process_group):
        (folder / f"shares-{process_group.rank}").write_text(json.dumps(shares(process_group)))
        (folder / f"precision-{process_group.rank}").write_text(precision(process_group, folder))
        reported = [outcome(call) for call in calls(process_group, folder)]
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    (folder / f"reported-{process_group.rank}").write_text(json.dumps([*reported, " ".join(threads)]))


def shares(process_group):
    """The results for five lines, for one line, the lines that this process computed, and the results for an array."""
    lines = []

    def lengths(share):
        lines.extend(share)
        return [len(line) for line in share]

    squares = map_over_processes(lambda share: np.stack([share, share**2], axis=1), np.arange(5), process_group)
    several, one = (map_over_processes(lengths, some, process_group) for some in (LINES[8:13], LINES[:1]))
    return [several, one, lines, squares.tolist()]


def precision(process_group, folder):
    """The precision of a stage here, where `auto` is bf16 in every process but the main one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "computes_in_bf16", lambda _: not process_group.is_main)
        return StageContext(folder / "stage", Cache(folder / "cache"), process_group).precision("auto")


def outcome(call):
    try:
        call()
    except RequestError as error:
        return str(error)
    return "complete"


def calls(process_group, shared):
    encoding.BLOCK_SENTENCES = encode_files.BLOCK_SENTENCES = 8
    encoder = SentenceEncoder.load(shared / "model")
    disk = shared / f"disk{process_group.rank}"
    disk.mkdir()
    os.chdir(disk)
    Path("lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    executor = LocalExecutor(process_group)

    def encode(output="out.npy"):
        encode_files.encode_file(encoder, "lines.txt", output, precision="fp32", process_group=process_group)

    def vectors(path="v.npy"):
        arguments = encoder, lambda first, end: LINES[first:end], 61, Path(path), "key"
        encode_files.fill_vectors(*arguments, precision="fp32", executor=executor)

    def tags():
        work = Work(whole_span, lambda: lambda spans, _: ([str(span.first)] for span in spans), "tagging", "words")
        spans, kind = shards.even_spans(4, 1), {"suffix": ".jsonl", "write": write_lines}
        fill_shards(Path("tags.txt"), spans, {}, work, executor=executor, **kind)

    yield from (lambda: vectors(shared / "two.npy"), lambda: encode(shared / "file.npy"))
    yield from (encode, vectors, lambda: check_shared(disk, process_group))
    encode_files.check_shared = shards.check_shared = lambda *_: None
    for name in ("out.npy", "v.npy", "tags.txt"):  # as where a disk seems to be shared and is not
        disk.joinpath(name + ".partial").mkdir(exist_ok=True)
    yield from (encode, vectors, tags)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def reported(tiny_encoder, folder):
    """The outcome of each of `calls`, and the threads left at the end, in the first and in the second process."""
    tiny_encoder("bert", ["A dog runs.", "0 1 2 3 4 5 6 7 8 9"]).save(folder / "model")
    both = [CONTEXT.Process(target=worker, args=(folder, environment)) for environment in rank_environments(2)]
    for process in both:
        process.start()
    assert finish(both) == [0, 0]
    return [json.loads((folder / f"reported-{rank}").read_text()) for rank in range(2)]


def test_two_processes_write_the_vectors_that_one_computes(reported, folder):
    assert [lines[:2] for lines in reported] == [["complete", "complete"]] * 2
    expected = SentenceEncoder.load(folder / "model").encode(LINES, precision="fp32")
    for name in ("two.npy", "file.npy"):
        np.testing.assert_allclose(np.load(folder / name), expected, atol=2e-5)
    assert not list(folder.glob("*.partial"))


@pytest.mark.usefixtures("reported")
def test_each_process_computes_a_share_and_gets_all_results(folder):
    first, second = (json.loads((folder / f"shares-{rank}").read_text()) for rank in range(2))
    for of_lines, of_one, _, squares in (first, second):
        assert of_lines == [8, 8, 9, 9, 9]  # A dog 8. to A dog 12.
        assert of_one == [8]
        assert squares == [[0, 0], [1, 1], [2, 4], [3, 9], [4, 16]]
    assert first[2] == [*LINES[8:13:2], LINES[0]]
    assert second[2] == LINES[9:13:2]


@pytest.mark.usefixtures("reported")
def test_all_processes_compute_in_the_precision_of_the_main_one(folder):
    assert [(folder / f"precision-{rank}").read_text() for rank in range(2)] == ["fp32", "fp32"]
    assert json.loads((folder / "stage/work/precision.json").read_text()) == {"precision": "fp32"}


@pytest.mark.promise("Processes on separate disks stop before they compute", about="complete")
def test_processes_on_separate_disks_are_refused_before_they_compute(reported):
    expected = "expected one folder that all 2 processes share, found another or none in process 1. Use a folder on"
    assert [expected in line for lines in reported for line in lines[2:5]] == [True] * 6


@pytest.mark.promise("A missing block is an error in every process", about="complete")
def test_a_block_that_is_missing_when_all_have_written_is_an_error_in_every_process(reported, folder):
    """The check of a shared folder is off, so the two disks seem to be one."""
    for lines in reported:
        for line, missing in zip(lines[5:8], ("expected all 8", "expected all 8", "expected all 4"), strict=True):
            assert missing in line and "The folder must be one that all processes share" in line
    assert ["4 are missing" in line for lines in reported for line in lines[5:7]] == [True] * 4
    assert not list(folder.glob("disk*/out.npy"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists threads")
def test_no_thread_of_a_group_is_left_to_abort_the_exit(reported):
    assert not any("gloo" in lines[8] for lines in reported)
