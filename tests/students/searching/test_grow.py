"""An index that grows, against one that is built at once."""

import json
import multiprocessing
import os
import signal
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import pytest
from indexes import build

from bertrelay.data.tables import Table
from bertrelay.errors import RequestError
from students.searching import faiss as neighbours
from students.searching import grow, index_folder
from students.searching import index as searching
from students.searching.grow import Added, add_to_index, compact_index, delete_from_index
from students.searching.index import open_index

QUERIES = ["the dog runs here", "eine Maus singt", "two cats"]
MODES = ("dense", "lexical", "hybrid")


@pytest.fixture(scope="session")
def rows(texts):
    """61 texts with ids, some of them numbers, a language and a year that some lack."""
    german = ("ein", "eine")
    return [
        {"id": number if number % 2 else f"t{number}", "text": text}
        | {"language": "de" if text.split()[0] in german else "other", "year": 1990 + number if number % 5 else None}
        for number, text in enumerate(texts)
    ]


@pytest.fixture
def write(tmp_path):
    """`write("a", rows)`: the table of these rows."""

    def table(name, rows):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Table(path=str(path))

    return table


@pytest.fixture
def start(encoder, write, tmp_path):
    """`start(rows, "name")`: the folder of an index of these rows."""

    def folder(rows, name="index", **options):
        options = {"id_column": "id", "show": ["language", "year"], "lexical": True, **options}
        return build(encoder, write(name, rows), folder=tmp_path / name, **options).folder

    return folder


def answers(encoder, folder, mode="dense", top_k=7, **options):
    """Ids and scores of the hits of QUERIES."""
    index = open_index(encoder, folder, show=["year"])
    hits = [hit for hits in index.search(QUERIES, top_k, mode=mode, precision="fp32", **options) for hit in hits]
    scores = [hit.similarity if hit.score is None else hit.score for hit in hits]
    return [(hit.id, hit.text, hit.columns["year"]) for hit in hits], np.array(scores)


def ids(folder):
    """The ids of the texts of an index."""
    manifest = index_folder.require_manifest(folder)
    live, sentences = index_folder.live_rows(folder, manifest), index_folder.open_sentences(folder, manifest)
    listed = sentences["id"].to_pylist()
    return [name for row, name in enumerate(listed) if live is None or live[row]]


@pytest.mark.promise("An index that has grown answers as one that is built at once", about="complete")
@pytest.mark.parametrize("segment", [1 << 20, 16])
def test_an_index_grown_in_ten_steps_with_deletions_answers_as_one_built_at_once(
    segment, encoder, rows, write, start, monkeypatch
):
    monkeypatch.setattr(grow, "SEGMENT_ROWS", segment)
    draw, folder = Random(0), start(rows[:10])
    texts = {str(row["id"]): row for row in rows[:10]}
    for step in range(10):
        new = rows[10 + 5 * step : 15 + 5 * step]
        changed = {**rows[draw.randrange(10)], "text": f"changed in {step}"} if step % 3 == 0 else None
        added = add_to_index(encoder, write(f"{step}", [*new, *([changed] if changed else [])]), folder, overwrite=True)
        replaced = changed is not None and str(changed["id"]) in texts
        for row in [*new, *([changed] if changed else [])]:
            texts.pop(str(row["id"]), None)
            texts[str(row["id"])] = row
        assert added == Added(len(new) + (changed is not None), int(replaced), 0, len(texts))
        dead = draw.sample(sorted(texts), 2)
        assert delete_from_index(folder, ids=dead)[:2] == (2, 0)
        for name in dead:
            del texts[name]
    assert ids(folder) == list(texts)
    if segment > 100:
        assert len(index_folder.require_manifest(folder).segments) <= 4, "small segments are taken into later ones"
    whole = start(list(texts.values()), "whole")
    where = {"where": "language = 'de' or year >= 2030"}
    for compact in (False, True):
        if compact:
            compact_index(folder)
            assert not index_folder.require_manifest(folder).segments[0].deleted
        for mode in MODES:
            for options in ({}, where, {"top_k": 99}):
                hits, scores = answers(encoder, folder, mode, **options)
                expected, expected_scores = answers(encoder, whole, mode, **options)
                assert hits == expected
                np.testing.assert_allclose(scores, expected_scores, atol=1e-6)


