import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from shutil import copytree

import numpy as np
import pytest
from filelock import FileLock
from scipy.spatial.distance import cdist

from bertrelay import encode_files
from bertrelay import fingerprint as fingerprints
from bertrelay.data.records import Rejects
from bertrelay.data.tables import Table
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from bertrelay.fingerprint import CLOCK_GRAIN_NS, Digests
from bertrelay.inference import encode as encoding
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import Prompts
from students.compress.shrink import shrink
from students.searching import build as building
from students.searching import faiss as neighbours
from students.searching import index_folder
from students.searching.index import build_index, open_index, run, search
from students.searching.index_folder import FileDigest
from students.searching.settings import Hnsw, IndexSettings

BLOCK = 8


@pytest.fixture(scope="session")
def texts():
    """61 different sentences."""
    subjects = ["the dog", "two cats", "ein Hund", "le chat", "eine Maus"]
    verbs = ["runs", "sleeps", "bellt", "dort", "waits", "singt"]
    places = ["here", "im Haus", "dehors"]
    return [f"{subject} {verb} {place}" for subject in subjects for verb in verbs for place in places][:61]


@pytest.fixture(scope="session")
def encoder(tiny_encoder, texts):
    return tiny_encoder("bert", texts)


@pytest.fixture
def corpus(texts, tmp_path):
    """The sentences, and three blank lines: 4, 20 and the last one."""
    lines = [*texts[:3], "", *texts[3:18], " \t", *texts[18:], ""]
    path = tmp_path / "corpus.txt"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def small_segments(monkeypatch):
    """Segments of 24 sentences, in blocks of 8."""
    monkeypatch.setattr(building, "SEGMENT_ROWS", 3 * BLOCK)
    monkeypatch.setattr(neighbours, "EXACT_BLOCK", BLOCK)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(encoding, "BLOCK_SENTENCES", BLOCK)
    monkeypatch.setattr(encode_files, "BLOCK_SENTENCES", BLOCK)
    monkeypatch.setattr(neighbours, "GRAPH_BLOCK", BLOCK)


@pytest.fixture
def encoded(monkeypatch):
    """Every sentence that is tokenized, which is what happens to one that is encoded."""
    seen = []
    tokenize = SentenceEncoder.tokenize

    def spy(self, sentences):
        seen.extend(sentences)
        return tokenize(self, sentences)

    monkeypatch.setattr(SentenceEncoder, "tokenize", spy)
    return seen


@pytest.fixture
def linked(monkeypatch):
    """The number of vectors of each graph that is built."""
    counts, build_structure = [], building.build_structure

    def spy(kind, vectors, hnsw):
        counts.append(len(vectors))
        return build_structure(kind, vectors, hnsw)

    monkeypatch.setattr(building, "build_structure", spy)
    return counts


def build(encoder, corpus, folder=None, **options):
    folder = folder or Path(f"{corpus.path if isinstance(corpus, Table) else corpus}.index")
    return build_index(encoder, corpus, folder, precision="fp32", **options)


def nearest_lines(encoder, corpus, query, k):
    """By hand, in float64, of the lines that are not blank."""
    lines = [(number, line) for number, line in enumerate(corpus.read_text().splitlines(), 1) if line.strip()]
    vectors = encoder.encode([query, *(line for _, line in lines)], precision="fp32").astype(np.float64)
    order = np.argsort(cdist(vectors[:1], vectors[1:], "cosine")[0], kind="stable")
    return [lines[place] for place in order[:k]]


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_an_index_finds_the_nearest_lines_and_never_a_blank_one(kind, encoder, corpus, capsys):
    index = build(encoder, corpus, kind=kind)
    for query in ("the cat sleeps", "ein Hund bellt dehors"):
        hits = index.search([query], 7, precision="fp32")[0]
        assert [(hit.line, hit.text) for hit in hits] == nearest_lines(encoder, corpus, query, 7)
    assert "left out 3 blank sentences" in capsys.readouterr().err
    assert (index.manifest.sentences, index.manifest.blank) == (61, 3)


