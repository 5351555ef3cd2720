"""Token ids on disk: tokenized once, whole or not there, padded without touching another sentence."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from bertrelay.data import tokens as token_files
from bertrelay.data.tokens import pad_rows, prompt_tokenizer, store_tokens
from bertrelay.model.layout import Prompts

SENTENCES = ["a", "a longer one of six words", "", "two words"]
PAD = 99


def word_lengths(sentences):
    """Ids as plain as can be: 1, the length of each word, 2."""
    return [[1, *(len(word) for word in sentence.split()), 2] for sentence in sentences]


@pytest.fixture
def make(tmp_path):
    def make_tokens(sentences=SENTENCES, tokenize=word_lengths):
        return store_tokens(lambda first, end: sentences[first:end], len(sentences), tokenize, tmp_path / "tokens")

    return make_tokens


def test_ids_come_back_padded(make):
    found = make()
    ids, mask = found.padded(np.array([3, 1, 3]), PAD)
    assert ids.tolist() == [[1, 3, 5, 2, 99, 99, 99, 99], [1, 1, 6, 3, 2, 3, 5, 2], [1, 3, 5, 2, 99, 99, 99, 99]]
    assert mask.tolist() == [[1, 1, 1, 1, 0, 0, 0, 0], [1] * 8, [1, 1, 1, 1, 0, 0, 0, 0]]
    assert ids.dtype == mask.dtype == torch.int64
    assert found.lengths.tolist() == [3, 8, 2, 4]
    assert isinstance(found._ids, np.memmap)
    assert make(tokenize=None).lengths.tolist() == [3, 8, 2, 4]  # a second call tokenizes nothing


def test_rows_are_cut_out_of_the_ids_and_padded_at_their_ends():
    ids, mask = pad_rows(np.arange(10, 20), np.array([7, 0, 4]), np.array([3, 1, 0]), width=4, pad_id=-1)
    assert ids.tolist() == [[17, 18, 19, -1], [10, -1, -1, -1], [-1, -1, -1, -1]]
    assert mask.sum(axis=1).tolist() == [3, 1, 0]


def test_blocks_are_joined_as_if_there_were_none(make, monkeypatch):
    monkeypatch.setattr(token_files, "BLOCK_ROWS", 7)
    sentences = [" ".join("x" * (n % 5 + 1) for _ in range(n % 11)) for n in range(100)]
    found = make(sentences)
    assert found.lengths.tolist() == [len(row) for row in word_lengths(sentences)]
    for n in (0, 6, 7, 55, 99):
        assert found.padded(np.array([n]), PAD)[0][0].tolist() == word_lengths(sentences)[n]


def test_what_was_cut_short_is_written_anew(make):
    class Killed(Exception):
        pass

    def cut_short(_):
        raise Killed

    with pytest.raises(Killed):
        make(tokenize=cut_short)
    assert make().lengths.tolist() == [3, 8, 2, 4]


def test_ids_are_on_the_disk_before_it_says_so(make, tmp_path, monkeypatch):
    """A power cut leaves what was synced; the word that all is there must not be all that was."""
    synced, sync = [], os.fsync

    def noting(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()).removeprefix(f"{tmp_path}/"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    make()
    word = next(place for place, name in enumerate(synced) if "done.json" in name)
    assert set(synced[:word]) >= {"tokens/ids.bin", "tokens/starts.bin", "tokens"}
    assert not any(name.endswith(".bin") for name in synced[word:])


def test_a_models_default_prompt_stands_before_what_is_learnt_as_before_what_is_encoded(tiny_encoder, tmp_path):
    sentences = ["a dog runs", "the cat sleeps"]
    prompts = Prompts({"query": "the dog "}, default="query")
    encoder = tiny_encoder("bert", sentences, prompts=prompts)
    found = store_tokens(lambda a, b: sentences[a:b], 2, prompt_tokenizer(encoder), tmp_path / "tokens")
    ids, mask = found.padded(np.arange(2), encoder.pad_id)
    with torch.inference_mode():
        np.testing.assert_allclose(encoder(ids, mask), encoder.encode(sentences, precision="fp32"), atol=1e-5)
    assert ids[0].tolist() == encoder.tokenize(["the dog a dog runs"])[0]