def dies_at(rename, work):
    """A copy of this process does `work` and is killed before it renames or removes a file for the n-th time."""

    def until_killed():
        calls = count(1)
        for name in ("replace", "unlink", "rename", "rmdir"):
            real = getattr(os, name)

            def counted(*arguments, real=real, **options):
                if next(calls) == rename:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            setattr(os, name, counted)
        work()

    process = multiprocessing.get_context("fork").Process(target=until_killed)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.promise("A change of an index that is killed anywhere has happened, or has not", about="complete")
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", ["add", "delete", "compact"])
def test_a_change_that_is_killed_at_any_file_leaves_the_old_index_or_the_new_one(
    change, stride, encoder, rows, write, start, tmp_path
):
    start(rows[:9], "before")
    delete_from_index(tmp_path / "before", ids=["t0"])
    more = write("more", rows[7:20])
    changes = {
        "add": lambda folder: add_to_index(encoder, more, folder, overwrite=True),
        "delete": lambda folder: delete_from_index(folder, where="year < 1994"),
        "compact": lambda folder: compact_index(folder, kind="int8"),
    }
    work = changes[change]

    def copied(name):
        folder = tmp_path / name
        folder.mkdir()
        for path in (tmp_path / "before").iterdir():
            os.link(path, folder / path.name)
        return folder

    work(copied("after"))

    def state(folder):
        return ids(folder), answers(encoder, folder)[0], index_folder.require_manifest(folder).changes

    states = [state(folder) for folder in (tmp_path / "before", tmp_path / "after")]
    seen = []
    for step in count(1, stride):
        folder = copied(f"killed-{step}")
        if not dies_at(step, lambda folder=folder: work(folder)):
            break
        seen.append(states.index(state(folder)))
        work(folder)
        assert ids(folder) == states[1][0]
        names = set(index_folder.require_manifest(folder).file_names())
        assert {path.name for path in folder.iterdir()} == {*names, "index.json"}, "nothing is left behind"
    assert seen == sorted(seen) and (stride > 1 or {*seen} == {0, 1}), "once it is the new one it stays so"
    assert states[0] == state(tmp_path / "before")


def test_another_process_finds_one_of_the_states_while_the_index_changes(encoder, rows, write, start):
    folder = start(rows[:12])
    states = [frozenset(ids(folder))]
    context = multiprocessing.get_context("fork")
    stop, answered = context.Event(), context.Queue()

    def search():
        seen = set()
        while not stop.is_set():
            index = open_index(encoder, folder)
            hits = index.hits_with_words(["dog"], np.asarray(index.vectors[:1]), 99, "hybrid")[0]
            seen.add(frozenset(hit.id for hit in hits))
        answered.put(seen)

    reader = context.Process(target=search)
    reader.start()
    try:
        for step in range(6):
            add_to_index(encoder, write(f"{step}", rows[12 + 4 * step : 16 + 4 * step]), folder)
            states.append(frozenset(ids(folder)))
            delete_from_index(folder, ids=[rows[step]["id"]])
            states.append(frozenset(ids(folder)))
            compact_index(folder)
    finally:
        stop.set()
    seen = answered.get(timeout=60)
    reader.join()
    assert reader.exitcode == 0
    assert seen <= set(states) and seen


@pytest.mark.parametrize("kind", ["hnsw", "int8", "binary"])
@pytest.mark.parametrize("few", [False, True])
def test_graphs_and_codes_leave_out_what_is_deleted_or_does_not_fulfil_a_condition(
    kind, few, encoder, rows, write, start, monkeypatch
):
    if not few:
        for module in (searching, grow):
            monkeypatch.setattr(module, "EXACT_UP_TO", 5)
        monkeypatch.setattr(neighbours, "FEW", 3)
    copies = [{**row, "id": f"copy {row['id']}"} for row in rows[:20]]
    folder = start([*rows[:40], *copies], kind=kind)
    delete_from_index(folder, ids=[row["id"] for row in [*rows[5:15], *copies[:8]]])
    add_to_index(encoder, write("more", rows[40:]), folder)
    last = index_folder.require_manifest(folder).segments[-1]
    assert (last.rows, last.is_exact) == (21, few)
    for step in ("grown", "compacted"):
        if step == "compacted":
            compact_index(folder)
        index = open_index(encoder, folder)
        assert index.manifest.kind == kind
        for where in (None, {"language": "de"}, "not language = 'de' and year is not null"):
            allowed = index.allowed(where)
            nearest, rows_of = index.neighbours(index.vectors[:30], 99, ef_search=99, allowed=allowed)
            expected, exact = index.neighbours(index.vectors[:30], 99, exact=True, allowed=allowed)
            width = exact.shape[1]
            np.testing.assert_allclose(nearest[:, :width], expected, atol=1e-6)
            assert (rows_of[:, width:] == -1).all()
            assert all(set(one[:width]) == set(other) for one, other in zip(rows_of, exact, strict=True))
    assert sum(segment.deleted for segment in index.manifest.segments) == 0
    assert index.manifest.recall["recall_at_10"] > 0.8