def test_a_whole_index_is_opened_without_encoding_the_corpus_or_a_lock(encoder, corpus, encoded):
    folder = build(encoder, corpus).folder
    assert len(encoded) == 61
    encoded.clear()
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}
    with FileLock(f"{folder}.lock"):
        build(encoder, corpus)
        with pytest.raises(RequestError, match="another process is writing"):
            build(encoder, corpus, kind="hnsw")
    corpus.unlink()
    for whole in (folder, copytree(folder, f"{folder} copy")):
        assert len(open_index(encoder, whole).search(["a dog"], 1)[0]) == 1
    assert encoded == ["a dog"] * 2
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]} == before
    assert sorted(path.name for path in folder.iterdir()) == ["000000.vectors.npy", "index.json", "sentences.arrow"]


def test_auto_is_exact_up_to_a_number_of_sentences_and_says_so(encoder, corpus, monkeypatch, capsys):
    monkeypatch.setattr(building, "EXACT_UP_TO", 61)
    assert build(encoder, corpus).manifest.kind == "exact"
    monkeypatch.setattr(building, "EXACT_UP_TO", 60)
    assert build(encoder, corpus).manifest.kind == "exact"  # what is there
    assert build(encoder, corpus, rebuild=True).manifest.kind == "int8"
    assert "61 sentences: an approximate index (int8), as exact is chosen up to 60" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_fewer_bits_find_the_same_when_all_are_compared_again(encoder, corpus, texts, kind, capsys):
    def similarities(index, **options):
        return [[hit.similarity for hit in hits] for hits in index.search(texts, 5, precision="fp32", **options)]

    wanted = similarities(build(encoder, corpus))
    rounded = build(encoder, corpus, kind=kind)
    assert rounded.manifest.kind == kind and 0 < rounded.manifest.recall["recall_at_10"] <= 1
    assert f"what {kind} finds of the exact ten nearest" in capsys.readouterr().err
    for index in (rounded, build(encoder, corpus), open_index(encoder, rounded.folder)):  # what is there
        assert index.manifest.kind == kind
        np.testing.assert_allclose(similarities(index, ef_search=61), wanted, atol=1e-6)
        assert similarities(index, exact=True) == wanted


def test_a_kind_is_searched_by_whatever_else_the_folder_has_and_takes_nothing_away(encoder, corpus, texts, monkeypatch):
    graph = build(encoder, corpus, kind="hnsw")
    with pytest.raises(RequestError, match=r"kind: expected int8 in .*, found exact, hnsw; give the corpus too"):
        open_index(encoder, graph.folder, kind="int8")
    with pytest.raises(RequestError, match="kind: expected auto, exact, hnsw, int8 or binary, found 'flat'"):
        open_index(encoder, graph.folder, kind="flat")
    before = (graph.folder / "000000.hnsw-32-100.faiss").stat()
    exact = build(encoder, corpus, kind="exact")
    assert (exact.manifest.kind, exact.manifest.recall, exact.segments) == ("exact", {}, [])
    assert build(encoder, corpus).manifest.kind == "hnsw"  # nothing was built since
    codes = build(encoder, corpus, kind="int8")
    assert (codes.manifest.kind, codes.manifest.hnsw) == ("int8", {})
    monkeypatch.setattr(building, "build_structure", None)
    again = build(encoder, corpus, kind="hnsw")
    assert (again.manifest.kind, again.manifest.hnsw) == ("hnsw", Hnsw().model_dump())
    assert (graph.folder / "000000.hnsw-32-100.faiss").stat() == before
    int8 = ["IndexScalarQuantizer"]
    for kind, classes in (("exact", []), ("hnsw", ["IndexHNSWFlat"]), ("int8", int8), ("auto", int8)):
        index = open_index(encoder, graph.folder, kind=kind)
        assert index.manifest.kind == (kind if kind != "auto" else "int8")  # which was built last
        assert [type(segment.structure).__name__ for segment in index.segments] == classes
        assert [hits[0].text for hits in index.search(texts, 1)] == texts


# Sentences that repeat


