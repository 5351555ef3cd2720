"""The contract of the frame, for every kind of output: killed, shared by processes, other inputs, faults of the disk.

The task of the tests squares the numbers of a file's lines, times a factor that the model's folder holds; vectors are
those of a tiny encoder. A worker of a cluster that is lost is in `compute/test_ray.py`.
"""

import hashlib
import json
import multiprocessing
import os
import resource
import signal
from functools import partial, partialmethod
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from forked import CONTEXT, finish, rank_environments

from bertrelay import encode_files
from bertrelay.compute.work import Work
from bertrelay.data import parquet
from bertrelay.data.shards import SpanReader, even_spans
from bertrelay.data.writing import json_line, write_table
from bertrelay.encode_files import encode_file
from bertrelay.errors import RequestError, WorkError
from bertrelay.inference import encode as encoding
from bertrelay.inference.run_model import Scan, add_columns, open_run
from bertrelay.inputs import note_input
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, join_processes

COUNT, IN_SHARD = 41, 8
NUMBERS = [(7 * row) % 23 for row in range(COUNT)]
OTHERS = NUMBERS[::-1]
FORK = multiprocessing.get_context("fork")
ACTS = [(Path, name) for name in ("replace", "rename", "mkdir", "unlink", "rmdir")]
ACTS += [(parquet.Location, "write"), (parquet.DatasetShards, "_build")]
"""Calls that publish, remove or begin a shard; a process is killed before each of them."""
MIDDLE = 12  # of these acts, when some shards are written and some are not


def read_factor(folder):
    return json.loads((folder / "config.json").read_text())["factor"]


def start_lines(folder):
    """Gives the lines of a shard: numbers times their squares' factor."""
    factor = read_factor(folder)

    def lines(blocks, bar):
        for numbers in blocks:
            yield [json_line({"number": number, "square": factor * number**2}) for number in numbers]
            bar.advance(len(numbers))

    return lines


def square_file(folder, output, process_group=SINGLE_PROCESS):
    """A task of the frame, as taggers and answerers are."""
    source = folder / "numbers.txt"

    def numbers():
        note_input(source)
        return map(int, source.read_text().split())

    def scan():
        return Scan(even_spans(len(list(numbers())), IN_SHARD), hashlib.sha256(source.read_bytes()).hexdigest())

    options = {"span_limit": IN_SHARD, "precision": "fp32", "process_group": process_group}
    with open_run(folder / output, folder / "model", scan, **options) as run:
        reader = SpanReader(numbers, source)
        rate = run.fill(Work(reader.read, partial(start_lines, run.folder), "squaring", "numbers")).rate
        if run.is_main:
            columns = {"number": "int64", "square": "int64"}
            write_table(folder / output, columns, (row.values() for row in run.shards.rows()))
    return rate


def load_squares(folder, precision):  # noqa: ARG001
    factor = read_factor(folder)
    return lambda block: {"square": [factor * int(text) ** 2 for text in block["text"].to_pylist()]}


def square_dataset(folder, output, process_group=SINGLE_PROCESS):
    added = [pa.field("square", pa.int64())]
    options = {"keep": [], "precision": "fp32", "description": "squaring", "process_group": process_group}
    source = folder / "numbers"
    return add_columns(folder / "model", source, folder / output, ["text"], added, load_squares, **options)[1]


def encode_lines(folder, output, process_group=SINGLE_PROCESS):
    options = {"precision": "fp32", "process_group": process_group, "overwrite": True}
    return encode_file(folder / "encoder", folder / "numbers.txt", folder / output, **options).sentences_per_second


KINDS = {
    "out.jsonl": square_file,
    "out.csv": square_file,
    "out.parquet": square_file,
    "v.npy": encode_lines,
    "v.parquet": encode_lines,
    "dataset": square_dataset,
}


def set_small_shards():
    for module in (encoding, encode_files):
        module.BLOCK_SENTENCES = IN_SHARD
    parquet.SHARD_ROWS = IN_SHARD