def test_what_cannot_be_added_or_deleted_is_refused_and_changes_nothing(
    encoder, tiny_encoder, texts, rows, write, start, tmp_path
):
    folder = start(rows[:9])
    before = (folder / "index.json").read_bytes()
    without = [{name: row[name] for name in ("id", "text")} for row in rows[9:12]]
    repeated, twice = write("a", rows[9:7:-1]), write("b", [*rows[9:11], rows[9]])
    refused = {
        r"line 2: expected new ids, found 1 that texts in": lambda: add_to_index(encoder, repeated, folder),
        "found one at line 1 and 3": lambda: add_to_index(encoder, twice, folder),
        r"line 2: a missing": lambda: add_to_index(encoder, write("c", [rows[9], {**rows[10], "id": None}]), folder),
        "language": lambda: add_to_index(encoder, write("d", without), folder),
        "found another one": lambda: add_to_index(tiny_encoder("bert", texts, seed=1), write("e", rows[9:]), folder),
        "expected an index, found none": lambda: add_to_index(encoder, write("f", rows[9:]), tmp_path / "none"),
        "found neither or both": lambda: delete_from_index(folder),
        r"columns of the index \(language, year, text": lambda: delete_from_index(folder, where="lang = 'de'"),
        "ids: expected ids, found an empty one": lambda: delete_from_index(folder, ids=[""]),
    }
    for message, change in refused.items():
        with pytest.raises(RequestError, match=message):
            change()
    assert not list(tmp_path.glob("*.partial-*"))
    assert delete_from_index(folder, ids=["none", 4]) == (0, 2, 9)
    assert (folder / "index.json").read_bytes() == before
    assert compact_index(folder).removed == 0
    assert (folder / "index.json").read_bytes() == before, "there was nothing to do"
    plain = build(encoder, write("plain", rows[:3]), folder=tmp_path / "plain").folder
    with pytest.raises(RequestError, match="expected an index whose texts have ids"):
        delete_from_index(plain, ids=["t0"])


def test_a_changed_index_is_not_taken_for_that_of_its_corpus(encoder, rows, start, tmp_path):
    table = Table(path=str(tmp_path / "index.jsonl"))
    folder = start(rows[:9])
    assert build(encoder, table, folder=folder).manifest.id_column == "id"
    delete_from_index(folder, where="text like '%'")
    index = open_index(encoder, folder)
    assert [index.search(["dog"], mode=mode) for mode in MODES] == [[[]]] * 3
    with pytest.raises(RequestError, match="found only deleted ones"):
        compact_index(folder)
    with pytest.raises(RequestError, match=r"one that was changed since it was built.* --index alone"):
        build(encoder, table, folder=folder)
    add_to_index(encoder, table, folder)
    assert ids(folder) == [str(row["id"]) for row in rows[:9]]
    assert build(encoder, table, folder=folder, rebuild=True).manifest.changes == 0


def test_a_hit_names_the_file_of_its_text_once_there_are_several(encoder, rows, write, start):
    folder = start(rows[:3])
    [[hit]] = open_index(encoder, folder).search([rows[1]["text"]], 1)
    assert (hit.id, hit.source, hit.line) == ("1", None, 2)
    add_to_index(encoder, write("more", rows[3:5]), folder)
    [[first], [second]] = open_index(encoder, folder).search([rows[1]["text"], rows[4]["text"]], 1)
    assert (Path(first.source).name, first.line, Path(second.source).name, second.line) == (
        *("index.jsonl", 2),
        *("more.jsonl", 2),
    )


def test_an_addition_that_is_killed_encodes_no_block_twice(encoder, rows, write, start, encoded, kill_at):
    folder = start(rows[:9])
    more = write("more", rows[9:20])
    kill_at(grow, "_append", 1, lambda: add_to_index(encoder, more, folder))
    encoded.clear()
    assert add_to_index(encoder, more, folder).sentences == 20
    assert encoded == []