@pytest.mark.parametrize("kind", ["hnsw", "int8", "binary"])
def test_equal_vectors_are_searched_once_and_give_all_their_lines(kind, encoder, texts, tmp_path, capsys):
    lines = [line for text in texts[:30] for line in (text, texts[40], texts[41].upper(), text)][:-1]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    index = build(encoder, tmp_path / "corpus.txt", kind=kind)
    vectors = np.unique(encoder.encode(lines, precision="fp32"), axis=0)
    assert index.segments[0].structure.ntotal == len(vectors) < len(lines)
    assert f"119 sentences have {len(vectors)} distinct vectors" in capsys.readouterr().err
    for opened in (index, open_index(encoder, index.folder)):
        nearness, rows = opened.neighbours(opened.vectors, 50)
        assert all(len(set(found)) == 50 for found in rows.tolist()) and rows.min() >= 0
        cosines = np.einsum("nd,nkd->nk", opened.vectors, opened.vectors[rows])
        np.testing.assert_allclose(nearness, cosines, atol=1e-6)
        exact = neighbours.exact_neighbours(opened.vectors, opened.vectors, 50)[0]
        np.testing.assert_allclose(nearness, exact, atol=1e-6)
        hits = opened.search([texts[40]], 31, precision="fp32")[0]
        assert [hit.line for hit in hits[:30]] == list(range(2, 119, 4))


def test_a_low_recall_says_what_to_do(encoder, corpus, capsys):
    build(encoder, corpus, kind="hnsw", hnsw=Hnsw(links=2, ef_construction=1, ef_search=1))
    assert "recall@10 is below 0.95: more candidates (ef_search, now 1) find more" in capsys.readouterr().err
    build(encoder, corpus, kind="hnsw", hnsw=Hnsw())
    assert "is below" not in capsys.readouterr().err


# What is beside a text


@pytest.fixture
def questions(tmp_path):
    """Five records: one over two lines, one blank, one that is no text, and a blank line between them."""
    rows = ["text,answer,note", '"the dog\nruns",outside,1', '"",nothing,2', "two cats,asleep,3", "", "ein Hund,laut,"]
    (tmp_path / "questions.csv").write_text("\n".join([*rows, "le chat"]) + "\n")
    return tmp_path / "questions.csv"


def test_a_hit_has_the_number_of_its_record_and_the_columns_that_are_asked_for(encoder, questions, encoded, tmp_path):
    def hits_of(index):
        hits = {hit.text: hit for hit in index.search(["dog"], 9, precision="fp32")[0]}
        return {text: (hit.line, hit.record, hit.columns) for text, hit in hits.items()}

    def opened(**given):
        return build(encoder, questions, rejects=Rejects(tmp_path / "r.jsonl", 0.5), **given)

    numbers = {"the dog\nruns": (2, 1), "two cats": (5, 3), "ein Hund": (7, 4)}
    assert hits_of(opened()) == {text: (*places, {}) for text, places in numbers.items()}
    encoded.clear()
    answers = {"the dog\nruns": "outside", "two cats": "asleep", "ein Hund": "laut"}
    index = opened(show=["answer"])
    assert hits_of(index) == {text: (*places, {"answer": answers[text]}) for text, places in numbers.items()}
    both = opened(show=["note", 1])
    assert hits_of(both)["two cats"] == (5, 3, {"note": "3", "1": "asleep"})
    assert hits_of(open_index(encoder, index.folder, show=["answer"])) == hits_of(index)
    assert encoded == ["dog"] * 4, "what is added encodes nothing"
    assert open_index(encoder, index.folder).manifest.columns == ["answer", "note", 1]
    with pytest.raises(RequestError, match=r"show: expected line in .*, found answer, note, 1; give the corpus too"):
        open_index(encoder, index.folder, show=["line"])


def test_columns_that_are_not_there_are_refused_before_anything_is_encoded(encoder, questions, corpus, encoded):
    with pytest.raises(RequestError, match="answr"):
        build(encoder, questions, show=["answr"])
    with pytest.raises(RequestError, match=r"show: expected a table with columns, found plain lines in .*corpus\.txt"):
        build(encoder, corpus, show=["answer"])
    assert encoded == []