def write_numbers(folder, numbers):
    (folder / "numbers.txt").write_text("".join(f"{number}\n" for number in numbers))
    (folder / "numbers").mkdir(exist_ok=True)
    pq.write_table(pa.table({"text": list(map(str, numbers))}), folder / "numbers/0.parquet", row_group_size=IN_SHARD)


def write_model(folder, factor):
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model/config.json").write_text(json.dumps({"factor": factor}))


def content(path):
    """The bytes of a file, or of all files of a dataset but for what is written about its input."""
    if path.is_dir():
        return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix == ".parquet"}
    return path.read_bytes()


def left_beside(folder):
    """Files of the frame that are neither input nor output."""
    hidden = [path.name for path in folder.rglob(".*")]
    return sorted(
        [*hidden, *(path.name for pattern in ("*.partial", "*.lock", "_unf*") for path in folder.glob(pattern))]
    )


@pytest.fixture(params=KINDS)
def task(request, tiny_encoder, tmp_path, monkeypatch):
    """`run()` writes `output` from numbers; `expected` is the content of one that nothing has disturbed."""
    for owner, name in ((encoding, "BLOCK_SENTENCES"), (encode_files, "BLOCK_SENTENCES"), (parquet, "SHARD_ROWS")):
        monkeypatch.setattr(owner, name, IN_SHARD)
    tiny_encoder("bert", ["0 1 2 3 4 5 6 7 8 9"]).save(tmp_path / "encoder")
    write_numbers(tmp_path, NUMBERS)
    write_model(tmp_path, 3)
    run = partial(KINDS[request.param], tmp_path)
    assert run(f"whole-{request.param}") > 0
    whole = tmp_path / f"whole-{request.param}"
    return SimpleNamespace(
        run=partial(run, request.param),
        whole=partial(run, f"again-{request.param}"),
        output=tmp_path / request.param,
        again=tmp_path / f"again-{request.param}",
        expected=content(whole),
        folder=tmp_path,
    )


def killed_before(act, run):
    """Runs, and kills this process before its act number `act`, counted from 0."""
    acts = count()

    def die_or_call(real, *arguments, **options):
        if next(acts) == act:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)

    for owner, name in ACTS:
        setattr(owner, name, partialmethod(partial(die_or_call, getattr(owner, name))))
    run()


def in_a_fork(work, *arguments):
    process = FORK.Process(target=work, args=arguments)
    process.start()
    process.join(60)
    return process.exitcode


@pytest.mark.promise(
    "Encoding, tagging, answering, scoring and ranking of a file or dataset, killed before any act, resume to "
    "the same bytes",
    about="resume",
)
def test_killed_before_any_act_it_resumes_to_the_same_bytes(task):
    acts = 0
    while True:
        code = in_a_fork(killed_before, acts, task.run)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        if not task.output.is_dir():
            assert not task.output.exists() or content(task.output) == task.expected
        task.run()
        assert content(task.output) == task.expected, acts
        # A finished dataset is not locked again, so a lock that a kill at the very end has left stays, free.
        assert left_beside(task.folder) in ([], ["dataset.lock"]), acts
        Path(f"{task.output}.lock").unlink(missing_ok=True)
        remove(task.output)
        acts += 1
    assert acts > 4 and content(task.output) == task.expected


def remove(path):
    if path.is_dir():
        for file in sorted(path.rglob("*"), key=lambda file: -len(file.parts)):
            file.rmdir() if file.is_dir() else file.unlink()
        path.rmdir()
    else:
        path.unlink()


def test_a_finished_part_is_not_computed_again(task, capsys):
    assert in_a_fork(killed_before, MIDDLE, task.run) == -signal.SIGKILL
    capsys.readouterr()
    task.run()
    assert "resuming after" in capsys.readouterr().err and content(task.output) == task.expected


