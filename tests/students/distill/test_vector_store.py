"""The store of a teacher's vectors: what it computes, and that no kill and no other corpus changes a bit of them."""

import json
import os
import time
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest
from forked import CONTEXT, finish, rank_environments

from bertrelay import encode_files
from bertrelay.cache import Cache
from bertrelay.compute.local import LocalExecutor
from bertrelay.data.shards import Span
from bertrelay.device import ComputePrecision
from bertrelay.encode_files import BlockEncoder
from bertrelay.errors import WorkError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.privacy import sensitive_data
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, join_processes
from students.distill import vector_store as module
from students.distill.vector_store import VectorStore, spans_of
from students.teacher import lookup_digests

WORDS = ["a dog", "two cats", "the bird", "one fish", "a child", "the old man", "some mice", "no horse"]
SENTENCES = [f"{who} {what}." for what, who in product(["runs", "sleeps here", "reads in the park", "sings"], WORDS)]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(encode_files, "SMALLEST_SHARD", 4)


@pytest.fixture(scope="module")
def teacher(tiny_encoder):
    return tiny_encoder("bert", SENTENCES)


@pytest.fixture
def encoded(monkeypatch):
    """The sentences that encoders are given, in order."""
    sentences, tokenize = [], SentenceEncoder.tokenize

    def spy(self, texts):
        sentences.extend(texts)
        return tokenize(self, texts)

    monkeypatch.setattr(SentenceEncoder, "tokenize", spy)
    return sentences


def vectors_of(teacher, folder, sentences=SENTENCES, group=SINGLE_PROCESS, **options):
    executor = LocalExecutor(group)
    encoding = BlockEncoder.of(teacher, executor, {"precision": ComputePrecision.FP32, **options})
    store = VectorStore.of(encoding, "digest of the teacher", folder)
    digests = lookup_digests(sentences)
    store.fill(encoding, digests, lambda rows: [sentences[row] for row in rows], executor)
    return np.asarray(store.select(digests))


@pytest.mark.promise("A changed corpus encodes only its new sentences", about="skip")
def test_vectors_are_the_teachers_and_a_second_corpus_computes_only_what_is_new(teacher, tmp_path, encoded):
    first = vectors_of(teacher, tmp_path, SENTENCES[:20])
    assert sorted(encoded) == sorted(SENTENCES[:20])
    encoded.clear()
    changed = [SENTENCES[30], *SENTENCES[10:20], SENTENCES[25], *SENTENCES[:8]]
    second = vectors_of(teacher, tmp_path, changed)
    assert sorted(encoded) == sorted([SENTENCES[30], SENTENCES[25]])
    np.testing.assert_array_equal(second[1:11], first[10:20])
    np.testing.assert_array_equal(second[12:], first[:8])
    encoded.clear()
    np.testing.assert_array_equal(vectors_of(teacher, tmp_path, changed), second)
    assert not encoded
    alone = np.concatenate([teacher.encode([sentence], precision="fp32") for sentence in changed])
    np.testing.assert_allclose(second, alone, atol=1e-5)


def test_with_and_without_stored_vectors_they_are_equal_to_rounding(teacher, tmp_path):
    vectors_of(teacher, tmp_path / "warm", SENTENCES[::3])
    warm, cold = (vectors_of(teacher, tmp_path / name) for name in ("warm", "cold"))
    np.testing.assert_allclose(warm, cold, atol=1e-5)


def test_equal_sentences_are_encoded_once(teacher, tmp_path, encoded):
    sentences = [*SENTENCES[:9], *SENTENCES[:9]]
    vectors = vectors_of(teacher, tmp_path, sentences)
    assert len(encoded) == 9
    np.testing.assert_array_equal(vectors[:9], vectors[9:])


def test_what_decides_vectors_has_a_store_of_its_own(tiny_encoder, tmp_path, encoded):
    teacher = tiny_encoder("bert", SENTENCES)
    for options in ({}, {"prompt": "no cat "}, {"precision": ComputePrecision.BF16}):
        for _ in range(2):
            encoded.clear()
            vectors_of(teacher, tmp_path, SENTENCES[:4], **options)
        assert not encoded
    teacher.max_tokens = 4
    shorter = vectors_of(teacher, tmp_path, SENTENCES[:4])
    assert len(encoded) == 4
    np.testing.assert_allclose(shorter, teacher.encode(SENTENCES[:4], precision="fp32"), atol=1e-5)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.promise("A teacher's vectors after a kill are those of a call that was not killed", about="resume")