def test_values_keep_their_types_and_columns_survive_a_kill(encoder, tmp_path, kill_at):
    lines = [{"text": "a dog", "n": 3, "of": {"a": [1]}}, {"text": "two cats", "n": None, "of": True}]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    build(encoder, tmp_path / "c.jsonl", show=["n"])
    kill_at(building, "write_columns", 1, lambda: build(encoder, tmp_path / "c.jsonl", show=["of"]))
    assert open_index(encoder, tmp_path / "c.jsonl.index").manifest.columns == ["n"]
    hits = build(encoder, tmp_path / "c.jsonl", show=["n", "of"]).search(["a dog", "two cats"], 1)
    assert [hit.columns for (hit,) in hits] == [{"n": 3, "of": {"a": [1]}}, {"n": None, "of": True}]


# What is refused


def test_another_model_is_refused_with_what_to_do(encoder, tiny_encoder, texts, corpus):
    encoder.save(corpus.parent / "one")
    build(corpus.parent / "one", corpus)
    others = {16: tiny_encoder("bert", texts, seed=1), 32: tiny_encoder("bert", texts, pooling=["cls", "mean"])}
    for dim, other in others.items():
        message = rf"built with \(.*/one, .*, 16 dimensions\), found another one \(.*, {dim} dimensions\).*--rebuild"
        for ask in (lambda: open_index(other, f"{corpus}.index"), lambda: build(other, corpus)):  # noqa: B023
            with pytest.raises(RequestError, match=message):
                ask()
    assert build(tiny_encoder("bert", texts, seed=1), corpus, rebuild=True).manifest.sentences == 61


def test_a_student_searches_the_index_of_its_teacher_and_of_nobody_else(encoder, tiny_encoder, texts, corpus, tmp_path):
    folder = build(encoder, corpus).folder
    student = tiny_encoder("xlm-roberta", texts, seed=1)
    student.spaces = (encode_files.encoder_digest(encoder),)
    student.save(tmp_path / "student")
    found = open_index(tmp_path / "student", folder).search(texts[:5], top_k=3, precision="fp32")
    vectors, queries = (
        model.encode(sentences, precision="fp32") for model, sentences in ((encoder, texts), (student, texts[:5]))
    )
    nearest = np.argsort(cdist(queries, vectors, "cosine"), axis=1)[:, :3]
    assert [[hit.text for hit in hits] for hits in found] == [[texts[row] for row in rows] for rows in nearest]
    for parts in ({"normalize": True}, {"pooling": ["cls"]}):  # another model, made of its parts
        with pytest.raises(RequestError, match="found another one"):
            open_index(SentenceEncoder.load(tmp_path / "student").with_parts(**parts), folder)


def test_a_trimmed_student_searches_what_the_whole_one_does_and_a_shortened_one_nothing(
    encoder, tiny_encoder, texts, corpus, tmp_path
):
    student = tiny_encoder("xlm-roberta", texts, seed=1)
    student.spaces = (encode_files.encoder_digest(encoder),)
    folders = [build(model, corpus, folder=tmp_path / name).folder for model, name in ((encoder, "t"), (student, "s"))]
    shrink(student, texts[:30]).encoder.save(tmp_path / "trimmed")
    for folder in folders:
        trimmed, whole = (
            open_index(model, folder).search(texts[:5], top_k=3) for model in (tmp_path / "trimmed", student)
        )
        assert [[hit.text for hit in hits] for hits in trimmed] == [[hit.text for hit in hits] for hits in whole]
    for moved in ({"dimensions": 8}, {"layers": 1, "trim": False}):
        shrunk = shrink(student, texts, **moved).encoder
        for folder in folders:
            with pytest.raises(RequestError, match="found another one"):
                open_index(shrunk, folder)


def test_a_changed_corpus_or_column_is_reported_and_taken_in_by_a_rebuild(encoder, corpus, tmp_path):
    build(encoder, corpus)
    with corpus.open("a") as file:
        file.write("a new line\n")
    with pytest.raises(RequestError, match=r"its content differs .*--rebuild.* --index alone"):
        build(encoder, corpus)
    assert len(open_index(encoder, f"{corpus}.index").search(["a new line"], 100)[0]) == 61
    assert build(encoder, corpus, rebuild=True).search(["a new line"], 1)[0][0].line == 65
    (tmp_path / "t.tsv").write_text("a\tb\nthe dog\tein Hund\n")
    first, second = (Table(path=str(tmp_path / "t.tsv"), columns=[column]) for column in "ab")
    build(encoder, first)
    with pytest.raises(RequestError, match=r"columns: \['a'\] → \['b'\]"):
        build(encoder, second)


