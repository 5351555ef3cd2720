"""Token ids on disk: tokenized once, padded without ids of another sentence."""

import numpy as np
import pytest
import torch

from bertrelay.data import tokens as token_files
from bertrelay.data.tokens import pad_rows, prompt_tokenizer, store_tokens
from bertrelay.model.layout import Prompts

SENTENCES = ["a", "a longer one of six words", "", "two words"]
PAD = 99


def word_lengths(sentences):
    """Tokenizes into 1, the length of each word, 2."""
    return [[1, *(len(word) for word in sentence.split()), 2] for sentence in sentences]


@pytest.fixture
def make(tmp_path):
    def make_tokens(sentences=SENTENCES, tokenize=word_lengths):
        return store_tokens(lambda first, end: sentences[first:end], len(sentences), tokenize, tmp_path / "tokens")

    return make_tokens


def test_ids_are_read_with_padding(make):
    tokens = make()
    ids, mask = tokens.padded(np.array([3, 1, 3]), PAD)
    assert ids.tolist() == [[1, 3, 5, 2, 99, 99, 99, 99], [1, 1, 6, 3, 2, 3, 5, 2], [1, 3, 5, 2, 99, 99, 99, 99]]
    assert mask.tolist() == [[1, 1, 1, 1, 0, 0, 0, 0], [1] * 8, [1, 1, 1, 1, 0, 0, 0, 0]]
    assert ids.dtype == mask.dtype == torch.int64
    assert tokens.lengths.tolist() == [3, 8, 2, 4]
    assert isinstance(tokens._ids, np.memmap)
    assert make(tokenize=None).lengths.tolist() == [3, 8, 2, 4]  # a second call tokenizes nothing


def test_rows_are_cut_out_of_the_ids_and_padded_at_their_ends():
    ids, mask = pad_rows(np.arange(10, 20), np.array([7, 0, 4]), np.array([3, 1, 0]), width=4, pad_id=-1)
    assert ids.tolist() == [[17, 18, 19, -1], [10, -1, -1, -1], [-1, -1, -1, -1]]
    assert mask.sum(axis=1).tolist() == [3, 1, 0]


def test_blocks_change_no_ids(make, monkeypatch):
    monkeypatch.setattr(token_files, "BLOCK_ROWS", 7)
    sentences = [" ".join("x" * (n % 5 + 1) for _ in range(n % 11)) for n in range(100)]
    tokens = make(sentences)
    assert tokens.lengths.tolist() == [len(row) for row in word_lengths(sentences)]
    for n in (0, 6, 7, 55, 99):
        assert tokens.padded(np.array([n]), PAD)[0][0].tolist() == word_lengths(sentences)[n]


def test_the_default_prompt_precedes_training_texts_as_it_does_encoded_ones(tiny_encoder, tmp_path):
    sentences = ["a dog runs", "the cat sleeps"]
    prompts = Prompts({"query": "the dog "}, default="query")
    encoder = tiny_encoder("bert", sentences, prompts=prompts)
    tokens = store_tokens(lambda a, b: sentences[a:b], 2, prompt_tokenizer(encoder), tmp_path / "tokens")
    ids, mask = tokens.padded(np.arange(2), encoder.pad_id)
    with torch.inference_mode():
        np.testing.assert_allclose(encoder(ids, mask), encoder.encode(sentences, precision="fp32"), atol=1e-5)
    assert ids[0].tolist() == encoder.tokenize(["the dog a dog runs"])[0]