@pytest.mark.parametrize(
    ("owner", "name", "call", "finished"),
    [
        (encode_files, "check_finite", 3, 2),  # while the third shard is computed
        (module.np, "load", 1, 8),  # all are computed, none is in the store
        (module, "_append", 4, 8),  # between the vectors of the second one and its digests
        (module, "_append", 5, 8),
    ],
)
def test_a_killed_call_is_resumed_to_the_same_bits(teacher, tmp_path, kill_at, encoded, owner, name, call, finished):
    expected = vectors_of(teacher, tmp_path / "whole")
    kill_at(owner, name, call, lambda: vectors_of(teacher, tmp_path / "killed"))
    encoded.clear()
    np.testing.assert_array_equal(vectors_of(teacher, tmp_path / "killed"), expected)
    assert len(encoded) == len(SENTENCES) - 4 * finished
    assert sorted(path.name for path in next((tmp_path / "killed").iterdir()).iterdir()) == [
        *("digests.bin", "vectors.bin", "vectors.bin.lock")
    ]


def test_another_corpus_keeps_what_a_killed_call_has_computed(teacher, tmp_path, kill_at, encoded):
    kill_at(encode_files, "check_finite", 4, lambda: vectors_of(teacher, tmp_path))
    encoded.clear()
    vectors_of(teacher, tmp_path, ["a new one sings.", *SENTENCES[:16]])
    assert encoded == ["a new one sings.", *SENTENCES[12:16]]


def test_a_vector_that_is_not_finite_is_refused_and_no_text_quoted(tiny_encoder, tmp_path):
    teacher = tiny_encoder("bert", SENTENCES)
    teacher.backbone.embeddings.word_embeddings.weight.data[:] = np.nan
    with pytest.raises(WorkError, match="a vector that is not finite for a sentence of the corpus"):
        encoding = BlockEncoder.of(teacher, LocalExecutor(), {"precision": "fp32"}, name_row=module.name_sentence)
        store = VectorStore.of(encoding, "digest", tmp_path)
        store.fill(encoding, lookup_digests(SENTENCES), lambda rows: [SENTENCES[row] for row in rows], LocalExecutor())


def test_files_of_sensitive_text_are_for_their_owner_also_where_they_were_open(teacher, tmp_path):
    umask = os.umask(0o022)
    try:
        vectors_of(teacher, tmp_path, SENTENCES[:4])
        [folder] = tmp_path.iterdir()
        assert (folder / "vectors.bin").stat().st_mode & 0o777 == 0o644
        with sensitive_data():
            vectors_of(teacher, tmp_path, SENTENCES[:9])
        vectors_of(teacher, tmp_path, SENTENCES[:12])
    finally:
        os.umask(umask)
    assert {path.stat().st_mode & 0o077 for path in (folder, folder / "vectors.bin", folder / "digests.bin")} == {0}


def test_the_rate_leaves_out_the_time_that_another_call_locks_the_store(teacher, tmp_path, monkeypatch):
    waited, clock = [0.0], time.monotonic

    @contextmanager
    def locked_late(*_, **__):
        waited[0] += 1000  # seconds
        yield

    monkeypatch.setattr(time, "monotonic", lambda: clock() + waited[0])
    monkeypatch.setattr(module, "locked_output", locked_late)
    encoding, digests = BlockEncoder.of(teacher, LocalExecutor(), {"precision": "fp32"}), lookup_digests(SENTENCES)
    store = VectorStore.of(encoding, "digest", tmp_path)
    rates = [
        store.fill(encoding, digests, lambda rows: [SENTENCES[row] for row in rows], LocalExecutor()) for _ in "ab"
    ]
    assert rates[0] > len(SENTENCES) / 1000 and rates[1] is None


def test_spans_have_the_rows_that_are_unknown():
    unknown = np.zeros(12, bool)
    unknown[[0, 9, 10]] = True
    assert spans_of(unknown) == [Span(0, 4, 1), Span(8, 12, 2)]


def worker(folder, environment):
    os.environ.update(environment)
    encode_files.SMALLEST_SHARD = 4
    group = ProcessGroup.from_environment()
    with join_processes(group):
        vectors = vectors_of(SentenceEncoder.load(folder / "model"), folder / "two", group=group)
    (folder / f"vectors-{group.rank}.json").write_text(json.dumps(vectors.tolist()))


def test_two_processes_share_the_work_and_get_the_vectors_of_one(teacher, tmp_path):
    teacher.save(tmp_path / "model")
    both = [CONTEXT.Process(target=worker, args=(tmp_path, environment)) for environment in rank_environments(2)]
    for process in both:
        process.start()
    assert finish(both) == [0, 0]
    expected = vectors_of(teacher, tmp_path / "one")
    for rank in range(2):
        vectors = json.loads((tmp_path / f"vectors-{rank}.json").read_text())
        np.testing.assert_array_equal(np.array(vectors, np.float32), expected)


def test_a_call_whose_sentences_are_all_there_writes_nothing(teacher, tmp_path):
    expected = vectors_of(teacher, tmp_path)
    [folder] = tmp_path.iterdir()
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}
    np.testing.assert_array_equal(vectors_of(teacher, Cache(tmp_path).folder, SENTENCES[::-1]), expected[::-1])
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]} == before