@pytest.mark.parametrize("name", ["sentences.arrow", "000000.vectors.npy", "000000.hnsw-32-100.faiss", "index.json"])
def test_damage_to_any_file_is_reported_by_its_name_and_gone_with_a_rebuild(name, encoder, corpus):
    path = build(encoder, corpus, kind="hnsw").folder / name
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for damaged in (flipped, whole[:-9], b"{"):
        path.write_bytes(damaged)
        with pytest.raises(RequestError, match=rf"damaged one: {name} .*--rebuild"):
            open_index(encoder, path.parent)
    path.unlink()
    message = "expected an index, found none" if name == "index.json" else f"damaged one: {name} is missing"
    with pytest.raises(RequestError, match=message):
        open_index(encoder, path.parent)
    path.write_bytes(flipped)
    assert build(encoder, corpus, rebuild=True).manifest.sentences == 61


def test_a_byte_that_flips_unseen_is_found_by_verify(encoder, corpus):
    """A failing disk flips it: times and size stay. Here the stamp is made to say so."""
    build(encoder, corpus)
    folder = Path(f"{corpus}.index")
    manifest = index_folder.read_manifest(folder)
    written = bytearray((folder / "000000.vectors.npy").read_bytes())
    written[-2] ^= 1
    (folder / "000000.vectors.npy").write_bytes(written)
    digest, stamp = manifest.files["000000.vectors.npy"].sha256, FileDigest.of(folder / "000000.vectors.npy").stamp
    manifest.files["000000.vectors.npy"] = FileDigest(digest, stamp)
    index_folder.write_manifest(folder, manifest)
    open_index(encoder, folder)
    with pytest.raises(RequestError, match=r"vectors\.npy has other bytes than were written"):
        open_index(encoder, folder, verify=True)


@pytest.mark.parametrize(
    "names", ["000000.vectors.npy", "sentences.arrow", "index.json vectors.npy", "notes.txt index.json"]
)
def test_files_of_the_names_of_ours_make_no_folder_an_index(names, encoder, corpus, tmp_path):
    folder, contents = tmp_path / "mine", dict.fromkeys(names.split(), '{"pages": 3}')
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_text(content)
    for rebuild in (False, True):
        with pytest.raises(RequestError, match=rf"an index and nothing else.* found .*mine with {names.split()[0]} in"):
            build(encoder, corpus, folder=folder, rebuild=rebuild)
    assert {path.name: path.read_text() for path in folder.iterdir()} == contents


def test_a_stopped_build_whose_sentences_have_changed_restarts(encoder, corpus, kill_at, encoded):
    kill_at(building, "forget_manifest", 1, lambda: build(encoder, corpus))
    [partial] = index_folder.partial_folders(Path(f"{corpus}.index"))
    (partial / "sentences.arrow").write_bytes((partial / "sentences.arrow").read_bytes()[:-20])
    assert build(encoder, corpus).manifest.sentences == len(encoded) == 61


def test_an_index_of_another_format_is_to_be_built_anew(encoder, corpus):
    folder = build(encoder, corpus).folder
    manifest = index_folder.read_manifest(folder)
    index_folder.write_manifest(folder, replace(manifest, format=2))
    for name in ("vectors.npy", "equal.npy", "hnsw.faiss", "columns.arrow"):  # of format 2
        (folder / name).touch()
    message = "expected an index of format 3, found format 2 of another version.*Build it anew: .*--rebuild"
    for ask in (lambda: open_index(encoder, folder), lambda: build(encoder, corpus)):
        with pytest.raises(RequestError, match=message):
            ask()
    build(encoder, corpus, rebuild=True)
    assert sorted(path.name for path in folder.iterdir()) == ["000000.vectors.npy", "index.json", "sentences.arrow"]


