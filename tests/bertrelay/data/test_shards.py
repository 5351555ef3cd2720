import os
import stat
from contextlib import nullcontext, suppress

import pytest

from bertrelay.compute.local import LocalExecutor
from bertrelay.compute.work import Work, whole_span
from bertrelay.data import shards as module
from bertrelay.data.shards import (
    MANIFEST,
    ShardFiles,
    Span,
    SpanReader,
    cut_spans,
    even_spans,
    work_beside,
    work_folder,
)
from bertrelay.errors import RequestError, WorkError
from bertrelay.inference import run_model
from bertrelay.privacy import sensitive_data
from bertrelay.process_group import ProcessGroup
from bertrelay.progress import Bar

SPANS = [Span(0, 2, 20), Span(2, 3, 30), Span(3, 5, 50)]


def lines(spans, bar):
    for first, _, size in spans:
        yield [f"{first}\n"]
        bar.advance(size)


def tag(shards, start=lambda: lines, rank=0, size=1):
    """Fills the shards by a task that tags words; returns the progress units that were missing."""
    work = Work(whole_span, start, "tagging", "words")
    return run_model.fill(shards, work, LocalExecutor(ProcessGroup(rank, size))).size


@pytest.fixture
def shards(tmp_path):
    return ShardFiles(tmp_path / "output", SPANS)


def test_only_missing_shards_are_computed_and_progress_counts_what_was_there(shards, monkeypatch, capsys):
    monkeypatch.setattr("bertrelay.progress.SECONDS_BETWEEN_LINES", -1.0)  # a line for each step of it
    shards.begin({"a": 1})
    shards.write(1, ["2\n"])
    (shards.folder / ".000000.jsonl.writing").write_text("half of a shard that a kill left")
    assert shards.missing() == [0, 2]
    with pytest.raises(WorkError, match="expected all 3 shards, 2 are missing"):
        shards.complete()

    shards.begin({"a": 1})
    assert tag(shards) == 70
    assert [path.read_text() for path in shards.complete()] == ["0\n", "2\n", "3\n"]
    logged = [line.partition(", ")[0] for line in capsys.readouterr().err.splitlines()]
    assert logged == ["tagging: resuming after 30 of 100 words", *(f"tagging: {n} of 100 words" for n in (50, 100))]


def test_processes_fill_every_nth_shard_and_count_those_of_the_others(tmp_path, monkeypatch, capsys):
    """Runs the ranks one after the other in this process, so they exchange nothing."""
    monkeypatch.setattr(module, "check_shared", lambda *_: None)
    monkeypatch.setattr(run_model, "wait_for_all", lambda *_: None)
    monkeypatch.setattr(run_model, "gather", lambda *_: [0])
    monkeypatch.setattr(run_model, "on_main", lambda compute, _: compute())
    ranks = [ShardFiles(tmp_path / "output", SPANS, ProcessGroup(rank, 2)) for rank in range(2)]
    for shards in ranks:
        shards.begin({})

    def while_the_other_works(spans, bar):
        spans = list(spans)
        assert spans == [SPANS[0], SPANS[2]]
        tag(ranks[1], rank=1, size=2)
        yield from lines(spans, bar)

    assert tag(ranks[0], lambda: while_the_other_works, 0, 2) == 100
    assert capsys.readouterr().err.splitlines()[-1].startswith("tagging: 100 of 100 words")
    assert ranks[0].missing() == []


def test_processes_share_what_is_missing_evenly_whatever_was_written(tmp_path):
    ranks = [ShardFiles(tmp_path / "output", even_spans(6, 1), ProcessGroup(rank, 2)) for rank in range(2)]
    ranks[0].folder.mkdir()
    missing, computed = [1, 3, 5], list[list[int]]()

    def note(spans, bar):  # noqa: ARG001
        computed.append([span.first for span in spans])
        return iter([["1\n"]] * len(computed[-1]))

    for rank, shards in enumerate(ranks):
        work = Work(whole_span, lambda: note, "tagging", "words")
        LocalExecutor(ProcessGroup(rank, 2)).compute(shards, missing, work, Bar())
    assert computed == [[1, 5], [3]]


def test_another_manifest_restarts_and_a_kill_while_removing_is_resumed(shards, monkeypatch, capsys):
    shards.begin({"a": 1})
    shards.write(0, ["0\n"])
    shards.begin({"a": 2})
    assert shards.missing() == [0, 1, 2]
    assert capsys.readouterr().err.count("restarting") == 1

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "unlink", stop)
        shards.remove()
    shards.begin({"a": 3})
    shards.remove()
    assert list(shards.folder.parent.iterdir()) == []


def test_a_worker_taken_for_lost_that_still_writes_hinders_no_removal(shards, monkeypatch):
    shards.begin({})
    shards.write(0, ["0\n"])
    unlink = os.unlink

    def while_a_worker_writes(*args, **options):
        with suppress(FileNotFoundError):
            (shards.folder / ".000001.jsonl.writing-worker").write_text("2\n")
        unlink(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", while_a_worker_writes)
        shards.remove()
    assert list(shards.folder.parent.iterdir()) == []


def test_a_folder_of_something_else_and_a_symbolic_link_are_refused_and_stay(shards, tmp_path):
    shards.folder.mkdir()
    (shards.folder / ".manifest.json.x").write_text("")  # what a kill leaves
    shards.begin({"a": 1})
    (shards.folder / MANIFEST).unlink()
    (shards.folder / "mine.txt").write_text("mine")
    with pytest.raises(RequestError, match=r"output\.partial: expected nothing, or what an unfinished call left"):
        shards.begin({"a": 1})
    assert (shards.folder / "mine.txt").read_text() == "mine"

    shards.folder.rename(tmp_path / "elsewhere")
    shards.folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RequestError, match=r"output\.partial: .* found a symbolic link"):
        shards.begin({})
    assert (tmp_path / "elsewhere" / "mine.txt").exists()


