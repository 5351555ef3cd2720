"""Corpora on disk: items by hand, the same bytes, builds that were killed, full disks."""

import errno
import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from corpora import aligned, build, items, numbered, settings, three_languages
from filelock import FileLock

from bertrelay.device import ComputePrecision
from bertrelay.errors import WorkError
from students.parallel import corpus as corpus_files
from students.parallel.corpus import ParallelCorpus, build_corpus


def test_items_targets_and_weights_by_hand(tmp_path):
    german = aligned(tmp_path, "de", [("A dog.", "Ein Hund."), ("A cat.", "Eine Katze."), ("A dog.", "Der Hund.")])
    french = aligned(tmp_path, "fr", [("A cat.", "Un chat."), ("A bird.", "Un oiseau.")])
    corpus = build(tmp_path, [german, french])
    assert items(corpus)[:3] == [("A dog.", "A dog.", 2), ("A cat.", "A cat.", 2), ("A bird.", "A bird.", 1)]
    others = ["Ein Hund.", "Eine Katze.", "Der Hund.", "Un chat.", "Un oiseau."]
    english = ["A dog.", "A cat.", "A dog.", "A cat.", "A bird."]
    assert items(corpus)[3:] == list(zip(others, english, [1] * 5, strict=True))


def test_any_block_of_texts_is_the_same_as_that_part_of_all(tmp_path):
    corpus = build(tmp_path, [aligned(tmp_path, "de", numbered("de", range(10_000)))])
    texts = corpus.texts(0, len(corpus))
    assert len(texts) == len(corpus) == 20_000
    for start, stop in [(0, 1), (4095, 4097), (9_990, 10_010), (10_000, 10_001), (19_999, 20_000), (5, 5)]:
        assert corpus.texts(start, stop) == texts[start:stop]
    assert isinstance(corpus.targets, np.memmap)


def test_case_makes_another_target_and_spaces_and_composition_do_not(tmp_path):
    pairs = [("a  café", "eins"), (" a\u00a0cafe\u0301 ", "zwei"), ("A café", "drei")]
    corpus = build(tmp_path, [aligned(tmp_path, "de", pairs)])
    assert corpus.english.read(0, 9) == ["a café", "A café"]
    assert corpus.targets.tolist() == [0, 1, 0, 0, 1]


def test_the_same_input_gives_the_same_bytes_whatever_the_hash_seed(tmp_path):
    chosen = settings(*three_languages(tmp_path), dev_sentences=50)
    code = (
        "import sys; from pathlib import Path; from students.parallel.corpus import build_corpus; "
        "from students.distill.settings import DistillSettings; "
        "from bertrelay.device import ComputePrecision; "
        "build_corpus(Path(sys.argv[1]), DistillSettings.model_validate_json(sys.argv[2]), ComputePrecision.FP32)"
    )
    arguments = [sys.executable, "-c", code, tmp_path / "other/key", chosen.model_dump_json()]
    subprocess.run(arguments, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    build_corpus(tmp_path / "first/key", chosen, ComputePrecision.FP32)
    other, first = (
        {path.name: path.read_bytes() for path in (tmp_path / folder / "key").iterdir()}
        for folder in ("other", "first")
    )
    assert other == first
    assert sorted(first) == [
        "corpus.json", "dev.json", "dev_untrained.json", "english.arrow", "rejects.jsonl", "retained.arrow",
        "streams.npy", "targets.npy", "translations.arrow", "weights.npy",
    ]  # fmt: skip


def test_a_complete_corpus_is_only_read_and_folders_of_killed_runs_are_removed(tmp_path):
    source = aligned(tmp_path, "de", numbered("de", range(5)))
    cache = tmp_path / "cache"
    for key in ("key", "killed", "busy"):
        (cache / f"{key}.partial").mkdir(parents=True)
        (cache / f"{key}.partial" / "english.arrow").write_text("half")
    with FileLock(cache / "busy.lock"):
        build_corpus(cache / "key", settings(source), ComputePrecision.FP32)
    assert sorted(path.name for path in cache.iterdir() if path.is_dir()) == ["busy.partial", "key"]
    Path(source.english).unlink()
    assert (
        len(build_corpus(cache / "key", settings(source), ComputePrecision.FP32))
        == len(ParallelCorpus.open(cache / "key"))
        == 10
    )


def test_a_lower_limit_of_unusable_records_holds_for_a_complete_corpus(tmp_path):
    source = aligned(tmp_path, "de", numbered("de", range(9)))
    other = gzip.decompress(Path(source.other).read_bytes())
    Path(source.other).write_bytes(other.replace(b"3", b"\xff"))  # one of nine
    cache = tmp_path / "cache"
    build_corpus(cache / "key", settings(source, max_rejects=0.2), ComputePrecision.FP32)
    listed = (cache / "key" / "rejects.jsonl").stat()
    with pytest.raises(WorkError, match=r"1 of 9 records cannot be used, more than the 5\.00% allowed: 1 × not valid"):
        build_corpus(cache / "key", settings(source, max_rejects=0.05), ComputePrecision.FP32)
    assert len(build_corpus(cache / "key", settings(source, max_rejects=0.2), ComputePrecision.FP32).english) == 8
    assert len((cache / "key" / "rejects.jsonl").read_text().splitlines()) == 1
    assert (cache / "key" / "rejects.jsonl").stat().st_ino == listed.st_ino  # a complete corpus is only read


def test_a_full_disk_keeps_its_error_number_whichever_file_it_strikes(tmp_path, monkeypatch):
    """The runner recognises a full disk by it. Writing to /dev/full fails as on a full disk."""
    source = aligned(tmp_path, "de", numbered("de", range(50)))
    read_sentences = corpus_files._write_corpus
    for name in ("pairs.arrow", "english.arrow", "targets.npy", "weights.npy"):

        def on_a_full_disk(folder, *rest, name=name):
            (folder / name).symlink_to("/dev/full")
            read_sentences(folder, *rest)

        monkeypatch.setattr(corpus_files, "_write_corpus", on_a_full_disk)
        with pytest.raises(OSError, match="No space left") as raised:
            build(tmp_path, [source])
        assert raised.value.errno == errno.ENOSPC, name