def test_an_untouched_corpus_is_not_read_again(encoder, corpus, monkeypatch):
    time.sleep(2 * CLOCK_GRAIN_NS / 1e9)  # as a corpus usually is not written the moment before
    build(encoder, corpus)
    read = []
    of_file = Digests.of_file
    monkeypatch.setattr(Digests, "of_file", lambda self, path: read.append(path) or of_file(self, path))
    build(encoder, corpus)
    assert read == []
    build(encoder, corpus, verify=True)
    assert corpus in read
    read.clear()
    corpus.touch()
    build(encoder, corpus)
    assert read == [corpus]
    written = corpus.stat()
    corpus.write_text(corpus.read_text().replace("dog", "cow"))
    os.utime(corpus, ns=(written.st_atime_ns, written.st_mtime_ns))
    with pytest.raises(RequestError, match="its content differs"):
        build(encoder, corpus)
    monkeypatch.setattr(fingerprints, "CLOCK_GRAIN_NS", 10**15)  # as if it was written the moment before
    assert build(encoder, corpus, rebuild=True).manifest.origin.stamp == []


@pytest.mark.parametrize(
    ("content", "given", "message"),
    [
        (b"\n \n\t\n", {}, "expected sentences, found 3 blank ones and no other"),
        (b"", {}, "has no records"),
        (b"the dog\n\xff\n", {}, "line 2: not valid UTF-8"),
        (None, {}, r"corpus\.txt cannot be read: No such file"),
        (b"the dog\n", {"prompt_name": "passage"}, "passage"),
        (b"the dog\n", {"query_prompt_name": "question"}, r"prompt: .*the model has no prompts.*found 'question'"),
    ],
)
def test_what_cannot_become_an_index_leaves_nothing_behind(content, given, message, encoder, tmp_path):
    corpus = tmp_path / "corpus.txt"
    if content is not None:
        corpus.write_bytes(content)
    with pytest.raises(RequestError, match=message):
        build(encoder, corpus, **given)
    assert list(tmp_path.iterdir()) == ([] if content is None else [corpus])


# Segments


@pytest.mark.usefixtures("small_blocks")
def test_exact_search_of_segments_is_that_of_one_index_bit_for_bit(encoder, texts, tmp_path, monkeypatch):
    """Equal sentences share the last ranks in many blocks; FAISS and BLAS compare few queries and many in two ways."""
    corpus, queries = tmp_path / "corpus.txt", unit(np.random.default_rng(0).standard_normal((40, 16), np.float32))
    corpus.write_text("\n".join([*texts, *texts[:20] * 3]))
    monkeypatch.setattr(neighbours, "EXACT_BLOCK", BLOCK)
    one = build(encoder, corpus, folder=tmp_path / "one")
    monkeypatch.setattr(building, "SEGMENT_ROWS", 3 * BLOCK)
    index = build(encoder, corpus, folder=tmp_path / "segments")
    assert [segment.rows for segment in index.manifest.segments] == [24] * 5 + [1]
    queries = np.concatenate([queries, one.vectors[:20]])
    for asked in (queries, queries[:3], queries[-3:]):
        for top_k in (1, 7, 200):
            for mine, expected in zip(index.neighbours(asked, top_k), one.neighbours(asked, top_k), strict=True):
                np.testing.assert_array_equal(mine, expected)
    np.testing.assert_array_equal(index.vectors[np.array([[120, 0], [23, 24]])], one.vectors[[[120, 0], [23, 24]]])


@pytest.mark.usefixtures("small_blocks", "small_segments")
@pytest.mark.parametrize("kind", ["hnsw", "int8", "binary"])
def test_approximate_search_of_segments_finds_what_exact_search_does(kind, encoder, corpus, texts):
    index = build(encoder, corpus, kind=kind)
    assert [segment.structure.ntotal for segment in index.segments] == [24, 24, 13]
    nearness, rows = index.neighbours(index.vectors[:61], 5, ef_search=61)
    expected, exact_rows = index.neighbours(index.vectors[:61], 5, exact=True)
    np.testing.assert_array_equal(rows, exact_rows)
    np.testing.assert_allclose(nearness, expected, atol=1e-6)
    assert index.manifest.recall["recall_at_10"] == pytest.approx(1, abs=0.1 if kind == "binary" else 1e-9)
    assert [hits[0].text for hits in index.search(texts, 1)] == texts