@pytest.mark.parametrize("change", ["input", "model"])
def test_what_was_begun_with_another_input_or_model_is_not_used(task, change, tiny_encoder):
    assert in_a_fork(killed_before, MIDDLE, task.run) == -signal.SIGKILL
    if change == "input":
        write_numbers(task.folder, OTHERS)
    else:
        write_model(task.folder, 5)
        tiny_encoder("bert", ["0 1 2 3 4 5 6 7 8 9"], seed=9).save(task.folder / "encoder")
    task.run()
    task.whole()
    assert content(task.output) == content(task.again) != task.expected


@pytest.mark.promise("A file rewritten while it is encoded is an error, and nothing is published", about="skip")
def test_an_input_that_changes_meanwhile_is_an_error_and_nothing_is_published(task, monkeypatch):
    changes = [partial(write_numbers, task.folder, OTHERS)]
    real = parquet.DatasetShards.write if task.output.name == "dataset" else encode_files.ShardFiles.write
    owner = parquet.DatasetShards if task.output.name == "dataset" else encode_files.ShardFiles

    def write(*arguments):
        real(*arguments)
        if changes:
            changes.pop()()

    monkeypatch.setattr(owner, "write", write)
    with pytest.raises(WorkError, match="changed while it was read; run the same command again"):
        task.run()
    assert not task.output.is_file() and not (task.output / "_SUCCESS").exists()


def test_on_a_full_disk_it_is_an_error_after_which_the_same_call_resumes(task):
    def run_on_full_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))
        with pytest.raises((WorkError, RequestError), match="File too large"):
            task.run()

    assert in_a_fork(run_on_full_disk) == 0
    assert not task.output.is_file()
    task.run()
    assert content(task.output) == task.expected


@pytest.mark.promise("A second process on the same output is refused", about="complete")
def test_a_second_call_on_the_same_output_is_refused(task):
    with FileLock(f"{task.output}.lock"), pytest.raises(RequestError, match="another process is writing"):
        task.run()
    task.run()
    assert content(task.output) == task.expected


def test_settings_that_decide_replace_no_digest(tmp_path):
    write_model(tmp_path, 3)
    options = {"span_limit": IN_SHARD, "precision": "fp32"}
    scan = Scan(even_spans(1, 1), "digest")
    with (
        pytest.raises(TypeError, match="model"),
        open_run(tmp_path / "output", tmp_path / "model", lambda: scan, decisive={"model": 1}, **options),
    ):
        pass


def run_all(folder, environment):
    """One of two processes, which share each output."""
    os.environ.update(environment)
    set_small_shards()
    group = ProcessGroup.from_environment()
    with join_processes(group):
        for output, run in KINDS.items():
            run(folder, output, group)


def test_two_processes_write_the_bytes_of_one(tiny_encoder, tmp_path, monkeypatch):
    for owner, name in ((encoding, "BLOCK_SENTENCES"), (encode_files, "BLOCK_SENTENCES"), (parquet, "SHARD_ROWS")):
        monkeypatch.setattr(owner, name, IN_SHARD)
    tiny_encoder("bert", ["0 1 2 3 4 5 6 7 8 9"]).save(tmp_path / "encoder")
    write_numbers(tmp_path, NUMBERS)
    write_model(tmp_path, 3)
    both = [CONTEXT.Process(target=run_all, args=(tmp_path, environment)) for environment in rank_environments(2)]
    for process in both:
        process.start()
    assert finish(both) == [0, 0]
    for output, run in KINDS.items():
        run(tmp_path, f"alone-{output}")
        assert content(tmp_path / output) == content(tmp_path / f"alone-{output}"), output
    assert left_beside(tmp_path) == []


def test_the_rows_are_right(tmp_path):
    write_numbers(tmp_path, NUMBERS)
    write_model(tmp_path, 3)
    square_file(tmp_path, "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows == [{"number": number, "square": 3 * number**2} for number in NUMBERS]
    square_dataset(tmp_path, "dataset")
    assert pq.read_table(tmp_path / "dataset")["square"].to_pylist() == [3 * number**2 for number in NUMBERS]
