import multiprocessing
import os
import shutil
import signal
import sys
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import pytest
from indexes import BLOCK, build

from bertrelay import encode_files
from bertrelay.errors import RequestError
from students.searching import build as building
from students.searching import faiss as neighbours
from students.searching import index_folder
from students.searching.index import open_index
from students.searching.settings import Hnsw


def contents(folder):
    """Maps the name of each file to its bytes; of the manifest all but the origin and the stamps, which differ."""
    manifest = index_folder.read_manifest(folder)
    written = asdict(replace(manifest, origin=None, files={name: file.sha256 for name, file in manifest.files.items()}))
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "index.json"} | written


def count_calls(work):
    """Counts the calls of functions, of Python or C, in this thread."""
    position = count()
    sys.setprofile(lambda *_: next(position))
    work()
    sys.setprofile(None)
    return next(position)


def kill_after(calls, work):
    """Kills a copy of this process at its `calls`-th call of a function, of Python or C; true if `work` has so many."""

    def until_killed():
        position = count(1)

        def profile(*_):
            if next(position) == calls:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(profile)
        work()

    process = multiprocessing.get_context("fork").Process(target=until_killed)
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


@pytest.mark.promise("An index that is killed anywhere resumes to the same bytes", about="resume")
@pytest.mark.usefixtures("small_blocks", "small_segments")
@pytest.mark.parametrize("rebuild", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_build_killed_at_ten_random_moments_ends_with_the_bytes_of_one_never_killed(
    rebuild, encoder, corpus, tmp_path
):
    folder, options = tmp_path / "killed", {"kind": "hnsw", "rebuild": rebuild}
    build(encoder, corpus, folder=folder, **options)  # its first calls import modules, which a copy does not
    calls = count_calls(lambda: build(encoder, corpus, folder=tmp_path / "whole", **options))
    expected = contents(tmp_path / "whole")
    for seed in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        if rebuild:
            build(encoder, corpus, folder=folder)
        moment = 1 + Random(seed).randrange(calls)
        assert kill_after(moment, lambda: build(encoder, corpus, folder=folder, **options))
        build(encoder, corpus, folder=folder, **options)
        assert contents(folder) == expected, f"killed at call {moment} of {calls}"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "killed", "whole"]


@pytest.mark.usefixtures("small_blocks", "small_segments")
@pytest.mark.parametrize(
    ("module", "name", "call", "encodes", "links"),
    [
        (encode_files, "write_block", 5, 61 - 4 * BLOCK, 61),  # the second block of the second segment
        (building, "equal_rows", 1, 0, 61),
        (building, "write_index", 2, 0, 61 - 24),  # the graph of the second segment
        (building, "recall", 1, 0, 0),
        (building, "publish_folder", 1, 0, 0),
    ],
)
def test_a_killed_build_resumes_at_its_segment(
    module, name, call, encodes, links, encoder, corpus, encoded, kill_at, linked
):
    folder = Path(f"{corpus}.index")
    kill_at(module, name, call, lambda: build(encoder, corpus, kind="hnsw"))
    with pytest.raises(RequestError, match="this index is not finished"):
        open_index(encoder, folder)
    build(encoder, corpus, kind="hnsw")
    assert (len(encoded), sum(linked)) == (encodes, links)


def test_a_stopped_build_whose_sentences_have_changed_restarts(encoder, corpus, kill_at, encoded):
    kill_at(building, "forget_manifest", 1, lambda: build(encoder, corpus))
    [partial] = index_folder.partial_folders(Path(f"{corpus}.index"))
    (partial / "sentences.arrow").write_bytes((partial / "sentences.arrow").read_bytes()[:-20])
    assert build(encoder, corpus).manifest.sentences == len(encoded) == 61


@pytest.mark.usefixtures("small_blocks")
def test_a_build_of_another_model_takes_nothing_from_one_that_was_killed(
    encoder, tiny_encoder, texts, corpus, encoded, kill_at
):
    kill_at(encode_files, "write_block", 4, lambda: build(encoder, corpus))
    kill_at(encode_files, "write_block", 3, lambda: build(tiny_encoder("bert", texts, seed=1), corpus))
    encoded.clear()
    build(encoder, corpus)
    assert len(encoded) == 61 - 3 * BLOCK
    assert index_folder.partial_folders(Path(f"{corpus}.index")) == []


@pytest.mark.promise("An index serves until its rebuild is complete", about="complete")
@pytest.mark.usefixtures("small_blocks")
def test_the_index_serves_until_its_rebuild_is_complete(encoder, corpus, encoded, kill_at):
    folder = build(encoder, corpus).folder
    with corpus.open("a") as file:
        file.write("a new line\n")
    kill_at(encode_files, "write_block", 4, lambda: build(encoder, corpus, rebuild=True))
    assert open_index(encoder, folder).manifest.sentences == 61
    encoded.clear()
    assert build(encoder, corpus, rebuild=True).manifest.sentences == 62
    assert len(encoded) == 62 - 3 * BLOCK
    encoded.clear()
    build(encoder, corpus, rebuild=True)
    assert len(encoded) == 62, "a complete index is no part of a rebuild"