# Killed and resumed


def contents(folder):
    """The bytes of each file but the manifest's; of it all but the stamps, which copies have others of."""
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
    """Kills a copy of this process at its `calls`-th call of a function, of Python or C; false if `work` has fewer."""

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


@pytest.mark.usefixtures("small_blocks", "small_segments")
@pytest.mark.parametrize("rebuild", [False, True])
def test_a_build_killed_at_ten_random_moments_ends_with_the_bytes_of_one_never_killed(
    rebuild, encoder, corpus, tmp_path
):
    folder, options = tmp_path / "killed", {"kind": "hnsw", "rebuild": rebuild}
    calls = count_calls(lambda: build(encoder, corpus, folder=tmp_path / "whole", **options))
    expected = contents(tmp_path / "whole")
    for seed in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        if rebuild:
            build(encoder, corpus, folder=folder)
        moment = Random(seed).randrange(calls)
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


@pytest.mark.usefixtures("small_blocks", "small_segments")
def test_a_kind_is_added_segment_by_segment_while_the_index_serves(encoder, corpus, encoded, linked, kill_at):
    folder, links = build(encoder, corpus, kind="hnsw").folder, Hnsw(links=4)
    for list_ in (encoded, linked):
        list_.clear()
    kill_at(building, "write_index", 3, lambda: build(encoder, corpus, hnsw=links))
    assert open_index(encoder, folder).manifest.hnsw["links"] == Hnsw().links
    assert build(encoder, corpus).manifest.hnsw["links"] == Hnsw().links  # which asks for nothing, and removes nothing
    kill_at(building, "write_manifest", 1, lambda: build(encoder, corpus, hnsw=links))
    assert len(open_index(encoder, folder).search(["a dog"], 1)[0]) == 1
    assert build(encoder, corpus, kind="hnsw", hnsw=links).manifest.hnsw["links"] == 4
    assert (encoded, linked) == (["a dog"], []), "the last segment was linked before the kill at the manifest"
    assert {path.name for path in folder.glob("*.faiss")} == {f"00000{number}.hnsw-4-100.faiss" for number in range(3)}


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


def test_other_candidates_are_measured_and_kept_without_linking_anew(encoder, corpus, monkeypatch):
    links = {"links": 2, "ef_construction": 1}
    few = build(encoder, corpus, kind="hnsw", hnsw=Hnsw(**links, ef_search=1))
    monkeypatch.setattr(building, "build_structure", None)
    monkeypatch.setattr(building, "recall", lambda _, vectors: np.full(len(vectors), 0.5))
    more = build(encoder, corpus, hnsw=Hnsw(**links, ef_search=100))
    assert (few.manifest.hnsw["ef_search"], more.manifest.hnsw["ef_search"]) == (1, 100)
    assert more.manifest.recall["recall_at_10"] == 0.5
    assert more.manifest.files == few.manifest.files


# The stage


def test_the_stage_builds_an_index_and_lists_what_it_could_not_use(encoder, corpus, context, tmp_path):
    encoder.save(tmp_path / "model")
    with corpus.open("ab") as file:
        file.write(b"\xff\xfe\n")
    settings = IndexSettings.model_validate(
        {"model": str(tmp_path / "model"), "corpus": {"path": str(corpus)}, "kind": "hnsw", "max_rejects": 0.05}
    )
    metrics = run(settings, context)
    assert (metrics["sentences"], metrics["blank"], metrics["dim"]) == (61, 3, 16)
    assert metrics["recall_at_10"] == 1
    rejected = [json.loads(line) for line in (context.output / "rejects.jsonl").read_text().splitlines()]
    assert [(reject["line"], reject["reason"]) for reject in rejected] == [(65, "not valid UTF-8")]
    assert open_index(tmp_path / "model", context.output / "index").search(["the dog runs here"], 1)[0][0].line == 1


# Queries


@pytest.fixture(scope="module")
def index(encoder, texts, tmp_path_factory):
    corpus = tmp_path_factory.mktemp("search") / "corpus.txt"
    corpus.write_text("\n".join(texts), encoding="utf-8")
    return build(encoder, corpus, kind="hnsw")


