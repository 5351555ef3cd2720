"""Sentences given where a file is expected stand in no error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertrelay import SentenceEncoder, encode_file
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.layout import Prompts
from students import build_index, mine, mine_files, search

SENTENCE = "The patient Mr Marker barks."

CALLS: dict[str, Callable[[Any, Path], object]] = {
    "search": lambda given, _: search("no model", given, ["a dog"]),
    "search in a folder": lambda given, folder: search("no model", given, ["a dog"], index=folder / "index"),
    "build_index": lambda given, folder: build_index("no model", given, folder / "index"),
    "mine_files": lambda given, folder: mine_files("no model", given, given, folder / "mined.tsv"),
    "encode_file": lambda given, folder: encode_file("no model", given, folder / "vectors.npy"),
}


VECTORS = np.eye(2, dtype=np.float32)

ELSEWHERE: dict[str, Callable[[Any], object]] = {
    "model": lambda given: SentenceEncoder.load([given]),
    "device": lambda given: SentenceEncoder.load("model", given),
    "metric": lambda given: pairwise(VECTORS, VECTORS, given),
    "method": lambda given: mine(VECTORS, VECTORS, method=given),
    "k": lambda given: mine(VECTORS, VECTORS, given),
    "k, a list": lambda given: mine(VECTORS, VECTORS, [given]),
    "threshold": lambda given: mine(VECTORS, VECTORS, threshold=given),
    "vectors": lambda given: mine([given], [given]),
    "vectors of pairs": lambda given: pairwise([given], [given]),
    "prompt": lambda given: Prompts({"query": "q"}).text(given),
    "prompt, a list": lambda given: Prompts({"query": "q"}).text([given]),
}


@pytest.mark.parametrize("place", ELSEWHERE)
def test_sentences_for_another_value_are_refused_without_a_word_of_them(place):
    with pytest.raises(RequestError, match=r"expected .* found (str|list|no numbers in list)") as refused:
        ELSEWHERE[place](SENTENCE)
    assert "Marker" not in str(refused.value)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("given", [SENTENCE, [SENTENCE], (SENTENCE, SENTENCE), {SENTENCE: 1}])
def test_sentences_for_a_file_are_refused_without_a_word_of_them(call, given, tmp_path):
    with pytest.raises(RequestError, match="expected a Table or the name of a file of sentences, found ") as refused:
        CALLS[call](given, tmp_path)
    assert "Marker" not in str(refused.value)