@pytest.mark.usefixtures("small_blocks")
def test_the_next_call_removes_an_index_whose_removal_was_killed(encoder, corpus, kill_at, encoded):
    folder = build(encoder, corpus).folder
    with corpus.open("a") as file:
        file.write("a new line\n")
    stopped = Path(f"{folder}.partial-0123456789ab")
    stopped.mkdir()
    kill_at(building, "_remove_partial", 1, lambda: build(encoder, corpus, rebuild=True))
    assert set(index_folder.partial_folders(folder)) == {stopped, index_folder.replaced_folder(folder)}
    encoded.clear()
    assert build(encoder, corpus).manifest.sentences == 62
    assert encoded == []
    assert index_folder.partial_folders(folder) == []


@pytest.mark.usefixtures("small_blocks", "small_segments")
def test_a_kind_is_added_segment_by_segment_while_the_index_serves(encoder, corpus, encoded, linked, kill_at):
    folder, links = build(encoder, corpus, kind="hnsw").folder, Hnsw(links=4)
    encoded.clear()
    linked.clear()
    kill_at(building, "write_index", 3, lambda: build(encoder, corpus, hnsw=links))
    assert open_index(encoder, folder).manifest.hnsw["links"] == Hnsw().links
    assert build(encoder, corpus).manifest.hnsw["links"] == Hnsw().links
    kill_at(building, "write_manifest", 1, lambda: build(encoder, corpus, hnsw=links))
    assert len(open_index(encoder, folder).search(["a dog"], 1)[0]) == 1
    assert build(encoder, corpus, kind="hnsw", hnsw=links).manifest.hnsw["links"] == 4
    assert (encoded, linked) == (["a dog"], []), "the last segment was linked before the kill at the manifest"
    assert {path.name for path in folder.glob("*.faiss")} == {f"00000{number}.hnsw-4-100.faiss" for number in range(3)}


def test_other_candidates_are_measured_and_written_without_a_new_graph(encoder, corpus, monkeypatch):
    links = {"links": 2, "ef_construction": 1}
    few = build(encoder, corpus, kind="hnsw", hnsw=Hnsw(**links, ef_search=1))
    monkeypatch.setattr(building, "build_structure", None)
    monkeypatch.setattr(building, "recall", lambda _, vectors: np.full(len(vectors), 0.5))
    more = build(encoder, corpus, hnsw=Hnsw(**links, ef_search=100))
    assert (few.manifest.hnsw["ef_search"], more.manifest.hnsw["ef_search"]) == (1, 100)
    assert more.manifest.recall["recall_at_10"] == 0.5
    assert more.manifest.files == few.manifest.files


def test_auto_is_exact_up_to_a_number_of_sentences_and_says_so(encoder, corpus, monkeypatch, capsys):
    monkeypatch.setattr(building, "EXACT_UP_TO", 61)
    assert build(encoder, corpus).manifest.kind == "exact"
    monkeypatch.setattr(building, "EXACT_UP_TO", 60)
    assert build(encoder, corpus).manifest.kind == "exact"  # the existing kind
    assert build(encoder, corpus, rebuild=True).manifest.kind == "int8"
    assert "61 sentences: an approximate index (int8), as exact is chosen up to 60" in capsys.readouterr().err


def test_a_low_recall_says_what_to_do(encoder, corpus, capsys):
    build(encoder, corpus, kind="hnsw", hnsw=Hnsw(links=2, ef_construction=1, ef_search=1))
    assert "recall@10 is below 0.95: more candidates (ef_search, now 1) find more" in capsys.readouterr().err
    build(encoder, corpus, kind="hnsw", hnsw=Hnsw())
    assert "is below" not in capsys.readouterr().err


def test_recall_of_a_graph_is_measured_logged_and_written(encoder, corpus, capsys):
    poor = build(encoder, corpus, kind="hnsw", hnsw=Hnsw(links=2, ef_construction=1, ef_search=1))
    find = partial(poor.segments[0].distinct_neighbours, candidates=1)
    measured = neighbours.recall(find, poor.vectors).mean()
    assert poor.manifest.recall["recall_at_10"] == pytest.approx(measured)
    assert poor.manifest.recall["recall_at_10_low"] <= measured <= poor.manifest.recall["recall_at_10_high"]
    assert f"recall@10 {measured:.4f} (95 % from " in capsys.readouterr().err
    good = build(encoder, corpus, kind="hnsw", hnsw=Hnsw())
    assert good.manifest.recall["recall_at_10"] == 1 > measured
    exact = build(encoder, corpus, kind="exact", rebuild=True)
    assert exact.manifest.recall == {}