def test_every_query_of_many_has_its_own_hits_best_first(index, texts):
    found = index.search([*texts, texts[0]], 4, precision="fp32")
    assert [hits[0].text for hits in found] == [*texts, texts[0]]
    assert [hits[0].line for hits in found] == [*range(1, 62), 1]
    for hits in found:
        assert hits[0].similarity == pytest.approx(1, abs=1e-5)
        assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)
    assert max(hit.similarity for hits in found for hit in hits) <= 1
    assert index.search([]) == []


def test_where_the_graph_leads_to_fewer_there_are_fewer_hits(index, texts, monkeypatch):
    def lost(*_):
        return np.array([[0.5, -np.inf]], np.float32), np.array([[6, -1]])

    monkeypatch.setattr("students.searching.faiss.approximate_neighbours", lost)
    assert index.search(["a dog"], 2) == [[(0.5, 7, texts[6], 7, {})]]


def test_a_query_prompt_stands_before_queries_alone(tiny_encoder, texts, corpus):
    encoder = tiny_encoder("bert", texts, prompts=Prompts({"query": "le chat "}))
    hit = build(encoder, corpus).search(["sleeps dehors"], 1, prompt_name="query", precision="fp32")[0][0]
    assert hit.text == "le chat sleeps dehors"
    assert hit.similarity == pytest.approx(1, abs=1e-5)


def test_an_index_with_the_prompt_of_documents_is_asked_with_that_of_queries(tiny_encoder, texts, corpus):
    prompts = Prompts({"query": "le chat ", "document": "ein Hund bellt "})
    encoder = tiny_encoder("bert", texts, prompts=prompts)
    query, documents = encoder.encode_query(["sleeps"], precision="fp32"), encoder.encode_document(texts)
    wanted = cdist(query, documents, "cosine")[0].argsort(kind="stable")[:5]
    index = build(encoder, corpus, kind="hnsw", hnsw={"links": 8})
    assert index.manifest.hnsw["links"] == 8
    for opened in (index, open_index(encoder, index.folder)):
        hits = opened.search(["sleeps"], np.int64(5), precision="fp32")[0]
        assert [hit.text for hit in hits] == [texts[row] for row in wanted]


def test_the_first_call_builds_beside_the_corpus_and_others_find_the_same_there(encoder, texts, corpus):
    built = search(encoder, corpus, texts[1:3], 2, precision="fp32")
    assert [[hit.line for hit in hits[:1]] for hits in built] == [[2], [3]]
    before = Path(f"{corpus}.index", "index.json").stat()
    assert search(encoder, Table(path=str(corpus)), texts[1:3], 2, precision="fp32") == built
    assert search(encoder, None, texts[1:3], 2, index=f"{corpus}.index", precision="fp32") == built
    assert Path(f"{corpus}.index", "index.json").stat() == before


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"corpus": None}, "expected the folder of an index"),
        ({"corpus": None, "index": "corpus.txt.index", "rebuild": True}, "rebuild: expected a corpus"),
        ({"corpus": None, "index": "corpus.txt.index", "kind": "int8"}, r"kind: expected int8 in .*found exact, hnsw"),
        ({"kind": "hsnw"}, "kind: expected 'auto', 'exact', 'hnsw', 'int8' or 'binary'"),
        ({"batch_tokens": 0}, "batch_tokens: expected greater than or equal to 1"),
        ({"ef_search": 5, "kind": "exact"}, "ef_search: expected search of kind hnsw, int8 or binary"),
        ({"ef_search": 0}, "ef_search: expected 1 or more, found 0"),
        ({"queries": ["a dog", " \n"]}, r"found an empty one \(query 2\)"),
        ({"queries": "a dog"}, r"found one string; write \[text\]"),
        ({"top_k": 0}, "top_k: expected 1 or more, found 0"),
    ],
)
def test_searches_that_cannot_be_are_refused(given, error, encoder, index, monkeypatch):
    monkeypatch.chdir(index.folder.parent)
    with pytest.raises(RequestError, match=error):
        search(encoder, **{"corpus": "corpus.txt", "queries": ["a dog"], **given})


def test_recall_of_a_graph_is_measured_printed_and_kept(encoder, corpus, capsys):
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
