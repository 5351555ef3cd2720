import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from indexes import FILES, build

from bertrelay import fingerprint as fingerprints
from bertrelay.data.tables import Table
from bertrelay.errors import RequestError
from bertrelay.fingerprint import CLOCK_GRAIN_NS, Digests
from students.searching import index_folder
from students.searching.index import open_index
from students.searching.index_folder import FileDigest


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


def test_a_changed_corpus_or_column_is_reported_and_rebuilt(encoder, corpus, tmp_path):
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


@pytest.mark.promise("A flipped byte in an index is noticed", about="complete")
@pytest.mark.parametrize("name", [*sorted(FILES), "000000.hnsw-32-100.faiss"])
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
    "names", ["000000.vectors.npy", "000000.sentences.arrow", "index.json vectors.npy", "notes.txt index.json"]
)
def test_files_with_names_of_an_index_make_no_folder_an_index(names, encoder, corpus, tmp_path):
    folder, contents = tmp_path / "user", dict.fromkeys(names.split(), '{"pages": 3}')
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_text(content)
    for rebuild in (False, True):
        with pytest.raises(RequestError, match=rf"an index and nothing else.* found .*user with {names.split()[0]} in"):
            build(encoder, corpus, folder=folder, rebuild=rebuild)
    assert {path.name: path.read_text() for path in folder.iterdir()} == contents


def test_an_index_of_another_format_is_to_be_built_anew(encoder, corpus):
    folder = build(encoder, corpus).folder
    manifest = index_folder.read_manifest(folder)
    index_folder.write_manifest(folder, replace(manifest, format=3))
    for name in (
        "vectors.npy",
        "equal.npy",
        "hnsw.faiss",
        "columns.arrow",
        "sentences.arrow",
        "words.npz",
    ):  # of earlier formats
        (folder / name).touch()
    message = "expected an index of format 4, found format 3 of another version.*Build it anew: .*--rebuild"
    for ask in (lambda: open_index(encoder, folder), lambda: build(encoder, corpus)):
        with pytest.raises(RequestError, match=message):
            ask()
    build(encoder, corpus, rebuild=True)
    assert {path.name for path in folder.iterdir()} == FILES


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
    ("content", "options", "message"),
    [
        (b"\n \n\t\n", {}, "expected sentences, found 3 blank ones and no other"),
        (b"", {}, "has no records"),
        (b"the dog\n\xff\n", {}, "line 2: not valid UTF-8"),
        (None, {}, r"corpus\.txt cannot be read: No such file"),
        (b"the dog\n", {"prompt_name": "passage"}, "passage"),
        (b"the dog\n", {"query_prompt_name": "question"}, r"prompt: .*the model has no prompts.*found 'question'"),
    ],
)
def test_a_corpus_that_cannot_become_an_index_leaves_nothing_behind(content, options, message, encoder, tmp_path):
    corpus = tmp_path / "corpus.txt"
    if content is not None:
        corpus.write_bytes(content)
    with pytest.raises(RequestError, match=message):
        build(encoder, corpus, **options)
    assert list(tmp_path.iterdir()) == ([] if content is None else [corpus])