class Failed(Exception):
    pass


def fail_after(name, folder):
    (folder / "index").mkdir(exist_ok=True)
    (folder / name).write_text("1")
    raise Failed


@pytest.mark.parametrize(("name", "is_kept"), [("texts.arrow", False), ("index/vectors.npy", True)])
def test_work_beside_an_output_outlives_an_error_only_with_vectors_and_goes_at_the_end(tmp_path, name, is_kept):
    output = tmp_path / "mined.tsv"
    with pytest.raises(Failed), work_folder(output) as folder:
        fail_after(name, folder)
    assert folder == work_beside(output) and folder.exists() == is_kept
    with work_folder(output) as folder:
        assert (folder / name).exists() == is_kept
        with pytest.raises(RequestError, match="another process is writing"), work_folder(output):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_work_folder_to_keep_stays_and_one_of_something_else_is_refused(tmp_path):
    output = tmp_path / "mined.tsv"
    with pytest.raises(Failed), work_folder(output, keep=tmp_path / "kept") as folder:
        fail_after("texts.arrow", folder)
    assert (tmp_path / "kept/texts.arrow").is_file()
    work_beside(output).mkdir()
    (work_beside(output) / "notes.txt").write_text("mine")
    with pytest.raises(RequestError, match="expected nothing, or what an unfinished call left"), work_folder(output):
        pass
    assert (work_beside(output) / "notes.txt").is_file()


def test_a_work_folder_to_keep_beside_its_output_holds_nothing_else_and_another_keeps_its_manifest(tmp_path):
    output, elsewhere = tmp_path / "mined.tsv", tmp_path / "kept"
    work_beside(output).mkdir()
    (work_beside(output) / "notes.txt").write_text("mine")
    with (
        pytest.raises(RequestError, match="expected nothing, or what an unfinished call left"),
        work_folder(output, keep=work_beside(output)),
    ):
        pass
    (work_beside(output) / "notes.txt").unlink()
    for keep in (work_beside(output), None):  # a call that keeps its work, and one that removes it
        with work_folder(output, keep=keep):
            pass
        assert work_beside(output).exists() == (keep is not None)
    elsewhere.mkdir()
    (elsewhere / MANIFEST).write_text("of something else")
    with work_folder(output, keep=elsewhere):
        pass
    assert (elsewhere / MANIFEST).read_text() == "of something else"


def test_what_cannot_be_removed_hides_no_error(tmp_path):
    with pytest.raises(Failed), work_folder(tmp_path / "mined.tsv") as folder:
        folder.joinpath(MANIFEST).unlink()
        folder.rmdir()  # as another process might
        raise Failed


def test_work_that_was_begun_before_data_were_sensitive_is_closed_to_others(tmp_path):
    for sensitive in (nullcontext(), sensitive_data()):
        with sensitive, work_folder(tmp_path / "mined.tsv", keep=tmp_path / "kept") as folder:
            (folder / "texts").touch()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "texts")] == [0o700, 0o600]


def test_what_was_begun_before_data_were_sensitive_is_closed_to_others(shards):
    shards.begin({})
    shards.write(0, ["0\n"])
    with sensitive_data():
        shards.begin({})
        shards.write(1, ["0\n"])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (shards.folder, shards.path(0), shards.path(1))] == [
        0o700,
        0o600,
        0o600,
    ]


def test_a_span_ends_with_the_item_that_brings_it_to_the_limit():
    assert cut_spans([(3, 1), (4, 2), (9, 3), (1, 4)], 7) == [Span(0, 2, 3), Span(2, 3, 3), Span(3, 4, 4)]
    assert cut_spans([(7, 1)], 7) == [Span(0, 1, 1)]
    assert cut_spans([], 7) == []
    assert even_spans(5, 2) == [Span(0, 2, 2), Span(2, 4, 2), Span(4, 5, 1)] and even_spans(0, 2) == []


def test_records_of_spans_are_read_in_one_pass_and_a_source_that_changed_is_an_error():
    passes, spans = [], [Span(1, 3, 0), Span(4, 6, 0), Span(0, 2, 0)]

    def begin():
        passes.append(1)
        return iter("abcdef")

    reader = SpanReader(begin, "x.txt")
    assert [reader.read(span) for span in spans[:2]] == [["b", "c"], ["e", "f"]] and len(passes) == 1
    assert reader.read(spans[2]) == ["a", "b"] and len(passes) == 2  # an earlier one begins another pass
    with pytest.raises(WorkError, match=r"x\.txt became shorter"):
        [SpanReader(lambda: iter("abcde"), "x.txt").read(span) for span in spans]
    lines = SpanReader(lambda: iter(["a", "bcd", "e"]), "x.txt", len)
    assert lines.read(Span(0, 2, 4)) == ["a", "bcd"]
    with pytest.raises(WorkError, match=r"x\.txt changed while"):
        lines.read(Span(2, 3, 2))
